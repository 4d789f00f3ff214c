// Extracts the rows of a record index from pages of a tree.  Pure functions: no I/O, and pages may contain
// any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/format/page_view.h"
#include "lmdbio/records/build_index.h"

namespace lmdbio::records {

/// A block of the index before it has an ordinal.  With `tree`, it stands for a tree of duplicates, whose
/// leaf pages become blocks.
struct BlockRow {
  std::uint64_t leaf = 0;
  std::uint64_t where = 0;  ///< dups: the page; tree: index in Rows::trees; runs: index of the first run
  std::uint32_t records = 0;
  std::uint16_t slot = 0;
  BlockKind kind = BlockKind::plain;
  bool tree = false;
  bool damaged = false;  ///< a damaged leaf page; its number of records is unknown
};

/// The run of a record in a runs block.
struct RunRow {
  std::uint64_t page = 0, bytes = 0;  ///< `bytes`: value size + 1, or 0 if the value is in the leaf page
};

/// A key's own tree of duplicates.
struct DupTree {
  format::DbRecord record{};
  std::uint64_t leaf = 0;  ///< leaf page of the key
  std::uint16_t slot = 0;
};

/// Rows from several pages, in the order in which the pages were scanned.
struct Rows {
  std::vector<BlockRow> blocks;
  std::vector<RunRow> runs;
  std::vector<DupTree> trees;
  std::vector<std::uint64_t> children;  ///< of branch pages
};

/// What the scan needs to know about the database.
struct TreeFacts {
  std::size_t page_size = 0;
  std::uint64_t file_pages = 0;
  bool dupsort = false, dupfixed = false;
};

/// Scan the bytes of page `p`, page_size of them, and append the rows to `out`.  If they return false, they
/// set `problem`, and the caller drops the rows that were added.  May throw bad_alloc.
bool scan_branch(const TreeFacts& tree, std::uint64_t p, const std::byte* page, Rows& out,
                 IndexProblem& problem);
bool scan_leaf(const TreeFacts& tree, std::uint64_t p, const std::byte* page, Rows& out,
               IndexProblem& problem);
/// Counts the records in a leaf page of the tree of duplicates that `record` describes.
bool scan_dup_leaf(const TreeFacts& tree, const format::DbRecord& record, std::uint64_t p,
                   const std::byte* page, std::uint32_t& records, IndexProblem& problem);

/// Returns true if `p` can be a page of a tree.
inline bool in_file(const TreeFacts& tree, std::uint64_t p) noexcept {
  return p >= format::kMetaPages && p < tree.file_pages;
}

/// Sets `problem` to a page and a formatted reason.
[[gnu::format(printf, 3, 4)]] void tell_problem(IndexProblem& problem, std::uint64_t page, const char* format,
                                                ...) noexcept;

}  // namespace lmdbio::records
