// Stored chunks of any bytes: an error, or frames of exactly their size; and round trips of any bytes.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "lmdbio/cache/codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/file_image.h"

namespace {

using namespace lmdbio;
using cache::ChunkHeader;
using testing::ExactBytes;

constexpr std::size_t kAtSizes = 24, kAtChecksums = kAtSizes + 4 * cache::kMostFrames;

/// Decompresses each frame that is within the input.
void read_chunk(Bytes stored, cache::Scratch& scratch) {
  const Result<ChunkHeader> parsed = ChunkHeader::parse(stored, 0);
  if (!parsed) {
    FUZZ_REQUIRE(parsed.error().raw() == EBADMSG || parsed.error().raw() == ENOTSUP);
    return;
  }
  const ChunkHeader& h = parsed.value();
  FUZZ_REQUIRE(h.recipe().valid() && h.plain_bytes() <= cache::kMostChunkBytes);
  FUZZ_REQUIRE(h.stored_bytes() <= cache::stored_bound(h.plain_bytes()));
  for (std::size_t i = 0; i < h.frames() && h.offset(i + 1) <= stored.size(); ++i) {
    const ExactBytes frame(stored.subspan(h.offset(i), h.stored_frame_bytes(i)));
    const ExactBytes out{Bytes(std::vector<std::byte>(h.frame_bytes(i)))};
    const Status st = h.decompress(i, 1, frame.bytes(), {out.data(), out.bytes().size()}, scratch);
    FUZZ_REQUIRE(st.ok() || st.raw() == EBADMSG);
  }
}

void round_trip(Bytes plain, cache::Recipe recipe, cache::Scratch& scratch) {
  const ExactBytes stored{Bytes(std::vector<std::byte>(cache::stored_bound(plain.size())))};
  const Result<std::size_t> n =
      cache::compress_chunk(plain, recipe, 5, {stored.data(), stored.bytes().size()}, scratch);
  FUZZ_REQUIRE(bool{n} == (recipe.valid() && cache::built_in(recipe.codec)));
  if (!n) return;
  const Result<ChunkHeader> h = ChunkHeader::parse(stored.bytes().first(n.value()), 5);
  FUZZ_REQUIRE(h && h.value().plain_bytes() == plain.size() && h.value().stored_bytes() == n.value());
  const ExactBytes out{Bytes(std::vector<std::byte>(plain.size()))};
  FUZZ_REQUIRE(h.value()
                   .decompress(0, h.value().frames(),
                               stored.bytes().subspan(cache::kHeaderBytes, n.value() - cache::kHeaderBytes),
                               {out.data(), plain.size()}, scratch)
                   .ok());
  FUZZ_REQUIRE(std::equal(plain.begin(), plain.end(), out.data()));
}

}  // namespace

// A byte, then a stored chunk.  Bit 0: correct the checksum of the header; bit 1: correct those of the
// frames, so that the decompressors see the damage.  Bit 2: the rest is codec, filter, width (2 bytes) and a
// plain chunk instead.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static cache::Scratch scratch;
  if (size < 5 || size > 300'000) return 0;
  const unsigned mode = data[0];
  const Bytes rest = std::as_bytes(std::span(data + 1, size - 1));
  if ((mode & 4) != 0) {
    const cache::Recipe recipe{static_cast<cache::Codec>(data[1]),
                               {static_cast<cache::Filter::Kind>(data[2]), load<std::uint16_t>(rest, 2)}};
    round_trip(rest.subspan(4), recipe, scratch);
    return 0;
  }
  std::vector<std::byte> stored(rest.begin(), rest.end());
  if (stored.size() >= cache::kHeaderBytes) {
    std::size_t at = cache::kHeaderBytes;
    for (std::size_t i = 0; i < cache::kMostFrames && (mode & 2) != 0; ++i) {
      const std::size_t bytes = load<std::uint32_t>(stored, kAtSizes + 4 * i);
      if (bytes > stored.size() - at) break;
      testing::put(stored.data() + kAtChecksums + 8 * i,
                   std::uint64_t{XXH3_64bits(stored.data() + at, bytes)});
      at += bytes;
    }
    if ((mode & 1) != 0)
      testing::put(stored.data(),
                   std::uint64_t{XXH3_64bits_withSeed(stored.data() + 8, cache::kHeaderBytes - 8, 0)});
  }
  const ExactBytes exact{Bytes(stored)};
  read_chunk(exact.bytes(), scratch);
  return 0;
}
