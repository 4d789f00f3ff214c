// Loads of a whole file: within the limit, given up where they cannot go on; nothing is wrong meanwhile.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "lmdbio/window/io_worker.h"
#include "lmdbio/window/kept_chunks.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"

extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace lmdbio::window {
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
    EXPECT_EQ(AheadFile::prefetcher().memory().used(), 0u) << "all files are closed";
  }
  static Prefetcher& prefetcher() { return AheadFile::prefetcher(); }
  static bool begin(AheadFile& file) {
    const std::lock_guard lock(prefetcher());
    return !file.window_file()->load.is_going() &&
           prefetcher().begin_whole_load(*file.window_file(), file.bytes());
  }
  static void finish(AheadFile& file, unsigned loads = 1) {
    while (file.stats().loads_finished < loads) ::sched_yield();
  }
  static std::uint32_t resident(AheadFile& file) {
    std::uint32_t n = 0;
    for (std::uint32_t c = 0; c < file.chunks(); ++c) n += file.window_file()->resident_now(ChunkIndex{c});
    return n;
  }
};

TEST_F(WholeLoadTest, EachChunkIsReadOnce) {
  AheadFile file(6 * kAheadChunk + kTail);
  EXPECT_TRUE(begin(file));
  finish(file);
  EXPECT_EQ(resident(file), file.chunks());
  EXPECT_TRUE(file.all_right());
  for (const auto& [at, n] : engine_script().attempts()) EXPECT_EQ(n, 1u) << "at " << at;
  EXPECT_LE(prefetcher().memory().used(), kLimit);
  file.close();
}

TEST_F(WholeLoadTest, ReadersFindItsChunks) {
  AheadFile file(6 * kAheadChunk + kTail);
  KeptChunks kept(file.window_file(), file.bytes());
  const Extent two{kAheadChunk - 100, 200}, last{file.bytes() - kTail, kTail};
  EXPECT_FALSE(kept.has(two));
  // Such a load is for bytes that come from other sources only.  Without these, the page cache is as good.
  kept.need(file.bytes(), file.bytes());
  EXPECT_EQ(file.stats().loads_begun, 0u);
  EXPECT_TRUE(begin(file));
  finish(file);
  EXPECT_TRUE(kept.has(two));
  EXPECT_TRUE(kept.has(last));
  EXPECT_TRUE(kept.has({0, file.bytes()}));
  EXPECT_FALSE(kept.has({0, 0}));
  EXPECT_FALSE(kept.has({file.bytes() - 1, kAheadChunk})) << "beyond the end";
  EXPECT_FALSE(kept.has({~std::uint64_t{0} - 4095, 4096}));
  EXPECT_EQ(kept.mapped(), file.window_file()->window->base());
  file.close();
}

TEST_F(WholeLoadTest, WhatDoesNotFitGoesToThePageCache) {
  AheadFile file(9 * kAheadChunk);
  EXPECT_TRUE(begin(file));
  finish(file);
  EXPECT_EQ(file.stats().published, 0u);
  EXPECT_EQ(prefetcher().memory().used(), 0u);
  EXPECT_EQ(resident(file), 0u);
  EXPECT_TRUE(file.all_right());
}

TEST_F(WholeLoadTest, AWalkMeanwhile) {
  AheadFile file(7 * kAheadChunk + kTail);
  engine_script().hold();
  EXPECT_TRUE(begin(file));
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
  EXPECT_TRUE(begin(file));
  engine_script().wait_for_held();
  file.change(std::byte{0x5a});
  EXPECT_TRUE(file.advance(2).ok());
  engine_script().release();
  while (file.stats().stale == 0) ::sched_yield();
  EXPECT_TRUE(file.all_right());
  EXPECT_EQ(file.stats().loads_finished, 0u);
  EXPECT_TRUE(begin(file));  // another one
  finish(file);
  EXPECT_EQ(file.stats().loads_begun, 2u);
  EXPECT_TRUE(file.all_right());
}

TEST_F(WholeLoadTest, ClosedMeanwhile) {
  for (int i = 0; i < 8; ++i) {
    AheadFile file(6 * kAheadChunk);
    if (i % 2 == 0) engine_script().hold();
    EXPECT_TRUE(begin(file));
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
    EXPECT_TRUE(begin(file));
    while (file.stats().read_failed == 0) ::sched_yield();
    EXPECT_EQ(file.stats().loads_finished, 0u) << k;
    EXPECT_TRUE(file.all_right());
  }
}

TEST_F(WholeLoadTest, NoEngine) {
  AheadFile file(6 * kAheadChunk);
  engine_script().fail_make = true;
  EXPECT_TRUE(begin(file));
  AheadWalk walk(file);
  EXPECT_TRUE(walk.go(0).ok());  // the mapping's
  EXPECT_TRUE(file.all_right());
  EXPECT_EQ(file.stats().loads_finished, 0u);
}

TEST_F(WholeLoadTest, AForkedChildHasNone) {
  AheadFile file(6 * kAheadChunk);
  engine_script().hold();
  EXPECT_TRUE(begin(file));
  engine_script().wait_for_held();
  const pid_t child = testing::fork_a_child([&] {
    return file.all_right() && file.stats().loads_begun == 0 && prefetcher().memory().used() == 0 ? 0 : 1;
  });
  engine_script().release();
  testing::expect_success(child);
  finish(file);
  EXPECT_TRUE(file.all_right());
}

}  // namespace
}  // namespace lmdbio::window
