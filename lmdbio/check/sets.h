// Sets of page numbers, and of the bytes of a page that nodes occupy.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "lmdbio/base/zeroed_array.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::check {

/// A set of numbers below a bound, one bit each.  Memory is used only around numbers in the set.
class PageSet {
 public:
  /// Empties the set and changes its bound.  Returns false if there is no memory.
  bool reset(std::uint64_t bound) noexcept {
    bound_ = bound;
    words_.reset(static_cast<std::uint64_t*>(std::calloc(bound / 64 + 1, sizeof(std::uint64_t))));
    return words_ != nullptr;
  }
  std::uint64_t bound() const noexcept { return bound_; }
  /// Returns whether `p`, which is below the bound, is in the set.
  bool has(std::uint64_t p) const noexcept { return (words_[p / 64] >> (p % 64) & 1) != 0; }
  /// Adds `p`, which is below the bound.  Returns false if it was in the set already.
  bool add(std::uint64_t p) noexcept {
    std::uint64_t& w = words_[p / 64];
    const std::uint64_t bit = std::uint64_t{1} << (p % 64);
    if ((w & bit) != 0) return false;
    w |= bit;
    return true;
  }
  /// Returns the bits of the numbers from 64 x `i` on.
  std::uint64_t word(std::uint64_t i) const noexcept { return words_[i]; }

 private:
  ZeroedArray<std::uint64_t> words_;
  std::uint64_t bound_ = 0;
};

/// The bytes of a page that belong to nodes already seen.  Nodes start at even offsets and take whole pairs
/// of bytes.
class NodeBytes {
 public:
  explicit NodeBytes(std::size_t page_bytes) noexcept { clear(page_bytes); }
  void clear(std::size_t page_bytes) noexcept {
    std::memset(pairs_, 0, (page_bytes + 127) / 128 * sizeof pairs_[0]);
  }
  /// Takes [begin, end), begin < end <= page size.  Returns false if some of it was taken already.
  bool take(std::size_t begin, std::size_t end) noexcept {
    const std::size_t a = begin / 2, b = (end + 1) / 2 - 1;  // first and last pair
    const std::uint64_t from = ~std::uint64_t{0} << (a % 64), to = ~std::uint64_t{0} >> (63 - b % 64);
    if (a / 64 == b / 64) return take_in(a / 64, from & to);
    bool free = take_in(a / 64, from);
    for (std::size_t w = a / 64 + 1; w < b / 64; ++w) free &= take_in(w, ~std::uint64_t{0});
    return take_in(b / 64, to) && free;
  }

 private:
  bool take_in(std::size_t word, std::uint64_t bits) noexcept {
    const bool free = (pairs_[word] & bits) == 0;
    pairs_[word] |= bits;
    return free;
  }
  std::uint64_t pairs_[format::max_page_size(format::Version::v10) / 128];
};

}  // namespace lmdbio::check
