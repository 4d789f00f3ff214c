// One limit for all private memory: what each use takes and gives back, shares, VMAs, and a machine whose
// memory goes.
#include <gtest/gtest.h>

#include "lmdbio/cache/memory_budget.h"

namespace lmdbio::cache {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
using Use = MemoryUse;

std::uint64_t machine_left = 0;
unsigned looks = 0;
MemoryFacts machine() noexcept {
  ++looks;
  return {8192 * kMiB, machine_left};
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
  EXPECT_EQ(b.left(), 4 * kMiB);
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
  EXPECT_EQ(b.left(), 0u);
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

// A limit that nobody has set grows no further where others need the memory; one that was set holds.
TEST(MemoryBudget, AMachineThatIsFull) {
  machine_left = 100 * kMiB;
  looks = 0;
  MemoryBudget set({4096 * kMiB, false, 100}, machine), share({4096 * kMiB, true, 100}, machine);
  for (MemoryBudget* const b : {&set, &share}) b->take(Use::chunks, 300 * kMiB, 2);
  EXPECT_TRUE(set.has_room(Use::chunks, kMiB, 0));
  EXPECT_EQ(looks, 0u);
  EXPECT_FALSE(share.has_room(Use::chunks, kMiB, 0));
  EXPECT_EQ(looks, 1u);
  EXPECT_FALSE(share.has_room(Use::chunks, kMiB, 0));
  // Room is made for something large, piece by piece: what may be used does not sink with it.
  share.give_back(Use::chunks, 4 * kMiB, 2);
  EXPECT_TRUE(share.has_room(Use::chunks, 4 * kMiB, 2));
  EXPECT_FALSE(share.has_room(Use::chunks, 32 * kMiB, 2));
  share.give_back(Use::chunks, 28 * kMiB, 0);
  EXPECT_TRUE(share.has_room(Use::chunks, 32 * kMiB, 2));
  EXPECT_EQ(looks, 1u);
  share.give_back(Use::chunks, 168 * kMiB, 0);
  EXPECT_TRUE(share.has_room(Use::chunks, kMiB, 0)) << "a little is always there";
}

TEST(MemoryBudget, AMachineWithRoom) {
  machine_left = 4096 * kMiB;
  looks = 0;
  MemoryBudget share({4096 * kMiB, true, 100}, machine);
  share.take(Use::chunks, 300 * kMiB, 2);
  EXPECT_TRUE(share.has_room(Use::chunks, 64 * kMiB, 0));
  EXPECT_TRUE(share.has_room(Use::chunks, 64 * kMiB, 0));
  EXPECT_EQ(looks, 1u) << "what was found is good for a while";
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
  EXPECT_EQ(b.left(), 44 * kMiB);
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
}  // namespace lmdbio::cache
