// The last step of a build: what leaf pages gave, in the order of the tree, becomes the columns of an index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/records/memory.h"
#include "lmdbio/records/record_index.h"
#include "lmdbio/records/scan_leaf.h"

namespace lmdbio::records {

/// Of a vector: what one page, or one tree, gave.
struct Range {
  std::size_t begin = 0, end = 0;
};

/// Leaf pages that are read together.
struct Chunk {
  Rows rows;
  std::vector<Range> by_leaf;      ///< of rows.blocks, in the order of the tree
  std::vector<BlockRow> dups;      ///< leaf pages of trees of duplicates
  std::vector<Range> by_tree;      ///< of dups
  std::uint64_t branch_pages = 0;  ///< of these trees
  TakenMemory taken;
};

class IndexPacker {
 public:
  /// Chunks in the order of the tree.  Throw bad_alloc.
  void append(const Chunk& chunk);
  std::uint64_t damaged_pages() const noexcept { return damaged_.size(); }
  /// Sets the number of records of damaged leaf pages, so that there are `records` of them in all.  False:
  /// that cannot be.  After all append().  Throws bad_alloc.
  bool place_damaged(std::uint64_t records);
  RecordIndex finish();
  std::size_t memory_bytes() const noexcept;

  IndexTotals totals;  ///< leaf and branch pages of the tree itself are the caller's to count

 private:
  void begin(const BlockRow& row, std::uint64_t where);

  IndexColumns columns_;
  std::uint64_t last_run_ = format::kMetaPages;
  std::vector<std::uint64_t> damaged_;  ///< blocks that are damaged leaf pages
  UnknownOrdinals unknown_;
};

}  // namespace lmdbio::records
