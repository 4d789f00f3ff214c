#include "lmdbio/io/extents.h"

namespace lmdbio {

std::size_t merge(std::span<Extent> extents, std::uint64_t gap) noexcept {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  std::size_t n = 0;
  for (const Extent& e : extents) {
    const std::uint64_t bytes = std::min(e.bytes, UINT64_MAX - e.offset);
    if (bytes == 0) continue;
    if (n != 0) {
      Extent& last = extents[n - 1];
      const std::uint64_t end = last.offset + last.bytes;
      if (e.offset <= end || e.offset - end <= gap) {
        last.bytes = std::max(end, e.offset + bytes) - last.offset;
        continue;
      }
    }
    extents[n++] = {e.offset, bytes};
  }
  return n;
}

std::uint64_t largest_gap(std::span<const Extent> merged, std::uint64_t first, std::uint64_t most) noexcept {
  for (std::uint64_t gap = first;; gap /= 2) {
    std::uint64_t bytes = 0, end = 0;
    for (const Extent& e : merged) {
      if (bytes != 0 && e.offset - end <= gap) bytes += e.offset - end;
      bytes += e.bytes;
      end = e.offset + e.bytes;
    }
    if (bytes <= most || gap == 0) return gap;
  }
}

}  // namespace lmdbio
