// A record index that consists of parts, which several processes build.  Converts a part to bytes, and
// returns locations from all parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/records/leaf_lookup.h"
#include "lmdbio/records/record_index.h"
#include "lmdbio/records/record_locations.h"

namespace lmdbio::records {

/// The sizes of a part's columns.  The structure contains only numbers, so that it can be sent to other
/// processes.
struct IndexPartSizes {
  struct Column {
    std::uint64_t values = 0, frame_bytes = 0, distance_bytes = 0;
  };
  IndexTotals totals;
  std::array<Column, 6> columns{};  ///< leaf, first, start, where, run_page, run_bytes

  /// Returns the bytes of all columns, a multiple of 8.  Returns UINT64_MAX if a size is too large.
  std::uint64_t bytes() const noexcept;
};

IndexPartSizes sizes_of(const RecordIndex& index) noexcept;
/// Writes the columns of `index` to `to`.  `to` has room for sizes_of(index).bytes() bytes.
void write_part(const RecordIndex& index, std::span<std::byte> to) noexcept;
/// Sets `out` to an index that uses `bytes` in place.  `bytes` is aligned to 8 and outlives the index.
/// Returns false if `bytes` does not match `sizes`.  Does not check the numbers in `bytes`, since each use of
/// a location checks that location.
bool view_part(const IndexPartSizes& sizes, Bytes bytes, RecordIndex& out) noexcept;
/// Returns an index that uses the columns of `index`.  `index` must outlive it.
RecordIndex view_of(const RecordIndex& index) noexcept;

/// Returns locations from an index that consists of parts.  One call of set() provides the parts.
class IndexParts final : public RecordLocations {
 public:
  /// `records`: number of records of all parts together.
  explicit IndexParts(std::uint64_t records) noexcept : records_(records) {}
  IndexParts(const IndexParts&) = delete;
  IndexParts& operator=(const IndexParts&) = delete;
  ~IndexParts() override = default;

  /// Sets the parts, in tree order.  Together they have records() records.  `keep` owns the bytes that the
  /// parts refer to.  Until set() returns, only records() and await() may be called.  The caller must
  /// synchronize this call with the threads that use the parts.  May throw bad_alloc.
  void set(std::vector<RecordIndex> parts, std::shared_ptr<const void> keep);

  std::uint64_t records() const noexcept override { return records_; }
  /// Does not wait.  Returns EAGAIN until set() has been called.
  Status await(const std::atomic<bool>&, std::string& why) const override;
  void locations(std::uint64_t first, std::span<RecordLocation> out) const noexcept override;
  Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                    std::uint64_t& out) const override;

 private:
  const std::uint64_t records_;
  std::shared_ptr<const void> keep_;
  std::vector<RecordIndex> parts_;     ///< parts that have records
  std::vector<std::uint64_t> firsts_;  ///< ordinal of each part's first record
  mutable std::once_flag once_;
  mutable std::vector<LeafLookup> lookups_;  ///< one per part
};

}  // namespace lmdbio::records
