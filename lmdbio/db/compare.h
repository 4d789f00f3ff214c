// Orders of keys and of duplicates, as stock LMDB 0.9 compares them.
#pragma once

#include <lmdb.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::db {

enum class Order : std::uint8_t {
  memn,   ///< bytes, then length (default)
  memnr,  ///< bytes from the end, then length (MDB_REVERSEKEY, MDB_REVERSEDUP)
  cint,   ///< native integers of the search key's size (MDB_INTEGERKEY, MDB_INTEGERDUP)
  uint,   ///< unsigned int; size_t where the items have its size (MDB_INTEGERDUP | MDB_DUPFIXED)
  word,   ///< size_t (free database)
  user,   ///< mdb_set_compare, mdb_set_dupsort
};

struct Comparator {
  Order order = Order::memn;
  MDB_cmp_func* user = nullptr;  ///< order == user

  static Comparator of_user(MDB_cmp_func* f) noexcept { return {Order::user, f}; }
  friend bool operator==(const Comparator&, const Comparator&) = default;
};

/// Stock's defaults for a database's persistent flags (lmdb.h).
Comparator default_key_order(unsigned db_flags) noexcept;
Comparator default_dup_order(unsigned db_flags) noexcept;

/// The first 8 bytes at `p` as an integer that sorts as they do.
inline std::uint64_t big_endian8(const std::byte* p) noexcept {
  return __builtin_bswap64(load<std::uint64_t>(p));
}

/// memn.  Most keys differ in their first 8 bytes: one load each instead of a call.
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

/// Order of the search key `a` against `b`, an item that lies in memory readable up to `b_end`.  The integer
/// orders look at as many bytes as `a` has (word, uint: as their type has), as stock does; where that would
/// leave the page or the key, zeros are taken.  A user's function may throw or longjmp.
int compare(const Comparator& c, const MDB_val& a, const MDB_val& b, const std::byte* b_end);

/// The same for two values of a program's, each readable as far as it goes.
inline int compare_values(const Comparator& c, const MDB_val& a, const MDB_val& b) {
  return compare(c, a, b, static_cast<const std::byte*>(b.mv_data) + b.mv_size);
}

}  // namespace lmdbio::db
