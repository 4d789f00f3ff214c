// A walk that finds out which values are read: over a real file, by a program that reads each, each third, or
// none.
#include <gtest/gtest.h>

#include <thread>

#include "lmdbio/ahead/stride_walk.h"
#include "tests/support/walk_env.h"

namespace lmdbio::ahead {
namespace {

using testing::WalkEnv;

constexpr unsigned kValues = 60;
/// So large that a page in the middle tells of a value.
constexpr std::uint64_t kPagesEach = 40, kValueBytes = kPagesEach * WalkEnv::kPage;

class StrideWalkTest : public ::testing::Test {
 protected:
  explicit StrideWalkTest(unsigned values = kValues, std::uint64_t pages_each = kPagesEach)
      : values_(values), pages_each_(pages_each), env_(values, pages_each, true) {}
  void SetUp() override {
    file_ = env_.env().file().window_file(env_.view());
    ASSERT_NE(file_, nullptr);
    walk_ = std::make_unique<window::Walk>(file_);
    window::Prefetcher::existing()->add(*walk_);
    env_.drop_page_cache();
    picking_ = StrideWalk::start(*walk_, env_.at(0), env_.view());
    if (picking_ == nullptr) GTEST_SKIP() << "nothing tells here which pages were touched";
  }
  void TearDown() override {
    picking_.reset();
    if (walk_ != nullptr) window::Prefetcher::existing()->remove(*walk_);
  }
  /// Values 0, 1, .. until the walk is a stream, or all: how many it came to.
  template <class Reads>
  unsigned walk(Reads&& reads) {
    for (unsigned i = 0; i < values_; ++i) {
      const Result<bool> goes_on = picking_->step(Step::value, env_.at(i), env_.value(i), env_.view(), run_);
      EXPECT_TRUE(goes_on);
      if (!goes_on || !goes_on.value()) return i;
      EXPECT_TRUE(run_.covers(env_.value(i).first, pages_each_ - 1));
      EXPECT_FALSE(run_.covers(env_.value(i + 1).first, pages_each_ - 1)) << "it asks at each value";
      if (reads(i)) env_.read(i);
    }
    return values_;
  }
  window::FileStats counters() {
    picking_.reset();  // its counts go into the file's then
    return file_->stats;
  }
  std::uint64_t read_bytes() { return env_.stats().read; }

  const unsigned values_;
  const std::uint64_t pages_each_;
  WalkEnv env_;
  std::shared_ptr<window::WindowFile> file_;
  std::unique_ptr<window::Walk> walk_;
  std::unique_ptr<StrideWalk> picking_;
  FreeRun run_;
};

TEST_F(StrideWalkTest, AWalkThatReadsAllBecomesAStream) {
  EXPECT_EQ(walk([](unsigned) { return true; }), 3u) << "three used in a row";
  EXPECT_EQ(counters().stride_walks, 0u);
}

TEST_F(StrideWalkTest, EachThirdValueIsFetchedAndNoOther) {
  EXPECT_EQ(walk([](unsigned i) { return i % 3 == 1; }), kValues);
  const window::FileStats s = counters();
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
  const window::FileStats s = counters();
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

/// Page tables do not tell these apart.
class StrideWalkOfSmallValues : public StrideWalkTest {
 protected:
  static constexpr unsigned kMany = 140;
  StrideWalkOfSmallValues() : StrideWalkTest(kMany, 4) {}
};

TEST_F(StrideWalkOfSmallValues, TheFirstThatIsReadMakesAStream) {
  EXPECT_EQ(walk([](unsigned) { return true; }), 1u);
  EXPECT_EQ(read_bytes(), 0u) << "it came by a page fault";
}

TEST_F(StrideWalkOfSmallValues, NothingIsFetchedForKeys) {
  EXPECT_EQ(walk([](unsigned) { return false; }), kMany);
  EXPECT_EQ(read_bytes(), 0u);
}

TEST_F(StrideWalkOfSmallValues, KeysFirstValuesLater) {
  EXPECT_EQ(walk([](unsigned i) { return i >= 100; }), 101u);
}

// Page faults of other threads are not counted: a few values are looked at again.
TEST_F(StrideWalkOfSmallValues, ValuesThatAnotherThreadReads) {
  EXPECT_LT(walk([this](unsigned i) {
              std::thread([this, i] { env_.read(i); }).join();
              return false;
            }),
            kMany);
}

TEST_F(StrideWalkOfSmallValues, AfterAJumpThePreviousValueTells) {
  env_.read(4);
  EXPECT_EQ(StrideWalk::start(*walk_, env_.at(5), env_.view()), nullptr);
  EXPECT_NE(StrideWalk::start(*walk_, env_.at(50), env_.view()), nullptr);
}

}  // namespace
}  // namespace lmdbio::ahead
