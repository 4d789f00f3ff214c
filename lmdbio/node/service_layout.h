// The segment through which programs ask the server of their node, and what both sides do with it.  Only the
// source files of Service and ServiceHost include this.
#pragma once

#include <linux/futex.h>
#include <sys/ipc.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/mix.h"
#include "lmdbio/node/life.h"
#include "lmdbio/node/segment.h"
#include "lmdbio/node/service.h"

namespace lmdbio::node {

/// One request.  The program writes the question before it asks, the server writes the answer before it
/// finishes.
struct alignas(128) ServiceSlotLayout {
  SlotWord word;
  std::uint32_t kind, file;
  std::atomic<std::uint64_t> owner;  ///< life of the program (node/life.h); 0 for a moment after it was taken
  std::uint64_t offset, bytes;
  ServedState state;
  std::int64_t result;
  std::uint64_t hash;  ///< hash_of() the request that the server has seen, and of the bytes
};

struct ServiceLayout {
  std::atomic<std::uint64_t> version;    ///< kVersion, written last
  std::atomic<std::uint64_t> life;       ///< of the server (node/life.h)
  std::atomic<std::int64_t> worked_ns;   ///< when it last showed that it works, CLOCK_MONOTONIC
  std::atomic<std::uint64_t> counts[7];  ///< ServiceCounts
  std::atomic<std::uint32_t> nodes;
  std::atomic<std::uint32_t> asked;   ///< how many requests were made; the server sleeps on it
  std::atomic<std::uint32_t> sleeps;  ///< the server sleeps, or is about to
  ServiceSlotLayout slots[kServiceSlots];
};

/// Part of the key and of the header, so that programs ask servers with the same layout only.
inline constexpr std::uint64_t kVersion = 0x1db5'0002;
inline constexpr std::size_t kMemoryAt = 16384;
static_assert(sizeof(ServiceLayout) <= kMemoryAt);
inline constexpr std::size_t kSegmentBytes = kMemoryAt + kServiceSlots * kServiceBytes + 2 * kSizeMark;
static_assert(chunks_in(kSegmentBytes) == 0, "no table");

/// Returns the key of the segment of this user's server.
inline key_t key_of_user() noexcept {
  return static_cast<key_t>(kKeys |
                            (static_cast<std::uint32_t>(mix(mix(kVersion) + ::geteuid())) & ~kKeyMask));
}

/// Sleeps while the word is `seen`, for `ns` at most.  Processes share the word.
inline void wait_on(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::int64_t ns) noexcept {
  const int saved = errno;
  const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
  errno = saved;
}

inline void wake(const std::atomic<std::uint32_t>& word) noexcept {
  const int saved = errno;
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  errno = saved;
}

/// Returns a hash of a request, and of the bytes in its memory: those that were read, or the path.  A process
/// that was taken for dead may overwrite a request of another process, whose hash then differs from that of
/// the answer.
inline std::uint64_t hash_of(SlotValue request, std::uint32_t kind, std::uint32_t file, std::uint64_t offset,
                             const ServedState& state, Bytes bytes) noexcept {
  std::uint64_t seed = mix(std::uint64_t{request.with(SlotValue::State::free).bits()} << 32 | kind);
  for (const std::uint64_t part : {std::uint64_t{file}, offset, state.contents[0], state.contents[1],
                                   state.snapshot, state.page_bytes, state.used_bytes})
    seed = mix(seed + part);
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

/// Opens the segment of this user's server.  Removes it if that server is dead.
inline Result<Segment> open_segment() noexcept {
  Result<Segment> s = Segment::open(key_of_user());
  if (!s) return s;
  if (s.value().size() != kSegmentBytes) return Status::from_errno(EPROTO);
  const auto& layout = *reinterpret_cast<const ServiceLayout*>(s.value().data());
  const std::uint64_t life = layout.life.load();
  // A server that has just made the segment has not written its life yet.
  if (life != 0 ? !lives(life) : s.value().is_alone()) {
    s.value().remove();
    return Status::from_errno(ENOENT);
  }
  if (layout.version.load() != kVersion) return Status::from_errno(EPROTO);
  return s;
}

}  // namespace lmdbio::node
