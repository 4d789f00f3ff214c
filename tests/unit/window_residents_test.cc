// Resident chunks: found, kept in order, and evicted in the order of eviction_rank(), whatever happened
// before.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "lmdbio/window/residents.h"
#include "tests/support/rng.h"

namespace lmdbio::window {
namespace {

Resident resident(std::uint32_t chunk, bool used, std::uint64_t left) {
  Resident r;
  r.chunk = ChunkIndex{chunk};
  r.used = used;
  r.left = left;
  return r;
}

void add(Residents& to, const Resident& r) {
  to.prepare(r.chunk);
  to.add(r);
}

std::vector<std::uint32_t> chunks(const Residents::List& list) {
  std::vector<std::uint32_t> out;
  for (const Resident& r : list) out.push_back(raw(r.chunk));
  return out;
}

TEST(Residents, Order) {
  Residents all;
  EXPECT_EQ(all.oldest(), nullptr);
  add(all, resident(3, true, 1));
  add(all, resident(7, false, 2));
  add(all, resident(9, false, 2));
  EXPECT_EQ(all.size(), 3u);
  EXPECT_EQ(raw(all.oldest()->chunk), 3u);
  all.touch(ChunkIndex{7}, 5, true);
  EXPECT_EQ(chunks(all.used()), (std::vector<std::uint32_t>{3, 7}));
  EXPECT_EQ(chunks(all.unused()), std::vector<std::uint32_t>{9});
  all.touch(ChunkIndex{3}, 6, false);  // it stays used
  EXPECT_EQ(chunks(all.used()), (std::vector<std::uint32_t>{7, 3}));
  all.touch(ChunkIndex{100}, 6, true);  // it is not resident
  EXPECT_EQ(all.find(ChunkIndex{100}), nullptr);
  EXPECT_EQ(all.find(ChunkIndex{3})->left, 6u);
  all.erase(ChunkIndex{3});
  EXPECT_EQ(all.find(ChunkIndex{3}), nullptr);
  EXPECT_EQ(all.size(), 2u);
  all.clear();
  EXPECT_TRUE(all.empty());
}

TEST(Residents, WhatIsPreparedIsNotThereYet) {
  Residents all;
  all.prepare(ChunkIndex{4});
  EXPECT_TRUE(all.empty());
  EXPECT_EQ(all.oldest(), nullptr);
  all.cancel(ChunkIndex{4});
  all.cancel(ChunkIndex{5});
  add(all, resident(4, false, 1));
  all.prepare(ChunkIndex{6});
  all.clear();
  EXPECT_TRUE(all.empty());
  all.add(resident(6, true, 2));
  EXPECT_EQ(all.size(), 1u);
}

TEST(Residents, EachMayBeErasedOnTheWay) {
  Residents all;
  for (std::uint32_t c = 0; c < 10; ++c) add(all, resident(c, c % 3 == 0, c));
  all.for_each([&](const Resident& r) {
    if (raw(r.chunk) % 2 == 0) all.erase(r.chunk);
  });
  EXPECT_EQ(chunks(all.used()), (std::vector<std::uint32_t>{3, 9}));
  EXPECT_EQ(chunks(all.unused()), (std::vector<std::uint32_t>{1, 5, 7}));
}

// The chosen chunk has the highest rank of all chunks that may be evicted.
TEST(Residents, FirstToGo) {
  test::Rng rng(20261127);
  for (int round = 0; round < 200; ++round) {
    Residents all;
    std::uint64_t now = 0;
    std::set<std::uint32_t> planned, to_stay;
    const std::uint32_t most = 4 + static_cast<std::uint32_t>(rng.below(60));
    for (int step = 0; step < 300; ++step) {
      now += rng.below(2);
      const auto chunk = static_cast<std::uint32_t>(rng.below(most));
      if (all.find(ChunkIndex{chunk}) == nullptr)
        add(all, resident(chunk, rng.percent(50), now));
      else if (rng.percent(30))
        all.touch(ChunkIndex{chunk}, now, rng.percent(50));
      for (std::set<std::uint32_t>* const some : {&planned, &to_stay}) {
        const auto other = static_cast<std::uint32_t>(rng.below(most));
        if (rng.percent(some == &planned ? 60 : 20))
          some->insert(other);
        else
          some->erase(other);
      }
      const auto rank_of = [&](const Resident& r) {
        EvictionFacts facts;
        facts.planned = planned.count(raw(r.chunk)) != 0;
        facts.awaited = raw(r.chunk) % 2 == 0;
        facts.position = raw(r.chunk);
        facts.used = r.used;
        facts.age = now - r.left;
        facts.published = r.left;
        facts.of_others = to_stay.count(raw(r.chunk)) != 0;
        return eviction_rank(facts);
      };
      for (const bool even_planned : {false, true}) {
        std::optional<EvictionRank> best;
        all.for_each([&](const Resident& r) {
          const EvictionRank rank = rank_of(r);
          if (rank.rank >= kLeastUnplanned || even_planned) best = std::max(best.value_or(rank), rank);
        });
        const Resident* const got = first_to_go(
            all, now, even_planned, [&](const Resident& r) { return planned.count(raw(r.chunk)) != 0; },
            [&](const Resident& r) { return to_stay.count(raw(r.chunk)) != 0; }, rank_of);
        ASSERT_EQ(got != nullptr, best.has_value());
        if (got != nullptr) {
          EXPECT_EQ(rank_of(*got), *best) << raw(got->chunk);
        }
      }
      if (rng.percent(20) && all.size() != 0) all.erase(all.oldest()->chunk);
    }
  }
}

// Of thousands, few are looked at: the newest that were left, beside those that are planned.
TEST(Residents, FewAreLookedAt) {
  constexpr std::uint32_t kAll = 8192, kPlanned = 64;
  Residents all;
  for (std::uint32_t c = 0; c < kAll; ++c) add(all, resident(c, true, c));
  unsigned looks = 0;
  const Resident* const got = first_to_go(
      all, kAll, false,
      [&](const Resident& r) {
        ++looks;
        return raw(r.chunk) >= kAll - kPlanned;
      },
      [](const Resident&) { return false; }, [](const Resident&) { return EvictionRank{}; });
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(raw(got->chunk), kAll - kPlanned - 1);
  EXPECT_LE(looks, kPlanned + 1);
}

}  // namespace
}  // namespace lmdbio::window
