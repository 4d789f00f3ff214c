// Ranges of a file, and the reads that fetch them.  Pure functions.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lmdbio/base/align.h"

namespace lmdbio {

/// A range of a file, in bytes.
struct Extent {
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

/// True if the extents have a byte in common.
constexpr bool overlap(const Extent& a, const Extent& b) noexcept {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

/// Sorts the extents in place, and merges neighbours that overlap, touch or leave at most `gap` bytes between
/// them.  Drops empty extents.  Returns the number of remaining extents, which are first in the span.  An
/// extent that reaches beyond 2^64 - 1 is cut there.
std::size_t merge(std::span<Extent> extents, std::uint64_t gap) noexcept;

/// Largest gap between two extents, in bytes, that is read rather than skipped, since a second request costs
/// more.
inline constexpr std::uint64_t kSmallGap = std::uint64_t{64} << 10;
/// Returns the largest size of gaps between the merged extents that can be read.  Tries `first`, `first` / 2,
/// `first` / 4 and so on, until all extents and all gaps up to this size have at most `most` bytes together.
/// Returns 0 if no gap can be read.
std::uint64_t largest_gap(std::span<const Extent> merged, std::uint64_t first, std::uint64_t most) noexcept;

/// One read.  `offset` and `bytes` are multiples of the alignment.  `minimum` (at least 1) is the number of
/// these bytes that are inside the file, as for ReadOp::minimum.
struct ReadPiece {
  std::uint64_t offset = 0;
  std::size_t bytes = 0, minimum = 0;
  friend bool operator==(const ReadPiece&, const ReadPiece&) = default;
};

/// Splits the part of the extent that is inside a file of `file_size` bytes into reads, and calls `take(const
/// ReadPiece&)` for each read, in order.  The reads are aligned outwards: the last one may reach beyond the
/// end of the file by less than the alignment.  The limit for each read is `max_request` bytes, rounded down
/// to the alignment, but at least the alignment.  `alignment` is a power of two; `file_size` is at most 2^63
/// - 1.
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
