// Streams of one reader ran out of memory that only read-ahead of other streams had.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/fixed_source.h"
#include "tests/support/reader_db.h"

namespace lmdbio::records {
namespace {

using testing::expect_record;
using testing::FixedSource;
using testing::kDirectly;
using testing::order_of;
using testing::ReaderDb;
using testing::Records;
using testing::stream_of;

constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

/// Batches of one record, each in a buffer of 1 MiB; four of them fit.
class FourBatches : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRecords = 24, kMemory = 4 * kMiB + kMiB / 2;
  void SetUp() override {
    db.fill(kRecords, [](std::uint64_t) -> std::size_t { return 1'040'000; });
    all = db.walk();
    reader = db.reader(kMemory, kDirectly);
  }
  void TearDown() override { EXPECT_LE(reader->shared().pool->counters().most_bytes, kMemory); }

  std::unique_ptr<Stream> stream() { return stream_of(*reader, order_of(LMDBIO_ORDER_SEQUENTIAL, 1)); }
  std::unique_ptr<Batch> next(Stream& s) {
    std::unique_ptr<Batch> b;
    const std::uint64_t at = s.position().position;
    const Status st = s.next(b, why);
    EXPECT_EQ(st.raw(), 0) << why;
    if (b == nullptr) return b;
    EXPECT_EQ(b->records[0].ordinal, at);
    expect_record(b->records[0], all);
    return b;
  }

  ReaderDb db;
  Records all;
  std::unique_ptr<Reader> reader;
  std::string why;
};

TEST_F(FourBatches, ReadAheadOfIdleStreamsGivesWay) {
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Batch>> held;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(stream());
    held.push_back(next(*streams.back()));
    ASSERT_NE(held.back(), nullptr) << i;
  }
  // The program holds all memory: that is an error, at once.
  std::unique_ptr<Batch> b;
  EXPECT_EQ(streams[0]->next(b, why).raw(), ENOMEM);
  EXPECT_NE(why.find("not released"), std::string::npos) << why;
  // Each stream goes on in its order, whatever it had to drop.
  for (std::uint64_t round = 1; round < kRecords; ++round)
    for (std::size_t i = 0; i < streams.size(); ++i) {
      held[i].reset();
      held[i] = next(*streams[i]);
      ASSERT_NE(held[i], nullptr);
    }
  held.clear();
  for (const auto& s : streams) EXPECT_EQ(s->next(b, why).raw(), MDB_NOTFOUND);
}

TEST_F(FourBatches, ReadsByOrdinalComeBeforeReadAhead) {
  const auto s = stream();
  std::vector<std::unique_ptr<Batch>> held;
  held.push_back(next(*s));
  for (const std::uint64_t i : {20u, 21u, 22u}) {
    std::unique_ptr<Batch> b;
    ASSERT_EQ(reader->read({&i, 1}, b, why).raw(), 0) << why;
    expect_record(b->records[0], all);
    held.push_back(std::move(b));
  }
  const std::uint64_t one_more = 23;
  std::unique_ptr<Batch> b;
  EXPECT_EQ(reader->read({&one_more, 1}, b, why).raw(), ENOMEM);
  held.pop_back();
  EXPECT_EQ(reader->read({&one_more, 1}, b, why).raw(), 0) << why;
  held.clear();
  b.reset();
  for (std::uint64_t i = 1; i < kRecords; ++i) ASSERT_NE(next(*s), nullptr);
}

TEST_F(FourBatches, AStreamThatIsCancelledGivesItsMemory) {
  const auto first = stream();
  (void)next(*first);
  first->cancel();
  std::unique_ptr<Batch> b;
  EXPECT_EQ(first->next(b, why).raw(), ECANCELED);
  const std::vector<std::uint64_t> ordinals{1, 2, 3, 4};
  EXPECT_EQ(reader->read(ordinals, b, why).raw(), 0) << why;
}

// Buffers are somewhat larger than what they are for.  The difference is no reason to fail.
TEST(StreamMemory, RoundedSizesGiveWay) {
  ReaderDb db;
  db.fill(20, [](std::uint64_t) -> std::size_t { return 1'100'000; });
  const Records all = db.walk();
  const auto r = db.reader(16 * kMiB, kDirectly);
  const auto s = stream_of(*r, order_of(LMDBIO_ORDER_SEQUENTIAL, 1));
  std::vector<std::unique_ptr<Batch>> kept;
  std::string why;
  int rc = 0;
  while (rc == 0) {
    std::unique_ptr<Batch> b;
    rc = s->next(b, why).raw();
    if (rc == 0) kept.push_back(std::move(b));
  }
  EXPECT_EQ(rc, ENOMEM);
  EXPECT_EQ(kept.size(), 15 * kMiB / (270 * 4096));
  for (const auto& b : kept) expect_record(b->records[0], all);
  EXPECT_LE(r->shared().pool->counters().most_bytes, 15 * kMiB);
}

// Each thread has at most one batch, or one more while it asks for the next, and all of these fit.  A stream
// that nobody asks any more has read ahead, too.
TEST(StreamMemory, ThreadsThatHoldOneBatchNeverLackMemory) {
  constexpr unsigned kThreads = 8, kRounds = 5;
  ReaderDb db;
  db.fill(400, [](std::uint64_t i) -> std::size_t { return 100 * kKiB + i * 7919 % (30 * kKiB); });
  const Records all = db.walk();
  for (const EngineKind kind : {EngineKind::automatic, EngineKind::threads, EngineKind::pread})
    for (const bool holds : {false, true})
      for (unsigned round = 0; round < kRounds; ++round) {
        const std::uint64_t memory = (holds ? 12 : 8) * kMiB;
        const auto r = db.reader(memory, kDirectly, ReaderDb::engines(kind));
        const auto idle = stream_of(*r, order_of(LMDBIO_ORDER_SHUFFLE, 2));
        {
          std::unique_ptr<Batch> b;
          std::string why;
          ASSERT_EQ(idle->next(b, why).raw(), 0) << why;
        }
        std::atomic<unsigned> failed{0}, given{0};
        std::vector<std::thread> threads;
        for (unsigned k = 0; k < kThreads; ++k)
          threads.emplace_back([&, k] {
            lmdbio_order o = order_of(LMDBIO_ORDER_SHUFFLE, 4);
            o.seed = k;
            o.offset = k;
            o.step = kThreads;
            const auto s = stream_of(*r, o);
            std::unique_ptr<Batch> held;
            std::string why;
            for (;;) {
              std::unique_ptr<Batch> b;
              const Status st = s->next(b, why);
              if (st.raw() == MDB_NOTFOUND) break;
              if (!st.ok()) {
                failed.fetch_add(1);
                ADD_FAILURE() << why;
                return;
              }
              for (std::size_t i = 0; i < b->count; ++i) expect_record(b->records[i], all);
              given.fetch_add(static_cast<unsigned>(b->count));
              if (holds) held = std::move(b);
            }
          });
        for (std::thread& t : threads) t.join();
        EXPECT_EQ(failed.load(), 0u);
        EXPECT_EQ(given.load(), 400u);
        EXPECT_LE(r->shared().pool->counters().most_bytes, memory);
        if (HasFailure()) return;
      }
}

// Readers that share a process's memory: read-ahead of one gives way to what another one's program waits for,
// and what a program holds of one reader is no other's.
TEST(StreamMemory, ReadersOfAProcess) {
  constexpr std::uint64_t kRecords = 24, kLimit = 6 * kMiB;
  ReaderDb db;
  db.fill(kRecords, [](std::uint64_t) -> std::size_t { return 1'040'000; });
  const Records all = db.walk();
  FixedSource source(kLimit);
  {
    const auto memory = std::make_shared<Memory>(&source);
    std::vector<std::unique_ptr<Reader>> readers;
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<std::unique_ptr<Batch>> held(4);
    std::string why;
    for (std::size_t i = 0; i < held.size(); ++i) {
      records::Source s = db.source();
      auto p = ReaderDb::locations(s);
      readers.push_back(std::make_unique<Reader>(std::move(s), std::move(p), kLimit, kDirectly, memory));
      ASSERT_TRUE(take_least(readers.back()->shared())) << i;
      streams.push_back(stream_of(*readers.back(), order_of(LMDBIO_ORDER_SEQUENTIAL, 1)));
    }
    for (std::uint64_t round = 0; round < kRecords; ++round)
      for (std::size_t i = 0; i < held.size(); ++i) {
        held[i].reset();
        ASSERT_EQ(streams[i]->next(held[i], why).raw(), 0) << why;
        EXPECT_EQ(held[i]->records[0].ordinal, round);
        expect_record(held[i]->records[0], all);
      }
    // One reader's program holds all that there is; another one is told so, at once.
    streams.clear();
    std::vector<std::unique_ptr<Batch>> kept;
    int rc = 0;
    for (std::uint64_t i = 0; rc == 0; ++i) {
      std::unique_ptr<Batch> b;
      rc = readers[0]->read({&i, 1}, b, why).raw();
      if (rc == 0) kept.push_back(std::move(b));
    }
    EXPECT_EQ(rc, ENOMEM);
    EXPECT_NE(why.find("LMDBIO_MEMORY"), std::string::npos) << why;
    ASSERT_FALSE(kept.empty());
    kept.pop_back();
    std::unique_ptr<Batch> b;
    const std::uint64_t one = 1;
    EXPECT_EQ(readers[1]->read({&one, 1}, b, why).raw(), 0) << why;
    EXPECT_LE(source.most(), kLimit);
  }
  EXPECT_EQ(source.used(), 0u);
}

// Gaps between records are read along while there is room: they are no reason to fail.
TEST(StreamMemory, GapsGiveWay) {
  constexpr std::uint64_t kSpread = 7;
  ReaderDb db;
  db.fill(460, [](std::uint64_t) -> std::size_t { return 4000; });
  const Records all = db.walk();
  const auto r = db.reader(3 * kMiB, kDirectly);
  std::vector<std::uint64_t> ordinals;
  for (std::uint64_t i = 0; i < 40; ++i) ordinals.push_back(i * kSpread);
  std::vector<std::unique_ptr<Batch>> kept;
  std::string why;
  for (int i = 0; i < 5; ++i) {
    std::unique_ptr<Batch> b;
    ASSERT_EQ(r->read(ordinals, b, why).raw(), 0) << i << " " << why;
    kept.push_back(std::move(b));
  }
  EXPECT_GT(r->shared().pool->held_bytes(), 2 * kMiB) << "the first ones have their gaps";
  for (const auto& b : kept)
    for (std::size_t i = 0; i < b->count; ++i) expect_record(b->records[i], all);
}

/// Reads at once, and tells of nothing that was read while the gate is closed.
std::atomic<bool> gate_open{true};
class GatedEngine final : public IoEngine {
 public:
  GatedEngine(const File& f, unsigned depth) : IoEngine({f.alignment(), depth, f.direct()}), fd_(f.fd()) {}
  static Result<std::unique_ptr<IoEngine>> make(const File& f, unsigned depth, EngineKind, const char**) {
    return std::unique_ptr<IoEngine>(new GatedEngine(f, depth));
  }

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    for (const RawRead& r : reads)
      done_.push_back({r.slot, ::pread(fd_, r.dst.data(), r.dst.size(), static_cast<off_t>(r.offset))});
    return reads.size();
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override {
    while (min != 0 && !gate_open) std::this_thread::yield();
    std::size_t n = 0;
    for (; gate_open && n < out.size() && !done_.empty(); ++n) {
      out[n] = done_.back();
      done_.pop_back();
    }
    return n;
  }
  void wait_briefly(std::int64_t) noexcept override { std::this_thread::yield(); }
  const int fd_;
  std::vector<RawResult> done_;
};

// A reader is opened, and its index is made, while all that is in the way is read-ahead of streams that are
// in calls: it waits for these.
TEST(StreamMemory, OpeningWaitsForStreamsInCalls) {
  ReaderDb db;
  db.fill(60, [](std::uint64_t) -> std::size_t { return 1'040'000; });
  FixedSource source(6 * kMiB + kMiB / 2);
  const auto memory = std::make_shared<Memory>(&source);
  const auto make = [&](gather::MakeEngine engine) {
    Source s = db.source();
    auto p = ReaderDb::locations(s);
    s.make_engine = std::move(engine);
    return std::make_unique<Reader>(std::move(s), std::move(p), source.limit(), kDirectly, memory);
  };
  {
    const auto first = make(GatedEngine::make);
    ASSERT_TRUE(take_least(first->shared()));
    for (const bool index : {false, true}) {
      std::vector<std::unique_ptr<Stream>> streams;
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) streams.push_back(stream_of(*first, order_of(LMDBIO_ORDER_SEQUENTIAL, 1)));
      gate_open = false;
      for (const auto& s : streams)
        threads.emplace_back([&s] {
          std::unique_ptr<Batch> b;
          std::string why;
          EXPECT_EQ(s->next(b, why).raw(), 0) << why;
        });
      while (first->shared().pool->held_bytes() < 3u * 1'040'000) std::this_thread::yield();
      EXPECT_GT(source.used(), source.limit() - kMiB);
      std::atomic<bool> done{false};
      threads.emplace_back([&] {
        while (memory->needs() == 0 && !done) std::this_thread::yield();
        gate_open = true;
      });
      const auto second = make(ReaderDb::engines());
      TakenMemory taken;
      if (index)
        EXPECT_TRUE(taken.take(memory, MemoryUse::index, kMiB, Urgency::last));
      else
        EXPECT_TRUE(take_least(second->shared()));
      done = true;
      for (std::thread& t : threads) t.join();
    }
    EXPECT_LE(source.most(), source.limit());
    // What nobody will give back is not waited for; what gives up is not, either.
    TakenMemory all, more;
    const std::atomic<bool> cancelled{true};
    EXPECT_FALSE(more.take(memory, MemoryUse::index, source.limit(), Urgency::last));
    EXPECT_FALSE(more.take(memory, MemoryUse::index, source.limit(), Urgency::last, &cancelled));
    EXPECT_EQ(memory->needs(), 0u);
  }
  EXPECT_EQ(source.used(), 0u);
}

// What nobody holds can be had, whether it is read-ahead or free.
TEST(StreamMemory, FreeBuffersOfOtherReadersCount) {
  FixedSource source(4 * kMiB);
  const auto memory = std::make_shared<Memory>(&source);
  const auto pool = std::make_shared<BufferPool>(4 * kMiB, memory);
  ASSERT_TRUE(pool->take_least());
  MemoryRequest request{.most = 4 * kMiB};
  Buffer b = pool->take(3 * kMiB, request).value();
  EXPECT_TRUE(memory->could_have(MemoryUse::readers, 3 * kMiB)) << "held by nobody";
  b.hold();
  EXPECT_FALSE(memory->could_have(MemoryUse::readers, 1));
  b.unhold();
  b = {};
  EXPECT_EQ(source.used(), 4 * kMiB) << "free, not unmapped";
  EXPECT_TRUE(memory->could_have(MemoryUse::readers, 3 * kMiB));
  EXPECT_FALSE(memory->could_have(MemoryUse::readers, 3 * kMiB + 1)) << "1 MiB is the reader's";
}

TEST(StreamMemory, WhatTheSystemRefusesIsNotKept) {
  constexpr std::uint64_t kTooMuch = std::uint64_t{1} << 47;
  FixedSource source(4 * kTooMuch);
  const auto pool = std::make_shared<BufferPool>(2 * kTooMuch, std::make_shared<Memory>(&source));
  MemoryRequest request{.most = 2 * kTooMuch, .needed = true};
  EXPECT_EQ(pool->take(kTooMuch, request).error().raw(), ENOMEM);
  EXPECT_EQ(source.used(), 0u);
}

}  // namespace
}  // namespace lmdbio::records
