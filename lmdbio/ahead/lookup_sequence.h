// Detects, from the places of lookups in the tree, whether their keys are in the order of the tree.  Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "lmdbio/format/layout.h"

namespace lmdbio::ahead {

/// Recognizes lookups that go through a tree like a walk.  They take one entry after the other or every k-th
/// entry, up or down.  The walk may be continuous, or consist of runs with jumps between them, as the workers
/// of a data loader produce them.  A few successive lookups elsewhere do not end a walk.
class LookupSequence {
 public:
  /// Number of equal steps in a row that make a walk.
  static constexpr unsigned kWalk = 4;
  /// Largest step, in entries.
  static constexpr std::int64_t kMostStep = 16;
  /// Number of lookups elsewhere in a row that end a walk.
  static constexpr unsigned kMostStrays = 8;

  /// Records the place of a lookup in the tree with root page `root`: entry `index` of a leaf page with
  /// `entries` entries.  `taken`: the entries taken in the branch pages above it, from the root down.
  void came_to(std::uint64_t root, std::span<const std::uint16_t> taken, unsigned index,
               unsigned entries) noexcept {
    const Position here(root, taken, index, entries);
    const std::int64_t lookups = std::int64_t{skipped_} + 1;
    const std::int64_t moved = distance(last_, here, reach());
    if (moved == 0) {  // the same key again
      skipped_ = 0;
      return;
    }
    if (step_ != 0 && moved == step_ * lookups) {
      in_a_row_ = std::min(in_a_row_ + skipped_ + 1, kWalk);
      even_ += skipped_ + 1;
      go_on(here);
    } else if (!is_walk()) {
      step_ = std::abs(moved) <= kMostStep * lookups && moved % lookups == 0 ? moved / lookups : 0;
      in_a_row_ = step_ != 0;
      runs_ = 0;
      run_ = 0;
      even_ = usual_even_ = 0;
      go_on(here);
    } else if (moved != kFar && (moved > 0) == (step_ > 0)) {  // uneven steps count as steps
      end_even_run();
      go_on(here);
    } else if (distance(stray_, here, reach()) == step_ * lookups) {  // the walk continues from there
      usual_run_ = runs_++ == 0 ? run_ : (usual_run_ + run_ + 1) / 2;
      run_ = 1;
      end_even_run();
      go_on(here);
    } else if (++strays_ < kMostStrays) {
      stray_ = here;
    } else {
      *this = LookupSequence();
      last_ = here;
    }
    skipped_ = 0;
  }
  /// Announces that the next `lookups` lookups are not reported to came_to().
  void skip(unsigned lookups) noexcept { skipped_ = lookups; }
  /// Forgets all places.
  void forget() noexcept { *this = LookupSequence(); }

  bool is_walk() const noexcept { return in_a_row_ >= kWalk; }
  /// If there is a walk: returns whether a lookup in the leaf page below `taken` is likely to be a step of
  /// the walk.
  bool is_near(std::uint64_t root, std::span<const std::uint16_t> taken) const noexcept {
    return distance(last_, Position(root, taken, 0, 0), reach()) != kFar;
  }
  /// If there is a walk: returns the distance from one lookup to the next, in entries; negative: downwards.
  std::int64_t step() const noexcept { return step_; }
  /// If there is a walk: returns how many lookups are left in the current run if it is as long as earlier
  /// runs.  The result is 1 or more, or 0 if no run has ended yet.
  std::uint64_t left_in_run() const noexcept {
    return runs_ == 0 ? 0 : std::max<std::uint64_t>(usual_run_ > run_ ? usual_run_ - run_ : 0, 1);
  }
  /// If there is a walk: returns how many of the next lookups are likely to take even steps.  It is assumed
  /// that there are as many of them in a row as before; if there were many more already, half as many more.
  std::uint64_t even_steps_left() const noexcept {
    if (usual_even_ > even_) return usual_even_ - even_;
    return even_ >= 4 * usual_even_ ? even_ / 2 : 0;
  }

 private:
  static constexpr std::int64_t kFar = std::int64_t{1} << 40;

  struct Position {
    Position() = default;
    Position(std::uint64_t tree, std::span<const std::uint16_t> path, unsigned i, unsigned n) noexcept
        : root(tree), depth(std::min(path.size(), taken.size())), index(i), entries(n) {
      std::copy_n(path.begin(), depth, taken.begin());
    }
    std::uint64_t root = 0;
    std::array<std::uint16_t, format::kMaxDepth> taken{};
    std::size_t depth = ~std::size_t{0};  ///< ~0: no place
    unsigned index = 0, entries = 0;
  };

  /// Upper limit on the leaf pages that lookups may have passed since the last call of came_to().
  std::int64_t reach() const noexcept {
    const std::int64_t most = is_walk() ? 2 * std::abs(step_) : kMostStep;
    return 1 + skipped_ * most / std::max<std::int64_t>(last_.entries, 1);
  }
  // Returns the entries from `a` to `b`, or kFar if more than `reach` leaf pages lie between them.  Leaf
  // pages in between are assumed to have as many entries as the first one.  The number of children of a
  // branch page is unknown.  So if `a` and `b` lie below successive branch pages, the lower leaf is assumed
  // to be the last leaf of its branch page.
  static std::int64_t distance(const Position& a, const Position& b, std::int64_t reach) noexcept {
    if (a.depth != b.depth || a.root != b.root) return kFar;
    std::size_t level = 0;
    while (level < a.depth && a.taken[level] == b.taken[level]) ++level;
    if (level == a.depth) return std::int64_t{b.index} - std::int64_t{a.index};
    const bool up = b.taken[level] > a.taken[level];
    const Position &lower = up ? a : b, &upper = up ? b : a;
    std::int64_t leaves = upper.taken[level] - lower.taken[level];
    for (std::size_t l = level + 1; l < a.depth; ++l) {
      const bool is_last = l + 1 == a.depth;
      if (leaves != 1 || (!is_last && upper.taken[l] != 0)) return kFar;
      if (is_last) leaves += upper.taken[l];
    }
    if (leaves > reach) return kFar;
    const std::int64_t entries =
        leaves * std::int64_t{lower.entries} - std::int64_t{lower.index} + std::int64_t{upper.index};
    return up ? entries : -entries;
  }
  // The uneven step may be any of those that were skipped, so none of them counts.
  void end_even_run() noexcept {
    usual_even_ = usual_even_ == 0 ? even_ : (usual_even_ + even_ + 1) / 2;
    even_ = 1;
  }
  void go_on(const Position& here) noexcept {
    last_ = here;
    stray_ = Position();
    strays_ = 0;
    run_ += skipped_ + 1;
  }

  Position last_;   ///< last position of the walk; without a walk, of the last lookup
  Position stray_;  ///< position of a lookup elsewhere, after last_
  std::int64_t step_ = 0;
  unsigned in_a_row_ = 0, strays_ = 0, skipped_ = 0;
  std::uint64_t run_ = 0, usual_run_ = 0;  ///< lookups since the last jump, and their average in earlier runs
  unsigned runs_ = 0;                      ///< runs that have ended
  std::uint64_t even_ = 0, usual_even_ = 0;  ///< even steps in a row, and their average before uneven steps
};

}  // namespace lmdbio::ahead
