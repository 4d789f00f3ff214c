// Which values a walk reads, told from what was seen: all periods and phases, noise, changes on the way.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "lmdbio/ahead/stride.h"
#include "tests/support/rng.h"

namespace lmdbio::ahead {
namespace {

using Seen = Stride::Seen;
using Verdict = Stride::Verdict;

/// How a walk over `n` values went whose value i is read where used(i) says so.
struct Walked {
  std::uint64_t predicted = 0, wrong = 0,
                missed = 0;                    ///< guesses; those not used; used ones that were no guess
  std::uint64_t known_at = ~std::uint64_t{0};  ///< the first verdict but unknown
};

Walked walk(Stride& s, std::uint64_t from, std::uint64_t n, const std::function<bool(std::uint64_t)>& used) {
  Walked w;
  for (std::uint64_t i = from; i < from + n; ++i) {
    if (s.verdict() == Verdict::irregular) break;  // nobody asks any more
    const bool predicted = s.predicts(i), is_used = used(i);
    // A plan made before and one made now name the same value.
    if (s.period() != 0) {
      EXPECT_EQ(s.until_next(i) == 0, predicted);
    }
    w.predicted += predicted ? 1 : 0;
    w.wrong += predicted && !is_used ? 1 : 0;
    w.missed += !predicted && is_used ? 1 : 0;
    s.observe(i, is_used ? Seen::used : Seen::unused);
    if (s.verdict() != Verdict::unknown && w.known_at == ~std::uint64_t{0}) w.known_at = i;
  }
  return w;
}

std::function<bool(std::uint64_t)> every(std::uint64_t period, std::uint64_t first) {
  return [=](std::uint64_t i) { return i >= first && (i - first) % period == 0; };
}

TEST(Stride, EveryPeriodAndPhase) {
  for (std::uint64_t period = 2; period <= 300; ++period) {
    for (std::uint64_t first = 0; first < 2 * period; first += period < 20 ? 1 : 1 + period / 5) {
      Stride s;
      const Walked w = walk(s, 0, first + 10 * period + 1, every(period, first));
      ASSERT_EQ(s.verdict(), Verdict::stride) << period << " from " << first;
      ASSERT_EQ(s.period(), period);
      ASSERT_EQ(w.known_at, first + 2 * period) << "three used ones";
      ASSERT_EQ(w.missed, 2u) << "the first two";
      ASSERT_EQ(w.wrong, 0u);
      ASSERT_EQ(s.sure(), 10u);
    }
  }
}

TEST(Stride, AllUsedIsDense) {
  for (const std::uint64_t first : {0u, 1u, 7u, 500u}) {
    Stride s;
    const Walked w = walk(s, 0, first + 3, every(1, first));
    EXPECT_EQ(s.verdict(), Verdict::dense);
    EXPECT_EQ(w.known_at, first + 2);
    // For good: what comes later says nothing of what was decided.
    (void)walk(s, first + 3, 100, every(8, 0));
    EXPECT_EQ(s.verdict(), Verdict::dense);
  }
}

TEST(Stride, NothingUsedStaysUnknown) {
  Stride s;
  EXPECT_EQ(walk(s, 0, 5000, [](std::uint64_t) { return false; }).predicted, 0u);
  EXPECT_EQ(s.verdict(), Verdict::unknown);
  EXPECT_EQ(s.unused_in_a_row(), 5000u);
  EXPECT_FALSE(s.seen_used());
}

// As Intel-Caffe's first layer does: it looks at the first record, whichever are its rank's.
TEST(Stride, OneMoreAtTheStart) {
  for (std::uint64_t period = 4; period <= 300; ++period) {
    for (const std::uint64_t first : {period / 2, period - 1, period + 1, 2 * period + 3}) {
      Stride s;
      const auto usual = every(period, first);
      const Walked w = walk(s, 0, first + 20 * period, [&](std::uint64_t i) { return i == 0 || usual(i); });
      ASSERT_EQ(s.verdict(), Verdict::stride) << period << " from " << first;
      ASSERT_EQ(s.period(), period);
      ASSERT_LE(w.wrong, 2u);
      ASSERT_LE(w.missed, 5u);
    }
  }
}

// One that is read besides, or is not read, now and then changes nothing.
TEST(Stride, Noise) {
  test::Rng rng(5);
  for (std::uint64_t period = 3; period <= 300; period += 1 + period / 7) {
    for (int turn = 0; turn < 6; ++turn) {
      Stride s;
      (void)walk(s, 0, 10 * period, every(period, 0));
      std::uint64_t at = 10 * period;
      for (int i = 0; i < 12; ++i) {
        const std::uint64_t odd = at + rng.below(period);
        const bool extra = odd % period != 0;
        const Walked w =
            walk(s, at, 12 * period, [&](std::uint64_t n) { return n == odd ? extra : n % period == 0; });
        at += 12 * period;
        ASSERT_EQ(w.missed, extra ? 1u : 0u);
        ASSERT_EQ(w.wrong, extra ? 0u : 1u);
        ASSERT_EQ(s.verdict(), Verdict::stride);
        ASSERT_EQ(s.period(), period);
      }
    }
  }
}

TEST(Stride, ChangesOfPeriodAndPhase) {
  for (const std::uint64_t a : {2u, 3u, 8u, 64u, 100u}) {
    for (const std::uint64_t b : {2u, 3u, 8u, 64u, 100u, 300u}) {
      for (const std::uint64_t shift : {0u, 1u, 5u}) {
        Stride s;
        (void)walk(s, 0, 20 * a, every(a, 0));
        const Walked w = walk(s, 20 * a, 40 * b, every(b, 20 * a + shift));
        ASSERT_EQ(s.verdict(), Verdict::stride) << a << " then " << b << " shifted by " << shift;
        ASSERT_EQ(s.period(), b);
        ASSERT_LE(w.missed, b < a && a % b == 0 ? 4u : 6u);
        ASSERT_LE(w.wrong, 4u + b / a);
      }
    }
  }
}

TEST(Stride, TurnsIntoAScan) {
  for (std::uint64_t period = 2; period <= 300; ++period) {
    Stride s;
    (void)walk(s, 0, 20 * period, every(period, 0));
    const Walked w = walk(s, 20 * period, 10, [](std::uint64_t) { return true; });
    EXPECT_EQ(s.verdict(), Verdict::dense);
    EXPECT_LE(w.missed, 10u);
  }
}

// What follows no rule is left to those who read all.
TEST(Stride, Irregular) {
  test::Rng rng(6);
  unsigned guessed = 0;
  for (unsigned share = 2; share <= 30; ++share) {
    Stride s;
    const Walked w = walk(s, 0, 40 * share, [&](std::uint64_t) { return rng.below(share) == 0; });
    EXPECT_NE(s.verdict(), Verdict::unknown) << share;
    guessed += s.verdict() == Verdict::stride ? 1u : 0u;
    EXPECT_LE(w.wrong, 12u);
  }
  EXPECT_LE(guessed, 3u);
  for (const std::string pattern : {"uu------", "uu-", "u-u---", "u-----u---", "u--u-u---u"}) {
    Stride s;
    const Walked w = walk(s, 0, 40 * pattern.size(), [&](std::uint64_t i) {
      return pattern[static_cast<std::size_t>(i) % pattern.size()] == 'u';
    });
    EXPECT_TRUE(s.verdict() == Verdict::irregular || s.verdict() == Verdict::dense) << pattern;
    EXPECT_LE(w.wrong, 8u) << pattern;
  }
}

// What cannot be seen neither makes a guess nor ends one.
TEST(Stride, UnknownOnes) {
  Stride s;
  for (std::uint64_t i = 0; i < 1000; ++i) s.observe(i, Seen::unknown);
  EXPECT_EQ(s.verdict(), Verdict::unknown);
  EXPECT_EQ(s.period(), 0u);
  for (std::uint64_t i = 1000; i < 1100; ++i) s.observe(i, i % 2 == 0 ? Seen::used : Seen::unknown);
  EXPECT_EQ(s.period(), 0u) << "those between may be used as well";
  EXPECT_EQ(s.verdict(), Verdict::irregular) << "and nothing will ever tell";

  Stride known;
  (void)walk(known, 0, 81, every(8, 0));
  for (std::uint64_t i = 81; i < 400; ++i) known.observe(i, Seen::unknown);
  EXPECT_EQ(known.verdict(), Verdict::stride);
  EXPECT_TRUE(known.predicts(400));
  EXPECT_EQ(known.until_next(401), 7u);

  Stride gaps;  // only the used ones are told of
  for (std::uint64_t i = 0; i < 100; ++i) gaps.observe(4 * i, Seen::used);
  EXPECT_EQ(gaps.period(), 0u);
}

}  // namespace
}  // namespace lmdbio::ahead
