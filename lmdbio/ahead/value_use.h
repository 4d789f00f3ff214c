// Finds out which values of a walk the program reads.  Page tables show which pages the program has touched.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "lmdbio/ahead/planner.h"
#include "lmdbio/ahead/stride.h"
#include "lmdbio/window/file_stats.h"
#include "lmdbio/window/touched.h"
#include "lmdbio/window/window.h"

namespace lmdbio::ahead {

/// Observes the values that one walk of a cursor gives to the program.  Values are numbered in the order of
/// the walk.
class ValueUse {
 public:
  /// Returns whether values are so large, on average, that a touch of a value's middle page shows the use of
  /// only this value.  Otherwise only the use of the first value that the program reads can be seen.
  static bool tells_each(const WalkPlace& place, const window::WindowView& view) noexcept;

  ValueUse(window::TouchedPages touched, bool tells_each) noexcept
      : touched_(std::move(touched)), tells_each_(tells_each) {}

  /// Returns false if the states of pages cannot be read, or in a forked child.
  bool can_look() const noexcept { return bool{touched_}; }
  /// Returns whether the program has read the value before `place`.  If so, the walk has jumped to a place
  /// near here, and the program has been reading its values since.
  bool has_read_before(const WalkPlace& place, const window::WindowView& view) const noexcept;
  void anew() noexcept;

  /// Finds out which of the values given so far were used.  `value`: the place of the value that is given
  /// next, or null.  Counts predictions in `stats`.
  void look_back(const WalkPlace* value, const window::WindowView& view, window::FileStats& stats);
  /// Records that value `number`, at `place`, is given to the program.
  void give(std::uint64_t number, const WalkPlace& place, bool predicted, const window::WindowView& view);
  /// Records that all values of a leaf are given, from number `base` on.  Probably none of them is used.
  /// Returns the number after the last value whose use will be checked; 0: no value will be checked.
  std::uint64_t give_leaf(const format::PageView& leaf, bool forward, std::uint64_t base,
                          const window::WindowView& view);
  /// Records that the walk comes to another leaf.
  void leave_leaf() noexcept { upcoming_.count = 0; }
  /// Sets the approximate total size of the values of the walk's leaf, in bytes.
  void set_leaf_bytes(std::uint64_t bytes) noexcept { leaf_bytes_ = bytes; }
  /// Must be called at the end of each step of the walk.  Page faults after this call count as the program's.
  void end_step() noexcept { before_ = faults(); }

  const Stride& stride() const noexcept { return stride_; }
  /// Returns false if the program reads all values, reads them without a rule, or cannot be observed any
  /// more.
  bool goes_on() const noexcept;
  /// Returns whether values are fetched without a guess, because all values seen so far are used.
  bool probes() const noexcept { return tells_each_ && !stride_.seen_unused() && stride_.period() == 0; }
  /// Returns whether the walk counts as a walk over keys.
  bool is_fast() const noexcept;
  /// Returns true if reads of a value cannot be seen when the next value is given, because the program reads
  /// later or in other threads.
  bool reads_late() const noexcept { return !apart_; }

 private:
  /// A value that was given to the program since the last step.
  struct Given {
    std::uint64_t number;
    const std::byte* sample;  ///< null: the value is too small to observe, or was present before
    bool predicted;
    bool absent;  ///< false also if unknown
  };
  /// The next values of a leaf, and the states of their samples when they were checked together.
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

  static Faults faults() noexcept;
  const window::TouchedPages::Page* upcoming(const WalkPlace& value) const noexcept;
  bool read_late(const std::byte* sample);
  const std::byte* sample_of(const format::PageView& leaf, unsigned entry,
                             const window::WindowView& view) const noexcept;
  void give(std::uint64_t number, const std::byte* sample, window::TouchedPages::Page now, bool predicted);

  window::TouchedPages touched_;
  bool tells_each_;  ///< the use of each value can be seen; else only of the first value read
  Stride stride_;
  std::vector<Given> given_;
  std::uint64_t leaf_bytes_ = 0;             ///< see set_leaf_bytes()
  unsigned fast_leaves_ = 0;                 ///< leaves passed without a call at each value
  Faults before_;                            ///< page faults of the thread at the end of the last step
  unsigned unseen_ = 0, unseen_faults_ = 0;  ///< values given but not seen used; major page faults meanwhile
  unsigned unseen_in_a_row_ = 0;             ///< values in a row at the start whose use cannot be seen
  std::vector<const std::byte*> late_;       ///< samples of the last few unused values
  bool apart_ = true;                        ///< use can be observed
  // Pages whose states are read together.
  std::vector<const std::byte*> looks_;
  std::vector<window::TouchedPages::Page> looked_;
  Upcoming upcoming_;
};

}  // namespace lmdbio::ahead
