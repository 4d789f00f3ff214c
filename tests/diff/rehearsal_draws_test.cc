// How evenly old samples are drawn: chi-square tests of a million draws for each of 20 seeds, and how many
// different samples a growing buffer gives.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lmdbio/base/mix.h"
#include "lmdbio/records/order.h"
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

// --- a growing buffer ---

/// What consecutive batches of one job draw.
struct Draws {
  std::uint64_t different = 0;  ///< samples that were drawn at least once
  double expected = 0;          ///< the same, if each batch were drawn independently of the others
  std::uint64_t repeated = 0;   ///< draws of a sample that the batch before had, too
  double expected_repeated = 0;
};

/// One batch: its draws, and the number of samples that the buffer had.
struct DrawnBatch {
  Numbers old;
  Numbers from;  ///< the samples in the buffer
};

/// Counts draws, and computes what independent ones would give: each batch has each sample of its buffer with
/// the same probability.
Draws count(const std::vector<DrawnBatch>& batches) {
  Draws out;
  std::map<std::uint64_t, double> missed;  // probability that no batch has the sample
  std::set<std::uint64_t> seen, before;
  for (const DrawnBatch& b : batches) {
    const std::set<std::uint64_t> now(b.old.begin(), b.old.end());
    const std::set<std::uint64_t> from(b.from.begin(), b.from.end());
    if (from.empty()) continue;
    const double p = static_cast<double>(now.size()) / static_cast<double>(from.size());
    for (const std::uint64_t n : from) missed.try_emplace(n, 1.0).first->second *= 1 - p;
    seen.insert(now.begin(), now.end());
    for (const std::uint64_t n : before) {
      out.repeated += now.count(n);
      out.expected_repeated += from.contains(n) ? p : 0;
    }
    before = now;
  }
  out.different = seen.size();
  for (const auto& [n, p] : missed) out.expected += 1 - p;
  return out;
}

constexpr std::uint64_t kNew = 32, kBatches = 300;

std::vector<DrawnBatch> grow(BufferKind kind, std::uint64_t old) {
  RehearsalTerms terms{.seed = 7,
                       .fresh = kNew,
                       .old = old,
                       .lag = 4,
                       .kind = kind,
                       .capacity = kind == BufferKind::per_class ? 500u : 2'000u};
  Rehearsal order(terms);
  terms.old = 0;
  Rehearsal buffer(terms);  // all that is live is in its buffer
  std::vector<DrawnBatch> out;
  for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
    Numbers labels;
    for (std::uint64_t i = 0; i < kNew; ++i) labels.push_back(i % 4);
    for (Rehearsal* const r : {&order, &buffer}) {
      (void)r->arrive(kNew, labels);
      (void)r->next();
    }
    out.push_back({order.upcoming().back(), buffer.live()});
  }
  return out;
}

/// The rule that decision 0045 rejects: the position of a draw is computed from the number of the batch.
std::vector<DrawnBatch> grow_by_number(std::uint64_t old) {
  std::vector<DrawnBatch> out;
  Numbers samples;
  for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
    for (std::uint64_t i = 0; i < kNew; ++i) samples.push_back(samples.size());
    DrawnBatch b{{}, samples};
    const std::uint64_t count = std::min<std::uint64_t>(old, samples.size());
    for (std::uint64_t k = 0; k < count; ++k) {
      const std::uint64_t d = (batch + 5) * count + k, m = samples.size();
      b.old.push_back(samples[shuffle(7, d / m, m, d % m)]);
    }
    out.push_back(std::move(b));
  }
  return out;
}

TEST(RehearsalDraws, AGrowingBufferGivesOtherSamplesEachTime) {
  for (const BufferKind kind :
       {BufferKind::reservoir, BufferKind::per_class, BufferKind::ring, BufferKind::all}) {
    for (const std::uint64_t old : {kNew / 8, kNew, kNew + 1, 2 * kNew}) {
      SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", " << old << " old samples");
      const Draws d = count(grow(kind, old));
      // Passes cover a buffer that does not grow more evenly than independent draws.
      EXPECT_GT(static_cast<double>(d.different), 0.95 * d.expected);
      EXPECT_LT(static_cast<double>(d.repeated), 1.2 * d.expected_repeated + 30);
    }
  }
}

// The test of the test.
TEST(RehearsalDraws, PositionsFromTheNumberOfTheBatchAreFound) {
  for (const std::uint64_t old : {kNew, 2 * kNew}) {
    const Draws d = count(grow_by_number(old));
    EXPECT_LT(static_cast<double>(d.different), 0.5 * d.expected);
    EXPECT_GT(static_cast<double>(d.repeated), 2 * d.expected_repeated + 30);
  }
}

}  // namespace
}  // namespace lmdbio::records
