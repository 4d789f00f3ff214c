// The format of a compressed chunk: a header of fixed size, and frames that are decompressed one by one.
//
// No I/O, no threads.  docs/format.md describes the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/cache/filter.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace lmdbio::cache {

enum class Codec : std::uint8_t { raw, lz4, zstd1, zstd3 };
inline constexpr unsigned kCodecs = 4;

/// Returns whether this build contains the codec.  It always contains raw.
bool built_in(Codec codec) noexcept;

/// How the frames of a chunk are stored.
struct Recipe {
  Codec codec = Codec::raw;
  Filter filter;  ///< with raw: none

  constexpr bool valid() const noexcept {
    return static_cast<unsigned>(codec) < kCodecs && filter.valid() &&
           (codec != Codec::raw || filter.kind == Filter::Kind::none);
  }
  friend constexpr bool operator==(Recipe, Recipe) noexcept = default;
};

/// Bytes of the chunk in one frame.  The last frame may be shorter.
inline constexpr std::size_t kFrameBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMostChunkBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMostFrames = kMostChunkBytes / kFrameBytes;
inline constexpr std::size_t kHeaderBytes = 24 + kMostFrames * 12;

/// The largest size of a stored chunk of `plain` bytes: that of a chunk that cannot be compressed.
constexpr std::size_t stored_bound(std::size_t plain) noexcept { return kHeaderBytes + plain; }

/// Memory that compression and decompression need, allocated at first use and reused: up to 1 MiB after
/// compression, else up to 0.3 MiB.  One thread at a time.
class Scratch {
 public:
  Scratch() noexcept;
  Scratch(Scratch&&) noexcept;
  Scratch& operator=(Scratch&&) noexcept;
  ~Scratch();

 private:
  friend class ChunkHeader;
  friend class ChunkPacker;
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const noexcept;
    void operator()(ZSTD_DCtx_s* context) const noexcept;
  };
  /// Allocates what `recipe` needs, besides the contexts.  Returns ENOMEM.
  Status prepare(Recipe recipe) noexcept;
  Result<std::size_t> compress(Bytes frame, Recipe recipe, MutableBytes out) noexcept;
  Status decompress(Bytes stored, Recipe recipe, MutableBytes out) noexcept;

  std::unique_ptr<std::byte[]> filtered_;  ///< kFrameBytes
  std::unique_ptr<ZSTD_CCtx_s, Free> compressor_;
  std::unique_ptr<ZSTD_DCtx_s, Free> decompressor_;
};

/// Makes a stored chunk frame by frame.  One thread at a time.
class ChunkPacker {
 public:
  explicit ChunkPacker(Recipe recipe) noexcept : recipe_(recipe) {}

  /// Writes the next stored frame to `out`, at least frame.size() bytes, and returns its size.  `frame`:
  /// kFrameBytes; the last frame of a chunk may be shorter.  The frame is stored as it is if compression
  /// saves less than 3 %.  Errors: EINVAL (an argument), ENOTSUP (the codec is not in this build), ENOMEM.
  Result<std::size_t> add(Bytes frame, MutableBytes out, Scratch& scratch) noexcept;
  /// Returns the header, which comes before the frames.  `tag`: any number; ChunkHeader::parse() refuses the
  /// header of a chunk with another one.
  std::array<std::byte, kHeaderBytes> header(std::uint64_t tag) const noexcept;

 private:
  Recipe recipe_;
  std::size_t frames_ = 0, plain_bytes_ = 0;
  std::array<std::uint32_t, kMostFrames> stored_{};
  std::array<std::uint64_t, kMostFrames> checksums_{};
};

/// Writes `plain`, at most kMostChunkBytes, to `out`, at least stored_bound(plain.size()) bytes.  Returns how
/// many bytes it wrote: the header and the frames of a ChunkPacker.  Errors: as ChunkPacker::add().
Result<std::size_t> compress_chunk(Bytes plain, Recipe recipe, std::uint64_t tag, MutableBytes out,
                                   Scratch& scratch) noexcept;

/// The header of a stored chunk, validated: all offsets and sizes are within their bounds, whatever the bytes
/// were.  Several threads may use one header, each with a Scratch of its own.
class ChunkHeader {
 public:
  /// `stored`: the first kHeaderBytes of the stored chunk, or more of it.  Errors: EBADMSG (damaged, or not
  /// the header of a chunk with this tag), ENOTSUP (the codec is not in this build).
  static Result<ChunkHeader> parse(Bytes stored, std::uint64_t tag) noexcept;

  Recipe recipe() const noexcept { return recipe_; }
  std::size_t plain_bytes() const noexcept { return plain_bytes_; }
  /// Size of header and frames, at most stored_bound(plain_bytes()).
  std::size_t stored_bytes() const noexcept { return offset(frames()); }

  /// Frame i has the bytes of the chunk from i x kFrameBytes on.
  std::size_t frames() const noexcept { return (plain_bytes_ + kFrameBytes - 1) / kFrameBytes; }
  std::size_t frame_bytes(std::size_t i) const noexcept {
    return i + 1 < frames() ? kFrameBytes : plain_bytes_ - i * kFrameBytes;
  }
  /// Offset of stored frame i from the start of the header; with i = frames(), the end of the stored chunk.
  std::size_t offset(std::size_t i) const noexcept { return offsets_[i]; }
  std::size_t stored_frame_bytes(std::size_t i) const noexcept { return offsets_[i + 1] - offsets_[i]; }

  /// Returns whether these are the bytes of stored frame i, according to its checksum.
  bool is_frame(std::size_t i, Bytes stored) const noexcept;
  /// Decompresses `count` frames from frame `first` on.  `stored`: exactly the bytes from offset(first) to
  /// offset(first + count).  `out`: exactly the plain bytes of these frames.  Errors: EBADMSG (damaged),
  /// EINVAL (an argument), ENOMEM; the contents of `out` are then undefined.
  Status decompress(std::size_t first, std::size_t count, Bytes stored, MutableBytes out,
                    Scratch& scratch) const noexcept;

 private:
  ChunkHeader() noexcept = default;

  Recipe recipe_;
  std::uint32_t plain_bytes_ = 0;
  std::uint32_t offsets_[kMostFrames + 1];
  std::uint64_t checksums_[kMostFrames];
};

}  // namespace lmdbio::cache
