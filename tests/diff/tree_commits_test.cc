// Comparisons of two snapshots against full walks of both by the real LMDB, on generated databases of every
// kind, between random commits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lmdbio/tree/diff.h"
#include "tests/support/dbgen.h"
#include "tests/support/indexed.h"
#include "tests/support/lmdb_api.h"
#include "tests/support/page_size.h"
#include "tests/support/rng.h"

namespace lmdbio::tree {
namespace {

namespace fs = std::filesystem;
using testing::IndexedFile;

struct Event {
  Change change;
  std::string key, older, newer;
  auto operator<=>(const Event&) const = default;
};
/// The events of each database; the main database has an empty name.
using Events = std::map<std::string, std::vector<Event>>;

/// One database of one snapshot, walked by stock LMDB, in its order.
struct Walked {
  unsigned flags = 0;
  std::vector<std::pair<std::string, std::string>> records;
};
using State = std::map<std::string, Walked>;

std::string text(Bytes b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

class Collect : public DiffVisitor {
 public:
  bool record(const ChangedRecord& r) override {
    events[std::string(r.database)].push_back({r.change, text(r.key), text(r.older), text(r.newer)});
    return true;
  }
  void database(std::string_view name, Change change) override { databases[std::string(name)] = change; }

  Events events;
  std::map<std::string, Change> databases;
};

/// Compares by the definition, without any order.
Events expected(const State& older, const State& newer) {
  Events out;
  std::set<std::string> names;
  for (const auto& [name, walked] : older) names.insert(name);
  for (const auto& [name, walked] : newer) names.insert(name);
  for (const std::string& name : names) {
    static const Walked none;
    const Walked& a = older.contains(name) ? older.at(name) : none;
    const Walked& b = newer.contains(name) ? newer.at(name) : none;
    std::vector<Event> events;
    const bool other_flags = older.contains(name) && newer.contains(name) && !a.records.empty() &&
                             !b.records.empty() && a.flags != b.flags;
    const bool dups = ((a.flags | b.flags) & MDB_DUPSORT) != 0;
    std::map<std::string, std::set<std::string>> in_a, in_b;
    for (const auto& [k, v] : a.records) in_a[k].insert(v);
    for (const auto& [k, v] : b.records) in_b[k].insert(v);
    for (const auto& [k, v] : a.records) {
      if (other_flags || !in_b.contains(k) || (dups && !in_b[k].contains(v)))
        events.push_back({Change::deleted, k, v, ""});
      else if (!dups && !in_b[k].contains(v))
        events.push_back({Change::replaced, k, v, *in_b[k].begin()});
    }
    for (const auto& [k, v] : b.records)
      if (other_flags || !in_a.contains(k) || (dups && !in_a[k].contains(v)))
        events.push_back({Change::inserted, k, "", v});
    if (!events.empty()) out[name] = std::move(events);
  }
  return out;
}

/// The named databases that were made, deleted, or made again with other flags.
std::map<std::string, Change> expected_databases(const State& older, const State& newer) {
  std::map<std::string, Change> out;
  for (const auto& [name, walked] : older) {
    if (!newer.contains(name))
      out[name] = Change::deleted;
    else if (!name.empty() && newer.at(name).flags != walked.flags)
      out[name] = Change::replaced;
  }
  for (const auto& [name, walked] : newer)
    if (!older.contains(name)) out[name] = Change::inserted;
  return out;
}

/// Returns true if these records are in the order of the walk.
bool in_order(const Walked& walked, const std::vector<std::pair<std::string, std::string>>& records) {
  std::size_t at = 0;
  for (const auto& record : records) {
    while (at < walked.records.size() && walked.records[at] != record) ++at;
    if (at++ == walked.records.size()) return false;
  }
  return true;
}

/// Checks that the records of both snapshots arrive in the order of the database's keys.
void expect_order(const State& older, const State& newer, const Events& events) {
  for (const auto& [name, list] : events) {
    std::vector<std::pair<std::string, std::string>> a, b;
    for (const Event& e : list) {
      if (e.change != Change::inserted) a.emplace_back(e.key, e.older);
      if (e.change != Change::deleted) b.emplace_back(e.key, e.newer);
    }
    EXPECT_TRUE(a.empty() || in_order(older.at(name), a)) << name;
    EXPECT_TRUE(b.empty() || in_order(newer.at(name), b)) << name;
  }
}

Events sorted(Events events) {
  for (auto& [name, list] : events) std::sort(list.begin(), list.end());
  return events;
}

class DiffOfStock : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "lmdbio_diff_XXXXXX";
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

  std::vector<std::pair<std::string, std::string>> walk(MDB_txn* txn, MDB_dbi dbi, bool main,
                                                        std::set<std::string>& names) {
    std::vector<std::pair<std::string, std::string>> all;
    MDB_cursor* c;
    EXPECT_EQ(lmdb_.cursor_open(txn, dbi, &c), 0);
    MDB_val k, v;
    for (int rc = lmdb_.cursor_get(c, &k, &v, MDB_FIRST); rc == 0;
         rc = lmdb_.cursor_get(c, &k, &v, MDB_NEXT)) {
      const std::string key(static_cast<char*>(k.mv_data), k.mv_size);
      if (main && names.contains(key)) continue;
      all.emplace_back(key, std::string(static_cast<char*>(v.mv_data), v.mv_size));
    }
    lmdb_.cursor_close(c);
    return all;
  }

  /// Walks all databases of the newest snapshot, in an environment of its own.  `names`: those that may
  /// exist.
  State state(const std::string& d, const std::set<std::string>& names) {
    MDB_env* env;
    MDB_txn* txn;
    EXPECT_EQ(lmdb_.env_create(&env), 0);
    lmdb_.env_set_maxdbs(env, 64);
    EXPECT_EQ(lmdb_.env_open(env, d.c_str(), MDB_RDONLY | MDB_NOLOCK, 0644), 0);
    EXPECT_EQ(lmdb_.txn_begin(env, nullptr, MDB_RDONLY, &txn), 0);
    State out;
    std::set<std::string> there;
    for (const std::string& name : names) {
      MDB_dbi dbi;
      if (lmdb_.dbi_open(txn, name.c_str(), 0, &dbi) != 0) continue;
      there.insert(name);
      Walked& w = out[name];
      std::set<std::string> none;
      (void)lmdb_.dbi_flags(txn, dbi, &w.flags);
      w.records = walk(txn, dbi, false, none);
    }
    MDB_dbi main;
    EXPECT_EQ(lmdb_.dbi_open(txn, nullptr, 0, &main), 0);
    Walked& w = out[""];
    (void)lmdb_.dbi_flags(txn, main, &w.flags);
    w.records = walk(txn, main, true, there);
    lmdb_.txn_abort(txn);
    lmdb_.env_close(env);
    return out;
  }

  void compare(const IndexedFile& file, const Snapshot& older, const State& older_state,
               const Snapshot& newer, const State& newer_state, bool any_order) {
    const Events want = expected(older_state, newer_state);
    const std::map<std::string, Change> want_databases = expected_databases(older_state, newer_state);
    std::uint64_t pages[2];
    for (const bool held : {true, false}) {
      for (const bool reads : {false, true}) {
        SCOPED_TRACE(held ? "held" : "not held");
        const auto side = [&](const Snapshot& s) {
          const window::WindowView view(file.page(0),
                                        static_cast<unsigned>(std::countr_zero(file.page_size())),
                                        file.pages(), testing::version());
          return DiffSide{view, s, reads ? &file.file().buffered() : nullptr};
        };
        Collect got;
        DiffCounters counters;
        DiffProblem problem;
        DiffOptions options;
        options.older_is_held = held;
        const Status st = diff_snapshots(side(older), side(newer), options, got, counters, problem);
        if (any_order && st.raw() == MDB_INCOMPATIBLE) return;
        ASSERT_EQ(st.raw(), 0) << "page " << problem.page << ": " << problem.reason;
        ASSERT_EQ(sorted(got.events), sorted(want));
        expect_order(older_state, newer_state, got.events);
        pages[held] = counters.pages;
        ASSERT_EQ(got.databases, want_databases);
        // One database at a time gives the same records.
        std::set<std::string> names;
        for (const auto& [name, walked] : older_state) names.insert(name);
        for (const auto& [name, walked] : newer_state) names.insert(name);
        for (const std::string& name : names) {
          const std::string_view only = name;
          options.only = &only;
          Collect one;
          ASSERT_EQ(diff_snapshots(side(older), side(newer), options, one, counters, problem).raw(), 0);
          ASSERT_EQ(one.events[name], got.events[name]) << name << ": also the order is the same";
          ASSERT_EQ(one.events.size(), 1u);
          const auto change = want_databases.find(name);
          ASSERT_EQ(one.databases.size(), change != want_databases.end() ? 1u : 0u) << name;
          if (change != want_databases.end()) {
            ASSERT_EQ(one.databases, (std::map<std::string, Change>{*change}));
          }
        }
        const std::string_view no_such = "no such database";
        options.only = &no_such;
        ASSERT_EQ(diff_snapshots(side(older), side(newer), options, got, counters, problem).raw(),
                  MDB_NOTFOUND);
      }
    }
    EXPECT_LE(pages[1], pages[0]);
    changes += [&] {
      std::uint64_t n = 0;
      for (const auto& [name, list] : want) n += list.size();
      return n;
    }();
    for (const auto& [name, change] : want_databases) ++database_changes[static_cast<std::size_t>(change)];
    held_pages += pages[1];
    all_pages += pages[0];
    ++pairs;
  }

  /// Changes random databases in one commit.
  void commit(MDB_env* env, const test::EnvSpec& spec, test::Rng& rng) {
    MDB_txn* txn;
    ASSERT_EQ(lmdb_.txn_begin(env, nullptr, 0, &txn), 0);
    // Stock LMDB may crash if a transaction that drops a database opens another one.
    const bool named = spec.dbs.size() > 1, drop = rng.percent(named ? 40 : 8);
    for (const test::DbSpec& db : spec.dbs) {
      if (db.kind == test::DbKind::kFree || rng.percent(40)) continue;
      MDB_dbi dbi;
      if (test::open_database(lmdb_, txn, db, 0, &dbi) != 0) {
        // Often made again, sometimes of another kind.
        test::DbSpec other = db;
        if (rng.percent(50) && (db.flags & MDB_INTEGERKEY) == 0) other.flags ^= MDB_REVERSEKEY;
        if (test::open_database(lmdb_, txn, other, MDB_CREATE, &dbi) != 0) continue;
      }
      if (drop && (!db.name.empty() || spec.dbs.size() == 1)) {
        ASSERT_EQ(lmdb_.drop(txn, dbi, !db.name.empty() && rng.percent(80)), 0);
        break;
      }
      test::scribble(lmdb_, txn, dbi, db, rng, 1 + rng.below(rng.percent(20) ? 400 : 12));
    }
    ASSERT_EQ(lmdb_.txn_commit(txn), 0);
  }

  void run(const test::EnvSpec& spec, const std::string& d, test::Rng& rng, unsigned rounds) {
    MDB_env* env;
    ASSERT_EQ(lmdb_.env_create(&env), 0);
    lmdb_.env_set_maxdbs(env, 64);
    lmdb_.env_set_mapsize(env, std::size_t{256} << 20);
    ASSERT_EQ(lmdb_.env_open(env, d.c_str(), MDB_NOTLS | MDB_NOSYNC, 0644), 0);
    std::set<std::string> names;
    bool any_order = false;
    for (const test::DbSpec& db : spec.dbs) {
      if (!db.name.empty()) names.insert(db.name);
      any_order = any_order || db.key_comparator >= 0 || db.dup_comparator >= 0;
    }
    for (unsigned round = 0; round < rounds && !HasFatalFailure(); ++round) {
      SCOPED_TRACE(round);
      MDB_txn* held;
      ASSERT_EQ(lmdb_.txn_begin(env, nullptr, MDB_RDONLY, &held), 0);
      const State older_state = state(d, names);
      const Snapshot older = IndexedFile(d + "/data.mdb").snapshot();
      ASSERT_EQ(older.txnid, lmdb_.txn_id(held));
      for (unsigned commits = rng.below(4); commits > 0; --commits) commit(env, spec, rng);
      if (HasFatalFailure()) return;
      const State newer_state = state(d, names);
      const IndexedFile file(d + "/data.mdb");
      compare(file, older, older_state, file.snapshot(), newer_state, any_order);
      lmdb_.txn_abort(held);
    }
    lmdb_.env_close(env);
  }

  std::string dir_;
  test::LmdbApi lmdb_;
  std::uint64_t pairs = 0, changes = 0, held_pages = 0, all_pages = 0, database_changes[3] = {};
};

TEST_F(DiffOfStock, EqualsAFullComparisonOfRandomCommits) {
  for (std::uint64_t seed = 101; pairs < 1000; ++seed) {
    for (test::EnvSpec& spec : test::catalogue(seed)) {
      // One database with a program's own order ends the comparison of all.
      const bool named = spec.dbs.size() > 1;
      if (named && seed % 3 != 0)
        std::erase_if(spec.dbs, [](const test::DbSpec& db) {
          return db.key_comparator >= 0 || db.dup_comparator >= 0;
        });
      SCOPED_TRACE(std::to_string(seed) + " " + spec.name);
      const test::PageSizeOverride page_size(spec.page_size);
      const std::string d = fresh(std::to_string(seed) + spec.name);
      test::generate(lmdb_, spec, d);
      if (!fs::exists(d + "/data.mdb")) continue;
      test::Rng rng(seed);
      run(spec, d, rng, named ? 25 : 6);
      fs::remove_all(d);
      if (HasFatalFailure()) return;
    }
  }
  std::printf(
      "%llu pairs, %llu changes, %llu of databases; pages: %llu held, %llu not held\n",
      static_cast<unsigned long long>(pairs), static_cast<unsigned long long>(changes),
      static_cast<unsigned long long>(database_changes[0] + database_changes[1] + database_changes[2]),
      static_cast<unsigned long long>(held_pages), static_cast<unsigned long long>(all_pages));
  EXPECT_GT(changes, 10 * pairs);
  for (const std::uint64_t n : database_changes) EXPECT_GE(n, 10u);
  EXPECT_LT(held_pages, all_pages);
}

}  // namespace
}  // namespace lmdbio::tree
