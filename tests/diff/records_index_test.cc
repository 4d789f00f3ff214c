// The record index against a full walk by the real LMDB: each ordinal's key and value, on generated databases
// of every kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/records/index_parts.h"
#include "tests/support/dbgen.h"
#include "tests/support/indexed.h"
#include "tests/support/lmdb_api.h"
#include "tests/support/page_size.h"
#include "tests/support/rng.h"

namespace lmdbio::records {
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

  // The same index made in parts, each of which went through its bytes.
  void compare_parts(IndexRequest request, std::uint64_t parts, const RecordIndex& whole,
                     const std::vector<RecordLocation>& locations) {
    auto bytes = std::make_shared<std::vector<std::vector<std::uint64_t>>>();
    std::vector<RecordIndex> all;
    IndexTotals totals;
    for (std::uint64_t p = 0; p < parts; ++p) {
      request.part = p;
      request.parts = parts;
      const RecordIndex part = testing::built_index(request);
      const IndexPartSizes sizes = sizes_of(part);
      auto& to = bytes->emplace_back(sizes.bytes() / 8);
      write_part(part, std::as_writable_bytes(std::span(to)));
      RecordIndex view;
      ASSERT_TRUE(view_part(sizes, std::as_bytes(std::span(to)), view));
      ASSERT_EQ(view.memory_bytes(), sizeof view) << "a view owns nothing";
      ASSERT_FALSE(sizes.bytes() != 0 && view_part(sizes, std::as_bytes(std::span(to)).subspan(8), view));
      totals.records += part.totals().records;
      totals.branch_pages += part.totals().branch_pages;
      totals.leaf_pages += part.totals().leaf_pages;
      totals.overflow_values += part.totals().overflow_values;
      totals.overflow_bytes += part.totals().overflow_bytes;
      totals.largest_overflow = std::max(totals.largest_overflow, part.totals().largest_overflow);
      ASSERT_TRUE(view_part(sizes, std::as_bytes(std::span(to)), view));
      all.push_back(std::move(view));
    }
    EXPECT_EQ(totals, whole.totals()) << parts << " parts: each page is in one of them";
    IndexParts joined(whole.records());
    const std::atomic<bool> never{false};
    std::string why;
    EXPECT_EQ(joined.await(never, why).raw(), whole.records() != 0 ? EAGAIN : 0);
    joined.set(std::move(all), bytes);
    EXPECT_TRUE(joined.await(never, why).ok());
    std::vector<RecordLocation> again(locations.size());
    joined.locations(0, again);
    ASSERT_EQ(again, locations) << parts << " parts";
    for (std::size_t first = 1; first < locations.size(); first = first * 3 + 1) {
      again.resize(std::min<std::size_t>(locations.size() - first, 50));
      joined.locations(first, again);
      ASSERT_TRUE(
          std::equal(again.begin(), again.end(), locations.begin() + static_cast<std::ptrdiff_t>(first)));
    }
  }

  // Both ways to ask, and what the totals say.
  void compare(const IndexedFile& file, const format::DbRecord& record, const Records& walked) {
    IndexRequest request = file.request(record);
    request.chunk_pages = chunk_pages;
    request.threads = chunk_pages != 0 ? 3 : 0;
    const RecordIndex index = testing::built_index(request);
    ASSERT_EQ(index.records(), walked.size());
    EXPECT_TRUE(index.consistent(file.pages(), file.page_size()));
    std::vector<RecordLocation> locations(walked.size());
    index.locations(0, locations);
    std::uint64_t overflow = 0, largest = 0;
    for (std::size_t i = 0; i < walked.size(); ++i) {
      const RecordLocation at = index.location(i);
      ASSERT_EQ(at, locations[i]) << i;
      const auto got = file.record(at);
      ASSERT_TRUE(got) << i;
      ASSERT_EQ(got->first, walked[i].first) << i;
      ASSERT_EQ(got->second, walked[i].second) << i;
      if (at.overflow == 0) continue;
      ++overflow;
      largest = std::max<std::uint64_t>(largest, at.value_bytes);
    }
    for (const std::uint64_t parts : {std::uint64_t{1}, std::uint64_t{3}, index.leaf_pages() + 2})
      if (parts <= 3 || parts < 40) compare_parts(request, parts, index, locations);
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

// Many chunks of leaf pages, divided between several threads, and trees of duplicates in them.
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
}  // namespace lmdbio::records
