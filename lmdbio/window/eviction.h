// Decides which resident chunk is evicted first.  Pure functions.
//
// Chunks that walks have passed are evicted first, and among them the most recently passed one: a walk that
// starts again from the beginning reaches this chunk last.  But chunks that were passed just now are kept for
// a while, because programs may still use their values.
#pragma once

#include <compare>
#include <cstdint>

namespace lmdbio::window {

/// The facts about a resident chunk that decide when it is evicted.  Ages are in ticks of
/// ChunkPlans::clock().
struct EvictionFacts {
  bool planned = false;         ///< an active walk has it in its plan
  bool awaited = false;         ///< an active walk cannot go on without it
  bool used = false;            ///< a walk has reached it
  bool of_others = false;       ///< walks of other processes will reach it soon
  std::uint64_t position = 0;   ///< how many chunks come before it in the plan
  std::uint64_t age = 0;        ///< ticks since it was last in a plan
  std::uint64_t published = 0;  ///< the tick at which it was last in a plan
};

/// Ticks for which a chunk is kept after it was last in a plan, since its values may still be in use.
inline constexpr std::uint64_t kJustLeft = 4;

/// The chunk with the highest rank is evicted first.  Among equal ranks, the chunk that is found first is
/// evicted.
struct EvictionRank {
  unsigned rank = 0;
  std::uint64_t key = 0;
  friend constexpr auto operator<=>(const EvictionRank&, const EvictionRank&) = default;
};

/// Returns the rank:
///  - 6: never used and in no plan; the oldest first.
///  - 5: used and passed; the most recently passed first.
///  - 4: used and passed just now; the oldest first.
///  - 3: not used and in a plan until just now; the oldest first.  These chunks are kept longer than used
///    ones, because the chunks of a plan that was cut short are often needed soon.  Chunks that other
///    processes will reach are the last of this rank.
///  - 2: planned and not awaited; the last in its plan first.
///  - 1: planned and awaited; the last in its plan first.
///
/// Ranks below kLeastUnplanned are evicted only for a thread that waits for memory, or when the process
/// uses more memory than it may.
constexpr EvictionRank eviction_rank(const EvictionFacts& c) noexcept {
  if (c.planned) return {c.awaited ? 1u : 2u, c.position};
  if (c.of_others) return {3, 0};
  if (c.age < kJustLeft) return {c.used ? 4u : 3u, c.age + 1};
  return c.used ? EvictionRank{5, c.published} : EvictionRank{6, c.age};
}
inline constexpr unsigned kLeastUnplanned = 3;

/// Files up to this size, in bytes, are kept as a whole if memory allows it.
inline constexpr std::uint64_t kKeptWhole = std::uint64_t{64} << 20;

/// For this number of ticks, passed chunks are kept even if evicts_behind() is true.  A leaf page is read
/// again with each of its values, and the values may span several chunks (170 values of 110 KiB: five).
inline constexpr std::uint64_t kKeptBehind = 8;

/// Returns whether chunks that walks have passed are evicted as soon as memory is requested, even if there is
/// free memory.  Such chunks are not likely to be used again.  `comes_around`: a walk has gone through the
/// file more than once.
constexpr bool evicts_behind(std::uint64_t file_bytes, bool comes_around, std::uint64_t limit) noexcept {
  return file_bytes > kKeptWhole && (!comes_around || file_bytes / 2 > limit);
}

}  // namespace lmdbio::window
