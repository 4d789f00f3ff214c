// Whether a process lives.  Each process has a segment of its own, which is detached when the process ends,
// however it ends, and which no child inherits.  No process id: those differ between PID namespaces.  The
// segment has no key; its size tells what it is if the process is killed while it makes it.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "lmdbio/node/layout.h"
#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// Of such a segment.
inline constexpr std::size_t kLifeBytes = kSizeMark;

/// Row::life of the process that has `s` for that.
inline std::uint64_t life_of(const Segment& s) noexcept {
  return (static_cast<std::uint64_t>(s.id()) + 1) << 32 | static_cast<std::uint32_t>(s.made_at());
}
/// The number of that segment; -1: `life` is no process's.
inline int life_segment(std::uint64_t life) noexcept {
  const auto id = static_cast<std::uint32_t>(life >> 32);
  return id != 0 && id <= INT_MAX ? static_cast<int>(id - 1) : -1;
}
inline bool lives(std::uint64_t life) noexcept {
  const int id = life_segment(life);
  return id >= 0 && is_attached(id, static_cast<std::uint32_t>(life));
}

}  // namespace lmdbio::node
