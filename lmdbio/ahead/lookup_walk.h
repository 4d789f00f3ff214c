// Prefetches for lookups whose keys are in the order of the tree, as for a walk.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <span>

#include "lmdbio/ahead/lookup_sequence.h"
#include "lmdbio/ahead/planner.h"
#include "lmdbio/ahead/readahead.h"
#include "lmdbio/window/window.h"

namespace lmdbio::ahead {

/// Recognizes a walk in the lookups of one transaction handle, and prefetches for it.  Follows the handle's
/// thread rule.
class LookupWalk {
 public:
  explicit LookupWalk(EnvironmentFile& env) noexcept : readahead_(env, Readahead::Uses::all) {}

  /// Returns whether the lookups are a walk, and a lookup in the leaf page below `taken` is likely to be a
  /// step of it.
  bool has(std::uint64_t root, std::span<const std::uint16_t> taken) const noexcept {
    return sequence_.is_walk() && readahead_.is_on() && sequence_.is_near(root, taken);
  }
  /// If there is a walk: returns the number of entries from one lookup to the next, 1 or more.
  std::uint32_t width() const noexcept { return static_cast<std::uint32_t>(std::abs(sequence_.step())); }
  /// Returns whether the walk is being prefetched.
  bool is_streaming() const noexcept { return readahead_.is_streaming(); }
  /// Waits until `need` can be read; returns false if it cannot be read now.  `need` is a leaf page or a
  /// value.  For a leaf page, `place.leaf` is none.
  bool bring(const WalkPlace& place, const PageRun& need, const window::WindowView& view) noexcept;
  /// Records that the lookup has come to `place`.
  void came_to(std::uint64_t root, const WalkPlace& place) noexcept {
    sequence_.came_to(root, place.taken, place.index, place.leaf.count());
    if (!sequence_.is_walk() && readahead_.has_walk()) end_walk();
  }
  bool forward() const noexcept { return sequence_.step() >= 0; }
  /// Returns how many of the next lookups after `place` will find all their data in memory if the walk
  /// continues.
  unsigned covered(const WalkPlace& place, const window::WindowView& view) const noexcept;
  /// Returns the largest number of lookups from `place` to the next probe.  This limit applies even if all
  /// data was in memory so far.
  unsigned ask_within(const WalkPlace& place, const window::WindowView& view) const noexcept;
  /// Announces that the next `lookups` lookups are not reported to came_to().
  void skip(unsigned lookups) noexcept { sequence_.skip(lookups); }
  /// Forgets the walk and all places.  Called when the window has changed.
  void forget() noexcept {
    end_walk();
    sequence_.forget();
  }

 private:
  void end_walk() noexcept {
    readahead_.forget();
    run_ = {};
    leaf_ = 0;
  }

  Readahead readahead_;
  LookupSequence sequence_;
  FreeRun run_;
  bool run_is_resident_ = false;  ///< its chunks were resident when it was granted
  std::uint64_t leaf_ = 0;        ///< page number of the leaf read last; 0: none
};

}  // namespace lmdbio::ahead
