#include "lmdbio/records/leaf_lookup.h"

#include <algorithm>
#include <cerrno>
#include <numeric>

namespace lmdbio::records {

Result<LeafLookup> LeafLookup::make(const RecordIndex& index) noexcept {
  LeafLookup out(index);
  const PackedColumn& leaf = index.columns().leaf;
  bool in_order = true;
  for (std::uint64_t b = 1; b < leaf.size() && in_order; ++b) in_order = leaf[b - 1] <= leaf[b];
  if (in_order) return out;
  try {
    out.sorted_.resize(leaf.size());
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
  std::iota(out.sorted_.begin(), out.sorted_.end(), std::uint64_t{0});
  std::sort(out.sorted_.begin(), out.sorted_.end(), [&](std::uint64_t a, std::uint64_t b) {
    const std::uint64_t x = leaf[a], y = leaf[b];
    return x != y ? x < y : a < b;
  });
  return out;
}

std::optional<std::uint64_t> LeafLookup::ordinal_of(std::uint64_t page, const format::PageView& leaf,
                                                    unsigned slot) const noexcept {
  const IndexColumns& c = index_->columns();
  // Find the last block of the page that begins at or before the slot.  If several blocks begin at this slot
  // (a tree of duplicates), find the first of them.
  const auto before = [&](std::uint64_t b, unsigned s) {
    const std::uint64_t p = c.leaf[b];
    return p < page || (p == page && c.start[b] >> 2 < s);
  };
  std::uint64_t low = 0, high = c.leaf.size();
  while (low < high) {
    const std::uint64_t mid = low + (high - low) / 2;
    before(block(mid), slot) ? low = mid + 1 : high = mid;
  }
  if (low == c.leaf.size() || c.leaf[block(low)] != page || c.start[block(low)] >> 2 != slot) {
    if (low == 0) return {};
    --low;
  }
  const std::uint64_t b = block(low), start = c.start[b];
  if (c.leaf[b] != page || start >> 2 > slot) return {};
  const std::uint64_t end = b + 1 < index_->blocks() ? c.first[b + 1] : index_->records();
  std::uint64_t ordinal = c.first[b];
  const auto kind = static_cast<BlockKind>(start & 3);
  if (kind == BlockKind::dups) return start >> 2 == slot ? std::optional(ordinal) : std::nullopt;
  if (kind != BlockKind::counted) {
    ordinal += slot - (start >> 2);
  } else {
    if (!leaf.is_leaf() || leaf.is_leaf2() || slot >= leaf.count()) return {};
    for (auto i = static_cast<unsigned>(start >> 2); i < slot; ++i) {
      format::Node n;
      if (!leaf.node(i, n)) return {};
      format::PageView sub;
      if ((n.flags() & format::kDupData) == 0)
        ++ordinal;
      else if ((n.flags() & (format::kSubData | format::kBigData)) != 0 ||
               !format::PageView::open_sub(n, sub))
        return {};
      else
        ordinal += sub.count();
    }
  }
  return ordinal < end ? std::optional(ordinal) : std::nullopt;
}

}  // namespace lmdbio::records
