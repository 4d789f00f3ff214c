// Readers whose index a thread still makes.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "lmdbio/records/pending_locations.h"
#include "tests/support/fixed_source.h"
#include "tests/support/reader_db.h"

namespace lmdbio::records {
namespace {

using testing::expect_record;
using testing::kDirectly;
using testing::order_of;
using testing::ReaderDb;
using testing::Records;
using testing::stream_of;

/// What the index's own reads have to pass: closed, those of leaf pages wait.
struct Gate {
  std::atomic<bool> open{true}, fail{false};
  std::atomic<unsigned> waiting{0};
  std::size_t page_size = 4096;
  std::set<std::uint64_t> leaves;
  bool holds(std::uint64_t offset, std::uint64_t bytes) const {
    const auto first = leaves.lower_bound(offset / page_size);
    return first != leaves.end() && *first * page_size < offset + bytes;
  }
};
Gate gate;

class GatedEngine final : public IoEngine {
 public:
  explicit GatedEngine(std::unique_ptr<IoEngine> inner) : IoEngine(inner->caps()), inner_(std::move(inner)) {}
  static Result<std::unique_ptr<IoEngine>> make(const File& f, unsigned depth, EngineKind kind,
                                                const char** name) noexcept {
    Result<std::unique_ptr<IoEngine>> made = select_engine(f, depth, kind, name);
    if (!made) return made;
    return std::unique_ptr<IoEngine>(new GatedEngine(std::move(made).value()));
  }

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    const RawRead& r = reads[0];
    if (gate.holds(r.offset, r.dst.size())) {
      ++gate.waiting;
      while (!gate.open) ::sched_yield();
      --gate.waiting;
      if (gate.fail) {
        failed_.push_back({r.slot, -EIO});
        return std::size_t{1};
      }
    }
    const ReadOp op{r.offset, r.dst, r.slot, 1};
    return inner_->submit({&op, 1});
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override {
    std::size_t n = 0;
    for (; n < out.size() && !failed_.empty(); ++n) {
      out[n] = failed_.back();
      failed_.pop_back();
    }
    Completion got[16];
    const Result<std::size_t> more =
        inner_->reap(std::span(got).first(std::min(out.size() - n, std::size(got))), min > n ? min - n : 0);
    for (std::size_t i = 0; more && i < more.value(); ++i)
      out[n++] = {static_cast<unsigned>(got[i].tag), got[i].status.ok()
                                                         ? static_cast<long>(got[i].bytes)
                                                         : -static_cast<long>(got[i].status.raw())};
    return n;
  }
  const std::unique_ptr<IoEngine> inner_;
  std::vector<RawResult> failed_;
};

class ReaderPending : public ::testing::Test {
 protected:
  void fill(std::uint64_t records, const std::function<std::size_t(std::uint64_t)>& size) {
    db.fill(records, size);
    all = db.walk();
    const Source s = db.source();
    const std::unique_ptr<RecordLocations> locations = ReaderDb::locations(s);
    std::vector<RecordLocation> where(records);
    locations->locations(0, where);
    for (const RecordLocation& p : where) gate.leaves.insert(p.leaf);
    ASSERT_GT(gate.leaves.size(), 100u);
  }
  void TearDown() override {
    gate.open = true;
    gate.fail = false;
    gate.leaves.clear();
  }
  /// With the gate closed.
  std::unique_ptr<Reader> pending() {
    gate.open = false;
    Source s = db.source();
    s.make_engine = GatedEngine::make;
    std::unique_ptr<RecordLocations> p = PendingLocations::start(s);
    EXPECT_NE(p, nullptr);
    s.make_engine = {};
    return std::make_unique<Reader>(std::move(s), std::move(p), std::uint64_t{64} << 20, kDirectly);
  }
  /// Opens the gate once the index waits there.
  static std::thread opener() {
    return std::thread([] {
      while (gate.waiting == 0) ::sched_yield();
      gate.open = true;
    });
  }
  std::uint64_t read_all(Stream& s) {
    std::uint64_t n = 0;
    std::unique_ptr<Batch> b;
    std::string why;
    for (;; n += b->count) {
      const Status st = s.next(b, why);
      if (st.raw() == MDB_NOTFOUND) break;
      EXPECT_EQ(st.raw(), 0) << why;
      if (!st.ok()) break;
      for (std::size_t i = 0; i < b->count; ++i) expect_record(b->records[i], all);
    }
    return n;
  }
  void expect_all() {
    for (const lmdbio_order_kind kind : {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE}) {
      const std::unique_ptr<Reader> reader = pending();
      EXPECT_EQ(reader->count(), all.size());
      lmdbio_order order = order_of(kind, 8);
      order.position = 1000;  // not where the tree begins
      const std::unique_ptr<Stream> stream = stream_of(*reader, order);
      std::thread opens = opener();
      EXPECT_EQ(read_all(*stream), all.size() - 1000) << kind;
      opens.join();
    }
  }

  ReaderDb db;
  Records all;
};

TEST_F(ReaderPending, AStreamWaitsForTheIndex) {
  fill(3000, [](std::uint64_t) { return 300; });
  expect_all();
}

TEST_F(ReaderPending, AStreamOfLargeValuesWaitsForTheIndex) {
  fill(17'000, [](std::uint64_t i) { return 2100 + i % 7; });
  expect_all();
}

TEST_F(ReaderPending, OtherCallsWaitForTheIndex) {
  fill(3000, [](std::uint64_t) { return 300; });
  const std::uint64_t ordinals[] = {2999, 0, 1234};
  std::string why;
  {
    const std::unique_ptr<Reader> reader = pending();
    std::thread opens = opener();
    std::unique_ptr<Batch> b;
    const Status st = reader->read(ordinals, b, why);
    opens.join();
    ASSERT_EQ(st.raw(), 0) << why;
    ASSERT_EQ(b->count, std::size(ordinals));
    for (std::size_t i = 0; i < b->count; ++i) {
      EXPECT_EQ(b->records[i].ordinal, ordinals[i]);
      expect_record(b->records[i], all);
    }
  }
  const std::unique_ptr<Reader> reader = pending();
  std::thread opens = opener();
  std::string key = ReaderDb::number(1234);
  const MDB_val k{key.size(), key.data()};
  std::vector<std::uint64_t> found;
  EXPECT_EQ(reader->find({&k, 1}, found, why).raw(), 0) << why;
  opens.join();
  EXPECT_EQ(found, std::vector<std::uint64_t>{1234});
}

TEST_F(ReaderPending, CancelledWhileTheIndexIsMade) {
  fill(3000, [](std::uint64_t) { return 300; });
  const std::unique_ptr<Reader> reader = pending();
  const std::unique_ptr<Stream> stream = stream_of(*reader, order_of(LMDBIO_ORDER_SEQUENTIAL, 8));
  std::thread cancels([&] {
    while (gate.waiting == 0) ::sched_yield();
    stream->cancel();
  });
  std::unique_ptr<Batch> b;
  std::string why;
  EXPECT_EQ(stream->next(b, why).raw(), ECANCELED);
  cancels.join();
  gate.open = true;
}

TEST_F(ReaderPending, AnIndexThatCannotBeMade) {
  fill(3000, [](std::uint64_t) { return 300; });
  gate.fail = true;
  const std::unique_ptr<Reader> reader = pending();
  const std::unique_ptr<Stream> stream = stream_of(*reader, order_of(LMDBIO_ORDER_SEQUENTIAL, 8));
  gate.open = true;
  for (int i = 0; i < 3; ++i) {
    std::unique_ptr<Batch> b;
    std::string why;
    EXPECT_EQ(stream->next(b, why).raw(), EIO);
    EXPECT_NE(why.find(db.file()), std::string::npos) << why;
    EXPECT_EQ(stream->position().position, 0u);
    const std::uint64_t one = 5;
    EXPECT_EQ(reader->read({&one, 1}, b, why).raw(), EIO);
  }
}

TEST_F(ReaderPending, EndsWithItsThread) {
  fill(3000, [](std::uint64_t) { return 300; });
  std::unique_ptr<Reader> reader = pending();
  while (gate.waiting == 0) ::sched_yield();
  std::thread ends([&reader] { reader.reset(); });
  gate.open = true;
  ends.join();
}

// Memory was short once.
TEST_F(ReaderPending, TriesAgainAfterEnomem) {
  fill(6000, [](std::uint64_t) -> std::size_t { return 200; });
  testing::FixedSource source(std::uint64_t{32} << 20);
  const auto memory = std::make_shared<Memory>(&source);
  {
    const Source s = db.source();
    memory->count(MemoryUse::index, source.limit());
    const std::unique_ptr<PendingLocations> p = PendingLocations::start(s, memory);
    ASSERT_NE(p, nullptr);
    const std::atomic<bool> never{false};
    std::string why;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(p->await(never, why).raw(), ENOMEM);
    EXPECT_NE(why.find("LMDBIO_MEMORY"), std::string::npos) << why;
    memory->give_back(MemoryUse::index, source.limit());
    why.clear();
    ASSERT_EQ(p->await(never, why).raw(), 0) << why;
    RecordLocation location;
    p->locations(5999, {&location, 1});
    EXPECT_NE(gate.leaves.count(location.leaf), 0u);
  }
  EXPECT_EQ(source.used(), 0u);
}

}  // namespace
}  // namespace lmdbio::records
