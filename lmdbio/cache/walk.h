// One walk over a file: its plan, and what became of each part of it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/cache/asked_pages.h"
#include "lmdbio/cache/file_cache.h"

namespace lmdbio::cache {

/// What became of a chunk of a plan.
enum class Outcome : unsigned char {
  wanted,   ///< nobody has begun to read it
  filling,  ///< being read, perhaps for another walk
  claimed,  ///< another process is bringing it into the page cache
  ready,    ///< resident
  cached,   ///< it was found in the page cache
  filled,   ///< it was brought into the page cache
  mapped,   ///< it is there by now, or could not be had otherwise
  failed,   ///< with an errno
};

/// One cursor's.  Made and used by one thread at a time; the I/O thread reads and answers under the
/// Prefetcher's lock.
class Walk {
 public:
  explicit Walk(std::shared_ptr<FileCache> file) noexcept : file_(std::move(file)) {}
  FileCache& file() const noexcept { return *file_; }
  /// It has asked for extents; any thread, without the lock.
  bool has_asked() const noexcept { return has_asked_.load(std::memory_order_relaxed); }

 private:
  friend class Schedule;
  friend class Prefetcher;

  struct Entry {
    ChunkIndex chunk{};
    Outcome outcome = Outcome::wanted;
    bool awaited = false;  ///< the walk cannot go on without
    int error = 0;         ///< of Outcome::failed
    bool settled() const noexcept { return outcome > Outcome::claimed; }
  };

  /// Counts each chunk once, but for walks that go far and come back.
  bool has_come_to(ChunkIndex c) noexcept {
    if (std::find(come_to_.begin(), come_to_.end(), raw(c)) != come_to_.end()) return true;
    come_to_[next_come_to_++ % come_to_.size()] = raw(c);
    return false;
  }
  void clear_plan() noexcept {
    plan_.clear();
    extents_.clear();
    next_extent_ = 0;
  }

  const std::shared_ptr<FileCache> file_;
  // Below: under the Prefetcher's lock.
  std::vector<Entry> plan_;  ///< in the order of need
  std::vector<Extent> extents_;
  std::size_t next_extent_ = 0;
  AskedPages asked_;                    ///< of extents, until they are to be looked for anew
  std::atomic<bool> has_asked_{false};  ///< for any; also without the lock
  std::array<std::uint32_t, 8> come_to_{~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
  unsigned next_come_to_ = 0;
  Extent awaited_;        ///< bytes not 0: the walk waits for it
  int extent_error_ = 0;  ///< of a piece of it: an errno
  EventCount settled_;
  bool waiting_ = false;
  ChunkIndex at_{~0u};      ///< where it was last
  std::uint64_t last_ = 0;  ///< when, on the schedule's clock
};

}  // namespace lmdbio::cache
