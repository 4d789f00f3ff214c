#include "lmdbio/records/record_index.h"

#include <lmdb.h>

#include <bit>
#include <utility>

namespace lmdbio::records {
namespace {

Status corrupted() noexcept { return Status::from_mdb(MDB_CORRUPTED); }

/// Extracts item `i` of a page or sub-page of duplicates.
Status extract_dup(const format::PageView& page, std::uint32_t i, Bytes& value) noexcept {
  if (!page.is_leaf() || i >= page.count()) return corrupted();
  if (page.is_leaf2()) {
    const std::size_t size = page.item_size();
    const std::byte* const at = size == 0 ? nullptr : page.item(i, size);
    if (at == nullptr) return corrupted();
    value = {at, size};
    return {};
  }
  format::Node n;
  if (!page.node(i, n)) return corrupted();
  value = {n.key(), n.key_size()};
  return {};
}

}  // namespace

Status extract_record(const RecordLocation& location, const format::PageView& leaf,
                      const format::PageView* dup_leaf, Bytes& key, Bytes& value) noexcept {
  if (!leaf.is_leaf() || leaf.is_leaf2()) return corrupted();
  std::uint64_t left = location.nth;
  for (unsigned i = location.slot; i < leaf.count(); ++i) {
    format::Node n;
    if (!leaf.node(i, n)) return corrupted();
    const unsigned flags = n.flags();
    const bool big = (flags & format::kBigData) != 0, dups = (flags & format::kDupData) != 0;
    if (big && dups) return corrupted();
    const bool tree = dups && (flags & format::kSubData) != 0;
    format::PageView sub;
    std::uint64_t records = 1;
    if (dups && !tree) {
      if (!format::PageView::open_sub(n, sub)) return corrupted();
      records = sub.count();
    }
    if (left >= records) {
      left -= records;
      continue;
    }
    key = {n.key(), n.key_size()};
    if (tree != (location.dup_leaf != 0) || tree != (dup_leaf != nullptr)) return corrupted();
    if (big != (location.overflow != 0)) return corrupted();
    if (tree) return extract_dup(*dup_leaf, location.dup_item, value);
    if (dups) return extract_dup(sub, static_cast<std::uint32_t>(left), value);
    if (!big)
      value = {n.data(), n.data_size()};
    else if (format::raw(n.overflow()) != location.overflow || n.data_size() != location.value_bytes)
      return corrupted();
    return {};
  }
  return corrupted();
}

RecordIndex::RecordIndex(IndexColumns columns, const IndexTotals& totals,
                         const UnknownOrdinals& unknown) noexcept
    : columns_(std::move(columns)), totals_(totals), unknown_(unknown) {}

std::uint64_t RecordIndex::block_of(std::uint64_t ordinal) const noexcept {
  // Find the last block that starts at or before the ordinal.  First search the first values of frames,
  // because they are close together in memory.  Then search the values of one frame.
  const PackedColumn& first = columns_.first;
  constexpr std::uint64_t kFrame = PackedColumn::kFrame;
  std::uint64_t low = 0, high = (first.size() + kFrame - 1) / kFrame;
  while (high - low > 1) {
    const std::uint64_t mid = low + (high - low) / 2;
    (first[mid * kFrame] <= ordinal ? low : high) = mid;
  }
  low *= kFrame;
  high = low + kFrame < first.size() ? low + kFrame : first.size();
  while (high - low > 1) {
    const std::uint64_t mid = low + (high - low) / 2;
    (first[mid] <= ordinal ? low : high) = mid;
  }
  return low;
}

void RecordIndex::fill(std::uint64_t block, std::uint64_t in_block, RecordLocation& out) const noexcept {
  const std::uint64_t start = columns_.start[block];
  const auto n = static_cast<std::uint32_t>(in_block), slot = static_cast<std::uint32_t>(start >> 2);
  out = {};
  out.leaf = columns_.leaf[block];
  out.slot = slot;
  switch (static_cast<BlockKind>(start & 3)) {
    case BlockKind::plain:
      out.slot = slot + n;
      return;
    case BlockKind::runs: {
      out.slot = slot + n;
      const std::uint64_t row = columns_.where[block] + in_block, bytes = columns_.run_bytes[row];
      if (bytes == 0) return;
      out.overflow = columns_.run_page[row];
      out.value_bytes = static_cast<std::uint32_t>(bytes - 1);
      return;
    }
    case BlockKind::counted:
      out.nth = n;
      return;
    case BlockKind::dups:
      out.dup_leaf = columns_.where[block];
      out.dup_item = n;
      return;
  }
}

RecordLocation RecordIndex::location(std::uint64_t ordinal) const noexcept {
  const std::uint64_t block = block_of(ordinal);
  RecordLocation out;
  fill(block, ordinal - columns_.first[block], out);
  return out;
}

void RecordIndex::locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept {
  if (out.empty()) return;
  std::uint64_t block = block_of(first), start = columns_.first[block];
  const auto end_of = [&](std::uint64_t b) { return b + 1 < blocks() ? columns_.first[b + 1] : records(); };
  std::uint64_t end = end_of(block);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t ordinal = first + i;
    while (ordinal >= end) {
      start = end;
      end = end_of(++block);
    }
    fill(block, ordinal - start, out[i]);
  }
}

std::size_t RecordIndex::memory_bytes() const noexcept {
  const IndexColumns& c = columns_;
  std::size_t sum = sizeof *this;
  for (const PackedColumn* p : {&c.leaf, &c.first, &c.start, &c.where, &c.run_page, &c.run_bytes})
    sum += p->memory_bytes();
  return sum;
}

bool RecordIndex::consistent(std::uint64_t pages, format::PageFormat format) const noexcept {
  const IndexColumns& c = columns_;
  const auto shift = static_cast<unsigned>(std::countr_zero(format.size));
  const std::uint64_t n = blocks(), slots = format.size / 2;
  if (c.leaf.size() != n || c.start.size() != n || c.where.size() != n) return false;
  if (c.run_page.size() != c.run_bytes.size() || (n == 0) != (records() == 0)) return false;
  std::uint64_t row = 0, overflow = 0, bytes = 0, largest = 0;
  for (std::uint64_t b = 0; b < n; ++b) {
    const std::uint64_t first = c.first[b], end = b + 1 < n ? c.first[b + 1] : records();
    if (b == 0 && first != 0) return false;
    if (end <= first || end - first > format.size) return false;  // an item has at least one byte
    const std::uint64_t leaf = c.leaf[b], where = c.where[b];
    if (leaf < format::kMetaPages || leaf >= pages || c.start[b] >> 2 >= slots) return false;
    const auto kind = static_cast<BlockKind>(c.start[b] & 3);
    if (kind == BlockKind::dups) {
      if (where < format::kMetaPages || where >= pages) return false;
      continue;
    }
    if (where != row) return false;
    if (kind != BlockKind::runs) continue;
    if (end - first > c.run_page.size() - row) return false;
    for (const std::uint64_t last = row + (end - first); row < last; ++row) {
      const std::uint64_t size = c.run_bytes[row];
      if (size == 0) continue;
      const std::uint64_t page = c.run_page[row];
      if (size - 1 > UINT32_MAX || page < format::kMetaPages || page >= pages ||
          format::overflow_pages(format.version, size - 1, shift) > pages - page)
        return false;
      ++overflow;
      bytes += size - 1;
      if (size - 1 > largest) largest = size - 1;
    }
  }
  return row == c.run_page.size() && overflow == totals_.overflow_values && bytes == totals_.overflow_bytes &&
         largest == totals_.largest_overflow;
}

}  // namespace lmdbio::records
