// A database that stock LMDB writes, with an older snapshot held, and its comparison with the newest one.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/tree/diff.h"
#include "tests/support/indexed.h"
#include "tests/support/lmdb_api.h"

namespace lmdbio::testing {

inline std::string text(Bytes b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

/// Writes each change as one line: +key=value, -key=value, or key=old>new.
class Lines : public tree::DiffVisitor {
 public:
  bool record(const tree::ChangedRecord& r) override {
    const std::string key = (r.database.empty() ? "" : std::string(r.database) + "/") + text(r.key);
    if (r.change == tree::Change::inserted) lines.push_back("+" + key + "=" + text(r.newer));
    if (r.change == tree::Change::deleted) lines.push_back("-" + key + "=" + text(r.older));
    if (r.change == tree::Change::replaced) lines.push_back(key + "=" + text(r.older) + ">" + text(r.newer));
    if (r.page != 0) places[text(r.key)] = {r.page, r.index};
    if (throws) throw std::runtime_error("thrown by the visitor");
    return lines.size() < most;
  }
  void database(std::string_view name, tree::Change change) override {
    lines.push_back((change == tree::Change::inserted   ? "+"
                     : change == tree::Change::replaced ? "!"
                                                        : "-") +
                    std::string(name) + "/");
  }
  void dropped_leaf(std::uint64_t page) override { dropped.insert(page); }
  std::vector<std::string> lines;
  std::map<std::string, std::pair<std::uint64_t, unsigned>> places;  ///< page and entry, by key
  std::set<std::uint64_t> dropped;                                   ///< leaf pages
  std::size_t most = SIZE_MAX;
  bool throws = false;
};

/// A database that stock LMDB writes, with its older snapshot held.
class Held {
 public:
  explicit Held(unsigned flags = 0) : lmdb_(test::load_lmdb("liblmdb.so.0")), flags_(flags) {
    dir = ::testing::TempDir() + "lmdbio_diff_XXXXXX";
    EXPECT_NE(::mkdtemp(dir.data()), nullptr);
    EXPECT_EQ(lmdb_.env_create(&env_), 0);
    lmdb_.env_set_maxdbs(env_, 4);
    lmdb_.env_set_mapsize(env_, std::size_t{1} << 30);
    EXPECT_EQ(lmdb_.env_open(env_, dir.c_str(), MDB_NOTLS | MDB_NOSYNC, 0644), 0);
  }
  ~Held() {
    if (reader_ != nullptr) lmdb_.txn_abort(reader_);
    lmdb_.env_close(env_);
    std::filesystem::remove_all(dir);
  }
  /// Writes in one commit.  `name`: of the database; null: the main one.
  void write(const std::function<void(Held&)>& body, const char* name = nullptr, unsigned more_flags = 0) {
    ASSERT_EQ(lmdb_.txn_begin(env_, nullptr, 0, &txn_), 0);
    ASSERT_EQ(lmdb_.dbi_open(txn_, name, flags_ | more_flags | MDB_CREATE, &dbi_), 0);
    body(*this);
    ASSERT_EQ(lmdb_.txn_commit(txn_), 0);
  }
  void put(const std::string& key, const std::string& value) {
    MDB_val k{key.size(), const_cast<char*>(key.data())}, v{value.size(), const_cast<char*>(value.data())};
    ASSERT_EQ(lmdb_.put(txn_, dbi_, &k, &v, 0), 0);
  }
  void del(const std::string& key, const std::string& value = {}) {
    MDB_val k{key.size(), const_cast<char*>(key.data())}, v{value.size(), const_cast<char*>(value.data())};
    ASSERT_EQ(lmdb_.del(txn_, dbi_, &k, value.empty() ? nullptr : &v), 0);
  }
  void drop() { ASSERT_EQ(lmdb_.drop(txn_, dbi_, 1), 0); }
  /// Holds the newest snapshot as the older one.
  void hold() {
    if (reader_ != nullptr) lmdb_.txn_abort(reader_);
    ASSERT_EQ(lmdb_.txn_begin(env_, nullptr, MDB_RDONLY, &reader_), 0);
    older = file().snapshot();
  }
  /// Sets the flags with which write() opens a database.
  void set_flags(unsigned flags) { flags_ = flags; }
  void copy_compact(const std::string& to) {
    std::filesystem::create_directory(to);
    ASSERT_EQ(lmdb_.env_copy2(env_, to.c_str(), MDB_CP_COMPACT), 0);
  }
  IndexedFile file() const { return IndexedFile(dir + "/data.mdb"); }

  Status diff(bool held = true, tree::DiffOptions options = {}) {
    const IndexedFile now = file();
    newer = now.snapshot();
    options.older_is_held = held;
    counters = {};
    lines.lines.clear();
    return tree::diff_snapshots(side(now, older), side(now, newer), options, lines, counters, problem);
  }
  static tree::DiffSide side(const IndexedFile& f, const tree::Snapshot& s) {
    return {window::WindowView(f.page(0), 12, f.pages(), version()), s, &f.file().buffered()};
  }

  std::string dir;
  tree::Snapshot older, newer;
  Lines lines;
  tree::DiffCounters counters;
  tree::DiffProblem problem;

 private:
  test::LmdbApi lmdb_;
  unsigned flags_;
  MDB_env* env_ = nullptr;
  MDB_txn *txn_ = nullptr, *reader_ = nullptr;
  MDB_dbi dbi_ = 0;
};

inline std::string key_of(unsigned i) {
  char t[16];
  (void)std::snprintf(t, sizeof t, "%08u", i);
  return t;
}

}  // namespace lmdbio::testing
