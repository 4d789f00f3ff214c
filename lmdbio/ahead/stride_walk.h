// Finds out during a walk which values the program reads.  If the program reads every k-th value, fetches
// only leaf pages and those values.
//
// The fetched data goes to the page cache, so that the kernel's page tables show which pages were touched
// (window/touched.h).  The first few values are fetched while the program reads.  A walk that reads all of
// them becomes a stream at once.
//
// Page tables do not distinguish small values, because one touch makes all nearby pages of the page cache
// present.  But a value that was not fetched is not in the page cache.  So the first value that the program
// reads causes a page fault that waits for storage.  Until then, a walk over small values reads leaf pages
// only.  From then on it is a stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lmdbio/ahead/file_policy.h"
#include "lmdbio/ahead/planner.h"
#include "lmdbio/ahead/value_use.h"
#include "lmdbio/base/result.h"
#include "lmdbio/window/walk.h"
#include "lmdbio/window/window.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::ahead {

/// Observes and predicts the values that one walk of a cursor reads.  The walk goes in one direction; jumps
/// start it anew.
class StrideWalk {
 public:
  /// Starts observing a walk at `place`.  `walk` must outlive the result.  Returns nullptr if use cannot be
  /// observed here or there is no memory.  Also returns nullptr if other processes use most of the values, or
  /// the program has read the previous value.
  static std::unique_ptr<StrideWalk> start(window::Walk& walk, const WalkPlace& place,
                                           const window::WindowView& view) noexcept;

  /// Returns whether this walk and walks of other processes on the node together use most of the values
  /// around `chunk`.  The process that comes first should then read all of the data.  `share`: the part of
  /// the values that this walk uses, in 1/1000; 0: unknown.  Publishes a known share to the other processes.
  static bool is_shared(window::WindowFile& file, window::ChunkIndex chunk, std::uint32_t share) noexcept;

  /// Does what Readahead::step() does, and requires a call at each leaf.  Returns false if the program reads
  /// all values, reads them without a rule, or cannot be observed any more.  The walk is a stream from then
  /// on, and this object is of no further use.  May throw bad_alloc.
  Result<bool> step(Step at, const WalkPlace& place, const PageRun& need, const window::WindowView& view,
                    FreeRun& run);

  /// Returns the share of the values that the walk uses, in 1/1000; 1000 while it is unknown.
  std::uint32_t share() const noexcept {
    const Stride& stride = use_.stride();
    return stride.verdict() == Stride::Verdict::stride
               ? std::max<std::uint32_t>(1, static_cast<std::uint32_t>(1000 / stride.period()))
               : 1000;
  }
  /// See ValueUse.
  bool reads_late() const noexcept { return use_.reads_late(); }

 private:
  StrideWalk(window::Walk& walk, ValueUse use) noexcept : walk_(walk), use_(std::move(use)) {}
  void anew(const WalkPlace& place) noexcept;
  Status arrive_at_leaf(Step at, WalkPlace& place, const PageRun& need, const window::WindowView& view);
  void arrive_at_value(const WalkPlace& place, const window::WindowView& view);
  bool is_resident(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  Status fetch(WalkPlace place, std::uint64_t number, const PageRun* first, const window::WindowView& view);

  window::Walk& walk_;
  ValueUse use_;
  // The position of the walk.
  bool forward_ = true;
  std::uint64_t leaf_page_ = ~std::uint64_t{0};
  /// Number of the leaf's first entry in walk order; number of entries in the leaf.
  std::uint64_t base_ = 0, entries_ = 0;
  std::uint64_t next_ = 0;                     ///< number of the entry after the last one given
  std::size_t leaves_ = 0, leaves_ahead_ = 0;  ///< leaf pages fetched at a time; those still ahead
  unsigned probed_ = 0;                        ///< values since the start that were fetched without a guess
  bool counted_ = false, keys_counted_ = false;
  Plan plan_;
  std::vector<Extent> extents_;
};

}  // namespace lmdbio::ahead
