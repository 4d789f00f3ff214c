// Searches of one page.
#pragma once

#include <lmdb.h>

#include "lmdbio/format/compare.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::format {

/// The position of a key in a page: the index of the first entry that is not less than the key, or count().
/// Entry 0 of a branch page counts as less than any key.
struct Place {
  unsigned index = 0;
  bool exact = false;
};

/// Searches a page of any kind, in any order.  Probes entries in the sequence of stock LMDB, so that the
/// result is the same even if the page is not sorted in this order.  `item_bytes` is the item size of kLeaf2
/// pages.  Returns false if the page is damaged.
bool search_page(const PageView& page, const Comparator& order, const MDB_val& key, std::size_t item_bytes,
                 Place& out);

/// Does the same, but faster, for Order::memn on a page with slots.  `skip` is a guess: all keys of the page
/// start with the first `skip` bytes of `key`.  The result is correct even if the guess is wrong.
/// Instantiated for leaf and branch pages.  Returns false if the page is damaged.
template <bool kIsLeaf>
bool search_memn(const PageView& page, const std::byte* key, std::size_t key_bytes, std::size_t skip,
                 Place& out) noexcept;

/// Returns the number of bytes that two keys have in common at their start.
std::size_t common_prefix(const std::byte* a, std::size_t an, const std::byte* b, std::size_t bn) noexcept;

}  // namespace lmdbio::format
