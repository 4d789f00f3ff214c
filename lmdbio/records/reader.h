// A reader: reads records by ordinal or key, from one snapshot of one database, or from several databases.
// Its interface for programs is documented in lmdbio.h.
#pragma once

#include <lmdb.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/records/fetch.h"
#include "lmdbio/records/joined_locations.h"
#include "lmdbio/records/record_locations.h"
#include "lmdbio/records/shared.h"

namespace lmdbio::records {

/// A batch that a program holds.  `fetch` and `keep` own the bytes of its records.
struct Batch : lmdbio_batch {
  Batch() noexcept : lmdbio_batch{} {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    if (fetch != nullptr) fetch->unhold();
  }
  std::vector<lmdbio_record> rows;
  std::shared_ptr<Fetch> fetch;  ///< held
  /// Other owners of the records' bytes.
  std::vector<std::shared_ptr<const void>> keep;
  TakenMemory rows_memory;
};

/// Reads records of one snapshot.
class Reader {
 public:
  /// `memory`: bytes for batches and leaf pages; smaller values than kLeastMemory count as kLeastMemory.
  /// `process`: as in Shared.  May throw bad_alloc.
  Reader(Source source, std::unique_ptr<RecordLocations> locations, std::uint64_t memory, ReadDecision read,
         std::shared_ptr<Memory> process = nullptr);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader();

  static constexpr std::uint64_t kLeastMemory = std::uint64_t{1} << 20;

  std::uint64_t count() const noexcept { return locations_->records(); }
  const RecordLocations& locations() const noexcept { return *locations_; }
  RecordLocations& locations() noexcept { return *locations_; }
  Shared& shared() noexcept { return *shared_; }
  const std::shared_ptr<Shared>& keep_shared() const noexcept { return shared_; }

  // Any thread may call the functions below.  If they fail, `why` explains the error in one line that names
  // the file.

  /// Implements lmdbio_reader_read().  The record of the ordinal kNoRecord is empty.  `by_key`: the ordinals
  /// come from find().  May throw bad_alloc.
  Status read(std::span<const std::uint64_t> ordinals, std::unique_ptr<Batch>& out, std::string& why,
              bool by_key = false);
  /// Sets `ordinals` to the ordinals of `keys`.  The ordinal of a key that does not exist is kNoRecord.  May
  /// throw bad_alloc.
  Status find(std::span<const MDB_val> keys, std::vector<std::uint64_t>& ordinals, std::string& why);

  /// Returns true in the process that made the reader.  Returns false in a forked child, where nothing can
  /// be read.
  bool ours(std::string& why) const;

 private:
  const std::shared_ptr<Shared> shared_;
  std::unique_ptr<RecordLocations> locations_;
  const pid_t pid_;
  std::mutex mutex_;  ///< guards `idle_`
  std::vector<std::unique_ptr<Queues>> idle_;

  class Borrowed;
  Status lookup(std::size_t database, std::span<const MDB_val> keys, const JoinedLocations::Tell& tell,
                std::string& why);
};

/// Makes a batch of the records `i` to `i` + `n` - 1 of a finished fetch.  May throw bad_alloc.
Status make_batch(Shared& shared, const std::shared_ptr<Fetch>& fetch, std::size_t i, std::size_t n,
                  std::unique_ptr<Batch>& out, std::string& why);

/// Waits until the locations of records are known, and adds the records to `fetch`.  Ordinals may be
/// kNoRecord.  `by_key`: as in Reader::read().  If false, records with unknown ordinals count as records of a
/// damaged page.  Errors: ENOMEM if the records take more memory than the reader has.  EINVAL if an ordinal
/// is too large.  Otherwise as RecordLocations::await().  May throw bad_alloc.
Status add_records(const RecordLocations& locations, Shared& shared, std::span<const std::uint64_t> ordinals,
                   const std::atomic<bool>& cancelled, Fetch& fetch, std::string& why, bool by_key = false);

/// Returns "name: what: reason" for messages.
std::string reason(const Shared& shared, const std::string& what, Status st);
/// As above, for a fetch that failed.  With several databases, names the one that caused the failure.
std::string reason(Shared& shared, const Fetch& fetch, const std::string& what, Status st);
/// Returns the message for an ENOMEM of Fetch::start().
std::string memory_reason(const Shared& shared, const Fetch& fetch);

}  // namespace lmdbio::records
