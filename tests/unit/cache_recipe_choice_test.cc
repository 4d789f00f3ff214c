// The choice of a recipe against a simulation of epochs, and trials with a clock of the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "lmdbio/cache/recipe_choice.h"
#include "tests/support/chunk_data.h"
#include "tests/support/rng.h"

namespace lmdbio::cache {
namespace {

using Data = std::vector<std::byte>;
using Kind = Filter::Kind;
constexpr double kMB = 1e6;

Trial trial(Codec codec, double ratio, double unpack_mb, Filter filter = {}) {
  return {{codec, filter}, ratio, 200 * kMB, unpack_mb * kMB};
}

/// Ratios and rates that were measured (one core, frames of 64 KiB).
struct Database {
  const char* name;
  std::vector<Trial> trials;
};
const std::vector<Database>& databases() {
  static const std::vector<Database> all = {
      {"JPEG", {{}, trial(Codec::lz4, 1.05, 5900), trial(Codec::zstd1, 1.06, 5900)}},
      {"uint8, resized",
       {{},
        trial(Codec::lz4, 1.27, 1800),
        trial(Codec::zstd1, 1.45, 640),
        trial(Codec::zstd1, 2.15, 560, {Kind::delta, 256})}},
      {"uint8, full resolution",
       {{}, trial(Codec::zstd1, 1.08, 1130), trial(Codec::zstd1, 1.44, 810, {Kind::delta, 256})}},
      {"float fields",
       {{}, trial(Codec::zstd1, 1.22, 830), trial(Codec::lz4, 1.46, 1390, {Kind::shuffle, 4})}},
      {"int16 counts",
       {{},
        trial(Codec::lz4, 2.12, 870),
        trial(Codec::zstd1, 4.91, 510),
        trial(Codec::zstd1, 6.59, 650, {Kind::shuffle, 2})}},
      {"graphs",
       {{},
        trial(Codec::lz4, 2.59, 1420),
        trial(Codec::zstd1, 3.65, 560),
        trial(Codec::zstd1, 4.33, 660, {Kind::shuffle, 4})}},
      {"molecules", {{}, trial(Codec::lz4, 1.66, 4880), trial(Codec::zstd1, 1.81, 1040)}}};
  return all;
}

enum class Visits { in_order, shuffled };

/// Simulates an epoch, chunk by chunk, and returns its seconds.  The image has the chunks that fitted in file
/// order.  One thread reads, up to kAhead chunks ahead of the program; idle cores decompress.
double simulated_epoch(const Trial& t, const Conditions& c, Visits visits) {
  constexpr std::size_t kChunks = 400, kAhead = 16;
  const double chunk = c.size / kChunks;
  std::vector<bool> in_image(kChunks);
  double used = 0;
  for (std::size_t i = 0; i < kChunks && used + chunk / t.ratio <= c.budget * (1 + 1e-9); ++i) {
    in_image[i] = true;
    used += chunk / t.ratio;
  }
  if (visits == Visits::shuffled) {
    test::Rng rng(1);
    for (std::size_t i = kChunks; i > 1; --i) {
      const std::size_t other = rng.below(i);
      const bool value = in_image[i - 1];
      in_image[i - 1] = in_image[other];
      in_image[other] = value;
    }
  }
  const double unpack = t.recipe.codec == Codec::raw ? 0 : chunk / t.unpack_rate;
  const double use = c.program_rate > 0 ? chunk / c.program_rate : 0;
  std::vector<double> cores(c.prefetching ? c.idle_cores : 1), used_at(kChunks);
  double read_at = 0, now = 0;
  for (std::size_t i = 0; i < kChunks; ++i) {
    const double read = in_image[i] ? chunk / t.ratio / c.image_rate : chunk / c.original_rate;
    if (!c.prefetching) {
      now += read + (in_image[i] ? unpack : 0);
      continue;
    }
    if (i >= kAhead) read_at = std::max(read_at, used_at[i - kAhead]);
    read_at += read;
    double ready = read_at;
    if (in_image[i]) {
      double& core = *std::min_element(cores.begin(), cores.end());
      ready = core = std::max(core, read_at) + unpack;
    }
    now = used_at[i] = std::max(now, ready) + use;
  }
  return now;
}

struct Outcome {
  unsigned cases = 0, near = 0;
  double worst = 0;
};

Outcome compared(unsigned cores, double program_rate, Visits visits) {
  Outcome out;
  for (const Database& db : databases())
    for (const double image : {0.1e9, 0.5e9, 2e9})
      for (const double original : {0.1e9, 0.5e9, 2e9})
        for (const bool prefetching : {false, true})
          for (const double share : {0.25, 0.5, 1.0}) {
            const Conditions c = {.image_rate = image,
                                  .original_rate = original,
                                  .program_rate = program_rate,
                                  .idle_cores = cores,
                                  .prefetching = prefetching,
                                  .budget = share * 1e10,
                                  .size = 1e10};
            double best = std::numeric_limits<double>::infinity();
            for (const Trial& t : db.trials) best = std::min(best, simulated_epoch(t, c, visits));
            const Trial& chosen = db.trials[choose_recipe(db.trials, c, Goal::fastest)];
            const double excess = simulated_epoch(chosen, c, visits) / best - 1;
            ++out.cases;
            out.near += excess <= 0.05;
            out.worst = std::max(out.worst, excess);
          }
  return out;
}

TEST(RecipeChoice, IsNearTheBestOfAllRecipes) {
  const Outcome o = compared(2, 0, Visits::in_order);
  EXPECT_EQ(o.cases, 378u);
  EXPECT_GE(o.near, o.cases * 95 / 100);
  EXPECT_LE(o.worst, 0.1);
}

/// The cost adds up hits and misses.  In a shuffled epoch, cores decompress during misses, so that a recipe
/// with slow decompression is better than its cost.
TEST(RecipeChoice, IsMostlyNearTheBestUnderOtherConditions) {
  for (const Visits visits : {Visits::in_order, Visits::shuffled})
    for (const unsigned cores : {1u, 2u, 4u})
      for (const double program_rate : {0.0, 0.3e9, 1e9}) {
        const Outcome o = compared(cores, program_rate, visits);
        std::printf("%s, cores: %u, program: %.1f GB/s: %u of %u within 5 %%, at most %.1f %% worse\n",
                    visits == Visits::in_order ? "in order" : "shuffled", cores, program_rate / 1e9, o.near,
                    o.cases, 100 * o.worst);
        EXPECT_GE(o.near, o.cases * 9 / 10);
        EXPECT_LE(o.worst, visits == Visits::in_order ? 0.21 : 0.45);
      }
}

TEST(RecipeChoice, CostIsTheFormula) {
  const Trial t = trial(Codec::zstd1, 2, 500);
  Conditions c = {.image_rate = 1e9, .original_rate = 1e8, .idle_cores = 4, .budget = 1e9, .size = 4e9};
  EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 0.5 / 2e9 + 0.5 / 1e8);
  EXPECT_DOUBLE_EQ(seconds_per_byte({}, c), 0.25 / 1e9 + 0.75 / 1e8);
  EXPECT_DOUBLE_EQ(seconds_per_byte_without(c), 1 / 1e8);
  c.idle_cores = 1;
  EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 0.5 / 5e8 + 0.5 / 1e8);
  c.idle_cores = 0;
  EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 0.5 / 5e8 + 0.5 / 1e8) << "decompression then waits for a core";
  c.program_rate = 1e7;
  EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 1 / 1e7);
  EXPECT_DOUBLE_EQ(seconds_per_byte_without(c), 1 / 1e7);
  c.prefetching = false;
  EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 0.5 * (1 / 2e9 + 1 / 5e8) + 0.5 / 1e8);
  c.budget = 4e9;
  EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 1 / 2e9 + 1 / 5e8);
}

TEST(RecipeChoice, SmallReadsDecompressWholeFrames) {
  const Trial t = trial(Codec::zstd1, 2, 500);
  Conditions c = {.image_rate = 1e9, .original_rate = 1e8, .idle_cores = 4, .budget = 1e9, .size = 1e9};
  for (const double large : {0.0, 65536.0, 4e6}) {
    c.read_bytes = large;
    EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 1 / 2e9);
  }
  c.read_bytes = 4096;
  EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 16 / 2e9);
  EXPECT_DOUBLE_EQ(seconds_per_byte({}, c), 1 / 1e9);
  c.prefetching = false;
  EXPECT_DOUBLE_EQ(seconds_per_byte(t, c), 16 / 2e9 + 16 / 5e8);
}

TEST(RecipeChoice, WithinTwoPercentTheLargestCapacityWins) {
  Conditions c = {.image_rate = 1e9,
                  .original_rate = 1e8,
                  .idle_cores = 4,
                  .prefetching = false,
                  .budget = 1e9,
                  .size = 1e9};
  // Costs per GB: raw 1, lz4 0.99, zstd 1.005.
  std::vector<Trial> trials = {
      {}, trial(Codec::lz4, 2, 1 / 0.49 * 1000), trial(Codec::zstd1, 4, 1 / 0.755 * 1000)};
  EXPECT_EQ(choose_recipe(trials, c, Goal::fastest), 2u);
  trials[2].unpack_rate = 1e9 / 0.77;  // 1.02: more than 2 % above the best
  EXPECT_EQ(choose_recipe(trials, c, Goal::fastest), 1u);
}

TEST(RecipeChoice, DataThatIsHardlyCompressedStaysRaw) {
  // The ratios of JPEG files of 40 KB.
  const std::vector<Trial> jpeg = {{}, trial(Codec::lz4, 1.05, 5900), trial(Codec::zstd1, 1.06, 5000)};
  for (const double budget : {0.25e9, 0.5e9, 1e9})
    for (const Goal goal : {Goal::fastest, Goal::smallest})
      EXPECT_EQ(
          choose_recipe(
              jpeg, {.image_rate = 1e8, .original_rate = 5e7, .idle_cores = 4, .budget = budget, .size = 1e9},
              goal),
          0u);
}

TEST(RecipeChoice, SmallestIsTheLargestCapacityThatIsFastEnough) {
  const std::vector<Trial>& counts = databases()[4].trials;
  Conditions c = {.image_rate = 2e9,
                  .original_rate = 5e8,
                  .idle_cores = 1,
                  .prefetching = true,
                  .budget = 1e9,
                  .size = 1e9};
  EXPECT_EQ(choose_recipe(counts, c, Goal::fastest), 0u) << "raw: the image is faster than decompression";
  EXPECT_EQ(choose_recipe(counts, c, Goal::smallest), 3u) << "650 MB/s: faster than the original";
  c.original_rate = 2e9;
  EXPECT_EQ(choose_recipe(counts, c, Goal::smallest), 0u) << "raw takes exactly as long as the original";
  c.idle_cores = 4;
  EXPECT_EQ(choose_recipe(counts, c, Goal::smallest), 3u);
  c.idle_cores = 1;
  c.program_rate = 6e8;
  EXPECT_EQ(choose_recipe(counts, c, Goal::smallest), 3u) << "faster than the program";
  c.prefetching = false;
  EXPECT_EQ(choose_recipe(counts, c, Goal::smallest), 0u) << "the program waits for it";
}

std::vector<Bytes> pieces(const Data& data) {
  std::vector<Bytes> out;
  for (std::size_t at = 0; at < data.size(); at += kFrameBytes)
    out.push_back(Bytes(data).subspan(at, std::min(kFrameBytes, data.size() - at)));
  return out;
}

TEST(LearnDelta, FindsTheRowOrTheRecord) {
  EXPECT_EQ(learn_delta(pieces(test::chunk_data(test::ChunkData::rows, 8 * kFrameBytes, 1))), 300);
  EXPECT_EQ(learn_delta(pieces(test::chunk_data(test::ChunkData::floats, 2 * kFrameBytes, 1))), 4);
  // Records of 40 bytes: a counter, and fields that change little.
  Data records(4 * kFrameBytes);
  test::Rng rng(1);
  for (std::size_t i = 0; i < records.size(); ++i)
    records[i] = static_cast<std::byte>(i % 40 < 4 ? i / 40 >> 8 * (i % 40) : 7 * (i % 40) + rng.below(2));
  EXPECT_EQ(learn_delta(pieces(records)), 40);
  // An image of 3 planes with rows of 4096 bytes.
  Data image(2 * kFrameBytes);
  for (std::size_t i = 0; i < image.size(); ++i)
    image[i] = i < 4096 ? static_cast<std::byte>(rng.next() >> 56)
                        : static_cast<std::byte>(std::to_integer<unsigned>(image[i - 4096]) + rng.below(3));
  EXPECT_EQ(learn_delta(pieces(image)), 4096);
  EXPECT_EQ(learn_delta({}), 1);
  EXPECT_EQ(learn_delta(pieces(Data(10))), 1);
}

std::uint64_t fake_now, fake_step;
std::uint64_t fake_clock() noexcept { return fake_now += fake_step; }

Trials tried(const Data& data, std::uint64_t step) {
  fake_step = step;
  Scratch scratch;
  return try_recipes(pieces(data), fake_clock, scratch).value();
}
const Trial* smallest(const Trials& trials) {
  return &*std::max_element(trials.span().begin(), trials.span().end(),
                            [](const Trial& a, const Trial& b) { return a.ratio < b.ratio; });
}

TEST(TryRecipes, MeasuresAllRecipes) {
  const Trials t = tried(test::chunk_data(test::ChunkData::counts, 4 * kFrameBytes + 100, 1), 1000);
  EXPECT_EQ(t.pieces, 5u);
  ASSERT_EQ(t.count, built_in(Codec::zstd1) ? 16u : 1u);
  EXPECT_EQ(t.all[0].recipe, Recipe{});
  EXPECT_EQ(t.all[0].ratio, 1);
  for (const Trial& trial : t.span()) {
    EXPECT_TRUE(trial.recipe.valid());
    // Each piece took one step of the clock to pack, and one to unpack.
    EXPECT_DOUBLE_EQ(trial.pack_rate, (4 * kFrameBytes + 100) / 5e-6);
    EXPECT_DOUBLE_EQ(trial.unpack_rate, trial.pack_rate);
  }
  if (built_in(Codec::zstd1)) {
    EXPECT_GT(smallest(t)->ratio, 4);
    EXPECT_EQ(smallest(t)->recipe.filter, (Filter{Kind::shuffle, 2}));
    const Trials rows = tried(test::chunk_data(test::ChunkData::rows, 4 * kFrameBytes, 1), 1);
    EXPECT_GT(smallest(rows)->ratio, 2.5);
    EXPECT_EQ(smallest(rows)->recipe.filter, (Filter{Kind::delta, 300}));
  }
  EXPECT_EQ(smallest(tried(test::chunk_data(test::ChunkData::noise, 4 * kFrameBytes, 1), 1))->ratio, 1);
}

TEST(TryRecipes, StopsInTime) {
  const Data data = test::chunk_data(test::ChunkData::words, 8 * kFrameBytes, 1);
  EXPECT_EQ(tried(data, kTrialTime + 1).pieces, 1u) << "one piece always";
  EXPECT_EQ(tried(data, 0).pieces, 8u);
  const unsigned some = tried(data, kTrialTime / 100).pieces;
  EXPECT_GE(some, 2u);
  EXPECT_LT(some, built_in(Codec::lz4) ? 8u : 9u);
}

TEST(TryRecipes, ASampleMayBeEmpty) {
  const Trials t = tried({}, 1);
  EXPECT_EQ(t.pieces, 0u);
  EXPECT_EQ(
      choose_recipe(t.span(), {.image_rate = 1, .original_rate = 1, .budget = 1, .size = 1}, Goal::fastest),
      0u);
}

TEST(Sample, IsSpreadOverTheFile) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{8192}, std::uint64_t{32 * kFrameBytes}, std::uint64_t{1} << 50}) {
    for (unsigned i = 0; i < kSamplePlaces; ++i)
      EXPECT_LE(sample_offset(i, size) + std::min<std::uint64_t>(size, kFrameBytes),
                std::max<std::uint64_t>(size, 1));
  }
  EXPECT_EQ(sample_offset(1, 32 * kFrameBytes), kFrameBytes);
  EXPECT_GT(sample_offset(31, std::uint64_t{1} << 50), std::uint64_t{31} << 45 >> 1);
}

}  // namespace
}  // namespace lmdbio::cache
