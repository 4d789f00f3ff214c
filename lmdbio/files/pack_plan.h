// How many bytes a database takes whose records are appended in order, and which records a shard gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lmdbio/files/pack_list.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::files {

/// Sizes of a record, in bytes.
struct RecordSize {
  std::uint64_t key, value;
};

/// Follows the writers as they append records to pages.
class AppendedSize {
 public:
  explicit AppendedSize(const format::PageFormat& pages) noexcept
      : page_(pages.size), version_(pages.version) {}
  void add(const RecordSize& record) noexcept;
  /// Returns an upper limit on the bytes of the data file, for at most some thousand commits.
  std::uint64_t bytes() const noexcept;

 private:
  std::uint64_t page_;
  format::Version version_;
  std::uint64_t leaf_used_ = 0, leaves_ = 0, overflow_pages_ = 0;
  std::uint64_t branch_bytes_ = 0;  ///< of the entries for leaf pages
};

/// A part of the list: items `first` to `end` - 1.
struct Shard {
  std::size_t first, end;
  std::uint64_t bytes;  ///< see AppendedSize::bytes()
};

/// Divides the items so that no shard takes more than `most_bytes`, unless it has only one item.  0: no
/// limit. An empty list is one empty shard.  May throw bad_alloc.
std::vector<Shard> plan_shards(std::span<const PackItem> items, const format::PageFormat& pages,
                               std::uint64_t most_bytes);

}  // namespace lmdbio::files
