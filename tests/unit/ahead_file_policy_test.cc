// What lookups of all environments on a file make worth doing: a load of the whole file when it is due, once
// a snapshot; all leaf pages once a snapshot.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "lmdbio/ahead/file_policy.h"
#include "lmdbio/window/io_worker.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"

extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace lmdbio::ahead {
namespace {

using testing::AheadFile;
using testing::engine_script;
using testing::kAheadChunk;

constexpr std::size_t kTail = 3 * 4096 + 77;

const bool set = testing::script_all_reads("16M");

class FilePolicyTest : public ::testing::Test {
 protected:
  FilePolicyTest() {
    EXPECT_TRUE(set);
    engine_script().reset();
  }
  ~FilePolicyTest() override {
    EXPECT_EQ(AheadFile::prefetcher().memory().used(), 0u) << "all files are closed";
  }
  /// Lookups that have waited long enough for a load, all over the file.  What the last one was told.
  static std::uint64_t miss(AheadFile& file, unsigned n = window::MissRecord::kMisses,
                            std::uint64_t snapshot = 1) {
    file.window_file()->lookups.note_wait(file.bytes());
    std::uint64_t told = 0;
    for (unsigned i = 0; i < n; ++i)
      told = lookup_missed(*file.window_file(), snapshot, file.bytes() / n * i, file.bytes(), true);
    return told;
  }
  static void finish(AheadFile& file, unsigned loads = 1) {
    while (file.stats().loads_finished < loads) ::sched_yield();
  }
};

TEST_F(FilePolicyTest, ALoadOnceASnapshot) {
  AheadFile file(6 * kAheadChunk + kTail);
  EXPECT_EQ(miss(file, window::MissRecord::kMisses - 1), window::MissRecord::kMisses - 1) << "too few";
  EXPECT_EQ(file.stats().loads_begun, 0u);
  EXPECT_EQ(miss(file), 0u);
  finish(file);
  EXPECT_TRUE(file.all_right());
  const unsigned reads = engine_script().reads;
  EXPECT_NE(miss(file), 0u);
  EXPECT_EQ(file.stats().loads_begun, 1u);
  EXPECT_EQ(engine_script().reads, reads);
}

TEST_F(FilePolicyTest, NotBeforeItIsDue) {
  AheadFile file(4 * kAheadChunk);
  for (unsigned i = 0; i < 1000; ++i)  // nobody has waited
    (void)lookup_missed(*file.window_file(), 1, file.bytes() / 1000 * i, file.bytes(), true);
  EXPECT_EQ(file.stats().loads_begun, 0u);
  EXPECT_EQ(file.stats().lookups_missed, 1000u);
}

TEST_F(FilePolicyTest, NotForLookupsInOrder) {
  AheadFile file(4 * kAheadChunk);
  file.window_file()->lookups.note_wait(file.bytes());
  for (unsigned i = 0; i < 1000; ++i)
    EXPECT_EQ(lookup_missed(*file.window_file(), 1, file.bytes() / 1000 * i, file.bytes(), false), 0u);
  EXPECT_EQ(file.stats().loads_begun, 0u);
}

TEST_F(FilePolicyTest, ANewSnapshotMayHaveAnother) {
  AheadFile file(6 * kAheadChunk);
  EXPECT_EQ(miss(file), 0u);
  finish(file);
  EXPECT_TRUE(file.advance(2).ok());
  EXPECT_EQ(miss(file, window::MissRecord::kMisses, 2), 0u);
  finish(file, 2);
  EXPECT_EQ(file.stats().loads_begun, 2u);
  EXPECT_TRUE(file.all_right());
}

TEST_F(FilePolicyTest, AWriterThatGoesOn) {
  AheadFile file(4 * kAheadChunk);
  for (std::uint64_t snapshot = 2; snapshot < 30; ++snapshot) {
    EXPECT_TRUE(file.advance(snapshot).ok());
    (void)miss(file, window::MissRecord::kMisses, snapshot);
  }
  EXPECT_LE(file.stats().loads_begun, 8u);
}

TEST_F(FilePolicyTest, LeavesAreClaimedOnceASnapshot) {
  AheadFile file(kAheadChunk);
  EXPECT_TRUE(file.window_file()->lookups.claim_leaves(1));
  EXPECT_FALSE(file.window_file()->lookups.claim_leaves(1));
  unsigned claimed = 0;
  for (std::uint64_t snapshot = 2; snapshot < 100; ++snapshot)
    claimed += file.window_file()->lookups.claim_leaves(snapshot);
  EXPECT_EQ(claimed, 7u) << "a writer goes on";
}

TEST_F(FilePolicyTest, AForkedChildCountsFromZero) {
  AheadFile file(kAheadChunk);
  file.window_file()->stats.key_walks += 2;
  ++file.window_file()->stats.exact_reads;
  testing::expect_success(testing::fork_a_child([&] {
    const window::FileStats its = file.stats();
    return its.key_walks == 0 && its.exact_reads == 0 ? 0 : 1;
  }));
  EXPECT_EQ(file.stats().key_walks, 2u);
}

// Another thread may be counting a miss while the process forks.
TEST_F(FilePolicyTest, AForkedChildMayCountMisses) {
  AheadFile file(kAheadChunk);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (std::uint64_t i = 0; !stop; ++i)
      (void)lookup_missed(*file.window_file(), 1, i % file.bytes(), file.bytes(), true);
  });
  for (int i = 0; i < 50; ++i)
    testing::expect_success(testing::fork_a_child(
        [&] { return lookup_missed(*file.window_file(), 1, 0, file.bytes(), false) == 0 ? 0 : 1; }));
  stop = true;
  other.join();
}

}  // namespace
}  // namespace lmdbio::ahead
