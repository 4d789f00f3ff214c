// Records by ordinal or key, of one snapshot of one database.  lmdbio.h says what programs may expect.
#pragma once

#include <lmdb.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/records/fetch.h"
#include "lmdbio/records/places.h"
#include "lmdbio/records/shared.h"

namespace lmdbio::records {

/// What a program holds.  Its records' bytes are the Fetch's.
struct Batch : lmdbio_batch {
  Batch() noexcept : lmdbio_batch{} {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    if (fetch != nullptr) fetch->unhold();
  }
  std::vector<lmdbio_record> rows;
  std::shared_ptr<Fetch> fetch;  ///< held
  /// What else has the records' bytes.
  std::vector<std::shared_ptr<const void>> keep;
  TakenMemory rows_memory;
};

class Reader {
 public:
  /// `memory`: bytes for batches and leaf pages; at least kLeastMemory is taken.  `process`: see Shared.  May
  /// throw bad_alloc.
  Reader(Source source, std::unique_ptr<Places> places, std::uint64_t memory, ReadDecision read,
         EngineMaker make_engine, std::shared_ptr<Memory> process = nullptr);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader();

  static constexpr std::uint64_t kLeastMemory = std::uint64_t{1} << 20;

  std::uint64_t count() const noexcept { return places_->records(); }
  const Places& places() const noexcept { return *places_; }
  Places& places() noexcept { return *places_; }
  Shared& shared() noexcept { return *shared_; }
  const std::shared_ptr<Shared>& keep_shared() const noexcept { return shared_; }

  // Any thread.  On failure `why` says what was wrong, in one line that names the file.

  /// lmdbio_reader_read; kNoRecord among the ordinals: no such record.  `by_key`: find() gave them.  May
  /// throw bad_alloc.
  Status read(std::span<const std::uint64_t> ordinals, std::unique_ptr<Batch>& out, std::string& why,
              bool by_key = false);
  /// The ordinals of `keys`, kNoRecord for those that do not exist.  May throw bad_alloc.
  Status find(std::span<const MDB_val> keys, std::vector<std::uint64_t>& ordinals, std::string& why);

  /// False in a child of the process that made it: nothing can be read there.
  bool ours(std::string& why) const;

 private:
  const std::shared_ptr<Shared> shared_;
  std::unique_ptr<Places> places_;
  const pid_t pid_;
  std::mutex mutex_;  ///< guards `idle_`
  std::vector<std::unique_ptr<Queues>> idle_;

  class Borrowed;
};

/// Record `i` to `i` + `n` - 1 of a finished fetch, as a batch.  May throw bad_alloc.
Status make_batch(Shared& shared, const std::shared_ptr<Fetch>& fetch, std::size_t i, std::size_t n,
                  std::unique_ptr<Batch>& out, std::string& why);

/// Adds records, kNoRecord among them, to `fetch`; waits until it is known where they are.  Once they take
/// more memory than there can be: ENOMEM.  An ordinal is too large: EINVAL.  Else as Places::await. `by_key`:
/// as in Reader::read; otherwise, records with unknown ordinals are those of a damaged page.  May throw
/// bad_alloc.
Status add_records(const Places& places, Shared& shared, std::span<const std::uint64_t> ordinals,
                   const std::atomic<bool>& cancelled, Fetch& fetch, std::string& why, bool by_key = false);

/// "name: what: reason", for messages.
std::string reason(const Shared& shared, const std::string& what, Status st);
/// For an ENOMEM of Fetch::start.
std::string memory_reason(const Shared& shared, const Fetch& fetch);

}  // namespace lmdbio::records
