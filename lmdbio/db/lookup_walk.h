// Lookups by keys in the order of the tree, read ahead as a walk.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <span>

#include "lmdbio/cache/window.h"
#include "lmdbio/db/lookup_sequence.h"
#include "lmdbio/db/planner.h"
#include "lmdbio/db/readahead.h"

namespace lmdbio::db {

/// One transaction handle's.
class LookupWalk {
 public:
  explicit LookupWalk(Env& env) noexcept : readahead_(env, Readahead::Uses::all) {}

  /// Lookups are a walk, and one in the leaf page there is likely to be a step of it.
  bool has(std::uint64_t root, std::span<const std::uint16_t> taken) const noexcept {
    return sequence_.is_walk() && readahead_.is_on() && sequence_.is_near(root, taken);
  }
  /// Of a walk: entries from one lookup to the next, 1 or more.
  std::uint32_t width() const noexcept { return static_cast<std::uint32_t>(std::abs(sequence_.step())); }
  /// Reads are being made for it.
  bool is_streaming() const noexcept { return readahead_.is_streaming(); }
  /// The lookup needs `need`: a leaf page, `place.leaf` is none then, or its value.  Waits for it.  False: it
  /// cannot be read now.
  bool bring(const WalkPlace& place, const PageRun& need, const cache::WindowView& view) noexcept;
  /// The lookup has come to `place`.
  void came_to(std::uint64_t root, const WalkPlace& place) noexcept {
    sequence_.came_to(root, place.taken, place.index, place.leaf.count());
    if (!sequence_.is_walk() && readahead_.has_walk()) end_walk();
  }
  bool forward() const noexcept { return sequence_.step() >= 0; }
  /// From `place` on: how many lookups, if they go on like this, will find there what they need.
  unsigned covered(const WalkPlace& place, const cache::WindowView& view) const noexcept;
  /// From `place` on: after how many lookups one is to ask again, though what it needs was in memory.
  unsigned ask_within(const WalkPlace& place, const cache::WindowView& view) const noexcept;
  /// The next so many lookups are not told of.
  void skip(unsigned lookups) noexcept { sequence_.skip(lookups); }
  /// The window has changed.
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
  std::uint64_t leaf_ = 0;  ///< page of the leaf that was brought last; 0: none
};

}  // namespace lmdbio::db
