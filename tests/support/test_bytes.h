// Bytes that tests read: each tells its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "lmdbio/base/bytes.h"

namespace lmdbio::testing {

inline std::byte byte_at(std::uint64_t offset) {
  std::uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<std::byte>(x >> 56);
}

/// `size` bytes of a file whose byte at `offset` is byte_at(offset).
inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t offset = 0) {
  std::vector<std::byte> v(size);
  for (std::size_t i = 0; i < size; ++i) v[i] = byte_at(offset + i);
  return v;
}

/// Memory at a multiple of `align`.
class AlignedBuffer {
 public:
  AlignedBuffer(std::size_t size, std::size_t align)
      : size_(size),
        data_(static_cast<std::byte*>(std::aligned_alloc(align, (size + align - 1) / align * align))) {}
  MutableBytes bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace lmdbio::testing
