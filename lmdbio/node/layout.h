// What lies in the shared memory of a file: a header, a row for each process, a claim word for each chunk.
// Offsets and numbers, no pointers; whoever reads it takes nothing in it for granted, not even the sizes.
#pragma once

#include <sys/ipc.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "lmdbio/node/claim.h"

namespace lmdbio::node {

static_assert(std::endian::native == std::endian::little, "waiters sleep on the lower half of a claim word");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Which file, read in chunks of which size.  Of the version of this layout, the user, device, inode and
/// chunk size.
struct TableIdentity {
  std::uint64_t dev = 0, ino = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t hash() const noexcept;
};

struct Header {
  /// TableIdentity::hash(), which the first process writes; 0 before.
  std::atomic<std::uint64_t> identity;
  // For lmdbio ps alone, and only after `identity`.
  std::atomic<std::uint64_t> dev, ino, chunk_bytes;
  std::atomic<std::uint32_t> rows_used;  ///< rows from this one on were never used
};

/// A process that reads the file.  One process writes it, the others look.
struct alignas(128) Row {
  /// Number and time of a segment that is attached as long as the process lives: see node/life.h.  0:
  /// nobody's.
  std::atomic<std::uint64_t> life;
  std::atomic<std::uint32_t> processes;  ///< that have had the row: claims of all but the last are void
  std::atomic<std::uint64_t> progress;   ///< counts claims that were made and that have ended
  std::atomic<std::uint64_t> fill_ns;    ///< from claim to release, lately
  std::atomic<std::uint64_t> walk;       ///< WalkNote
  std::atomic<std::uint64_t> limit;      ///< of the process's memory, bytes
  std::atomic<std::int64_t> walk_ns;     ///< when it was written, CLOCK_MONOTONIC
  std::atomic<std::uint32_t> files;      ///< chunk files that it keeps or reads to
  // For lmdbio ps.
  std::atomic<std::uint64_t> brought, found, waits, taken_over;  ///< chunks; waits: times
  std::atomic<std::uint32_t> pid;                                ///< as the process sees it itself
  /// When it left the table and those files behind, for others, CLOCK_MONOTONIC; 0: it has not.
  std::atomic<std::int64_t> left_ns;
};
static_assert(sizeof(Row) == 128);

/// Chunk files that are left behind are there for so long, ns: those who walk in step come to them before
/// that.
inline constexpr std::int64_t kLeftBehind = 1'000'000'000;
inline bool has_left(const Row& r) noexcept { return r.left_ns.load() != 0; }
inline bool is_left_long_ago(const Row& r, std::int64_t now) noexcept {
  const std::int64_t left = r.left_ns.load();
  return left != 0 && (now < left || now - left >= kLeftBehind);
}

/// Where a walk is and how much of what it comes to the program uses.
struct WalkNote {
  std::uint32_t chunk = 0;
  std::uint32_t share = 0;  ///< in 1/1000 of the bytes; 0: there is no walk
  bool backward = false;
  constexpr std::uint64_t bits() const noexcept {
    return std::uint64_t{backward} << 63 | std::uint64_t{share & 0xffff} << 32 | chunk;
  }
  static constexpr WalkNote of(std::uint64_t bits) noexcept {
    return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32 & 0xffff),
            bits >> 63 != 0};
  }
};

/// The note of its walk is good.
inline bool is_fresh(const Row& r, std::int64_t now) noexcept {
  constexpr std::int64_t kNoteLives = 1'000'000'000;
  const std::int64_t age = now - r.walk_ns.load(std::memory_order_relaxed);
  return age <= kNoteLives && age >= -kNoteLives;
}

inline constexpr unsigned kRows = 256;
constexpr Claimer claimer_of(unsigned row, std::uint32_t processes) noexcept {
  return Claimer{static_cast<std::uint16_t>((processes & 0xff) << 8 | row)};
}
constexpr unsigned row_of(Claimer c) noexcept { return static_cast<unsigned>(c) % kRows; }
inline constexpr std::size_t kRowsAt = 4096, kClaimsAt = kRowsAt + kRows * sizeof(Row);
/// Chunks that have a word at least, at most; those beyond are not shared.
inline constexpr std::uint64_t kLeastChunks = std::uint64_t{1} << 14, kMostChunks = std::uint64_t{1} << 26;
/// All sizes are a multiple of 4 KiB and this.
inline constexpr std::size_t kSizeMark = 0x1db;
/// All keys begin so.
inline constexpr std::uint32_t kKeys = 0x1db00000, kKeyMask = 0xfff00000;

/// Of a table with words for so many chunks.
constexpr std::size_t table_bytes(std::uint64_t chunks) noexcept {
  return ((kClaimsAt + chunks * sizeof(std::uint64_t) + 4095) & ~std::size_t{4095}) + kSizeMark;
}
/// Chunks that a segment of `bytes` has words for; 0: it is no table.
constexpr std::uint64_t chunks_in(std::size_t bytes) noexcept {
  return bytes % 4096 != kSizeMark || bytes < kClaimsAt
             ? 0
             : (bytes - kSizeMark - kClaimsAt) / sizeof(std::uint64_t);
}
constexpr bool is_table_key(key_t key) noexcept {
  return (static_cast<std::uint32_t>(key) & kKeyMask) == kKeys;
}

}  // namespace lmdbio::node
