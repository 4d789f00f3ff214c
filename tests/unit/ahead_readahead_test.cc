// A walk over data that is not in memory: what it is granted, how it goes on after a failure, and when it
// takes values for unread.  All reads are direct; walks over resident data: ahead_readahead_watch_test.cc.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "lmdbio/ahead/readahead.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/walk_env.h"

namespace lmdbio::ahead {
namespace {

using testing::engine_script;
using testing::WalkEnv;

const bool set = testing::script_all_reads("8M");

using Step = Readahead::Step;
constexpr std::uint64_t kChunkPages = (std::uint64_t{2} << 20) / WalkEnv::kPage;
/// Values that are worth a chunk each, and values that are not.
constexpr std::uint64_t kLarge = 64, kSmall = 20;

class ReadaheadTest : public ::testing::Test {
 protected:
  explicit ReadaheadTest(std::uint64_t pages_each = kLarge)
      : env_(130, pages_each), ahead_(env_.env().file()) {
    engine_script().reset();
  }
  ~ReadaheadTest() override { engine_script().reset(); }

  /// What is granted at value `i`; none if the step fails.
  FreeRun come_to(unsigned i, std::uint64_t given_bytes = 0) {
    FreeRun run;
    status_ = ahead_.step(Step::value, env_.at(i, given_bytes), env_.value(i), env_.view(), run, leaves_);
    return run;
  }
  static bool is(const FreeRun& run, const PageRun& need) {
    return run.first == need.first && run.pages == need.pages;
  }
  static bool is_chunks_of(const FreeRun& run, const PageRun& need) {
    const std::uint64_t first = need.first / kChunkPages * kChunkPages;
    const std::uint64_t end = ((need.first + need.pages - 1) / kChunkPages + 1) * kChunkPages;
    return run.first == first && run.pages == end - first;
  }

  WalkEnv env_;
  Readahead ahead_;
  Status status_;
  bool leaves_ = false;
};
/// Nothing is known of what comes next.
class ReadaheadOfSmallValues : public ReadaheadTest {
 protected:
  ReadaheadOfSmallValues() : ReadaheadTest(kSmall) {}
  FreeRun come_to(unsigned i) {
    FreeRun run;
    status_ = ahead_.step(Step::value, env_.at_leaf(), env_.value(i), env_.view(), run, leaves_);
    return run;
  }
  /// Whether `file` is in `uses` uses, within a minute: the I/O thread's come and go.
  static bool comes_to(const std::shared_ptr<window::WindowFile>& file, long uses) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (file.use_count() != uses && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return file.use_count() == uses;
  }
};

TEST_F(ReadaheadTest, AStreamIsGrantedTheChunksOfItsNeed) {
  ASSERT_TRUE(set);
  ASSERT_TRUE(ahead_.is_on());
  for (unsigned i = 0; i < 20; ++i) {
    EXPECT_TRUE(is_chunks_of(come_to(i), env_.value(i))) << i;
    EXPECT_TRUE(status_.ok());
    EXPECT_FALSE(leaves_);
  }
  const window::FileStats s = env_.stats();
  EXPECT_GE(s.chunks_read, 3u);
  EXPECT_EQ(s.read_failed, 0u);
}

// The walk is to end soon, but the value that it needs now lies in two chunks.
TEST_F(ReadaheadTest, AllChunksOfANeedAreRead) {
  unsigned between = 0;
  for (unsigned i = 0; i < 60; ++i) {
    const PageRun need = env_.value(i);
    ahead_.limit_bytes(1);
    EXPECT_TRUE(is_chunks_of(come_to(i), need)) << i;
    const std::uint64_t first = need.first / kChunkPages, last = (need.first + need.pages - 1) / kChunkPages;
    between += first != last;
    const auto file = env_.env().file().existing_window_file();
    for (std::uint64_t c = first; c <= last; ++c)
      EXPECT_TRUE(file->resident_now(window::ChunkIndex{static_cast<std::uint32_t>(c)})) << i;
  }
  EXPECT_GT(between, 0u);
}

TEST_F(ReadaheadOfSmallValues, ANeedByItselfIsReadExactly) {
  for (const unsigned i : {0u, 12u, 60u, 30u, 120u}) {
    EXPECT_TRUE(is(come_to(i), env_.value(i))) << i;
    EXPECT_TRUE(status_.ok());
  }
  EXPECT_EQ(env_.stats().chunks_read, 0u);
}

// Two of them are 32 pages in a row, which is worth a chunk.
TEST_F(ReadaheadOfSmallValues, NeedsThatFollowOneAnotherBecomeChunks) {
  EXPECT_TRUE(is(come_to(60), env_.value(60)));
  EXPECT_TRUE(is_chunks_of(come_to(61), env_.value(61)));
  EXPECT_TRUE(is_chunks_of(come_to(62), env_.value(62)));
}

TEST_F(ReadaheadOfSmallValues, ForgetEndsTheWalk) {
  (void)come_to(60);
  const auto file = env_.env().file().existing_window_file();
  ASSERT_NE(file, nullptr);
  // The environment's, the walk's, this one, and the one of the I/O thread's queue, once that thread has
  // begun.
  EXPECT_TRUE(comes_to(file, 4)) << file.use_count();
  ahead_.forget();
  EXPECT_TRUE(comes_to(file, 3)) << "the walk's is gone: " << file.use_count();
  EXPECT_TRUE(ahead_.is_on());
  EXPECT_TRUE(is(come_to(61), env_.value(61))) << "what came before is forgotten: not in a row";
}

// After a failure the next 1, 3, 7, .. 64 needs are read by themselves, each into the page cache.
TEST_F(ReadaheadTest, NeedsAreReadAloneAfterFailures) {
  const struct {
    unsigned steps, alone_after;
  } cases[] = {{1, 1}, {3, 3}, {7, 7}, {15, 15}, {63, 63}, {127, 64}};
  for (const auto& c : cases) {
    Readahead ahead(env_.env().file());
    FreeRun run;
    bool leaves = false;
    engine_script().reset();
    engine_script().error = EIO;
    engine_script().fail_times = ~0u;
    engine_script().fail_nth = 1;
    const auto step = [&] {
      const Status st = ahead.step(Step::value, env_.at(8), env_.value(8), env_.view(), run, leaves);
      EXPECT_TRUE(st.ok()) << "the need itself can be read: " << st.raw();
    };
    for (unsigned i = 0; i < c.steps; ++i) {
      step();
      ASSERT_TRUE(is(run, env_.value(8))) << i;
    }
    EXPECT_GT(engine_script().failed, 0u);
    engine_script().reset();
    unsigned alone = 0;
    for (step(); is(run, env_.value(8)) && alone < 200; step()) ++alone;
    EXPECT_EQ(alone, c.alone_after) << "after " << c.steps << " steps that failed";
    EXPECT_TRUE(is_chunks_of(run, env_.value(8)));
    ahead.forget();
    env_.drop_page_cache();
    // The chunk would be there for the next round.
    ASSERT_TRUE(window::Prefetcher::existing()
                    ->advance(*env_.env().window(), 100 + c.steps, env_.bytes(), env_.bytes())
                    .ok());
  }
}

// The program was given more than it can have read, twice: only leaf pages are read from here on.
TEST_F(ReadaheadTest, ValuesThatAreNotReadAreFoundOut) {
  constexpr std::uint64_t kUnreadable = std::uint64_t{1} << 40;  // bytes: as long as no test takes to read
  std::uint64_t given = 0;
  (void)come_to(0, given);
  EXPECT_FALSE(leaves_);
  (void)come_to(1, given += kUnreadable);
  EXPECT_FALSE(leaves_) << "once is not enough";
  (void)come_to(2, given);
  EXPECT_FALSE(leaves_) << "nothing was given: it may have read it all";
  (void)come_to(3, given += kUnreadable);
  EXPECT_FALSE(leaves_) << "not in a row";
  const FreeRun run = come_to(4, given += kUnreadable);
  EXPECT_TRUE(leaves_);
  EXPECT_TRUE(run.covers(env_.value(129).first, kLarge)) << "values are the mapping's";
  EXPECT_EQ(env_.env().file().existing_window_file()->stats.key_walks, 1u);

  FreeRun at_leaf;
  ASSERT_TRUE(ahead_
                  .step(Step::leaf, env_.at_leaf(given += kUnreadable), env_.leaf_page(), env_.view(),
                        at_leaf, leaves_)
                  .ok());
  EXPECT_TRUE(leaves_) << "and so on";
  ASSERT_TRUE(
      ahead_.step(Step::leaf, env_.at_leaf(given + 100), env_.leaf_page(), env_.view(), at_leaf, leaves_)
          .ok());
  EXPECT_FALSE(leaves_) << "it may have read what it was given: a stream again";
}

}  // namespace
}  // namespace lmdbio::ahead
