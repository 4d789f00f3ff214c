#include "lmdbio/format/search.h"

#include <bit>

#include "lmdbio/format/search_memn.h"

namespace lmdbio::format {

namespace {

/// Returns the order of the keys on a branch page.  Branch pages hold no data, so stock LMDB compares their
/// integer keys by the type that fits the first real key.
Comparator branch_order(const PageView& page, const Comparator& order) noexcept {
  Node second;
  if (order.order != Order::cint || page.count() < 2 || !page.node(1, second)) return order;
  return {second.key_size() == sizeof(std::size_t) ? Order::word : Order::uint};
}

}  // namespace

namespace {

/// Does the binary search of stock LMDB.  `compare_to(entry)` compares the key with an entry.
template <class Compare>
bool search_entries(const PageView& page, std::size_t item_bytes, Place& out, Compare&& compare_to) {
  const int count = static_cast<int>(page.count());
  int low = page.is_branch() ? 1 : 0, high = count - 1, i = 0, rc = 0;
  while (low <= high) {
    i = (low + high) >> 1;
    MDB_val entry;
    if (page.is_leaf2()) {
      const std::byte* const item = page.item(static_cast<unsigned>(i), item_bytes);
      if (item == nullptr) return false;
      entry = {item_bytes, const_cast<std::byte*>(item)};
    } else {
      Node node;
      if (!page.node(static_cast<unsigned>(i), node)) return false;
      entry = {node.key_size(), const_cast<std::byte*>(node.key())};
    }
    rc = compare_to(entry);
    if (rc == 0) break;
    if (rc > 0)
      low = i + 1;
    else
      high = i - 1;
  }
  if (rc > 0) ++i;
  out = {static_cast<unsigned>(i), rc == 0 && count > 0};
  return true;
}

/// Searches integers of one width, the usual case.  Loads the key once, and compares entries of this width
/// directly.
template <class T>
bool search_integers(const PageView& page, const Comparator& by, const MDB_val& key, std::size_t item_bytes,
                     Place& out) {
  const std::byte* const page_end = page.bytes() + page.size();
  const T wanted = load<T>(static_cast<const std::byte*>(key.mv_data));
  return search_entries(page, item_bytes, out, [&](const MDB_val& entry) {
    if (entry.mv_size != sizeof(T)) return compare(by, key, entry, page_end);
    const T found = load<T>(static_cast<const std::byte*>(entry.mv_data));
    return wanted < found ? -1 : wanted > found;
  });
}

}  // namespace

bool search_page(const PageView& page, const Comparator& order, const MDB_val& key, std::size_t item_bytes,
                 Place& out) {
  const Comparator by = page.is_branch() ? branch_order(page, order) : order;
  switch (by.order) {
    case Order::memn:
      return search_entries(page, item_bytes, out, [&](const MDB_val& entry) {
        return compare_memn(static_cast<const std::byte*>(key.mv_data), key.mv_size,
                            static_cast<const std::byte*>(entry.mv_data), entry.mv_size);
      });
    case Order::user:
      return search_entries(page, item_bytes, out, [&](MDB_val& entry) { return by.user(&key, &entry); });
    case Order::cint:
    case Order::uint:
    case Order::word: {
      const std::size_t width = by.order == Order::cint ? key.mv_size : by.order == Order::word ? 8 : 4;
      if (width == 8 && key.mv_size == 8)
        return search_integers<std::uint64_t>(page, by, key, item_bytes, out);
      if (width == 4 && key.mv_size == 4)
        return search_integers<std::uint32_t>(page, by, key, item_bytes, out);
      break;
    }
    case Order::memnr:
      break;
  }
  const std::byte* const page_end = page.bytes() + page.size();
  return search_entries(page, item_bytes, out,
                        [&](const MDB_val& entry) { return compare(by, key, entry, page_end); });
}

bool detail::search_memn_slow(const PageView& page, const std::byte* key, std::size_t key_bytes,
                              Place& out) noexcept {
  int low = page.is_branch() ? 1 : 0, high = static_cast<int>(page.count()) - 1, i = 0, order = 0;
  while (low <= high) {
    i = (low + high) >> 1;
    Node node;
    if (!page.node(static_cast<unsigned>(i), node)) return false;
    order = compare_memn(key, key_bytes, node.key(), node.key_size());
    if (order == 0) break;
    if (order > 0)
      low = i + 1;
    else
      high = i - 1;
  }
  if (order > 0) ++i;
  out = {static_cast<unsigned>(i), order == 0 && page.count() > 0};
  return true;
}

template <bool kIsLeaf>
bool search_memn(const PageView& page, const std::byte* key, std::size_t key_bytes, std::size_t skip,
                 Place& out) noexcept {
  return page.version() == Version::v09
             ? detail::search_memn_inline<kIsLeaf, Version::v09>(page, key, key_bytes, skip, out)
             : detail::search_memn_inline<kIsLeaf, Version::v10>(page, key, key_bytes, skip, out);
}
template bool search_memn<true>(const PageView&, const std::byte*, std::size_t, std::size_t, Place&) noexcept;
template bool search_memn<false>(const PageView&, const std::byte*, std::size_t, std::size_t,
                                 Place&) noexcept;

std::size_t common_prefix(const std::byte* a, std::size_t an, const std::byte* b, std::size_t bn) noexcept {
  const std::size_t n = an < bn ? an : bn;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    if (const std::uint64_t x = load<std::uint64_t>(a + i) ^ load<std::uint64_t>(b + i); x != 0)
      return i + static_cast<std::size_t>(std::countr_zero(x)) / 8;
  }
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

}  // namespace lmdbio::format
