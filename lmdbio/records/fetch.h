// Records that are read together: their pages, the reads that fetch them, one buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lmdbio/include/lmdbio/lmdbio.h"
#include "lmdbio/records/places.h"
#include "lmdbio/records/shared.h"

namespace lmdbio::records {

/// Of a batch's or a fetch's own tables, what is counted against the process's memory: nothing of small ones,
/// which are part of what any library takes.
constexpr std::uint64_t counted_apart(std::uint64_t bytes) noexcept { return bytes < 16384 ? 0 : bytes; }

/// The ordinal of a record that does not exist.
inline constexpr std::uint64_t kNoRecord = UINT64_MAX;

/// add() for each record; then start(), once or until it succeeds; then, its group done, finish(); then
/// give() for any of the records.  One thread at a time until it is finished; what was given lives as long as
/// the Fetch, which any thread may end.  While its reads are in flight it is not ended.
class Fetch {
 public:
  Fetch() = default;
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  /// The next record.  May throw bad_alloc.
  void add(std::uint64_t ordinal, const RecordPlace& place, const Shared& shared);
  void add_missing();
  std::size_t records() const noexcept { return ordinals_.size(); }
  std::uint64_t ordinal(std::size_t i) const noexcept { return ordinals_[i]; }
  /// Bytes that this takes by itself.
  std::uint64_t own_bytes() const noexcept { return ordinals_.size() * kRecordBytes; }
  /// What the records will take, roughly and at most, in bytes of memory.
  std::uint64_t bytes() const noexcept { return bytes_ + ordinals_.size() * kRecordBytes; }

  /// Finds out what has to be read, and whether it is in the page cache.  Small gaps are read as well, as
  /// long as that takes at most `most` bytes.  Once.  May throw bad_alloc.
  void plan(Shared& shared, std::uint64_t most);
  /// There was no room: fewer gaps are read, so that it takes half as much or as little as it can.  False: it
  /// does already, or is started.
  bool plan_less() noexcept;
  /// There is nothing to wait for: it comes out of the page cache, or was kept.
  bool cached() const noexcept { return cached_; }
  /// Before start(): what is in the page cache need not be copied.  What give() returns then lies in the
  /// file's mapping, and is to be used soon, after still_lent().
  void lend() noexcept { may_lend_ = true; }
  /// Before start(): what is read stays in the page cache, even if the reader's path is direct.
  void use_page_cache() noexcept { to_page_cache_ = true; }
  /// Once started.
  bool lends() const noexcept { return lent_ != nullptr; }
  /// The file is as long as what was lent needs it to be: what has been cut off is SIGBUS.
  bool still_lent(const Shared& shared) const noexcept;
  /// Takes a buffer as `memory` says, and wants the reads of one of the queues; what is in the page cache is
  /// copied at once.  ENOMEM, or as Queues::get: as it was.
  Status start(Shared& shared, Queues& queues, MemoryRequest& memory) noexcept;
  /// Where its group is waited for; null: there is nothing to wait for.
  ReadQueue* queue() const noexcept { return queue_; }
  ReadGroup& group() noexcept { return group_; }
  /// Bytes of the buffer; 0: none was needed.
  std::size_t buffer_bytes() const noexcept { return buffer_.size(); }
  /// Its buffer, once started: see Buffer.
  void hold() const noexcept { buffer_.hold(); }
  void unhold() const noexcept { buffer_.unhold(); }
  bool held() const noexcept { return buffer_.held(); }
  /// All was read: leaf pages are kept for others.
  void finish(Shared& shared) noexcept;

  /// Record `i` of those added.  MDB_CORRUPTED, and `what` says in which page: the file does not hold it.
  Status give(const Shared& shared, std::size_t i, lmdbio_record& out, std::uint64_t& bad_page) noexcept;

 private:
  static constexpr std::uint64_t kRecordBytes = sizeof(RecordPlace) + sizeof(std::uint64_t);
  struct Stretch {
    Extent extent;
    std::size_t at;  ///< of its first byte, in the buffer
  };
  struct Held {
    std::uint64_t page;
    LeafCache::Page bytes;
  };

  void want(const Shared& shared, std::uint64_t page, std::uint64_t bytes);
  bool in_page_cache(const Shared& shared) const noexcept;
  bool copy(Shared& shared) noexcept;
  bool take_mapped(Shared& shared) noexcept;
  bool keeps_leaf(const Shared& shared, const RecordPlace& p) const noexcept {
    return p.overflow != 0 || p.dup_leaf != 0 || shared.keeps_all_leaves;
  }
  const std::byte* find(std::uint64_t offset, std::uint64_t bytes) noexcept;
  const std::byte* leaf_bytes(const Shared& shared, std::uint64_t page) noexcept;
  bool open_leaf(const Shared& shared, std::uint64_t page, format::PageView& view) noexcept;

  TakenMemory own_memory_;
  std::vector<std::uint64_t> ordinals_;
  std::vector<RecordPlace> places_;
  std::uint64_t bytes_ = 0, last_leaf_ = 0;

  std::vector<Extent> wanted_;
  std::vector<Extent> exact_;              ///< the same without the gaps; empty: there are none
  std::uint64_t gap_ = 0;                  ///< the largest that is read
  std::vector<Stretch> stretches_;         ///< sorted
  std::vector<Held> held_;                 ///< sorted by page
  std::vector<std::uint64_t> new_leaves_;  ///< read with the rest, to be kept
  bool cached_ = false, may_lend_ = false, to_page_cache_ = false;
  const std::byte* lent_ = nullptr;  ///< the file's mapping, instead of a buffer
  ReadQueue* queue_ = nullptr;
  Buffer buffer_;
  ReadGroup group_;

  std::size_t last_stretch_ = 0;  ///< where the last find() ended
  std::uint64_t open_page_ = 0;   ///< of leaf_; 0: none
  format::PageView leaf_ = format::PageView::none();
};

/// Holds a fetch while a call needs it.
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
