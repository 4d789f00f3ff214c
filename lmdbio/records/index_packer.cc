#include "lmdbio/records/index_packer.h"

#include <algorithm>
#include <utility>

namespace lmdbio::records {

void IndexPacker::begin(const BlockRow& row, std::uint64_t where) {
  columns_.leaf.append(row.leaf);
  columns_.first.append(totals.records);
  columns_.start.append(std::uint64_t{row.slot} << 2 | static_cast<std::uint64_t>(row.kind));
  columns_.where.append(where);
  totals.records += row.records;
}

void IndexPacker::append(const Chunk& chunk) {
  IndexColumns& c = columns_;
  for (const Range& leaf : chunk.by_leaf) {
    for (std::size_t i = leaf.begin; i < leaf.end; ++i) {
      const BlockRow& row = chunk.rows.blocks[i];
      if (row.tree) {
        const Range tree = chunk.by_tree[row.where];
        for (std::size_t d = tree.begin; d < tree.end; ++d) begin(chunk.dups[d], chunk.dups[d].where);
        continue;
      }
      if (row.damaged) {
        damaged_.push_back(c.leaf.size());
        unknown_.leaf = row.leaf;
      }
      begin(row, c.run_page.size());
      if (row.kind != BlockKind::runs) continue;
      for (std::size_t r = 0; r < row.records; ++r) {
        const RunRow& run = chunk.rows.runs[row.where + r];
        // A value in the leaf page has no run.  Its row repeats the page of the previous row, which packs
        // best.
        if (run.bytes != 0) last_run_ = run.page;
        c.run_page.append(last_run_);
        c.run_bytes.append(run.bytes);
        if (run.bytes == 0) continue;
        ++totals.overflow_values;
        totals.overflow_bytes += run.bytes - 1;
        totals.largest_overflow = std::max(totals.largest_overflow, run.bytes - 1);
      }
    }
  }
  totals.branch_pages += chunk.branch_pages;
  totals.leaf_pages += chunk.dups.size();
}

std::size_t IndexPacker::memory_bytes() const noexcept {
  std::size_t sum = 0;
  for (const PackedColumn* const p : {&columns_.leaf, &columns_.first, &columns_.start, &columns_.where,
                                      &columns_.run_page, &columns_.run_bytes})
    sum += p->memory_bytes();
  return sum;
}

// Each damaged page except the first gets one record.  The first damaged page gets all other missing records.
// If the damaged pages are adjacent, or if there is only one, the ordinals of all other records are correct.
bool IndexPacker::place_damaged(std::uint64_t records) {
  const std::uint64_t pages = damaged_.size();
  if (pages == 0) return records == totals.records;
  if (records < totals.records || records - totals.records < pages || records >> PackedColumn::kBits != 0)
    return false;
  PackedColumn& before = columns_.first;
  before.finish();
  PackedColumn after;
  std::uint64_t more = 0;
  std::size_t next = 0;
  for (std::uint64_t b = 0; b < before.size(); ++b) {
    after.append(before[b] + more);
    if (next == pages || damaged_[next] != b) continue;
    if (next == 0) unknown_.begin = before[b];
    more += next++ == 0 ? records - totals.records - (pages - 1) : 1;
    unknown_.end = before[b] + more;
  }
  if (damaged_.back() - damaged_.front() + 1 == pages) unknown_ = {};
  before = std::move(after);
  totals.records = records;
  return true;
}

RecordIndex IndexPacker::finish() {
  IndexColumns& c = columns_;
  for (PackedColumn* const p : {&c.leaf, &c.first, &c.start, &c.where, &c.run_page, &c.run_bytes})
    p->finish();
  return {std::move(columns_), totals, unknown_};
}

}  // namespace lmdbio::records
