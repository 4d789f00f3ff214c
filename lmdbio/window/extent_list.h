// A list of extents of a file.  Any thread can see without a lock whether it is empty.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "lmdbio/io/extents.h"

namespace lmdbio::window {

/// Extents in the order in which they were added.  Under the Prefetcher's lock, except is_empty().
class ExtentList {
 public:
  /// Throws std::bad_alloc.
  void add(const Extent& extent) {
    extents_.push_back(extent);
    is_empty_.store(false, std::memory_order_relaxed);
  }
  /// Removes one extent that equals `extent`, if there is one.
  void remove(const Extent& extent) noexcept {
    if (const auto e = std::find(extents_.begin(), extents_.end(), extent); e != extents_.end())
      extents_.erase(e);
    is_empty_.store(extents_.empty(), std::memory_order_relaxed);
  }
  /// Removes and returns all extents.
  std::vector<Extent> take() noexcept {
    is_empty_.store(true, std::memory_order_relaxed);
    return std::exchange(extents_, {});
  }
  /// Returns whether one of the extents in the list has a byte in common with `extent`.
  bool overlaps(const Extent& extent) const noexcept {
    return std::any_of(extents_.begin(), extents_.end(),
                       [&extent](const Extent& e) { return overlap(e, extent); });
  }
  /// Any thread, without the lock.
  bool is_empty() const noexcept { return is_empty_.load(std::memory_order_relaxed); }

 private:
  std::vector<Extent> extents_;
  std::atomic<bool> is_empty_{true};
};

}  // namespace lmdbio::window
