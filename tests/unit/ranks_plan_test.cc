// When ranks read scattered orders for each other: estimates, at the ends of their ranges and in between.
#include <gtest/gtest.h>

#include <algorithm>

#include "lmdbio/ranks/plan.h"

namespace lmdbio::ranks {
namespace {

constexpr std::uint64_t kKiB = 1024, kGiB = std::uint64_t{1} << 30;

/// A shuffle of so many records, without end; each node has room for `room` bytes.
ScatterFacts shuffle(std::uint64_t records, std::uint64_t record_bytes, std::uint32_t nodes,
                     std::uint64_t room) {
  ScatterFacts f;
  f.records = f.elements = records;
  f.record_bytes = record_bytes;
  f.fetch_records = 4096 * kKiB / record_bytes;
  f.round_records = nodes * (4096 * kKiB / std::max<std::uint64_t>(record_bytes, 4096));
  f.nodes = f.readers = nodes;
  f.room = room;
  return f;
}

// ImageNet's 1.3 million values of 110 KiB.
TEST(Plan, OneEpochOfLargeValuesIsReadAlone) {
  ScatterFacts f = shuffle(1'300'000, 112 * kKiB, 16, 20 * kGiB);
  f.epochs = 1;
  EXPECT_FALSE(exchanges_scattered(f));
  // Each record is read once, either way.
  const ScatterCosts costs = scatter_costs(f);
  EXPECT_LT(costs.exchanged, 1.2 * costs.alone);
}

TEST(Plan, LaterEpochsComeFromTheMemoryOfAllNodes) {
  ScatterFacts f = shuffle(1'300'000, 112 * kKiB, 16, 20 * kGiB);
  EXPECT_TRUE(exchanges_scattered(f)) << "together the nodes have room for it, each of them has not";
  f.room = 4 * kGiB;
  EXPECT_FALSE(exchanges_scattered(f)) << "nobody has room: nothing is gained";
  f.room = 200 * kGiB;
  EXPECT_TRUE(exchanges_scattered(f)) << "else each of 16 nodes would read all of it";
}

TEST(Plan, OneNodeHasOnePageCache) {
  EXPECT_FALSE(exchanges_scattered(shuffle(1'300'000, 112 * kKiB, 1, 200 * kGiB)));
  EXPECT_FALSE(exchanges_scattered(shuffle(10'000'000, 200, 1, 200 * kGiB)));
}

// Without memory hardly any two records of a round lie in one page, even in a round of 64 nodes.
TEST(Plan, SmallValuesWithoutMemoryAreReadAlone) {
  ScatterFacts f = shuffle(10'000'000, 200, 64, 0);
  EXPECT_FALSE(exchanges_scattered(f));
  f.room = kGiB;
  EXPECT_TRUE(exchanges_scattered(f)) << "a node has room for its part of the pages";
}

// What a rank reads together of a small file of small values lies so close to each other that it reads the
// file from end to end; measured on 4 hosts: 8.2 s alone, 10.7 s together.  Values of 3 KiB: 4.8 and 4.0 s.
TEST(Plan, WhatIsDenseIsReadAlone) {
  EXPECT_FALSE(exchanges_scattered(shuffle(2'237'000, 240, 4, 20 * kGiB)));
  EXPECT_TRUE(exchanges_scattered(shuffle(130'000, 4130, 4, 20 * kGiB)));
}

// Each reader computes the order of all ranks.
TEST(Plan, TooManyReadersComputeTooMuch) {
  EXPECT_TRUE(exchanges_scattered(shuffle(1'300'000, 112 * kKiB, 16, 20 * kGiB)));
  EXPECT_FALSE(exchanges_scattered(shuffle(1'300'000, 112 * kKiB, 20'000, 20 * kGiB)));
}

TEST(Plan, NothingToRead) {
  EXPECT_FALSE(exchanges_scattered(ScatterFacts{}));
  ScatterFacts f = shuffle(1, 1, 4, 0);
  f.record_bytes = 0;
  f.fetch_records = f.round_records = 0;
  EXPECT_GE(scatter_costs(f).alone, 0);
}

// More memory never makes an estimate dearer, nor more epochs cheaper.
TEST(Plan, IsMonotonous) {
  for (const std::uint64_t bytes : {50u, 4096u, 120'000u}) {
    for (const std::uint32_t nodes : {1u, 2u, 9u, 4000u}) {
      ScatterCosts before{1e300, 1e300};
      for (std::uint64_t room = 1; room < std::uint64_t{1} << 45; room *= 4) {
        const ScatterCosts now = scatter_costs(shuffle(1'000'000, bytes, nodes, room));
        EXPECT_LE(now.exchanged, before.exchanged * 1.000001);
        before = now;
      }
      ScatterCosts fewer;
      for (std::uint64_t epochs = 1; epochs < 20; ++epochs) {
        ScatterFacts f = shuffle(1'000'000, bytes, nodes, kGiB);
        f.epochs = epochs;
        const ScatterCosts now = scatter_costs(f);
        EXPECT_GE(now.alone, fewer.alone);
        EXPECT_GE(now.exchanged, fewer.exchanged);
        fewer = now;
      }
    }
  }
}

}  // namespace
}  // namespace lmdbio::ranks
