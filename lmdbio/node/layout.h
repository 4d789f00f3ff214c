// The layout of the shared memory for one file: a header, a row for each process, and a claim word for each
// chunk.  It consists of offsets and numbers, without pointers.  Processes trust nothing in it, not even the
// sizes.
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

/// Identifies a file and the size of its chunks. hash() also covers the version of this layout and the user.
struct TableIdentity {
  std::uint64_t dev = 0, ino = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t hash() const noexcept;
};

struct Header {
  /// TableIdentity::hash(), written by the first process; 0 before that.
  std::atomic<std::uint64_t> identity;
  // These are only for lmdbio ps, and only valid once `identity` is set.
  std::atomic<std::uint64_t> dev, ino, chunk_bytes;
  std::atomic<std::uint32_t> rows_used;  ///< rows from this one on were never used
};

/// A process that reads the file.  Only that process fills in its row.  Other processes read the row, and
/// free it when the process is dead.
struct alignas(128) Row {
  /// Number and time of a segment that is attached as long as the process lives (node/life.h); 0 if the row
  /// is free.
  std::atomic<std::uint64_t> life;
  std::atomic<std::uint32_t> processes;  ///< number so far; only claims of the last process are valid
  std::atomic<std::uint64_t> progress;   ///< number of claims made plus claims ended
  std::atomic<std::uint64_t> fill_ns;    ///< recent time from claim to release
  std::atomic<std::uint64_t> walk;       ///< WalkNote
  std::atomic<std::uint64_t> limit;      ///< of the process's memory, in bytes
  std::atomic<std::int64_t> walk_ns;     ///< when `walk` was written, CLOCK_MONOTONIC
  std::atomic<std::uint32_t> files;      ///< number of chunk files that the process keeps or reads into
  // Only for lmdbio ps.
  std::atomic<std::uint64_t> brought, found, waits, taken_over;  ///< numbers of chunks, and of waits
  std::atomic<std::uint32_t> pid;                                ///< in its own PID namespace
  /// Time at which the process left the table, and its chunk files to other processes, CLOCK_MONOTONIC in ns;
  /// 0 if it has not left.
  std::atomic<std::int64_t> left_ns;
};
static_assert(sizeof(Row) == 128);

/// How long chunk files stay after their process has left the table, in ns.  Walks that run in step with that
/// process reach the files earlier.
inline constexpr std::int64_t kLeftBehind = 1'000'000'000;
inline bool has_left(const Row& r) noexcept { return r.left_ns.load() != 0; }
inline bool is_left_long_ago(const Row& r, std::int64_t now) noexcept {
  const std::int64_t left = r.left_ns.load();
  return left != 0 && (now < left || now - left >= kLeftBehind);
}

/// The position of a walk, and how much of the data that it reaches the program uses.
struct WalkNote {
  std::uint32_t chunk = 0;
  std::uint32_t share = 0;  ///< in 1/1000 of the bytes; 0 if there is no walk
  bool backward = false;
  constexpr std::uint64_t bits() const noexcept {
    return std::uint64_t{backward} << 63 | std::uint64_t{share & 0xffff} << 32 | chunk;
  }
  static constexpr WalkNote of(std::uint64_t bits) noexcept {
    return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32 & 0xffff),
            bits >> 63 != 0};
  }
};

/// True if the note of the row's walk is recent enough to use.
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
/// Minimum and maximum number of chunks with a word.  Chunks beyond the maximum are not shared.
inline constexpr std::uint64_t kLeastChunks = std::uint64_t{1} << 14, kMostChunks = std::uint64_t{1} << 26;
/// The sizes of tables, memory notes and life segments are a multiple of 4 KiB plus this number.
inline constexpr std::size_t kSizeMark = 0x1db;
/// The keys of all tables begin with these bits.
inline constexpr std::uint32_t kKeys = 0x1db00000, kKeyMask = 0xfff00000;

/// Returns the size in bytes of a table with words for `chunks` chunks.
constexpr std::size_t table_bytes(std::uint64_t chunks) noexcept {
  return ((kClaimsAt + chunks * sizeof(std::uint64_t) + 4095) & ~std::size_t{4095}) + kSizeMark;
}
/// Returns for how many chunks a segment of `bytes` has words, or 0 if it is not a table.
constexpr std::uint64_t chunks_in(std::size_t bytes) noexcept {
  return bytes % 4096 != kSizeMark || bytes < kClaimsAt
             ? 0
             : (bytes - kSizeMark - kClaimsAt) / sizeof(std::uint64_t);
}
constexpr bool is_table_key(key_t key) noexcept {
  return (static_cast<std::uint32_t>(key) & kKeyMask) == kKeys;
}

}  // namespace lmdbio::node
