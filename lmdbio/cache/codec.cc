#include "lmdbio/cache/codec.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef LMDBIO_HAVE_COMPRESSION
#include <lz4.h>
#include <zstd.h>
#endif

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

namespace lmdbio::cache {
namespace {

constexpr std::uint32_t kMagic = 0x315a434c;  // "LCZ1"

struct Header {
  std::uint64_t checksum;  ///< XXH3, seeded with the tag, of the bytes after it
  std::uint32_t magic, plain_bytes;
  std::uint8_t codec, filter;
  std::uint16_t width;
  std::uint32_t zero;
  std::uint32_t stored[kMostFrames];     ///< sizes of the frames; the plain size: the frame is not compressed
  std::uint64_t checksums[kMostFrames];  ///< XXH3 of the stored frames
};
static_assert(sizeof(Header) == kHeaderBytes && std::endian::native == std::endian::little);

std::uint64_t header_checksum(const Header& h, std::uint64_t tag) noexcept {
  constexpr std::size_t kFrom = sizeof h.checksum;
  return XXH3_64bits_withSeed(reinterpret_cast<const char*>(&h) + kFrom, sizeof h - kFrom, tag);
}

/// The largest size of a compressed frame of `plain` bytes: a larger one is stored as it is.
constexpr std::size_t most_compressed(std::size_t plain) noexcept { return plain * 97 / 100; }

Status damaged() noexcept { return Status::from_errno(EBADMSG); }

}  // namespace

Scratch::Scratch() noexcept = default;
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch& Scratch::operator=(Scratch&&) noexcept = default;
Scratch::~Scratch() = default;

Status Scratch::prepare(Recipe recipe) noexcept {
  if (recipe.filter.kind == Filter::Kind::none || filtered_ != nullptr) return {};
  filtered_.reset(new (std::nothrow) std::byte[kFrameBytes]);
  return filtered_ != nullptr ? Status() : Status::from_errno(ENOMEM);
}

#ifdef LMDBIO_HAVE_COMPRESSION
bool built_in(Codec) noexcept { return true; }

void Scratch::Free::operator()(ZSTD_CCtx_s* context) const noexcept { (void)ZSTD_freeCCtx(context); }
void Scratch::Free::operator()(ZSTD_DCtx_s* context) const noexcept { (void)ZSTD_freeDCtx(context); }

/// Returns the size of the compressed frame, or 0 if it does not fit into `out`.
Result<std::size_t> Scratch::compress(Bytes frame, Recipe recipe, MutableBytes out) noexcept {
  if (recipe.filter.kind != Filter::Kind::none) {
    apply_filter(recipe.filter, frame, filtered_.get());
    frame = {filtered_.get(), frame.size()};
  }
  if (recipe.codec == Codec::lz4)
    return static_cast<std::size_t>(
        LZ4_compress_default(reinterpret_cast<const char*>(frame.data()), reinterpret_cast<char*>(out.data()),
                             static_cast<int>(frame.size()), static_cast<int>(out.size())));
  if (compressor_ == nullptr) compressor_.reset(ZSTD_createCCtx());
  if (compressor_ == nullptr) return Status::from_errno(ENOMEM);
  const std::size_t n = ZSTD_compressCCtx(compressor_.get(), out.data(), out.size(), frame.data(),
                                          frame.size(), recipe.codec == Codec::zstd1 ? 1 : 3);
  return ZSTD_isError(n) != 0 ? 0 : n;
}

Status Scratch::decompress(Bytes stored, Recipe recipe, MutableBytes out) noexcept {
  const bool shuffled = recipe.filter.kind == Filter::Kind::shuffle;
  std::byte* const to = shuffled ? filtered_.get() : out.data();
  if (recipe.codec == Codec::lz4) {
    const int n =
        LZ4_decompress_safe(reinterpret_cast<const char*>(stored.data()), reinterpret_cast<char*>(to),
                            static_cast<int>(stored.size()), static_cast<int>(out.size()));
    if (n < 0 || static_cast<std::size_t>(n) != out.size()) return damaged();
  } else {
    if (decompressor_ == nullptr) decompressor_.reset(ZSTD_createDCtx());
    if (decompressor_ == nullptr) return Status::from_errno(ENOMEM);
    // Exactly one frame of today's format: the library also accepts several frames, and formats before 1.0.
    if (stored.size() < 4 || load<std::uint32_t>(stored, 0) != ZSTD_MAGICNUMBER ||
        ZSTD_findFrameCompressedSize(stored.data(), stored.size()) != stored.size())
      return damaged();
    // An error is a number above any size.
    if (ZSTD_decompressDCtx(decompressor_.get(), to, out.size(), stored.data(), stored.size()) != out.size())
      return damaged();
  }
  if (shuffled)
    undo_shuffle(recipe.filter.width, {to, out.size()}, out.data());
  else if (recipe.filter.kind == Filter::Kind::delta)
    undo_delta(recipe.filter.width, out, filtered_.get());
  return {};
}
#else
bool built_in(Codec codec) noexcept { return codec == Codec::raw; }
void Scratch::Free::operator()(ZSTD_CCtx_s*) const noexcept {}
void Scratch::Free::operator()(ZSTD_DCtx_s*) const noexcept {}
Result<std::size_t> Scratch::compress(Bytes, Recipe, MutableBytes) noexcept { return std::size_t{0}; }
Status Scratch::decompress(Bytes, Recipe, MutableBytes) noexcept { return damaged(); }
#endif

Result<std::size_t> ChunkPacker::add(Bytes frame, MutableBytes out, Scratch& scratch) noexcept {
  if (!recipe_.valid() || frame.empty() || frame.size() > kFrameBytes || out.size() < frame.size() ||
      plain_bytes_ != frames_ * kFrameBytes || frames_ == kMostFrames)
    return Status::from_errno(EINVAL);
  if (!built_in(recipe_.codec)) return Status::from_errno(ENOTSUP);
  if (const Status ready = scratch.prepare(recipe_); !ready.ok()) return ready;
  const std::size_t most = most_compressed(frame.size());
  std::size_t n = 0;
  if (recipe_.codec != Codec::raw && most != 0) {
    const Result<std::size_t> compressed = scratch.compress(frame, recipe_, out.first(most));
    if (!compressed) return compressed.error();
    n = compressed.value();
  }
  if (n == 0) {
    n = frame.size();
    std::memcpy(out.data(), frame.data(), n);
  }
  stored_[frames_] = static_cast<std::uint32_t>(n);
  checksums_[frames_++] = XXH3_64bits(out.data(), n);
  plain_bytes_ += frame.size();
  return n;
}

std::array<std::byte, kHeaderBytes> ChunkPacker::header(std::uint64_t tag) const noexcept {
  Header h{};
  h.magic = kMagic;
  h.plain_bytes = static_cast<std::uint32_t>(plain_bytes_);
  h.codec = static_cast<std::uint8_t>(recipe_.codec);
  h.filter = static_cast<std::uint8_t>(recipe_.filter.kind);
  h.width = recipe_.filter.width;
  std::copy(stored_.begin(), stored_.end(), h.stored);
  std::copy(checksums_.begin(), checksums_.end(), h.checksums);
  h.checksum = header_checksum(h, tag);
  return std::bit_cast<std::array<std::byte, kHeaderBytes>>(h);
}

Result<std::size_t> compress_chunk(Bytes plain, Recipe recipe, std::uint64_t tag, MutableBytes out,
                                   Scratch& scratch) noexcept {
  if (!recipe.valid() || plain.size() > kMostChunkBytes || out.size() < stored_bound(plain.size()))
    return Status::from_errno(EINVAL);
  if (!built_in(recipe.codec)) return Status::from_errno(ENOTSUP);
  ChunkPacker packer(recipe);
  std::size_t at = kHeaderBytes;
  for (std::size_t i = 0; i < plain.size(); i += kFrameBytes) {
    const Bytes frame = plain.subspan(i, std::min(kFrameBytes, plain.size() - i));
    const Result<std::size_t> n = packer.add(frame, out.subspan(at, frame.size()), scratch);
    if (!n) return n.error();
    at += n.value();
  }
  const auto header = packer.header(tag);
  std::memcpy(out.data(), header.data(), header.size());
  return at;
}

Result<ChunkHeader> ChunkHeader::parse(Bytes stored, std::uint64_t tag) noexcept {
  if (stored.size() < kHeaderBytes) return damaged();
  const auto h = load<Header>(stored, 0);
  const Recipe recipe{static_cast<Codec>(h.codec), {static_cast<Filter::Kind>(h.filter), h.width}};
  if (h.checksum != header_checksum(h, tag) || h.magic != kMagic || h.zero != 0 || !recipe.valid() ||
      h.plain_bytes > kMostChunkBytes)
    return damaged();
  if (!built_in(recipe.codec)) return Status::from_errno(ENOTSUP);
  ChunkHeader out;
  out.recipe_ = recipe;
  out.plain_bytes_ = h.plain_bytes;
  std::uint32_t at = kHeaderBytes;
  for (std::size_t i = 0; i < kMostFrames; ++i) {
    const std::size_t plain = i < out.frames() ? out.frame_bytes(i) : 0;
    const bool compressed =
        recipe.codec != Codec::raw && h.stored[i] > 0 && h.stored[i] <= most_compressed(plain);
    if (h.stored[i] != plain && !compressed) return damaged();
    out.offsets_[i] = at;
    out.checksums_[i] = h.checksums[i];
    at += h.stored[i];
  }
  out.offsets_[kMostFrames] = at;
  return out;
}

bool ChunkHeader::is_frame(std::size_t i, Bytes stored) const noexcept {
  return i < frames() && stored.size() == stored_frame_bytes(i) &&
         XXH3_64bits(stored.data(), stored.size()) == checksums_[i];
}

Status ChunkHeader::decompress(std::size_t first, std::size_t count, Bytes stored, MutableBytes out,
                               Scratch& scratch) const noexcept {
  if (first > frames() || count > frames() - first ||
      stored.size() != offset(first + count) - offset(first) ||
      out.size() != std::min(count * kFrameBytes,
                             plain_bytes_ - std::min<std::size_t>(first * kFrameBytes, plain_bytes_)))
    return Status::from_errno(EINVAL);
  if (const Status ready = scratch.prepare(recipe_); !ready.ok()) return ready;
  for (std::size_t i = first; i < first + count; ++i) {
    const Bytes from = stored.subspan(offset(i) - offset(first), stored_frame_bytes(i));
    const MutableBytes to = out.subspan((i - first) * kFrameBytes, frame_bytes(i));
    if (!is_frame(i, from)) return damaged();
    if (from.size() == to.size()) {
      std::memcpy(to.data(), from.data(), from.size());
    } else if (const Status st = scratch.decompress(from, recipe_, to); !st.ok()) {
      return st;
    }
  }
  return {};
}

}  // namespace lmdbio::cache
