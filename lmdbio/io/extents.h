// Ranges of a file, and the reads that fetch them.  Pure: no file is touched.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lmdbio/base/align.h"

namespace lmdbio {

struct Extent {
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

/// They have a byte in common.
constexpr bool overlap(const Extent& a, const Extent& b) noexcept {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

/// Sorts them and merges in place those that overlap, touch or leave at most `gap` bytes between them; empty
/// ones go.  How many are left: they are the first ones.  An extent reaches to 2^64 - 1 at most; what is
/// beyond is cut.
std::size_t merge(std::span<Extent> extents, std::uint64_t gap) noexcept;

/// Rather read than asked for apart, bytes: a request costs more than that.
inline constexpr std::uint64_t kSmallGap = std::uint64_t{64} << 10;
/// Of `first`, `first` / 2 and so on, the largest gap up to which those between merged extents can be read as
/// well so that all together have at most `most` bytes; 0: none can.
std::uint64_t largest_gap(std::span<const Extent> merged, std::uint64_t first, std::uint64_t most) noexcept;

/// One read: `offset` and `bytes` are multiples of the alignment, `minimum` (at least 1) is how many of the
/// bytes the file has, as for ReadOp::minimum.
struct ReadPiece {
  std::uint64_t offset = 0;
  std::size_t bytes = 0, minimum = 0;
  friend bool operator==(const ReadPiece&, const ReadPiece&) = default;
};

/// Calls `take(const ReadPiece&)` for each read, in order, that together fetch all of the extent that is in a
/// file of `file_size` bytes, aligned outwards: the last one may reach beyond the end of the file by less
/// than the alignment.  Each has at most `max_request` bytes, rounded down to the alignment, but never less
/// than that. `alignment` is a power of two; file_size at most 2^63 - 1.
template <class Take>
void split_aligned(Extent extent, std::size_t alignment, std::uint64_t file_size, std::size_t max_request,
                   Take&& take) {
  assert(is_power_of_two(alignment) && file_size <= INT64_MAX);
  if (extent.offset >= file_size || extent.bytes == 0) return;
  const std::uint64_t last = extent.offset + std::min(extent.bytes, file_size - extent.offset);
  const std::uint64_t end = align_up(last, alignment);
  const std::uint64_t most = std::max<std::uint64_t>(align_down(max_request, alignment), alignment);
  for (std::uint64_t at = align_down(extent.offset, alignment); at < end;) {
    const std::uint64_t bytes = std::min(most, end - at);
    take(ReadPiece{at, static_cast<std::size_t>(bytes),
                   static_cast<std::size_t>(std::min(bytes, file_size - at))});
    at += bytes;
  }
}

}  // namespace lmdbio
