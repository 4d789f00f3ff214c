// Reversible filters, which make the bytes of a frame easier to compress.  They do not change the size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/base/bytes.h"

namespace lmdbio::cache {

struct Filter {
  /// shuffle: all first bytes of items of `width` bytes, then all second bytes, and so on.
  /// delta: from each byte, subtract the byte `width` bytes before it.
  enum class Kind : std::uint8_t { none, shuffle, delta };
  static constexpr std::uint16_t kLongestDelta = 4096;

  Kind kind = Kind::none;
  std::uint16_t width = 0;  ///< none: 0; shuffle: 2, 4 or 8; delta: 1 to kLongestDelta

  constexpr bool valid() const noexcept {
    if (kind == Kind::shuffle) return width == 2 || width == 4 || width == 8;
    return kind == Kind::delta ? width >= 1 && width <= kLongestDelta : kind == Kind::none && width == 0;
  }
  friend constexpr bool operator==(Filter, Filter) noexcept = default;
};

/// Writes the filtered `plain` to `out`, which has the same size.  `filter` is valid and not none.
void apply_filter(Filter filter, Bytes plain, std::byte* out) noexcept;

/// Reverses a delta in place.  `spare` has room for as many bytes as `bytes`.
void undo_delta(std::size_t width, MutableBytes bytes, std::byte* spare) noexcept;

/// Reverses a shuffle from `filtered` to `out`, which has the same size.
void undo_shuffle(std::size_t width, Bytes filtered, std::byte* out) noexcept;

/// Returns the sum of the absolute differences, modulo 256 and from 0 to 128, of `bytes` and as many bytes
/// from `before` on.
std::uint64_t sum_of_deltas(Bytes bytes, const std::byte* before) noexcept;

}  // namespace lmdbio::cache
