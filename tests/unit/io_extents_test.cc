#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lmdbio/io/extents.h"

namespace lmdbio {
namespace {

using Extents = std::vector<Extent>;

Extents merged(Extents e, std::uint64_t gap) {
  e.resize(merge(e, gap));
  return e;
}

TEST(Extents, MergeByHand) {
  EXPECT_EQ(merged({}, 0), Extents{});
  EXPECT_EQ(merged({{5, 0}, {0, 0}}, 9), Extents{});
  EXPECT_EQ(merged({{8, 4}, {0, 4}, {4, 4}}, 0), (Extents{{0, 12}}));
  EXPECT_EQ(merged({{9, 4}, {0, 4}, {4, 4}}, 0), (Extents{{0, 8}, {9, 4}}));
  EXPECT_EQ(merged({{9, 4}, {0, 4}, {4, 4}}, 1), (Extents{{0, 13}}));
  EXPECT_EQ(merged({{0, 100}, {10, 5}, {20, 1}}, 0), (Extents{{0, 100}})) << "one inside another";
  EXPECT_EQ(merged({{0, 1}, {UINT64_MAX - 1, 100}}, 0), (Extents{{0, 1}, {UINT64_MAX - 1, 1}}));
  EXPECT_EQ(merged({{0, 1}, {UINT64_MAX - 1, 100}}, UINT64_MAX), (Extents{{0, UINT64_MAX}}));
  EXPECT_EQ(merged({{7, UINT64_MAX}, {UINT64_MAX, 1}}, 0), (Extents{{7, UINT64_MAX - 7}}));
}

// All sets of three extents in a small file against a byte map.
TEST(Extents, MergeOfAllSmallSets) {
  constexpr std::uint64_t kFile = 5;
  Extents all;
  for (std::uint64_t at = 0; at < kFile; ++at)
    for (std::uint64_t n = 0; at + n <= kFile; ++n) all.push_back({at, n});
  for (const Extent& a : all)
    for (const Extent& b : all)
      for (const Extent& c : all)
        for (std::uint64_t gap = 0; gap < 3; ++gap) {
          unsigned wanted = 0;
          for (const Extent& e : {a, b, c})
            for (std::uint64_t i = 0; i < e.bytes; ++i) wanted |= 1u << (e.offset + i);
          unsigned filled = wanted;  // and gaps that are short enough
          for (std::uint64_t at = 0; at < kFile; ++at)
            for (std::uint64_t n = 1; n <= gap; ++n)
              if (at > 0 && (wanted >> (at - 1) & 1) != 0 && (wanted >> (at + n) & 1) != 0)
                for (std::uint64_t i = 0; i < n; ++i) filled |= 1u << (at + i);
          unsigned got = 0;
          std::uint64_t end = 0;
          bool first = true;
          for (const Extent& e : merged({a, b, c}, gap)) {
            ASSERT_GT(e.bytes, 0u);
            ASSERT_TRUE(first || e.offset > end + gap);
            first = false;
            end = e.offset + e.bytes;
            for (std::uint64_t i = 0; i < e.bytes; ++i) got |= 1u << (e.offset + i);
          }
          ASSERT_EQ(got, filled);
        }
}

TEST(Extents, SplitOfAllSmallOnes) {
  for (const std::size_t alignment : {std::size_t{1}, std::size_t{2}, std::size_t{4}})
    for (std::uint64_t file = 0; file < 20; ++file)
      for (std::size_t most = 0; most < 12; ++most)
        for (std::uint64_t offset = 0; offset < 22; ++offset)
          for (std::uint64_t bytes = 0; bytes < 22; ++bytes) {
            std::vector<ReadPiece> pieces;
            split_aligned({offset, bytes}, alignment, file, most,
                          [&](const ReadPiece& p) { pieces.push_back(p); });
            const std::uint64_t end = std::min(offset + bytes, file);
            if (offset >= end) {
              ASSERT_TRUE(pieces.empty());
              continue;
            }
            ASSERT_FALSE(pieces.empty());
            ASSERT_LE(pieces.front().offset, offset);
            ASSERT_LT(offset - pieces.front().offset, alignment);
            std::uint64_t at = pieces.front().offset;
            for (const ReadPiece& p : pieces) {
              ASSERT_EQ(p.offset, at);
              ASSERT_EQ((p.offset | p.bytes) % alignment, 0u);
              ASSERT_GT(p.bytes, 0u);
              ASSERT_LE(p.bytes, std::max(most, alignment));
              ASSERT_EQ(p.minimum, std::min<std::uint64_t>(p.bytes, file - p.offset));
              ASSERT_GE(p.minimum, 1u);
              at += p.bytes;
            }
            ASSERT_GE(at, end);
            ASSERT_LT(at - end, alignment);
          }
}

TEST(Extents, SplitAtTheEndsOfTheNumbers) {
  std::vector<ReadPiece> pieces;
  const auto take = [&](const ReadPiece& p) { pieces.push_back(p); };
  split_aligned({INT64_MAX - 10, UINT64_MAX}, 4096, INT64_MAX, SIZE_MAX, take);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0], (ReadPiece{(std::uint64_t{1} << 63) - 4096, 4096, 4095}));
  pieces.clear();
  split_aligned({UINT64_MAX, UINT64_MAX}, 4096, INT64_MAX, 1, take);
  EXPECT_TRUE(pieces.empty());
}

TEST(Extents, LargestGap) {
  const Extent extents[] = {{0, 10}, {14, 6}, {52, 8}};  // gaps of 4 and 32
  EXPECT_EQ(largest_gap(extents, 64, 60), 64U);
  EXPECT_EQ(largest_gap(extents, 64, 59), 16U);
  EXPECT_EQ(largest_gap(extents, 64, 28), 16U);
  EXPECT_EQ(largest_gap(extents, 64, 27), 2U);
  EXPECT_EQ(largest_gap(extents, 64, 23), 0U);  // they alone have more
  EXPECT_EQ(largest_gap({}, 64, 0), 64U);
}

}  // namespace
}  // namespace lmdbio
