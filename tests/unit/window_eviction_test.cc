// Which chunk goes first: the order of all kinds of chunks, each rule by itself.
#include <gtest/gtest.h>

#include <vector>

#include "lmdbio/window/eviction.h"

namespace lmdbio::window {
namespace {

constexpr EvictionFacts left(std::uint64_t age, bool used, std::uint64_t published = 0) {
  EvictionFacts f;
  f.age = age;
  f.used = used;
  f.published = published;
  return f;
}
constexpr EvictionFacts planned(std::uint64_t position, bool awaited) {
  EvictionFacts f;
  f.planned = true;
  f.awaited = awaited;
  f.used = awaited;
  f.position = position;
  return f;
}

TEST(Eviction, TheOrderOfAllKinds) {
  const std::vector<EvictionFacts> order = {
      left(100, false),               // never used, the oldest
      left(kJustLeft, false),         // never used
      left(kJustLeft, true, 96),      // left, the newest
      left(100, true, 0),             // left long ago: a walk that starts anew comes to it first
      left(kJustLeft - 1, true, 97),  // left just now, the oldest of it
      left(0, true, 100),             //
      left(kJustLeft - 1, false),     // not used, and not long out of a plan: needed soon
      left(0, false),                 //
      planned(9, false),              // planned, the last in its plan
      planned(1, false),              //
      planned(1, true),               // awaited
      planned(0, true),               //
  };
  for (std::size_t i = 0; i + 1 < order.size(); ++i)
    EXPECT_GT(eviction_rank(order[i]), eviction_rank(order[i + 1])) << i;
}

TEST(Eviction, WhoWaitsForMemoryMayTakeWhatIsPlanned) {
  for (const bool awaited : {false, true})
    EXPECT_LT(eviction_rank(planned(5, awaited)).rank, kLeastUnplanned);
  for (const std::uint64_t age : {0u, 3u, 4u, 1000u})
    for (const bool used : {false, true}) EXPECT_GE(eviction_rank(left(age, used)).rank, kLeastUnplanned);
}

TEST(Eviction, WhatIsPlannedIsNotJudgedByItsAge) {
  EvictionFacts f = planned(3, false);
  const EvictionRank rank = eviction_rank(f);
  f.age = 1000;
  EXPECT_EQ(eviction_rank(f), rank);
}

TEST(Eviction, Behind) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  EXPECT_FALSE(evicts_behind(64 * kMiB, false, 1024 * kMiB)) << "a small file is kept whole";
  EXPECT_TRUE(evicts_behind(64 * kMiB + 1, false, 1024 * kMiB)) << "it is not likely to be found again";
  EXPECT_FALSE(evicts_behind(512 * kMiB, true, 256 * kMiB)) << "a part of it that is worth keeping";
  EXPECT_TRUE(evicts_behind(512 * kMiB + 2, true, 256 * kMiB));
}

}  // namespace
}  // namespace lmdbio::window
