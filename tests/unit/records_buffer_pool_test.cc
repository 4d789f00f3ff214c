// The pool of buffers for batches: sizes, limits, which memory is released for whom, and forked children.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "lmdbio/records/buffer_pool.h"
#include "tests/support/child.h"
#include "tests/support/fixed_source.h"
#include "tests/support/rng.h"

namespace lmdbio::records {
namespace {

using testing::FixedSource;

constexpr std::uint64_t kKiB = 1024, kMiB = kKiB * kKiB;

MemoryRequest read_ahead(std::uint64_t most = UINT64_MAX) {
  MemoryRequest r;
  r.most = most;
  return r;
}
MemoryRequest needed(Urgency urgency = Urgency::needed) {
  MemoryRequest r;
  r.most = UINT64_MAX;
  r.needed = true;
  r.urgency = urgency;
  return r;
}
/// The buffer; an empty one if there is none.
Buffer take(BufferPool& pool, std::size_t bytes, MemoryRequest request = read_ahead()) {
  Result<Buffer> taken = pool.take(bytes, request);
  return taken ? std::move(taken).value() : Buffer();
}
bool has(const Buffer& b) { return b.data() != nullptr; }
int error_of(BufferPool& pool, std::size_t bytes, MemoryRequest& request) {
  const Result<Buffer> taken = pool.take(bytes, request);
  return taken ? 0 : taken.error().raw();
}
bool is_mapped(const std::byte* at) {
  unsigned char resident = 0;
  return ::mincore(const_cast<std::byte*>(at), system_page(), &resident) == 0;
}

TEST(BufferPool, SizesAreFewAndNeverMuchTooLarge) {
  EXPECT_EQ(BufferPool::buffer_bytes(1), 64 * kKiB);
  EXPECT_EQ(BufferPool::buffer_bytes(64 * kKiB), 64 * kKiB);
  EXPECT_EQ(BufferPool::buffer_bytes(64 * kKiB + 1), 128 * kKiB);
  EXPECT_EQ(BufferPool::buffer_bytes(2 * kMiB), 2 * kMiB);
  EXPECT_EQ(BufferPool::buffer_bytes(2 * kMiB + 1), 4 * kMiB);
  EXPECT_EQ(BufferPool::buffer_bytes(8 * kMiB + 1), 10 * kMiB);
  EXPECT_EQ(BufferPool::buffer_bytes(16 * kMiB + 1), 20 * kMiB);
  std::set<std::uint64_t> sizes;
  for (std::uint64_t bytes = 1; bytes <= 64 * kMiB; bytes += 4093) {
    const std::uint64_t size = BufferPool::buffer_bytes(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_LE(size, std::max(2 * bytes, 64 * kKiB)) << bytes;
    sizes.insert(size);
  }
  EXPECT_LE(sizes.size(), 24u);
}

TEST(BufferPool, ABufferIsAlignedAndCounted) {
  const auto pool = std::make_shared<BufferPool>(64 * kMiB);
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer().size(), 0u);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{100'000}, std::size_t{300'000}, std::size_t{3 * kMiB}}) {
    SCOPED_TRACE(bytes);
    const BufferPool::Counters before = pool->counters();
    const Buffer b = take(*pool, bytes);
    ASSERT_TRUE(has(b));
    EXPECT_EQ(b.size(), BufferPool::buffer_bytes(bytes));
    const std::size_t align = b.size() >= kHugePage ? kHugePage : system_page();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % align, 0u);
    std::memset(b.data(), 7, bytes);
    EXPECT_FALSE(b.held());
    EXPECT_EQ(pool->counters().made, before.made + 1);
    EXPECT_EQ(pool->counters().bytes, before.bytes + b.size());
    EXPECT_EQ(pool->counters().used_bytes, b.size());
  }
  EXPECT_EQ(pool->counters().used_bytes, 0u) << "all were returned";
  EXPECT_EQ(pool->counters().most_bytes, pool->counters().bytes) << "and are kept";
}

TEST(BufferPool, AFreeBufferIsUsedAgainAsItIs) {
  const auto pool = std::make_shared<BufferPool>(64 * kMiB);
  const std::byte* at = nullptr;
  {
    const Buffer first = take(*pool, 100'000);
    at = first.data();
    std::memset(first.data(), 42, 100'000);
  }
  const Buffer again = take(*pool, 128 * kKiB);
  EXPECT_EQ(again.data(), at);
  EXPECT_EQ(again.data()[99'999], std::byte{42});
  EXPECT_EQ(pool->counters().made, 1u);
  const Buffer other = take(*pool, 128 * kKiB);
  EXPECT_NE(other.data(), at) << "that one is in use";
  EXPECT_EQ(pool->counters().made, 2u);
}

TEST(BufferPool, AMuchLargerFreeBufferIsLeftForLargerRequests) {
  const auto pool = std::make_shared<BufferPool>(64 * kMiB);
  { const Buffer large = take(*pool, kMiB); }
  const Buffer small = take(*pool, 1);
  EXPECT_EQ(small.size(), 64 * kKiB);
  const Buffer fits = take(*pool, 256 * kKiB);
  EXPECT_EQ(fits.size(), kMiB) << "four times the size is not much larger";
}

TEST(BufferPool, TheSmallestFreeBufferThatFitsIsUsed) {
  const auto pool = std::make_shared<BufferPool>(64 * kMiB);
  {
    const Buffer small = take(*pool, 64 * kKiB), middle = take(*pool, 128 * kKiB),
                 large = take(*pool, 256 * kKiB);
  }
  EXPECT_EQ(take(*pool, 100 * kKiB).size(), 128 * kKiB);
  EXPECT_EQ(pool->counters().made, 3u);
}

TEST(BufferPool, ABufferIsNoLargerThanTheLimitAllows) {
  const auto pool = std::make_shared<BufferPool>(112 * kKiB);
  EXPECT_EQ(take(*pool, 100 * kKiB).size(), 100 * kKiB) << "not 128 KiB";
}

TEST(BufferPool, FreeBuffersOfOtherSizesMakeRoom) {
  const auto pool = std::make_shared<BufferPool>(kMiB);
  { const Buffer large = take(*pool, kMiB); }
  const Buffer small = take(*pool, 1);
  ASSERT_TRUE(has(small));
  EXPECT_EQ(pool->counters().bytes, 64 * kKiB) << "the large one was unmapped";
}

TEST(BufferPool, APreferredSizeIsOnlyAPreference) {
  const auto pool = std::make_shared<BufferPool>(300 * kKiB);
  MemoryRequest request = needed();
  request.least = 256 * kKiB;
  const Buffer preferred = take(*pool, 1, request);
  EXPECT_EQ(preferred.size(), 256 * kKiB);
  MemoryRequest second = needed();
  second.least = 256 * kKiB;
  const Buffer smaller = take(*pool, 40 * kKiB, second);
  EXPECT_EQ(smaller.size(), 40 * kKiB);
}

TEST(BufferPool, BuffersInUseStayBelowTheRequestsLimit) {
  const auto pool = std::make_shared<BufferPool>(64 * kMiB);
  const Buffer first = take(*pool, 128 * kKiB);
  MemoryRequest little = read_ahead(192 * kKiB - 1);
  EXPECT_EQ(error_of(*pool, 64 * kKiB, little), ENOMEM);
  MemoryRequest enough = read_ahead(192 * kKiB);
  EXPECT_EQ(error_of(*pool, 64 * kKiB, enough), 0);
  EXPECT_EQ(error_of(*pool, 64 * kKiB, little), ENOMEM) << "a free buffer would exceed it, too";
  MemoryRequest own = needed();
  own.most = 64 * kKiB;
  EXPECT_EQ(error_of(*pool, 100 * kKiB, own), ENOMEM) << "the buffer alone would";
  MemoryRequest none = needed();
  EXPECT_EQ(error_of(*pool, 65 * kMiB, none), ENOMEM) << "more than the pool may ever have";
  EXPECT_FALSE(none.ahead_in_the_way);
}

// A buffer that a program waits for takes the unused ends of others, whose bytes stay.
TEST(BufferPool, ANeededBufferTakesTheUnusedEndsOfOthers) {
  const auto pool = std::make_shared<BufferPool>(192 * kKiB);
  const std::size_t asked = 68 * kKiB;
  const Buffer first = take(*pool, asked);
  ASSERT_EQ(first.size(), 128 * kKiB);
  std::memset(first.data(), 5, asked);
  MemoryRequest ahead = read_ahead();
  EXPECT_EQ(error_of(*pool, 100 * kKiB, ahead), ENOMEM);
  const Buffer second = take(*pool, 100 * kKiB, needed());
  ASSERT_TRUE(has(second));
  std::memset(second.data(), 6, 100 * kKiB);
  EXPECT_EQ(std::count(first.data(), first.data() + asked, std::byte{5}), static_cast<std::ptrdiff_t>(asked));
  EXPECT_EQ(pool->counters().bytes, 168 * kKiB);
}

TEST(BufferPool, ItTellsThatReadAheadIsInTheWay) {
  const auto pool = std::make_shared<BufferPool>(128 * kKiB);
  const Buffer a = take(*pool, 64 * kKiB), b = take(*pool, 64 * kKiB);
  MemoryRequest all = needed();
  EXPECT_EQ(error_of(*pool, 128 * kKiB, all), ENOMEM);
  EXPECT_TRUE(all.ahead_in_the_way);
  a.hold();
  EXPECT_EQ(error_of(*pool, 128 * kKiB, all), ENOMEM);
  EXPECT_FALSE(all.ahead_in_the_way) << "a program has one of them";
  MemoryRequest half = needed();
  EXPECT_EQ(error_of(*pool, 64 * kKiB, half), ENOMEM);
  EXPECT_TRUE(half.ahead_in_the_way);
  MemoryRequest ahead = read_ahead();
  EXPECT_EQ(error_of(*pool, 64 * kKiB, ahead), ENOMEM);
  EXPECT_FALSE(ahead.ahead_in_the_way) << "it does not matter to read-ahead";
  a.unhold();
}

TEST(BufferPool, HoldsAreCounted) {
  const auto pool = std::make_shared<BufferPool>(kMiB);
  Buffer a = take(*pool, 64 * kKiB);
  const Buffer b = take(*pool, 128 * kKiB);
  EXPECT_EQ(pool->held_bytes(), 0u);
  EXPECT_EQ(pool->ahead_bytes(), 192 * kKiB);
  a.hold();
  a.hold();
  a.unhold();
  EXPECT_TRUE(a.held());
  EXPECT_EQ(pool->held_bytes(), 64 * kKiB);
  EXPECT_EQ(pool->ahead_bytes(), 128 * kKiB);
  EXPECT_EQ(pool->releasable_bytes(), 128 * kKiB);
  a.unhold();
  EXPECT_FALSE(a.held());
  a.hold();
  a = Buffer();
  const Buffer again = take(*pool, 64 * kKiB);
  EXPECT_FALSE(again.held()) << "holds end with the buffer";
  EXPECT_EQ(pool->counters().made, 2u);
  Buffer().hold();
  Buffer().unhold();
}

TEST(BufferPool, AssignmentReturnsTheOldBuffer) {
  const auto pool = std::make_shared<BufferPool>(kMiB);
  Buffer a = take(*pool, 64 * kKiB), b = take(*pool, 128 * kKiB);
  const std::byte* const kept = b.data();
  a = std::move(b);
  EXPECT_EQ(a.data(), kept);
  EXPECT_EQ(b.data(), nullptr);  // NOLINT: a moved-from buffer is empty
  EXPECT_EQ(pool->counters().used_bytes, 128 * kKiB);
}

TEST(BufferPool, NoReadAheadWhileACallerWaits) {
  const auto memory = std::make_shared<Memory>();
  const auto pool = std::make_shared<BufferPool>(kMiB, memory),
             other = std::make_shared<BufferPool>(kMiB, memory);
  for (const bool process : {false, true}) {
    SCOPED_TRACE(process);
    std::unique_ptr<BufferPool::Need> own;
    std::unique_ptr<Memory::Need> of_all;
    if (process)
      of_all = std::make_unique<Memory::Need>(*memory);
    else
      own = std::make_unique<BufferPool::Need>(*pool);
    MemoryRequest ahead = read_ahead(), must = needed();
    EXPECT_EQ(error_of(*pool, 1, ahead), ENOMEM);
    EXPECT_EQ(error_of(*pool, 1, must), 0);
    EXPECT_EQ(error_of(*other, 1, ahead), process ? ENOMEM : 0);
    own.reset();
    of_all.reset();
    EXPECT_EQ(error_of(*pool, 1, ahead), 0);
  }
}

TEST(BufferPool, WaitingCallersAreNotified) {
  const auto pool = std::make_shared<BufferPool>(kMiB);
  Buffer b = take(*pool, 1);
  std::uint32_t seen = pool->changes().now();
  const auto changed = [&] {
    const std::uint32_t now = pool->changes().now();
    return std::exchange(seen, now) != now;
  };
  b.hold();
  b.unhold();
  EXPECT_FALSE(changed()) << "nobody waits";
  const BufferPool::Need need(*pool);
  b.hold();
  EXPECT_TRUE(changed());
  b.unhold();
  EXPECT_TRUE(changed());
  b = Buffer();
  EXPECT_TRUE(changed());
}

TEST(BufferPool, ItsMemoryIsTheProcesssAndComesBack) {
  FixedSource source(4 * kMiB);
  {
    const auto pool = std::make_shared<BufferPool>(64 * kMiB, std::make_shared<Memory>(&source));
    ASSERT_TRUE(pool->take_least());
    EXPECT_EQ(source.used(), BufferPool::kLeast);
    Buffer a = take(*pool, kMiB);
    EXPECT_EQ(source.used(), kMiB) << "the reserved part suffices";
    const Buffer b = take(*pool, kMiB);
    EXPECT_EQ(source.used(), 2 * kMiB);
    a = Buffer();
    EXPECT_EQ(source.used(), 2 * kMiB) << "it waits for its next user";
    EXPECT_EQ(pool->releasable_bytes(), kMiB) << "all but the reserved part";
    EXPECT_EQ(pool->unmap_free(1), kMiB);
    EXPECT_EQ(source.used(), kMiB);
    MemoryRequest too_much = needed();
    EXPECT_EQ(error_of(*pool, 3 * kMiB + 1, too_much), ENOMEM);
    EXPECT_TRUE(too_much.others_in_the_way) << "read-ahead of its own";
    b.hold();
    EXPECT_EQ(error_of(*pool, 3 * kMiB + 1, too_much), ENOMEM);
    EXPECT_FALSE(too_much.others_in_the_way);
    EXPECT_EQ(source.used(), kMiB) << "a failure takes nothing";
  }
  EXPECT_EQ(source.used(), 0u);
}

TEST(BufferPool, WithoutRoomForItsReservedPartThereIsNoPool) {
  FixedSource source(BufferPool::kLeast);
  const auto memory = std::make_shared<Memory>(&source);
  const auto first = std::make_shared<BufferPool>(64 * kMiB, memory),
             second = std::make_shared<BufferPool>(64 * kMiB, memory);
  EXPECT_TRUE(first->take_least());
  EXPECT_FALSE(second->take_least());
}

TEST(BufferPool, FreeBuffersOfOtherPoolsMakeRoom) {
  FixedSource source(4 * kMiB);
  const auto memory = std::make_shared<Memory>(&source);
  const auto pool = std::make_shared<BufferPool>(64 * kMiB, memory),
             other = std::make_shared<BufferPool>(64 * kMiB, memory);
  Buffer theirs = take(*other, 4 * kMiB);
  MemoryRequest request = needed();
  EXPECT_EQ(error_of(*pool, kMiB, request), ENOMEM);
  EXPECT_TRUE(request.others_in_the_way) << "the other pool's read-ahead";
  theirs.hold();
  EXPECT_EQ(error_of(*pool, kMiB, request), ENOMEM);
  EXPECT_FALSE(request.others_in_the_way) << "what a program has does not come back";
  theirs = Buffer();
  EXPECT_EQ(other->counters().bytes, 4 * kMiB);
  EXPECT_TRUE(has(take(*pool, kMiB, needed())));
  EXPECT_EQ(other->counters().bytes, 0u);
}

TEST(BufferPool, UnderPressureItKeepsNoFreeBuffers) {
  FixedSource source(8 * kMiB);
  const auto pool = std::make_shared<BufferPool>(64 * kMiB, std::make_shared<Memory>(&source));
  ASSERT_TRUE(pool->take_least());
  Buffer a = take(*pool, kMiB), b = take(*pool, 2 * kMiB);
  source.is_pressed = true;
  MemoryRequest ahead = read_ahead();
  EXPECT_EQ(error_of(*pool, 1, ahead), ENOMEM);
  b = Buffer();
  EXPECT_EQ(pool->counters().bytes, kMiB) << "it was unmapped";
  EXPECT_EQ(source.used(), kMiB);
  EXPECT_TRUE(has(take(*pool, kMiB, needed()))) << "a needed buffer is still given";
}

TEST(BufferPool, AForkedChildTakesNothingAndUnmapsWhatItReturns) {
  FixedSource source(8 * kMiB);
  auto pool = std::make_shared<BufferPool>(64 * kMiB, std::make_shared<Memory>(&source));
  Buffer a = take(*pool, kMiB), b = take(*pool, kMiB);
  { const Buffer free = take(*pool, kMiB); }
  std::memset(a.data(), 3, kMiB);
  const testing::ChildResult child = testing::in_child([&] {
    const std::byte* const at = a.data();
    MemoryRequest request = needed();
    if (error_of(*pool, 1, request) != EINVAL) return 1;
    if (a.data()[kMiB - 1] != std::byte{3}) return 2;
    const std::uint64_t used = source.used();
    a = Buffer();
    if (is_mapped(at)) return 3;
    if (!is_mapped(b.data())) return 4;
    b = Buffer();
    pool.reset();
    return source.used() == used ? 0 : 5;
  });
  EXPECT_EQ(child.exit_code, 0) << child.err;
  EXPECT_EQ(pool->counters().used_bytes, 2 * kMiB) << "nothing has changed here";
  EXPECT_EQ(a.data()[0], std::byte{3});
}

TEST(BufferPool, TwoThreadsAtAForkLeaveTheChildNoLock) {
  const auto pool = std::make_shared<BufferPool>(64 * kMiB);
  Buffer inherited = take(*pool, kMiB);
  std::atomic<bool> ends{false};
  std::atomic<unsigned> turns{0};
  std::thread other([&] {
    while (!ends) {
      const Buffer b = take(*pool, 64 * kKiB);
      ++turns;
    }
  });
  while (turns == 0) std::this_thread::yield();
  // The child would hang if returning a buffer took the lock that the other thread may have had.
  for (int i = 0; i < 10; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(10);
      inherited = Buffer();
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
  }
  ends = true;
  other.join();
}

TEST(BufferPool, ManyThreadsStayWithinTheLimit) {
  constexpr std::uint64_t kSeed = 21, kLimit = 2 * kMiB;
  std::cout << "seed " << kSeed << '\n';
  FixedSource source(kLimit);
  const auto memory = std::make_shared<Memory>(&source);
  const auto pool = std::make_shared<BufferPool>(kLimit, memory),
             other = std::make_shared<BufferPool>(kLimit, memory);
  std::atomic<unsigned> taken{0}, wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      test::Rng rng(kSeed + t);
      std::vector<Buffer> has_now;
      for (int i = 0; i < 2000; ++i) {
        if (!has_now.empty() && rng.below(2) == 0) {
          const std::size_t which = rng.below(has_now.size());
          has_now.erase(has_now.begin() + static_cast<std::ptrdiff_t>(which));
          continue;
        }
        Buffer b = take(rng.below(2) == 0 ? *pool : *other, rng.between(1, 300'000),
                        rng.below(2) == 0 ? needed() : read_ahead());
        if (!has(b)) continue;
        ++taken;
        const auto mark = static_cast<std::byte>(t + 1);
        b.data()[0] = mark;
        for (const Buffer& one : has_now) wrong += one.data()[0] != mark;
        has_now.push_back(std::move(b));
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_GT(taken, 1000u);
  EXPECT_EQ(wrong, 0u) << "two threads had one buffer";
  EXPECT_LE(pool->counters().most_bytes, kLimit);
  EXPECT_LE(source.most(), kLimit);
  EXPECT_EQ(pool->counters().used_bytes + other->counters().used_bytes, 0u);
}

}  // namespace
}  // namespace lmdbio::records
