// Reading ahead while each single operation fails in turn: the errno once and to whom it belongs, or a slower
// way to the same bytes; nobody waits for ever, and no memory is lost.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>

#include "lmdbio/window/io_worker.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"

namespace {

/// The k-th of some calls, counted from 1; 0: none.  `last`: and all that follow up to this one.
struct Failing {
  std::atomic<unsigned> nth{0}, last{0}, seen{0}, fired{0};
  void reset(unsigned k = 0, unsigned to = 0) {
    nth = k;
    last = to;
    seen = fired = 0;
  }
  bool now() {
    const unsigned n = ++seen;
    if (nth == 0 || n < nth || n > std::max(nth.load(), last.load())) return false;
    ++fired;
    return true;
  }
};
Failing staging_calls, mremap_calls, mmap_calls, allocations;
/// A thread of the test itself, whose allocations do not fail.
thread_local bool mine = false;
lmdbio::window::WindowCalls real_calls;

void* failing_mremap(void* from, std::size_t bytes, void* to) noexcept {
  if (!mremap_calls.now()) return real_calls.mremap(from, bytes, to);
  errno = ENOMEM;
  return MAP_FAILED;
}
void* failing_duplicate(void* from, std::size_t bytes, void* to) noexcept {
  if (!mmap_calls.now()) return real_calls.duplicate(from, bytes, to);
  errno = ENOMEM;
  return MAP_FAILED;
}
void* failing_reserve(void* at, std::size_t bytes) noexcept {
  if (!mmap_calls.now()) return real_calls.reserve(at, bytes);
  errno = ENOMEM;
  return MAP_FAILED;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__)  // which has its own, all or none
// What opens files is not the thread that reads.
bool opens_files() noexcept {
  char name[16] = "";
  return ::prctl(PR_GET_NAME, name) == 0 && std::strcmp(name, "lmdbio-fd") == 0;
}
[[gnu::noinline]] void* operator new(std::size_t n) {
  if (!mine && !opens_files() && allocations.now()) throw std::bad_alloc();
  if (void* const p = std::malloc(n); p != nullptr) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif

// The last call that makes staging comes here: the product is linked into this program.
extern "C" int madvise(void* at, size_t n, int advice) noexcept {
  if (advice == MADV_DONTFORK && staging_calls.now()) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_madvise, at, n, advice));
}

namespace lmdbio::window {
namespace {

using testing::AheadFile;
using testing::AheadWalk;
using testing::engine_script;
using testing::kAheadChunk;

#if defined(__SANITIZE_THREAD__)
constexpr unsigned kStep = 4;  // slow: not each operation
#else
constexpr unsigned kStep = 1;
#endif
constexpr std::uint64_t kLimit = std::uint64_t{8} << 20;
constexpr std::size_t kBytes = 4 * kAheadChunk + 4096 + 11;  // more than fits

const bool set = [] {
  ::setenv("LMDBIO_IO", "direct", 1);
  ::setenv("LMDBIO_MEMORY", "8M", 1);
  gather::engine_factory() = testing::ScriptedEngine::make;
  real_calls = window_calls();
  window_calls() = {failing_mremap, failing_duplicate, failing_reserve};
  return true;
}();

class CacheFault : public ::testing::Test {
 protected:
  CacheFault() { reset(); }
  ~CacheFault() override {
    reset();
    EXPECT_EQ(AheadFile::prefetcher().memory().used(), 0u) << "all files are closed";
  }
  static void SetUpTestSuite() {
    shared_ = new AheadFile(kBytes);
    shared_->close();
  }
  static void TearDownTestSuite() { delete shared_; }
  static void reset() {
    engine_script().reset();
    staging_calls.reset();
    mremap_calls.reset();
    mmap_calls.reset();
    allocations.reset();
    mine = true;
  }

  /// A walk over a file from end to end, each step tried again where it fails.  The errnos seen.
  static std::vector<int> walk_all(bool forward, std::size_t ahead = 2) {
    std::vector<int> errors;
    AheadFile& file = *shared_;
    if (file.window_file() == nullptr) file.open();
    {
      AheadWalk walk(file);
      for (std::uint32_t k = 0; k < file.chunks(); ++k) {
        const std::uint32_t c = forward ? k : file.chunks() - 1 - k;
        if (const Status st = walk.go(c, forward, ahead); !st.ok()) {
          errors.push_back(st.raw());
          EXPECT_TRUE(walk.go(c, forward, ahead).ok()) << "the next call tries again";
        }
        EXPECT_TRUE(file.right(c)) << c;
        EXPECT_LE(AheadFile::prefetcher().memory().used(), kLimit);
      }
    }
    EXPECT_TRUE(file.all_right());
    file.close();
    EXPECT_TRUE(file.all_right());
    EXPECT_EQ(AheadFile::prefetcher().memory().used(), 0u);
    return errors;
  }

  static inline AheadFile* shared_ = nullptr;  ///< opened for each walk
};

struct ReadFault {
  const char* name;
  int error;       // of the read; 0: it is short
  unsigned times;  // in a row
  bool shown;      // callers see it
};
constexpr ReadFault kReadFaults[] = {
    {"EIO", EIO, 1, true},  {"ESTALE", ESTALE, 1, true}, {"ENOMEM", ENOMEM, 1, false},
    {"short", 0, 1, false}, {"EINTR", EINTR, 1, false},  {"EAGAIN", EAGAIN, 3, false},
};

TEST_F(CacheFault, EachRead) {
  ASSERT_TRUE(set);
  for (const ReadFault& f : kReadFaults) {
    bool seen = false;
    unsigned k = 1;
    for (;; k += kStep) {
      ASSERT_LT(k, 100u);
      reset();
      engine_script().error = f.error;
      engine_script().fail_times = f.times;
      engine_script().fail_nth = k;
      const std::vector<int> errors = walk_all(k % 2 == 0);
      if (engine_script().failed == 0) {
        EXPECT_TRUE(errors.empty());
        break;
      }
      EXPECT_LE(errors.size(), f.shown ? 1u : 0u) << f.name << " at read " << k;
      for (const int e : errors) EXPECT_EQ(e, f.error) << f.name << " at read " << k;
      if (f.shown && k == 1) {
        EXPECT_EQ(errors.size(), 1u) << "the walk cannot go on without it";
      }
      seen = seen || !errors.empty();
    }
    EXPECT_GT(k, 8u) << f.name;
    EXPECT_EQ(seen, f.shown) << f.name;
  }
}

TEST_F(CacheFault, AReadThatFailsForAllWhoWait) {
  AheadFile file(2 * kAheadChunk);
  AheadWalk a(file), b(file);
  engine_script().hold();
  engine_script().error = EIO;
  engine_script().fail_nth = 1;
  Status first, second;
  std::thread one([&] { first = a.go(0, true, 0); });
  engine_script().wait_for_held();
  std::thread two([&] { second = b.go(0, true, 0); });
  engine_script().release();
  one.join();
  two.join();
  EXPECT_EQ(first.raw(), EIO);
  EXPECT_TRUE(second.ok() || second.raw() == EIO) << second.raw();
  EXPECT_TRUE(a.go(0, true, 0).ok());
  EXPECT_TRUE(b.go(0, true, 0).ok());
  EXPECT_TRUE(file.all_right());
}

TEST_F(CacheFault, AReadThatFailsAgainAndAgain) {
  AheadFile file(2 * kAheadChunk);
  AheadWalk walk(file);
  engine_script().error = EIO;
  engine_script().fail_times = 1000;
  engine_script().fail_nth = 1;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(walk.go(0).raw(), EIO);
  engine_script().fail_nth = 0;
  EXPECT_TRUE(walk.go(0).ok());
  EXPECT_TRUE(walk.go(1).ok());
  EXPECT_TRUE(file.all_right());
}

// A piece that is awaited: its failure is told whether its read ends before the wait or after, and tried
// again.
TEST_F(CacheFault, AnAwaitedPiece) {
  const std::vector<Extent> pieces = {{8192, 4096}, {40960, 40000}};
  const auto await = [&](AheadWalk& walk, const Extent& piece) {
    Prefetcher& all = AheadFile::prefetcher();
    Ticket ticket = all.submit(walk.walk(), {{}, pieces, {}, piece});
    while (engine_script().reads < pieces.size()) ::sched_yield();
    return all.wait(ticket);
  };
  for (const bool before : {false, true}) {
    for (const Extent& piece : pieces) {
      reset();
      AheadFile file(3 * kAheadChunk);
      AheadWalk walk(file);
      if (!before) engine_script().hold();
      engine_script().error = EIO;
      engine_script().fail_times = 2;
      engine_script().fail_nth = 1;
      Status st;
      std::thread waits([&] { st = await(walk, piece); });
      if (!before) engine_script().wait_for_held();
      engine_script().release();
      waits.join();
      EXPECT_EQ(st.raw(), EIO);
      EXPECT_EQ(file.stats().published, 0u);
      engine_script().fail_nth = 0;
      EXPECT_TRUE(await(walk, piece).ok()) << "it is asked for again";
      EXPECT_GE(engine_script().reads, pieces.size() + 1);
      EXPECT_TRUE(await(walk, piece).ok()) << "it is there: nobody reads it";
    }
  }
  // Nobody can read it: whoever touches it does.
  reset();
  engine_script().fail_make = true;
  AheadFile file(3 * kAheadChunk);
  AheadWalk walk(file);
  Prefetcher& all = AheadFile::prefetcher();
  EXPECT_TRUE(all.wait(all.submit(walk.walk(), {{}, pieces, {}, pieces[0]})).ok());
}

// No engine: for want of memory or descriptors, which are not the data's failures.
TEST_F(CacheFault, NoEngineCanBeMade) {
  engine_script().fail_make = true;
  EXPECT_TRUE(walk_all(true).empty()) << "the mapping serves";
  engine_script().fail_make = false;
  EXPECT_TRUE(walk_all(true).empty());
}

/// Fails the k-th call, for each k, in a walk that must not notice.
void each(Failing& calls, const std::function<void()>& job) {
  unsigned k = 1;
  for (;; k += kStep) {
    ASSERT_LT(k, 200u);
    calls.reset(k);
    job();
    if (calls.fired == 0) break;
  }
  calls.reset();
  EXPECT_GT(k, 5u) << "it was called";
}

TEST_F(CacheFault, EachStaging) {
  each(staging_calls, [] { EXPECT_TRUE(walk_all(true).empty()); });
}

TEST_F(CacheFault, EachPublish) {
  each(mremap_calls, [] { EXPECT_TRUE(walk_all(false).empty()); });
}

TEST_F(CacheFault, EachReclaim) {
  each(mmap_calls, [] { EXPECT_TRUE(walk_all(true).empty()); });
}

TEST_F(CacheFault, NoneWorks) {
  for (Failing* const calls : {&staging_calls, &mremap_calls}) {
    calls->reset(1, ~0u);
    EXPECT_TRUE(walk_all(true).empty());
    EXPECT_GT(calls->fired, 0u);
    calls->reset();
  }
}

#if !defined(__SANITIZE_ADDRESS__)
// Of the thread that reads.  Nobody waits for ever, and no memory is lost sight of.
TEST_F(CacheFault, EachAllocation) {
  gather::engine_factory() = select_engine;  // the double's own must not fail
  each(allocations, [] { EXPECT_TRUE(walk_all(true).empty()); });
  for (const unsigned from : {1u, 3u, 10u}) {
    allocations.reset(from, ~0u);
    EXPECT_TRUE(walk_all(false).empty());
  }
  allocations.reset();
  gather::engine_factory() = testing::ScriptedEngine::make;
}
#endif

// A transaction that begins with chunks of the last one about: each call that gives them back fails.
TEST_F(CacheFault, NewSnapshots) {
  unsigned k = 1;
  for (;; ++k) {
    ASSERT_LT(k, 100u);
    AheadFile file(kBytes);
    AheadWalk walk(file);
    ASSERT_TRUE(walk.go(0, true, 2).ok());
    ASSERT_TRUE(walk.go(1, true, 1).ok());
    ASSERT_TRUE(walk.go(2, true, 0).ok());
    mmap_calls.reset(k);
    file.change(std::byte{0x11});
    EXPECT_TRUE(file.advance(2).ok()) << "one call for all is tried";
    const bool fired = mmap_calls.fired != 0;
    mmap_calls.reset();
    EXPECT_TRUE(file.all_right()) << k;
    ASSERT_TRUE(walk.go(1, true, 2).ok());
    EXPECT_TRUE(file.all_right()) << k;
    if (!fired) break;
  }
  EXPECT_GT(k, 3u);
}

TEST_F(CacheFault, ANewSnapshotThatMustNotBegin) {
  AheadFile file(kBytes);
  AheadWalk walk(file);
  for (const std::uint32_t c : {0u, 1u}) ASSERT_TRUE(walk.go(c, true, 1).ok());
  mmap_calls.reset(1, ~0u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(file.advance(2).raw(), ENOMEM);
  EXPECT_TRUE(file.advance(1).ok()) << "who reads the old one goes on";
  EXPECT_TRUE(file.all_right());
  mmap_calls.reset();
  file.change(std::byte{0x22});
  EXPECT_TRUE(file.advance(2).ok());
  EXPECT_TRUE(file.all_right());
  ASSERT_TRUE(walk.go(0, true, 3).ok());
  EXPECT_TRUE(file.all_right());
}

// What cannot be given back at the end is not lost sight of: others may have the window.
TEST_F(CacheFault, ClosedWhileNothingCanBeGivenBack) {
  AheadFile file(3 * kAheadChunk);
  {
    AheadWalk walk(file);
    for (const std::uint32_t c : {0u, 1u, 2u}) ASSERT_TRUE(walk.go(c, true, 2 - c).ok());
  }
  mmap_calls.reset(1, ~0u);
  file.close();
  EXPECT_TRUE(file.all_right());
  EXPECT_EQ(file.advance(2).raw(), ENOMEM);
  mmap_calls.reset();
  file.change(std::byte{0x44});
  EXPECT_TRUE(file.advance(2).ok());
  EXPECT_TRUE(file.all_right());
  EXPECT_EQ(AheadFile::prefetcher().memory().used(), 0u);
  file.open(2);
  {
    AheadWalk walk(file);
    ASSERT_TRUE(walk.go(0, true, 2).ok());
    EXPECT_TRUE(file.all_right());
  }
  file.close();
  EXPECT_TRUE(walk_all(true).empty());
}

}  // namespace
}  // namespace lmdbio::window
