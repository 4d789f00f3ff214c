// Files in the format of LMDB 1.0 (tests/support/format_10.h) against stock LMDB 0.9 on the same records.
#include "tests/support/format_10.h"

#include <gtest/gtest.h>
#include <lmdb.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/check/check.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/diff.h"
#include "lmdbio/tree/env.h"
#include "tests/support/dbgen.h"
#include "tests/support/file_image.h"
#include "tests/support/indexed.h"
#include "tests/support/temp_file.h"

namespace lmdbio {
namespace {

namespace fs = std::filesystem;
using test::DbSpec;
using test::EnvSpec;
using testing::ExactBytes;
using testing::FileImage;

constexpr std::size_t kGuard = 16;  // stock may read so many bytes around keys
constexpr format::Version kV = format::Version::v10;

unsigned rounds(const char* name, unsigned otherwise) {
  const char* const set = std::getenv(name);
  return set != nullptr ? static_cast<unsigned>(std::atoi(set)) : otherwise;
}

std::string text(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

/// Bytes for a call, between zeros.
struct Arg {
  explicit Arg(const std::string& bytes) : all(bytes.size() + 2 * kGuard, '\0'), size(bytes.size()) {
    if (size != 0) std::memcpy(all.data() + kGuard, bytes.data(), size);
  }
  MDB_val val() { return {size, all.data() + kGuard}; }
  std::vector<char> all;
  std::size_t size;
};

/// Stock LMDB on an environment.
class Stock {
 public:
  Stock(const test::LmdbApi& lmdb, const std::string& dir) : lmdb_(lmdb) {
    EXPECT_EQ(lmdb.env_create(&env_), 0);
    lmdb.env_set_maxdbs(env_, 64);
    EXPECT_EQ(lmdb.env_open(env_, dir.c_str(), MDB_RDONLY | MDB_NOLOCK, 0644), 0);
    EXPECT_EQ(lmdb.txn_begin(env_, nullptr, MDB_RDONLY, &txn), 0);
  }
  ~Stock() {
    lmdb_.txn_abort(txn);
    lmdb_.env_close(env_);
  }
  Stock(const Stock&) = delete;
  Stock& operator=(const Stock&) = delete;
  MDB_txn* txn = nullptr;

 private:
  const test::LmdbApi& lmdb_;
  MDB_env* env_ = nullptr;
};

/// The engine on a file in memory.
struct Ours {
  Ours(const std::vector<std::byte>& image, int patch)
      : bytes(image), meta(format::parse_meta(bytes.bytes()).value()), page_size(format::page_size(meta)) {
    const tree::Env::Options options{
        {page_size, kV}, image.size(), 64, false, tree::Behaviour::of_release(patch)};
    env = std::move(tree::Env::over(bytes.bytes(), options).value());
    txn = std::make_unique<tree::Txn>(*env);
    begin();
  }
  bool begin() {
    const tree::MetaSource source(env->metas().records);
    std::uint64_t txnid = 0;
    return source.renew(txnid).ok() && txn->begin(txnid, source).ok();
  }
  /// Opens a database with its comparison functions.
  int open(const DbSpec& d, MDB_dbi& dbi) {
    const Status st = txn->open_dbi(d.name.empty() ? nullptr : d.name.c_str(), d.flags, dbi);
    if (!st.ok()) return st.raw();
    if (d.key_comparator >= 0)
      env->dbx(dbi).key_order = format::Comparator::of_user(test::comparator(d.key_comparator));
    if (d.dup_comparator >= 0)
      env->dbx(dbi).dup_order = format::Comparator::of_user(test::comparator(d.dup_comparator));
    return 0;
  }
  ExactBytes bytes;
  format::MetaRecord meta;
  std::size_t page_size;
  std::unique_ptr<tree::Env> env;
  std::unique_ptr<tree::Txn> txn;
};

class Format10 : public ::testing::Test {
 protected:
  Format10() : lmdb_(test::load_lmdb("liblmdb.so.0")) {
    dir_ = ::testing::TempDir() + "lmdbio_format10_XXXXXX";
    EXPECT_NE(::mkdtemp(dir_.data()), nullptr);
  }
  ~Format10() override { fs::remove_all(dir_); }

  /// Calls body(spec, directory with the file of 0.9, the file of 1.0).
  template <class Body>
  void each(std::uint64_t first_seed, std::uint64_t end_seed, std::initializer_list<std::size_t> page_sizes,
            Body&& body) {
    for (std::uint64_t seed = first_seed; seed < end_seed; ++seed)
      for (const EnvSpec& spec : test::catalogue(seed)) {
        const std::string d = dir_ + "/" + std::to_string(seed) + spec.name;
        fs::create_directory(d);
        test::generate(lmdb_, spec, d);
        if (!fs::exists(d + "/data.mdb") || fs::file_size(d + "/data.mdb") == 0) continue;
        for (const std::size_t page_size : page_sizes) {
          SCOPED_TRACE(std::to_string(seed) + " " + spec.name + " " + std::to_string(page_size));
          body(spec, d, test::in_format_10(lmdb_, d, page_size, seed));
          if (HasFatalFailure()) return;
        }
        fs::remove_all(d);
      }
  }
  std::vector<std::pair<std::string, std::string>> walk(MDB_txn* txn, MDB_dbi dbi) {
    std::vector<std::pair<std::string, std::string>> out;
    MDB_cursor* c = nullptr;
    EXPECT_EQ(lmdb_.cursor_open(txn, dbi, &c), 0);
    MDB_val k, v;
    for (int rc = lmdb_.cursor_get(c, &k, &v, MDB_FIRST); rc == 0; rc = lmdb_.cursor_get(c, &k, &v, MDB_NEXT))
      out.emplace_back(text(k), text(v));
    lmdb_.cursor_close(c);
    return out;
  }
  /// The databases of an environment, without the empty one of an environment that was never written.
  static std::vector<DbSpec> databases(const EnvSpec& spec) {
    std::vector<DbSpec> all = spec.dbs;
    if (std::none_of(all.begin(), all.end(), [](const DbSpec& d) { return d.name.empty(); }))
      all.insert(all.begin(), DbSpec());
    return all;
  }

  std::string dir_;
  test::LmdbApi lmdb_;
};

// Not MDB_PREV: up to 0.9.26, stock reads beyond the last slot of a page with duplicates.
constexpr MDB_cursor_op kStarts[] = {MDB_FIRST, MDB_LAST, MDB_NEXT, MDB_SET, MDB_SET_KEY, MDB_SET_RANGE};
constexpr MDB_cursor_op kMoves[] = {MDB_NEXT,       MDB_NEXT,      MDB_NEXT,          MDB_PREV,
                                    MDB_PREV,       MDB_NEXT_DUP,  MDB_PREV_DUP,      MDB_NEXT_NODUP,
                                    MDB_PREV_NODUP, MDB_FIRST_DUP, MDB_LAST_DUP,      MDB_GET_CURRENT,
                                    MDB_FIRST,      MDB_LAST,      MDB_SET,           MDB_SET_KEY,
                                    MDB_SET_RANGE,  MDB_GET_BOTH,  MDB_GET_BOTH_RANGE};

// FORMAT_CALLS: calls in each database and page size.
TEST_F(Format10, CallsReturnWhatStockReturnsOn09) {
  const unsigned calls = rounds("FORMAT_CALLS", 400);
  std::uint64_t made = 0, found = 0, trees = 0;
  each(21, 24, {512, 4096, 65536}, [&](const EnvSpec& spec, const std::string& d, const auto& image) {
    Stock stock(lmdb_, d);
    Ours ours(image, lmdb_.patch);
    std::set<std::string> names;
    for (const DbSpec& db : spec.dbs) names.insert(db.name);
    for (const DbSpec& db : databases(spec)) {
      if (db.kind == test::DbKind::kFree) continue;
      SCOPED_TRACE("database " + db.name);
      MDB_dbi a = 0, b = 0;
      ASSERT_EQ(test::open_database(lmdb_, stock.txn, db, 0, &a), 0);
      ASSERT_EQ(ours.open(db, b), 0);
      const auto records = walk(stock.txn, a);
      const bool dups = (db.flags & MDB_DUPSORT) != 0;
      const auto is_name = [&](const std::string& key) {
        return db.name.empty() && !key.empty() && names.count(key) != 0;
      };
      test::Rng rng(spec.seed + ours.page_size);
      MDB_cursor* c = nullptr;
      std::unique_ptr<tree::Cursor> o;
      bool fresh = true;
      for (unsigned n = 0; n < calls; ++n, ++made) {
        if (fresh) {
          if (c != nullptr) lmdb_.cursor_close(c);
          ASSERT_EQ(lmdb_.cursor_open(stock.txn, a, &c), 0);
          o = std::make_unique<tree::Cursor>(*ours.txn, b);
        }
        const MDB_cursor_op op =
            fresh ? kStarts[rng.below(std::size(kStarts))] : kMoves[rng.below(std::size(kMoves))];
        std::string key, data;
        if (!records.empty() && rng.percent(70)) {
          std::tie(key, data) = records[rng.below(records.size())];
        } else {
          key = test::random_key(db, rng);
          data = dups ? test::random_value(db, rng) : "";
        }
        if (!dups) data.clear();
        Arg key_a(key), data_a(data), key_b(is_name(key) ? FileImage::name_key(key, kV) : key), data_b(data);
        MDB_val ka = key_a.val(), va = data_a.val(), kb = key_b.val(), vb = data_b.val();
        const bool lookup = rng.percent(15);
        const int want = lookup ? lmdb_.get(stock.txn, a, &ka, &va) : lmdb_.cursor_get(c, &ka, &va, op);
        const int got = lookup ? ours.txn->get(b, kb, vb).raw() : o->get(&kb, &vb, op).raw();
        ASSERT_EQ(got, want) << "call " << n << (lookup ? " get" : " op ") << op << " key of " << key.size();
        if (!lookup) fresh = want != 0;
        if (want != 0) continue;
        ++found;
        std::string key_got = text(kb);
        const bool named = is_name(text(ka));
        if (named) {
          ASSERT_EQ(key_got.back(), '\0');
          key_got.pop_back();
        }
        // Whether these set the key depends on how the duplicates are stored.
        const bool may_keep_key = !lookup && (op == MDB_FIRST_DUP || op == MDB_LAST_DUP);
        if (!may_keep_key) {
          ASSERT_EQ(key_got, text(ka)) << "call " << n << " op " << op;
        }
        if (!named) {
          ASSERT_EQ(text(vb), text(va)) << "call " << n << " op " << op;
        }
        if (lookup || !dups || !rng.percent(20)) continue;
        std::size_t count_a = 0, count_b = 0;
        ASSERT_EQ(lmdb_.cursor_count(c, &count_a), o->count(count_b).raw());
        ASSERT_EQ(count_a, count_b);
      }
      if (c != nullptr) lmdb_.cursor_close(c);
      ++trees;
    }
  });
  std::printf("%llu calls, %llu records found, %llu databases\n", static_cast<unsigned long long>(made),
              static_cast<unsigned long long>(found), static_cast<unsigned long long>(trees));
  EXPECT_GT(trees, 200u);
  EXPECT_GT(found, made / 4);
}

// Whole pages of duplicates of one size: together, they are all values.
TEST_F(Format10, PagesOfDuplicatesHaveAllOfThem) {
  std::uint64_t pages = 0;
  each(21, 23, {512, 65536}, [&](const EnvSpec& spec, const std::string& d, const auto& image) {
    Stock stock(lmdb_, d);
    Ours ours(image, lmdb_.patch);
    for (const DbSpec& db : databases(spec)) {
      if ((db.flags & MDB_DUPFIXED) == 0) continue;
      MDB_dbi a = 0, b = 0;
      ASSERT_EQ(test::open_database(lmdb_, stock.txn, db, 0, &a), 0);
      ASSERT_EQ(ours.open(db, b), 0);
      std::string want, got;
      for (const auto& r : walk(stock.txn, a)) want += r.second;
      tree::Cursor c(*ours.txn, b);
      MDB_val k{}, v{};
      for (Status st = c.get(&k, &v, MDB_FIRST); st.ok(); st = c.get(&k, &v, MDB_NEXT_NODUP)) {
        std::size_t values = 0;
        ASSERT_TRUE(c.count(values).ok());
        if (values == 1) {  // not a page
          got += text(v);
          continue;
        }
        for (Status page = c.get(&k, &v, MDB_GET_MULTIPLE); page.ok();
             page = c.get(&k, &v, MDB_NEXT_MULTIPLE)) {
          got += text(v);
          ++pages;
        }
      }
      ASSERT_EQ(got, want);
    }
  });
  EXPECT_GT(pages, 100u);
}

class Findings final : public check::Visitor {
 public:
  bool finding(const check::Finding& f) override {
    if (f.severity == check::Severity::error) errors.push_back(std::to_string(f.page) + ": " + f.reason);
    return true;
  }
  void database(const check::DatabaseTotals& d) override { names.insert(std::string(d.name)); }
  std::vector<std::string> errors;
  std::set<std::string> names;
};

tree::Snapshot snapshot_of(Bytes file, std::size_t page_size) {
  tree::Snapshot s;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto m = load<format::MetaRecord>(file, i * page_size + format::page_header(kV));
    if (m.txnid < s.txnid) continue;
    s.txnid = m.txnid;
    s.last_pg = m.last_pg;
    s.dbs[0] = m.dbs[0];
    s.dbs[1] = m.dbs[1];
  }
  return s;
}

TEST_F(Format10, ChecksFindNothing) {
  each(25, 27, {512, 4096, 65536}, [&](const EnvSpec& spec, const std::string&, const auto& image) {
    const ExactBytes bytes(image);
    const std::size_t page_size = format::page_size(format::parse_meta(bytes.bytes()).value());
    const window::Window window = window::Window::over(bytes.bytes(), {page_size, kV});
    Findings seen;
    check::Totals totals;
    check::Options options;
    for (const DbSpec& db : spec.dbs)
      if (db.key_comparator >= 0 || db.dup_comparator >= 0) options.order = false;
    ASSERT_TRUE(check::check_snapshot(window.view(~std::uint64_t{0}), snapshot_of(image, page_size), options,
                                      seen, totals)
                    .ok());
    EXPECT_EQ(seen.errors, std::vector<std::string>());
    EXPECT_EQ(totals.lost_pages, 0u);
    for (const DbSpec& db : spec.dbs)
      if (!db.name.empty()) {
        EXPECT_EQ(seen.names.count(db.name), 1u) << db.name;
      }
  });
}

TEST_F(Format10, AnIndexHasAllRecords) {
  std::uint64_t records = 0;
  each(31, 33, {512, 4096, 65536}, [&](const EnvSpec& spec, const std::string& d, const auto& image) {
    Stock stock(lmdb_, d);
    const testing::TempFile file{Bytes(image)};
    const testing::IndexedFile open(file.path(), kV);
    Ours ours(image, lmdb_.patch);
    for (const DbSpec& db : databases(spec)) {
      MDB_dbi a = 0, b = 0;
      ASSERT_EQ(test::open_database(lmdb_, stock.txn, db, 0, &a), 0);
      ASSERT_EQ(ours.open(db, b), 0);
      if (db.kind == test::DbKind::kFree || (db.name.empty() && spec.dbs.size() > 1)) continue;
      const auto walked = walk(stock.txn, a);
      const records::RecordIndex index = testing::built_index(open.request(*ours.txn->record(b).value()));
      ASSERT_EQ(index.records(), walked.size());
      EXPECT_TRUE(index.consistent(open.pages(), {open.page_size(), kV}));
      for (std::size_t i = 0; i < walked.size(); ++i) {
        const auto got = open.record(index.location(i));
        ASSERT_TRUE(got) << i;
        ASSERT_EQ(*got, walked[i]) << i;
      }
      records += walked.size();
    }
  });
  EXPECT_GT(records, 5'000u);
}

// Each file with some bytes changed: no call reads beside the file, and no walk is endless.
// FORMAT_DAMAGES: how many files.
TEST_F(Format10, DamagedFilesAreReadOrRefused) {
  const unsigned damages = rounds("FORMAT_DAMAGES", 400);
  std::vector<std::pair<EnvSpec, std::vector<std::byte>>> images;
  each(41, 42, {512, 4096}, [&](const EnvSpec& spec, const std::string&, const auto& image) {
    if (image.size() <= std::size_t{2} << 20) images.emplace_back(spec, image);
  });
  ASSERT_GT(images.size(), 10u);
  test::Rng rng(7);
  unsigned failed = 0, whole = 0;
  for (unsigned n = 0; n < damages; ++n) {
    const auto& [spec, good] = images[rng.below(images.size())];
    std::vector<std::byte> bytes = good;
    const std::size_t page_size = format::page_size(format::parse_meta(Bytes(good)).value());
    const std::size_t pages = good.size() / page_size;
    for (unsigned k = rng.between(1, 3); k > 0; --k) {
      const std::size_t page = rng.below(pages);
      const std::size_t at = page * page_size + (rng.percent(50) ? rng.below(48) : rng.below(page_size - 8));
      if (at / page_size < 2 && at % page_size >= 24 && at % page_size < 72) continue;  // sizes
      if (rng.percent(50))
        bytes[at] = static_cast<std::byte>(rng.below(256));
      else
        testing::put(bytes.data() + at, std::uint64_t{rng.below(pages + 2)});
    }
    if (rng.percent(10)) bytes.resize(std::max(2 * page_size, rng.below(pages) * page_size));
    if (!format::parse_meta(Bytes(bytes)) || !format::parse_meta(Bytes(bytes).subspan(page_size))) continue;
    Ours ours(bytes, lmdb_.patch);
    bool bad = false;
    volatile unsigned sum = 0;
    for (const DbSpec& db : databases(spec)) {
      for (const auto& [first, next] : {std::pair(MDB_FIRST, MDB_NEXT), std::pair(MDB_LAST, MDB_PREV)}) {
        if (ours.txn->blocked() || ours.txn->finished()) {
          ours.txn->end(true);
          if (!ours.begin()) break;
        }
        MDB_dbi dbi = 0;
        if (ours.open(db, dbi) != 0) {
          bad = true;
          break;
        }
        tree::Cursor c(*ours.txn, dbi);
        MDB_val k{}, v{};
        Status st = c.get(&k, &v, first);
        std::size_t seen = 0;
        for (; st.ok(); st = c.get(&k, &v, next)) {
          ASSERT_LT(++seen, 2'000'000u) << "endless";
          for (const MDB_val& bytes_of : {k, v}) {
            ASSERT_TRUE(bytes_of.mv_size == 0 || ours.bytes.holds(bytes_of.mv_data, bytes_of.mv_size));
            if (bytes_of.mv_size != 0) sum = sum + static_cast<const unsigned char*>(bytes_of.mv_data)[0];
          }
        }
        bad = bad || st.raw() != MDB_NOTFOUND;
      }
    }
    const window::Window window = window::Window::over(ours.bytes.bytes(), {page_size, kV});
    Findings seen;
    check::Totals totals;
    check::Options options;
    options.order = false;
    ASSERT_TRUE(check::check_snapshot(window.view(~std::uint64_t{0}), snapshot_of(bytes, page_size), options,
                                      seen, totals)
                    .ok());
    if (bad) {
      ++failed;
      EXPECT_FALSE(seen.errors.empty()) << "a walk failed, but the check found nothing";
    } else if (seen.errors.empty()) {
      ++whole;
    }
  }
  std::printf("%u files could not be read, %u had no damage in the pages of trees\n", failed, whole);
  EXPECT_GT(failed, damages / 20);
}

// --- an earlier copy of a file, and the file ---

class Changes final : public tree::DiffVisitor {
 public:
  bool record(const tree::ChangedRecord& r) override {
    const auto of = [](Bytes b) { return std::string(reinterpret_cast<const char*>(b.data()), b.size()); };
    lines += of(r.key) + ":" + of(r.older) + ">" + of(r.newer) + " ";
    return true;
  }
  std::string lines;
};

struct History {
  static constexpr std::size_t kPage = 512;
  static void written_by(FileImage& f, std::uint64_t page, std::uint64_t txnid) {
    testing::put(f.page(page) + format::kAtTxnid, txnid);
  }
  static tree::Snapshot snapshot(const FileImage& f, std::uint64_t txnid, std::uint64_t root) {
    tree::Snapshot s;
    s.txnid = txnid;
    s.last_pg = f.pages() - 1;
    s.dbs[tree::kMainDbi] = FileImage::record(0, 2, root, 6);
    return s;
  }
  // Pages 2 to 4 are leaves, 5 is the root, 6 has a large value.
  History() : before(kPage, kV), after(kPage, kV) {
    before.leaf({{"a", "1"}, {"b", "2"}});
    before.leaf({{"c", "3"}, {"d", "4"}});
    before.leaf({{"e", "5"}, FileImage::big("f", 6, 700, kPage, kV)});
    before.branch({{"", 2}, {"c", 3}, {"e", 4}});
    before.overflow(std::string(700, 'v'));
    for (const std::uint64_t page : {2u, 3u, 4u, 5u, 6u}) written_by(before, page, 5);
    // Transaction 6 writes 8 instead of 3; transaction 7 uses 3 and 5 again.
    after = before;
    after.leaf({{"c", "3"}, {"d", "44"}});
    FileImage other(kPage, kV);
    other.leaf({{"", ""}});
    other.leaf({{"a", "1"}, {"b", "22"}});
    other.leaf({{"", ""}});
    other.branch({{"", 3}, {"c", 8}, {"e", 4}});
    std::memcpy(after.page(3), other.page(3), kPage);
    std::memcpy(after.page(5), other.page(5), kPage);
    written_by(after, 8, 6);
    written_by(after, 3, 7);
    written_by(after, 5, 7);
  }
  Status diff(const tree::DiffOptions& options, const FileImage& newer) {
    const ExactBytes a(before.bytes()), b(newer.bytes());
    const auto view = [](const ExactBytes& bytes) {
      return window::Window::over(bytes.bytes(), {kPage, kV}).view(~std::uint64_t{0});
    };
    const tree::DiffSide older_side{view(a), snapshot(before, 5, 5)},
        newer_side{view(b), snapshot(newer, 7, 5)};
    changes.lines.clear();
    counters = {};
    tree::DiffProblem problem;
    return tree::diff_snapshots(older_side, newer_side, options, changes, counters, problem);
  }
  FileImage before, after;
  Changes changes;
  tree::DiffCounters counters;
};

TEST(DiffOfCopy, OnlyWhatWasWrittenSinceIsCompared) {
  History h;
  tree::DiffOptions options;
  ASSERT_TRUE(h.diff(options, h.after).ok());
  EXPECT_EQ(h.changes.lines, "b:2>22 d:4>44 ");
  EXPECT_EQ(h.counters.pages, 8u);
  EXPECT_EQ(h.counters.compared_bytes, 2 * 700u) << "of the large value";
  options.older_is_copy = true;
  ASSERT_TRUE(h.diff(options, h.after).ok());
  EXPECT_EQ(h.changes.lines, "b:2>22 d:4>44 ");
  EXPECT_EQ(h.counters.pages, 6u) << "not leaf 4";
  EXPECT_EQ(h.counters.compared_bytes, 0u);
  // Nothing has changed.
  ASSERT_TRUE(h.diff(options, h.before).ok());
  EXPECT_EQ(h.changes.lines, "");
  EXPECT_EQ(h.counters.pages, 0u);
  // Only by their numbers, root and first leaf would be the same.
  options.older_is_copy = false;
  options.older_is_held = true;
  ASSERT_TRUE(h.diff(options, h.after).ok());
  EXPECT_EQ(h.changes.lines, "");
}

TEST(DiffOfCopy, APageWithoutAValidTransactionIsCompared) {
  History h;
  tree::DiffOptions options;
  options.older_is_copy = true;
  for (const std::uint64_t txnid : {std::uint64_t{0}, std::uint64_t{99}}) {
    for (const std::uint64_t page : {4u, 5u}) {
      History::written_by(h.before, page, txnid);
      History::written_by(h.after, page, txnid);
    }
    ASSERT_TRUE(h.diff(options, h.after).ok());
    EXPECT_EQ(h.changes.lines, "b:2>22 d:4>44 ");
    EXPECT_EQ(h.counters.pages, 8u);
  }
}

}  // namespace
}  // namespace lmdbio
