// The keys of the samples of a followed database.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/base/bytes.h"

namespace lmdbio::records {

/// A record as it is known between snapshots: its key, and in a database with duplicates its value.
struct SampleKey {
  Bytes key, value;
  friend bool operator==(const SampleKey& a, const SampleKey& b) noexcept;
};

/// Keys by the number of their sample.  Compact: 18 bytes for each sample and those of the key.  One thread.
/// Functions throw bad_alloc.
class SampleKeys {
 public:
  /// Adds a sample.  Numbers must ascend.
  void add(std::uint64_t number, const SampleKey& key);
  /// Returns the key of a sample, valid until the next call that is not const.  The sample must be known.
  SampleKey get(std::uint64_t number) const noexcept;
  bool knows(std::uint64_t number) const noexcept;
  std::uint64_t size() const noexcept { return numbers_.size(); }
  /// Returns the memory that the keys take, in bytes.
  std::uint64_t memory_bytes() const noexcept;
  /// Calls use(number, key) for each sample, in ascending order.
  template <class Use>
  void for_each(Use&& use) const {
    for (std::size_t i = 0; i < numbers_.size(); ++i) use(numbers_[i], at(i));
  }
  /// Forgets all samples that are not in `live`, which must be sorted.
  void keep(std::span<const std::uint64_t> live);

 private:
  SampleKey at(std::size_t i) const noexcept;

  std::vector<std::uint64_t> numbers_;
  std::vector<std::uint64_t> ends_;  ///< in bytes_: the end of each sample
  std::string bytes_;                ///< for each sample: size of the key (2 bytes), key, value
};

}  // namespace lmdbio::records
