// Tells whether a process lives.  Each process has a segment of its own, which is detached when the process
// ends for any reason, and which no child inherits.  Process ids are not suitable, since they differ between
// PID namespaces.  The segment has no key.  If the process is killed while it makes the segment, the segment
// stays, and its size shows what it is.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "lmdbio/node/layout.h"
#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// Size of such a segment, in bytes.
inline constexpr std::size_t kLifeBytes = kSizeMark;

/// Returns the Row::life of the process that has made `s` as its life segment.
inline std::uint64_t life_of(const Segment& s) noexcept {
  return (static_cast<std::uint64_t>(s.id()) + 1) << 32 | static_cast<std::uint32_t>(s.made_at());
}
/// Returns the number of the segment with that Row::life, or -1 if `life` belongs to no process.
inline int life_segment(std::uint64_t life) noexcept {
  const auto id = static_cast<std::uint32_t>(life >> 32);
  return id != 0 && id <= INT_MAX ? static_cast<int>(id - 1) : -1;
}
inline bool lives(std::uint64_t life) noexcept {
  const int id = life_segment(life);
  return id >= 0 && is_attached(id, static_cast<std::uint32_t>(life));
}

}  // namespace lmdbio::node
