// The records of the databases that jobs make (bench/scale/contents.h), without their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/scale/contents.h"
#include "bench/scale/simulation/synthetic_tree.h"

namespace lmdbio::bench {

/// The records that make_database() writes with the same arguments.
class ContentRecords final : public Records {
 public:
  ContentRecords(Content content, std::uint64_t bytes, std::uint64_t multiple);
  std::uint64_t count() const override { return count_; }
  std::size_t key(std::uint64_t ordinal, char* to) const override;
  std::uint64_t value_bytes(std::uint64_t ordinal) const override {
    return uniform() ? size_ : sizes_[ordinal];
  }
  bool uniform() const override { return sizes_.empty(); }
  void value(std::uint64_t ordinal, std::byte* to) const override;

 private:
  std::uint64_t count_ = 0;
  std::uint32_t size_ = 0;            ///< of each value
  std::vector<std::uint32_t> sizes_;  ///< if they are different
};

}  // namespace lmdbio::bench
