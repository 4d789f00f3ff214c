// A list that grows without copying.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lmdbio::records {

/// A list of simple values in chunks.  It takes little more memory than its values, also while it grows.
template <class T>
class Chunked {
 public:
  std::size_t size() const noexcept { return size_; }
  const T& operator[](std::size_t i) const noexcept { return chunks_[i / kChunk][i % kChunk]; }
  T& operator[](std::size_t i) noexcept { return chunks_[i / kChunk][i % kChunk]; }
  const T& back() const noexcept { return (*this)[size_ - 1]; }
  /// Throws bad_alloc; then nothing has changed.
  void push_back(const T& v) {
    if (size_ == chunks_.size() * kChunk) chunks_.push_back(std::make_unique_for_overwrite<T[]>(kChunk));
    (*this)[size_] = v;
    ++size_;
  }
  /// Removes the last value.
  void pop_back() noexcept { --size_; }
  std::uint64_t memory_bytes() const noexcept {
    return chunks_.size() * kChunk * sizeof(T) + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  static constexpr std::size_t kChunk = 512;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::size_t size_ = 0;
};

}  // namespace lmdbio::records
