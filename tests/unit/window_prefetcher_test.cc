// Reading ahead of walks over real files: right bytes, within the limit, each chunk once; through changes of
// snapshot, closing and forking.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "lmdbio/window/io_worker.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"

// Forking beside threads is what is tested.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace {
std::atomic<bool> hold_pread{false}, pread_held{false};
}

// Prefetcher::read_chunk() comes here: it reads by itself.
extern "C" ssize_t pread(int fd, void* to, size_t n, off_t at) {
  while (hold_pread) {
    pread_held = true;
    ::sched_yield();
  }
  return ::syscall(SYS_pread64, fd, to, n, at);
}

namespace lmdbio::window {
namespace {

using testing::AheadFile;
using testing::AheadWalk;
using testing::engine_script;
using testing::kAheadChunk;

constexpr std::uint64_t kLimit = std::uint64_t{16} << 20;
/// An end in the midst of a chunk and of a page.
constexpr std::size_t kTail = 3 * 4096 + 77;

// Before anything asks for the configuration.
const bool set = testing::script_all_reads("16M");

class Ahead : public ::testing::Test {
 protected:
  Ahead() { engine_script().reset(); }
  ~Ahead() override { EXPECT_EQ(AheadFile::prefetcher().memory().used(), 0u) << "all files are closed"; }
  static Prefetcher& prefetcher() { return AheadFile::prefetcher(); }
  static bool within_limit() { return prefetcher().memory().used() <= kLimit; }
};

/// A thread that loads chunk 0, and waits in the middle of it until hold_pread is false.
std::thread load_and_hold(const AheadFile& file) {
  pread_held = false;
  hold_pread = true;
  std::thread loads(
      [&file] { EXPECT_TRUE(AheadFile::prefetcher().read_chunk(*file.window_file(), ChunkIndex{0}).ok()); });
  while (!pread_held) ::sched_yield();
  return loads;
}

unsigned tasks() {
  unsigned n = 0;
  DIR* const d = ::opendir("/proc/self/task");
  while (const dirent* e = ::readdir(d)) n += e->d_name[0] != '.';
  ::closedir(d);
  return n;
}

TEST_F(Ahead, Configured) {
  EXPECT_TRUE(set);
  EXPECT_EQ(prefetcher().memory().limit(), kLimit);
}

TEST_F(Ahead, WalksBothWays) {
  AheadFile file(10 * kAheadChunk + kTail);
  for (const bool forward : {true, false}) {
    for (const std::size_t ahead :
         {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{7}, std::size_t{20}}) {
      AheadWalk walk(file);
      for (std::uint32_t k = 0; k < file.chunks(); ++k) {
        const std::uint32_t c = forward ? k : file.chunks() - 1 - k;
        ASSERT_TRUE(walk.go(c, forward, ahead).ok());
        EXPECT_TRUE(file.right(c)) << c;
        EXPECT_TRUE(file.window_file()->resident_now(ChunkIndex{c}) || ahead > 3) << c;
        EXPECT_TRUE(within_limit());
      }
      EXPECT_TRUE(file.all_right());
    }
  }
  const FileStats s = file.stats();
  EXPECT_EQ(s.read_failed, 0u);
  EXPECT_EQ(s.stale, 0u);
  EXPECT_EQ(s.publish_failed, 0u);
  EXPECT_GE(s.published, 11u);
  EXPECT_LE(s.most_resident, kLimit / kAheadChunk);
  EXPECT_EQ(s.published - s.reclaimed, file.window_file()->residents.size());
}

TEST_F(Ahead, ThreeWalksOverTwoFiles) {
  AheadFile first(9 * kAheadChunk + kTail), second(7 * kAheadChunk);
  std::atomic<unsigned> wrong{0}, over{0};
  const auto body = [&](const AheadFile& file, bool forward) {
    AheadWalk walk(file);
    for (int round = 0; round < 2; ++round) {
      for (std::uint32_t k = 0; k < file.chunks(); ++k) {
        const std::uint32_t c = forward ? k : file.chunks() - 1 - k;
        if (!walk.go(c, forward).ok() || !file.right(c)) ++wrong;
        if (!within_limit()) ++over;
      }
    }
  };
  std::thread a(body, std::cref(first), true), b(body, std::cref(first), false),
      c(body, std::cref(second), true);
  a.join();
  b.join();
  c.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(over, 0u);
  EXPECT_TRUE(first.all_right());
  EXPECT_TRUE(second.all_right());
}

TEST_F(Ahead, EachChunkIsReadOnce) {
  AheadFile file(6 * kAheadChunk);
  engine_script().hold();
  AheadWalk a(file), b(file), c(file);
  ASSERT_TRUE(a.wish(0, 5).ok());
  engine_script().wait_for_held();
  ASSERT_TRUE(b.wish(0, 5).ok()) << "while they are read for another";
  engine_script().release();
  for (std::uint32_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(b.go(i, true, 5).ok());
    ASSERT_TRUE(a.go(i, true, 5).ok());
    ASSERT_TRUE(c.go(i, true, 5).ok()) << "and when they are there";
  }
  EXPECT_TRUE(file.all_right());
  for (const auto& [at, n] : engine_script().attempts()) EXPECT_EQ(n, 1u) << at;
  EXPECT_EQ(file.stats().chunks_read, 6u);
}

TEST_F(Ahead, ExtentsAreReadOnceAndDoNoHarm) {
  AheadFile file(4 * kAheadChunk + kTail);
  AheadWalk walk(file);
  const std::vector<Extent> extents = {{0, 1},
                                       {5000, 4096},
                                       {4 * kAheadChunk + kTail - 1, 1 << 20},
                                       {std::uint64_t{1} << 40, 4096},
                                       {4096, 0}};
  for (int round = 0; round < 3; ++round)
    EXPECT_TRUE(prefetcher().submit(walk.walk(), {{}, extents, {}, {}}).ready()) << "nothing is needed";
  ASSERT_TRUE(walk.go(0).ok());
  EXPECT_TRUE(file.all_right());
}

// Whatever their bounds in each of the plans, and however many there are.
TEST_F(Ahead, NoPageOfExtentsIsReadTwice) {
  constexpr std::uint64_t kValue = 4 * 4096, kValues = 1500;
  AheadFile file(kValues * kValue);
  AheadWalk walk(file);
  for (std::uint64_t from = 0; from < kValues; from += 100) {
    std::vector<Extent> extents;
    for (std::uint64_t i = from; i < kValues; ++i) {
      const std::uint64_t at = i * 7 % kValues * kValue;
      if (i % 3 == 0 && !extents.empty() && extents.back().offset + extents.back().bytes == at)
        extents.back().bytes += kValue;
      else
        extents.push_back({at, kValue});
    }
    if (from % 200 == 0) extents.push_back({from / 2 * kValue, 100 * kValue});
    ASSERT_TRUE(prefetcher().wait(prefetcher().submit(walk.walk(), {{}, extents, {}, extents.back()})).ok());
  }
  for (;;) {  // until all of them were read
    const Extent last{0, kValues * kValue};
    ASSERT_TRUE(prefetcher().wait(prefetcher().submit(walk.walk(), {{}, {&last, 1}, {}, last})).ok());
    if (file.stats().read == kValues * kValue) break;
    ASSERT_LT(file.stats().read, kValues * kValue);
  }
  prefetcher().forget_extents(walk.walk());
  const Extent again{8192, 4096};
  ASSERT_TRUE(prefetcher().wait(prefetcher().submit(walk.walk(), {{}, {&again, 1}, {}, again})).ok());
  EXPECT_EQ(file.stats().read, kValues * kValue + 4096);
}

TEST_F(Ahead, ANewSnapshotIsSeen) {
  AheadFile file(6 * kAheadChunk + kTail);
  AheadWalk walk(file);
  for (std::uint64_t snapshot = 2; snapshot < 8; ++snapshot) {
    for (std::uint32_t c = 0; c < 3; ++c) ASSERT_TRUE(walk.go(c, true, 1).ok());
    file.change(std::byte{0x5a});
    ASSERT_TRUE(file.advance(snapshot).ok());
    EXPECT_TRUE(file.all_right()) << snapshot;
    ASSERT_TRUE(file.advance(snapshot - 1).ok()) << "an older one is no change";
  }
  EXPECT_GE(file.stats().snapshots, 6u);
}

TEST_F(Ahead, ReadsThatOutliveTheirSnapshotAreNotPublished) {
  AheadFile file(4 * kAheadChunk);
  AheadWalk walk(file);
  engine_script().hold();
  Status st = Status::from_errno(EINVAL);
  std::thread waits([&] { st = walk.go(0, true, 3); });
  engine_script().wait_for_held();
  file.change(std::byte{0x33});
  ASSERT_TRUE(file.advance(2).ok());
  engine_script().release();
  waits.join();
  EXPECT_TRUE(st.ok());
  EXPECT_TRUE(file.all_right());
  for (std::uint32_t c = 0; c < 4; ++c) {
    ASSERT_TRUE(walk.go(c, true, 3).ok());
    EXPECT_TRUE(file.window_file()->resident_now(ChunkIndex{c}));
    EXPECT_TRUE(file.right(c));
  }
  EXPECT_GE(file.stats().stale, 1u);
}

TEST_F(Ahead, ABusyWriterEndsIt) {
  AheadFile file(4 * kAheadChunk);
  AheadWalk walk(file);
  for (std::uint64_t snapshot = 2; snapshot < 20; ++snapshot) {
    ASSERT_TRUE(walk.go(0).ok());
    ASSERT_TRUE(file.advance(snapshot).ok());
  }
  EXPECT_LT(file.stats().snapshots, 18u);
  ASSERT_TRUE(walk.go(1).ok());
  EXPECT_FALSE(file.window_file()->resident_now(ChunkIndex{1}));
  EXPECT_TRUE(file.all_right());
  // Extents go into the page cache, where no snapshot ends them: they are awaited, and their failures told.
  const Extent need{3 * kAheadChunk, 4096};
  engine_script().error = EIO;
  engine_script().fail_times = ~0u;  // chunks that were planned before may still be on their way
  engine_script().fail_nth = 1;
  EXPECT_EQ(prefetcher().wait(prefetcher().submit(walk.walk(), {{}, {&need, 1}, {}, need})).raw(), EIO);
  engine_script().fail_nth = 0;
  EXPECT_TRUE(prefetcher().wait(prefetcher().submit(walk.walk(), {{}, {&need, 1}, {}, need})).ok());
}

TEST_F(Ahead, ClosedWithReadsInFlight) {
  for (const bool another : {false, true}) {  // open file: the thread goes on
    std::unique_ptr<AheadFile> other;
    if (another) other = std::make_unique<AheadFile>(kAheadChunk);
    AheadFile file(6 * kAheadChunk);
    AheadWalk walk(file);
    engine_script().hold();
    ASSERT_TRUE(walk.wish(0, 5).ok());
    engine_script().wait_for_held();
    std::thread later([] { engine_script().release(); });
    file.close();
    later.join();
    EXPECT_TRUE(walk.go(0).ok()) << "nothing is waited for any more";
    EXPECT_TRUE(file.all_right()) << "the window is the file's";
    if (another) {
      AheadWalk on(*other);
      EXPECT_TRUE(on.go(0).ok());
      EXPECT_TRUE(other->all_right());
      other->close();
    }
    EXPECT_EQ(prefetcher().memory().used(), 0u);
  }
}

TEST_F(Ahead, OpenedTwiceItIsOne) {
  AheadFile file(3 * kAheadChunk);
  const Origin origin{file.fd(), nullptr, identity_of(file.fd()).value()};
  const auto again = prefetcher().open(file.window(), origin, "again", file.bytes(), 1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again.value(), file.window_file());
  AheadWalk walk(file);
  ASSERT_TRUE(walk.go(0).ok());
  prefetcher().close(again.value());
  EXPECT_TRUE(file.window_file()->resident_now(ChunkIndex{0})) << "somebody has it open still";
  ASSERT_TRUE(walk.go(1).ok());
}

TEST_F(Ahead, TheThreadGoesAndComesBack) {
  const unsigned before = tasks();
  for (int round = 0; round < 3; ++round) {
    AheadFile file(2 * kAheadChunk);
    const unsigned open = tasks();
    EXPECT_GT(open, before) << "those of the private table";
    {
      AheadWalk walk(file);
      ASSERT_TRUE(walk.go(0).ok());
      EXPECT_GT(tasks(), open) << "the one that reads";
    }
    file.close();
    // A thread that was joined may be listed a moment longer.
    for (int i = 0; i < 100'000 && tasks() != before; ++i) ::sched_yield();
    EXPECT_EQ(tasks(), before);
  }
}

/// All of the range is the file's mapping.
bool file_backed(const Window& w) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  const auto from = reinterpret_cast<std::uintptr_t>(w.base()), to = from + w.length();
  std::uintptr_t covered = 0;
  char line[4096];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    std::uintptr_t a = 0, b = 0;
    std::uint64_t inode = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %" SCNu64, &a, &b, &inode) != 3) continue;
    if (inode != 0 && a < to && b > from) covered += std::min(b, to) - std::max(a, from);
  }
  std::fclose(maps);
  return covered == w.length();
}

TEST_F(Ahead, AForkedChildGoesOnByItself) {
  AheadFile file(7 * kAheadChunk + kTail);
  AheadWalk walk(file);
  ASSERT_TRUE(walk.go(1, true, 3).ok());
  EXPECT_FALSE(file_backed(*file.window()));
  engine_script().hold();
  ASSERT_TRUE(walk.wish(5, 2).ok());
  engine_script().wait_for_held();

  const pid_t child = testing::fork_a_child([&] {
    int bad = 0;
    if (!file_backed(*file.window())) bad |= 1;
    if (prefetcher().memory().used() != 0) bad |= 2;
    if (!file.all_right()) bad |= 4;
#if !defined(__SANITIZE_THREAD__)  // which knows no threads of a child's own
    engine_script().reset();
    for (std::uint32_t c = 0; c < file.chunks(); ++c)
      if (!walk.go(c).ok() || !file.right(c) || !file.window_file()->resident_now(ChunkIndex{c}) ||
          !within_limit())
        bad |= 8;
#endif
    file.close();
    if (prefetcher().memory().used() != 0) bad |= 16;
    return bad;
  });
  engine_script().release();
  for (std::uint32_t c = 0; c < file.chunks(); ++c) {
    ASSERT_TRUE(walk.go(c).ok());
    EXPECT_TRUE(file.right(c));
    EXPECT_TRUE(file.window_file()->resident_now(ChunkIndex{c}));
  }
  testing::expect_success(child);
}

// A thread that the child does not have was waiting for a chunk: nothing of it is looked at there.
TEST_F(Ahead, AForkWhileAnotherThreadLoads) {
  AheadFile file(4 * kAheadChunk, true);
  std::thread loads = load_and_hold(file);
  const pid_t child = testing::fork_a_child([&] {
    int bad = 0;
#if !defined(__SANITIZE_THREAD__)
    hold_pread = false;
    std::vector<std::thread> others;  // on the stacks of threads that are gone
    std::atomic<unsigned> failed{0};
    for (std::uint32_t c = 0; c < file.chunks(); ++c)
      others.emplace_back([&, c] {
        if (!prefetcher().read_chunk(*file.window_file(), ChunkIndex{c}).ok() || !file.right(c)) ++failed;
      });
    for (std::thread& t : others) t.join();
    if (failed != 0) bad = 1;
#endif
    return bad;
  });
  hold_pread = false;
  loads.join();
  testing::expect_success(child);
}

TEST_F(Ahead, WhereAFileCannotBeMapped) {
  ::testing::internal::CaptureStderr();
  {
    AheadFile file(9 * kAheadChunk + kTail, true);
    EXPECT_EQ(file.window_file()->decision.path, ReadPath::direct);
    for (std::uint32_t c = 0; c < file.chunks(); c += 2)
      ASSERT_TRUE(prefetcher().read_chunk(*file.window_file(), ChunkIndex{c}).ok());
    AheadWalk walk(file);
    for (std::uint32_t c = 0; c < file.chunks(); ++c) {
      ASSERT_TRUE(walk.go(c).ok());
      ASSERT_TRUE(file.window_file()->resident_now(ChunkIndex{c}));
    }
    EXPECT_TRUE(file.all_right()) << "nothing is taken away";
    EXPECT_GT(prefetcher().memory().used(), kLimit);
    EXPECT_EQ(prefetcher().read_chunk(*file.window_file(), ChunkIndex{file.chunks()}).raw(), EIO)
        << "beyond the end";
    file.change(std::byte{0x77});
    ASSERT_TRUE(file.advance(2).ok());
    std::atomic<unsigned> failed{0};
    const auto body = [&] {
      for (std::uint32_t c = 0; c < file.chunks(); ++c)
        if (!prefetcher().read_chunk(*file.window_file(), ChunkIndex{c}).ok() || !file.right(c)) ++failed;
    };
    std::thread a(body), b(body);
    a.join();
    b.join();
    EXPECT_EQ(failed, 0u);
    EXPECT_EQ(file.stats().published, 2 * file.chunks()) << "each once, and once more for the new snapshot";
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("more memory than LMDBIO_MEMORY"), std::string::npos) << said;
}

TEST_F(Ahead, AWalkWaitsForAChunkThatAnotherThreadLoads) {
  AheadFile file(3 * kAheadChunk, true);
  std::thread loads = load_and_hold(file);
  AheadWalk walk(file);
  ASSERT_TRUE(walk.wish(0, 1).ok());
  while (!file.window_file()->resident_now(ChunkIndex{1}))
    ::sched_yield();  // the thread has seen chunk 0 before
  std::thread lets_go([] { hold_pread = false; });
  EXPECT_TRUE(walk.go(0).ok());
  EXPECT_TRUE(file.window_file()->resident_now(ChunkIndex{0}));
  lets_go.join();
  loads.join();
}

}  // namespace
}  // namespace lmdbio::window
