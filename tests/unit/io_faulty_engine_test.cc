// The double itself: each fault does what it says, once, and is logged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "lmdbio/io/engine_memory.h"
#include "tests/support/faulty_engine.h"
#include "tests/support/scan.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kBlocks = 40, kBlock = 64, kBytes = kBlocks * kBlock;

class FaultyEngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<IoEngine> memory(IoEngine::Caps caps = MemoryEngine::kCaps) {
    return memory_engine(contents_, caps);
  }
  const std::vector<std::byte> contents_ = pattern(kBytes);
};

TEST_F(FaultyEngineTest, PassesAllThroughWithoutAPlan) {
  FaultyEngine e(memory(), std::vector<FaultPlan>{});
  EXPECT_EQ(e.caps().depth, MemoryEngine::kCaps.depth);
  const ScanResult r = scan(e, kBytes, kBlock);
  EXPECT_TRUE(r.status.ok() && r.same && r.lost == 0);
  EXPECT_FALSE(e.fired());
  EXPECT_EQ(e.story(), "");
  EXPECT_EQ(e.inner().counters().bytes, kBytes);
}

TEST_F(FaultyEngineTest, FailsTheNth) {
  FaultyEngine e(memory(), fail_nth(3, ENOMEM));
  const ScanResult r = scan(e, kBytes, kBlock);
  EXPECT_EQ(r.status.raw(), ENOMEM);
  EXPECT_EQ(r.failed, 1u);
  EXPECT_EQ(r.lost, 0u);
  EXPECT_TRUE(r.same);
  ASSERT_EQ(e.log().size(), 1u);
  EXPECT_EQ(e.log()[0].operation, 3u);
  EXPECT_EQ(e.log()[0].offset, 2 * kBlock);
  EXPECT_EQ(e.log()[0].error, ENOMEM);
  EXPECT_THAT(e.story(), HasSubstr("fail at operation 3, read of 64 at 128, Cannot allocate memory"));
  EXPECT_TRUE(scan(e, kBytes, kBlock).status.ok()) << "only once";
  EXPECT_EQ(e.log().size(), 1u);
}

TEST_F(FaultyEngineTest, FailsTheNthAndThoseAfter) {
  FaultyEngine e(memory(), FaultPlan{Fault::fail, 5, EIO, 4});
  EXPECT_EQ(scan(e, kBytes, kBlock).failed, 4u);
  EXPECT_EQ(e.log().size(), 4u);
}

TEST_F(FaultyEngineTest, BeyondTheLastNothingFires) {
  FaultyEngine e(memory(), fail_nth(kBlocks + 1, EIO));
  EXPECT_TRUE(scan(e, kBytes, kBlock).status.ok());
  EXPECT_FALSE(e.fired());
  EXPECT_EQ(scan(e, kBytes, kBlock).failed, 1u);
}

TEST_F(FaultyEngineTest, InterruptedAndAgainAreMended) {
  for (const FaultPlan& p : {interrupt_nth(2), again_nth(2, 3)}) {
    FaultyEngine e(memory(), p);
    const ScanResult r = scan(e, kBytes, kBlock);
    EXPECT_TRUE(r.status.ok() && r.same && r.lost == 0);
    EXPECT_EQ(e.log().size(), p.times);
    EXPECT_EQ(e.counters().retries, p.times);
  }
}

TEST_F(FaultyEngineTest, ShortIsMended) {
  FaultyEngine e(memory(), short_nth(7));
  const ScanResult r = scan(e, kBytes, kBlock);
  EXPECT_TRUE(r.status.ok() && r.same && r.lost == 0);
  EXPECT_TRUE(e.fired());
  EXPECT_EQ(e.counters().short_reads, 1u);
}

TEST_F(FaultyEngineTest, ShortKeepsTheAlignment) {
  FaultyEngine e(memory({64, 8, true}), FaultPlan{Fault::short_read, 1, 0, 1000});
  ScanResult r = scan(e, kBytes, kBlock);  // no read is longer than the alignment
  EXPECT_TRUE(r.status.ok() && r.same);
  EXPECT_FALSE(e.fired());
  r = scan(e, kBytes, 4 * kBlock);
  EXPECT_TRUE(r.status.ok() && r.same);
  EXPECT_EQ(e.counters().short_reads, kBlocks / 4 * 2);  // 256 = 128 + 64 + 64
}

TEST_F(FaultyEngineTest, ZeroIsTheEndOfTheFile) {
  FaultyEngine e(memory(), zero_nth(1));
  const ScanResult r = scan(e, kBytes, kBlock);
  EXPECT_EQ(r.status.raw(), EIO);
  EXPECT_EQ(r.failed, 1u);
  EXPECT_THAT(e.story(), HasSubstr("zero"));
}

TEST_F(FaultyEngineTest, FlipsOneBit) {
  FaultyEngine e(memory(), flip_nth(1));
  std::vector<std::byte> b(kBlock);
  EXPECT_TRUE(read_fully(e, 0, b).ok());
  unsigned bits = 0;
  for (std::size_t i = 0; i < kBlock; ++i)
    bits += static_cast<unsigned>(__builtin_popcount(std::to_integer<unsigned>(b[i] ^ byte_at(i))));
  EXPECT_EQ(bits, 1u);
  EXPECT_TRUE(read_fully(e, 0, b).ok());
  EXPECT_EQ(b, pattern(kBlock)) << "the file itself is whole";
  FaultyEngine scanned(memory(), flip_nth(kBlocks));
  EXPECT_FALSE(scan(scanned, kBytes, kBlock).same);
}

TEST_F(FaultyEngineTest, RefusesASubmission) {
  FaultyEngine e(memory(), refuse_nth(1, ENOMEM));
  const ScanResult r = scan(e, kBytes, kBlock);
  EXPECT_EQ(r.status.raw(), ENOMEM);
  EXPECT_EQ(r.failed, 1u);
  EXPECT_EQ(r.lost, 0u);
  FaultyEngine again(memory(), refuse_nth(1, EAGAIN, 5));
  EXPECT_TRUE(scan(again, kBytes, kBlock).status.ok());
  EXPECT_EQ(again.log().size(), 5u);
  FaultyEngine interrupted(memory(), refuse_nth(1, EINTR, 5));
  EXPECT_TRUE(scan(interrupted, kBytes, kBlock).status.ok());
  FaultyEngine for_ever(memory(), refuse_nth(1, EAGAIN, 1'000'000));
  std::vector<std::byte> b(kBlock);
  EXPECT_EQ(read_fully(for_ever, 0, b).raw(), EAGAIN);
}

TEST_F(FaultyEngineTest, FullWithNothingInFlightDoesNotHang) {
  FaultyEngine once(memory(), full_nth(1, 3));
  EXPECT_TRUE(scan(once, kBytes, kBlock).status.ok());
  EXPECT_EQ(once.log().size(), 3u);
  FaultyEngine for_ever(memory(), full_nth(1, 1'000'000));
  std::vector<std::byte> b(kBlock);
  EXPECT_EQ(read_fully(for_ever, 0, b).raw(), EAGAIN);
}

TEST_F(FaultyEngineTest, FailsAWait) {
  FaultyEngine e(memory(), reap_nth(1, EBADF));
  const ScanResult r = scan(e, kBytes, kBlock);
  EXPECT_EQ(r.status.raw(), EBADF);
  EXPECT_EQ(r.failed, 0u) << "the reads themselves came later";
  EXPECT_EQ(r.lost, 0u);
  FaultyEngine interrupted(memory(), reap_nth(1, EINTR));
  EXPECT_TRUE(scan(interrupted, kBytes, kBlock).status.ok());
  EXPECT_TRUE(interrupted.fired());
}

TEST_F(FaultyEngineTest, ShufflesBySeed) {
  const auto order = [this](std::uint64_t seed) {
    FaultyEngine e(memory(), FaultPlan{}, seed);
    std::vector<std::byte> b(32);
    std::vector<ReadOp> ops;
    for (std::size_t i = 0; i < 32; ++i) ops.push_back({i, std::span(b).subspan(i, 1), i});
    EXPECT_EQ(e.submit(ops).value(), 32u);
    std::vector<Completion> done(32);
    EXPECT_EQ(e.reap(done, 32).value(), 32u);
    EXPECT_EQ(b, pattern(32));
    std::vector<std::uint64_t> tags;
    for (const Completion& c : done) tags.push_back(c.tag);
    return tags;
  };
  const auto a = order(1);
  EXPECT_EQ(a, order(1));
  EXPECT_NE(a, order(2));
  EXPECT_FALSE(std::is_sorted(a.begin(), a.end()));
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    FaultyEngine e(memory(), again_nth(4, 2), seed);
    const ScanResult r = scan(e, kBytes, kBlock);
    EXPECT_TRUE(r.status.ok() && r.same && r.lost == 0) << "seed " << seed;
  }
}

TEST_F(FaultyEngineTest, SeveralPlans) {
  FaultyEngine e(memory(), {fail_nth(1, EIO), fail_nth(2, ENOMEM), short_nth(1), interrupt_nth(5)});
  const ScanResult r = scan(e, kBytes, kBlock);
  EXPECT_EQ(r.failed, 2u);
  EXPECT_EQ(r.lost, 0u);
  EXPECT_TRUE(r.same);
  EXPECT_EQ(e.log().size(), 4u);
}

}  // namespace
}  // namespace lmdbio::testing
