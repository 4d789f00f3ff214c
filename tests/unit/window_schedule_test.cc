// Plans of walks: what is read next and for whom, and what waits for it.  No thread, nothing is read.
#include <gtest/gtest.h>

#include "lmdbio/window/schedule.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"

namespace lmdbio::window {
namespace {

using testing::AheadFile;
using testing::kAheadChunk;

const bool set = testing::script_all_reads("16M");

class ScheduleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(set);
    schedule_.add(a_);
    schedule_.add(b_);
  }
  void TearDown() override {
    schedule_.remove(a_);
    schedule_.remove(b_);
  }
  bool plan(Walk& walk, const std::vector<std::uint32_t>& chunks, const std::vector<Extent>& extents = {},
            ChunkRange needed = {}, Extent needed_extent = {}) {
    std::vector<ChunkIndex> indexes;
    for (const std::uint32_t c : chunks) indexes.push_back(ChunkIndex{c});
    std::optional<ChunkIndex> filled;
    return schedule_.plan(walk, {indexes, extents, needed, needed_extent}, filled);
  }
  static ChunkRange only(std::uint32_t c) { return {ChunkIndex{c}, ChunkIndex{c}}; }
  /// The offset of what is to be read next; none: nothing.
  std::optional<std::uint64_t> next() {
    ReadJob job;
    if (!schedule_.next(chunks_, job, true)) return {};
    if (const ExtentJob* e = job.extent()) return e->extent.offset;
    taken_.push_back(*job.chunk());
    return std::uint64_t{raw(job.chunk()->chunk)} * kAheadChunk;
  }

  AheadFile file_{8 * kAheadChunk};
  Schedule schedule_;
  ChunkCache chunks_{schedule_};
  Walk a_{file_.window_file()}, b_{file_.window_file()};
  std::vector<ChunkJob> taken_;
};

TEST_F(ScheduleTest, ExtentsComeInTheOrderOfTheirPlanAndOnce) {
  ASSERT_TRUE(plan(a_, {}, {{8192, 4096}, {0, 4096}, {40960, 4096}}));
  EXPECT_TRUE(schedule_.has_work(a_));
  EXPECT_FALSE(schedule_.has_work(b_));
  EXPECT_EQ(next(), 8192u);
  EXPECT_EQ(next(), 0u);
  EXPECT_EQ(next(), 40960u);
  EXPECT_EQ(next(), std::nullopt);
  ASSERT_TRUE(plan(a_, {}, {{0, 4096}, {4096, 4096}}));
  EXPECT_EQ(next(), 4096u) << "what was asked for before is not read again";
  EXPECT_EQ(next(), std::nullopt);
}

TEST_F(ScheduleTest, WalksTakeTurns) {
  ASSERT_TRUE(plan(a_, {}, {{0, 4096}, {8192, 4096}}));
  ASSERT_TRUE(plan(b_, {}, {{kAheadChunk, 4096}, {kAheadChunk + 8192, 4096}}));
  std::vector<unsigned> whose;
  for (int i = 0; i < 4; ++i) {
    const std::optional<std::uint64_t> at = next();
    ASSERT_TRUE(at);
    whose.push_back(*at >= kAheadChunk);
  }
  EXPECT_NE(whose[0], whose[1]);
  EXPECT_NE(whose[2], whose[3]);
}

TEST_F(ScheduleTest, ANewPlanEndsTheOldOne) {
  ASSERT_TRUE(plan(a_, {}, {{0, 4096}, {8192, 4096}}));
  ASSERT_TRUE(plan(a_, {}, {{16384, 4096}}));
  EXPECT_EQ(next(), 16384u);
  EXPECT_EQ(next(), std::nullopt);
}

TEST_F(ScheduleTest, ANeededExtentIsOpenUntilItWasRead) {
  const Extent need{0, 8192};
  ASSERT_TRUE(plan(a_, {}, {need}, {}, need));
  EXPECT_TRUE(schedule_.is_extent_open(a_));
  EXPECT_EQ(next(), 0u);
  EXPECT_TRUE(schedule_.is_extent_open(a_)) << "it is being read";
  (void)file_.window_file()->reading.take();
  schedule_.extent_ended(*file_.window_file(), need, 0);
  EXPECT_FALSE(schedule_.is_extent_open(a_));
}

TEST_F(ScheduleTest, ANeededChunkIsOpenUntilItIsSettled) {
  ASSERT_TRUE(plan(a_, {3, 4}, {}, only(3)));
  EXPECT_EQ(schedule_.open_chunk(a_), ChunkIndex{3});
  schedule_.settle(*file_.window_file(), ChunkIndex{4}, Outcome::mapped, 0);
  EXPECT_EQ(schedule_.open_chunk(a_), ChunkIndex{3}) << "another one";
  schedule_.settle(*file_.window_file(), ChunkIndex{3}, Outcome::mapped, 0);
  EXPECT_EQ(schedule_.open_chunk(a_), std::nullopt);
  EXPECT_EQ(schedule_.take_error(a_), 0);
}

TEST_F(ScheduleTest, AWalkThatMeetsOnlyWhatIsCachedMayNeedNoReads) {
  ASSERT_TRUE(plan(a_, {0, 1, 2}, {}, only(0)));
  EXPECT_FALSE(schedule_.all_cached(a_)) << "nothing has been looked at";
  schedule_.settle(*file_.window_file(), ChunkIndex{0}, Outcome::cached, 0);
  EXPECT_TRUE(schedule_.all_cached(a_))
      << "what is ahead is not awaited: the walk may be faster than the looks";
  schedule_.settle(*file_.window_file(), ChunkIndex{1}, Outcome::cached, 0);
  EXPECT_TRUE(schedule_.all_cached(a_));
  schedule_.settle(*file_.window_file(), ChunkIndex{2}, Outcome::filled, 0);
  EXPECT_FALSE(schedule_.all_cached(a_)) << "it was read";
  ASSERT_TRUE(plan(a_, {3}));
  schedule_.settle(*file_.window_file(), ChunkIndex{3}, Outcome::cached, 0);
  EXPECT_FALSE(schedule_.all_cached(a_)) << "nothing was needed";
}

TEST_F(ScheduleTest, AnErrorIsGivenOnceAndTheChunkIsWantedAgain) {
  ASSERT_TRUE(plan(a_, {3}, {}, only(3)));
  schedule_.settle(*file_.window_file(), ChunkIndex{3}, Outcome::failed, EIO);
  EXPECT_EQ(schedule_.open_chunk(a_), std::nullopt) << "there is nothing to wait for";
  EXPECT_EQ(schedule_.take_error(a_), EIO);
  EXPECT_EQ(schedule_.take_error(a_), 0);
  EXPECT_EQ(schedule_.open_chunk(a_), ChunkIndex{3});
}

TEST_F(ScheduleTest, ChunksThatAreLeftToTheMappingAreNotWaitedFor) {
  ASSERT_TRUE(plan(a_, {3}, {}, only(3)));
  schedule_.leave_to_mapping(a_);
  EXPECT_EQ(schedule_.open_chunk(a_), std::nullopt);
  EXPECT_EQ(schedule_.take_error(a_), 0);
}

TEST_F(ScheduleTest, ChunksThatWentBackAreWantedAgain) {
  ASSERT_TRUE(plan(a_, {3}, {}, only(3)));
  schedule_.settle(*file_.window_file(), ChunkIndex{3}, Outcome::ready, 0);
  EXPECT_EQ(schedule_.open_chunk(a_), std::nullopt);
  schedule_.want_again(*file_.window_file());
  EXPECT_EQ(schedule_.open_chunk(a_), ChunkIndex{3});
}

TEST_F(ScheduleTest, PlansOfAFileAreCleared) {
  ASSERT_TRUE(plan(a_, {3}, {{0, 4096}}, only(3)));
  EXPECT_TRUE(schedule_.is_planned(*file_.window_file(), ChunkIndex{3}));
  EXPECT_FALSE(schedule_.is_planned(*file_.window_file(), ChunkIndex{4}));
  schedule_.clear_plans(*file_.window_file());
  EXPECT_FALSE(schedule_.is_planned(*file_.window_file(), ChunkIndex{3}));
  EXPECT_FALSE(schedule_.has_work(a_));
  EXPECT_EQ(next(), std::nullopt);
}

}  // namespace
}  // namespace lmdbio::window
