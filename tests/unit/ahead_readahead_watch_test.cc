// A walk over data that is in memory, and what it becomes where data is not: by the default settings.
#include <gtest/gtest.h>

#include "lmdbio/ahead/readahead.h"
#include "tests/support/walk_env.h"

namespace lmdbio::ahead {
namespace {

using testing::WalkEnv;
using Step = Readahead::Step;

constexpr std::uint64_t kFreePages = (std::uint64_t{4} << 20) / WalkEnv::kPage;

class Watching : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    env_.fill_page_cache();
    const auto share = env_.env().file().cached_share(0, 1 << 20, env_.view());
    if (!share || *share < 1) GTEST_SKIP() << "nothing tells what is in the page cache";
  }
  FreeRun come_to(unsigned i) {
    FreeRun run;
    EXPECT_TRUE(ahead_.step(Step::value, env_.at(i), env_.value(i), env_.view(), run, leaves_).ok());
    return run;
  }
  WalkEnv env_{100, GetParam()};
  Readahead ahead_{env_.env().file()};
  bool leaves_ = false;
};

TEST_P(Watching, WhatIsInMemoryIsGrantedFarAround) {
  const FreeRun first = come_to(10);
  EXPECT_TRUE(first.covers(env_.value(10).first, GetParam() - 1));
  EXPECT_TRUE(first.covers(env_.value(10).first + kFreePages - 1, 0));
  EXPECT_FALSE(first.covers(env_.value(10).first + kFreePages, 0)) << "4 MiB at first";
  EXPECT_FALSE(leaves_);
  EXPECT_EQ(env_.stats().read, 0u);
  EXPECT_TRUE(ahead_.is_on());
}

TEST_P(Watching, WhatIsNotInMemoryIsReadAhead) {
  (void)come_to(10);
  ahead_.forget();  // so that it looks again at once
  env_.drop_page_cache();
  const FreeRun run = come_to(60);
  EXPECT_TRUE(run.covers(env_.value(60).first, GetParam() - 1));
  if (!ahead_.is_on()) GTEST_SKIP() << "the kernel reads ahead far enough here";
  const bool fetched = env_.stats().read + env_.stats().extents + env_.stats().chunks_read != 0;
  // It is found out first which values are read: a call at each.  Small ones are not fetched until then.
  if (leaves_) {
    EXPECT_EQ(fetched, GetParam() >= 34u);
    EXPECT_FALSE(run.covers(env_.value(61).first, GetParam() - 1));
  } else {  // nothing tells here which pages were touched
    EXPECT_TRUE(fetched);
    EXPECT_TRUE(run.covers(env_.value(61).first, GetParam() - 1)) << "a chunk at least";
  }
}

INSTANTIATE_TEST_SUITE_P(Values, Watching, ::testing::Values(20, 40),
                         [](const auto& i) { return "Of" + std::to_string(i.param) + "Pages"; });

}  // namespace
}  // namespace lmdbio::ahead
