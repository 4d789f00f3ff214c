#include "lmdbio/format/compare.h"

#include <algorithm>

namespace lmdbio::format {

namespace {

const std::byte* bytes(const MDB_val& v) noexcept { return static_cast<const std::byte*>(v.mv_data); }

/// Returns the little-endian integer in the first `want` bytes.  If only `have` of these bytes exist, the
/// missing bytes count as zeros.
std::uint64_t bounded_load(const std::byte* p, std::size_t want, std::size_t have) noexcept {
  std::uint64_t v = 0;
  std::memcpy(&v, p, std::min(want, have));
  return v;
}

template <class T>
int three_way(T x, T y) noexcept {
  return x < y ? -1 : x > y;
}

int compare_memnr(const MDB_val& a, const MDB_val& b) noexcept {
  const std::byte* p = bytes(a) + a.mv_size;
  const std::byte* q = bytes(b) + b.mv_size;
  for (std::size_t n = std::min(a.mv_size, b.mv_size); n > 0; --n) {
    --p, --q;
    if (*p != *q) return *p < *q ? -1 : 1;
  }
  return three_way(a.mv_size, b.mv_size);
}

// Compares 2-byte units, starting with the most significant one of `a`.  The size of `b` is not used.
int compare_cint(const MDB_val& a, const MDB_val& b, const std::byte* b_end) noexcept {
  const std::byte* const p = bytes(a);
  const std::byte* const q = bytes(b);
  const auto have = static_cast<std::size_t>(b_end - q);
  if (a.mv_size == 8 && have >= 8) return three_way(load<std::uint64_t>(p), load<std::uint64_t>(q));
  if (a.mv_size == 4 && have >= 4) return three_way(load<std::uint32_t>(p), load<std::uint32_t>(q));
  std::size_t i = a.mv_size;
  while (i > 0) {
    const std::size_t unit = i >= 2 ? 2 : 1;
    i -= unit;
    const std::uint64_t x = bounded_load(p + i, unit, unit);
    const std::uint64_t y = i < have ? bounded_load(q + i, unit, have - i) : 0;
    if (x != y) return x < y ? -1 : 1;
  }
  return 0;
}

int compare_fixed(const MDB_val& a, const MDB_val& b, const std::byte* b_end, std::size_t width) noexcept {
  return three_way(bounded_load(bytes(a), width, a.mv_size),
                   bounded_load(bytes(b), width, static_cast<std::size_t>(b_end - bytes(b))));
}

}  // namespace

Comparator default_key_order(unsigned db_flags) noexcept {
  if ((db_flags & MDB_REVERSEKEY) != 0) return {Order::memnr};
  if ((db_flags & MDB_INTEGERKEY) != 0) return {Order::cint};
  return {Order::memn};
}

Comparator default_dup_order(unsigned db_flags) noexcept {
  if ((db_flags & MDB_INTEGERDUP) != 0) return {(db_flags & MDB_DUPFIXED) != 0 ? Order::uint : Order::cint};
  if ((db_flags & MDB_REVERSEDUP) != 0) return {Order::memnr};
  return {Order::memn};
}

int compare(const Comparator& c, const MDB_val& a, const MDB_val& b, const std::byte* b_end) {
  switch (c.order) {
    case Order::memn:
      return compare_memn(bytes(a), a.mv_size, bytes(b), b.mv_size);
    case Order::memnr:
      return compare_memnr(a, b);
    case Order::cint:
      return compare_cint(a, b, b_end);
    case Order::uint:
      return compare_fixed(a, b, b_end, sizeof(unsigned));
    case Order::word:
      return compare_fixed(a, b, b_end, sizeof(std::size_t));
    case Order::user:
      return c.user(&a, &b);
  }
  return 0;
}

}  // namespace lmdbio::format
