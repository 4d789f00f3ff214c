// Ranks that read for each other get what each of them would read alone.  Orders, assignments and the numbers
// of ranks, readers and rounds are random, and so are the times of the network and of the file system.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lmdbio/ranks/rank_stream.h"
#include "tests/support/fake_ranks.h"
#include "tests/support/orders.h"

namespace lmdbio::ranks {
namespace {

using records::BatchPlan;
using records::Order;
using records::Position;
using records::Sequence;
using test::FakeNetwork;
using test::FakeRecords;
using test::FakeSource;
using test::LimitedMemory;

// Sanitizers make each step ten times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kFewer = 10;
#else
constexpr std::uint64_t kFewer = 1;
#endif
/// Of a count that shows that a test meets what it is about: all seeds together reach it.
constexpr std::uint64_t at_least(std::uint64_t n) { return kFewer == 1 ? n : 0; }

std::string text(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

/// What few tests need of a job.
struct More {
  Turns::Settings turns{};
  std::uint64_t memory = UINT64_MAX, keeps = UINT64_MAX;
  bool has_cache = false;
  double in_page_cache = 0;
  std::uint64_t take_nothing = 0;  ///< a bit for each rank
};

/// A job whose ranks take turns by chance.
class Ranks {
 public:
  Ranks(const Job& job, std::uint64_t records, std::uint64_t seed, FakeSource::Faults faults, unsigned ahead,
        const More& more = {})
      : assignment(Assignment::make(job, records).value()),
        records_{seed},
        network(job.ranks, seed),
        rng_(seed + 1) {
    RankStream::Settings settings;
    settings.ahead = ahead;
    settings.turns = more.turns;
    settings.keeps = more.keeps;
    settings.in_page_cache = more.in_page_cache;
    std::vector<std::uint32_t> ranks(job.ranks);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), std::minstd_rand(static_cast<unsigned>(seed)));
    settings.reader_ranks.assign(ranks.begin(), ranks.begin() + job.readers);
    groups.resize(job.readers);
    for (std::uint32_t r = 0; r < job.ranks; ++r) {
      sources.push_back(std::make_unique<FakeSource>(records_, seed * 77 + r, faults));
      sources.back()->has_cache = more.has_cache;
      const auto reader = std::find(settings.reader_ranks.begin(), settings.reader_ranks.end(), r) -
                          settings.reader_ranks.begin();
      if (more.turns.group != 0 && reader < static_cast<std::ptrdiff_t>(job.readers))
        sources[r]->under_way = &groups[static_cast<std::size_t>(reader) / more.turns.group];
      settings.memory = std::make_shared<LimitedMemory>(more.memory);
      settings.takes_nothing = (more.take_nothing >> r & 1) != 0;
      std::unique_ptr<RankStream> stream;
      EXPECT_TRUE(RankStream::open(assignment, settings, network.rank(r), *sources.back(), stream).ok());
      streams.push_back(std::move(stream));
      const lmdbio_order share = assignment.share(r);
      expected_.push_back(Sequence::make(share, Order::make(share, records).value(), {}).value());
      at_.push_back(expected_.back().first());
      held_.emplace_back();
      left.push_back(false);
    }
  }

  /// One call of one rank.
  void step(std::uint32_t r) {
    const bool rests = !left[r] && streams[r]->resting();
    if (!rests || rng_.below(4) == 0) (void)network.rank(r).poll();
    RankBatch batch;
    std::string why;
    if (left[r]) {
      ASSERT_TRUE(streams[r]->progress(why).ok()) << why;
      return;
    }
    if (rng_.below(1000) < leaves_of_1000) {
      streams[r]->leave();
      left[r] = true;
      return;
    }
    const Status st = streams[r]->next(batch, why, rng_.below(1000) < impatient_of_1000);
    if (st.raw() == EAGAIN) {
      ASSERT_TRUE(!rests || streams[r]->reads_for_itself()) << "it waits for others, and nobody looks";
      return;
    }
    if (st.raw() == EIO || st.raw() == ENOMEM) {
      ++errors;
      return;
    }
    const std::optional<BatchPlan> plan = expected_[r].batch(at_[r]);
    if (st.raw() == MDB_NOTFOUND) {
      ASSERT_FALSE(plan) << "the end came too early";
      return;
    }
    ASSERT_TRUE(st.ok()) << why << ' ' << st.raw();
    ASSERT_TRUE(plan) << "a batch after the end";
    rested += rests;
    ASSERT_EQ(batch.records.size(), plan->count);
    ASSERT_EQ(batch.padding, plan->padding);
    ASSERT_EQ(batch.at, plan->at);
    for (std::size_t i = 0; i < batch.records.size(); ++i) {
      const std::uint64_t ordinal = expected_[r].ordinal(*plan, i);
      ASSERT_EQ(batch.records[i].ordinal, ordinal);
      ASSERT_EQ(text(batch.records[i].key), records_.key(ordinal));
      ASSERT_EQ(text(batch.records[i].value), records_.value(ordinal));
      ++given;
    }
    at_[r] = plan->after;
    ASSERT_EQ(streams[r]->position(), at_[r]);
    // A program may keep a batch while it asks for others.
    check(held_[r]);
    held_[r] = std::move(batch);
  }

  bool has_all(std::uint32_t r) const { return !expected_[r].batch(at_[r]); }
  bool finished() const {
    return std::all_of(streams.begin(), streams.end(), [](const auto& s) { return s->closed(); });
  }

  void run() {
    std::uint64_t steps = 0;
    while (!finished()) {
      step(rng_.below(streams.size()));
      if (::testing::Test::HasFatalFailure()) return;
      ASSERT_LT(++steps, 3'000'000u) << "they wait for each other";
    }
    for (const RankBatch& b : held_) check(b);
    for (std::uint32_t r = 0; r < streams.size(); ++r)
      ASSERT_TRUE(left[r] || !expected_[r].batch(at_[r])) << "rank " << r << " did not get all";
    EXPECT_EQ(network.open(), 0u);
  }

  const Assignment assignment;
  const FakeRecords records_;
  FakeNetwork network;
  std::vector<FakeSource::UnderWay> groups;  ///< of readers
  std::vector<std::unique_ptr<FakeSource>> sources;
  std::vector<std::unique_ptr<RankStream>> streams;
  std::uint64_t given = 0, errors = 0;
  std::uint64_t rested = 0;  ///< batches that were given while nothing was under way
  std::vector<bool> left;
  unsigned leaves_of_1000 = 0, impatient_of_1000 = 0;  ///< calls

 private:
  void check(const RankBatch& b) const {
    for (const lmdbio_record& r : b.records) {
      ASSERT_EQ(text(r.key), records_.key(r.ordinal));
      ASSERT_EQ(text(r.value), records_.value(r.ordinal));
    }
  }
  test::Rng rng_;
  std::vector<Sequence> expected_;
  std::vector<Position> at_;
  std::vector<RankBatch> held_;
};

Job random_job(test::Rng& rng, std::uint32_t records) {
  Job job;
  job.order.size = sizeof job.order;
  test::set_kind(job.order, rng, records);
  job.scattered_records = rng.between(1, records + 10);
  job.kept_parts = rng.below(2) == 0 ? 0 : rng.below(kKeptParts + 1);
  job.order.seed = rng.below(5);
  job.order.batch = rng.between(0, 30);
  job.order.last = static_cast<lmdbio_last>(rng.below(3));
  job.order.end_epoch = rng.between(1, 3);
  job.order.across_epochs = rng.below(2) == 0;
  job.distribution = rng.below(2) == 0 ? Distribution::strided : Distribution::contiguous;
  job.ranks = rng.between(1, 9);
  job.readers = rng.between(1, job.ranks);
  job.round_records = std::max<std::uint64_t>(job.order.window / 4 + 1, rng.between(1, records + 10));
  return job;
}

TEST(RankStream, EachRankGetsItsShare) {
  std::uint64_t messages = 0, given = 0;
  for (std::uint64_t seed = 0; seed < 600 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.below(4) == 0 ? rng.between(1, 5) : rng.between(1, 200);
    const Job job = random_job(rng, records);
    Ranks ranks(job, records, seed, {}, rng.between(1, 4),
                {.keeps = rng.below(2) == 0 ? UINT64_MAX : rng.below(5000), .has_cache = seed % 3 == 0});
    if (!ranks.assignment.has_rounds()) continue;
    ranks.run();
    if (HasFatalFailure()) return;
    messages += ranks.network.messages;
    given += ranks.given;
    EXPECT_EQ(ranks.errors, 0u);
    // Each record is read by one rank, once for each time that it is used, padding apart.
    if (job.order.last != LMDBIO_LAST_PAD && seed % 3 != 0) {
      std::uint64_t reads = 0;
      for (const auto& s : ranks.sources)
        for (const auto& [ordinal, times] : s->times) reads += times;
      if (job.order.kind == LMDBIO_ORDER_FUNCTION || ranks.assignment.kept_rounds() != 0)
        EXPECT_LE(reads, ranks.given);  // what a round has twice is read once
      else
        EXPECT_EQ(reads, ranks.given);
    }
  }
  EXPECT_GT(messages, at_least(20000));
  EXPECT_GT(given, at_least(80000));
}

// Ranks resume at positions of their own, some of them at or after the end of the job.
TEST(RankStream, RanksThatHaveReadAllTakePart) {
  unsigned empty = 0, jobs = 0;
  for (std::uint64_t seed = 9000; seed < 9000 + 300 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(1, 200);
    Job job = random_job(rng, records);
    const std::uint32_t latest = seed % 10 == 0 ? 0 : 3;  // 0: all ranks have read all
    auto starts = std::make_shared<std::vector<Position>>();
    for (std::uint32_t r = 0; r < job.ranks; ++r)
      starts->push_back({latest == 0 ? job.order.end_epoch + rng.below(2) : rng.below(latest + 2), 0});
    job.starts = starts;
    Ranks ranks(job, records, seed, {}, rng.between(1, 4), {.keeps = UINT64_MAX});
    if (!ranks.assignment.has_rounds()) continue;
    ++jobs;
    ranks.run();
    if (HasFatalFailure()) return;
    EXPECT_EQ(ranks.errors, 0u);
    if (latest == 0) {
      EXPECT_EQ(ranks.given, 0u);
      for (const auto& s : ranks.sources) EXPECT_TRUE(s->times.empty());
    }
    for (const Position& start : *starts) empty += start.epoch >= job.order.end_epoch;
  }
  EXPECT_GT(jobs, at_least(100));
  EXPECT_GT(empty, at_least(100));
}

// A reader that never has anything to read, of an order without an end, passes over its rounds bit by bit.
TEST(RankStream, AReaderWithoutWork) {
  for (const bool records : {true, false}) {
    Job job;
    job.order.size = sizeof job.order;
    job.order.kind = LMDBIO_ORDER_FUNCTION;
    job.order.function = [](void* context, std::uint64_t, std::uint64_t i) -> std::uint64_t {
      return context != nullptr ? 2 * i : 1000;  // 1000: there is no such record
    };
    job.order.function_context = records ? &job : nullptr;
    job.order.length = 16;
    job.order.end_epoch = LMDBIO_ENDLESS;
    job.ranks = job.readers = 2;
    job.scattered_records = 8;
    Ranks ranks(job, 32, 1, {}, 3);
    if (records) {
      for (std::uint32_t i = 0; i < 5000; ++i) {
        ranks.step(i % 2);
        if (HasFatalFailure()) return;
      }
      EXPECT_GT(ranks.given, 100u);
    } else {
      std::string why;
      for (std::uint32_t i = 0; i < 100; ++i) ASSERT_TRUE(ranks.streams[i % 2]->progress(why).ok());
    }
    ranks.leaves_of_1000 = 1000;
    ranks.run();
    if (HasFatalFailure()) return;
  }
}

// Ranks whose functions differ: each gets its own records, or EPROTO, and all come to an end.
TEST(RankStream, FunctionsThatDiffer) {
  unsigned refused = 0;
  for (std::uint64_t seed = 5000; seed < 5000 + 300 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(1, 100);
    Job job = random_job(rng, records);
    job.order.kind = LMDBIO_ORDER_FUNCTION;
    job.order.length = rng.between(1, 200);
    Job other = job;
    other.order.function = [](void* context, std::uint64_t, std::uint64_t i) -> std::uint64_t {
      return i * 7 % reinterpret_cast<std::uintptr_t>(context);
    };
    const Assignment assignments[] = {Assignment::make(job, records).value(),
                                      Assignment::make(other, records).value()};
    FakeNetwork network(job.ranks, seed);
    std::vector<std::unique_ptr<FakeSource>> sources;
    std::vector<std::unique_ptr<RankStream>> streams;
    RankStream::Settings settings;
    for (std::uint32_t r = 0; r < job.readers; ++r) settings.reader_ranks.push_back(r);
    for (std::uint32_t r = 0; r < job.ranks; ++r) {
      sources.push_back(std::make_unique<FakeSource>(FakeRecords{seed}, r, FakeSource::Faults{}));
      streams.emplace_back();
      ASSERT_TRUE(
          RankStream::open(assignments[r % 2], settings, network.rank(r), *sources[r], streams[r]).ok());
    }
    std::vector<bool> left(job.ranks);
    std::uint64_t steps = 0;
    while (std::any_of(streams.begin(), streams.end(), [](const auto& s) { return !s->closed(); })) {
      ASSERT_LT(++steps, 1'000'000u) << "they wait for each other";
      const std::uint32_t r = rng.below(job.ranks);
      (void)network.rank(r).poll();
      std::string why;
      RankBatch batch;
      // A rank that waits for what nobody sends becomes impatient.
      const Status st =
          left[r] ? streams[r]->progress(why) : streams[r]->next(batch, why, rng.below(50) == 0);
      if (st.raw() == EPROTO && !left[r]) {
        left[r] = true;
        streams[r]->leave();
        ++refused;
      } else {
        ASSERT_TRUE(st.ok() || st.raw() == EAGAIN || st.raw() == MDB_NOTFOUND) << why;
      }
      for (std::size_t i = 0; i < batch.records.size() - batch.padding; ++i) {
        const Order order = assignments[r % 2].order_of(r);
        const std::uint64_t due = order.at(batch.at.epoch, batch.at.position + i);
        ASSERT_EQ(batch.records[i].ordinal, due);
        ASSERT_EQ(text(batch.records[i].value), FakeRecords{seed}.value(due));
      }
    }
    EXPECT_EQ(network.open(), 0u);
  }
  EXPECT_GT(refused, at_least(100));
}

// Where what was read stays in memory, each reader reads its blocks as a whole, once, but not far more than
// what is used.
TEST(RankStream, BlocksAreLoadedAsAWhole) {
  Job job;
  job.order.size = sizeof job.order;
  job.order.kind = LMDBIO_ORDER_SHUFFLE;
  job.order.batch = 4;
  job.order.end_epoch = 2;
  job.ranks = 3, job.readers = 2;
  job.scattered_records = 40;
  constexpr std::uint64_t kRecords = 2000;
  for (const bool leaves : {false, true}) {
    Ranks ranks(job, kRecords, 7, {}, 3);
    ASSERT_TRUE(ranks.assignment.is_scattered());
    std::vector<std::unique_ptr<OwnerLoad>> loads;
    for (std::uint32_t reader = 0; reader < 2; ++reader)
      loads.push_back(std::make_unique<OwnerLoad>(ranks.assignment, reader, *ranks.sources[reader]));
    std::uint64_t used = 0, steps = 0;
    while (!loads[0]->done() || !loads[1]->done()) {
      if (leaves && used == 20) break;
      if (++steps % 50 == 0) ++used;
      for (const auto& load : loads) {
        load->progress(used);
        EXPECT_LE(load->records(), used * 8 + 20);  // a block more
      }
      ASSERT_LT(steps, 1'000'000u);
    }
    std::uint64_t loaded = 0;
    for (std::uint32_t reader = 0; reader < 2; ++reader)
      for (const auto& [ordinal, times] : ranks.sources[reader]->times) {
        EXPECT_EQ(times, 1u);
        EXPECT_EQ(ranks.assignment.part_of(0, ordinal), reader);
        ++loaded;
      }
    if (leaves)
      EXPECT_LT(loaded, kRecords / 2);
    else
      EXPECT_EQ(loaded, kRecords);
  }
  // By the streams themselves: each record is read once by its block, and once in each epoch.
  Ranks ranks(job, kRecords, 7, {}, 3, {.has_cache = true});
  ranks.run();
  if (HasFatalFailure()) return;
  for (const auto& s : ranks.sources)
    for (const auto& [ordinal, times] : s->times) EXPECT_EQ(times, 3u) << ordinal;
}

// Shares that are the same in each epoch are read and sent once, as far as ranks have memory to keep them.
TEST(RankStream, KeepsWhatItWasSent) {
  for (const std::uint32_t ranks_in_all : {2u, 5u}) {
    std::map<unsigned, std::uint64_t> messages;
    for (const unsigned parts : {0u, 3u, kKeptParts}) {
      for (const bool room : {true, false}) {
        Job job;
        job.order.size = sizeof job.order;
        job.order.batch = 7;
        job.order.end_epoch = 4;
        job.ranks = ranks_in_all, job.readers = 2;
        job.round_records = 33;
        job.kept_parts = parts;
        job.order.across_epochs = 1;
        constexpr std::uint64_t kRecords = 200;  // a multiple of the ranks
        Ranks ranks(job, kRecords, 5, {}, 3, {.keeps = room ? UINT64_MAX : 500});
        ASSERT_EQ(ranks.assignment.rounds_per_epoch(), 7u);
        ASSERT_EQ(ranks.assignment.kept_rounds(), 7 * parts / kKeptParts);
        ranks.run();
        if (HasFatalFailure()) return;
        std::map<std::uint64_t, std::uint64_t> times;
        for (const auto& s : ranks.sources)
          for (const auto& [ordinal, n] : s->times) times[ordinal] += n;
        ASSERT_EQ(times.size(), kRecords);
        std::uint64_t read_again = 0;  // of those that are to be kept
        for (const auto& [ordinal, n] : times) {
          const bool kept = ordinal < 33 * ranks.assignment.kept_rounds();
          EXPECT_EQ(n, kept && n == 1 ? 1u : 4u) << ordinal;
          read_again += kept && n != 1;
        }
        EXPECT_EQ(read_again != 0, parts != 0 && !room);
        const std::uint64_t batches = job.order.end_epoch * kRecords / job.order.batch;
        if (parts == kKeptParts && room) {
          EXPECT_GT(ranks.rested, batches / 2);
        }
        if (parts == 0) {
          EXPECT_LT(ranks.rested, batches / 2);  // of the last rounds
        }
        if (room) messages[parts] = ranks.network.messages;
      }
    }
    EXPECT_LT(messages[kKeptParts], messages[0] / 3);
    EXPECT_LT(messages[kKeptParts], messages[3]);
    EXPECT_LT(messages[3], messages[0]);
  }
  Job job;
  job.order.size = sizeof job.order;
  job.order.across_epochs = 1;
  job.ranks = 3;
  job.kept_parts = kKeptParts;
  EXPECT_EQ(Assignment::make(job, 100).value().kept_rounds(), 0u) << "shares move on";
  EXPECT_EQ(Assignment::make(job, 99).value().kept_rounds(), 99u);
  job.order.kind = LMDBIO_ORDER_SHUFFLE;
  EXPECT_EQ(Assignment::make(job, 99).value().kept_rounds(), 0u);
}

// Of what is not kept, the first rounds of each epoch stay in the page cache, as far as it has room.
TEST(RankStream, APartOfEachEpochGoesThroughThePageCache) {
  Job job;
  job.order.size = sizeof job.order;
  job.order.batch = 4;
  job.order.end_epoch = 3;
  job.order.across_epochs = 1;
  job.ranks = 4, job.readers = 2;
  job.round_records = 10;
  job.kept_parts = 2;
  Ranks ranks(job, 200, 1, {}, 3, {.in_page_cache = 0.5});
  ASSERT_EQ(ranks.assignment.rounds_per_epoch(), 20u);
  ranks.run();
  if (HasFatalFailure()) return;
  std::uint64_t cached = 0;
  for (const auto& s : ranks.sources)
    for (const auto& [ordinal, times] : s->times) {
      const auto at = s->to_page_cache.find(ordinal);
      EXPECT_EQ(times, ordinal < 50 ? 1u : 3u);
      EXPECT_EQ(at != s->to_page_cache.end(), ordinal >= 50 && ordinal < 150) << ordinal;
      cached += at != s->to_page_cache.end() && at->second == times;
    }
  EXPECT_EQ(cached, 100u);
  job.order.end_epoch = 1;
  Ranks once(job, 200, 1, {}, 3, {.in_page_cache = 1});
  once.run();
  for (const auto& s : once.sources) EXPECT_TRUE(s->to_page_cache.empty());
}

// Ranks that have the records in their page cache are sent nothing, and read for the others.
TEST(RankStream, RanksThatTakeNothing) {
  std::uint64_t given = 0;
  for (std::uint64_t seed = 1600; seed < 1600 + 300 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(1, 200);
    const Job job = random_job(rng, records);
    const std::uint32_t which = rng.below(1u << job.ranks);
    const bool faults = rng.below(3) == 0;
    Ranks ranks(job, records, seed, {.reads = faults ? 20u : 0u, .starts = faults ? 20u : 0u},
                rng.between(1, 4),
                {.memory = rng.below(2) == 0 ? UINT64_MAX : rng.below(5000),
                 .keeps = rng.below(3) == 0 ? UINT64_MAX : rng.below(2) * rng.below(5000),
                 .has_cache = rng.below(2) == 0,
                 .take_nothing = which});
    if (!ranks.assignment.has_rounds()) continue;
    if (faults) ranks.leaves_of_1000 = rng.below(20);
    ranks.impatient_of_1000 = 50;  // messages may be too large for the memory
    ranks.run();
    if (HasFatalFailure()) return;
    given += ranks.given;
    for (std::uint32_t r = 0; r < job.ranks; ++r) {
      if ((which >> r & 1) == 0) continue;
      EXPECT_EQ(ranks.streams[r]->traffic().bytes_received, 0u);
      EXPECT_EQ(ranks.streams[r]->traffic().records_alone, 0u);
    }
  }
  EXPECT_GT(given, at_least(40000));
}

TEST(KeptRecords, AsManyAsThereIsRoomFor) {
  const auto memory = std::make_shared<PayloadMemory>();
  const std::string value(100'000, 'v');
  std::string key = "k";
  for (const std::size_t batch : {1u, 15u, 21u, 30u}) {
    constexpr std::uint64_t kLimit = 50'000'000;
    KeptRecords kept(kLimit, memory);
    std::uint64_t position = 0;
    for (; !kept.full() && position < 1000; position += batch) {
      std::vector<KeptRecords::Record> records;
      for (std::uint64_t i = 0; i < batch; ++i)
        records.push_back({position + i,
                           {2 * (position + i),
                            {key.size(), key.data()},
                            {value.size() - i, const_cast<char*>(value.data())}}});
      kept.add(records);
    }
    std::uint64_t n = 0;
    for (lmdbio_record r; kept.has(n); ++n) {
      std::shared_ptr<const void> keep;
      ASSERT_TRUE(kept.find(n, r, keep));
      EXPECT_EQ(r.ordinal, 2 * n);
      EXPECT_EQ(text(r.key), key);
      EXPECT_EQ(r.value.mv_size, value.size() - n % batch);
      EXPECT_EQ(text(r.value), value.substr(0, r.value.mv_size));
    }
    EXPECT_GE(n, kLimit / 100'000 * 95 / 100) << batch;
    EXPECT_LE(n, kLimit / 100'000 + 1);
  }
}

// A reader hears each of many ranks, also those that leave early, with few receives under way.
TEST(RankStream, ManyRanks) {
  for (const unsigned leaves : {0u, 20u}) {
    Job job;
    job.order.size = sizeof job.order;
    job.order.batch = 2;
    job.order.last = LMDBIO_LAST_PAD;
    job.order.end_epoch = 1;
    job.ranks = 60;
    job.readers = 1;
    job.round_records = 200;
    Ranks ranks(job, 400, 5, {}, 2, {});
    ranks.leaves_of_1000 = leaves;
    ranks.run();
    if (HasFatalFailure()) return;
    EXPECT_LE(ranks.network.most_receives, 16u + 3) << "and those of the departure";
  }
}

// What a reader cannot read the ranks try themselves, and again, until it comes.
TEST(RankStream, ReadsThatFail) {
  std::uint64_t failed = 0, errors = 0;
  for (std::uint64_t seed = 1000; seed < 1000 + 250 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(1, 200);
    Ranks ranks(random_job(rng, records), records, seed, {.reads = 30, .starts = 20}, rng.between(1, 4));
    if (!ranks.assignment.has_rounds()) continue;
    ranks.run();
    if (HasFatalFailure()) return;
    for (const auto& s : ranks.sources) failed += s->failed;
    errors += ranks.errors;
  }
  EXPECT_GT(failed, at_least(500));
  EXPECT_GT(errors, at_least(50));
}

// Ranks leave at any time, readers and others; those that stay get everything, and all come to an end.
TEST(RankStream, RanksThatLeave) {
  std::uint64_t leaves = 0, stayed = 0;
  for (std::uint64_t seed = 5000; seed < 5000 + 600 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(1, 300);
    Job job = random_job(rng, records);
    Ranks ranks(job, records, seed, {.reads = rng.below(2) * 20, .starts = rng.below(2) * 20},
                rng.between(1, 4));
    if (!ranks.assignment.has_rounds()) continue;
    ranks.leaves_of_1000 = 1 + rng.below(30);
    ranks.run();
    if (HasFatalFailure()) return;
    for (const bool left : ranks.left) leaves += left, stayed += !left;
  }
  EXPECT_GT(leaves, at_least(500));
  EXPECT_GT(stayed, at_least(200));
}

// Readers that take turns: any groups, and groups that do not divide the readers; ranks that leave block
// nobody.
TEST(RankStream, ReadersTakeTurns) {
  unsigned most = 0;
  for (std::uint64_t seed = 3000; seed < 3000 + 600 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(1, 300);
    Job job = random_job(rng, records);
    const bool faults = rng.below(2) == 0;
    const Turns::Settings turns{rng.between(1, 10), rng.between(0, 5)};
    Ranks ranks(job, records, seed, {.reads = faults ? 20u : 0u, .starts = faults ? 20u : 0u},
                rng.between(1, 4), {.turns = turns});
    if (!ranks.assignment.has_rounds()) continue;
    if (faults) ranks.leaves_of_1000 = rng.below(20), ranks.impatient_of_1000 = rng.below(20);
    ranks.run();
    if (HasFatalFailure()) return;
    // What a rank reads for itself alone has no turn.
    if (faults || job.order.last == LMDBIO_LAST_PAD) continue;
    for (const FakeSource::UnderWay& g : ranks.groups) {
      EXPECT_LE(g.most, std::max(turns.at_once, 1u));
      most = std::max(most, g.most);
    }
  }
  EXPECT_GE(most, kFewer == 1 ? 5u : 1u) << "the limit is reached";
}

// Who does not wait for others reads for itself, and what comes too late does no harm.
TEST(RankStream, ImpatientRanks) {
  std::uint64_t twice = 0;
  for (std::uint64_t seed = 7000; seed < 7000 + 600 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(1, 300);
    Ranks ranks(random_job(rng, records), records, seed,
                {.reads = rng.below(2) * 20, .starts = rng.below(2) * 20}, rng.between(1, 4));
    if (!ranks.assignment.has_rounds()) continue;
    ranks.impatient_of_1000 = 1 + rng.below(300);
    ranks.leaves_of_1000 = rng.below(2) * 3;
    ranks.run();
    if (HasFatalFailure()) return;
    for (const auto& s : ranks.sources)
      for (const auto& [ordinal, times] : s->times) twice += times > 1;
  }
  EXPECT_GT(twice, at_least(1000)) << "nobody was impatient";
}

// Ranks with memory for hardly a message: what does not fit they read for themselves, and all come to an end,
// also if they leave while each holds what others have no memory to receive.
TEST(RankStream, RanksThatLackMemory) {
  for (std::uint64_t seed = 11000; seed < 11000 + 600 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(1, 300);
    Ranks ranks(random_job(rng, records), records, seed,
                {.reads = rng.below(2) * 20, .starts = rng.below(2) * 20}, rng.between(1, 4),
                {.memory = rng.below(3000), .has_cache = rng.below(2) == 0});
    if (!ranks.assignment.has_rounds()) continue;
    ranks.impatient_of_1000 = 50;
    ranks.leaves_of_1000 = rng.below(2) * 5;
    ranks.run();
    if (HasFatalFailure()) return;
  }
}

// One rank stops, a reader or not; the others get everything, although what readers have sent to it is not
// received any more.
TEST(RankStream, ARankThatStops) {
  for (std::uint64_t seed = 9000; seed < 9000 + 200 / kFewer; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.between(100, 300);
    Job job = random_job(rng, records);
    job.ranks = rng.between(2, 6);
    job.readers = rng.between(1, job.ranks);
    Ranks ranks(job, records, seed, {}, rng.between(1, 4));
    if (!ranks.assignment.has_rounds()) continue;
    const std::uint32_t stopped = rng.below(job.ranks);
    const auto others = [&](unsigned steps) {
      for (unsigned i = 0; i < steps; ++i)
        for (std::uint32_t r = 0; r < job.ranks; ++r)
          if (r != stopped) ranks.step(r);
    };
    for (unsigned i = 0; i < rng.below(200); ++i) ranks.step(rng.below(job.ranks));
    if (HasFatalFailure()) return;
    ranks.impatient_of_1000 = 50;
    others(20000 / job.ranks);
    if (HasFatalFailure()) return;
    for (std::uint32_t r = 0; r < job.ranks; ++r)
      ASSERT_TRUE(r == stopped || ranks.has_all(r)) << "rank " << r << " waits for rank " << stopped;
    ranks.run();
    if (HasFatalFailure()) return;
  }
}

// Nobody sends more than `ahead` rounds that the other side has not begun to receive.
TEST(RankStream, ASlowRankIsNotFlooded) {
  Job job;
  job.order.size = sizeof job.order;
  job.order.batch = 4;
  job.order.end_epoch = 1;
  job.ranks = 4, job.readers = 2;
  job.round_records = 16;
  constexpr unsigned kAhead = 3;
  Ranks ranks(job, 4000, 1, {}, kAhead);
  for (unsigned i = 0; i < 20000; ++i) {  // rank 3 is busy otherwise
    ranks.step(i % 3);
    if (HasFatalFailure()) return;
  }
  EXPECT_LE(ranks.network.most_waiting, kAhead);
  std::uint64_t read = 0;
  for (const auto& s : ranks.sources)
    for (const auto& [ordinal, times] : s->times) read += times;
  EXPECT_LE(read, 16 * (kAhead + 1) * 2u) << "nothing is read that nobody takes";
  ranks.run();
}

}  // namespace
}  // namespace lmdbio::ranks
