// The record index: ordinal -> where the record is.  What it is, not how it is made (build_index.h) or kept
// in a file (index_file.h).
//
// A record is a key and its value, or with MDB_DUPSORT a key and one of its values; ordinals count from 0 in
// the order of MDB_FIRST, MDB_NEXT.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/status.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::reader {

/// Where a record is: its key's leaf page, and what leads to the value.
struct RecordPlace {
  std::uint64_t leaf = 0;        ///< page of the tree's leaf that holds the key
  std::uint32_t slot = 0;        ///< entry of that page to start from
  std::uint32_t nth = 0;         ///< the record is the nth from there on, duplicates inside the page counted
  std::uint64_t overflow = 0;    ///< first page of the run that holds the value; 0: none
  std::uint32_t value_bytes = 0; ///< size of the value in the run
  std::uint64_t dup_leaf = 0;    ///< page of a leaf of the key's own tree of duplicates; 0: none
  std::uint32_t dup_item = 0;    ///< item of that page
};

/// The record's bytes out of its pages, every step checked.  `dup_leaf`: the page of place.dup_leaf, null if
/// that is 0.  `value` stays as it is if it lies in an overflow run; else a span into a page, as `key` is.
/// `item_bytes`: DbRecord::pad, of MDB_DUPFIXED databases.  MDB_CORRUPTED: the pages do not hold it.
Status extract_record(const RecordPlace& place, const format::PageView& leaf,
                      const format::PageView* dup_leaf, std::uint32_t item_bytes, Bytes& key,
                      Bytes& value) noexcept;

}  // namespace lmdbio::reader
