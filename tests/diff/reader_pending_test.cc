// Reads that begin at guessed places, before the index is there.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "lmdbio/reader/pending_places.h"
#include "tests/support/reader_db.h"

namespace lmdbio::reader {
namespace {

using testing::expect_record;
using testing::kDirectly;
using testing::order_of;
using testing::ReaderDb;
using testing::Records;
using testing::stream_of;

/// What the index's own reads have to pass: closed, those of leaf pages behind the samples wait.
struct Gate {
  std::atomic<bool> open{true}, fail{false};
  std::atomic<unsigned> waiting{0};
  std::size_t page_size = 4096;
  std::set<std::uint64_t> behind;  ///< leaf pages
  bool holds(std::uint64_t offset, std::uint64_t bytes) const {
    const auto first = behind.lower_bound(offset / page_size);
    return first != behind.end() && *first * page_size < offset + bytes;
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
    const std::unique_ptr<Places> places = ReaderDb::places(s);
    std::vector<RecordPlace> where(records);
    places->places(0, where);
    std::vector<std::uint64_t> leaves;
    for (const RecordPlace& p : where)
      if (leaves.empty() || leaves.back() != p.leaf) leaves.push_back(p.leaf);
    ASSERT_GT(leaves.size(), 100u);
    gate.behind = {leaves.begin() + Provenance::kSamples, leaves.end()};
  }
  void TearDown() override {
    gate.open = true;
    gate.fail = false;
    gate.behind.clear();
  }
  /// With the gate closed.
  std::unique_ptr<Reader> pending() {
    gate.open = false;
    Source s = db.source();
    std::unique_ptr<Places> p = PendingPlaces::start(s, GatedEngine::make);
    EXPECT_NE(p, nullptr);
    return std::make_unique<Reader>(std::move(s), std::move(p), std::uint64_t{64} << 20, kDirectly,
                                    ReaderDb::engines());
  }
  /// Opens the gate once `records` were guessed, or none will be.
  static std::thread opener(const Reader& r, const Counters& counters, std::uint64_t records) {
    return std::thread([&r, &counters, records] {
      RecordPlace p;
      const std::atomic<bool> never{false};
      while (counters.guessed < records && r.places().guess(500, never, p)) ::sched_yield();
      gate.open = true;
    });
  }
  std::uint64_t read_all(Stream& s, std::uint64_t stop_at = UINT64_MAX) {
    std::uint64_t n = 0;
    std::unique_ptr<Batch> b;
    std::string why;
    for (; n < stop_at; n += b->count) {
      const Status st = s.next(b, why);
      if (st.raw() == MDB_NOTFOUND) break;
      EXPECT_EQ(st.raw(), 0) << why;
      if (!st.ok()) break;
      for (std::size_t i = 0; i < b->count; ++i) expect_record(b->records[i], all);
    }
    return n;
  }
  void expect_guesses() {
    for (const lmdbio_order_kind kind : {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE}) {
      const std::unique_ptr<Reader> reader = pending();
      const Counters& counters = reader->shared().counters;
      lmdbio_order order = order_of(kind, 8);
      order.position = 1000;  // not where the tree begins
      const std::unique_ptr<Stream> stream = stream_of(*reader, order);
      std::thread opens = opener(*reader, counters, 64);
      EXPECT_EQ(read_all(*stream), all.size() - 1000);
      opens.join();
      EXPECT_GE(counters.guessed, 64u) << kind;
      EXPECT_GT(counters.right, 0u) << kind;
      EXPECT_EQ(counters.wrong, 0u) << kind;
    }
  }

  ReaderDb db;
  Records all;
};

TEST_F(ReaderPending, ReadsBeginBeforeTheIndexIsThere) {
  fill(3000, [](std::uint64_t) { return 300; });
  expect_guesses();
}

TEST_F(ReaderPending, ReadsOfLargeValuesBeginBeforeTheIndexIsThere) {
  fill(17'000, [](std::uint64_t i) { return 2100 + i % 7; });
  expect_guesses();
}

TEST_F(ReaderPending, AWrongGuessIsNotGivenOut) {
  // From some record on a value takes one page more: all places behind are others.
  fill(17'000, [](std::uint64_t i) -> std::size_t { return i == 9000 ? 4500 : 2100; });
  const std::unique_ptr<Reader> reader = pending();
  const Counters& counters = reader->shared().counters;
  lmdbio_order order = order_of(LMDBIO_ORDER_SEQUENTIAL, 16);
  order.position = 8900;
  const std::unique_ptr<Stream> stream = stream_of(*reader, order);
  std::thread opens = opener(*reader, counters, 1000);
  EXPECT_EQ(read_all(*stream), 17'000u - 8900);
  opens.join();
  EXPECT_EQ(counters.wrong, 1u);
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

}  // namespace
}  // namespace lmdbio::reader
