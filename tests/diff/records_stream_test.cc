// Readers and streams against a full walk by the real LMDB: all orders, batch sizes, shares, ends of epochs,
// resumption; on generated databases of every kind.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <thread>

#include "lmdbio/records/order.h"
#include "tests/support/reader_db.h"

namespace lmdbio::records {
namespace {

using testing::expect_record;
using testing::kAsResident;
using testing::kDirectly;
using testing::kThroughPageCache;
using testing::order_of;
using testing::ReaderDb;
using testing::Records;
using testing::stream_of;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// The whole order as ordinals, by the order's own definition; batches checked on the way.
std::vector<std::uint64_t> read_all(Reader& r, const lmdbio_order& o, const Records& all) {
  const Order order = Order::make(o, all.size()).value();
  const auto s = stream_of(r, o);
  std::vector<std::uint64_t> got;
  if (s == nullptr) return got;
  for (;;) {
    std::unique_ptr<Batch> b;
    std::string why;
    const Position before = s->position();
    const Status st = s->next(b, why);
    if (st.raw() == MDB_NOTFOUND) break;
    EXPECT_EQ(st.raw(), 0) << why;
    if (!st.ok()) break;
    EXPECT_EQ(b->epoch, before.epoch);
    EXPECT_EQ(b->position, before.position);
    EXPECT_LE(b->count, std::max<std::uint64_t>(o.batch, 1));
    for (std::size_t i = 0; i < b->count; ++i) {
      expect_record(b->records[i], all);
      if (::testing::Test::HasFatalFailure()) return got;
      const bool padding = i >= b->count - b->padding;
      const std::uint64_t at = padding ? (i - (b->count - b->padding)) % order.length() : b->position + i;
      const std::uint64_t expected = order.at(b->epoch, at);
      EXPECT_EQ(b->records[i].ordinal, o.kind == LMDBIO_ORDER_KEYS ? expected : expected);
      if (!padding) got.push_back(b->records[i].ordinal);
    }
  }
  return got;
}

TEST(ReaderStream, EqualsAWalkOfGeneratedDatabases) {
  unsigned trees = 0;
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    for (const test::EnvSpec& spec : test::catalogue(seed)) {
      SCOPED_TRACE(std::to_string(seed) + " " + spec.name);
      ReaderDb db;
      test::generate(db.lmdb(), spec, db.dir());
      if (!std::filesystem::exists(db.file())) continue;
      const test::DbSpec* main = nullptr;
      for (const test::DbSpec& d : spec.dbs)
        if (d.name.empty()) main = &d;
      const Records all = db.walk(main);
      constexpr ReadDecision kPaths[] = {kAsResident, kDirectly, kThroughPageCache};
      const auto r = db.reader(seed % 2 != 0 ? kMiB * 64 : kMiB, kPaths[seed % 3]);
      ASSERT_EQ(r->count(), all.size());
      test::Rng rng(seed);
      for (const lmdbio_order_kind kind :
           {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE, LMDBIO_ORDER_WINDOW_SHUFFLE}) {
        lmdbio_order o = order_of(kind, rng.between(1, 40), 2);
        o.step = rng.between(1, 3);
        o.offset = rng.below(o.step);
        o.zero_copy = rng.below(2) == 0;
        const Order order = Order::make(o, all.size()).value();
        EXPECT_EQ(read_all(*r, o, all).size(), 2 * order.length());
        if (HasFailure()) return;
      }
      ++trees;
    }
  }
  EXPECT_GE(trees, 40u);
}

/// Small values, some in runs, some inside their pages.
class OfOne : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    db = new ReaderDb;
    db->fill(kRecords, [](std::uint64_t i) -> std::size_t {
      return i % 7 == 0 ? 20000 : i % 3 == 0 ? 3000 : 100;
    });
    all = new Records(db->walk());
  }
  static void TearDownTestSuite() {
    delete db;
    delete all;
    db = nullptr;
    all = nullptr;
  }
  static constexpr std::uint64_t kRecords = 1000;
  static ReaderDb* db;
  static Records* all;
};
ReaderDb* OfOne::db = nullptr;
Records* OfOne::all = nullptr;

TEST_F(OfOne, BatchesOfAnySizeAndEndsOfEpochs) {
  const auto r = db->reader();
  for (const std::uint64_t batch : {0u, 1u, 2u, 7u, 64u, 333u, 999u, 1000u, 1001u, 5000u}) {
    for (const lmdbio_last last : {LMDBIO_LAST_KEEP, LMDBIO_LAST_DROP, LMDBIO_LAST_PAD}) {
      lmdbio_order o = order_of(LMDBIO_ORDER_SHUFFLE, batch, 2);
      o.last = last;
      const std::uint64_t n = std::max<std::uint64_t>(batch, 1);
      const std::uint64_t whole = last == LMDBIO_LAST_DROP ? kRecords / n * n : kRecords;
      ASSERT_EQ(read_all(*r, o, *all).size(), 2 * whole) << batch << " " << last;
    }
  }
}

TEST_F(OfOne, RanksShareAnOrder) {
  const auto r = db->reader();
  for (const lmdbio_order_kind kind :
       {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE, LMDBIO_ORDER_WINDOW_SHUFFLE}) {
    std::vector<std::uint64_t> seen;
    for (std::uint64_t rank = 0; rank < 7; ++rank) {
      lmdbio_order o = order_of(kind, 10);
      o.offset = rank;
      o.step = 7;
      const auto part = read_all(*r, o, *all);
      seen.insert(seen.end(), part.begin(), part.end());
    }
    std::sort(seen.begin(), seen.end());
    std::vector<std::uint64_t> each(kRecords);
    std::iota(each.begin(), each.end(), 0);
    EXPECT_EQ(seen, each);
  }
}

// What a rank of a job reads that skips the others' records and begins again at the end, by the real LMDB's
// cursor: no rank begins an epoch where it began the one before.
TEST_F(OfOne, SharesAcrossEpochsEqualACursorThatSkips) {
  const auto r = db->reader(), small = db->reader(3 * kMiB);
  for (const auto& [rank, ranks, batch] : {std::array<std::uint64_t, 3>{0, 1, 7},
                                           {2, 3, 32},
                                           {6, 7, 64},
                                           {999, 1000, 3},
                                           {1000, 1001, 5},
                                           {1500, 2500, 2},
                                           {3, 8, 1000},
                                           {1, 2, 1300},
                                           {0, 16, 1}}) {
    for (const lmdbio_last last : {LMDBIO_LAST_KEEP, LMDBIO_LAST_DROP, LMDBIO_LAST_PAD}) {
      SCOPED_TRACE(std::to_string(rank) + " of " + std::to_string(ranks) + ", " + std::to_string(batch));
      constexpr std::uint64_t kEpochs = 3;
      const std::uint64_t in_all = (kEpochs * kRecords - rank + ranks - 1) / ranks, rest = in_all % batch;
      const std::uint64_t count = in_all + (rest == 0 || last == LMDBIO_LAST_KEEP ? 0
                                            : last == LMDBIO_LAST_DROP            ? -rest
                                                                                  : batch - rest);
      const Records expected = db->walk_share(rank, ranks, count);
      lmdbio_order o = order_of(LMDBIO_ORDER_SEQUENTIAL, batch, kEpochs);
      o.offset = rank;
      o.step = ranks;
      o.last = last;
      o.across_epochs = 1;
      const auto s = stream_of(batch > 100 ? *r : *small, o);
      std::uint64_t given = 0;
      std::unique_ptr<Batch> b;
      std::string why;
      for (Status st; (st = s->next(b, why)).raw() != MDB_NOTFOUND;) {
        ASSERT_EQ(st.raw(), 0) << why;
        ASSERT_EQ(b->count, last == LMDBIO_LAST_KEEP ? std::min(batch, count - given) : batch);
        ASSERT_EQ(b->padding, given + b->count > in_all ? given + b->count - in_all : 0);
        ASSERT_EQ(b->epoch, (rank + given * ranks) / kRecords);
        for (std::size_t i = 0; i < b->count; ++i, ++given) {
          ASSERT_LT(given, count);
          ASSERT_EQ(testing::text(b->records[i].key), expected[given].first);
          ASSERT_EQ(testing::text(b->records[i].value), expected[given].second);
        }
      }
      ASSERT_EQ(given, count);
    }
  }
}

TEST_F(OfOne, ListsAndKeys) {
  const auto r = db->reader();
  const std::uint64_t list[] = {5, 999, 5, 0, 7, 14, 500};
  lmdbio_order o = order_of(LMDBIO_ORDER_LIST, 3);
  o.list = list;
  o.length = std::size(list);
  EXPECT_EQ(read_all(*r, o, *all), std::vector(std::begin(list), std::end(list)));

  std::vector<std::string> names;
  for (const std::uint64_t i : list) names.push_back(ReaderDb::number(i));
  names.emplace_back("none such");
  std::vector<MDB_val> keys;
  for (std::string& n : names) keys.push_back({n.size(), n.data()});
  std::unique_ptr<Batch> b;
  std::string why;
  std::vector<std::uint64_t> ordinals;
  ASSERT_EQ(r->find(keys, ordinals, why).raw(), 0) << why;
  ASSERT_EQ(r->read(ordinals, b, why).raw(), 0) << why;
  ASSERT_EQ(b->count, 8u);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(b->records[i].ordinal, list[i]);
    expect_record(b->records[i], *all);
  }
  EXPECT_EQ(b->records[7].ordinal, UINT64_MAX);
  EXPECT_EQ(b->records[7].key.mv_size, 0u);
  EXPECT_EQ(b->records[7].value.mv_size, 0u);

  o = order_of(LMDBIO_ORDER_KEYS, 4, 2);
  o.keys = keys.data();
  o.length = keys.size();
  const auto s = stream_of(*r, o);
  keys.clear();  // they were copied
  names.clear();
  for (unsigned epoch = 0; epoch < 2; ++epoch)
    for (std::size_t i = 0; i < 8; ++i) {
      if (i % 4 == 0) {
        ASSERT_EQ(s->next(b, why).raw(), 0) << why;
      }
      EXPECT_EQ(b->records[i % 4].ordinal, i == 7 ? UINT64_MAX : list[i]);
      if (i != 7) expect_record(b->records[i % 4], *all);
    }
  EXPECT_EQ(s->next(b, why).raw(), MDB_NOTFOUND);
}

TEST_F(OfOne, NothingOutOfRange) {
  const auto r = db->reader();
  std::unique_ptr<Batch> b;
  std::string why;
  const std::uint64_t beyond[] = {0, kRecords};
  EXPECT_EQ(r->read(beyond, b, why).raw(), EINVAL);
  EXPECT_NE(why.find("1000"), std::string::npos);
  MDB_val empty{0, nullptr};
  std::vector<std::uint64_t> ordinals;
  EXPECT_EQ(r->find({&empty, 1}, ordinals, why).raw(), MDB_BAD_VALSIZE);
  const auto refused = [&](const std::function<void(lmdbio_order&)>& spoil) {
    lmdbio_order o = order_of(LMDBIO_ORDER_SEQUENTIAL, 1);
    spoil(o);
    std::unique_ptr<Stream> s;
    why.clear();
    return Stream::open(*r, o, s, why).raw() == EINVAL && s == nullptr && !why.empty();
  };
  EXPECT_TRUE(refused([](lmdbio_order& o) { o.position = kRecords + 1; }));
  EXPECT_TRUE(refused([](lmdbio_order& o) { o.offset = 1; }));
  EXPECT_TRUE(refused([](lmdbio_order& o) { o.last = static_cast<lmdbio_last>(3); }));
  EXPECT_TRUE(refused([](lmdbio_order& o) { o.zero_copy = 2; }));
  EXPECT_TRUE(refused([](lmdbio_order& o) { o.kind = static_cast<lmdbio_order_kind>(7); }));
  EXPECT_FALSE(refused([](lmdbio_order& o) { o.position = kRecords; }));
}

TEST_F(OfOne, GoesOnWhereAnotherStopped) {
  const auto r = db->reader(), r2 = db->reader(8 * kMiB);
  test::Rng rng(5);
  for (unsigned round = 0; round < 1000; ++round) {
    const lmdbio_order_kind kinds[] = {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE,
                                       LMDBIO_ORDER_WINDOW_SHUFFLE};
    lmdbio_order o = order_of(kinds[rng.below(3)], rng.between(1, 300), 3);
    o.last = static_cast<lmdbio_last>(rng.below(3));
    o.step = rng.between(1, 4);
    o.offset = rng.below(o.step);
    o.seed = round;
    o.across_epochs = rng.below(2) == 0;
    o.block = rng.below(3) == 0 ? rng.between(1, 400) : 0;
    o.zero_copy = rng.below(2) == 0;
    // From anywhere: what follows is what the order says.
    const Order order = Order::make(o, all->size()).value();
    o.epoch = rng.below(3);
    o.position = rng.below(order.length(o.epoch) + 1);
    const auto s = stream_of(*r, o);
    std::unique_ptr<Batch> b;
    std::string why;
    const unsigned batches = rng.below(4);
    unsigned given = 0;
    for (; given < batches; ++given) {
      const Status st = s->next(b, why);
      if (st.raw() == MDB_NOTFOUND) break;
      ASSERT_EQ(st.raw(), 0) << why;
    }
    const Position stopped = s->position();
    lmdbio_order rest = o;
    rest.epoch = stopped.epoch;
    rest.position = stopped.position;
    const auto second = stream_of(*r2, rest);
    for (;;) {  // all that is left
      std::unique_ptr<Batch> a, c;
      const Status one = s->next(a, why), two = second->next(c, why);
      ASSERT_EQ(one.raw(), two.raw());
      if (!one.ok()) break;
      ASSERT_EQ(a->count, c->count);
      ASSERT_EQ(a->epoch, c->epoch);
      ASSERT_EQ(a->position, c->position);
      ASSERT_EQ(a->padding, c->padding);
      for (std::size_t k = 0; k < a->count; ++k) {
        ASSERT_EQ(a->records[k].ordinal, c->records[k].ordinal);
        expect_record(c->records[k], *all);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(OfOne, EmptySharesEnd) {
  const auto r = db->reader();
  lmdbio_order o = order_of(LMDBIO_ORDER_SEQUENTIAL, 4, LMDBIO_ENDLESS);
  o.step = 5000;
  o.offset = 4000;
  EXPECT_TRUE(read_all(*r, o, *all).empty());
  o = order_of(LMDBIO_ORDER_SEQUENTIAL, 4000, LMDBIO_ENDLESS);
  o.last = LMDBIO_LAST_DROP;
  EXPECT_TRUE(read_all(*r, o, *all).empty());
}

// All of it is kept: there is nothing to read, and no end.
TEST(ReaderStream, SmallAndWithoutEnd) {
  ReaderDb db;
  db.fill(50, [](std::uint64_t) -> std::size_t { return 30; });
  const Records all = db.walk();
  for (const ReadDecision& read : {kAsResident, kDirectly}) {
    const auto r = db.reader(64 * kMiB, read);
    const auto s = stream_of(*r, order_of(LMDBIO_ORDER_SHUFFLE, 7, LMDBIO_ENDLESS));
    std::unique_ptr<Batch> b;
    std::string why;
    for (unsigned i = 0; i < 100000; ++i) {
      ASSERT_EQ(s->next(b, why).raw(), 0) << why;
      ASSERT_EQ(b->epoch, i / 8);
      expect_record(b->records[i % b->count], all);
      if (HasFailure()) return;
    }
    EXPECT_LT(r->shared().counters.bytes_read + r->shared().counters.bytes_copied, kMiB);
  }
}

TEST_F(OfOne, BuffersAreUsedAgain) {
  for (const ReadDecision& read : {kAsResident, kDirectly}) {
    const auto r = db->reader(32 * kMiB, read);
    const auto run = [&](lmdbio_order_kind kind, std::uint64_t epochs) {
      const auto s = stream_of(*r, order_of(kind, 32, epochs));
      std::unique_ptr<Batch> b;
      std::string why;
      while (s->next(b, why).ok()) {
      }
    };
    run(LMDBIO_ORDER_SEQUENTIAL, 20);
    const BufferPool::Counters before = r->shared().pool->counters();
    EXPECT_EQ(before.used_bytes, 0u);
    run(LMDBIO_ORDER_SEQUENTIAL, 30);
    EXPECT_EQ(r->shared().pool->counters().made, before.made);
    // Loads of a shuffle differ in size; so may the buffers, but not without end.
    run(LMDBIO_ORDER_SHUFFLE, 30);
    const BufferPool::Counters after = r->shared().pool->counters();
    EXPECT_EQ(after.used_bytes, 0u);
    EXPECT_LE(after.made, before.made + 8);
    EXPECT_LE(after.most_bytes, 32 * kMiB);
  }
}

TEST_F(OfOne, BatchesThatAreKept) {
  auto r = db->reader(2 * kMiB, kDirectly);
  auto s = stream_of(*r, order_of(LMDBIO_ORDER_SEQUENTIAL, 16));
  std::vector<std::unique_ptr<Batch>> kept;
  std::string why;
  int rc;
  for (;;) {
    std::unique_ptr<Batch> b;
    rc = s->next(b, why).raw();
    if (rc != 0) break;
    kept.push_back(std::move(b));
  }
  EXPECT_EQ(rc, ENOMEM);
  EXPECT_NE(why.find("not released"), std::string::npos) << why;
  EXPECT_GT(kept.size(), 2u);
  // It goes on as soon as there is memory, with the batch that failed.
  const Position at = s->position();
  const std::size_t many = kept.size();
  kept.erase(kept.begin() + 1, kept.end());
  std::unique_ptr<Batch> b;
  ASSERT_EQ(s->next(b, why).raw(), 0) << why;
  EXPECT_EQ(b->position, at.position);
  EXPECT_EQ(b->position, many * 16);
  // Batches outlive everything.
  s.reset();
  r.reset();
  for (const Batch* const k : {kept[0].get(), b.get()})
    for (std::size_t i = 0; i < k->count; ++i) expect_record(k->records[i], *all);
}

TEST_F(OfOne, ABatchLargerThanTheMemory) {
  const auto r = db->reader(kMiB, kDirectly);
  const auto s = stream_of(*r, order_of(LMDBIO_ORDER_SEQUENTIAL, 1000));
  std::unique_ptr<Batch> b;
  std::string why;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(s->next(b, why).raw(), ENOMEM);
    EXPECT_NE(why.find("limit"), std::string::npos) << why;
  }
  std::vector<std::uint64_t> ordinals(1000);
  std::iota(ordinals.begin(), ordinals.end(), 0);
  EXPECT_EQ(r->read(ordinals, b, why).raw(), ENOMEM);
  EXPECT_EQ(r->read(std::span(ordinals).first(10), b, why).raw(), 0) << why;
}

TEST_F(OfOne, WindowsAreReadInOrder) {
  const auto r = db->reader(64 * kMiB, kDirectly);
  lmdbio_order o = order_of(LMDBIO_ORDER_WINDOW_SHUFFLE, 8);
  o.window = 200;
  const std::uint64_t bytes = std::filesystem::file_size(db->file());
  EXPECT_EQ(read_all(*r, o, *all).size(), kRecords);
  if (!r->shared().source.direct()) GTEST_SKIP() << "no direct reads";
  EXPECT_LT(r->shared().counters.bytes_read, bytes + bytes / 4);
}

TEST_F(OfOne, SequentialReadsAreFewAndLarge) {
  const auto r = db->reader(64 * kMiB, kDirectly);
  if (!r->shared().source.direct()) GTEST_SKIP() << "no direct reads";
  const std::uint64_t bytes = std::filesystem::file_size(db->file());
  for (const std::uint64_t batch : {1u, 16u, 500u}) {
    const auto fresh = db->reader(64 * kMiB, kDirectly);
    EXPECT_EQ(read_all(*fresh, order_of(LMDBIO_ORDER_SEQUENTIAL, batch), *all).size(), kRecords);
    EXPECT_LE(fresh->shared().counters.requests, bytes / kMiB * 5 / 4 + 8) << batch;
    EXPECT_LT(fresh->shared().counters.bytes_read, bytes + bytes / 20) << batch;
  }
}

TEST_F(OfOne, WhatIsInThePageCacheIsReadFromThere) {
  const auto r = db->reader();
  const std::string warm(std::filesystem::file_size(db->file()), '\0');
  std::string bytes = warm;
  ASSERT_EQ(::pread(r->shared().source.base().fd(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  if (*r->shared().residency.how() == '\0') GTEST_SKIP() << "nothing tells what is in the page cache";
  EXPECT_EQ(read_all(*r, order_of(LMDBIO_ORDER_SHUFFLE, 16), *all).size(), kRecords);
  EXPECT_EQ(r->shared().counters.fetches_cached, r->shared().counters.fetches);
}

TEST_F(OfOne, StreamsInThreadsAndAFreedThread) {
  const auto r = db->reader();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      lmdbio_order o = order_of(LMDBIO_ORDER_SHUFFLE, 5 + t, 3);
      o.seed = t % 2;
      EXPECT_EQ(read_all(*r, o, *all).size(), 3 * kRecords);
      std::unique_ptr<Batch> b;
      std::string why;
      for (std::uint64_t i = 0; i < 100; ++i) {
        const std::uint64_t some[] = {i, kRecords - 1 - i};
        ASSERT_EQ(r->read(some, b, why).raw(), 0) << why;
        expect_record(b->records[1], *all);
      }
    });
  for (std::thread& t : threads) t.join();
  // A stream begun by a thread that has ended meanwhile.
  std::unique_ptr<Stream> s;
  std::unique_ptr<Batch> b;
  std::string why;
  std::thread([&] {
    s = stream_of(*r, order_of(LMDBIO_ORDER_SHUFFLE, 10));
    ASSERT_EQ(s->next(b, why).raw(), 0) << why;
  }).join();
  std::uint64_t n = 1;
  for (; s->next(b, why).ok(); ++n) {
    for (std::size_t i = 0; i < b->count; ++i) expect_record(b->records[i], *all);
  }
  EXPECT_EQ(n, kRecords / 10) << why;
}

TEST_F(OfOne, EachEngineAndWay) {
  for (const EngineKind kind : {EngineKind::uring, EngineKind::threads, EngineKind::pread})
    for (const ReadDecision& read : {kAsResident, kDirectly, kThroughPageCache}) {
      const auto r = db->reader(16 * kMiB, read, ReaderDb::engines(kind));
      EXPECT_EQ(read_all(*r, order_of(LMDBIO_ORDER_SHUFFLE, 33, 2), *all).size(), 2 * kRecords);
    }
}

TEST(ReaderKeys, OfDuplicatesTheFirst) {
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    for (const test::EnvSpec& spec : test::catalogue(seed)) {
      SCOPED_TRACE(std::to_string(seed) + " " + spec.name);
      ReaderDb db;
      test::generate(db.lmdb(), spec, db.dir());
      const test::DbSpec* main = nullptr;
      for (const test::DbSpec& d : spec.dbs)
        if (d.name.empty() && d.key_comparator < 0) main = &d;
      if (main == nullptr || !std::filesystem::exists(db.file())) continue;
      const Records all = db.walk(main);
      const auto r = db.reader();
      std::vector<std::string> names;
      std::vector<std::uint64_t> expected;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (i == 0 || all[i].first != all[i - 1].first) {
          names.push_back(all[i].first);
          expected.push_back(i);
        }
      std::vector<MDB_val> keys;
      for (std::string& n : names) keys.push_back({n.size(), n.data()});
      std::vector<std::uint64_t> ordinals;
      std::string why;
      ASSERT_EQ(r->find(keys, ordinals, why).raw(), 0) << why;
      ASSERT_EQ(ordinals, expected);
    }
  }
}

}  // namespace
}  // namespace lmdbio::records
