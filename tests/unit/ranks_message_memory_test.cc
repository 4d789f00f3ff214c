// Memory of messages: counted, limited, and used again.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "lmdbio/ranks/message_memory.h"
#include "tests/support/rng.h"

namespace lmdbio::ranks {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::shared_ptr<MessageMemory> memory_of(std::uint64_t limit) {
  return std::make_shared<MessageMemory>(std::make_shared<records::Memory>(), limit);
}

TEST(MessageMemory, BuffersAreUsedAgain) {
  const auto memory = memory_of(8 * kMiB);
  Payload first;
  ASSERT_TRUE(first.make(memory, 400'000));
  const std::byte* const bytes = first.data();
  const std::uint64_t used = memory->used();
  EXPECT_GE(used, 400'000u);
  EXPECT_LE(used, 400'000u + 400'000 / 16);
  first.clear();
  EXPECT_EQ(memory->used(), used) << "it is counted as long as it is there";
  Payload second;
  ASSERT_TRUE(second.make(memory, 399'000));
  EXPECT_EQ(second.data(), bytes);
  EXPECT_EQ(memory->used(), used);
  Payload small;
  ASSERT_TRUE(small.make(memory, 100));
  EXPECT_EQ(memory->used(), used + 100);
  small.clear();
  EXPECT_EQ(memory->used(), used);
}

TEST(MessageMemory, OnlyAFewBuffersWait) {
  const auto memory = memory_of(8 * kMiB);
  {
    std::vector<Payload> all(7);
    for (Payload& p : all) ASSERT_TRUE(p.make(memory, kMiB));
  }
  EXPECT_EQ(memory->used(), 2 * kMiB) << "a quarter of the limit";
  Payload large;
  ASSERT_TRUE(large.make(memory, 3 * kMiB));
  large.clear();
  EXPECT_EQ(memory->used(), 2 * kMiB) << "it is too large to wait";
}

TEST(MessageMemory, BuffersThatWaitMakeRoom) {
  const auto memory = memory_of(8 * kMiB);
  {
    Payload a, b;
    ASSERT_TRUE(a.make(memory, kMiB) && b.make(memory, kMiB));
  }
  Payload large, more;
  ASSERT_TRUE(large.make(memory, 7 * kMiB)) << "those that wait are freed";
  EXPECT_EQ(memory->used(), 7 * kMiB);
  EXPECT_FALSE(more.make(memory, 2 * kMiB));
  EXPECT_EQ(memory->used(), 7 * kMiB);
  ASSERT_TRUE(more.make(memory, kMiB));
  EXPECT_FALSE(Payload().make(memory, 1));
}

TEST(MessageMemory, BuffersThatWaitAreForOthers) {
  const auto process = std::make_shared<records::Memory>();
  const auto memory = std::make_shared<MessageMemory>(process, 8 * kMiB);
  const auto use = [&] { return Payload().make(memory, kMiB); };
  ASSERT_TRUE(use());
  EXPECT_EQ(memory->releasable_bytes(), kMiB);
  EXPECT_TRUE(process->drop_free(nullptr, 1));
  EXPECT_EQ(memory->used(), 0u);
  EXPECT_FALSE(process->drop_free(nullptr, 1));
  const records::Memory::Need somebody_waits(*process);
  ASSERT_TRUE(use());
  EXPECT_EQ(memory->used(), 0u);
}

TEST(MessageMemory, SizesNearTheLimit) {
  const auto memory = memory_of(100'000);
  Payload p;
  EXPECT_TRUE(p.make(memory, 99'999)) << "rounded up it would be too large";
  EXPECT_EQ(p.counted(), 99'999u);
  EXPECT_FALSE(Payload().make(memory, 2));
}

// While another thread uses the memory, which may hold its lock for ever in the child.
TEST(MessageMemory, AForkedChildReleases) {
  const auto memory = memory_of(64 * kMiB);
  Payload held;
  ASSERT_TRUE(held.make(memory, kMiB));
  std::atomic<bool> ends{false};
  std::thread other([&] {
    while (!ends.load()) {
      Payload p;
      ASSERT_TRUE(p.make(memory, kMiB + 4096 * (memory->used() % 7)));
    }
  });
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      held.clear();
      ::_exit(Payload().make(memory, kMiB) ? 1 : 0);
    }
    int status = 1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  ends = true;
  other.join();
}

TEST(MessageMemory, AnyThread) {
  const auto memory = memory_of(16 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&memory, t] {
      test::Rng rng(t);
      std::vector<Payload> held(4);
      for (unsigned i = 0; i < 3000; ++i) {
        Payload& p = held[rng.below(4)];
        p.clear();
        const std::size_t size = rng.between(1, 600'000);
        if (!p.make(memory, size)) continue;
        std::memset(p.data(), static_cast<int>(t), 64 < size ? 64 : size);
        p.data()[size - 1] = std::byte{1};
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_LE(memory->used(), 4 * kMiB);
}

}  // namespace
}  // namespace lmdbio::ranks
