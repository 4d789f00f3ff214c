// Search of one page.
#pragma once

#include <lmdb.h>

#include "lmdbio/db/compare.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::db {

/// Where a key is or belongs in a page: the first entry that is not less (branch pages: entry 0 counts as
/// less than any key), or count().
struct Place {
  unsigned index = 0;
  bool exact = false;
};

/// Any order, any page kind; probes in stock's sequence, so that it agrees with stock even where the order
/// disagrees with the page.  `item_bytes` is the item size of kLeaf2 pages.  False: corrupted.
bool search_page(const format::PageView& page, const Comparator& order, const MDB_val& key,
                 std::size_t item_bytes, Place& out);

/// The same for Order::memn on a page with slots, fast.  The first `skip` bytes of the key are probably those
/// of every key of the page.  Instantiated for leaf and branch pages.  False: corrupted.
template <bool kIsLeaf>
bool search_memn(const format::PageView& page, const std::byte* key, std::size_t key_bytes, std::size_t skip,
                 Place& out) noexcept;

/// Bytes in common at the start of two keys.
std::size_t common_prefix(const std::byte* a, std::size_t an, const std::byte* b, std::size_t bn) noexcept;

}  // namespace lmdbio::db
