// Ranks that make an index together all get the same one, whatever the order of messages; or come to the same
// end without it.
#include <gtest/gtest.h>
#include <lmdb.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/ranks/index_exchange.h"
#include "lmdbio/records/index_packer.h"
#include "tests/support/fake_ranks.h"

namespace lmdbio::ranks {
namespace {

using Outcome = IndexExchange::Outcome;
using records::RecordIndex;
using records::RecordLocation;

/// Leaf page 10 + i has 1 + i % 7 records.
constexpr std::uint64_t kFirstLeaf = 10;
std::uint32_t records_of(std::uint64_t leaf) { return static_cast<std::uint32_t>(1 + leaf % 7); }

/// Leaf pages [begin, end) as a tree has them.
RecordIndex index_of(std::uint64_t begin, std::uint64_t end) {
  records::Chunk chunk;
  for (std::uint64_t i = begin; i < end; ++i) {
    const std::size_t n = chunk.rows.blocks.size();
    chunk.by_leaf.push_back({n, n + 1});
    records::BlockRow row;
    row.leaf = kFirstLeaf + i;
    row.records = records_of(i);
    chunk.rows.blocks.push_back(row);
  }
  records::IndexPacker packer;
  packer.append(chunk);
  packer.totals.leaf_pages = end - begin;
  return packer.finish();
}

class FakeWork final : public IndexWork {
 public:
  FakeWork(RecordIndex index, std::uint64_t polls, Status status)
      : index_(std::move(index)), polls_(polls), status_(status) {}
  bool done() noexcept override { return polls_ == 0 || --polls_ == 0; }
  const RecordIndex* made(Status& st, std::string& why) override {
    st = status_;
    why = st.ok() ? "" : "page 7 is damaged";
    return st.ok() ? &index_ : nullptr;
  }

 private:
  const RecordIndex index_;
  std::uint64_t polls_;
  const Status status_;
};

class Ranks {
 public:
  Ranks(std::vector<std::uint32_t> of_ranks, std::uint64_t leaves, std::uint64_t seed, bool share = true)
      : nodes(std::move(of_ranks)),
        leaves_(leaves),
        rng_(seed),
        network(static_cast<std::uint32_t>(nodes.size()), seed) {
    for (std::uint64_t i = 0; i < leaves; ++i) records += records_of(i);
    for (std::uint32_t r = 0; r < nodes.size(); ++r) {
      IndexExchange::Settings s;
      s.nodes = nodes;
      s.records = records;
      s.host = "host" + std::to_string(nodes[r]);
      s.name = "db";
      s.share = share;
      all.push_back(std::make_unique<IndexExchange>(s, network.rank(r)));
      works.push_back(nullptr);
      if (all[r]->makes_part()) works[r] = part(r, {});
    }
  }
  std::unique_ptr<IndexWork> part(std::uint32_t r, Status st, std::uint64_t fewer = 0) {
    const std::uint64_t p = all[r]->part(), n = all[r]->parts();
    const std::uint64_t begin = leaves_ * p / n, end = leaves_ * (p + 1) / n;
    return std::make_unique<FakeWork>(index_of(begin, end - std::min(fewer, end - begin)), rng_.below(20),
                                      st);
  }
  /// Until all are closed.
  void run() {
    for (unsigned i = 0; i < 3000; ++i) {
      bool closed = true;
      for (std::uint32_t r = 0; r < all.size(); ++r) {
        (void)network.rank(r).poll();
        ASSERT_TRUE(all[r]->progress(works[r].get()).ok());
        if (all[r]->has_part() || (rng_.below(1000) < leaves_of_1000 && !all[r]->needs_work()))
          works[r].reset();
        closed = closed && all[r]->closed();
      }
      if (!closed) continue;
      EXPECT_EQ(network.open(), 0u);
      return;
    }
    FAIL() << "something is under way";
  }
  void expect_whole() {
    std::vector<RecordLocation> expected(records), got(records);
    index_of(0, leaves_).locations(0, expected);
    for (std::uint32_t r = 0; r < all.size(); ++r) {
      ASSERT_EQ(all[r]->outcome(), Outcome::whole) << "rank " << r;
      records::IndexParts locations(records);
      std::shared_ptr<const void> keep;
      std::vector<RecordIndex> parts = all[r]->take(keep);
      locations.set(std::move(parts), std::move(keep));
      all[r].reset();  // what it gave lives on
      locations.locations(0, got);
      ASSERT_EQ(got, expected) << "rank " << r;
    }
  }

  const std::vector<std::uint32_t> nodes;
  std::uint64_t records = 0;
  std::uint64_t leaves_of_1000 = 0;  ///< calls

 private:
  const std::uint64_t leaves_;
  test::Rng rng_;

 public:
  test::FakeNetwork network;
  std::vector<std::unique_ptr<IndexExchange>> all;
  std::vector<std::unique_ptr<IndexWork>> works;
};

/// The number of a node is that of its first rank, in order.
std::vector<std::uint32_t> random_nodes(test::Rng& rng) {
  const std::uint64_t ranks = 1 + rng.below(9);
  std::vector<std::uint32_t> nodes;
  std::uint32_t known = 0;
  for (std::uint64_t r = 0; r < ranks; ++r) {
    const auto node = static_cast<std::uint32_t>(rng.below(known + 1));
    nodes.push_back(node);
    known = std::max(known, node + 1);
  }
  return nodes;
}

TEST(IndexExchange, AllRanksHaveTheWholeIndex) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    // With shared memory, and where none can be had.
    Ranks ranks(random_nodes(rng), rng.below(3) == 0 ? rng.below(5) : rng.below(2000), seed, rng.percent(50));
    ranks.run();
    if (HasFatalFailure()) return;
    ranks.expect_whole();
    if (HasFatalFailure()) return;
  }
}

TEST(IndexExchange, EachPartIsSentOnceToEachOtherNode) {
  Ranks ranks({0, 0, 1, 1, 2, 2}, 2000, 7);
  ranks.run();
  std::uint64_t parts = 0;
  for (std::uint64_t p = 0; p < 3; ++p)
    parts += 2 * records::sizes_of(index_of(2000 * p / 3, 2000 * (p + 1) / 3)).bytes();
  EXPECT_GT(ranks.network.bytes, parts);
  // Headers, and what ranks of a node say to each other.
  EXPECT_LT(ranks.network.bytes, parts + 6 * 1024 + 3 * 1024);
  ranks.expect_whole();
}

TEST(IndexExchange, OneFailureIsThatOfAllRanks) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Ranks ranks({0, 1, 1, 0, 2}, 100, seed);
    ranks.works[4] = ranks.part(4, Status::from_mdb(MDB_CORRUPTED));
    ranks.run();
    for (const auto& one : ranks.all) {
      EXPECT_EQ(one->outcome(), Outcome::failed);
      EXPECT_EQ(one->code(), MDB_CORRUPTED);
      EXPECT_EQ(one->why(), "rank 4 (host2): page 7 is damaged");
    }
  }
}

TEST(IndexExchange, PartsThatDoNotMakeTheWholeAreDamage) {
  Ranks ranks({0, 0, 1}, 100, 3);
  ranks.works[2] = ranks.part(2, {}, 1);
  ranks.run();
  for (const auto& one : ranks.all) {
    EXPECT_EQ(one->outcome(), Outcome::failed);
    EXPECT_EQ(one->code(), MDB_CORRUPTED);
    EXPECT_NE(one->why().find("number of entries: " + std::to_string(ranks.records) + " in the record"),
              std::string::npos)
        << one->why();
  }
}

// A rank may close its reader at any time, but for the while in which others count on its part.
TEST(IndexExchange, RanksThatLeaveMeanwhile) {
  unsigned whole = 0, alone = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    Ranks ranks(random_nodes(rng), 200, seed, rng.percent(50));
    ranks.leaves_of_1000 = rng.below(100);
    ranks.run();
    if (HasFatalFailure()) return;
    if (ranks.all[0]->outcome() == Outcome::whole) {
      ++whole;
      ranks.expect_whole();
    } else {
      ++alone;
      for (const auto& one : ranks.all) EXPECT_EQ(one->outcome(), Outcome::alone);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(whole, 50u);
  EXPECT_GT(alone, 50u);
}

TEST(IndexExchange, WithoutTheRankOfAPartEachMakesItsOwn) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Ranks ranks({0, 1, 0, 1, 2, 2}, 100, seed);
    ranks.works[1].reset();
    // That is no failure, whatever else fails.
    if (seed % 2 == 0) ranks.works[0] = ranks.part(0, Status::from_errno(EIO));
    ranks.run();
    for (const auto& one : ranks.all) EXPECT_EQ(one->outcome(), Outcome::alone);
  }
}

}  // namespace
}  // namespace lmdbio::ranks
