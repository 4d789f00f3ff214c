// Sets of ascending numbers, against std::set.
#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <vector>

#include "lmdbio/records/number_set.h"
#include "tests/support/rng.h"

namespace lmdbio::records {
namespace {

void expect_same(const NumberSet& got, const std::set<std::uint64_t>& want) {
  ASSERT_EQ(got.size(), want.size());
  std::vector<std::uint64_t> all;
  got.for_each([&](std::uint64_t n) { all.push_back(n); });
  ASSERT_EQ(all, std::vector<std::uint64_t>(want.begin(), want.end()));
  for (std::size_t i = 0; i < all.size(); i += 1 + i / 8) ASSERT_EQ(got.nth(i), all[i]);
  for (std::size_t i = 0; i + 1 < all.size(); i += 1 + i / 8) {
    ASSERT_EQ(got.next(all[i]), all[i]);
    ASSERT_EQ(got.next(all[i] + 1), all[i + 1]);
  }
  ASSERT_EQ(got.next(0), all.empty() ? UINT64_MAX : all[0]);
  ASSERT_EQ(got.next(all.empty() ? 0 : all.back() + 1), UINT64_MAX);
  if (!all.empty()) {
    ASSERT_EQ(got.nth(all.size() - 1), all.back());
  }
}

TEST(NumberSet, EqualsASet) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    test::Rng rng(seed);
    NumberSet set;
    std::set<std::uint64_t> want;
    std::uint64_t next = rng.below(3) * 4095;
    const std::uint64_t gap = rng.percent(50) ? 1 : rng.percent(50) ? 100 : 20'000;
    for (unsigned step = 0; step < 400; ++step) {
      const unsigned what = rng.below(100);
      if (what < 35) {
        const std::uint64_t n = rng.percent(20) ? rng.below(10'000) : rng.below(5);
        set.add(next, n);
        for (std::uint64_t i = 0; i < n; ++i) want.insert(next + i);
        next += n + (rng.percent(50) ? rng.below(static_cast<unsigned>(gap)) : 0);
      } else if (what < 50) {
        set.add(next);
        want.insert(next++);
      } else if (what < 75 && !want.empty()) {
        // Often the first or the last one, and sometimes one that is not there.
        std::uint64_t n = *want.begin() + rng.below(static_cast<unsigned>(next - *want.begin()) + 2);
        if (rng.percent(30)) n = *want.begin();
        if (rng.percent(20)) n = *want.rbegin();
        ASSERT_EQ(set.erase(n), want.erase(n) == 1) << n;
      } else if (!want.empty()) {
        for (std::uint64_t i = rng.percent(10) ? want.size() : rng.below(30); i > 0 && !want.empty(); --i) {
          ASSERT_EQ(set.pop_front(), *want.begin());
          want.erase(want.begin());
        }
      }
      if (step % 40 == 0) expect_same(set, want);
    }
    expect_same(set, want);
  }
}

TEST(NumberSet, RunsTakeLittleMemory) {
  constexpr std::uint64_t kNumbers = 1'000'000;
  NumberSet set;
  set.add(0, kNumbers);
  EXPECT_LT(set.memory_bytes(), kNumbers / 20);
  for (std::uint64_t n = 0; n < kNumbers; n += 2) ASSERT_TRUE(set.erase(n));
  EXPECT_LT(set.memory_bytes(), kNumbers / 20 + kNumbers / 7);
  for (std::uint64_t n = 1; n < kNumbers; n += 2) ASSERT_EQ(set.pop_front(), n);
  EXPECT_EQ(set.size(), 0u);
}

TEST(NumberSet, AQueueTakesLittleMemory) {
  NumberSet set;
  for (std::uint64_t n = 0; n < 1'000'000; ++n) {
    set.add(n);
    if (n >= 100) {
      ASSERT_EQ(set.pop_front(), n - 100);
    }
  }
  EXPECT_LT(set.memory_bytes(), 20'000u);
}

}  // namespace
}  // namespace lmdbio::records
