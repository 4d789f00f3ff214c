// A range of a compressed chunk as it travels: from an image to the server of its node, to other nodes, and
// to programs, which decompress it.
//
// No I/O, no threads.  The bytes are the number that the header of the chunk has to have and the range; the
// header; and the frames with the range.  All of them are validated before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/cache/codec.h"

namespace lmdbio::cache {

/// A view: the bytes must outlive it.  One thread at a time may use a Scratch.
class PackedRange {
 public:
  /// Size of what precedes the frames, in bytes.
  static constexpr std::size_t kHeadBytes = 16 + kHeaderBytes;

  /// Starts the bytes of a range of `bytes` bytes from `at` on: the caller appends the frames.  `header`,
  /// `stored`: of the chunk, which has this tag.  May throw bad_alloc.
  static std::vector<std::byte> start(std::uint64_t tag, Bytes stored, std::size_t at, std::size_t bytes);
  /// Errors: EBADMSG (damaged, of the wrong size), ENOTSUP (the codec is not in this build).
  static Result<PackedRange> parse(Bytes packed) noexcept;

  /// Offset in the chunk, and length of the range, in bytes.  The range may reach beyond the end of the
  /// chunk.
  std::size_t at() const noexcept { return at_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the first frame with bytes of a range, and how many there are.
  static std::pair<std::size_t, std::size_t> frames_of(const ChunkHeader& header, std::size_t at,
                                                       std::size_t bytes) noexcept;
  /// Returns whether this range has all bytes of that one.
  bool covers(std::size_t at, std::size_t bytes) const noexcept {
    return at >= at_ && bytes <= bytes_ && at - at_ <= bytes_ - bytes;
  }
  /// Returns the size of a range that this one covers, as part() makes it.
  std::size_t size_of(std::size_t at, std::size_t bytes) const noexcept;
  /// Returns a range that this one covers.  May throw bad_alloc.
  std::vector<std::byte> part(std::size_t at, std::size_t bytes) const;
  /// Returns whether the checksums of all frames are right.
  bool verify() const noexcept;
  /// Decompresses to.size() bytes from `at` on, which the range covers.  Behind the end of the chunk there
  /// are zeros.  Errors: EBADMSG, ENOMEM; `to` is then undefined.
  Status unpack(std::size_t at, MutableBytes to, Scratch& scratch) const noexcept;

 private:
  explicit PackedRange(const ChunkHeader& header) noexcept : header_(header) {}
  Bytes stored(std::size_t first, std::size_t count) const noexcept;

  ChunkHeader header_;
  Bytes packed_;
  std::size_t at_ = 0, bytes_ = 0, first_ = 0, count_ = 0;
};

}  // namespace lmdbio::cache
