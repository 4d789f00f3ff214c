// The record index against a full walk by the real LMDB: each ordinal's key and value, on generated databases
// of every kind.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/dbgen.h"
#include "tests/support/indexed.h"
#include "tests/support/lmdb_api.h"
#include "tests/support/page_size.h"
#include "tests/support/rng.h"

namespace lmdbio::reader {
namespace {

namespace fs = std::filesystem;
using testing::IndexedFile;
using Records = std::vector<std::pair<std::string, std::string>>;

class IndexOfStock : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "lmdbio_index_XXXXXX";
    ASSERT_NE(::mkdtemp(dir_.data()), nullptr);
    const char* const lib = std::getenv("TEST_LMDB");
    lmdb_ = test::load_lmdb(lib != nullptr ? lib : "liblmdb.so.0");
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string fresh(const std::string& name) {
    const std::string d = dir_ + "/" + name;
    fs::create_directory(d);
    return d;
  }

  Records walk(MDB_txn* txn, MDB_dbi dbi) {
    Records all;
    MDB_cursor* c;
    EXPECT_EQ(lmdb_.cursor_open(txn, dbi, &c), 0);
    MDB_val k, v;
    int rc = lmdb_.cursor_get(c, &k, &v, MDB_FIRST);
    for (; rc == 0; rc = lmdb_.cursor_get(c, &k, &v, MDB_NEXT))
      all.emplace_back(std::string(static_cast<char*>(k.mv_data), k.mv_size),
                       std::string(static_cast<char*>(v.mv_data), v.mv_size));
    EXPECT_EQ(rc, MDB_NOTFOUND);
    lmdb_.cursor_close(c);
    return all;
  }

  // Both ways to ask, and what the totals say.
  void compare(const IndexedFile& file, const format::DbRecord& record, const Records& walked) {
    IndexRequest request = file.request(record);
    request.chunk_pages = chunk_pages;
    request.threads = chunk_pages != 0 ? 3 : 0;
    const RecordIndex index = testing::built_index(request);
    ASSERT_EQ(index.records(), walked.size());
    EXPECT_TRUE(index.consistent(file.pages(), file.page_size()));
    std::vector<RecordPlace> places(walked.size());
    index.places(0, places);
    std::uint64_t overflow = 0, largest = 0;
    for (std::size_t i = 0; i < walked.size(); ++i) {
      const RecordPlace at = index.place(i);
      ASSERT_EQ(at, places[i]) << i;
      const auto got = file.record(at);
      ASSERT_TRUE(got) << i;
      ASSERT_EQ(got->first, walked[i].first) << i;
      ASSERT_EQ(got->second, walked[i].second) << i;
      if (at.overflow == 0) continue;
      ++overflow;
      largest = std::max<std::uint64_t>(largest, at.value_bytes);
    }
    EXPECT_EQ(index.values_in_overflow(), overflow);
    EXPECT_EQ(index.totals().largest_overflow, largest);
    ++trees;
    records += walked.size();
  }

  /// All databases of an environment, by `comparators` of theirs.
  void compare_all(const std::string& d, const test::EnvSpec* spec) {
    MDB_env* env;
    ASSERT_EQ(lmdb_.env_create(&env), 0);
    lmdb_.env_set_maxdbs(env, 64);
    lmdb_.env_set_mapsize(env, std::size_t{256} << 20);
    ASSERT_EQ(lmdb_.env_open(env, d.c_str(), MDB_RDONLY | MDB_NOLOCK, 0644), 0);
    MDB_txn* txn;
    ASSERT_EQ(lmdb_.txn_begin(env, nullptr, MDB_RDONLY, &txn), 0);
    const IndexedFile file(d + "/data.mdb");
    MDB_dbi main;
    ASSERT_EQ(lmdb_.dbi_open(txn, nullptr, 0, &main), 0);
    const Records of_main = walk(txn, main);
    compare(file, file.snapshot().dbs[1], of_main);
    compare(file, file.snapshot().dbs[0], walk(txn, 0));
    for (const test::DbSpec& db : spec->dbs) {
      if (db.name.empty() || HasFatalFailure()) continue;
      MDB_dbi dbi;
      if (test::open_database(lmdb_, txn, db, 0, &dbi) != 0) continue;
      for (const auto& [key, value] : of_main) {
        if (key != db.name || value.size() != sizeof(format::DbRecord)) continue;
        compare(file, load<format::DbRecord>(std::as_bytes(std::span(value)), 0), walk(txn, dbi));
      }
    }
    lmdb_.txn_abort(txn);
    lmdb_.env_close(env);
  }

  std::string dir_;
  test::LmdbApi lmdb_;
  std::uint64_t chunk_pages = 0;  ///< of a build's threads; 0: its own choice
  std::uint64_t trees = 0, records = 0;
};

TEST_F(IndexOfStock, EqualsAWalkOfGeneratedDatabases) {
  for (std::uint64_t seed = 11; seed < 15; ++seed) {
    for (const test::EnvSpec& spec : test::catalogue(seed)) {
      SCOPED_TRACE(std::to_string(seed) + " " + spec.name);
      const std::string d = fresh(std::to_string(seed) + spec.name);
      test::generate(lmdb_, spec, d);
      if (!fs::exists(d + "/data.mdb")) continue;
      compare_all(d, &spec);
      fs::remove_all(d);
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%llu trees, %llu records\n", static_cast<unsigned long long>(trees),
              static_cast<unsigned long long>(records));
  EXPECT_GE(trees, 200u);
}

// Many chunks of leaf pages, dealt to several threads, and trees of duplicates in them.
TEST_F(IndexOfStock, EqualsAWalkOfLargerOnes) {
  chunk_pages = 37;
  for (const unsigned page_size : {512u, 4096u}) {
    const test::PageSizeOverride pages(page_size);
    for (const bool dups : {false, true}) {
      test::EnvSpec spec;
      spec.name = "large";
      spec.seed = page_size + dups;
      spec.page_size = page_size;
      test::DbSpec db;
      db.kind = dups ? test::DbKind::kDupsort : test::DbKind::kPlain;
      db.flags = dups ? MDB_DUPSORT : 0;
      db.keys = 12000;
      db.value_min = 100;
      db.value_max = dups ? 150 : 220;
      db.dups = dups ? 40 : 1;
      spec.dbs.push_back(db);
      spec.churn = true;
      const std::string d = fresh("large" + std::to_string(page_size) + std::to_string(dups));
      test::generate(lmdb_, spec, d);
      compare_all(d, &spec);
      fs::remove_all(d);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace lmdbio::reader
