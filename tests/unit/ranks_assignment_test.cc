// Who uses and who reads which record, against the shares as the orders themselves define them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lmdbio/ranks/assignment.h"
#include "lmdbio/records/sequence.h"
#include "tests/support/orders.h"

namespace lmdbio::ranks {
namespace {

using records::BatchPlan;
using records::Order;
using records::Position;
using records::Sequence;

/// Records of a rank's batches by epoch, padding left out: from the share's own order.
std::vector<std::multiset<std::uint64_t>> used(const lmdbio_order& share, std::uint64_t records,
                                               std::uint64_t epochs) {
  std::vector<std::multiset<std::uint64_t>> out(epochs);
  const Order order = Order::make(share, records).value();
  const Sequence s = Sequence::make(share, order, {}).value();
  Position at = s.first();
  for (std::optional<BatchPlan> b; (b = s.batch(at)).has_value(); at = b->after) {
    for (std::uint64_t i = 0; i < b->count - b->padding; ++i) {
      // The position of a record tells its epoch.
      const Position in_epoch = order.across_epochs() ? order.normal({b->at.epoch, b->at.position + i})
                                                      : Position{b->at.epoch, b->at.position + i};
      if (in_epoch.epoch >= epochs) return out;
      out[in_epoch.epoch].insert(s.ordinal(*b, i));
    }
    if (b->at.epoch >= epochs) break;
  }
  return out;
}

Job random_job(test::Rng& rng, std::uint32_t records) {
  Job job;
  job.order.size = sizeof job.order;
  test::set_kind(job.order, rng, records);
  job.scattered_records = rng.below(4) == 0 ? 0 : rng.between(1, records + 10);
  job.order.seed = rng.below(5);
  job.order.batch = rng.between(0, 9);
  job.order.last = static_cast<lmdbio_last>(rng.below(3));
  const std::uint64_t epochs = rng.between(1, 3);
  job.order.epoch = rng.below(2);
  job.order.end_epoch = job.order.epoch + epochs;
  job.order.across_epochs = rng.below(2) == 0;
  job.distribution = rng.below(2) == 0 ? Distribution::strided : Distribution::contiguous;
  job.ranks = rng.between(1, 9);
  job.readers = rng.between(1, job.ranks);
  job.round_records = rng.between(1, records + 10);
  if (rng.below(3) == 0) {
    auto starts = std::make_shared<std::vector<Position>>();
    for (std::uint32_t r = 0; r < job.ranks; ++r) {
      lmdbio_order share = job.order;
      share.offset = r, share.step = job.ranks;
      share.block =
          job.distribution == Distribution::contiguous ? std::max<std::uint64_t>(job.order.batch, 1) : 1;
      const std::uint64_t epoch = job.order.epoch + rng.below(3);
      starts->push_back({epoch, rng.below(Order::make(share, records).value().length(epoch) + 1)});
    }
    job.starts = std::move(starts);
  }
  return job;
}

TEST(Assignment, NeedsAreWhatTheRanksUse) {
  unsigned with_rounds = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t records = rng.below(4) == 0 ? rng.between(1, 5) : rng.between(1, 200);
    const Job job = random_job(rng, records);
    const char* wrong = "";
    const Result<Assignment> made = Assignment::make(job, records, &wrong);
    ASSERT_TRUE(made) << wrong;
    const Assignment& assignment = made.value();
    if (!assignment.has_rounds()) continue;
    ++with_rounds;
    std::map<std::uint64_t, std::uint32_t> owners;  // reader of each ordinal
    const std::uint64_t epochs = job.order.end_epoch + 1;
    std::vector<std::vector<std::multiset<std::uint64_t>>> expected;  // by rank
    for (std::uint32_t r = 0; r < job.ranks; ++r)
      expected.push_back(used(assignment.share(r), records, epochs));
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
      std::uint64_t next = 0;
      std::vector<std::multiset<std::uint64_t>> got(job.ranks);
      for (std::uint64_t k = 0; k < assignment.rounds_per_epoch(); ++k) {
        const std::uint64_t round = assignment.first_round(epoch) + k;
        ASSERT_EQ(assignment.epoch_of(round), epoch);
        const Range all = assignment.elements(round);
        ASSERT_EQ(all.begin, next);
        ASSERT_GT(all.end, all.begin);
        std::uint64_t in_round = all.begin;
        std::set<std::uint32_t> readers;
        std::vector<std::multiset<std::uint64_t>> sent(job.ranks);
        for (std::uint32_t p = 0; p < job.readers; ++p) {
          if (!assignment.is_scattered()) {
            const Range part = assignment.part(round, p);
            ASSERT_EQ(part.begin, in_round);
            in_round = part.end;
            for (std::uint64_t x = part.begin; x < part.end; ++x) ASSERT_EQ(assignment.part_of(round, x), p);
          }
          const std::uint32_t reader = assignment.reader_of(round, p);
          ASSERT_LT(reader, job.readers);
          ASSERT_EQ(assignment.part_read_by(round, reader), p);
          readers.insert(reader);
          std::vector<Assignment::Need> needs;
          assignment.needs(round, p, needs);
          for (std::size_t i = 0; i < needs.size(); ++i) {
            ASSERT_LT(needs[i].rank, job.ranks);
            if (i > 0) {
              ASSERT_LE(needs[i - 1].ordinal, needs[i].ordinal);
            }
            ASSERT_LT(needs[i].ordinal, records);
            ASSERT_EQ(assignment.part_of(round, needs[i].ordinal), p);
            if (assignment.is_scattered()) {  // the same reader in all rounds
              ASSERT_EQ(owners.try_emplace(needs[i].ordinal, reader).first->second, reader);
            }
            got[needs[i].rank].insert(needs[i].ordinal);
            sent[needs[i].rank].insert(needs[i].ordinal);
          }
        }
        if (!assignment.is_scattered()) {
          ASSERT_EQ(in_round, all.end);
        }
        ASSERT_EQ(readers.size(), job.readers);
        // What a rank expects is what is sent to it.
        for (std::uint32_t r = 0; r < job.ranks; ++r) {
          const Order share = assignment.order_of(r);
          const Range positions = assignment.positions(r, round);
          std::multiset<std::uint64_t> wanted;
          for (std::uint64_t p = positions.begin; p < positions.end; ++p)
            if (assignment.is_needed(r, share, {epoch, p})) wanted.insert(share.at(epoch, p));
          ASSERT_EQ(wanted, sent[r]) << "rank " << r;
        }
        next = all.end;
      }
      ASSERT_EQ(next, Order::make(assignment.share(0), records).value().elements());
      for (std::uint32_t r = 0; r < job.ranks; ++r) ASSERT_EQ(got[r], expected[r][epoch]) << "rank " << r;
    }
  }
  EXPECT_GT(with_rounds, 2000u);
}

// What a function must not return nobody reads for others.
TEST(Assignment, OrdinalsThatAreTooLarge) {
  Job job;
  job.order.size = sizeof job.order;
  job.order.kind = LMDBIO_ORDER_FUNCTION;
  job.order.function = [](void*, std::uint64_t, std::uint64_t i) -> std::uint64_t {
    return i % 3 == 1 ? UINT64_MAX - i : i;
  };
  job.order.length = 9;
  job.ranks = 3, job.readers = 2;
  job.round_records = 100;
  job.scattered_records = 100;
  const Assignment assignment = Assignment::make(job, 8).value();
  std::set<std::uint64_t> sent;
  for (std::uint32_t part = 0; part < 2; ++part) {
    std::vector<Assignment::Need> needs;
    assignment.needs(0, part, needs);
    for (const Assignment::Need& n : needs) sent.insert(n.ordinal);
  }
  EXPECT_EQ(sent, (std::set<std::uint64_t>{0, 2, 3, 5, 6}));
}

// Each reader has about as much to read, even of a few records.
TEST(Assignment, OwnerBlocksAreEven) {
  for (const std::uint64_t records : {64u, 1000u, 100'000u}) {
    Job job;
    job.order.size = sizeof job.order;
    job.order.kind = LMDBIO_ORDER_SHUFFLE;
    job.ranks = job.readers = 4;
    job.scattered_records = 1 << 20;
    const Assignment assignment = Assignment::make(job, records).value();
    std::uint64_t in_blocks = 0;
    for (std::uint32_t part = 0; part < 4; ++part) {
      for (std::uint64_t i = 0; i < assignment.owner_blocks(part); ++i) {
        const Range block = assignment.owner_block(part, i);
        ASSERT_GT(block.size(), 0u);
        EXPECT_EQ(assignment.part_of(0, block.begin), part);
        EXPECT_EQ(assignment.part_of(0, block.end - 1), part);
        in_blocks += block.size();
      }
      std::vector<Assignment::Need> needs;
      assignment.needs(0, part, needs);
      EXPECT_NEAR(static_cast<double>(needs.size()), static_cast<double>(records) / 4,
                  static_cast<double>(records) / 32 + 1);
    }
    EXPECT_EQ(in_blocks, records);
  }
}

TEST(Assignment, OrdersWithoutRounds) {
  Job job;
  job.order.size = sizeof job.order;
  job.order.kind = LMDBIO_ORDER_SHUFFLE;
  job.round_records = 10;
  EXPECT_FALSE(Assignment::make(job, 100).value().has_rounds());
  job.order.kind = LMDBIO_ORDER_WINDOW_SHUFFLE;
  job.order.window = 50;
  EXPECT_FALSE(Assignment::make(job, 100).value().has_rounds()) << "five times as large as a round";
  job.scattered_records = 100;
  EXPECT_TRUE(Assignment::make(job, 100).value().is_scattered());
  job.order.kind = LMDBIO_ORDER_KEYS;
  EXPECT_FALSE(Assignment::make(job, 100).value().has_rounds());
  job.order.kind = LMDBIO_ORDER_WINDOW_SHUFFLE;
  job.order.window = 40;
  const Assignment assignment = Assignment::make(job, 100).value();
  ASSERT_TRUE(assignment.has_rounds());
  EXPECT_EQ(assignment.elements(1).begin, 40u);
}

// 2^40 records, 10,000 ranks, 256 readers.
TEST(Assignment, LargeNumbers) {
  Job job;
  job.order.size = sizeof job.order;
  job.order.batch = 32;
  job.order.end_epoch = LMDBIO_ENDLESS;
  job.order.across_epochs = 1;
  job.ranks = 10000, job.readers = 256;
  job.round_records = std::uint64_t{1} << 22;
  constexpr std::uint64_t kRecords = (std::uint64_t{1} << 40) + 12345;
  const Assignment assignment = Assignment::make(job, kRecords).value();
  const std::uint64_t round = assignment.first_round(1000) + assignment.rounds_per_epoch() - 1;
  EXPECT_EQ(assignment.elements(round).end, kRecords);
  std::vector<Assignment::Need> needs;
  assignment.needs(round, 255, needs);
  ASSERT_FALSE(needs.empty());
  EXPECT_EQ(needs.back().ordinal, kRecords - 1);
  const auto element = static_cast<unsigned __int128>(1000) * kRecords + kRecords - 1;
  EXPECT_EQ(needs.back().rank, static_cast<std::uint32_t>(element % 10000));
}

TEST(Assignment, NamesTheFieldThatIsWrong) {
  const auto wrong = [](const Job& job) {
    const char* field = "";
    EXPECT_EQ(Assignment::make(job, 10, &field).error().raw(), EINVAL);
    return std::string(field).substr(0, std::string(field).find(':'));
  };
  Job job;
  job.order.size = sizeof job.order;
  job.ranks = 2;
  Job bad = job;
  bad.ranks = 0;
  EXPECT_EQ(wrong(bad), "ranks");
  bad = job, bad.readers = 3;
  EXPECT_EQ(wrong(bad), "readers");
  bad = job, bad.round_records = 0;
  EXPECT_EQ(wrong(bad), "round_records");
  bad = job, bad.order.offset = 1, bad.order.step = 2;
  EXPECT_EQ(wrong(bad), "offset, step, block");
  bad = job, bad.order.position = 6;  // of each rank's share
  EXPECT_EQ(wrong(bad), "position");
  bad = job, bad.starts = std::make_shared<std::vector<Position>>(1);
  EXPECT_EQ(wrong(bad), "starts");
  bad = job, bad.starts = std::make_shared<std::vector<Position>>(std::vector<Position>{{0, 5}, {3, 6}});
  EXPECT_EQ(wrong(bad), "position");
}

TEST(ChooseReaders, FirstRanksOfEachNode) {
  using Ranks = std::vector<std::uint32_t>;
  const Ranks nodes{0, 0, 1, 0, 1, 2};
  EXPECT_EQ(choose_readers(nodes, 1), (Ranks{0, 2, 5}));
  EXPECT_EQ(choose_readers(nodes, 2), (Ranks{0, 1, 2, 4, 5}));
  EXPECT_EQ(choose_readers(nodes, 9), (Ranks{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(choose_readers(nodes, 0), (Ranks{0, 2, 5}));
}

}  // namespace
}  // namespace lmdbio::ranks
