// The record index: ordinal -> where the record is.  What it is, not how it is made (build_index.h) or kept
// in a file (index_file.h).
//
// A record is a key and its value, or with MDB_DUPSORT a key and one of its values; ordinals count from 0 in
// the order of MDB_FIRST, MDB_NEXT.
//
// Memory, bytes.  A block is a leaf page, or the part of one whose records are found in the same way, or a
// leaf of a key's own tree of duplicates: its four numbers take 0.75 and some bits, about 2 together where
// leaf pages lie in the order of their keys, about 4 where they do not.  Records inside leaf pages take
// nothing more: 200 B values (18 a page) 0.1 a record, 16 B values 0.02.  A value in an overflow run takes
// 0.4 and some bits: 0.4 to 1 where values of one size were appended in order, 3 to 5 where sizes and places
// are random (a file of 2^24 pages).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/status.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/records/packed_column.h"

namespace lmdbio::records {

/// Where a record is: its key's leaf page, and what leads to the value.
struct RecordPlace {
  std::uint64_t leaf = 0;         ///< page of the tree's leaf that holds the key
  std::uint32_t slot = 0;         ///< entry of that page to start from
  std::uint32_t nth = 0;          ///< the record is the nth from there on, duplicates inside the page counted
  std::uint64_t overflow = 0;     ///< first page of the run that holds the value; 0: none
  std::uint32_t value_bytes = 0;  ///< size of the value in the run
  std::uint64_t dup_leaf = 0;     ///< page of a leaf of the key's own tree of duplicates; 0: none
  std::uint32_t dup_item = 0;     ///< item of that page
  friend bool operator==(const RecordPlace&, const RecordPlace&) = default;
};

/// The record's bytes out of its pages, every step checked.  `dup_leaf`: the page of place.dup_leaf, null if
/// that is 0.  `value` stays as it is if it lies in an overflow run; else a span into a page, as `key` is.
/// MDB_CORRUPTED: the pages do not hold it.
Status extract_record(const RecordPlace& place, const format::PageView& leaf,
                      const format::PageView* dup_leaf, Bytes& key, Bytes& value) noexcept;

/// How the records of a block are found from where it starts.
enum class BlockKind : unsigned char {
  plain,    ///< one a slot, values in the page
  runs,     ///< one a slot, values in overflow runs or, some, in the page
  counted,  ///< some slots have sub-pages: counted from the start
  dups,     ///< one slot's, of one leaf page of its tree of duplicates
};

/// The numbers that an index is made of.  Blocks: `leaf` page, `first` ordinal, `start` (slot * 4 + kind) and
/// `where` (dups: the page of duplicates; else how many rows the runs' columns have before this block's).
/// Runs, a row for each record of a `runs` block: `run_page` and `run_bytes`, the value's size + 1; 0: the
/// value is in the leaf page, and run_page means nothing.
struct IndexColumns {
  PackedColumn leaf, first, start, where, run_page, run_bytes;
};

struct IndexTotals {
  std::uint64_t records = 0;
  std::uint64_t branch_pages = 0;  ///< trees of duplicates included, as below
  std::uint64_t leaf_pages = 0;
  std::uint64_t overflow_values = 0;   ///< values in overflow runs
  std::uint64_t overflow_bytes = 0;    ///< of these
  std::uint64_t largest_overflow = 0;  ///< bytes of the largest of these
  friend bool operator==(const IndexTotals&, const IndexTotals&) = default;
};

/// Ordinals of records that nobody knows: more than one leaf page is damaged, and of each page it is not
/// known how many records it has, only how many they have together.  An index numbers the records in that
/// range nevertheless, so that they can be found by key, but these numbers are not their ordinals.
struct UnknownOrdinals {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t leaf = 0;  ///< one of the damaged pages
};

/// A slot that no leaf page has: where the records of a damaged page are, so that each of them fails.
constexpr std::uint16_t no_slot(std::size_t page_size) noexcept {
  return static_cast<std::uint16_t>(page_size / 2 - 1);
}

/// Immutable; any thread.
class RecordIndex {
 public:
  RecordIndex() noexcept = default;
  /// What a builder has made.
  RecordIndex(IndexColumns columns, const IndexTotals& totals, const UnknownOrdinals& unknown = {}) noexcept;

  std::uint64_t records() const noexcept { return totals_.records; }
  /// `ordinal` < records().  In time logarithmic in the number of leaf pages; no allocation.
  RecordPlace place(std::uint64_t ordinal) const noexcept;
  /// Those of out.size() records from `first` on, faster than one by one; first + out.size() <= records().
  void places(std::uint64_t first, std::span<RecordPlace> out) const noexcept;

  std::size_t memory_bytes() const noexcept;
  std::uint64_t leaf_pages() const noexcept { return totals_.leaf_pages; }
  std::uint64_t values_in_overflow() const noexcept { return totals_.overflow_values; }
  const IndexTotals& totals() const noexcept { return totals_; }
  const UnknownOrdinals& unknown() const noexcept { return unknown_; }
  const IndexColumns& columns() const noexcept { return columns_; }
  std::uint64_t blocks() const noexcept { return columns_.first.size(); }

  /// The columns fit each other and the totals, and all pages are among the `pages` of a file: place() gives
  /// nothing outside.  For columns from a file.
  bool consistent(std::uint64_t pages, std::size_t page_size) const noexcept;

 private:
  std::uint64_t block_of(std::uint64_t ordinal) const noexcept;
  void fill(std::uint64_t block, std::uint64_t in_block, RecordPlace& out) const noexcept;

  IndexColumns columns_;
  IndexTotals totals_;
  UnknownOrdinals unknown_;
};

}  // namespace lmdbio::records
