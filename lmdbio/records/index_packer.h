// The last step of an index build: packs the rows of leaf pages, in tree order, into the columns of an
// index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/records/memory.h"
#include "lmdbio/records/record_index.h"
#include "lmdbio/records/scan_leaf.h"

namespace lmdbio::records {

/// A range of elements in a vector: the rows of one page, or of one tree.
struct Range {
  std::size_t begin = 0, end = 0;
};

/// Leaf pages that are read together.
struct Chunk {
  Rows rows;
  std::vector<Range> by_leaf;      ///< ranges of rows.blocks, in tree order
  std::vector<BlockRow> dups;      ///< rows of the leaf pages of trees of duplicates
  std::vector<Range> by_tree;      ///< ranges of dups
  std::uint64_t branch_pages = 0;  ///< branch pages of these trees
  TakenMemory taken;
};

/// Packs chunks into the columns of an index.  One thread at a time.
class IndexPacker {
 public:
  /// Appends a chunk.  Call it in tree order.  May throw bad_alloc.
  void append(const Chunk& chunk);
  std::uint64_t damaged_pages() const noexcept { return damaged_.size(); }
  /// Distributes records over the damaged leaf pages, so that the index has `records` records in total.  Call
  /// it after the last append().  Returns false if no distribution exists.  May throw bad_alloc.
  bool place_damaged(std::uint64_t records);
  /// Returns the index.  May throw bad_alloc.
  RecordIndex finish();
  std::size_t memory_bytes() const noexcept;

  IndexTotals totals;  ///< the caller adds the leaf and branch pages of the main tree

 private:
  void begin(const BlockRow& row, std::uint64_t where);

  IndexColumns columns_;
  std::uint64_t last_run_ = format::kMetaPages;
  std::vector<std::uint64_t> damaged_;  ///< numbers of the blocks that are damaged leaf pages
  UnknownOrdinals unknown_;
};

}  // namespace lmdbio::records
