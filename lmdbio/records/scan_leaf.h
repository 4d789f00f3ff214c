// Extracts the rows of a record index from pages of a tree.  The functions are pure and do no I/O.  Pages may
// contain any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/format/page_view.h"
#include "lmdbio/records/build_index.h"

namespace lmdbio::records {

/// A block of the index before it has an ordinal.  If `tree` is true, the row represents a tree of
/// duplicates, and each leaf page of this tree becomes a block.
struct BlockRow {
  std::uint64_t leaf = 0;
  std::uint64_t where = 0;  ///< kind dups: the page; kind runs: index of the first run; if `tree`: index in
                            ///< Rows::trees
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
  std::vector<std::uint64_t> children;  ///< child pages of the branch pages
};

/// The facts about the database that the scan needs.
struct TreeFacts {
  std::size_t page_size = 0;
  format::Version version = format::Version::v09;
  std::uint64_t file_pages = 0;
  bool dupsort = false, dupfixed = false;
};

/// Scan page `p`, whose page_size bytes are at `page`, and append its rows to `out`.  Return false if the
/// page is damaged, and set `problem`.  The caller must then drop the rows that were appended.  May throw
/// bad_alloc.
bool scan_branch(const TreeFacts& tree, std::uint64_t p, const std::byte* page, Rows& out,
                 IndexProblem& problem);
bool scan_leaf(const TreeFacts& tree, std::uint64_t p, const std::byte* page, Rows& out,
               IndexProblem& problem);
/// Counts the records in a leaf page of the tree of duplicates that `record` describes.
bool scan_dup_leaf(const TreeFacts& tree, const format::DbRecord& record, std::uint64_t p,
                   const std::byte* page, std::uint32_t& records, IndexProblem& problem);

/// Returns true if `p` is a possible page number of a tree page.
inline bool in_file(const TreeFacts& tree, std::uint64_t p) noexcept {
  return p >= format::kMetaPages && p < tree.file_pages;
}

/// Sets `problem` to a page and a formatted reason.
[[gnu::format(printf, 3, 4)]] void tell_problem(IndexProblem& problem, std::uint64_t page, const char* format,
                                                ...) noexcept;

}  // namespace lmdbio::records
