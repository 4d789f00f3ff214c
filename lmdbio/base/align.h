// All rounding and alignment of the project.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio {

/// Bytes, with the kernel's usual pages of 4 KiB.  Only where addresses and offsets in the file agree modulo
/// this can the kernel map a large folio of the page cache by a single entry.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr bool is_power_of_two(std::uint64_t v) noexcept { return v != 0 && (v & (v - 1)) == 0; }

/// The next multiple of `a` at or above `v`; `a` is a power of two, v + a - 1 must not overflow.
constexpr std::uint64_t align_up(std::uint64_t v, std::uint64_t a) noexcept { return (v + a - 1) & ~(a - 1); }

/// The multiple of `a` at or below `v`; `a` is a power of two.
constexpr std::uint64_t align_down(std::uint64_t v, std::uint64_t a) noexcept { return v & ~(a - 1); }

}  // namespace lmdbio
