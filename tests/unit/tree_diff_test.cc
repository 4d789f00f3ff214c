// Comparisons of two snapshots: which pages they visit, what they answer for copies, damaged pages and
// records behind a key, and how they end early.  tests/diff/tree_commits_test.cc compares the results with
// stock LMDB.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lmdbio/tree/diff.h"
#include "lmdbio/tree/env.h"
#include "tests/support/held_database.h"

namespace lmdbio::tree {
namespace {

using testing::Held;
using testing::IndexedFile;
using testing::key_of;

using Strings = std::vector<std::string>;

TEST(Diff, VisitsOnlyChangedPages) {
  Held db;
  db.write([](Held& d) {
    for (unsigned i = 0; i < 60'000; ++i) d.put(key_of(i), "v");
  });
  db.hold();
  ASSERT_EQ(db.older.dbs[kMainDbi].depth, 3);
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.counters.pages, 0u) << "the roots are the same page";
  db.write([](Held& d) { d.put(key_of(30'000), "w"); });
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.lines.lines, Strings{"00030000=v>w"});
  EXPECT_EQ(db.counters.pages, 6u) << "three pages of each tree";
  db.write([](Held& d) {
    d.del(key_of(10));
    d.put("00059999x", "n");
  });
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.lines.lines, (Strings{"-00000010=v", "00030000=v>w", "+00059999x=n"}));
  EXPECT_LE(db.counters.pages, 2u * (1 + 3 + 3));
  ASSERT_TRUE(db.diff(false).ok());
  EXPECT_EQ(db.lines.lines, (Strings{"-00000010=v", "00030000=v>w", "+00059999x=n"}));
  const std::uint64_t all = db.newer.dbs[kMainDbi].leaf_pages + db.newer.dbs[kMainDbi].branch_pages +
                            db.older.dbs[kMainDbi].leaf_pages + db.older.dbs[kMainDbi].branch_pages;
  EXPECT_EQ(db.counters.pages, all);
}

TEST(Diff, TreesOfDifferentDepths) {
  Held db;
  db.write([](Held& d) { d.put(key_of(0), "v"); });
  db.hold();
  Strings all;
  db.write([&](Held& d) {
    for (unsigned i = 1; i < 60'000; ++i) {
      d.put(key_of(i), "v");
      all.push_back("+" + key_of(i) + "=v");
    }
  });
  for (const bool held : {true, false}) {
    ASSERT_TRUE(db.diff(held).ok());
    EXPECT_EQ(db.older.dbs[kMainDbi].depth, 1);
    EXPECT_EQ(db.newer.dbs[kMainDbi].depth, 3);
    EXPECT_EQ(db.lines.lines, all);
  }
  db.hold();
  db.write([](Held& d) {
    for (unsigned i = 0; i < 60'000; ++i) d.del(key_of(i));
  });
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.lines.lines.size(), 60'000u);
  EXPECT_EQ(db.newer.dbs[kMainDbi].root, format::kNoPage);
}

TEST(Diff, TreesOfDuplicatesShareTheirPages) {
  Held db(MDB_DUPSORT);
  db.write([](Held& d) {
    for (unsigned i = 0; i < 60'000; ++i) d.put("many", key_of(i));
    d.put("few", "1");
    d.put("one", "1");
  });
  db.hold();
  db.write([](Held& d) {
    d.put("many", "new");
    d.put("few", "2");  // a value becomes a sub-page
    d.del("one", "1");
    d.put("one", "2");
  });
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.lines.lines, (Strings{"+few=2", "+many=new", "-one=1", "+one=2"}));
  EXPECT_LE(db.counters.pages, 2u * (1 + 3));
  db.hold();
  db.write([](Held& d) {
    for (unsigned i = 0; i < 3'000; ++i) d.put("few", key_of(i));  // a sub-page becomes a tree
  });
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.lines.lines.size(), 3'000u);
  EXPECT_EQ(db.lines.lines[0], "+few=00000000");
}

TEST(Diff, ValuesThatWereWrittenAgain) {
  Held db;
  const std::string big(100'000, 'b');
  db.write([&](Held& d) {
    d.put("again", big);
    d.put("changed", big);
    d.put("longer", big);
    d.put("same", big);
  });
  db.hold();
  std::string other = big;
  other.back() = 'c';
  db.write([&](Held& d) {
    d.put("again", big);
    d.put("changed", other);
    d.put("longer", big + "x");
  });
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.lines.lines, (Strings{"changed=" + big + ">" + other, "longer=" + big + ">" + big + "x"}));
  EXPECT_EQ(db.counters.compared_bytes, 4 * big.size()) << "only values of one size, on different pages";
  ASSERT_TRUE(db.diff(false).ok());
  EXPECT_EQ(db.lines.lines.size(), 2u);
  EXPECT_EQ(db.counters.compared_bytes, 6 * big.size());
}

TEST(Diff, NamedDatabasesThatComeAndGo) {
  Held db;
  db.write([](Held& d) { d.put("k", "1"); }, "first");
  db.hold();
  db.write([](Held& d) { d.put("k", "2"); }, "second");
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.lines.lines, (Strings{"+second/", "+second/k=2"}));
  const IndexedFile file = db.file();
  format::DbRecord record;
  EXPECT_TRUE(find_database(Held::side(file, db.newer), "second", record, db.problem).ok());
  EXPECT_EQ(record.entries, 1u);
  EXPECT_EQ(find_database(Held::side(file, db.older), "second", record, db.problem).raw(), MDB_NOTFOUND);
  EXPECT_EQ(find_database(Held::side(file, db.older), "f", record, db.problem).raw(), MDB_NOTFOUND);
}

TEST(Diff, ADatabaseThatWasMadeAgainWithOtherFlags) {
  Held db;
  const auto fill = [](Held& d) {
    d.put("ab", "1");
    d.put("ba", "1");
  };
  db.write(fill, "n");
  db.hold();
  db.write([](Held& d) { d.drop(); }, "n");
  db.write(fill, "n", MDB_REVERSEKEY);
  const std::string_view only = "n";
  DiffOptions options;
  for (const bool one : {false, true}) {
    options.only = one ? &only : nullptr;
    for (const bool held : {true, false}) {
      ASSERT_TRUE(db.diff(held, options).ok()) << db.problem.reason;
      EXPECT_EQ(db.lines.lines, (Strings{"!n/", "-n/ab=1", "-n/ba=1", "+n/ba=1", "+n/ab=1"}));
    }
  }
}

TEST(Diff, IntegerKeysOfAnotherSize) {
  Held db(MDB_INTEGERKEY);
  const auto put = [](std::size_t size) {
    return [size](Held& d) {
      for (const char first : {'\1', '\2'}) d.put(first + std::string(size - 1, '\0'), "v");
    };
  };
  db.write(put(4));
  db.hold();
  db.write([](Held& d) {
    for (const char first : {'\1', '\2'}) d.del(first + std::string(3, '\0'));
  });
  db.write(put(8));
  for (const bool held : {true, false}) {
    ASSERT_TRUE(db.diff(held).ok()) << db.problem.reason;
    ASSERT_EQ(db.lines.lines.size(), 4u);
    for (const std::string& line : db.lines.lines) {
      EXPECT_EQ(line.size(), line[0] == '-' ? 7u : 11u);
    }
  }
}

TEST(Diff, ARecordThatBecomesADatabase) {
  Held db;
  db.write([](Held& d) { d.put("x", "plain"); });
  db.hold();
  db.write([](Held& d) { d.del("x"); });
  db.write([](Held& d) { d.put("k", "1"); }, "x");
  for (const bool held : {true, false}) {
    ASSERT_TRUE(db.diff(held).ok());
    EXPECT_EQ(db.lines.lines, (Strings{"-x=plain", "+x/", "+x/k=1"}));
  }
  const IndexedFile file = db.file();
  format::DbRecord record;
  EXPECT_EQ(find_database(Held::side(file, db.older), "x", record, db.problem).raw(), MDB_NOTFOUND);
  EXPECT_TRUE(find_database(Held::side(file, db.newer), "x", record, db.problem).ok());
  db.hold();
  db.write([](Held& d) { d.drop(); }, "x");
  db.write([](Held& d) { d.put("x", "again"); });
  for (const bool held : {true, false}) {
    ASSERT_TRUE(db.diff(held).ok());
    EXPECT_EQ(db.lines.lines, (Strings{"+x=again", "-x/", "-x/k=1"}));
  }
}

TEST(Diff, ACompactedCopyIsTheSame) {
  Held db;
  for (unsigned round = 0; round < 3; ++round)
    db.write([&](Held& d) {
      for (unsigned i = round; i < 5'000; i += 2) d.put(key_of(i * 7919 % 5'000), std::string(i % 50, 'v'));
    });
  db.hold();
  const std::string to = db.dir + "/copy";
  db.copy_compact(to);
  const IndexedFile a = db.file(), b(to + "/data.mdb");
  ASSERT_LT(b.pages(), a.pages());
  ASSERT_TRUE(diff_snapshots(Held::side(a, a.snapshot()), Held::side(b, b.snapshot()), {}, db.lines,
                             db.counters, db.problem)
                  .ok());
  EXPECT_EQ(db.lines.lines, Strings{});
}

TEST(Diff, RecordsBehindAKey) {
  Held db;
  db.write([](Held& d) {
    for (unsigned i = 0; i < 60'000; ++i) d.put(key_of(i), "v");
  });
  db.hold();
  const IndexedFile file = db.file();
  const auto behind = [&](const std::string& key, const std::string& value = {}) {
    db.lines.lines.clear();
    db.counters = {};
    EXPECT_TRUE(find_appended(Held::side(file, db.older), db.older.dbs[kMainDbi], "",
                              Bytes(std::as_bytes(std::span(key))), Bytes(std::as_bytes(std::span(value))),
                              {}, db.lines, db.counters, db.problem)
                    .ok());
    return db.lines.lines.size();
  };
  for (const unsigned last : {0u, 1u, 777u, 30'000u, 59'998u, 59'999u}) {
    EXPECT_EQ(behind(key_of(last)), 59'999 - last);
    if (last < 59'999) {
      EXPECT_EQ(db.lines.lines[0], "+" + key_of(last + 1) + "=v");
    }
    EXPECT_EQ(behind(key_of(last) + "x"), 59'999 - last) << "a key that does not exist";
  }
  EXPECT_EQ(behind(""), 60'000u);
  (void)behind(key_of(59'990));
  EXPECT_LE(db.counters.pages, 4u) << "only the end of the tree";
}

// In another order, the last leaf page may look right, while records on other pages are behind the key.
TEST(Diff, RecordsBehindAKeyInAnotherOrder) {
  Held db(MDB_REVERSEKEY);
  db.write([](Held& d) {
    for (char last = '0'; last <= '9'; ++last)
      for (char first = 'a'; first <= 'z'; ++first) d.put({first, last}, std::string(150, 'v'));
  });
  db.hold();
  const IndexedFile file = db.file();
  const std::string key = "y9";
  const auto behind = [&](unsigned flags) {
    Snapshot s = db.older;
    s.dbs[kMainDbi].flags = static_cast<std::uint16_t>(flags);
    db.lines.lines.clear();
    return find_appended(Held::side(file, s), s.dbs[kMainDbi], "", Bytes(std::as_bytes(std::span(key))), {},
                         {}, db.lines, db.counters, db.problem)
        .raw();
  };
  EXPECT_EQ(behind(MDB_REVERSEKEY), 0);
  EXPECT_EQ(db.lines.lines.size(), 1u);
  EXPECT_EQ(behind(0), MDB_INCOMPATIBLE);
}

TEST(Diff, DuplicatesBehindAValue) {
  Held db(MDB_DUPSORT);
  db.write([](Held& d) {
    for (const char* const v : {"1", "2", "3"}) d.put("a", v);
    d.put("b", "1");
  });
  db.hold();
  const IndexedFile file = db.file();
  const std::string key = "a", value = "1";
  ASSERT_TRUE(find_appended(Held::side(file, db.older), db.older.dbs[kMainDbi], "",
                            Bytes(std::as_bytes(std::span(key))), Bytes(std::as_bytes(std::span(value))), {},
                            db.lines, db.counters, db.problem)
                  .ok());
  EXPECT_EQ(db.lines.lines, (Strings{"+a=2", "+a=3", "+b=1"}));
}

// Stock LMDB adds flags to the main database's own.
TEST(Diff, FlagsOfTheMainDatabaseThatChange) {
  for (const bool held : {true, false}) {
    Held db;
    db.write([](Held& d) { d.put("k", "1"); }, "named");
    db.write([](Held& d) {
      for (unsigned i = 0; i < 500; ++i) d.put(key_of(i), "v");
    });
    db.hold();
    db.set_flags(MDB_REVERSEKEY);
    db.write([](Held&) {});
    ASSERT_TRUE(db.diff(held).ok()) << db.problem.reason;
    ASSERT_NE(db.older.dbs[kMainDbi].flags, db.newer.dbs[kMainDbi].flags);
    EXPECT_EQ(db.lines.lines, Strings{}) << "no record has changed";
    db.write([](Held& d) { d.put("a~", "2"); });
    EXPECT_EQ(db.diff(held).raw(), MDB_INCOMPATIBLE) << "behind the other keys, in another order";
    EXPECT_NE(std::string(db.problem.reason).find("order"), std::string::npos);
    Snapshot dups = db.older;
    dups.dbs[kMainDbi].flags |= MDB_DUPSORT;
    const IndexedFile file = db.file();
    EXPECT_EQ(diff_snapshots(Held::side(file, db.older), Held::side(file, dups), {}, db.lines, db.counters,
                             db.problem)
                  .raw(),
              MDB_INCOMPATIBLE);
    EXPECT_NE(std::string(db.problem.reason).find("flags"), std::string::npos);
  }
}

TEST(Diff, ANamedDatabaseIsFoundOnOnePath) {
  Held db;
  db.write([](Held& d) {
    for (unsigned i = 0; i < 60'000; ++i) d.put(key_of(i), "v");
  });
  db.write([](Held& d) { d.put("k", "1"); }, "named");
  db.hold();
  const IndexedFile file = db.file();
  const std::string_view names[] = {"named", "missing", "00030000"};
  for (const std::string_view name : names) {
    format::DbRecord record;
    DiffCounters counters;
    const Status st = find_database(Held::side(file, db.older), name, record, db.problem, {}, &counters);
    EXPECT_EQ(st.raw(), name == "named" ? 0 : MDB_NOTFOUND);
    EXPECT_EQ(counters.pages, 3u);
  }
  const std::atomic<bool> cancelled{true};
  DiffOptions options;
  options.cancelled = &cancelled;
  format::DbRecord record;
  EXPECT_EQ(find_database(Held::side(file, db.older), "named", record, db.problem, options).raw(), ECANCELED);
  // The names are found if the main database has another order: its keys are sorted from their ends.
  Held other(MDB_REVERSEKEY);
  other.write([](Held& d) {
    for (unsigned i = 0; i < 60'000; ++i) d.put(key_of(i), "v");
  });
  other.set_flags(0);
  other.write([](Held& d) { d.put("k", "1"); }, "named");
  other.hold();
  const IndexedFile reversed = other.file();
  Snapshot s = other.older;
  s.dbs[kMainDbi].flags = 0;
  DiffCounters counters;
  EXPECT_TRUE(find_database(Held::side(reversed, s), "named", record, other.problem, {}, &counters).ok());
  EXPECT_GT(counters.pages, 100u);
  // Records behind a key cannot be found there.
  const std::string key = key_of(100);
  EXPECT_EQ(find_appended(Held::side(reversed, s), s.dbs[kMainDbi], "", Bytes(std::as_bytes(std::span(key))),
                          {}, {}, other.lines, counters, other.problem)
                .raw(),
            MDB_INCOMPATIBLE);
  EXPECT_EQ(other.lines.lines, Strings{});
}

// Many keys whose records of duplicates all point to one large tree.
TEST(Diff, OneTreeForAllKeys) {
  Held db(MDB_DUPSORT);
  db.write([](Held& d) {
    for (unsigned k = 0; k < 60; ++k)
      for (unsigned i = 0; i < 300; ++i) d.put("a" + key_of(k), key_of(i));
    for (unsigned i = 0; i < 60'000; ++i) d.put("many", key_of(i));
  });
  db.hold();
  const IndexedFile file = db.file();
  const std::size_t size = file.pages() * file.page_size();
  std::vector<std::byte> bytes(file.page(0), file.page(0) + size);
  std::vector<std::size_t> records;
  format::DbRecord big{};
  std::size_t big_at = 0;
  for (std::uint64_t p = 2; p < file.pages(); ++p) {
    format::PageView page = format::PageView::none();
    if (!format::PageView::open(format::Version::v09, file.page(p), 4096, format::Pgno{p}, page) ||
        !page.is_leaf() || page.is_leaf2())
      continue;
    for (unsigned i = 0; i < page.count(); ++i) {
      format::Node n;
      unsigned flags;
      std::size_t key, data;
      if (!page.leaf_node(i, n, flags, key, data) || data != sizeof(format::DbRecord) ||
          flags != (format::kSubData | format::kDupData))
        continue;
      records.push_back(static_cast<std::size_t>(n.key() + key - file.page(0)));
      const auto r = load<format::DbRecord>(n.key() + key);
      if (r.entries > big.entries) big = r, big_at = records.back();
    }
  }
  ASSERT_GT(records.size(), 60u);
  ASSERT_GT(big.leaf_pages, 100u);
  for (const std::size_t at : records) std::memcpy(&bytes[at], &bytes[big_at], sizeof big);
  const window::WindowView view(bytes.data(), 12, file.pages(), testing::version());
  for (const bool twice : {true, false}) {
    DiffCounters counters;
    Snapshot none = db.older;
    none.dbs[kMainDbi].root = format::kNoPage;
    EXPECT_EQ(diff_snapshots({view, twice ? db.older : none, nullptr}, {view, db.older, nullptr}, {},
                             db.lines, counters, db.problem)
                  .raw(),
              MDB_CORRUPTED);
    EXPECT_LE(counters.pages, 2 * file.pages() + 2);
  }
}

// Many keys whose values are all in one long run of pages.
TEST(Diff, OneValueForAllKeys) {
  Held db;
  db.write([](Held& d) {
    for (unsigned i = 0; i < 100; ++i) d.put(key_of(i), std::string(5'000, 'v'));
    d.put("long", std::string(2'000'000, 'v'));
  });
  db.hold();
  const IndexedFile file = db.file();
  const std::size_t size = file.pages() * file.page_size();
  const window::WindowView good(file.page(0), 12, file.pages(), testing::version());
  DiffCounters counters;
  ASSERT_TRUE(
      diff_snapshots({good, db.older, nullptr}, {good, db.older, nullptr}, {}, db.lines, counters, db.problem)
          .ok());
  EXPECT_EQ(counters.compared_bytes, 2u * (100 * 5'000 + 2'000'000));
  std::vector<std::byte> bytes(file.page(0), file.page(0) + size);
  // The sizes of a node are 8 bytes before its key, the number of its first page is behind the key.
  struct Found {
    std::size_t at, key;
  };
  std::vector<Found> values;
  std::optional<Found> longest;
  for (std::uint64_t p = 2; p < file.pages(); ++p) {
    format::PageView page = format::PageView::none();
    if (!format::PageView::open(format::Version::v09, file.page(p), 4096, format::Pgno{p}, page) ||
        !page.is_leaf())
      continue;
    for (unsigned i = 0; i < page.count(); ++i) {
      format::Node n;
      unsigned flags;
      std::size_t key, data;
      if (!page.leaf_node(i, n, flags, key, data) || flags != format::kBigData) continue;
      values.push_back({static_cast<std::size_t>(n.key() - file.page(0)), key});
      if (data == 2'000'000) longest = values.back();
    }
  }
  ASSERT_EQ(values.size(), 101u);
  ASSERT_TRUE(longest);
  for (const Found& v : values) {
    std::memcpy(&bytes[v.at - 8], &bytes[longest->at - 8], 4);
    std::memcpy(&bytes[v.at + v.key], &bytes[longest->at + longest->key], 8);
  }
  const window::WindowView view(bytes.data(), 12, file.pages(), testing::version());
  counters = {};
  EXPECT_EQ(
      diff_snapshots({view, db.older, nullptr}, {view, db.older, nullptr}, {}, db.lines, counters, db.problem)
          .raw(),
      MDB_CORRUPTED);
  EXPECT_LE(counters.compared_bytes, 2 * size);
}

}  // namespace
}  // namespace lmdbio::tree
