// How evenly old samples are drawn: chi-square tests of a million draws for each of 20 seeds.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "lmdbio/base/mix.h"
#include "lmdbio/records/rehearsal.h"
#include "tests/support/rng.h"

namespace lmdbio::records {
namespace {

using Numbers = std::vector<std::uint64_t>;

/// Returns how far the inclusion of `cells` samples differs from an even one, as a normally distributed
/// number (the approximation of chi-square by Wilson and Hilferty).  Each of `rounds` rounds includes `each`
/// of them, on average, without repetition.
double unevenness(const Numbers& counts, double rounds, double each) {
  const auto cells = static_cast<double>(counts.size());
  const double expected = rounds * each / cells;
  double sum = 0;
  for (const std::uint64_t c : counts) sum += std::pow(static_cast<double>(c) - expected, 2) / expected;
  const double degrees = cells - 1;
  const double chi_square = sum / (1 - each / cells) * degrees / cells;
  const double variance = 2 / (9 * degrees);
  return (std::cbrt(chi_square / degrees) - (1 - variance)) / std::sqrt(variance);
}

constexpr double kOnePercent = 2.326;  ///< p = 0.01
constexpr unsigned kSeeds = 20;

unsigned even_seeds(const std::function<double(std::uint64_t)>& run, bool show = false) {
  unsigned even = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const double z = run(seed);
    even += z < kOnePercent && z > -2 * kOnePercent;
    if (show) std::printf("%.2f ", z);
  }
  if (show) std::printf("\n");
  return even;
}

constexpr std::uint64_t kSamples = 500, kCapacity = 50, kRounds = 20'000;  // 10^6 draws for each seed

TEST(RehearsalDraws, AReservoirDrawsEvenly) {
  const auto run = [](std::uint64_t seed) {
    Numbers counts(kSamples);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      Rehearsal order({.seed = mix(seed << 32 | round),
                       .fresh = 1,
                       .old = kCapacity,
                       .lag = 0,
                       .kind = BufferKind::reservoir,
                       .capacity = kCapacity});
      order.start(kSamples, {});
      for (const std::uint64_t n : order.next().old) ++counts[n];
    }
    return unevenness(counts, kRounds, kCapacity);
  };
  EXPECT_GE(even_seeds(run, true), 19u);
}

// Of 500 samples, 200 are removed, and 300 more arrive: each of the 600 is equally likely.
TEST(RehearsalDraws, RemovedSamplesLeaveAnEvenReservoir) {
  constexpr std::uint64_t kFewer = kRounds / 4;
  const auto run = [](std::uint64_t seed) {
    constexpr std::uint64_t kStart = 500, kRemoved = 200, kMore = 300;
    Numbers counts(kStart + kMore);
    std::uint64_t draws = 0;
    for (std::uint64_t round = 0; round < kFewer; ++round) {
      Rehearsal order({.seed = mix(seed << 32 | round),
                       .fresh = kMore,
                       .old = kCapacity,
                       .lag = 0,
                       .kind = BufferKind::reservoir,
                       .capacity = kCapacity});
      order.start(kStart, {});
      std::vector<RemovedSample> gone;
      for (std::uint64_t i = 0; i < kRemoved; ++i) gone.push_back({i * 2, 0});
      order.remove(gone);
      (void)order.arrive(kMore, {});
      (void)order.next();
      for (const std::uint64_t n : order.next().old) {
        ++counts[n];
        ++draws;
      }
    }
    Numbers left;
    for (std::uint64_t n = 0; n < counts.size(); ++n) {
      if (n < 2 * kRemoved && n % 2 == 0)
        EXPECT_EQ(counts[n], 0u);
      else
        left.push_back(counts[n]);
    }
    EXPECT_EQ(left.size(), kStart + kMore - kRemoved);
    return unevenness(left, kFewer, static_cast<double>(draws) / kFewer);
  };
  EXPECT_GE(even_seeds(run, true), 19u);
}

// The test of the test: a rule that always replaces a sample of a full buffer forgets old samples.
TEST(RehearsalDraws, ABufferThatAlwaysReplacesIsFoundUneven) {
  const auto run = [](std::uint64_t seed) {
    Numbers counts(kSamples);
    test::Rng rng(seed);
    for (std::uint64_t round = 0; round < kRounds / 20; ++round) {
      Numbers slots;
      for (std::uint64_t n = 0; n < kSamples; ++n) {
        if (slots.size() < kCapacity)
          slots.push_back(n);
        else
          slots[rng.below(kCapacity)] = n;
      }
      for (const std::uint64_t n : slots) ++counts[n];
    }
    return unevenness(counts, kRounds / 20, kCapacity);
  };
  EXPECT_EQ(even_seeds(run), 0u);
}

}  // namespace
}  // namespace lmdbio::records
