#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "lmdbio/io/engine_memory.h"
#include "lmdbio/io/read_queue.h"
#include "tests/support/faulty_engine.h"
#include "tests/support/rng.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

using testing::AlignedBuffer;
using testing::Fault;
using testing::FaultPlan;
using testing::FaultyEngine;
using testing::pattern;

constexpr std::size_t kAlign = 512, kFile = 100'000;
constexpr IoEngine::Caps kDirect{kAlign, 4, true};

std::unique_ptr<FaultyEngine> faulty(const std::vector<std::byte>& file, FaultPlan plan = {},
                                     std::uint64_t seed = 0) {
  return std::make_unique<FaultyEngine>(memory_engine(file, kDirect), plan, seed);
}

/// A wanted extent, its memory and its group.
struct Want {
  explicit Want(const ReadQueue& q, Extent e)
      : extent(e), memory(std::max<std::size_t>(q.room(e), 1), kAlign) {}
  std::byte* at() const { return memory.bytes().data() + extent.offset % kAlign; }
  bool right() const {
    const std::uint64_t bytes = extent.offset < kFile ? std::min(extent.bytes, kFile - extent.offset) : 0;
    const std::vector<std::byte> expected = pattern(bytes, extent.offset);
    return std::equal(expected.begin(), expected.end(), at());
  }
  Extent extent;
  AlignedBuffer memory;
  ReadGroup group;
};

// After drop_all() a group that was never submitted is done, and can be used again.
TEST(ReadQueue, AGroupCanBeUsedAfterAllWereDropped) {
  const std::vector<std::byte> file = pattern(kFile);
  ReadQueue queue(faulty(file), kFile, kAlign);
  Want want(queue, {0, 20 * kAlign});
  ASSERT_TRUE(queue.add(want.group, want.extent, want.memory.bytes().data()).ok());
  queue.drop_all();
  EXPECT_TRUE(want.group.done());
  EXPECT_EQ(want.group.waiting, 0u);
  ASSERT_TRUE(queue.add(want.group, want.extent, want.memory.bytes().data()).ok());
  EXPECT_TRUE(queue.wait(want.group).ok());
  EXPECT_TRUE(want.right());
}

TEST(ReadQueue, GivesExactlyWhatWasWantedInAnyOrderOfWaiting) {
  const std::vector<std::byte> file = pattern(kFile);
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    test::Rng rng(seed);
    ReadQueue queue(faulty(file, {}, seed), kFile, kAlign * (1 + rng.below(20)));
    std::vector<std::unique_ptr<Want>> wants;
    for (int i = 0; i < 20; ++i) {
      wants.push_back(std::make_unique<Want>(queue, Extent{rng.below(kFile + 2000), rng.below(9000)}));
      Want& w = *wants.back();
      ASSERT_TRUE(queue.add(w.group, w.extent, w.memory.bytes().data()).ok());
      if (rng.below(3) == 0) queue.pump();
    }
    while (!wants.empty()) {
      const std::size_t i = rng.below(wants.size());
      if (rng.below(4) == 0) {
        queue.drop(wants[i]->group);
        EXPECT_TRUE(wants[i]->group.done());
      } else {
        EXPECT_TRUE(queue.wait(wants[i]->group).ok());
        EXPECT_TRUE(wants[i]->right()) << "seed " << seed;
      }
      wants.erase(wants.begin() + static_cast<std::ptrdiff_t>(i));
    }
    EXPECT_EQ(queue.in_flight() + queue.waiting(), 0u);
  }
}

TEST(ReadQueue, OneFailureIsItsGroupsAlone) {
  const std::vector<std::byte> file = pattern(kFile);
  for (unsigned k = 1;; ++k) {
    auto engine = faulty(file, testing::fail_nth(k, EIO));
    FaultyEngine& faults = *engine;
    ReadQueue queue(std::move(engine), kFile, 4 * kAlign);
    std::vector<std::unique_ptr<Want>> wants;
    for (std::uint64_t i = 0; i < 6; ++i) {
      wants.push_back(std::make_unique<Want>(queue, Extent{i * 10'000, 5000}));
      ASSERT_TRUE(queue.add(wants[i]->group, wants[i]->extent, wants[i]->memory.bytes().data()).ok());
    }
    int failed = 0;
    for (const auto& w : wants) {
      const Status st = queue.wait(w->group);
      if (st.ok())
        EXPECT_TRUE(w->right());
      else
        EXPECT_EQ(st.raw(), EIO);
      failed += !st.ok();
    }
    if (!faults.fired()) {
      EXPECT_EQ(failed, 0);
      break;
    }
    EXPECT_EQ(failed, 1) << "operation " << k;
  }
}

TEST(ReadQueue, WhatIsWaitedForGoesFirst) {
  const std::vector<std::byte> file = pattern(kFile);
  ReadQueue queue(faulty(file), kFile, kAlign);
  Want first(queue, {0, 20 * kAlign}), last(queue, {50'000, 10});
  ASSERT_TRUE(queue.add(first.group, first.extent, first.memory.bytes().data()).ok());
  ASSERT_TRUE(queue.add(last.group, last.extent, last.memory.bytes().data()).ok());
  EXPECT_TRUE(queue.wait(last.group).ok());
  EXPECT_TRUE(last.right());
  EXPECT_FALSE(first.group.done());
  EXPECT_GT(queue.waiting(), 10u);
  EXPECT_TRUE(queue.wait(first.group).ok());
  EXPECT_TRUE(first.right());
}

TEST(ReadQueue, TakesWhatHasComeAndSubmitsNothing) {
  const std::vector<std::byte> file = pattern(kFile);
  ReadQueue queue(memory_engine(file, kDirect), kFile, kAlign);
  Want w(queue, {0, 20 * kAlign});
  ASSERT_TRUE(queue.add(w.group, w.extent, w.memory.bytes().data()).ok());
  queue.take_done();
  EXPECT_EQ(w.group.left, 20u);
  EXPECT_EQ(w.group.waiting, 20u);
  queue.submit();
  const unsigned waiting = w.group.waiting;
  EXPECT_LT(waiting, 20u);
  for (int i = 0; i < 100 && queue.in_flight() != 0; ++i) queue.take_done();
  EXPECT_EQ(w.group.left, waiting) << "what was submitted has come";
  EXPECT_EQ(w.group.waiting, waiting) << "nothing more was";
  EXPECT_TRUE(queue.wait(w.group).ok());
  EXPECT_TRUE(w.right());
}

TEST(ReadQueue, ReadsInFlightEndWithIt) {
  const std::vector<std::byte> file = pattern(kFile);
  auto queue = std::make_unique<ReadQueue>(faulty(file), kFile, kAlign);
  Want want(*queue, {0, 40 * kAlign});
  ASSERT_TRUE(queue->add(want.group, want.extent, want.memory.bytes().data()).ok());
  queue->pump();
  queue.reset();
}

TEST(ReadQueue, ForgottenItAnswersWithoutWaiting) {
  const std::vector<std::byte> file = pattern(kFile);
  ReadQueue queue(memory_engine(file, kDirect), kFile, kAlign);
  Want want(queue, {0, 40 * kAlign});
  ASSERT_TRUE(queue.add(want.group, want.extent, want.memory.bytes().data()).ok());
  queue.forget();
  EXPECT_EQ(queue.wait(want.group).raw(), ECANCELED);
  queue.wait_any();
  queue.drop(want.group);
}

}  // namespace
}  // namespace lmdbio
