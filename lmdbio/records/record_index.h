// The record index maps an ordinal to the location of its record.  See build_index.h to build it, and
// index_file.h to store it in a file.
//
// A record is a key and its value.  With MDB_DUPSORT, it is a key and one of its values.  Ordinals count from
// 0 in the order of MDB_FIRST and MDB_NEXT.
//
// Memory: the index consists of blocks.  A block is one of three things: a leaf page, a part of a leaf page
// whose records are found in the same way, or a leaf page of a key's own tree of duplicates.  A block has
// four numbers, which take 0.75 bytes and some bits.  They take about 2 bytes together if leaf pages are in
// key order, and about 4 bytes otherwise.  Records inside leaf pages need no other memory.  The index takes
// 0.1 bytes per record with values of 200 bytes (18 per page), and 0.02 bytes with values of 16 bytes.  A
// value in an overflow run takes 0.4 bytes and some bits.  The sum is 0.4 to 1 bytes if values of one size
// were appended in order.  The sum is 3 to 5 bytes if sizes and positions are random (in a file of 2^24
// pages).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/status.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/records/packed_column.h"

namespace lmdbio::records {

/// The location of a record: the leaf page of its key, and how to find the value from that page.
struct RecordLocation {
  std::uint64_t leaf = 0;         ///< page number of the leaf page that holds the key
  std::uint32_t slot = 0;         ///< entry of that page from which `nth` counts
  std::uint32_t nth = 0;          ///< index of the record, counted from `slot`; duplicates inside the page
                                  ///< count
  std::uint64_t overflow = 0;     ///< first page of the overflow run that holds the value; 0: none
  std::uint32_t value_bytes = 0;  ///< size of the value in the overflow run
  std::uint32_t file = 0;         ///< number of the database, if a reader has several
  std::uint64_t dup_leaf = 0;     ///< page number of a leaf page in the key's own tree of duplicates; 0: none
  std::uint32_t dup_item = 0;     ///< index of the value in page dup_leaf
  friend bool operator==(const RecordLocation&, const RecordLocation&) = default;
};

/// Extracts the key and the value from the record's pages, and checks every step.  `dup_leaf`: view of page
/// location.dup_leaf; null if that number is 0.  Sets `key` and `value` to spans of a page.  Does not set
/// `value` if it is in an overflow run.  Returns MDB_CORRUPTED if the pages do not contain the record.
Status extract_record(const RecordLocation& location, const format::PageView& leaf,
                      const format::PageView* dup_leaf, Bytes& key, Bytes& value) noexcept;

/// Says how to find the records of a block from the block's start.
enum class BlockKind : unsigned char {
  plain,    ///< one record per slot, values in the page
  runs,     ///< one record per slot, some or all values in overflow runs
  counted,  ///< some slots have sub-pages; records are found by counting from the start
  dups,     ///< records of one slot, in one leaf page of its tree of duplicates
};

/// The columns of an index.  Each block has its `leaf` page, its `first` ordinal, its `start` (slot * 4 +
/// kind) and `where`.  For kind dups, `where` is the page of duplicates.  Otherwise `where` is the number of
/// rows of all earlier blocks in the run columns.
///
/// The run columns have a row for each record of a `runs` block: `run_page` and `run_bytes` (value size +
/// 1).  If run_bytes is 0, the value is in the leaf page, and run_page has no meaning.
struct IndexColumns {
  PackedColumn leaf, first, start, where, run_page, run_bytes;
};

/// Counts of the records and pages of an index.
struct IndexTotals {
  std::uint64_t records = 0;
  std::uint64_t branch_pages = 0;  ///< includes trees of duplicates, here and below
  std::uint64_t leaf_pages = 0;
  std::uint64_t overflow_values = 0;   ///< values in overflow runs
  std::uint64_t overflow_bytes = 0;    ///< bytes of these values
  std::uint64_t largest_overflow = 0;  ///< bytes of the largest of these values
  friend bool operator==(const IndexTotals&, const IndexTotals&) = default;
};

/// A range of ordinals that are unknown.  It exists if several leaf pages are damaged and undamaged pages are
/// between them.  The total number of records in the damaged pages is known, but not the number in each page.
/// The index still numbers the records in this range, so that they can be found by key.  These numbers are
/// not their ordinals.
struct UnknownOrdinals {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t leaf = 0;  ///< one of the damaged pages
};

/// Returns a slot that no leaf page has.  Records of a damaged page get this slot, so that reads of these
/// records fail.
constexpr std::uint16_t no_slot(std::size_t page_size) noexcept {
  return static_cast<std::uint16_t>(page_size / 2 - 1);
}

/// A record index.  Immutable; any thread.
class RecordIndex {
 public:
  RecordIndex() noexcept = default;
  /// Takes the columns from a builder.
  RecordIndex(IndexColumns columns, const IndexTotals& totals, const UnknownOrdinals& unknown = {}) noexcept;

  std::uint64_t records() const noexcept { return totals_.records; }
  /// Returns the location of record `ordinal`, which must be less than records().  The time is logarithmic in
  /// the number of leaf pages.  Allocates no memory.
  RecordLocation location(std::uint64_t ordinal) const noexcept;
  /// Sets `out` to the locations of the records `first` to `first` + out.size() - 1, which must be less than
  /// records().  Faster than single calls of location().
  void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept;

  std::size_t memory_bytes() const noexcept;
  std::uint64_t leaf_pages() const noexcept { return totals_.leaf_pages; }
  std::uint64_t values_in_overflow() const noexcept { return totals_.overflow_values; }
  const IndexTotals& totals() const noexcept { return totals_; }
  const UnknownOrdinals& unknown() const noexcept { return unknown_; }
  const IndexColumns& columns() const noexcept { return columns_; }
  std::uint64_t blocks() const noexcept { return columns_.first.size(); }

  /// Returns true if the columns are consistent with each other and with the totals, and if all locations are
  /// inside a file of `pages` pages.  Call it to check columns that come from a file.
  bool consistent(std::uint64_t pages, format::PageFormat format) const noexcept;

 private:
  std::uint64_t block_of(std::uint64_t ordinal) const noexcept;
  void fill(std::uint64_t block, std::uint64_t in_block, RecordLocation& out) const noexcept;

  IndexColumns columns_;
  IndexTotals totals_;
  UnknownOrdinals unknown_;
};

}  // namespace lmdbio::records
