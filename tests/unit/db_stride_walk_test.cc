// A walk that finds out which values are read: over a real file, by a program that reads each, each third, or
// none.
#include <gtest/gtest.h>

#include "lmdbio/db/file_policy.h"
#include "lmdbio/db/stride_walk.h"
#include "tests/support/walk_env.h"

namespace lmdbio::db {
namespace {

using testing::WalkEnv;
using Arrival = StrideWalk::Arrival;

constexpr unsigned kValues = 60;
/// So large that a page in the middle tells of a value.
constexpr std::uint64_t kPagesEach = 40, kValueBytes = kPagesEach * WalkEnv::kPage;

class StrideWalkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = env_.env().read_ahead(env_.view());
    ASSERT_NE(file_, nullptr);
    walk_ = std::make_unique<cache::Walk>(file_);
    cache::Prefetcher::existing()->add(*walk_);
    env_.drop_page_cache();
    picking_ = StrideWalk::start(*walk_, env_.at(0), env_.view());
    if (picking_ == nullptr) GTEST_SKIP() << "nothing tells here which pages were touched";
  }
  void TearDown() override {
    picking_.reset();
    if (walk_ != nullptr) cache::Prefetcher::existing()->remove(*walk_);
  }
  /// Values 0, 1, .. until the walk is a stream, or all: how many it came to.
  template <class Reads>
  unsigned walk(Reads&& reads) {
    for (unsigned i = 0; i < kValues; ++i) {
      const Result<bool> goes_on =
          picking_->step(Arrival::value, env_.at(i), env_.value(i), env_.view(), run_);
      EXPECT_TRUE(goes_on);
      if (!goes_on || !goes_on.value()) return i;
      EXPECT_TRUE(run_.covers(env_.value(i).first, kPagesEach - 1));
      EXPECT_FALSE(run_.covers(env_.value(i + 1).first, kPagesEach - 1)) << "it asks at each value";
      if (reads(i)) env_.read(i);
    }
    return kValues;
  }
  AccessCounters counters() {
    picking_.reset();  // its counts go into the file's then
    return FilePolicy::counters(*file_);
  }
  std::uint64_t read_bytes() { return env_.stats().read; }

  WalkEnv env_{kValues, kPagesEach, true};
  std::shared_ptr<cache::FileCache> file_;
  std::unique_ptr<cache::Walk> walk_;
  std::unique_ptr<StrideWalk> picking_;
  FreeRun run_;
};

TEST_F(StrideWalkTest, AWalkThatReadsAllBecomesAStream) {
  EXPECT_EQ(walk([](unsigned) { return true; }), 3u) << "three used in a row";
  EXPECT_EQ(counters().stride_walks, 0u);
}

TEST_F(StrideWalkTest, EachThirdValueIsFetchedAndNoOther) {
  EXPECT_EQ(walk([](unsigned i) { return i % 3 == 1; }), kValues);
  const AccessCounters s = counters();
  EXPECT_EQ(s.stride_walks, 1u);
  EXPECT_GE(s.predicted, kValues / 3 - 4);
  EXPECT_EQ(s.predicted_right, s.predicted);
  EXPECT_EQ(s.predicted_wrong, 0u);
  EXPECT_GE(read_bytes(), s.predicted * kValueBytes);
  // The first four are fetched while nothing is known, and some beyond those that were used.
  EXPECT_LE(read_bytes(), (kValues / 3 + 8) * kValueBytes);
}

TEST_F(StrideWalkTest, ValuesThatNobodyReadsAreNotFetched) {
  EXPECT_EQ(walk([](unsigned) { return false; }), kValues);
  const AccessCounters s = counters();
  EXPECT_EQ(s.predicted, 0u);
  EXPECT_GE(read_bytes(), kValueBytes);
  EXPECT_LE(read_bytes(), 8 * kValueBytes) << "those at the start";
}

// A guess that comes true and fails again and again is none.
TEST_F(StrideWalkTest, NoRuleIsAStream) {
  const bool used[] = {true, false, true, false, false, false, true, true, false, false, false, false};
  EXPECT_LT(walk([&used](unsigned i) { return used[(i * 7 + i / 5) % std::size(used)] != (i % 11 == 3); }),
            kValues);
}

TEST(StrideWalkStart, SmallValuesTellNothing) {
  WalkEnv env(20, 30, true);
  const auto file = env.env().read_ahead(env.view());
  ASSERT_NE(file, nullptr);
  cache::Walk walk(file);
  cache::Prefetcher::existing()->add(walk);
  EXPECT_EQ(StrideWalk::start(walk, env.at(0), env.view()), nullptr);
  cache::Prefetcher::existing()->remove(walk);
}

}  // namespace
}  // namespace lmdbio::db
