// Maps entries of leaf pages to ordinals, for records that are found by key.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// Finds ordinals by leaf page.  Any thread.  The index outlives it, and stays at its address.
class LeafLookup {
 public:
  /// Sorts the blocks by leaf page.  This takes 8 bytes per block, or none if leaf pages lie in key order.
  /// Error: ENOMEM.
  static Result<LeafLookup> make(const RecordIndex& index) noexcept;

  /// Returns the ordinal of the first record of entry `slot` of leaf page `page`.  `leaf` shows the bytes
  /// of the page, which matter only if earlier entries have duplicates in the page.  Returns nothing if the
  /// index has no such entry, or if the page differs from the indexed one.
  std::optional<std::uint64_t> ordinal_of(std::uint64_t page, const format::PageView& leaf,
                                          unsigned slot) const noexcept;
  std::size_t memory_bytes() const noexcept { return sorted_.capacity() * sizeof sorted_[0]; }

 private:
  explicit LeafLookup(const RecordIndex& index) noexcept : index_(&index) {}
  std::uint64_t block(std::uint64_t i) const noexcept { return sorted_.empty() ? i : sorted_[i]; }

  const RecordIndex* index_;
  std::vector<std::uint64_t> sorted_;  ///< blocks by leaf page, then number; empty: in this order already
};

}  // namespace lmdbio::records
