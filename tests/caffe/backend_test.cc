// The backend for Caffe against the real LMDB, in a double of Caffe: same values, in all orders that Caffe
// uses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "caffe/data_reader.hpp"
#include "caffe/stock_cursor.hpp"
#include "caffe/util/db_lmdbio.hpp"
#include "tests/support/reader_db.h"
#include "tests/support/rng.h"

namespace lmdbio::testing {
namespace {

std::unique_ptr<caffe::db::LMDBIO> open(const std::string& path) {
  auto db = std::make_unique<caffe::db::LMDBIO>();
  db->Open(path, caffe::db::READ);
  return db;
}

/// `large_value`: bytes on average from which on a shuffling program gets tokens instead of pointers.
std::unique_ptr<caffe::db::LMDBIOCursor> cursor_of(
    const std::string& path, std::uint64_t large_value = caffe::db::LMDBIOCursor::kLargeValue) {
  return std::make_unique<caffe::db::LMDBIOCursor>(caffe::db::LMDBIOSource::Open(path), large_value);
}
constexpr std::uint64_t kAlwaysTokens = 0, kAlwaysPointers = UINT64_MAX;

struct Job {
  std::uint64_t rank = 0, ranks = 1;
  bool shuffled = false;
  unsigned seed = 0;
  std::uint64_t large_value = caffe::db::LMDBIOCursor::kLargeValue;
};

/// A rank with the backend LMDBIO, and the same with LMDB.
class Pair {
 public:
  Pair(const std::string& path, Records& records, const Job& job)
      : job_(job),
        cursor_(cursor_of(path, job.large_value)),
        stock_cursor_(records),
        ours_(caffe_reader(*cursor_, job.rank, job.ranks, job.shuffled, job.seed)),
        stock_(caffe_reader(stock_cursor_, job.rank, job.ranks, job.shuffled, job.seed)) {}

  /// False if they differ.
  bool compare() {
    ++values_;
    return ours_->read_one() == stock_->read_one();
  }
  std::uint64_t values() const { return values_; }
  /// The most streams that the backend may have opened in `records` records.
  bool few_streams(std::uint64_t records) const {
    if (!cursor_->hasTokens()) return cursor_->streams() == 0;
    if (values_ < 2) return cursor_->streams() <= 1;
    const std::uint64_t epochs = (job_.rank + values_ * job_.ranks) / records + 1;
    return cursor_->streams() <= 1 + epochs;
  }
  bool has_tokens() const { return cursor_->hasTokens(); }

 private:
  const Job job_;
  const std::unique_ptr<caffe::db::LMDBIOCursor> cursor_;
  StockCursor stock_cursor_;
  const std::unique_ptr<CaffeReader> ours_, stock_;
  std::uint64_t values_ = 0;
};

struct Database {
  std::unique_ptr<ReaderDb> db = std::make_unique<ReaderDb>();
  Records records;
};

Database make(std::uint64_t n, const std::function<std::size_t(std::uint64_t)>& size) {
  Database d;
  d.db->fill(n, size);
  d.records = d.db->walk();
  return d;
}

std::uint64_t number_in_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// TEST_CONFIGURATIONS and TEST_SEED: more of them, and others.
TEST(CaffeBackend, SameValuesAsStockInRandomConfigurations) {
  const std::uint64_t configurations = number_in_environment("TEST_CONFIGURATIONS", 400);
  const std::uint64_t seed = number_in_environment("TEST_SEED", 1);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::vector<Database> databases;
  for (const std::uint64_t n :
       std::initializer_list<std::uint64_t>{1, 2, 3, 5, 17, 64, 100, 333, 1000, 2500, 5000}) {
    test::Rng sizes(n + seed * 100);
    const std::uint64_t most = n > 1000 ? 600 : n > 100 ? 6000 : 200000;
    databases.push_back(make(n, [&](std::uint64_t) { return static_cast<std::size_t>(sizes.below(most)); }));
  }
  for (std::uint64_t i = 0; i < configurations; ++i) {
    test::Rng rng(seed * 1000000 + i);
    Database& d = databases[rng.below(databases.size())];
    const std::uint64_t n = d.records.size();
    std::vector<std::unique_ptr<Pair>> pairs;
    std::string shown = "configuration " + std::to_string(i) + ": " + std::to_string(n) + " records";
    for (std::uint64_t p = 0; p < 1 + rng.below(2); ++p) {
      Job job{.ranks = 1 + rng.below(64),
              .shuffled = rng.below(2) == 0,
              .seed = static_cast<unsigned>(rng.below(15)),
              .large_value = rng.below(2) == 0 ? kAlwaysTokens : kAlwaysPointers};
      job.rank = rng.below(job.ranks);
      shown += "; rank " + std::to_string(job.rank) + " of " + std::to_string(job.ranks) +
               (!job.shuffled                      ? ""
                : job.large_value == kAlwaysTokens ? ", shuffled, tokens"
                                                   : ", shuffled, pointers");
      pairs.push_back(std::make_unique<Pair>(d.db->dir(), d.records, job));
      ASSERT_EQ(pairs.back()->has_tokens(), job.shuffled && job.large_value == kAlwaysTokens) << shown;
    }
    // Three epochs of the first one, or less.  The cursors take turns at random.
    const std::uint64_t most = 3 * n / (1 + rng.below(64)) + 3;
    const std::uint64_t values = rng.below(4) == 0 ? rng.below(most) : most;
    for (std::uint64_t v = 0; v < values; ++v)
      ASSERT_TRUE(pairs[rng.below(pairs.size())]->compare()) << shown << ", value " << v;
    for (const auto& pair : pairs)
      ASSERT_TRUE(pair->few_streams(n)) << shown << ", " << pair->values() << " values";
  }
}

TEST(CaffeBackend, TwoThreadsReadOneDatabase) {
  Database d = make(500, [](std::uint64_t i) { return static_cast<std::size_t>(i * 37 % 9000); });
  bool same[2] = {true, true};
  const auto read = [&](bool shuffled) {
    for (int turn = 0; turn < 10; ++turn) {
      Pair pair(shuffled ? d.db->dir() : d.db->dir() + "/.", d.records,
                {.shuffled = shuffled, .large_value = turn % 2 == 0 ? kAlwaysTokens : kAlwaysPointers});
      for (int i = 0; i < 700; ++i) same[shuffled] = pair.compare() && same[shuffled];
    }
  };
  std::thread train([&] { read(true); }), test([&] { read(false); });
  train.join();
  test.join();
  EXPECT_TRUE(same[0] && same[1]);
}

TEST(CaffeBackend, KeysAndRepeatedValues) {
  Database d = make(20, [](std::uint64_t) { return std::size_t{3000}; });
  const std::unique_ptr<caffe::db::Cursor> cursor(open(d.db->dir())->NewCursor());
  for (const auto& [key, value] : d.records) {
    ASSERT_TRUE(cursor->valid());
    EXPECT_EQ(cursor->key(), key);
    EXPECT_EQ(cursor->value(), value);
    EXPECT_EQ(cursor->value(), value);
    cursor->Next();
  }
  EXPECT_FALSE(cursor->valid());
  EXPECT_THROW((void)cursor->value(), caffe::Fatal);
}

TEST(CaffeBackend, AnyStepAndAnyPlace) {
  Database d = make(100, [](std::uint64_t) { return std::size_t{3000}; });
  const auto cursor = cursor_of(d.db->dir());
  std::uint64_t at = 0;
  const auto read = [&](std::uint64_t step, int values) {
    for (int i = 0; i < values; ++i) {
      for (std::uint64_t s = 0; s < step; ++s) cursor->Next();
      at += step;
      ASSERT_EQ(cursor->value(), d.records[at].second);
    }
  };
  ASSERT_EQ(cursor->value(), d.records[0].second);
  read(1, 10);
  read(7, 5);
  cursor->SeekToFirst();
  EXPECT_EQ(cursor->value(), d.records[0].second);
  cursor->Next();
  EXPECT_EQ(cursor->value(), d.records[1].second);
  EXPECT_EQ(cursor->streams(), 0u);  // a walk needs none
}

TEST(CaffeBackend, TokensWhereValuesAreLarge) {
  for (const std::size_t size : {100u, 3000u, 20000u}) {
    Database d = make(40, [size](std::uint64_t) { return size; });
    Pair pair(d.db->dir(), d.records, {.shuffled = true});
    EXPECT_EQ(pair.has_tokens(), size == 20000) << size;
  }
}

TEST(CaffeBackend, TokensInTheMidstOfAWalk) {
  Database d = make(30, [](std::uint64_t i) { return static_cast<std::size_t>(i * 1000); });
  const auto cursor = cursor_of(d.db->dir(), kAlwaysTokens);
  for (int i = 0; i < 7; ++i) cursor->Next();
  EXPECT_FALSE(cursor->hasTokens());
  const auto token = cursor->valuePointer();
  ASSERT_TRUE(cursor->hasTokens());
  EXPECT_EQ(cursor->tokenValue(token.first), d.records[7].second);
  cursor->Next();
  EXPECT_EQ(cursor->value(), d.records[8].second);
  EXPECT_EQ(cursor->key(), d.records[8].first);
  for (int i = 8; i < 30; ++i) cursor->Next();
  EXPECT_FALSE(cursor->valid());
  cursor->SeekToFirst();
  EXPECT_EQ(cursor->value(), d.records[0].second);
}

TEST(CaffeBackend, TheNextEpochIsReadAheadOnceItsOrderIsKnown) {
  Database d = make(10, [](std::uint64_t) { return std::size_t{3000}; });
  const auto cursor = cursor_of(d.db->dir(), kAlwaysTokens);
  ShuffledReader reader(*cursor, 0, 1, 1);
  EXPECT_EQ(cursor->streams(), 0u);  // the walk over all records reads nothing
  for (int i = 0; i < 9; ++i) (void)reader.read_one();
  EXPECT_EQ(cursor->streams(), 1u);
  (void)reader.read_one();  // the last one of the epoch: Caffe shuffles again
  EXPECT_EQ(cursor->streams(), 2u);
}

TEST(CaffeBackend, EmptyDatabase) {
  Database d = make(0, [](std::uint64_t) { return std::size_t{0}; });
  const auto cursor = cursor_of(d.db->dir());
  EXPECT_FALSE(cursor->valid());
  cursor->SeekToFirst();
  EXPECT_FALSE(cursor->valid());
  EXPECT_THROW((void)cursor->value(), caffe::Fatal);
}

std::string message_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const caffe::Fatal& e) {
    return e.what();
  }
  return "nothing was wrong";
}

TEST(CaffeBackend, RefusesWhatItCannotDoByName) {
  caffe::db::LMDBIO db;
  EXPECT_THAT(message_of([&] { db.Open("/no/such/database", caffe::db::READ); }),
              ::testing::HasSubstr("/no/such/database"));
  EXPECT_THAT(message_of([&] { db.Open("/tmp/new", caffe::db::NEW); }),
              ::testing::HasSubstr("/tmp/new: the backend LMDBIO only reads"));
  EXPECT_THAT(message_of([&] { (void)db.NewTransaction(); }), ::testing::HasSubstr("only reads"));
}

TEST(CaffeBackend, FailingReadsNameTheFile) {
  Database d = make(200, [](std::uint64_t) { return std::size_t{20000}; });
  Pair pair(d.db->dir(), d.records, {.shuffled = true});
  ASSERT_TRUE(pair.has_tokens() && pair.compare());
  std::filesystem::resize_file(d.db->file(), 1 << 20);
  const std::string message = message_of([&] {
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(pair.compare());
  });
  EXPECT_THAT(message, ::testing::HasSubstr(d.db->dir()));
}

TEST(CaffeBackend, DamagedPagesEndAWalkWithTheFilesName) {
  Database d = make(200, [](std::uint64_t) { return std::size_t{20000}; });
  const auto bytes = std::filesystem::file_size(d.db->file());
  std::filesystem::resize_file(d.db->file(), 1 << 20);
  std::filesystem::resize_file(d.db->file(), bytes);
  const std::string message = message_of([&] {
    const auto cursor = cursor_of(d.db->dir());
    for (; cursor->valid(); cursor->Next()) (void)cursor->value();
  });
  EXPECT_THAT(message, ::testing::HasSubstr(d.db->dir()));
}

}  // namespace
}  // namespace lmdbio::testing
