// All rounding and alignment of LMDBIO.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio {

/// Size of a huge page in bytes, on systems with pages of 4 KiB.  The kernel can map a large folio of the
/// page cache with a single page table entry only if the address and the file offset are equal modulo this
/// size.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr bool is_power_of_two(std::uint64_t v) noexcept { return v != 0 && (v & (v - 1)) == 0; }

/// Returns the next multiple of `a` at or above `v`.  `a` is a power of two; v + a - 1 must not overflow.
constexpr std::uint64_t align_up(std::uint64_t v, std::uint64_t a) noexcept { return (v + a - 1) & ~(a - 1); }

/// Returns the multiple of `a` at or below `v`.  `a` is a power of two.
constexpr std::uint64_t align_down(std::uint64_t v, std::uint64_t a) noexcept { return v & ~(a - 1); }

}  // namespace lmdbio
