// From a leaf page back to ordinals, for records that are found by key.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// Any thread.  The index outlives it, where it is.
class LeafLookup {
 public:
  /// Sorts the blocks by leaf page: 8 bytes each, unless leaf pages lie in the order of their keys.  ENOMEM.
  static Result<LeafLookup> make(const RecordIndex& index) noexcept;

  /// Of the first record of entry `slot` of leaf page `page`, whose bytes `leaf` shows (looked at only if
  /// entries before it have duplicates in the page).  Nothing if the index has no such entry, or the page is
  /// not as it was.
  std::optional<std::uint64_t> ordinal_of(std::uint64_t page, const format::PageView& leaf,
                                          unsigned slot) const noexcept;
  std::size_t memory_bytes() const noexcept { return sorted_.capacity() * sizeof sorted_[0]; }

 private:
  explicit LeafLookup(const RecordIndex& index) noexcept : index_(&index) {}
  std::uint64_t block(std::uint64_t i) const noexcept { return sorted_.empty() ? i : sorted_[i]; }

  const RecordIndex* index_;
  std::vector<std::uint64_t> sorted_;  ///< blocks, by leaf page, then as they are; empty: they are so already
};

}  // namespace lmdbio::records
