// Walks over a source of chunks.  A chunk that the source calls ready is not read.  A chunk that the caller
// is to read is read once and reported.  A chunk that another process reads is waited for until that process
// ends.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <thread>

#include "lmdbio/window/io_worker.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/scripted_source.h"

namespace lmdbio::window {
namespace {

using testing::AheadFile;
using testing::AheadWalk;
using testing::engine_script;
using testing::kAheadChunk;
using testing::ScriptedSource;
using testing::SourceScript;
using Answer = ChunkSource::Answer;
using Waited = ChunkSource::Waited;

const bool set = testing::script_all_reads("16M");

class Source : public ::testing::Test {
 protected:
  Source() { engine_script().reset(); }
  ~Source() override { EXPECT_EQ(AheadFile::prefetcher().memory().used(), 0u) << "all files are closed"; }
  void use(const AheadFile& file) { file.window_file()->source = std::make_unique<ScriptedSource>(script_); }
  static void walk_all(const AheadFile& file) {
    AheadWalk walk(file);
    for (std::uint32_t c = 0; c < file.chunks(); ++c) {
      ASSERT_TRUE(walk.go(c).ok()) << c;
      EXPECT_TRUE(file.right(c)) << c;
    }
  }
  SourceScript script_;
};

TEST_F(Source, WhatIsYoursIsReadOnceAndReported) {
  ASSERT_TRUE(set);
  script_.answer = [](std::uint32_t, unsigned) { return Answer::yours; };
  AheadFile file(5 * kAheadChunk + 777);
  use(file);
  walk_all(file);
  EXPECT_EQ(file.stats().chunks_read, file.chunks());
  for (std::uint32_t c = 0; c < file.chunks(); ++c) {
    EXPECT_EQ(script_.of(c).claims, 1u) << c;
    EXPECT_EQ(script_.of(c).good, 1u) << c;
    EXPECT_EQ(script_.of(c).failed, 0u) << c;
  }
}

TEST_F(Source, WhatIsReadyIsNotRead) {
  script_.answer = [](std::uint32_t c, unsigned) { return c % 2 != 0 ? Answer::ready : Answer::yours; };
  AheadFile file(6 * kAheadChunk);
  use(file);
  walk_all(file);
  EXPECT_EQ(file.stats().chunks_read, 3u);
  EXPECT_EQ(file.stats().chunks_cached, 3u);
  for (std::uint32_t c = 1; c < file.chunks(); c += 2) EXPECT_EQ(script_.of(c).good, 0u) << c;
}

TEST_F(Source, ALoadLeavesItsPartToOtherProcesses) {
  constexpr unsigned kAlone = 4;  // chunks that one process reads at once from a local file
  for (const unsigned processes : {1u, 2u, 3u, 100u}) {
    AheadFile file(12 * kAheadChunk);  // more than may be kept: into the page cache
    use(file);
    WholeLoad& load = file.window_file()->load;
    Prefetcher& prefetcher = AheadFile::prefetcher();
    unsigned first = 0, most = 0;
    script_.processes = 0;
    script_.answer = [&](std::uint32_t, unsigned) {
      const std::lock_guard lock(prefetcher);
      if (first == 0) first = load.reading;
      most = std::max(most, load.reading);
      script_.processes = processes;
      return Answer::yours;
    };
    {
      const std::lock_guard lock(prefetcher);
      ASSERT_TRUE(prefetcher.begin_whole_load(*file.window_file(), file.bytes()));
    }
    while (file.stats().loads_finished == 0) ::sched_yield();
    EXPECT_EQ(first, 1u) << "it is not known yet";
    EXPECT_EQ(most, std::max(kAlone / processes, 1u)) << processes;
    EXPECT_EQ(file.stats().chunks_read, file.chunks());
    file.close();
  }
}

TEST_F(Source, WhatOthersReadIsWaitedFor) {
  script_.answer = [](std::uint32_t, unsigned) { return Answer::wait; };
  script_.wait = [](std::uint32_t, unsigned) { return Waited::there; };
  AheadFile file(4 * kAheadChunk);
  use(file);
  walk_all(file);
  EXPECT_EQ(file.stats().chunks_read, 0u);
  EXPECT_EQ(engine_script().reads, 0u);
  for (std::uint32_t c = 0; c < file.chunks(); ++c) {
    EXPECT_GE(script_.of(c).claims, 1u) << c << ": asked again with each plan, before the walk comes to it";
    EXPECT_EQ(script_.of(c).waits, 1u) << c;
  }
  EXPECT_GE(file.stats().chunks_claimed, file.chunks());
}

// Others say that they give it, and do not: what they show is advice.
TEST_F(Source, WhatIsGivenAndIsNotThere) {
  script_.answer = [](std::uint32_t, unsigned) { return Answer::wait; };
  script_.wait = [](std::uint32_t, unsigned) { return Waited::given; };
  AheadFile file(4 * kAheadChunk);
  use(file);
  walk_all(file);
  EXPECT_EQ(file.stats().chunks_read, 0u);
  for (std::uint32_t c = 0; c < file.chunks(); ++c) EXPECT_LE(script_.of(c).waits, 8u) << c;
}

// Who was to read it has gone.
TEST_F(Source, WhatOthersDoNotReadAfterAll) {
  script_.answer = [](std::uint32_t c, unsigned n) { return c == 2 && n < 5 ? Answer::wait : Answer::yours; };
  script_.wait = [](std::uint32_t, unsigned) { return Waited::not_read; };
  AheadFile file(4 * kAheadChunk);
  use(file);
  walk_all(file);
  EXPECT_EQ(file.stats().chunks_read, 4u);
  EXPECT_EQ(script_.of(2).claims, 6u);
  EXPECT_LE(script_.of(2).waits, 5u);
  EXPECT_GE(script_.of(2).waits, 1u);
  EXPECT_EQ(script_.of(2).good, 1u);
}

// What one walk waits for holds up no other.
TEST_F(Source, OthersGoOnWhileOneWaits) {
  std::atomic<bool> waits{false}, ended{false};
  script_.answer = [](std::uint32_t c, unsigned) { return c == 0 ? Answer::wait : Answer::yours; };
  script_.wait = [&](std::uint32_t, unsigned) {
    waits = true;
    while (!ended) ::sched_yield();
    return Waited::there;
  };
  AheadFile file(4 * kAheadChunk);
  use(file);
  std::thread waiter([&] {
    AheadWalk walk(file);
    EXPECT_TRUE(walk.go(0, true, 0).ok());
  });
  while (!waits) ::sched_yield();
  {
    AheadWalk walk(file);
    for (std::uint32_t c = 1; c < file.chunks(); ++c) EXPECT_TRUE(walk.go(c, true, 0).ok()) << c;
  }
  EXPECT_TRUE(file.right(3));
  ended = true;
  waiter.join();
}

TEST_F(Source, AReadThatFailsIsReportedAndTriedAgain) {
  script_.answer = [](std::uint32_t, unsigned) { return Answer::yours; };
  AheadFile file(2 * kAheadChunk);
  use(file);
  engine_script().error = EIO;
  engine_script().fail_nth = 1;
  AheadWalk walk(file);
  EXPECT_EQ(walk.go(0, true, 0).raw(), EIO);
  EXPECT_EQ(script_.of(0).failed, 1u);
  EXPECT_TRUE(walk.go(0, true, 0).ok());
  EXPECT_EQ(script_.of(0).claims, 2u);
  EXPECT_EQ(script_.of(0).good, 1u);
}

// Others never come to an end: a walk that does not need the chunk is not kept, and the file can be closed.
TEST_F(Source, ClosedWhileOthersRead) {
  script_.answer = [](std::uint32_t c, unsigned) { return c == 1 ? Answer::wait : Answer::yours; };
  for (const bool another : {false, true}) {  // the I/O thread ends with the file, or goes on
    AheadFile other(2 * kAheadChunk);
    if (!another) other.close();
    AheadFile file(3 * kAheadChunk);
    use(file);
    {
      AheadWalk walk(file);
      ASSERT_TRUE(walk.go(0).ok());
      while (script_.of(1).claims == 0) ::sched_yield();
      EXPECT_TRUE(walk.go(2, true, 0).ok());
    }
    file.close();
    if (another) {
      AheadWalk walk(other);
      EXPECT_TRUE(walk.go(0).ok());
    }
  }
}

// A chunk that was claimed before a new snapshot is not taken for the file's present content.
TEST_F(Source, ANewSnapshotMeanwhile) {
  script_.answer = [](std::uint32_t, unsigned n) { return n == 0 ? Answer::wait : Answer::yours; };
  script_.wait = [](std::uint32_t, unsigned) { return Waited::not_read; };
  AheadFile file(2 * kAheadChunk);
  use(file);
  AheadWalk walk(file);
  ASSERT_TRUE(walk.wish(0, 1).ok());
  while (script_.of(0).claims == 0) ::sched_yield();
  file.change(std::byte{0x5a});
  ASSERT_TRUE(file.advance(2).ok());
  ASSERT_TRUE(walk.go(0).ok());
  EXPECT_TRUE(file.all_right());
}

// What the parent's I/O thread has claimed is not the child's, and its list may be half changed.
TEST_F(Source, AForkedChildHasNoClaims) {
  AheadFile file(4 * kAheadChunk);
  ChunkSource& source = *file.window_file()->source;
  Staging memory;
  (void)source.claim({ChunkIndex{2}, ChunkSource::Target::page_cache}, memory);
  testing::expect_success(testing::fork_a_child([&] {
    (void)source.claim({ChunkIndex{2}, ChunkSource::Target::private_memory}, memory);
    source.filled(ChunkIndex{2}, true);
    const Answer again = source.claim({ChunkIndex{2}, ChunkSource::Target::page_cache}, memory);
    return again == Answer::wait || again == Answer::ready ? 0 : 1;  // the parent has it, or it is there
  }));
  source.filled(ChunkIndex{2}, false);
}

TEST_F(Source, AForkWhileClaimsChange) {
  AheadFile file(64 * kAheadChunk);
  ChunkSource& source = *file.window_file()->source;
  Staging memory;
  std::atomic<bool> done{false};
  std::thread claims([&] {
    for (std::uint32_t i = 0; !done; i = (i + 1) % 64) {
      (void)source.claim({ChunkIndex{i}, ChunkSource::Target::page_cache}, memory);
      if (i > 32) source.filled(ChunkIndex{i - 32}, false);
    }
  });
  for (int i = 0; i < 300; ++i)
    testing::expect_success(testing::fork_a_child([&] {
      for (std::uint32_t c = 0; c < 64; ++c) {
        (void)source.claim({ChunkIndex{c}, ChunkSource::Target::page_cache}, memory);
        source.filled(ChunkIndex{c}, false);
      }
      return 0;
    }));
  done = true;
  claims.join();
  for (std::uint32_t c = 0; c < 64; ++c) source.filled(ChunkIndex{c}, false);
}

}  // namespace
}  // namespace lmdbio::window
