// One limit for all private memory: what each use takes and gives back, shares, VMAs, and a machine whose
// memory goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "lmdbio/gather/memory_budget.h"

namespace lmdbio::gather {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
using Use = MemoryUse;

std::uint64_t machine_left = 0;
unsigned looks = 0;
MemoryFacts machine() noexcept {
  ++looks;
  return {8192 * kMiB, machine_left, 0};
}

TEST(MemoryBudget, Counts) {
  MemoryBudget b({64 * kMiB, false, 100});
  EXPECT_EQ(b.limit(), 64 * kMiB);
  EXPECT_TRUE(b.has_room(Use::chunks, 64 * kMiB, 100));
  EXPECT_FALSE(b.has_room(Use::chunks, 64 * kMiB + 1, 0));
  EXPECT_FALSE(b.has_room(Use::chunks, 0, 101));
  b.take(Use::chunks, 40 * kMiB, 10);
  b.take(Use::prefetch, 20 * kMiB, 2);
  EXPECT_EQ(b.used(), 60 * kMiB);
  EXPECT_EQ(b.used(Use::chunks), 40 * kMiB);
  EXPECT_EQ(b.used(Use::prefetch), 20 * kMiB);
  EXPECT_EQ(b.vmas(), 12u);
  EXPECT_EQ(b.left(Use::chunks), 4 * kMiB);
  EXPECT_EQ(b.vmas_left(), 88u);
  EXPECT_FALSE(b.over_limit());
  b.give_back(Use::chunks, 40 * kMiB, 10);
  b.give_back(Use::prefetch, 20 * kMiB, 2);
  EXPECT_EQ(b.used(), 0u);
  EXPECT_EQ(b.vmas(), 0u);
}

// What cannot be mapped takes what it needs.
TEST(MemoryBudget, MoreThanTheLimit) {
  MemoryBudget b({4 * kMiB, false, 2});
  b.take(Use::chunks, 8 * kMiB, 4);
  EXPECT_TRUE(b.over_limit());
  EXPECT_EQ(b.left(Use::chunks), 0u);
  EXPECT_EQ(b.vmas_left(), 0u);
  EXPECT_FALSE(b.has_room(Use::chunks, 0, 1));
}

TEST(MemoryBudget, NoUseGivesBackWhatAnotherTook) {
  MemoryBudget b({64 * kMiB, false, 100});
  b.take(Use::chunks, 10 * kMiB, 4);
  b.give_back(Use::prefetch, 10 * kMiB, 4);
  EXPECT_EQ(b.used(), 10 * kMiB);
  EXPECT_EQ(b.vmas(), 4u);
  b.give_back(Use::chunks, 20 * kMiB, 40);
  EXPECT_EQ(b.used(), 0u);
  EXPECT_EQ(b.vmas(), 0u);
}

TEST(MemoryBudget, SharesOfUses) {
  MemoryBudget b({64 * kMiB, false, 100});
  EXPECT_TRUE(b.within_share(Use::chunks, 64 * kMiB));
  EXPECT_TRUE(b.within_share(Use::prefetch, 48 * kMiB));
  EXPECT_FALSE(b.within_share(Use::prefetch, 48 * kMiB + 1));
  b.take(Use::prefetch, 40 * kMiB, 2);
  EXPECT_FALSE(b.within_share(Use::prefetch, 8 * kMiB + 1));
  EXPECT_TRUE(b.within_share(Use::prefetch, 8 * kMiB));
}

// Prepared batches leave half of the limit to readers, and nothing is guaranteed to them.
TEST(MemoryBudget, PreparedBatches) {
  MemoryBudget b({64 * kMiB, false, 100});
  EXPECT_TRUE(b.within_share(Use::prepared, 32 * kMiB));
  EXPECT_FALSE(b.within_share(Use::prepared, 32 * kMiB + 1));
  b.join(Use::prepared);
  EXPECT_EQ(b.left(Use::readers), 64 * kMiB);
  b.take(Use::prepared, 32 * kMiB, 0);
  EXPECT_EQ(b.left(Use::readers), 32 * kMiB);
  b.join(Use::chunks);
  EXPECT_EQ(b.left(Use::prepared), 16 * kMiB) << "a quarter is guaranteed to walks";
}

// If other programs need the memory, a limit in percent shrinks, and one in bytes does not.
TEST(MemoryBudget, AMachineThatIsFull) {
  machine_left = 1024 * kMiB;  // which is kept free
  looks = 0;
  MemoryBudget set({4096 * kMiB, false, 100}, machine), share({4096 * kMiB, true, 100}, machine);
  for (MemoryBudget* const b : {&set, &share}) b->take(Use::chunks, 300 * kMiB, 2);
  EXPECT_TRUE(set.has_room(Use::chunks, kMiB, 0));
  EXPECT_EQ(looks, 0u);
  EXPECT_FALSE(share.has_room(Use::chunks, 32 * kMiB, 0));
  EXPECT_EQ(looks, 1u);
  EXPECT_FALSE(share.has_room(Use::chunks, 32 * kMiB, 0));
  EXPECT_EQ(share.excess(), 0u);
  // Room is made for something large, piece by piece: what may be used does not sink with it.
  share.give_back(Use::chunks, 4 * kMiB, 2);
  EXPECT_TRUE(share.has_room(Use::chunks, 4 * kMiB, 2));
  EXPECT_FALSE(share.has_room(Use::chunks, 32 * kMiB, 2));
  share.give_back(Use::chunks, 28 * kMiB, 0);
  EXPECT_TRUE(share.has_room(Use::chunks, 32 * kMiB, 2));
  EXPECT_EQ(looks, 1u);
}

TEST(MemoryBudget, AMachineThatIsTooFull) {
  machine_left = 1004 * kMiB;
  MemoryBudget share({4096 * kMiB, true, 100}, machine);
  share.take(Use::chunks, 300 * kMiB, 2);
  EXPECT_FALSE(share.has_room(Use::chunks, 0, 0));
  EXPECT_NEAR(static_cast<double>(share.excess()), 20.0 * kMiB, 16);
  machine_left = 100 * kMiB;
  MemoryBudget other({4096 * kMiB, true, 100}, machine);
  other.take(Use::chunks, 300 * kMiB, 2);
  EXPECT_FALSE(other.has_room(Use::chunks, 0, 0));
  EXPECT_EQ(other.excess(), 44 * kMiB) << "a little is always there";
  EXPECT_GT(other.look_again_ns(), 0);
  other.give_back(Use::chunks, 60 * kMiB, 0);
  EXPECT_TRUE(other.has_room(Use::chunks, kMiB, 0));
  EXPECT_EQ(other.look_again_ns(), 0);
}

TEST(MemoryBudget, AMachineWithRoom) {
  machine_left = 4096 * kMiB;
  looks = 0;
  MemoryBudget share({4096 * kMiB, true, 100}, machine);
  share.take(Use::chunks, 300 * kMiB, 2);
  EXPECT_TRUE(share.has_room(Use::chunks, 64 * kMiB, 0));
  EXPECT_TRUE(share.has_room(Use::chunks, 64 * kMiB, 0));
  EXPECT_EQ(looks, 1u) << "what was found is good for a while";
  EXPECT_EQ(share.left(Use::chunks), 3072 * kMiB) << "as far as is free";
}

// Of a group of 1024 MiB, of which 256 MiB stay free.
struct Group {
  std::uint64_t used, available;  // MiB
  unsigned others = 0;
  std::uint64_t of_others = 0, promised = 0;
  bool agreed = true, seen = true;
};
Agreement agree_in(const Group& g) {
  AgreementFacts f;
  f.limit = 256 * kMiB;
  f.used = g.used * kMiB;
  f.more = 4 * kMiB;
  f.memory = {1024 * kMiB, g.available * kMiB, 1};
  f.is_agreed = g.agreed;
  f.sees_others = g.seen;
  f.others = {g.others, g.of_others * kMiB, std::max(g.of_others, g.promised) * kMiB};
  return agree(f);
}

TEST(MemoryAgreement, Table) {
  const struct {
    const char* what;
    Group group;
    std::uint64_t limit, grow_to;  // MiB, rounded down
  } rows[] = {
      {"alone: its own limit, in steps", {0, 1024}, 256, 16},
      {"alone, grown", {250, 774}, 256, 256},
      {"two have half of it together", {100, 824, 1, 100}, 256, 116},
      {"four: an eighth each", {100, 624, 3, 300}, 128, 116},
      {"sixteen", {0, 1024, 15, 0}, 32, 16},
      {"one that starts later waits", {0, 512, 1, 512}, 0, 0},
      {"and the others give way", {256, 512, 2, 256}, 170, 170},
      {"what was promised counts", {0, 1024, 1, 0, 512}, 0, 0},
      {"programs use the rest: what is free is shared", {0, 276, 3, 0}, 5, 5},
      {"programs need more: each gives its part", {60, 226, 1, 30}, 39, 39},
      {"nothing is free", {60, 0, 3, 180}, 0, 0},
      {"set by the user, in percent: others do not count", {100, 624, 3, 500, 500, false, false}, 256, 116},
      {"others are not seen: half stays free", {0, 1024, 0, 0, 0, true, false}, 32, 16},
      {"likewise", {0, 500, 0, 0, 0, true, false}, 0, 0},
      {"likewise, given back", {20, 502, 0, 0, 0, true, false}, 9, 9},
  };
  for (const auto& r : rows) {
    const Agreement a = agree_in(r.group);
    EXPECT_EQ(a.limit / kMiB, r.limit) << r.what;
    EXPECT_EQ(a.grow_to / kMiB, r.grow_to) << r.what;
  }
}

// Whoever asks in whatever order: together no more than half, and no process with much less than its part.
// Of many, the last get less: an N-th of what is left is soon less than a chunk.
TEST(MemoryAgreement, ProcessesThatComeOneByOne) {
  for (const unsigned processes : {1u, 2u, 4u, 16u}) {
    std::vector<std::uint64_t> used(processes), promised(processes);
    std::uint64_t most = 0;
    for (unsigned round = 0; round < 400; ++round) {
      for (unsigned p = 0; p < processes; ++p) {
        if (round < 10 * p) continue;
        AgreementFacts f;
        f.limit = 256 * kMiB;
        f.used = used[p];
        f.more = 2 * kMiB;
        f.is_agreed = f.sees_others = true;
        std::uint64_t sum = 0;
        for (unsigned other = 0; other < processes; ++other) {
          sum += used[other];
          if (other == p || promised[other] == 0) continue;
          ++f.others.processes;
          f.others.used += used[other];
          f.others.promised += std::max(used[other], promised[other]);
        }
        f.memory = {1024 * kMiB, 1000 * kMiB - sum, 1};
        const Agreement a = agree(f);
        promised[p] = std::max<std::uint64_t>(a.grow_to, 1);
        // Takes half of what it may, in chunks; the rest at the next look.
        while (used[p] > a.limit) used[p] -= std::min<std::uint64_t>(used[p], 2 * kMiB);
        if (used[p] + 2 * kMiB <= a.grow_to) used[p] += 2 * kMiB;
        sum = 0;
        for (const std::uint64_t u : used) sum += u;
        most = std::max(most, sum);
      }
    }
    EXPECT_LE(most, 512 * kMiB) << processes;
    for (const std::uint64_t u : used)
      EXPECT_GE(u, std::min<std::uint64_t>(256, 512 / processes) * kMiB / 4) << processes;
  }
}

TEST(MemoryBudget, AForkedChildHasTakenNothing) {
  MemoryBudget b({64 * kMiB, false, 100});
  b.take(Use::chunks, 10 * kMiB, 4);
  b.take(Use::prefetch, 10 * kMiB, 4);
  b.forget_all();
  EXPECT_EQ(b.used(), 0u);
  b.give_back(Use::prefetch, 10 * kMiB, 4);
  EXPECT_EQ(b.used(), 0u);
  EXPECT_EQ(b.vmas(), 0u);
}

// While a use has users, others leave its part to it; what it has counts towards that.
TEST(MemoryBudget, WhatIsGuaranteedIsLeft) {
  MemoryBudget b({64 * kMiB, false, 100});
  EXPECT_TRUE(b.has_room(Use::chunks, 64 * kMiB, 0)) << "nobody else is there";
  b.join(Use::readers);
  EXPECT_EQ(b.guaranteed(Use::readers), 16 * kMiB);
  EXPECT_TRUE(b.has_room(Use::chunks, 48 * kMiB, 0));
  EXPECT_FALSE(b.has_room(Use::chunks, 48 * kMiB + 1, 0));
  EXPECT_TRUE(b.has_room(Use::readers, 64 * kMiB, 0)) << "its own part is not kept from it";
  b.take(Use::readers, 10 * kMiB, 0);
  EXPECT_TRUE(b.has_room(Use::chunks, 48 * kMiB, 0));
  b.take(Use::readers, 10 * kMiB, 0);
  EXPECT_TRUE(b.has_room(Use::chunks, 44 * kMiB, 0)) << "no more is left to it than its part";
  EXPECT_FALSE(b.has_room(Use::chunks, 44 * kMiB + 1, 0));
  b.join(Use::index);
  b.join(Use::prefetch);
  EXPECT_EQ(b.left(Use::chunks), 28 * kMiB);
  b.join(Use::index);
  b.leave(Use::index);
  EXPECT_EQ(b.left(Use::chunks), 28 * kMiB) << "one user is still there";
  b.leave(Use::index);
  b.leave(Use::index);
  EXPECT_EQ(b.left(Use::chunks), 36 * kMiB);
  b.forget_all();
  EXPECT_EQ(b.left(Use::chunks), 64 * kMiB) << "a child has no users";
}

TEST(MemoryBudget, NeedsTakeWhatIsLeftForOthers) {
  MemoryBudget b({64 * kMiB, false, 100});
  b.join(Use::chunks);
  b.take(Use::readers, 40 * kMiB, 0);
  EXPECT_FALSE(b.has_room(Use::readers, 9 * kMiB, 0));
  EXPECT_TRUE(b.has_room_for_need(24 * kMiB));
  EXPECT_FALSE(b.has_room_for_need(24 * kMiB + 1));
  EXPECT_TRUE(b.has_room_for_need(0));
  b.take(Use::readers, 25 * kMiB, 0);
  EXPECT_FALSE(b.has_room_for_need(0)) << "over the limit";
}

TEST(MemoryBudget, WhoWaitsComesFirst) {
  MemoryBudget b({64 * kMiB, false, 100});
  b.begin_wait();
  EXPECT_FALSE(b.has_room(Use::chunks, kMiB, 0));
  EXPECT_FALSE(b.has_room(Use::readers, kMiB, 0));
  EXPECT_TRUE(b.has_room_for_need(kMiB));
  b.end_wait();
  b.end_wait();
  EXPECT_TRUE(b.has_room(Use::chunks, kMiB, 0));
  b.begin_wait();
  b.forget_all();
  EXPECT_TRUE(b.has_room(Use::chunks, kMiB, 0));
}

TEST(MemoryBudget, WhoHasMoreThanItsPartIsPressed) {
  MemoryBudget b({64 * kMiB, false, 100});
  b.join(Use::readers);
  b.take(Use::readers, 60 * kMiB, 0);
  EXPECT_FALSE(b.pressed(Use::readers)) << "nobody else wants it";
  b.join(Use::chunks);
  EXPECT_TRUE(b.pressed(Use::readers));
  b.give_back(Use::readers, 12 * kMiB, 0);
  EXPECT_FALSE(b.pressed(Use::readers));
  b.begin_wait();
  EXPECT_TRUE(b.pressed(Use::readers));
  b.give_back(Use::readers, 32 * kMiB, 0);
  EXPECT_FALSE(b.pressed(Use::readers)) << "its part is its own";
  b.end_wait();
}

TEST(MemoryBudget, BuildsHaveAShare) {
  MemoryBudget b({64 * kMiB, false, 100});
  EXPECT_TRUE(b.within_share(Use::index, 16 * kMiB));
  EXPECT_FALSE(b.within_share(Use::index, 16 * kMiB + 1));
  EXPECT_TRUE(b.within_share(Use::readers, 64 * kMiB));
}

// Without a descriptor, say, nothing can be known for a while.
TEST(MemoryBudget, MemoryThatIsNotKnownChangesNothing) {
  static bool known;
  const auto facts = []() noexcept -> MemoryFacts {
    return {8192 * kMiB, known ? 4096 * kMiB : 0, 0, known};
  };
  known = true;
  MemoryBudget b({4096 * kMiB, true, 100}, facts);
  EXPECT_TRUE(b.has_room(Use::chunks, 600 * kMiB, 0));
  const std::uint64_t limit = b.limit_now();
  EXPECT_GT(limit, 0u);
  known = false;
  b.take(Use::chunks, 600 * kMiB, 2);
  EXPECT_FALSE(b.has_room(Use::chunks, 900 * kMiB, 0)) << "it looks again, in vain";
  EXPECT_EQ(b.limit_now(), limit);
  EXPECT_EQ(b.excess(), 0u);
  EXPECT_FALSE(b.nearly_full());
}

TEST(MemoryBudget, NothingIsReadAheadIfMemoryIsNearlyFull) {
  looks = 0;
  machine_left = 64 * kMiB - 1;
  MemoryBudget b({64 * kMiB, false, 100}, machine);
  EXPECT_TRUE(b.nearly_full());
  machine_left = 64 * kMiB;
  for (int i = 0; i < 100; ++i) (void)b.nearly_full();
  EXPECT_LE(looks, 100u / 2) << "the answer holds for a while";
  EXPECT_FALSE(MemoryBudget({64 * kMiB, false, 100}, machine).nearly_full());
  const auto group = []() noexcept -> MemoryFacts { return {160 * kMiB, machine_left, 1}; };
  machine_left = 20 * kMiB;
  EXPECT_FALSE(MemoryBudget({40 * kMiB, true, 100}, group).nearly_full());
  machine_left = 20 * kMiB - 1;
  EXPECT_TRUE(MemoryBudget({40 * kMiB, true, 100}, group).nearly_full());
}

TEST(MemoryBudget, VmasOfThisProcess) {
  const std::uint64_t n = vmas_to_use();
  EXPECT_GT(n, 0u);
  EXPECT_LT(n, std::uint64_t{1} << 32);
}

// What cannot be mapped may exceed the limit; it leaves the others what is guaranteed to them.
TEST(MemoryBudget, UnmappedFilesLeaveOthersTheirPart) {
  constexpr std::uint64_t kLimit = 64 * kMiB;
  MemoryBudget b({kLimit, false, 1000});
  b.take(MemoryUse::unmapped, 3 * kLimit, 0);
  EXPECT_TRUE(b.over_limit());
  EXPECT_EQ(b.left(MemoryUse::readers), 0u) << "nobody reads";
  EXPECT_EQ(b.used_within_limit(), kLimit);
  b.join(MemoryUse::readers);
  const std::uint64_t part = b.guaranteed(MemoryUse::readers);
  EXPECT_EQ(b.left(MemoryUse::readers), part);
  EXPECT_TRUE(b.has_room_for_need(part));
  EXPECT_FALSE(b.has_room_for_need(part + 1));
  EXPECT_TRUE(b.has_room(MemoryUse::readers, part, 0));
  EXPECT_FALSE(b.has_room(MemoryUse::prefetch, 1, 0)) << "that is the readers'";
  b.take(MemoryUse::readers, part, 0);
  EXPECT_FALSE(b.has_room_for_need(1));
  b.give_back(MemoryUse::unmapped, 3 * kLimit, 0);
  EXPECT_EQ(b.used_within_limit(), part);
}

// Indexes that a program needs leave to open readers what is guaranteed to them.
TEST(MemoryBudget, NeedsOfIndexes) {
  MemoryBudget b({64 * kMiB, false, 100});
  EXPECT_TRUE(b.has_room_for_need(64 * kMiB, Use::index)) << "no reader is open";
  b.join(Use::readers);
  b.take(Use::readers, kMiB, 0);
  EXPECT_EQ(b.owed(Use::readers), 15 * kMiB);
  EXPECT_TRUE(b.has_room_for_need(48 * kMiB, Use::index));
  EXPECT_FALSE(b.has_room_for_need(48 * kMiB + 1, Use::index));
  EXPECT_TRUE(b.has_room_for_need(63 * kMiB, Use::readers));
  b.take(Use::readers, 19 * kMiB, 0);
  EXPECT_TRUE(b.has_room_for_need(44 * kMiB, Use::index)) << "they have it already";
  EXPECT_FALSE(b.has_room_for_need(44 * kMiB + 1, Use::index));
  EXPECT_EQ(b.left_by_needs(Use::index), 0u);
  EXPECT_EQ(b.left_by_needs(Use::index, 8 * kMiB), 4 * kMiB) << "if they gave 8 MiB back";
}

}  // namespace
}  // namespace lmdbio::gather
