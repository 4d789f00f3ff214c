// A walk of which is found out, as it goes, which values the program reads: of one that reads each k-th, leaf
// pages and those values are fetched and nothing else.
//
// What is fetched goes to the page cache, so that the kernel's page tables tell what was touched
// (cache/touched.h).  The first few values are fetched while the program reads: a walk that reads them all
// becomes a stream at once.
//
// Page tables do not tell small values apart: one touch makes all pages present that lie near it and are in
// the page cache.  But a value that was not fetched is not there, so the first one that the program reads
// costs it a page fault that waits for storage.  Until then such a walk reads leaf pages alone, and from then
// on it is a stream.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/cache/touched.h"
#include "lmdbio/cache/walk.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/db/file_policy.h"
#include "lmdbio/db/planner.h"
#include "lmdbio/db/stride.h"

namespace lmdbio::db {

/// Of one cursor's read-ahead, for a walk that goes on in one direction; jumps start it anew.
class StrideWalk {
 public:
  enum class Arrival : unsigned char { edge, leaf, value };

  /// A page in the middle of an average value tells of that value alone.
  static bool tells_each(const WalkPlace& place, const cache::WindowView& view) noexcept;
  /// `walk` outlives it.  Null: it cannot be told here what is read, or the program has read the value
  /// before.
  static std::unique_ptr<StrideWalk> start(cache::Walk& walk, const WalkPlace& place,
                                           const cache::WindowView& view) noexcept;
  ~StrideWalk();

  /// Walks of other processes of the node and this one, which uses `share`/1000 of the values and has come to
  /// `chunk`, together use most of what they come to: all of it is to be read, by whoever comes first.  Tells
  /// the others of this walk, unless `share` is 0: not known.
  static bool is_shared(cache::FileCache& file, cache::ChunkIndex chunk, std::uint32_t share) noexcept;

  /// As Readahead::step(), which asks for a call at each leaf.  False: the walk reads all of its values, or
  /// by no rule, or it can no longer be told: it is a stream from here on, and this is of no further use. May
  /// throw bad_alloc.
  Result<bool> step(Arrival at, const WalkPlace& place, const PageRun& need, const cache::WindowView& view,
                    FreeRun& run);

  /// In 1/1000 of the values, what the walk uses; 1000 as long as that is not known.
  std::uint32_t share() const noexcept {
    return stride_.verdict() == Stride::Verdict::stride
               ? std::max<std::uint32_t>(1, static_cast<std::uint32_t>(1000 / stride_.period()))
               : 1000;
  }

  /// Values are read in a way that does not show when the next one is given: later, or by other threads.
  bool reads_late() const noexcept { return !apart_; }

 private:
  /// A value that the walk has given out since the last step.
  struct Given {
    std::uint64_t number;
    const std::byte* sample;  ///< null: it is too small to tell, or was present before
    bool predicted;
    bool absent;  ///< it was not present before; not known of values that are not told apart
  };
  /// Values of a leaf that come next, and whether their samples were present when they were looked at
  /// together.
  struct Upcoming {
    static constexpr unsigned kMost = 16;
    const std::byte* leaf = nullptr;
    bool forward = true;
    unsigned first = 0, count = 0;  ///< entries, in this direction
    std::array<cache::TouchedPages::Page, kMost> pages{};
  };
  struct Faults {
    long major = 0, all = 0;
  };

  StrideWalk(cache::Walk& walk, cache::TouchedPages touched, bool tells_each) noexcept;
  static Faults faults() noexcept;
  void anew(const WalkPlace& place) noexcept;
  void look_back(const WalkPlace* value, const cache::WindowView& view);
  const cache::TouchedPages::Page* upcoming(const WalkPlace& value) const noexcept;
  bool use_is_visible(unsigned unseen);
  bool read_late(const std::byte* sample);
  bool goes_on() const noexcept;
  Status arrive_at_leaf(Arrival at, WalkPlace& place, const PageRun& need, const cache::WindowView& view);
  void arrive_at_value(const WalkPlace& place, const cache::WindowView& view);
  bool is_resident(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  const std::byte* sample_of(const format::PageView& leaf, unsigned entry,
                             const cache::WindowView& view) const noexcept;
  void give(std::uint64_t number, const std::byte* sample, cache::TouchedPages::Page now, bool predicted);
  void give_leaf(const format::PageView& leaf, const cache::WindowView& view);
  Status fetch(WalkPlace place, std::uint64_t number, const PageRun* first, const cache::WindowView& view);
  bool probes() const noexcept;
  bool is_fast() const noexcept;
  void report() noexcept;

  cache::Walk& walk_;
  const cache::TouchedPages touched_;
  const bool tells_each_;  ///< of each value; otherwise of the first that is read
  Stride stride_;
  std::vector<Given> given_;
  // Where it is.
  bool forward_ = true;
  std::uint64_t leaf_page_ = ~std::uint64_t{0};
  std::uint64_t base_ = 0, entries_ = 0;  ///< number of the leaf's first entry on the way; how many it has
  std::uint64_t next_ = 0;                ///< number of the entry after the last one given
  std::uint64_t leaf_bytes_ = 0;          ///< of the leaf's values, about
  unsigned fast_leaves_ = 0;              ///< passed by without a call at each value
  std::size_t leaves_ = 0, leaves_ahead_ = 0;  ///< that are fetched at a time; of those, still ahead
  // What is seen otherwise.
  Faults before_;                            ///< the thread's at the end of the last step
  unsigned unseen_ = 0, unseen_faults_ = 0;  ///< values given and not seen used; major faults meanwhile
  unsigned unseen_in_a_row_ = 0;             ///< values of which nothing can be seen, at the start
  std::vector<const std::byte*> late_;       ///< samples of values that were not used, the last few
  bool apart_ = true;                        ///< it can be told what is used
  unsigned probed_ = 0;                      ///< values since the start that were fetched without a guess
  bool counted_ = false, keys_counted_ = false;
  AccessCounters counters_;  ///< not yet in the file's
  Plan plan_;
  std::vector<Extent> extents_;
  // Pages that are looked at together.
  std::vector<const std::byte*> looks_;
  std::vector<cache::TouchedPages::Page> looked_;
  Upcoming upcoming_;
};

}  // namespace lmdbio::db
