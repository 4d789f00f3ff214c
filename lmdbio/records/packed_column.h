// A column of numbers that grow about evenly, packed: what the record index is made of.
//
// Frames of kFrame values: a straight line (base, stride) and each value's distance from it in as few bits as
// the frame's largest needs.  A value costs 24 / kFrame bytes and these bits; where values lie on the line,
// no bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lmdbio/base/bytes.h"

namespace lmdbio::records {

class PackedColumn {
 public:
  static constexpr std::size_t kFrame = 128;
  /// Values are below 2^kBits.
  static constexpr unsigned kBits = 56;

  /// Value i of the frame is base + i * stride + distance i, modulo 2^64.
  struct Frame {
    std::uint64_t base, stride;
    std::uint64_t place;  ///< of distance 0: its bit in the distances, times 64; plus the bits of each
  };
  static_assert(sizeof(Frame) == 24);

  PackedColumn() = default;
  PackedColumn(PackedColumn&&) = default;
  PackedColumn& operator=(PackedColumn&&) = default;
  PackedColumn(const PackedColumn&) = delete;
  PackedColumn& operator=(const PackedColumn&) = delete;
  ~PackedColumn() = default;

  /// Throw bad_alloc.  No value is read before finish(), none is appended after it.
  void append(std::uint64_t value);
  void finish();

  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t operator[](std::uint64_t i) const noexcept {
    const Frame& f = frames_at_[i / kFrame];
    const std::uint64_t in = i % kFrame;
    const unsigned width = f.place & 63;
    const std::uint64_t bit = (f.place >> 6) + in * width;
    const std::uint64_t word = load<std::uint64_t>(distances_at_.data() + (bit >> 3)) >> (bit & 7);
    return f.base + in * f.stride + (word & ((std::uint64_t{1} << width) - 1));
  }
  /// That it owns.
  std::size_t memory_bytes() const noexcept {
    return frames_.capacity() * sizeof(Frame) + distances_.capacity();
  }

  /// As they are kept in files: frames, and distances with kSlack bytes behind them.
  static constexpr std::size_t kSlack = 8;
  Bytes frame_bytes() const noexcept { return std::as_bytes(frames_at_); }
  Bytes distance_bytes() const noexcept { return distances_at_; }
  /// Made of such bytes, copied: false if they are no column of `size` values.  Throws bad_alloc.
  bool adopt(std::uint64_t size, Bytes frames, Bytes distances);
  /// The same without a copy: the bytes outlive it, and `frames` is aligned as a Frame.
  bool view(std::uint64_t size, Bytes frames, Bytes distances) noexcept;

 private:
  void pack(std::span<const std::uint64_t> values);

  std::uint64_t size_ = 0;
  std::span<const Frame> frames_at_;  ///< frames_, or somebody else's
  Bytes distances_at_;                ///< likewise
  std::vector<Frame> frames_;
  std::vector<std::byte> distances_;
  std::uint64_t bits_ = 0;              ///< of distances_ that are in use
  std::vector<std::uint64_t> pending_;  ///< of the last frame
};

}  // namespace lmdbio::records
