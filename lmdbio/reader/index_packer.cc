#include "lmdbio/reader/index_packer.h"

#include <algorithm>
#include <utility>

namespace lmdbio::reader {

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
      begin(row, c.run_page.size());
      if (row.kind != BlockKind::runs) continue;
      for (std::size_t r = 0; r < row.records; ++r) {
        const RunRow& run = chunk.rows.runs[row.where + r];
        // Any page will do where there is none: the one before packs best.
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

RecordIndex IndexPacker::finish() {
  IndexColumns& c = columns_;
  for (PackedColumn* const p : {&c.leaf, &c.first, &c.start, &c.where, &c.run_page, &c.run_bytes})
    p->finish();
  return {std::move(columns_), totals};
}

}  // namespace lmdbio::reader
