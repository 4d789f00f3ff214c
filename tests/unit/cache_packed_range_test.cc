// Ranges of compressed chunks that travel: against the plain bytes, with damage, and out of an image.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "lmdbio/cache/packed_range.h"
#include "tests/support/cache_file.h"
#include "tests/support/file_image.h"
#include "tests/support/rng.h"

namespace lmdbio::cache {
namespace {

using Data = std::vector<std::byte>;
using test::Rng;
using testing::CacheCase;
using testing::CacheDatabase;
constexpr std::uint64_t kTag = 78;

const auto* const parent = (::setenv("LMDBIO_CACHE_CODEC", "lz4", 1), (void)testing::cache_parent(),
                            ::testing::AddGlobalTestEnvironment(new testing::CacheParent));

Recipe packing() { return built_in(Codec::lz4) ? Recipe{Codec::lz4, {}} : Recipe{}; }

/// The chunk as one range that travels.
Data whole(Bytes plain, std::size_t bytes) {
  Scratch scratch;
  Data stored(stored_bound(plain.size()));
  const Result<std::size_t> n = compress_chunk(plain, packing(), kTag, stored, scratch);
  EXPECT_TRUE(n);
  Data out = PackedRange::start(kTag, stored, 0, bytes);
  out.insert(out.end(), stored.begin() + kHeaderBytes,
             stored.begin() + static_cast<std::ptrdiff_t>(n.value()));
  return out;
}

Data plain_bytes(std::size_t n) {
  Data plain(n);
  Rng rng(n);
  for (std::size_t i = 0; i < n; ++i)
    plain[i] =
        i / kFrameBytes % 3 == 0 ? static_cast<std::byte>(rng.below(256)) : static_cast<std::byte>(i >> 9);
  return plain;
}

TEST(PackedRange, PartsHaveTheBytes) {
  Rng rng(5);
  for (const std::size_t n : {std::size_t{1}, kFrameBytes, 3 * kFrameBytes + 77, kMostChunkBytes}) {
    const Data plain = plain_bytes(n);
    const Data all = whole(plain, kMostChunkBytes);
    const Result<PackedRange> range = PackedRange::parse(all);
    ASSERT_TRUE(range);
    EXPECT_TRUE(range.value().verify());
    for (unsigned i = 0; i < 60; ++i) {
      const std::size_t at = rng.below(static_cast<unsigned>(kMostChunkBytes));
      const std::size_t bytes =
          i == 0 ? kMostChunkBytes : 1 + rng.below(static_cast<unsigned>(kMostChunkBytes - at));
      const std::size_t from = i == 0 ? 0 : at;
      Data want(bytes), got(bytes, std::byte{0xa5});
      if (from < n)
        std::copy_n(plain.begin() + static_cast<std::ptrdiff_t>(from), std::min(bytes, n - from),
                    want.begin());
      ASSERT_TRUE(range.value().covers(from, bytes));
      const Data part = range.value().part(from, bytes);
      EXPECT_EQ(part.size(), range.value().size_of(from, bytes));
      const testing::ExactBytes exact{Bytes(part)};
      const Result<PackedRange> travelled = PackedRange::parse(exact.bytes());
      ASSERT_TRUE(travelled);
      EXPECT_EQ(travelled.value().at(), from);
      EXPECT_EQ(travelled.value().bytes(), bytes);
      Scratch scratch;
      ASSERT_TRUE(travelled.value().unpack(from, got, scratch).ok());
      EXPECT_EQ(got, want);
      // A range within it.
      const std::size_t skip = rng.below(static_cast<unsigned>(bytes));
      got.assign(bytes - skip, std::byte{0xa5});
      ASSERT_TRUE(travelled.value().covers(from + skip, bytes - skip));
      ASSERT_TRUE(travelled.value().unpack(from + skip, got, scratch).ok());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + static_cast<std::ptrdiff_t>(skip)));
    }
  }
}

TEST(PackedRange, CoversOnlyWhatItHas) {
  const Data plain = plain_bytes(4 * kFrameBytes);
  const Data all = whole(plain, kMostChunkBytes);
  const Data part = PackedRange::parse(all).value().part(100, 1000);
  const PackedRange range = PackedRange::parse(part).value();
  EXPECT_TRUE(range.covers(100, 1000));
  EXPECT_TRUE(range.covers(1099, 1));
  EXPECT_FALSE(range.covers(99, 1));
  EXPECT_FALSE(range.covers(100, 1001));
  EXPECT_FALSE(range.covers(1100, 1));
  EXPECT_FALSE(range.covers(~std::size_t{0}, 2));
  EXPECT_FALSE(range.covers(200, ~std::size_t{0}));
}

TEST(PackedRange, DamageIsSeen) {
  const Data plain = plain_bytes(2 * kFrameBytes);
  const Data good = PackedRange::parse(whole(plain, 2 * kFrameBytes)).value().part(0, 2 * kFrameBytes);
  Scratch scratch;
  for (std::size_t n = 0; n < good.size(); n += 1 + n / 50) {
    const testing::ExactBytes cut(Bytes(good).first(n));
    EXPECT_FALSE(PackedRange::parse(cut.bytes())) << n;
  }
  for (std::size_t i = 0; i < good.size(); i += i < PackedRange::kHeadBytes ? 1 : 97) {
    Data bad = good;
    bad[i] ^= std::byte{0x10};
    const Result<PackedRange> range = PackedRange::parse(bad);
    if (!range) continue;
    // The range itself has no checksum: whoever has asked for a range compares it.
    const bool is_range = i >= 8 && i < 16;
    Data got(2 * kFrameBytes);
    if (is_range) {
      EXPECT_TRUE(range.value().at() != 0 || range.value().bytes() != got.size()) << i;
      continue;
    }
    EXPECT_FALSE(range.value().verify()) << i;
    EXPECT_EQ(range.value().unpack(0, got, scratch).raw(), EBADMSG) << i;
  }
}

/// Images whose chunks are compressed.
class PackedImage : public CacheCase {
 protected:
  void SetUp() override {
    CacheCase::SetUp();
    if (!built_in(Codec::lz4)) GTEST_SKIP() << "this build does not compress";
  }
};

/// Stores all chunks.  The thread of the image may be storing some of them.
void store(const CacheDatabase& db, Image& image) {
  testing::fill(db, image);
  for (std::uint64_t c = 0; c < db.chunks(); ++c)
    testing::wait_for(image, [&] { return image.has_stored(c); });
}

constexpr std::size_t kBytes = 2 * kChunkBytes + 5 * 4096;

TEST_F(PackedImage, GivesWhatItHas) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  store(db, *image);
  Scratch scratch;
  for (std::uint64_t c = 0; c < 3; ++c) {
    EXPECT_TRUE(image->may_have(c));
    for (const std::size_t at : {std::size_t{0}, std::size_t{70'000}, std::size_t{3} << 20}) {
      const Result<Data> packed = image->read_packed(c, at, 100'000);
      ASSERT_TRUE(packed);
      const Result<PackedRange> range = PackedRange::parse(packed.value());
      ASSERT_TRUE(range);
      Data got(100'000);
      ASSERT_TRUE(range.value().unpack(at, got, scratch).ok());
      EXPECT_TRUE(db.has(c * kChunkBytes + at, got)) << c << ' ' << at;
    }
  }
  EXPECT_FALSE(image->may_have(3));
  EXPECT_EQ(image->read_packed(3, 0, 100).error().raw(), ENODATA);
}

TEST_F(PackedImage, ForgetsAChunkThatIsDamaged) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  store(db, *image);
  const std::uint64_t second = kChunkBytes + 4096;  // stored chunks have this distance
  change(file(kDataEnding), second + kHeaderBytes + 100, 1);
  EXPECT_TRUE(image->read_packed(0, 0, kChunkBytes));
  EXPECT_TRUE(image->read_packed(1, 3 * kFrameBytes, 100)) << "another frame";
  EXPECT_EQ(image->read_packed(1, 0, 100).error().raw(), EBADMSG);
  EXPECT_FALSE(image->may_have(1));
  EXPECT_EQ(image->counts().damaged, 1u);
  EXPECT_TRUE(image->wants(kChunkBytes, kChunkBytes));
}

// A machine was started since: the checksum of the whole chunk decides.
TEST_F(PackedImage, VerifiesAfterAStartOfTheMachine) {
  const CacheDatabase db(kBytes);
  {
    const auto image = db.image();
    ASSERT_NE(image, nullptr);
    store(db, *image);
  }
  restart();
  change(file(kDataEnding), kHeaderBytes + 100, 1);
  const auto image = db.image();
  EXPECT_TRUE(image->may_have(0)) << "not known yet";
  EXPECT_EQ(image->read_packed(0, 3 * kFrameBytes, 100).error().raw(), ENODATA);
  EXPECT_FALSE(image->may_have(0));
  EXPECT_TRUE(image->read_packed(1, 0, 100));
}

// The image of one of several nodes takes what it is given, and nothing else; it has room for its part.
TEST_F(PackedImage, OfOneOfSeveralNodes) {
  const CacheDatabase db(kBytes);
  const auto image = Image::get(db.file(), db.path(), CacheDatabase::kSnapshot, 3);
  ASSERT_NE(image, nullptr);
  EXPECT_EQ(image->chunks_wanted(), 3u);
  ASSERT_TRUE(image->add(kChunkBytes, Bytes(db.bytes()).subspan(kChunkBytes, kChunkBytes)));
  Image::flush_all();
  EXPECT_TRUE(image->has_stored(1));
  EXPECT_FALSE(image->may_have(0)) << "it is in the page cache of the database";
  EXPECT_EQ(image->read_packed(0, 0, 100).error().raw(), ENODATA);
  image->leave_to_server();
  EXPECT_FALSE(image->wants(0, kChunkBytes));
}

}  // namespace
}  // namespace lmdbio::cache
