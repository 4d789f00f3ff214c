// Loads of a whole file for lookups that go all over it: begun when they are due, once a snapshot, within the
// limit; given up where they cannot go on; nothing is wrong meanwhile.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>

#include "lmdbio/cache/io_worker.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"

extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace lmdbio::cache {
namespace {

using testing::AheadFile;
using testing::AheadWalk;
using testing::engine_script;
using testing::kAheadChunk;

constexpr std::uint64_t kLimit = std::uint64_t{16} << 20;
constexpr std::size_t kTail = 3 * 4096 + 77;

const bool set = testing::script_all_reads("16M");

class WholeLoadTest : public ::testing::Test {
 protected:
  WholeLoadTest() {
    EXPECT_TRUE(set);
    engine_script().reset();
  }
  ~WholeLoadTest() override {
    EXPECT_EQ(AheadFile::prefetcher().memory_used(), 0u) << "all files are closed";
  }
  static Prefetcher& prefetcher() { return AheadFile::prefetcher(); }
  /// Lookups that have waited long enough for a load, all over the file.  What the last one was told.
  static std::uint64_t miss(AheadFile& file, unsigned n = MissRecord::kMisses, std::uint64_t snapshot = 1) {
    prefetcher().note_exact(*file.cache(), 1, file.bytes());
    std::uint64_t told = 0;
    for (unsigned i = 0; i < n; ++i)
      told = prefetcher().lookup_missed(*file.cache(), snapshot, file.bytes() / n * i, file.bytes(), true);
    return told;
  }
  static void finish(AheadFile& file, unsigned loads = 1) {
    while (file.stats().loads_finished < loads) ::sched_yield();
  }
  static std::uint32_t resident(AheadFile& file) {
    std::uint32_t n = 0;
    for (std::uint32_t c = 0; c < file.chunks(); ++c) n += file.cache()->resident_now(ChunkIndex{c});
    return n;
  }
};

TEST_F(WholeLoadTest, OnceASnapshot) {
  AheadFile file(6 * kAheadChunk + kTail);
  EXPECT_EQ(miss(file, MissRecord::kMisses - 1), MissRecord::kMisses - 1) << "too few";
  EXPECT_EQ(file.stats().loads_begun, 0u);
  EXPECT_EQ(miss(file), 0u);
  finish(file);
  EXPECT_EQ(resident(file), file.chunks());
  EXPECT_TRUE(file.all_right());
  for (const auto& [at, n] : engine_script().attempts()) EXPECT_EQ(n, 1u) << "at " << at;
  const unsigned reads = engine_script().reads;
  EXPECT_NE(miss(file), 0u);
  EXPECT_EQ(file.stats().loads_begun, 1u);
  EXPECT_EQ(engine_script().reads, reads);
  EXPECT_LE(prefetcher().memory_used(), kLimit);
  file.close();
}

TEST_F(WholeLoadTest, NotBeforeItIsDue) {
  AheadFile file(4 * kAheadChunk);
  for (unsigned i = 0; i < 1000; ++i)  // nobody has waited
    (void)prefetcher().lookup_missed(*file.cache(), 1, file.bytes() / 1000 * i, file.bytes(), true);
  EXPECT_EQ(file.stats().loads_begun, 0u);
  EXPECT_EQ(file.stats().lookups_missed, 1000u);
}

TEST_F(WholeLoadTest, NotForLookupsInOrder) {
  AheadFile file(4 * kAheadChunk);
  prefetcher().note_exact(*file.cache(), 1, file.bytes());
  for (unsigned i = 0; i < 1000; ++i)
    EXPECT_EQ(prefetcher().lookup_missed(*file.cache(), 1, file.bytes() / 1000 * i, file.bytes(), false), 0u);
  EXPECT_EQ(file.stats().loads_begun, 0u);
}

TEST_F(WholeLoadTest, WhatDoesNotFitGoesToThePageCache) {
  AheadFile file(9 * kAheadChunk);
  EXPECT_EQ(miss(file), 0u);
  finish(file);
  EXPECT_EQ(file.stats().published, 0u);
  EXPECT_EQ(prefetcher().memory_used(), 0u);
  EXPECT_EQ(resident(file), 0u);
  EXPECT_TRUE(file.all_right());
}

TEST_F(WholeLoadTest, AWalkMeanwhile) {
  AheadFile file(7 * kAheadChunk + kTail);
  engine_script().hold();
  EXPECT_EQ(miss(file), 0u);
  engine_script().wait_for_held();
  AheadWalk walk(file);
  engine_script().release();
  for (std::uint32_t c = 0; c < file.chunks(); ++c) {
    EXPECT_TRUE(walk.go(c).ok());
    EXPECT_TRUE(file.right(c));
  }
  finish(file);
  for (const auto& [at, n] : engine_script().attempts()) EXPECT_EQ(n, 1u) << "at " << at;
  EXPECT_EQ(file.stats().wasted, 0u);
}

TEST_F(WholeLoadTest, ANewSnapshotEndsIt) {
  AheadFile file(6 * kAheadChunk);
  engine_script().hold();
  EXPECT_EQ(miss(file), 0u);
  engine_script().wait_for_held();
  file.change(std::byte{0x5a});
  EXPECT_TRUE(file.advance(2).ok());
  engine_script().release();
  while (file.stats().stale == 0) ::sched_yield();
  EXPECT_TRUE(file.all_right());
  EXPECT_EQ(file.stats().loads_finished, 0u);
  EXPECT_EQ(miss(file, MissRecord::kMisses, 2), 0u);  // another one
  finish(file);
  EXPECT_EQ(file.stats().loads_begun, 2u);
  EXPECT_TRUE(file.all_right());
}

TEST_F(WholeLoadTest, AWriterThatGoesOn) {
  AheadFile file(4 * kAheadChunk);
  for (std::uint64_t snapshot = 2; snapshot < 30; ++snapshot) {
    EXPECT_TRUE(file.advance(snapshot).ok());
    (void)miss(file, MissRecord::kMisses, snapshot);
  }
  EXPECT_LE(file.stats().loads_begun, 8u);
}

TEST_F(WholeLoadTest, ClosedMeanwhile) {
  for (int i = 0; i < 8; ++i) {
    AheadFile file(6 * kAheadChunk);
    if (i % 2 == 0) engine_script().hold();
    EXPECT_EQ(miss(file), 0u);
    if (i % 2 == 0) {
      engine_script().wait_for_held();
      engine_script().release();
    }
    file.close();
  }
}

TEST_F(WholeLoadTest, AFailedReadEndsIt) {
  for (unsigned k = 1; k <= 6; ++k) {
    engine_script().reset();
    AheadFile file(6 * kAheadChunk);
    engine_script().error = EIO;
    engine_script().fail_nth = k;
    EXPECT_EQ(miss(file), 0u);
    while (file.stats().read_failed == 0) ::sched_yield();
    EXPECT_EQ(file.stats().loads_finished, 0u) << k;
    EXPECT_TRUE(file.all_right());
  }
}

TEST_F(WholeLoadTest, NoEngine) {
  AheadFile file(6 * kAheadChunk);
  engine_script().fail_make = true;
  EXPECT_EQ(miss(file), 0u);
  AheadWalk walk(file);
  EXPECT_TRUE(walk.go(0).ok());  // the mapping's
  EXPECT_TRUE(file.all_right());
  EXPECT_EQ(file.stats().loads_finished, 0u);
}

TEST_F(WholeLoadTest, AForkedChildHasNone) {
  AheadFile file(6 * kAheadChunk);
  engine_script().hold();
  EXPECT_EQ(miss(file), 0u);
  engine_script().wait_for_held();
  const pid_t child = testing::fork_a_child([&] {
    return file.all_right() && file.stats().loads_begun == 0 && prefetcher().memory_used() == 0 ? 0 : 1;
  });
  engine_script().release();
  testing::expect_success(child);
  finish(file);
  EXPECT_TRUE(file.all_right());
}

TEST_F(WholeLoadTest, LeavesAreClaimedOnceASnapshot) {
  AheadFile file(kAheadChunk);
  EXPECT_TRUE(prefetcher().claim_leaves(*file.cache(), 1));
  EXPECT_FALSE(prefetcher().claim_leaves(*file.cache(), 1));
  unsigned claimed = 0;
  for (std::uint64_t snapshot = 2; snapshot < 100; ++snapshot)
    claimed += prefetcher().claim_leaves(*file.cache(), snapshot);
  EXPECT_EQ(claimed, 7u) << "a writer goes on";
}

}  // namespace
}  // namespace lmdbio::cache
