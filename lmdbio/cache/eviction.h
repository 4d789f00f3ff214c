// Which resident chunk gives its memory back first: pure functions.
//
// What walks have left goes first, the newest of it: a walk that starts anew comes to that last.  But not
// what was left just now, whose values programs may still hold.
#pragma once

#include <compare>
#include <cstdint>

namespace lmdbio::cache {

/// A resident chunk, as eviction sees it.  Ages count plans of all walks of the process.
struct EvictionFacts {
  bool planned = false;         ///< a walk that goes on has it in its plan
  bool awaited = false;         ///< and cannot go on without it
  bool used = false;            ///< a walk came to it
  bool of_others = false;       ///< walks of other processes are about to come to it
  std::uint64_t position = 0;   ///< in the plan: how many chunks come before it
  std::uint64_t age = 0;        ///< plans since it was in one
  std::uint64_t published = 0;  ///< when it was last in a plan: larger is later
};

/// Plans for which what was left is kept: its values may be held still.
inline constexpr std::uint64_t kJustLeft = 4;

/// The higher, the sooner it goes.  Of equals the first one.
struct EvictionRank {
  unsigned rank = 0;
  std::uint64_t key = 0;
  friend constexpr auto operator<=>(const EvictionRank&, const EvictionRank&) = default;
};

/// 6: never used and in no plan, the oldest first.  5: left, the newest first.  4, 3: left just now, the
/// oldest first; unused ones last, since a plan that was cut short leaves what is needed soon, and last of
/// all what other processes come to.  2, 1: planned and not awaited, awaited; the last in its plan first.
/// Those are for who waits for memory (kLeastUnplanned).
constexpr EvictionRank eviction_rank(const EvictionFacts& c) noexcept {
  if (c.planned) return {c.awaited ? 1u : 2u, c.position};
  if (c.of_others) return {3, 0};
  if (c.age < kJustLeft) return {c.used ? 4u : 3u, c.age + 1};
  return c.used ? EvictionRank{5, c.published} : EvictionRank{6, c.age};
}
inline constexpr unsigned kLeastUnplanned = 3;

/// Files up to this size are kept as a whole, if they can be, bytes.
inline constexpr std::uint64_t kKeptWhole = std::uint64_t{64} << 20;

/// For how many plans that is kept all the same: a leaf page is read again with each of its values, which may
/// reach over some chunks (170 values of 110 KiB: five).
inline constexpr std::uint64_t kKeptBehind = 8;

/// What walks have left of a file goes as soon as memory is asked for, though there is some: it is not likely
/// to be found again.  `comes_around`: a walk has gone through it more than once.
constexpr bool evicts_behind(std::uint64_t file_bytes, bool comes_around, std::uint64_t limit) noexcept {
  return file_bytes > kKeptWhole && (!comes_around || file_bytes / 2 > limit);
}

}  // namespace lmdbio::cache
