// Kept leaf pages: copies, as many as there may be, those not looked for lately go first.
#include <gtest/gtest.h>

#include <array>

#include "lmdbio/records/leaf_cache.h"
#include "tests/support/fixed_source.h"

namespace lmdbio::records {
namespace {

constexpr std::size_t kPage = 64;
using Bytes64 = std::array<std::byte, kPage>;

Bytes64 page_of(unsigned n) {
  Bytes64 b;
  b.fill(static_cast<std::byte>(n));
  return b;
}
LeafCache::Page find(LeafCache& c, std::uint64_t page) {
  LeafCache::Page found;
  c.find({&page, 1}, [&](std::size_t i, const LeafCache::Page& p) {
    EXPECT_EQ(i, 0u);
    found = p;
  });
  return found;
}

TEST(LeafCache, KeepsCopies) {
  LeafCache c(kPage, 4, std::make_shared<Memory>());
  Bytes64 bytes = page_of(7);
  c.keep(7, bytes.data());
  bytes.fill(std::byte{0});
  const LeafCache::Page p = find(c, 7);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(p[0], std::byte{7});
  EXPECT_EQ(p[kPage - 1], std::byte{7});
  EXPECT_EQ(find(c, 8), nullptr);
  bytes = page_of(9);
  c.keep(7, bytes.data());
  EXPECT_EQ(find(c, 7)[0], std::byte{7}) << "it is there already";
}

TEST(LeafCache, FindsSomeOfMany) {
  LeafCache c(kPage, 4, std::make_shared<Memory>());
  for (const unsigned n : {1u, 3u}) c.keep(n, page_of(n).data());
  const std::uint64_t pages[] = {3, 2, 1};
  std::vector<std::pair<std::size_t, std::byte>> got;
  c.find(pages, [&](std::size_t i, const LeafCache::Page& p) { got.emplace_back(i, p[0]); });
  EXPECT_EQ(got, (std::vector<std::pair<std::size_t, std::byte>>{{0, std::byte{3}}, {2, std::byte{1}}}));
}

TEST(LeafCache, ThoseThatWereLookedForStay) {
  LeafCache c(kPage, 3, std::make_shared<Memory>());
  for (const unsigned n : {1u, 2u, 3u}) c.keep(n, page_of(n).data());
  LeafCache::Page held = find(c, 1);
  (void)find(c, 3);
  c.keep(4, page_of(4).data());
  EXPECT_EQ(find(c, 2), nullptr) << "the first one that was not looked for";
  EXPECT_NE(find(c, 1), nullptr);
  EXPECT_NE(find(c, 3), nullptr);
  for (unsigned n = 5; n < 100; ++n) c.keep(n, page_of(n).data());
  EXPECT_EQ(held[0], std::byte{1});
  EXPECT_EQ(find(c, 1), held) << "its memory would not come back";
  held.reset();
  for (unsigned n = 100; n < 200; ++n) c.keep(n, page_of(n).data());
  EXPECT_EQ(find(c, 1), nullptr);
  unsigned there = 0;
  for (unsigned n = 0; n < 200; ++n) there += find(c, n) != nullptr;
  EXPECT_EQ(there, 3u);
}

TEST(LeafCache, MayBeEmpty) {
  LeafCache c(kPage, 0, std::make_shared<Memory>());
  c.keep(1, page_of(1).data());
  EXPECT_EQ(find(c, 1), nullptr);
}

TEST(LeafCache, AsksForMemoryNowAndThenOnly) {
  testing::FixedSource source(10);
  const auto memory = std::make_shared<Memory>(&source);
  LeafCache c(kPage, 1000, memory);
  for (unsigned n = 1; n <= 256; ++n) c.keep(n, page_of(n).data());
  EXPECT_EQ(source.takes, 1u);
  for (unsigned n = 1; n <= 256; ++n) c.keep(n, page_of(n).data());
  EXPECT_EQ(source.takes, 2u);
  EXPECT_EQ(find(c, 1), nullptr);
}

}  // namespace
}  // namespace lmdbio::records
