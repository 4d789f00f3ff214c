// One walk over a file: its plan, and the outcome of each part of it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/window/asked_pages.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::window {

/// The state of a chunk in a plan.
enum class Outcome : unsigned char {
  wanted,   ///< not requested yet
  filling,  ///< being read, perhaps for another walk
  claimed,  ///< another process is reading it
  ready,    ///< resident
  cached,   ///< found in the page cache
  filled,   ///< read into the page cache
  mapped,   ///< left to page faults
  failed,   ///< its read failed, with an errno
};

/// The walk of one cursor.  One thread at a time uses it.  The I/O thread reads and changes it under the
/// Prefetcher's lock.
class Walk {
 public:
  explicit Walk(std::shared_ptr<WindowFile> file) noexcept : file_(std::move(file)) {}
  WindowFile& file() const noexcept { return *file_; }
  /// Returns whether the walk has requested extents.  Any thread, without the lock.
  bool has_asked() const noexcept { return has_asked_.load(std::memory_order_relaxed); }

 private:
  friend class Schedule;
  friend class Prefetcher;

  struct Entry {
    ChunkIndex chunk{};
    Outcome outcome = Outcome::wanted;
    bool awaited = false;  ///< the walk cannot go on without it
    int error = 0;         ///< errno of Outcome::failed
    bool settled() const noexcept { return outcome > Outcome::claimed; }
  };

  /// Records that the walk has reached the chunk.  Returns whether it is among the chunks that were recorded
  /// last.  So each chunk is counted once, unless the walk goes far away and comes back.
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

  const std::shared_ptr<WindowFile> file_;
  // Guarded by the Prefetcher's lock:
  std::vector<Entry> plan_;  ///< in the order in which the walk needs the chunks
  std::vector<Extent> extents_;
  std::size_t next_extent_ = 0;
  AskedPages asked_;                    ///< pages of requested extents; see forget_extents()
  std::atomic<bool> has_asked_{false};  ///< asked_ has been added to; also read without the lock
  std::array<std::uint32_t, 8> come_to_{~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
  unsigned next_come_to_ = 0;
  Extent awaited_;        ///< the extent that the walk needs now; 0 bytes: none
  int extent_error_ = 0;  ///< errno of a failed read of a part of `awaited_`; 0: none
  EventCount settled_;
  bool waiting_ = false;
  ChunkIndex at_{~0u};      ///< first needed chunk of the last plan that had one
  std::uint64_t last_ = 0;  ///< tick of the last plan, by the schedule's clock
};

}  // namespace lmdbio::window
