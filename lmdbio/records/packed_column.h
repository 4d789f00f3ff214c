// A packed column of numbers that grow about evenly.  The record index consists of such columns.
//
// A column consists of frames of kFrame values.  A frame stores a straight line (base, stride), and each
// value's distance from this line.  All distances of a frame have the same number of bits.  This number is as
// small as the largest distance allows, and 0 if all values are on the line.  A value costs these bits, and
// 24 / kFrame bytes of the frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lmdbio/base/bytes.h"

namespace lmdbio::records {

/// A packed column.  Call append() for each value, then finish(), then read.  Any thread may read a
/// finished column.
class PackedColumn {
 public:
  static constexpr std::size_t kFrame = 128;
  /// Values are less than 2^kBits.
  static constexpr unsigned kBits = 56;

  /// Value i of the frame is base + i * stride + distance i, modulo 2^64.
  struct Frame {
    std::uint64_t base, stride;
    std::uint64_t place;  ///< 64 * (first bit of distance 0) + (bits per distance)
  };
  static_assert(sizeof(Frame) == 24);

  PackedColumn() = default;
  PackedColumn(PackedColumn&&) = default;
  PackedColumn& operator=(PackedColumn&&) = default;
  PackedColumn(const PackedColumn&) = delete;
  PackedColumn& operator=(const PackedColumn&) = delete;
  ~PackedColumn() = default;

  /// append() appends a value, and finish() ends the column.  Read no value before finish(), and append no
  /// value after it.  May throw bad_alloc.
  void append(std::uint64_t value);
  void finish();

  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t operator[](std::uint64_t i) const noexcept {
    const Frame& f = frames_at_[i / kFrame];
    const std::uint64_t in = i % kFrame;
    const unsigned width = f.place & 63;
    if (width == 0) return f.base + in * f.stride;  // saves an access to other memory
    const std::uint64_t bit = (f.place >> 6) + in * width;
    const std::uint64_t word = load<std::uint64_t>(distances_at_.data() + (bit >> 3)) >> (bit & 7);
    return f.base + in * f.stride + (word & ((std::uint64_t{1} << width) - 1));
  }
  /// Returns the bytes of memory that the column owns.
  std::size_t memory_bytes() const noexcept {
    return frames_.capacity() * sizeof(Frame) + distances_.capacity();
  }

  /// The column's bytes as files store them: the frames, and the distances followed by kSlack bytes.
  static constexpr std::size_t kSlack = 8;
  Bytes frame_bytes() const noexcept { return std::as_bytes(frames_at_); }
  Bytes distance_bytes() const noexcept { return distances_at_; }
  /// Replaces this column by a column of `size` values that these bytes store.  Copies the bytes.  Returns
  /// false if they do not form a valid column.  May throw bad_alloc.
  bool adopt(std::uint64_t size, Bytes frames, Bytes distances);
  /// Does the same without a copy.  The bytes must outlive the column, and `frames` must have the alignment
  /// of Frame.
  bool view(std::uint64_t size, Bytes frames, Bytes distances) noexcept;

 private:
  void pack(std::span<const std::uint64_t> values);

  std::uint64_t size_ = 0;
  std::span<const Frame> frames_at_;  ///< view of frames_, or of memory with another owner
  Bytes distances_at_;                ///< view of distances_, or of memory with another owner
  std::vector<Frame> frames_;
  std::vector<std::byte> distances_;
  std::uint64_t bits_ = 0;              ///< bits of distances_ in use
  std::vector<std::uint64_t> pending_;  ///< values of the last, incomplete frame
};

}  // namespace lmdbio::records
