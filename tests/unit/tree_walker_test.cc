// The walker of one tree: where each move leads, also after a move that failed, and what it answers to trees
// that cannot be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/tree/walker.h"
#include "tests/support/damaged.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/walk_env.h"

namespace lmdbio::tree {
namespace {

using testing::as_val;
using testing::Damaged;
using testing::FileImage;
using testing::LeafEntry;
using testing::WalkEnv;

constexpr std::size_t kPage = 512;
const bool set = testing::script_all_reads("8M");

std::string text(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

/// A walker over the main database, with one for duplicates if it has any.
class OnMain {
 public:
  explicit OnMain(Txn& txn, bool dups = false) {
    (void)txn.record(kMainDbi);
    main.attach(txn, kMainDbi, dups ? &dups_ : nullptr);
  }
  /// Key and data that the move gives, or its code.
  std::string go(MDB_cursor_op op) {
    MDB_val k{}, v{};
    const Status st = move(op, k, v);
    return st.ok() ? text(k) + text(v) : code(st);
  }
  std::string set(MDB_cursor_op op, const std::string& key, const std::string& data = "") {
    MDB_val k = as_val(key), v = as_val(data);
    const Status st = main.set(&k, &v, op, op != MDB_SET_RANGE);
    return st.ok() ? text(k) + text(v) : code(st);
  }
  std::string all(MDB_cursor_op first, MDB_cursor_op then) {
    std::string out = go(first);
    for (int i = 0; i < 40; ++i) out += ' ' + go(then);
    return out.substr(0, out.find(" NOTFOUND"));
  }
  static std::string code(Status st) {
    return st.raw() == MDB_NOTFOUND ? "NOTFOUND" : std::to_string(st.raw());
  }
  Walker main;

 private:
  Status move(MDB_cursor_op op, MDB_val& k, MDB_val& v) {
    switch (op) {
      case MDB_FIRST:
        return main.first(&k, &v);
      case MDB_LAST:
        return main.last(&k, &v);
      case MDB_NEXT:
      case MDB_NEXT_DUP:
      case MDB_NEXT_NODUP:
        return main.next(&k, &v, op);
      case MDB_PREV:
      case MDB_PREV_DUP:
      case MDB_PREV_NODUP:
        return main.prev(&k, &v, op);
      case MDB_FIRST_DUP:
        return main.edge_dup(false, &k, &v);
      case MDB_LAST_DUP:
        return main.edge_dup(true, &k, &v);
      case MDB_GET_MULTIPLE:
        return main.get_multiple(&v);
      case MDB_NEXT_MULTIPLE:
        return main.next_multiple(&k, &v);
      case MDB_PREV_MULTIPLE:
        return main.prev_multiple(&k, &v);
      default:
        return main.current(&k, &v);
    }
  }
  Walker dups_;
};

/// Three leaves of three entries: a c e, g i k, m o q; the values are the capital letters.
const std::string kLetters = "acegikmoq";
FileImage three_leaves() {
  FileImage f(kPage);
  for (std::size_t at = 0; at < kLetters.size(); at += 3) {
    std::vector<LeafEntry> entries;
    for (std::size_t i = at; i < at + 3; ++i)
      entries.push_back({kLetters.substr(i, 1), std::string(1, static_cast<char>(kLetters[i] - 'a' + 'A'))});
    f.leaf(entries);
  }
  f.branch({{"", 2}, {"g", 3}, {"m", 4}});
  f.metas(FileImage::record(0, 2, 5, kLetters.size()), 7);
  return f;
}
std::string entry(std::size_t i) { return {kLetters[i], static_cast<char>(kLetters[i] - 'a' + 'A')}; }

TEST(Walker, GoesThroughAllLeavesForthAndBack) {
  Damaged d(three_leaves());
  OnMain w(*d.txn);
  EXPECT_EQ(w.go(MDB_GET_CURRENT), std::to_string(EINVAL)) << "nowhere yet";
  EXPECT_EQ(w.all(MDB_NEXT, MDB_NEXT), "aA cC eE gG iI kK mM oO qQ");
  EXPECT_EQ(w.go(MDB_NEXT), "NOTFOUND");
  EXPECT_EQ(w.go(MDB_GET_CURRENT), "qQ") << "a move beyond the end is none";
  EXPECT_EQ(w.go(MDB_PREV), "oO");
  OnMain back(*d.txn);
  EXPECT_EQ(back.all(MDB_PREV, MDB_PREV), "qQ oO mM kK iI gG eE cC aA");
  EXPECT_EQ(back.go(MDB_PREV), "NOTFOUND");
  EXPECT_EQ(back.go(MDB_NEXT), "cC");
  EXPECT_EQ(back.go(MDB_LAST), "qQ");
  EXPECT_EQ(back.go(MDB_NEXT), "NOTFOUND");
  EXPECT_EQ(back.go(MDB_FIRST), "aA");
}

TEST(Walker, MayGoToAndFroForEver) {
  Damaged d(three_leaves());
  OnMain w(*d.txn);
  ASSERT_EQ(w.set(MDB_SET, "e"), "eE");
  for (int i = 0; i < 100; ++i) {  // more leaves than the file has pages
    ASSERT_EQ(w.go(MDB_NEXT), "gG") << i;
    ASSERT_EQ(w.go(MDB_PREV), "eE") << i;
  }
}

TEST(Walker, ForgetsItsPlaceWhenItIsUnset) {
  Damaged d(three_leaves());
  OnMain w(*d.txn);
  EXPECT_EQ(w.set(MDB_SET, "i"), "iI");
  w.main.unset();
  EXPECT_EQ(w.go(MDB_GET_CURRENT), std::to_string(EINVAL));
  EXPECT_EQ(w.go(MDB_NEXT), "aA");
  EXPECT_FALSE(w.main.has_dups());
}

// A lookup first tries the leaf under the walker: its answer must not depend on where that is.
TEST(Walker, ALookupAnswersTheSameFromEachPlace) {
  Damaged d(three_leaves());
  const std::size_t n = kLetters.size();
  for (std::size_t from = 0; from <= n + 1; ++from) {  // n: beyond the end; n + 1: nowhere
    for (char c = 'a'; c <= 'r'; ++c) {
      for (const std::string& key : {std::string(1, c), std::string(1, c) + "x", std::string("A")}) {
        for (const MDB_cursor_op op : {MDB_SET, MDB_SET_KEY, MDB_SET_RANGE}) {
          SCOPED_TRACE(::testing::Message() << "from " << from << " op " << op << " key " << key);
          OnMain w(*d.txn);
          if (from <= n) {
            ASSERT_EQ(w.go(MDB_FIRST), entry(0));
            for (std::size_t i = 1; i < from; ++i) (void)w.go(MDB_NEXT);
            if (from == n) {
              ASSERT_EQ(w.go(MDB_NEXT), "NOTFOUND");
            }
          }
          std::size_t i = 0;
          while (i < n && kLetters.substr(i, 1) < key) ++i;
          const bool exact = i < n && kLetters.substr(i, 1) == key;
          if (i == n || (!exact && op != MDB_SET_RANGE)) {
            ASSERT_EQ(w.set(op, key), "NOTFOUND");
            continue;
          }
          ASSERT_EQ(w.set(op, key), entry(i));
          ASSERT_EQ(w.go(MDB_GET_CURRENT), entry(i));
          ASSERT_EQ(w.go(MDB_NEXT), i + 1 < n ? entry(i + 1) : "NOTFOUND");
        }
      }
    }
  }
  OnMain w(*d.txn);
  EXPECT_EQ(w.set(MDB_SET, ""), std::to_string(MDB_BAD_VALSIZE));
}

TEST(Walker, KeyAndDataMayBeLeftOut) {
  Damaged d(three_leaves());
  OnMain w(*d.txn);
  MDB_val v{};
  EXPECT_TRUE(w.main.first(nullptr, &v).ok());
  EXPECT_EQ(text(v), "A");
  EXPECT_TRUE(w.main.next(&v, nullptr, MDB_NEXT).ok());
  EXPECT_EQ(text(v), "c");
  EXPECT_TRUE(w.main.prev(nullptr, nullptr, MDB_PREV).ok());
  EXPECT_TRUE(w.main.current(nullptr, nullptr).ok());
  EXPECT_EQ(w.go(MDB_GET_CURRENT), "aA");
}

TEST(Walker, ATreeWithoutPagesHasNothing) {
  FileImage f(kPage);
  f.metas(FileImage::record(0, 0, format::raw(format::kNoPage), 0), 7);
  Damaged d(f);
  OnMain w(*d.txn);
  for (const MDB_cursor_op op : {MDB_FIRST, MDB_LAST, MDB_NEXT, MDB_PREV}) EXPECT_EQ(w.go(op), "NOTFOUND");
  EXPECT_EQ(w.set(MDB_SET_RANGE, "a"), "NOTFOUND");
  EXPECT_EQ(w.go(MDB_GET_CURRENT), std::to_string(EINVAL));
}

template <int kStep>
bool step(Walker& w, MDB_val* key, MDB_val* data, std::size_t& bytes) {
  using format::Version;
  EXPECT_FALSE(testing::is_10() ? (w.step_in_leaf<kStep, Version::v09>(key, data, bytes))
                                : (w.step_in_leaf<kStep, Version::v10>(key, data, bytes)))
      << "of the other format";
  return testing::is_10() ? w.step_in_leaf<kStep, Version::v10>(key, data, bytes)
                          : w.step_in_leaf<kStep, Version::v09>(key, data, bytes);
}

TEST(Walker, StepsInALeafAsTheMovesDo) {
  FileImage f(kPage);
  const std::string large(700, 'x');
  f.leaf({{"a", "1"}, FileImage::big("b", 5, 700), {"c", "3"}});
  f.leaf({{"d", "4"}});
  f.branch({{"", 2}, {"d", 3}});
  EXPECT_EQ(f.overflow(large), 5u);
  f.metas(FileImage::record(0, 2, 4, 4), 7);
  Damaged d(f);
  OnMain w(*d.txn);
  MDB_val k{}, v{};
  std::size_t bytes = 0;
  EXPECT_FALSE(step<1>(w.main, &k, &v, bytes)) << "nowhere yet";
  ASSERT_EQ(w.go(MDB_FIRST), "a1");
  EXPECT_FALSE(step<-1>(w.main, &k, &v, bytes)) << "before the leaf";
  EXPECT_TRUE(step<0>(w.main, &k, &v, bytes));
  EXPECT_EQ(text(k) + text(v), "a1");
  EXPECT_TRUE(step<1>(w.main, &k, &v, bytes));
  EXPECT_EQ(text(k) + text(v), "b" + large);
  EXPECT_EQ(bytes, 700u);
  EXPECT_TRUE(step<1>(w.main, &k, nullptr, bytes));
  EXPECT_EQ(text(k), "c");
  EXPECT_EQ(bytes, 1u);
  EXPECT_FALSE(step<1>(w.main, &k, &v, bytes)) << "the next leaf is not its business";
  EXPECT_EQ(w.go(MDB_GET_CURRENT), "c3") << "nothing was done";
  EXPECT_TRUE(step<-1>(w.main, nullptr, &v, bytes));
  EXPECT_EQ(text(v), large);
}

TEST(Walker, FindsNodesByName) {
  Damaged d(three_leaves());
  OnMain w(*d.txn);
  format::Node n;
  const std::string i = "i", h = "h", z = "z";
  ASSERT_TRUE(w.main.find_node(as_val(i), n).ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(n.data()), n.data_size()), "I");
  EXPECT_EQ(w.main.find_node(as_val(h), n).raw(), MDB_NOTFOUND);
  EXPECT_EQ(w.main.find_node(as_val(z), n).raw(), MDB_NOTFOUND);
}

TEST(Walker, APathHasAnEnd) {
  Damaged d(three_leaves());
  OnMain w(*d.txn);
  format::PageView page;
  ASSERT_TRUE(d.txn->page(format::Pgno{5}, page).ok());
  for (unsigned i = 0; i < format::kMaxDepth - 1; ++i) ASSERT_TRUE(w.main.push(page, 0)) << i;
  EXPECT_FALSE(w.main.push(page, 0));
}

/// a has one value, b a sub-page, c a tree of two leaves.
FileImage duplicates() {
  FileImage f(kPage);
  f.leaf({{"w", ""}, {"x", ""}});
  f.leaf({{"y", ""}, {"z", ""}});
  f.branch({{"", 2}, {"y", 3}});
  const format::DbRecord sub = FileImage::record(0, 2, 4, 4);
  f.leaf({{"a", "1"},
          {"b", FileImage::sub_page({"p", "q", "r"}), format::kDupData},
          {"c", FileImage::as_data(sub), format::kDupData | format::kSubData}});
  f.metas(FileImage::record(MDB_DUPSORT, 1, 5, 8), 7);
  return f;
}

TEST(Walker, DuplicatesComeOneAfterTheOther) {
  Damaged d(duplicates());
  OnMain w(*d.txn, true);
  EXPECT_TRUE(w.main.has_dups());
  EXPECT_EQ(w.all(MDB_FIRST, MDB_NEXT), "a1 bp bq br cw cx cy cz");
  EXPECT_EQ(w.all(MDB_LAST, MDB_PREV), "cz cy cx cw br bq bp a1");
  EXPECT_EQ(w.all(MDB_FIRST, MDB_NEXT_NODUP), "a1 bp cw");
  EXPECT_EQ(w.all(MDB_LAST, MDB_PREV_NODUP), "cz br a1");
  EXPECT_EQ(w.set(MDB_SET, "c"), "cw");
  EXPECT_EQ(w.go(MDB_NEXT_DUP).substr(1), "x");
  EXPECT_EQ(w.go(MDB_NEXT_DUP).substr(1), "y") << "in the next leaf";
  EXPECT_EQ(w.go(MDB_PREV_DUP).substr(1), "x");
  EXPECT_EQ(w.go(MDB_PREV_DUP).substr(1), "w");
  EXPECT_EQ(w.go(MDB_PREV_DUP), "NOTFOUND") << "of this key";
  EXPECT_EQ(w.set(MDB_SET, "a"), "a1");
  EXPECT_EQ(w.go(MDB_NEXT_DUP), "NOTFOUND");
  EXPECT_EQ(w.go(MDB_PREV_DUP), "NOTFOUND");
}

TEST(Walker, SingleValuesHaveNoOtherDuplicates) {
  FileImage f(kPage);
  f.leaf({{"a", "1"}, {"b", "2"}, {"c", "3"}});
  f.metas(FileImage::record(MDB_DUPSORT, 1, 2, 3), 7);
  Damaged d(f);
  OnMain w(*d.txn, true);
  ASSERT_EQ(w.set(MDB_SET, "b"), "b2");
  EXPECT_EQ(w.go(MDB_NEXT_DUP), "NOTFOUND");
  EXPECT_EQ(w.go(MDB_GET_CURRENT), "b2");
  EXPECT_EQ(w.go(MDB_PREV_DUP), "NOTFOUND");
  EXPECT_EQ(w.go(MDB_GET_CURRENT), "b2");
}

TEST(Walker, EdgesAndNumberOfDuplicates) {
  Damaged d(duplicates());
  OnMain w(*d.txn, true);
  std::size_t n = 0;
  EXPECT_EQ(w.main.count(n).raw(), EINVAL) << "nowhere yet";
  EXPECT_EQ(w.go(MDB_FIRST_DUP), std::to_string(EINVAL));
  const struct {
    const char *key, *first, *last;
    std::size_t count;
  } cases[] = {{"a", "1", "1", 1}, {"b", "p", "r", 3}, {"c", "w", "z", 4}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.key);
    ASSERT_EQ(w.set(MDB_SET, c.key), std::string(c.key) + c.first);
    const std::string last = w.go(MDB_LAST_DUP), first = w.go(MDB_FIRST_DUP);
    EXPECT_EQ(last.back(), *c.last);
    EXPECT_EQ(first.back(), *c.first);
    EXPECT_TRUE(w.main.count(n).ok());
    EXPECT_EQ(n, c.count);
  }
  MDB_val k{};
  EXPECT_EQ(w.main.edge_dup(true, &k, nullptr).raw(), EINVAL);
  Damaged plain(three_leaves());
  OnMain other(*plain.txn);
  ASSERT_EQ(other.go(MDB_FIRST), "aA");
  EXPECT_EQ(other.go(MDB_LAST_DUP), std::to_string(MDB_INCOMPATIBLE));
}

TEST(Walker, LookupsOfAKeyAndItsData) {
  Damaged d(duplicates());
  const struct {
    const char *key, *data, *both, *range;
  } cases[] = {
      {"a", "1", "1", "1"},
      {"a", "0", "NOTFOUND", "1"},
      {"a", "2", "NOTFOUND", "NOTFOUND"},
      {"b", "q", "q", "q"},
      {"b", "a", "NOTFOUND", "p"},
      {"b", "s", "NOTFOUND", "NOTFOUND"},
      {"c", "y", "y", "y"},
      {"c", "xx", "NOTFOUND", "y"},
      {"c", "wa", "NOTFOUND", "x"},
      {"d", "y", "NOTFOUND", "NOTFOUND"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.key << ' ' << c.data);
    for (const MDB_cursor_op op : {MDB_GET_BOTH, MDB_GET_BOTH_RANGE}) {
      OnMain w(*d.txn, true);
      std::string want = op == MDB_GET_BOTH ? c.both : c.range;
      if (want != "NOTFOUND") want = c.key + want;
      EXPECT_EQ(w.set(op, c.key, c.data), want);
      if (want != "NOTFOUND") {
        EXPECT_EQ(w.go(MDB_GET_CURRENT), want);
      }
    }
  }
}

/// b has three values in a sub-page, c four in two leaves.
FileImage fixed_size_duplicates() {
  FileImage f(kPage);
  f.leaf2(2, {"aa", "bb"});
  f.leaf2(2, {"cc", "dd"});
  f.branch({{"", 2}, {"cc", 3}});
  format::DbRecord sub = FileImage::record(MDB_DUPFIXED, 2, 4, 4, 2);
  f.leaf({{"a", "11"},
          {"b", FileImage::sub_page2(2, {"22", "33", "44"}), format::kDupData},
          {"c", FileImage::as_data(sub), format::kDupData | format::kSubData}});
  f.metas(FileImage::record(MDB_DUPSORT | MDB_DUPFIXED, 1, 5, 8, 2), 7);
  return f;
}

TEST(Walker, ManyDuplicatesAtOnce) {
  Damaged d(fixed_size_duplicates());
  OnMain w(*d.txn, true);
  EXPECT_EQ(w.go(MDB_GET_MULTIPLE), std::to_string(EINVAL)) << "nowhere yet";
  EXPECT_EQ(w.all(MDB_FIRST, MDB_NEXT), "a11 b22 b33 b44 caa cbb ccc cdd");
  ASSERT_EQ(w.set(MDB_SET, "b"), "b22");
  EXPECT_EQ(w.go(MDB_GET_MULTIPLE), "223344");
  EXPECT_EQ(w.go(MDB_NEXT_MULTIPLE), "NOTFOUND") << "all were given";
  ASSERT_EQ(w.set(MDB_SET, "c"), "caa");
  EXPECT_EQ(w.go(MDB_GET_MULTIPLE), "aabb");
  EXPECT_EQ(w.go(MDB_NEXT_MULTIPLE), "cccdd");
  EXPECT_EQ(w.go(MDB_NEXT_MULTIPLE), "NOTFOUND");
  EXPECT_EQ(w.go(MDB_PREV_MULTIPLE), "aabb");
  EXPECT_EQ(w.go(MDB_PREV_MULTIPLE), "NOTFOUND");
  MDB_val k{};
  EXPECT_EQ(w.main.get_multiple(nullptr).raw(), EINVAL);
  EXPECT_EQ(w.main.next_multiple(&k, nullptr).raw(), EINVAL);
  EXPECT_EQ(w.main.prev_multiple(&k, nullptr).raw(), EINVAL);
  Damaged plain(duplicates());
  OnMain other(*plain.txn, true);
  ASSERT_EQ(other.go(MDB_FIRST), "a1");
  EXPECT_EQ(other.go(MDB_GET_MULTIPLE), std::to_string(MDB_INCOMPATIBLE)) << "not of a fixed size";
}

// Leaves that come again and again would keep a walk going for ever.
TEST(Walker, AWalkOverMoreLeavesThanTheFileHasPagesIsDamage) {
  FileImage f(kPage);
  f.leaf({{"a", "1"}});
  std::vector<testing::BranchEntry> again;
  for (int i = 0; i < 10; ++i) again.push_back({i == 0 ? "" : "a", 2});
  f.branch(again);
  f.metas(FileImage::record(0, 2, 3, 10), 7);
  for (const bool forward : {true, false}) {
    Damaged d(f);
    OnMain w(*d.txn);
    ASSERT_EQ(w.go(forward ? MDB_FIRST : MDB_LAST), "a1");
    unsigned moves = 0;
    std::string last;
    while ((last = w.go(forward ? MDB_NEXT : MDB_PREV)) == "a1") ++moves;
    EXPECT_EQ(last, std::to_string(MDB_CORRUPTED));
    EXPECT_LE(moves, f.pages());
    EXPECT_EQ(w.go(MDB_FIRST), std::to_string(MDB_BAD_TXN)) << "told once";
  }
}

TEST(Walker, LeavesAtDifferentDepthsAreDamage) {
  FileImage f(kPage);
  f.leaf({{"a", "1"}});
  f.leaf({{"m", "2"}});
  f.branch({{"", 3}});
  f.branch({{"", 2}, {"m", 4}});
  f.metas(FileImage::record(0, 2, 5, 2), 7);
  Damaged d(f);
  OnMain w(*d.txn);
  ASSERT_EQ(w.go(MDB_FIRST), "a1");
  EXPECT_EQ(w.go(MDB_NEXT), std::to_string(MDB_CORRUPTED));
  EXPECT_TRUE(d.txn->blocked());
}

// A read that failed is no damage and no move: the next call in this direction gives the entry.
TEST(Walker, AnEntryThatCouldNotBeReadIsOwed) {
  ASSERT_TRUE(set);
  constexpr unsigned kValues = 60;  // more than fit into memory
  WalkEnv env(kValues, 64);
  for (const bool forward : {true, false}) {
    SCOPED_TRACE(forward);
    const MDB_cursor_op move = forward ? MDB_NEXT : MDB_PREV;
    std::unique_ptr<ahead::Readahead> slot;
    OnMain w(env.txn());
    w.main.read_ahead_by(&slot);
    env.drop_page_cache();
    testing::engine_script().reset();
    testing::need_script().reset();
    const auto key_after = [&] { return w.go(move).substr(0, 7); };
    const auto key = [&](unsigned i) { return WalkEnv::key_of(forward ? i : kValues - 1 - i); };
    ASSERT_EQ(key_after(), key(0));
    ASSERT_EQ(key_after(), key(1));
    for (testing::EngineScript* s : {&testing::engine_script(), &testing::need_script()}) {
      s->error = EIO;
      s->fail_times = ~0u;
      s->fail_nth = 1;
    }
    // What was read ahead of it comes first.
    unsigned next = 2;
    std::string got;
    while (next < kValues && (got = key_after()) == key(next)) ++next;
    if (next == kValues) {
      testing::engine_script().reset();
      testing::need_script().reset();
      GTEST_SKIP() << "the page cache keeps the file";
    }
    EXPECT_EQ(got, std::to_string(EIO));
    EXPECT_EQ(key_after(), std::to_string(EIO)) << "it is owed still";
    EXPECT_FALSE(env.txn().blocked());
    testing::engine_script().reset();
    testing::need_script().reset();
    for (; next < kValues; ++next) EXPECT_EQ(key_after(), key(next));
    EXPECT_EQ(w.go(move), "NOTFOUND");
    slot.reset();
    ASSERT_TRUE(window::Prefetcher::existing()
                    ->advance(*env.env().window(), forward ? 100 : 101, env.bytes(), env.bytes())
                    .ok());
  }
}

}  // namespace
}  // namespace lmdbio::tree
