// A record index in parts, each made by somebody else: the bytes of a part, and places out of all parts.
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
#include "lmdbio/records/places.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// What describes the bytes of a part.  Plain numbers: it can be sent to other processes.
struct IndexPartSizes {
  struct Column {
    std::uint64_t values = 0, frame_bytes = 0, distance_bytes = 0;
  };
  IndexTotals totals;
  std::array<Column, 6> columns{};  ///< leaf, first, start, where, run_page, run_bytes

  /// Of all columns, a multiple of 8.  UINT64_MAX: too many.
  std::uint64_t bytes() const noexcept;
};

IndexPartSizes sizes_of(const RecordIndex& index) noexcept;
/// `to`: sizes_of(index).bytes() bytes.
void write_part(const RecordIndex& index, std::span<std::byte> to) noexcept;
/// An index over `bytes`, which outlive it and are aligned to 8.  False: they are not what `sizes` says.
/// Whether the numbers in them are sensible is not checked, as for any index: each use of a place is.
bool view_part(const IndexPartSizes& sizes, Bytes bytes, RecordIndex& out) noexcept;
/// An index over the columns of `index`, which outlives it.
RecordIndex view_of(const RecordIndex& index) noexcept;

/// Places of an index that is filled in later, once.
class IndexParts final : public Places {
 public:
  /// `records`: of all parts.
  explicit IndexParts(std::uint64_t records) noexcept : records_(records) {}
  IndexParts(const IndexParts&) = delete;
  IndexParts& operator=(const IndexParts&) = delete;
  ~IndexParts() override = default;

  /// Parts in the order of the tree, with records() records together.  `keep` has the bytes that they are
  /// views of.  Before it nothing but records() can be asked; who asks has to know that it was called.  May
  /// throw bad_alloc.
  void set(std::vector<RecordIndex> parts, std::shared_ptr<const void> keep);

  std::uint64_t records() const noexcept override { return records_; }
  /// EAGAIN, at once: set() was not called.
  Status await(const std::atomic<bool>&, std::string& why) const override;
  void places(std::uint64_t first, std::span<RecordPlace> out) const noexcept override;
  Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                    std::uint64_t& out) const override;

 private:
  const std::uint64_t records_;
  std::shared_ptr<const void> keep_;
  std::vector<RecordIndex> parts_;     ///< those with records
  std::vector<std::uint64_t> firsts_;  ///< ordinal of the first record of each
  mutable std::once_flag once_;
  mutable std::vector<LeafLookup> lookups_;  ///< of each
};

}  // namespace lmdbio::records
