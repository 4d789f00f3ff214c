// Orders of keys and of duplicates, as in stock LMDB 0.9.
#pragma once

#include <lmdb.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::format {

enum class Order : std::uint8_t {
  memn,   ///< by bytes, then by length (default)
  memnr,  ///< by bytes from the end, then by length (MDB_REVERSEKEY, MDB_REVERSEDUP)
  cint,   ///< native integers of the search key's size (MDB_INTEGERKEY, MDB_INTEGERDUP)
  uint,   ///< unsigned int, or size_t if the items have that size (MDB_INTEGERDUP | MDB_DUPFIXED)
  word,   ///< size_t (free database)
  user,   ///< the function of mdb_set_compare or mdb_set_dupsort
};

struct Comparator {
  Order order = Order::memn;
  MDB_cmp_func* user = nullptr;  ///< set if order == user, else null

  static Comparator of_user(MDB_cmp_func* f) noexcept { return {Order::user, f}; }
  friend bool operator==(const Comparator&, const Comparator&) = default;
};

/// Return the default order of stock LMDB for the persistent flags of a database (lmdb.h).
Comparator default_key_order(unsigned db_flags) noexcept;
Comparator default_dup_order(unsigned db_flags) noexcept;

/// Returns the first 8 bytes at `p` as an integer that sorts as these bytes do.
inline std::uint64_t big_endian8(const std::byte* p) noexcept {
  return __builtin_bswap64(load<std::uint64_t>(p));
}

/// Compares by Order::memn.  Most keys differ in their first 8 bytes, so one load from each key replaces a
/// call of memcmp.
inline int compare_memn(const std::byte* a, std::size_t an, const std::byte* b, std::size_t bn) noexcept {
  const std::size_t n = an < bn ? an : bn;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const std::uint64_t x = big_endian8(a + i), y = big_endian8(b + i);
    if (x != y) return x < y ? -1 : 1;
  }
  if (i < n) {
    if (const int diff = std::memcmp(a + i, b + i, n - i); diff != 0) return diff;
  }
  return an < bn ? -1 : an > bn;
}

/// Compares the search key `a` with the item `b`, whose memory is readable up to `b_end`.  The sign of the
/// result is the order.  Order::cint reads a.mv_size bytes of both.  Order::uint and Order::word read the
/// size of their type, as stock LMDB does.  Bytes beyond `b_end` or beyond `a` count as zeros.  The user's
/// function may throw or call longjmp.
int compare(const Comparator& c, const MDB_val& a, const MDB_val& b, const std::byte* b_end);

/// Compares two values of a program.  Each is readable up to its own size only.
inline int compare_values(const Comparator& c, const MDB_val& a, const MDB_val& b) {
  return compare(c, a, b, static_cast<const std::byte*>(b.mv_data) + b.mv_size);
}

}  // namespace lmdbio::format
