// The inside of a lookup in byte order: search_memn, kept apart because here speed costs clarity.
//
// What was measured (get on 1 M records of 200 B, ours/stock; docs/decisions/0003 has the table):
//  - The first 8 bytes after the known prefix are compared as one big-endian integer; ties are looked at last.
//  - Branches, not conditional moves, while halving: the processor runs ahead into the probable half and
//    starts its loads.  Branch-free halving was 1.2 times slower.
//  - Both possible next probes are prefetched: their key lines are independent misses.
//  - The last kCount entries are counted with independent loads instead of halved with dependent ones.
//  - Bounds are tested by branches that are never taken (2-6 %), never by clamping.
#pragma once

#include "lmdbio/db/search.h"

namespace lmdbio::db::detail {

/// The exact way, byte by byte, over entries [lo, hi): short keys, ties, and pages with entries too short.
bool search_memn_slow(const format::PageView& page, unsigned lo, unsigned hi, const std::byte* key,
                      std::size_t key_bytes, Place& out) noexcept;

template <bool kIsLeaf>
inline bool search_memn_inline(const format::PageView& page, const std::byte* key, std::size_t key_bytes,
                               std::size_t skip, Place& out) noexcept {
  using format::kNodeHeader;
  using format::kPageHeader;
  constexpr unsigned kFirst = kIsLeaf ? 0 : 1;
  constexpr unsigned kCount = kIsLeaf ? 8 : 8;

  const unsigned n = page.count();
  const std::byte* const base = page.bytes();
  const std::size_t need = kNodeHeader + skip + 8;  // of a node, for its 8 bytes to exist
  if (key_bytes < skip + 8 || page.size() < need) [[unlikely]]
    return search_memn_slow(page, kFirst, n, key, key_bytes, out);

  const std::byte* const slots = base + kPageHeader;
  const std::byte* const at8 = base + kNodeHeader + skip;
  const std::size_t lowest = kPageHeader + 2 * std::size_t{n}, highest = page.size() - need;
  const std::uint64_t k8 = big_endian8(key + skip);
  const auto slot = [&](unsigned i) noexcept { return std::size_t{load<std::uint16_t>(slots + 2 * std::size_t{i})}; };
  // An offset outside the page, or a key without those 8 bytes.
  const auto unfit = [&](std::size_t off) noexcept {
    return off > highest || off < lowest || load<std::uint16_t>(base + off + 6) < skip + 8;
  };

  unsigned lo = kFirst, hi = n;
  while (hi - lo > kCount && hi > lo) {
    const unsigned mid = (lo + hi) / 2;
    __builtin_prefetch(at8 + slot((lo + mid) / 2));
    __builtin_prefetch(at8 + slot((mid + 1 + hi) / 2));
    const std::size_t off = slot(mid);
    if (unfit(off)) [[unlikely]]
      return search_memn_slow(page, kFirst, n, key, key_bytes, out);
    if (big_endian8(at8 + off) < k8) {
      asm volatile("");  // keeps the branch: see above
      lo = mid + 1;
    } else {
      asm volatile("");
      hi = mid;
    }
  }
  unsigned less = 0;
  for (unsigned i = lo; i < hi; ++i) {
    const std::size_t off = slot(i);
    if (unfit(off)) [[unlikely]]
      return search_memn_slow(page, kFirst, n, key, key_bytes, out);
    less += big_endian8(at8 + off) < k8;
  }
  lo += less;
  out = {lo, false};
  if (lo >= n) return true;

  const std::size_t off = slot(lo);
  if (unfit(off)) [[unlikely]]
    return search_memn_slow(page, kFirst, n, key, key_bytes, out);
  if (big_endian8(at8 + off) != k8) return true;
  const std::size_t node_key = load<std::uint16_t>(base + off + 6);
  if (off + kNodeHeader + node_key > page.size()) [[unlikely]]
    return false;
  const int order = compare_memn(key, key_bytes, base + off + kNodeHeader, node_key);
  if (order == 0) {
    out.exact = true;
  } else if (order > 0) {
    out.index = lo + 1;
    // A neighbour with the same 8 bytes: a run of ties, to be settled byte by byte.
    if (lo + 1 < n) {
      const std::size_t next = slot(lo + 1);
      if (unfit(next) || big_endian8(at8 + next) == k8)
        return search_memn_slow(page, lo + 1, n, key, key_bytes, out);
    }
  }
  return true;
}

}  // namespace lmdbio::db::detail
