// Packed columns against the numbers that they were made of.
#include <gtest/gtest.h>

#include <functional>

#include "lmdbio/records/packed_column.h"
#include "tests/support/rng.h"

namespace lmdbio::records {
namespace {

using Numbers = std::vector<std::uint64_t>;
constexpr std::uint64_t kEnd = std::uint64_t{1} << PackedColumn::kBits;

PackedColumn packed(const Numbers& numbers) {
  PackedColumn c;
  for (const std::uint64_t n : numbers) c.append(n);
  c.finish();
  return c;
}
Numbers made(std::size_t n, const std::function<std::uint64_t(std::size_t)>& number) {
  Numbers out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(number(i));
  return out;
}
void expect_equal(const PackedColumn& c, const Numbers& numbers) {
  ASSERT_EQ(c.size(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i)
    ASSERT_EQ(c[i], numbers[i]) << i << " of " << numbers.size();
}

TEST(PackedColumn, GivesBackWhatItWasGiven) {
  test::Rng rng(3);
  for (const std::size_t n : {0u, 1u, 2u, 127u, 128u, 129u, 256u, 1000u}) {
    expect_equal(packed(made(n, [](std::size_t i) { return 7 * i; })),
                 made(n, [](std::size_t i) { return 7 * i; }));
    for (const std::uint64_t most : {std::uint64_t{1}, std::uint64_t{1000}, kEnd - 1}) {
      const Numbers random = made(n, [&](std::size_t) { return rng.below(most + 1); });
      expect_equal(packed(random), random);
    }
    const Numbers falling = made(n, [](std::size_t i) { return kEnd - 1 - 3 * i; });
    expect_equal(packed(falling), falling);
    const Numbers jumps = made(n, [](std::size_t i) { return i % 2 == 0 ? 0 : kEnd - 1; });
    expect_equal(packed(jumps), jumps);
  }
}

TEST(PackedColumn, ALineTakesNoBits) {
  const PackedColumn even = packed(made(12'800, [](std::size_t i) { return 5 + 40 * i; }));
  EXPECT_EQ(even.distance_bytes().size(), PackedColumn::kSlack);
  EXPECT_EQ(even.frame_bytes().size(), 100 * sizeof(PackedColumn::Frame));
  // One of 128 lies 3 beside the line: two bits each in its frame.
  const PackedColumn one = packed(made(128, [](std::size_t i) { return 1000 + 40 * i + (i == 50 ? 3 : 0); }));
  EXPECT_EQ(one.distance_bytes().size(), 128 * 2 / 8 + PackedColumn::kSlack);
}

TEST(PackedColumn, AdoptsItsOwnBytesAndNoOthers) {
  const Numbers numbers = made(300, [](std::size_t i) { return i * i; });
  const PackedColumn c = packed(numbers);
  PackedColumn same;
  ASSERT_TRUE(same.adopt(300, c.frame_bytes(), c.distance_bytes()));
  expect_equal(same, numbers);
  PackedColumn wrong;
  EXPECT_FALSE(wrong.adopt(385, c.frame_bytes(), c.distance_bytes())) << "a frame too few";
  EXPECT_FALSE(wrong.adopt(256, c.frame_bytes(), c.distance_bytes())) << "a frame too many";
  EXPECT_FALSE(wrong.adopt(300, c.frame_bytes().first(24 * 3 - 1), c.distance_bytes()));
  EXPECT_FALSE(wrong.adopt(300, c.frame_bytes(), c.distance_bytes().first(7)));
  EXPECT_FALSE(wrong.adopt(300, c.frame_bytes(), c.distance_bytes().first(c.distance_bytes().size() - 1)))
      << "the last distance ends behind them";
  EXPECT_FALSE(wrong.adopt(~std::uint64_t{0}, c.frame_bytes(), c.distance_bytes()));
  std::vector<std::byte> frames(c.frame_bytes().begin(), c.frame_bytes().end());
  frames[16] |= std::byte{63};  // the first frame's width
  EXPECT_FALSE(wrong.adopt(300, frames, c.distance_bytes()));
}

}  // namespace
}  // namespace lmdbio::records
