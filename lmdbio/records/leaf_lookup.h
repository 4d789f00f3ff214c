// Maps entries of leaf pages to ordinals.  Lookups by key use it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// Finds ordinals by leaf page.  Any thread.  The index must outlive this object, and must not move.
class LeafLookup {
 public:
  /// Sorts the blocks by leaf page.  This takes 8 bytes per block, or no memory if leaf pages are in key
  /// order.  Error: ENOMEM.
  static Result<LeafLookup> make(const RecordIndex& index) noexcept;

  /// Returns the ordinal of the first record of entry `slot` of leaf page `page`.  `leaf` is a view of the
  /// page's bytes, which are used only if earlier entries have duplicates in the page.  Returns nothing if
  /// the index has no such entry, or if the page differs from the indexed page.
  std::optional<std::uint64_t> ordinal_of(std::uint64_t page, const format::PageView& leaf,
                                          unsigned slot) const noexcept;
  std::size_t memory_bytes() const noexcept { return sorted_.capacity() * sizeof sorted_[0]; }

 private:
  explicit LeafLookup(const RecordIndex& index) noexcept : index_(&index) {}
  std::uint64_t block(std::uint64_t i) const noexcept { return sorted_.empty() ? i : sorted_[i]; }

  const RecordIndex* index_;
  std::vector<std::uint64_t> sorted_;  ///< blocks, sorted by leaf page, then by number; empty if the index
                                       ///< has this order already
};

}  // namespace lmdbio::records
