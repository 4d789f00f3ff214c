// What the record index takes from a page of a tree.  Pure: any bytes, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/format/page_view.h"
#include "lmdbio/records/build_index.h"

namespace lmdbio::records {

/// A block of the index before it has an ordinal; or (tree) the place where a tree of duplicates hangs, whose
/// leaf pages become blocks.
struct BlockRow {
  std::uint64_t leaf = 0;
  std::uint64_t where = 0;  ///< dups: the page; tree: which of the trees; runs: the first of the runs
  std::uint32_t records = 0;
  std::uint16_t slot = 0;
  BlockKind kind = BlockKind::plain;
  bool tree = false;
  bool damaged = false;  ///< a leaf page that cannot be read; how many records it has is not known
};

/// Of a record of a runs block.
struct RunRow {
  std::uint64_t page = 0, bytes = 0;  ///< as IndexColumns: size + 1; 0: in the leaf page
};

/// A key's own tree of duplicates.
struct DupTree {
  format::DbRecord record{};
  std::uint64_t leaf = 0;  ///< where it hangs
  std::uint16_t slot = 0;
};

/// What pages gave, in the order in which they came.
struct Rows {
  std::vector<BlockRow> blocks;
  std::vector<RunRow> runs;
  std::vector<DupTree> trees;
  std::vector<std::uint64_t> children;  ///< of branch pages
};

struct TreeFacts {
  std::size_t page_size = 0;
  std::uint64_t file_pages = 0;
  bool dupsort = false, dupfixed = false;
};

/// Each takes the bytes of page `p`, page_size of them.  False: `problem` is set, what was added to `out` is
/// to be dropped.  Throw bad_alloc.
bool scan_branch(const TreeFacts& tree, std::uint64_t p, const std::byte* page, Rows& out,
                 IndexProblem& problem);
bool scan_leaf(const TreeFacts& tree, std::uint64_t p, const std::byte* page, Rows& out,
               IndexProblem& problem);
/// A leaf of a tree of duplicates whose record is `record`: how many there are.
bool scan_dup_leaf(const TreeFacts& tree, const format::DbRecord& record, std::uint64_t p,
                   const std::byte* page, std::uint32_t& records, IndexProblem& problem);

/// `p` can be the page of a tree.
inline bool in_file(const TreeFacts& tree, std::uint64_t p) noexcept {
  return p >= format::kMetaPages && p < tree.file_pages;
}

[[gnu::format(printf, 3, 4)]] void tell_problem(IndexProblem& problem, std::uint64_t page, const char* format,
                                                ...) noexcept;

}  // namespace lmdbio::records
