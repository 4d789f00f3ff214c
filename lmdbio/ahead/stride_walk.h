// Finds out during a walk which values the program reads.  If it reads every k-th, fetches only leaf pages
// and those values.
//
// The fetched data goes to the page cache, so that the kernel's page tables show which pages were touched
// (window/touched.h).  The first few values are fetched while the program reads.  A walk that reads all of
// them becomes a stream at once.
//
// Page tables do not distinguish small values: one touch makes all nearby pages present that are in the
// page cache.  But a value that was not fetched is not in the page cache.  So the first value that the
// program reads costs it a page fault that waits for storage.  Until then, a walk over small values reads
// leaf pages only.  From then on it is a stream.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/ahead/file_policy.h"
#include "lmdbio/ahead/planner.h"
#include "lmdbio/ahead/stride.h"
#include "lmdbio/base/result.h"
#include "lmdbio/window/file_cache.h"
#include "lmdbio/window/touched.h"
#include "lmdbio/window/walk.h"
#include "lmdbio/window/window.h"

namespace lmdbio::ahead {

/// Observes and predicts the values that one walk of a cursor reads.  The walk goes in one direction; jumps
/// start it anew.
class StrideWalk {
 public:
  enum class Arrival : unsigned char { edge, leaf, value };

  /// Whether average values are so large that a touch of a page in their middle shows the use of that value
  /// alone.
  static bool tells_each(const WalkPlace& place, const window::WindowView& view) noexcept;
  /// Starts for a walk at `place`; `walk` outlives the result.  Returns nullptr if use cannot be observed
  /// here, other processes use most of the values, the program has read the previous value, or there is no
  /// memory.
  static std::unique_ptr<StrideWalk> start(window::Walk& walk, const WalkPlace& place,
                                           const window::WindowView& view) noexcept;
  ~StrideWalk();

  /// Whether this walk and walks of other processes on the node together use most of the values around
  /// `chunk`.  The process that comes first should then read all of the data.  `share`: the part of the
  /// values that this walk uses, in 1/1000; 0: unknown.  Publishes a known share to the other processes.
  static bool is_shared(window::FileCache& file, window::ChunkIndex chunk, std::uint32_t share) noexcept;

  /// Does what Readahead::step() does, and requires a call at each leaf.  Returns false if the walk reads
  /// all of its values, reads them by no rule, or cannot be observed any more.  The walk is a stream from
  /// then on, and this object is of no further use.  May throw bad_alloc.
  Result<bool> step(Arrival at, const WalkPlace& place, const PageRun& need, const window::WindowView& view,
                    FreeRun& run);

  /// Returns the share of the values that the walk uses, in 1/1000; 1000 while it is unknown.
  std::uint32_t share() const noexcept {
    return stride_.verdict() == Stride::Verdict::stride
               ? std::max<std::uint32_t>(1, static_cast<std::uint32_t>(1000 / stride_.period()))
               : 1000;
  }

  /// Whether reads do not show when the next value is given, because they come later or from other threads.
  bool reads_late() const noexcept { return !apart_; }

 private:
  /// A value that was given to the program since the last step.
  struct Given {
    std::uint64_t number;
    const std::byte* sample;  ///< null: the value is too small to observe, or was present before
    bool predicted;
    bool absent;  ///< false also if unknown
  };
  /// The next values of a leaf, and whether their samples were present when they were looked at together.
  struct Upcoming {
    static constexpr unsigned kMost = 16;
    const std::byte* leaf = nullptr;
    bool forward = true;
    unsigned first = 0, count = 0;  ///< entries, in walk order
    std::array<window::TouchedPages::Page, kMost> pages{};
  };
  struct Faults {
    long major = 0, all = 0;
  };

  StrideWalk(window::Walk& walk, window::TouchedPages touched, bool tells_each) noexcept;
  static Faults faults() noexcept;
  void anew(const WalkPlace& place) noexcept;
  void look_back(const WalkPlace* value, const window::WindowView& view);
  const window::TouchedPages::Page* upcoming(const WalkPlace& value) const noexcept;
  bool use_is_visible(unsigned unseen);
  bool read_late(const std::byte* sample);
  bool goes_on() const noexcept;
  Status arrive_at_leaf(Arrival at, WalkPlace& place, const PageRun& need, const window::WindowView& view);
  void arrive_at_value(const WalkPlace& place, const window::WindowView& view);
  bool is_resident(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  const std::byte* sample_of(const format::PageView& leaf, unsigned entry,
                             const window::WindowView& view) const noexcept;
  void give(std::uint64_t number, const std::byte* sample, window::TouchedPages::Page now, bool predicted);
  void give_leaf(const format::PageView& leaf, const window::WindowView& view);
  Status fetch(WalkPlace place, std::uint64_t number, const PageRun* first, const window::WindowView& view);
  bool probes() const noexcept;
  bool is_fast() const noexcept;
  void report() noexcept;

  window::Walk& walk_;
  const window::TouchedPages touched_;
  const bool tells_each_;  ///< use shows for each value; else only for the first value read
  Stride stride_;
  std::vector<Given> given_;
  // The position of the walk.
  bool forward_ = true;
  std::uint64_t leaf_page_ = ~std::uint64_t{0};
  /// Number of the leaf's first entry in walk order; entries in the leaf.
  std::uint64_t base_ = 0, entries_ = 0;
  std::uint64_t next_ = 0;                     ///< number of the entry after the last one given
  std::uint64_t leaf_bytes_ = 0;               ///< bytes of the leaf's values, approximate
  unsigned fast_leaves_ = 0;                   ///< leaves passed without a call at each value
  std::size_t leaves_ = 0, leaves_ahead_ = 0;  ///< leaf pages fetched at a time; of those, still ahead
  // Other observations.
  Faults before_;                            ///< the thread's at the end of the last step
  unsigned unseen_ = 0, unseen_faults_ = 0;  ///< values given and not seen used; major faults meanwhile
  unsigned unseen_in_a_row_ = 0;             ///< values in a row at the start whose use cannot be seen
  std::vector<const std::byte*> late_;       ///< samples of the last few unused values
  bool apart_ = true;                        ///< use can be observed
  unsigned probed_ = 0;                      ///< values since the start that were fetched without a guess
  bool counted_ = false, keys_counted_ = false;
  window::FileStats counters_;  ///< not yet added to the file's
  Plan plan_;
  std::vector<Extent> extents_;
  // Pages that are looked at together.
  std::vector<const std::byte*> looks_;
  std::vector<window::TouchedPages::Page> looked_;
  Upcoming upcoming_;
};

}  // namespace lmdbio::ahead
