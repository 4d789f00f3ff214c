// Stored chunks: every recipe gives back the bytes, and damage is an error.
#include <gtest/gtest.h>

#include "lmdbio/cache/codec.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "tests/support/chunk_data.h"
#include "tests/support/file_image.h"
#include "tests/support/rng.h"

namespace lmdbio::cache {
namespace {

using Data = std::vector<std::byte>;
using Kind = Filter::Kind;
constexpr std::uint64_t kTag = 77;

std::vector<Recipe> all_recipes() {
  std::vector<Filter> filters = {{}};
  for (const std::uint16_t width : std::initializer_list<std::uint16_t>{2, 4, 8})
    filters.push_back({Kind::shuffle, width});
  for (const std::uint16_t width :
       std::initializer_list<std::uint16_t>{1, 2, 3, 5, 16, 31, 32, 33, 256, 1000, 4095, 4096})
    filters.push_back({Kind::delta, width});
  std::vector<Recipe> out = {{}};
  for (const Codec codec : {Codec::lz4, Codec::zstd1, Codec::zstd3})
    for (const Filter filter : filters)
      if (built_in(codec)) out.push_back({codec, filter});
  return out;
}

/// The recipe that the tests of damage use: frames of it are compressed, if this build compresses.
Recipe packing(Filter filter = {}) {
  return built_in(Codec::zstd1) ? Recipe{Codec::zstd1, filter} : Recipe{};
}

Data stored_chunk(Bytes plain, Recipe recipe, Scratch& scratch) {
  Data out(stored_bound(plain.size()));
  const Result<std::size_t> n = compress_chunk(plain, recipe, kTag, out, scratch);
  EXPECT_TRUE(n);
  out.resize(n ? n.value() : 0);
  return out;
}

/// Decompresses some frames, from a block and into a block of exactly their sizes.
Status unpacked(const ChunkHeader& h, std::size_t first, std::size_t count, Bytes stored, Data& out,
                Scratch& scratch) {
  const std::size_t from = h.offset(first);
  const testing::ExactBytes frames(stored.subspan(from, h.offset(first + count) - from));
  out.assign(std::min(count * kFrameBytes, h.plain_bytes() - first * kFrameBytes), std::byte{0xa5});
  const testing::ExactBytes exact{Bytes(out)};
  const Status st = h.decompress(first, count, frames.bytes(), {exact.data(), out.size()}, scratch);
  out.assign(exact.data(), exact.data() + out.size());
  return st;
}

/// A header whose fields are changed, with a correct checksum.
template <class T>
Data forged(Data stored, std::size_t at, T value) {
  std::memcpy(stored.data() + at, &value, sizeof value);
  const std::uint64_t sum = XXH3_64bits_withSeed(stored.data() + 8, kHeaderBytes - 8, kTag);
  std::memcpy(stored.data(), &sum, sizeof sum);
  return stored;
}
constexpr std::size_t kAtPlain = 12, kAtCodec = 16, kAtFilter = 17, kAtWidth = 18, kAtZero = 20,
                      kAtSizes = 24, kAtChecksums = kAtSizes + 4 * kMostFrames;

TEST(Codec, EveryRecipeGivesBackTheBytes) {
  Scratch scratch;
  for (const test::ChunkData kind : test::kAllChunkData)
    for (const std::size_t size :
         {0u, 1u, 2u, 7u, 9u, 33u, 34u, 300u, 4097u, 65535u, 65536u, 65537u, 140'003u}) {
      const Data plain = test::chunk_data(kind, size, size);
      for (const Recipe recipe : all_recipes()) {
        const Data stored = stored_chunk(plain, recipe, scratch);
        const Result<ChunkHeader> h = ChunkHeader::parse(stored, kTag);
        ASSERT_TRUE(h);
        EXPECT_EQ(h.value().recipe(), recipe);
        ASSERT_EQ(h.value().plain_bytes(), size);
        ASSERT_EQ(h.value().stored_bytes(), stored.size());
        Data out;
        ASSERT_TRUE(unpacked(h.value(), 0, h.value().frames(), stored, out, scratch).ok());
        ASSERT_TRUE(out == plain) << static_cast<int>(recipe.codec) << ' ' << recipe.filter.width << ' '
                                  << size;
      }
    }
}

TEST(Codec, FramesAreReadAlone) {
  Scratch writer;
  const Data plain = test::chunk_data(test::ChunkData::counts, kMostChunkBytes, 3);
  for (const Filter filter : {Filter{}, Filter{Kind::shuffle, 2}, Filter{Kind::delta, 2}}) {
    const Data stored = stored_chunk(plain, packing(filter), writer);
    const Result<ChunkHeader> h = ChunkHeader::parse(Bytes(stored).first(kHeaderBytes), kTag);
    ASSERT_TRUE(h);
    ASSERT_EQ(h.value().frames(), kMostFrames);
    if (built_in(Codec::zstd1)) {
      EXPECT_LT(stored.size(), plain.size() / 2);
    }
    for (std::size_t first = 0; first < kMostFrames; first += 7) {
      Scratch scratch;  // a reader that has compressed nothing
      const std::size_t count = std::min<std::size_t>(1 + first % 3, kMostFrames - first);
      Data out;
      ASSERT_TRUE(unpacked(h.value(), first, count, stored, out, scratch).ok());
      EXPECT_TRUE(std::equal(out.begin(), out.end(), plain.begin() + static_cast<long>(first * kFrameBytes)));
    }
  }
}

TEST(Codec, AFrameThatSavesLittleIsStoredAsItIs) {
  Scratch scratch;
  Data plain = test::chunk_data(test::ChunkData::noise, 3 * kFrameBytes, 5);
  for (const Recipe recipe : all_recipes()) {
    const Data stored = stored_chunk(plain, recipe, scratch);
    EXPECT_EQ(stored.size(), stored_bound(plain.size()));
    EXPECT_TRUE(std::equal(plain.begin(), plain.end(), stored.begin() + kHeaderBytes));
  }
  // A run of zeros saves 2 % of a frame, then 4 %.
  for (const unsigned percent : {2u, 4u}) {
    std::fill_n(plain.begin(), kFrameBytes * percent / 100, std::byte{});
    const Data stored = stored_chunk(plain, packing(), scratch);
    const bool saves = built_in(Codec::zstd1) && percent == 4;
    EXPECT_EQ(stored.size() < stored_bound(plain.size()), saves);
  }
}

TEST(Codec, RefusesWrongArguments) {
  Scratch scratch;
  const Data plain(100), large(kMostChunkBytes + 1);
  Data out(stored_bound(large.size()));
  const auto error = [&](Bytes data, Recipe recipe, std::size_t room) {
    const Result<std::size_t> n = compress_chunk(data, recipe, 0, MutableBytes(out).first(room), scratch);
    return n ? 0 : n.error().raw();
  };
  EXPECT_EQ(error(plain, {}, stored_bound(100)), 0);
  EXPECT_EQ(error(plain, {}, stored_bound(100) - 1), EINVAL);
  EXPECT_EQ(error(large, {}, out.size()), EINVAL);
  EXPECT_EQ(error(plain, {Codec::raw, {Kind::delta, 1}}, out.size()), EINVAL);
  EXPECT_EQ(error(plain, {static_cast<Codec>(4), {}}, out.size()), EINVAL);
  for (const Filter filter : {Filter{Kind::none, 1}, Filter{Kind::shuffle, 3}, Filter{Kind::delta, 0},
                              Filter{Kind::delta, 4097}, Filter{static_cast<Kind>(3), 1}})
    EXPECT_EQ(error(plain, {Codec::lz4, filter}, out.size()), EINVAL);
  EXPECT_EQ(error(plain, {Codec::lz4, {}}, out.size()), built_in(Codec::lz4) ? 0 : ENOTSUP);

  const Data stored = stored_chunk(plain, {}, scratch);
  const ChunkHeader h = ChunkHeader::parse(stored, kTag).value();
  Data to(100);
  const Bytes frames = Bytes(stored).subspan(kHeaderBytes);
  EXPECT_TRUE(h.decompress(0, 1, frames, to, scratch).ok());
  EXPECT_TRUE(h.decompress(1, 0, {}, {}, scratch).ok());
  EXPECT_EQ(h.decompress(0, 1, frames.first(99), to, scratch).raw(), EINVAL);
  EXPECT_EQ(h.decompress(0, 1, frames, MutableBytes(to).first(99), scratch).raw(), EINVAL);
  EXPECT_EQ(h.decompress(0, 2, frames, to, scratch).raw(), EINVAL);
  EXPECT_EQ(h.decompress(2, 0, {}, {}, scratch).raw(), EINVAL);
  EXPECT_EQ(h.decompress(1, ~std::size_t{0}, {}, {}, scratch).raw(), EINVAL);
}

TEST(Codec, EachDamagedByteOfTheHeaderIsSeen) {
  Scratch scratch;
  const Data stored = stored_chunk(test::chunk_data(test::ChunkData::counts, 100'000, 1), packing(), scratch);
  ASSERT_TRUE(ChunkHeader::parse(stored, kTag));
  EXPECT_EQ(ChunkHeader::parse(stored, kTag + 1).error().raw(), EBADMSG) << "the header of another chunk";
  EXPECT_EQ(ChunkHeader::parse(Bytes(stored).first(kHeaderBytes - 1), kTag).error().raw(), EBADMSG);
  for (std::size_t at = 0; at < kHeaderBytes; ++at)
    for (unsigned changed = 1; changed < 256; changed += changed < 128 ? changed : 127) {
      Data bad(stored.begin(), stored.begin() + kHeaderBytes);
      bad[at] ^= static_cast<std::byte>(changed);
      ASSERT_EQ(ChunkHeader::parse(bad, kTag).error().raw(), EBADMSG) << at;
    }
}

TEST(Codec, ForgedHeadersAreRefused) {
  Scratch scratch;
  const Recipe recipe = packing();
  const Data good = stored_chunk(test::chunk_data(test::ChunkData::counts, 100'000, 1), recipe, scratch);
  ASSERT_TRUE(ChunkHeader::parse(forged(good, kAtZero, 0), kTag));
  const auto refused = [&](std::size_t at, auto value) {
    const Result<ChunkHeader> h = ChunkHeader::parse(forged(good, at, value), kTag);
    return !h && h.error().raw() == EBADMSG;
  };
  using U8 = std::uint8_t;
  using U16 = std::uint16_t;
  EXPECT_TRUE(refused(8, 0));
  EXPECT_TRUE(refused(kAtPlain, ~0u));
  EXPECT_TRUE(refused(kAtPlain, static_cast<unsigned>(kMostChunkBytes + 1)));
  EXPECT_TRUE(refused(kAtPlain, 65536)) << "a frame that the chunk does not have";
  EXPECT_TRUE(refused(kAtPlain, 131073)) << "a frame that is not stored";
  EXPECT_TRUE(refused(kAtCodec, U8{4}));
  EXPECT_TRUE(refused(kAtFilter, U8{3}));
  EXPECT_TRUE(refused(kAtWidth, U16{1}));
  EXPECT_TRUE(refused(kAtZero, 1));
  EXPECT_TRUE(refused(kAtSizes, 0));
  EXPECT_TRUE(refused(kAtSizes, ~0u));
  EXPECT_TRUE(refused(kAtSizes, 65537));
  EXPECT_TRUE(refused(kAtSizes, 65535)) << "saves less than 3 %";
  EXPECT_TRUE(refused(kAtSizes + 8, 1));
  EXPECT_EQ(refused(kAtCodec, U8{0}), recipe.codec != Codec::raw);
}

/// Frames whose checksum is right, but which no codec has written.
TEST(Codec, ForgedFramesAreErrorsOrFillTheBufferExactly) {
  test::Rng rng(4);
  Scratch scratch;
  const Data plain = test::chunk_data(test::ChunkData::counts, 1000, 1);
  for (const Recipe recipe : all_recipes()) {
    const Data good = stored_chunk(plain, recipe, scratch);
    const std::size_t frame = good.size() - kHeaderBytes;
    for (int round = 0; round < 200; ++round) {
      Data bad = good;
      for (unsigned n = rng.between(1, 4); n > 0; --n)
        bad[kHeaderBytes + rng.below(frame)] = static_cast<std::byte>(rng.next());
      bad = forged(bad, kAtChecksums, std::uint64_t{XXH3_64bits(bad.data() + kHeaderBytes, frame)});
      const ChunkHeader h = ChunkHeader::parse(bad, kTag).value();
      Data out;
      const Status st = unpacked(h, 0, 1, bad, out, scratch);
      ASSERT_TRUE(st.ok() || st.raw() == EBADMSG);
    }
  }
}

TEST(Codec, FlippedBitsAreNeverWrongBytes) {
  test::Rng rng(2);
  Scratch scratch;
  // A frame that is compressed, and a short one that is not.
  Data plain = test::chunk_data(test::ChunkData::counts, kFrameBytes, 1);
  const Data noise = test::chunk_data(test::ChunkData::noise, 3000, 1);
  plain.insert(plain.end(), noise.begin(), noise.end());
  unsigned flips = 0, in_frames = 0;
  for (const Recipe recipe : all_recipes()) {
    const Data good = stored_chunk(plain, recipe, scratch);
    for (int round = 0; round < 20'000 / 40 + 1; ++round, ++flips) {
      Data bad = good;
      const std::size_t at = round % 16 == 0 ? rng.below(kHeaderBytes) : rng.below(bad.size());
      bad[at] ^= std::byte{1} << rng.below(8);
      const Result<ChunkHeader> h = ChunkHeader::parse(bad, kTag);
      ASSERT_EQ(bool{h}, at >= kHeaderBytes);
      if (!h) continue;
      ++in_frames;
      // The frame with the flipped bit, and its neighbour.
      std::size_t hit = 0;
      while (h.value().offset(hit + 1) <= at) ++hit;
      Data out;
      ASSERT_EQ(unpacked(h.value(), hit, 1, bad, out, scratch).raw(), EBADMSG);
      const std::size_t other = (hit + 1) % h.value().frames();
      ASSERT_TRUE(unpacked(h.value(), other, 1, bad, out, scratch).ok());
      ASSERT_TRUE(std::equal(out.begin(), out.end(), plain.begin() + static_cast<long>(other * kFrameBytes)));
    }
  }
  EXPECT_GE(flips, built_in(Codec::lz4) ? 20'000u : 500u);
  EXPECT_GT(in_frames, flips / 2);
}

}  // namespace
}  // namespace lmdbio::cache
