// A fetch: records that are read together into one buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lmdbio/include/lmdbio/lmdbio.h"
#include "lmdbio/records/record_locations.h"
#include "lmdbio/records/shared.h"

namespace lmdbio::records {

/// Returns how many bytes of the tables of a batch or fetch count against the process's memory.  `bytes`:
/// size of the tables.  Tables below 16 KiB do not count.
constexpr std::uint64_t counted_apart(std::uint64_t bytes) noexcept { return bytes < 16384 ? 0 : bytes; }

/// The ordinal of a record that does not exist.
inline constexpr std::uint64_t kNoRecord = UINT64_MAX;

/// Reads a set of records into one buffer.  Call add() for each record, then plan(), then start() until it
/// succeeds.  Wait until the group is done, and call finish().  Then call give() for any of the records.
///
/// One thread at a time until finish() returns.  The records that give() returns are valid as long as the
/// Fetch exists.  Any thread may destroy a Fetch, but not while its reads are in flight.
class Fetch {
 public:
  Fetch() = default;
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  /// Adds a record.  May throw bad_alloc.
  void add(std::uint64_t ordinal, const RecordLocation& location, const Shared& shared);
  /// Adds a record that does not exist.  give() then returns an empty key and value.  May throw bad_alloc.
  void add_missing();
  std::size_t records() const noexcept { return ordinals_.size(); }
  std::uint64_t ordinal(std::size_t i) const noexcept { return ordinals_[i]; }
  /// Returns the bytes of this object's own tables.
  std::uint64_t own_bytes() const noexcept { return ordinals_.size() * kRecordBytes; }
  /// Returns the estimated upper limit of the memory that the records take, in bytes.
  std::uint64_t bytes() const noexcept { return bytes_ + ordinals_.size() * kRecordBytes; }

  /// Determines which pages must be read, and whether they are in the page cache.  The reads include gaps of
  /// up to one page.  They include larger gaps, up to 64 KiB, while the total is at most `most` bytes.  Call
  /// it once.  May throw bad_alloc.
  void plan(Shared& shared, std::uint64_t most);
  /// Plans to read fewer gaps, after start() has failed with ENOMEM.  The aim is half the bytes, or as few as
  /// possible.  Returns false if there are no gaps left to drop, or if the fetch has started.
  bool plan_less() noexcept;
  /// Returns true if all pages are in the page cache or in the leaf cache, as far as samples show.  There is
  /// then nothing to wait for.
  bool cached() const noexcept { return cached_; }
  /// Allows the fetch to lend data from the page cache instead of copying it.  Call it before start().  Lent
  /// data are pointers into the file's mapping.  Call still_lent() before give(), and use the data soon.
  void lend() noexcept { may_lend_ = true; }
  /// Reads through the page cache even if the reader's path is direct.  Call it before start().
  void use_page_cache() noexcept { to_page_cache_ = true; }
  /// Returns true if the data is lent.  Call it after start().
  bool lends() const noexcept { return lent_ != nullptr; }
  /// Returns true if the file is still long enough for the lent data, and if it has not changed (see
  /// Shared::unchanged).  Access beyond the end of the file raises SIGBUS.
  bool still_lent(Shared& shared) const noexcept;
  /// Takes a buffer as `memory` requests, and adds the reads to one of the queues.  Copies data from the page
  /// cache at once.  Errors: ENOMEM, or as Queues::get().  After an error, start() may be called again.
  Status start(Shared& shared, Queues& queues, MemoryRequest& memory) noexcept;
  /// Returns the queue in which to wait for the group, or nullptr if there is nothing to wait for.
  ReadQueue* queue() const noexcept { return queue_; }
  ReadGroup& group() noexcept { return group_; }
  /// Returns the bytes of the buffer; 0 if no buffer was needed.
  std::size_t buffer_bytes() const noexcept { return buffer_.size(); }
  /// Hold and release the buffer, as Buffer's functions do.  Call them after start().
  void hold() const noexcept { buffer_.hold(); }
  void unhold() const noexcept { buffer_.unhold(); }
  bool held() const noexcept { return buffer_.held(); }
  /// Checks that the records belong to the reader's snapshot, and copies leaf pages that were read into the
  /// leaf cache.  Call it once all reads have succeeded.  Error: ESTALE, for several databases, if one of
  /// them was changed.
  Status finish(Shared& shared) noexcept;
  /// Returns the number of the database that caused a failed read or ESTALE, or nothing if that is not known.
  std::optional<std::size_t> failed_database(Shared& shared, Status st) const noexcept;

  /// Sets `out` to record `i`, in the order of the calls of add().  Returns MDB_CORRUPTED if the file does
  /// not contain the record, and sets `bad_page` to the number of the damaged page.
  Status give(const Shared& shared, std::size_t i, lmdbio_record& out, std::uint64_t& bad_page) noexcept;

 private:
  static constexpr std::uint64_t kRecordBytes = sizeof(RecordLocation) + sizeof(std::uint64_t);
  struct Stretch {
    Extent extent;
    std::size_t at;  ///< position of the extent's first byte in the buffer
  };
  struct Held {
    std::uint64_t page;
    LeafCache::Page bytes;
  };

  void want(const Shared& shared, std::uint64_t page, std::uint64_t bytes, std::size_t file);
  bool in_page_cache(Shared& shared) const noexcept;
  template <class Check>
  bool each_file(const Shared& shared, Check&& check) const noexcept;
  bool reaches_all(Shared& shared) const noexcept;
  bool unchanged(Shared& shared) const noexcept;
  void fault_in(Shared& shared) const noexcept;
  bool copy(Shared& shared) noexcept;
  bool copy_kept(Shared& shared, const Stretch& s) noexcept;
  bool take_mapped(Shared& shared) noexcept;
  bool keeps_leaf(const Shared& shared, const RecordLocation& p) const noexcept {
    return p.overflow != 0 || p.dup_leaf != 0 || shared.keeps_all_leaves;
  }
  const std::byte* find(std::uint64_t offset, std::uint64_t bytes) noexcept;
  const std::byte* leaf_bytes(const Shared& shared, std::uint64_t page, std::size_t file) noexcept;
  bool open_leaf(const Shared& shared, std::uint64_t page, std::size_t file, format::PageView& view) noexcept;

  TakenMemory own_memory_;
  std::vector<std::uint64_t> ordinals_;
  std::vector<RecordLocation> locations_;
  std::uint64_t bytes_ = 0, last_leaf_ = 0;

  std::vector<Extent> wanted_;
  std::vector<Extent> exact_;              ///< wanted_ without gaps; empty if no gap is read
  std::uint64_t gap_ = 0;                  ///< largest gap that is read, in bytes
  std::vector<Stretch> stretches_;         ///< sorted
  std::vector<Held> held_;                 ///< sorted by page
  std::vector<std::uint64_t> new_leaves_;  ///< leaf pages that finish() copies into the leaf cache
  bool cached_ = false, may_lend_ = false, to_page_cache_ = false;
  const std::byte* lent_ = nullptr;  ///< the file's mapping, if it is used instead of a buffer
  ReadQueue* queue_ = nullptr;
  Buffer buffer_;
  ReadGroup group_;

  std::size_t last_stretch_ = 0;  ///< index of the stretch that find() returned last
  std::uint64_t open_page_ = 0;   ///< number of the page in leaf_; 0 if there is none
  format::PageView leaf_ = format::PageView::none();
};

/// Holds a fetch's buffer during a call.
class HeldFetch {
 public:
  explicit HeldFetch(std::shared_ptr<Fetch> fetch) noexcept : fetch_(std::move(fetch)) { fetch_->hold(); }
  HeldFetch(const HeldFetch&) = delete;
  HeldFetch& operator=(const HeldFetch&) = delete;
  ~HeldFetch() { fetch_->unhold(); }

 private:
  const std::shared_ptr<Fetch> fetch_;
};

}  // namespace lmdbio::records
