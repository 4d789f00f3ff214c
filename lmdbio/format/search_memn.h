// search_memn(), the inner loop of a lookup in byte order.  It is in a file of its own, because it is written
// for speed at the cost of clarity.
//
// The result is the same as in stock LMDB on any page, even if the page is not sorted in this order: a
// program may read a database in another order than it was written in.  The function probes the same entries,
// and each decision agrees with the full comparison.  Where the steps differ from those of stock LMDB, the
// function checks that the result does not.
//
// Design decisions, by measurements (docs/decisions/0003):
//  - 8 bytes of each key are compared as one big-endian integer.  The whole keys are compared only if these
//    bytes are equal.
//  - Bytes that the page's keys share are skipped.  Each probe checks that they are equal.
//  - Each step halves the range with a branch, not with a conditional move.  The processor then predicts the
//    half and starts its loads early.  Halving without branches was 1.2 times slower.
//  - The keys of both possible next probes are prefetched, since their cache misses are independent.
//  - The last kCount entries are all compared, because their loads are independent.  Further halving would
//    need loads that depend on each other.
//  - Bounds are tested by branches that are never taken (2-6 %), not by clamping.
#pragma once

#include "lmdbio/format/search.h"

namespace lmdbio::format::detail {

/// Searches in the sequence of stock LMDB, without shortcuts.  For short keys, for pages on which several
/// entries have the same 8 bytes, and for unsorted pages.
bool search_memn_slow(const PageView& page, const std::byte* key, std::size_t key_bytes, Place& out) noexcept;

/// Returns how many of the `prefix` common bytes to skip.  The 8 bytes after them should decide the
/// comparison, and never reach beyond the key.  Multiples of 8 are cheaper to check, and 0 is the cheapest.
/// Returns a multiple of 8 if the 8 bytes then contain 2 bytes beyond the prefix, or reach the end of the
/// key.  2 bytes are enough, since consecutive numbers in a leaf differ in about two digits.
inline std::size_t useful_skip(std::size_t prefix, std::size_t key_bytes) noexcept {
  const std::size_t most = prefix < key_bytes - 8 ? prefix : key_bytes - 8;
  const std::size_t eights = most & ~std::size_t{7};
  return eights + 8 >= prefix + 2 || eights + 8 >= key_bytes ? eights : most;
}

template <bool kIsLeaf, Version kVersion>
inline bool search_memn_inline(const PageView& page, const std::byte* key, std::size_t key_bytes,
                               std::size_t skip, Place& out) noexcept {
  constexpr unsigned kFirst = kIsLeaf ? 0 : 1;
  constexpr unsigned kCount = 8;

  const unsigned n = page.count();
  const std::byte* const base = page.bytes();
  if (key_bytes < 8) [[unlikely]]
    return search_memn_slow(page, key, key_bytes, out);
  skip = useful_skip(skip, key_bytes);
  const std::size_t need = kNodeHeader + skip + 8;  // size of a node that contains the 8 bytes
  if (page.size() < need) [[unlikely]]
    return search_memn_slow(page, key, key_bytes, out);

  const std::byte* const slots = base + page_header(kVersion);
  const std::byte* const at8 = base + kNodeHeader + skip;
  const std::size_t lowest = page_header(kVersion) + 2 * std::size_t{n}, highest = page.size() - need;
  const std::uint64_t k8 = big_endian8(key + skip);
  const std::uint64_t low_bytes = (std::uint64_t{1} << (8 * (skip & 7))) - 1;  // mask of skipped bytes beyond
                                                                               // the last eight
  const auto slot = [&](unsigned i) noexcept {
    return slot_base(kVersion) + load<std::uint16_t>(slots + 2 * std::size_t{i});
  };
  // Returns true if the node is not inside the page, or if its 8 bytes do not decide.  They do not if its key
  // is too short or has another prefix.
  const auto unfit = [&](std::size_t off) noexcept {
    if (off > highest || off < lowest || load<std::uint16_t>(base + off + 6) < skip + 8) [[unlikely]]
      return true;
    if (skip == 0) return false;
    const std::byte* const node_key = base + off + kNodeHeader;
    std::size_t i = 0;
    for (; i + 8 <= skip; i += 8) {
      if (load<std::uint64_t>(node_key + i) != load<std::uint64_t>(key + i)) [[unlikely]]
        return true;
    }
    return ((load<std::uint64_t>(node_key + i) ^ load<std::uint64_t>(key + i)) & low_bytes) != 0;
  };
  const auto compare_whole = [&](std::size_t off, int& order) noexcept {
    const std::size_t node_key = load<std::uint16_t>(base + off + 6);
    if (off + kNodeHeader + node_key > page.size()) [[unlikely]]
      return false;
    order = compare_memn(key, key_bytes, base + off + kNodeHeader, node_key);
    return true;
  };

  unsigned lo = kFirst, hi = n;
  while (hi > lo + kCount) {
    const unsigned mid = (lo + hi - 1) / 2;
    __builtin_prefetch(at8 + slot((lo + mid) / 2));
    __builtin_prefetch(at8 + slot((mid + hi) / 2));
    const std::size_t off = slot(mid);
    if (unfit(off)) [[unlikely]]
      return search_memn_slow(page, key, key_bytes, out);
    const std::uint64_t m8 = big_endian8(at8 + off);
    if (m8 < k8) {
      asm volatile("");  // keeps the branch: see above
      lo = mid + 1;
    } else if (m8 > k8) {
      asm volatile("");
      hi = mid;
    } else {
      int order;
      if (!compare_whole(off, order)) [[unlikely]]
        return false;
      if (order == 0) {
        out = {mid, true};
        return true;
      }
      if (order > 0)
        lo = mid + 1;
      else
        hi = mid;
    }
  }

  // less_bits and equal_bits have one bit per entry, with the first entry in the highest bit.  The bit is set
  // if the 8 bytes of the entry are less than those of the key, or equal to them.
  unsigned less = 0, less_bits = 0, equal_bits = 0;
  for (unsigned i = lo; i < hi; ++i) {
    const std::size_t off = slot(i);
    if (unfit(off)) [[unlikely]]
      return search_memn_slow(page, key, key_bytes, out);
    const std::uint64_t m8 = big_endian8(at8 + off);
    less += m8 < k8;
    less_bits = 2 * less_bits + (m8 < k8);
    equal_bits = 2 * equal_bits + (m8 == k8);
  }
  const unsigned rest = hi > lo ? hi - lo - less : 0;  // entries that are not less
  if (less_bits != ((1u << less) - 1) << rest) [[unlikely]]
    return search_memn_slow(page, key, key_bytes, out);
  lo += less;
  out = {lo, false};
  if (equal_bits == 0) return true;
  if (equal_bits != 1u << (rest - 1)) [[unlikely]]  // an entry other than the first of the rest is equal
    return search_memn_slow(page, key, key_bytes, out);
  int order;
  if (!compare_whole(slot(lo), order)) [[unlikely]]
    return false;
  out = {order > 0 ? lo + 1 : lo, order == 0};
  return true;
}

}  // namespace lmdbio::format::detail
