// Cursors over damaged trees: an error code once, MDB_BAD_TXN from then on, and no read beside the file's
// bytes.
#include <gtest/gtest.h>

#include <iostream>
#include <vector>

#include "tests/support/damaged.h"
#include "tests/support/format_version.h"
#include "tests/support/rng.h"

namespace lmdbio::tree {
namespace {

using testing::as_val;
using testing::Damaged;
using testing::FileImage;
using testing::put;

constexpr std::size_t kPage = 512;
constexpr unsigned kCorrupted = 1, kPageNotFound = 2;

/// Leaves 2 and 4, root 3 (branch); an overflow run of two pages at 5.
struct Plain {
  Plain() : f(kPage) {
    const std::uint64_t run_at = 5;
    f.leaf({{"a", "1"}, {"b", "22"}});
    f.branch({{"", 2}, {"m", 4}});
    f.leaf({{"m", "3"}, FileImage::big("n", run_at, 900)});
    f.overflow(std::string(900, 'x'));
    f.metas(FileImage::record(0, 2, 3, 4), 7);
  }
  FileImage f;
};
const std::vector<std::string> kKeys = {"a", "b", "c", "m", "n", "z"};

/// Sub-page, LEAF2 sub-page, sub-database of LEAF2 leaves 2 and 3 below branch 4; root 5.
struct Dups {
  Dups() : f(kPage) {
    f.leaf2(4, {"aaaa", "bbbb"});
    f.leaf2(4, {"cccc", "dddd"});
    f.branch({{"", 2}, {"cccc", 3}});
    format::DbRecord sub = FileImage::record(MDB_DUPFIXED, 2, 4, 4, 4);
    f.leaf({{"a", "1111"},
            {"b", FileImage::sub_page2(4, {"1111", "2222", "3333"}), format::kDupData},
            {"c", FileImage::as_data(sub), format::kDupData | format::kSubData}});
    f.metas(FileImage::record(MDB_DUPSORT | MDB_DUPFIXED, 1, 5, 8, 4), 7);
  }
  FileImage f;
};
const std::vector<std::string> kDupKeys = {"a", "b", "c", "d"};

std::size_t node_at(FileImage& f, std::uint64_t p, unsigned i) {
  return testing::kSlotBase + load<std::uint16_t>(f.page(p) + testing::kPageHeader + 2 * std::size_t{i});
}

/// The data of a node with a key of one byte.
std::size_t data_at(FileImage& f, std::uint64_t p, unsigned i) {
  return node_at(f, p, i) + format::kNodeHeader + format::data_after_key(testing::version(), 1);
}

TEST(Cursor, HealthyTreesAreReadToTheEnd) {
  Plain plain;
  Damaged d(plain.f);
  EXPECT_EQ(d.read_all(kKeys), 0u);
  Cursor c(*d.txn, kMainDbi);
  std::string seen;
  MDB_val k, v;
  for (MDB_cursor_op op = MDB_FIRST; c.get(&k, &v, op).ok(); op = MDB_NEXT) {
    seen += std::string(static_cast<char*>(k.mv_data), k.mv_size) + std::to_string(v.mv_size) + ' ';
  }
  EXPECT_EQ(seen, "a1 b2 m1 n900 ");
  Dups dups;
  Damaged e(dups.f);
  EXPECT_EQ(e.read_all(kDupKeys), 0u);
  Cursor c2(*e.txn, kMainDbi);
  seen.clear();
  for (MDB_cursor_op op = MDB_FIRST; c2.get(&k, &v, op).ok(); op = MDB_NEXT)
    seen += std::string(static_cast<char*>(v.mv_data), 1);
  EXPECT_EQ(seen, "1123abcd");
  std::size_t n = 0;
  ASSERT_TRUE(c2.get(&k, &v, MDB_LAST).ok());
  EXPECT_TRUE(c2.count(n).ok());
  EXPECT_EQ(n, 4u);
}

template <class T>
unsigned plain_with(std::uint64_t page, std::size_t at, T value) {
  Plain p;
  put(p.f.page(page) + at, value);
  return Damaged(p.f).read_all(kKeys);
}

TEST(Cursor, EachWrongFieldOfAPlainTree) {
  Plain p;
  const std::size_t big = node_at(p.f, 4, 1), first = node_at(p.f, 2, 0), branch = node_at(p.f, 3, 1);
  for (const std::uint64_t page : {2u, 3u, 4u}) {
    SCOPED_TRACE(page);
    EXPECT_EQ(plain_with(page, 0, std::uint64_t{99}), kCorrupted);
    EXPECT_EQ(plain_with(page, testing::kAtFlags, std::uint16_t{0}), kCorrupted);
    EXPECT_EQ(plain_with(page, testing::kAtFlags, std::uint16_t{format::kOverflow}), kCorrupted);
    EXPECT_EQ(plain_with(page, testing::kAtFlags, std::uint16_t{format::kLeaf | format::kLeaf2}), kCorrupted);
    EXPECT_EQ(plain_with(page, testing::kAtLower, std::uint16_t{0}), kCorrupted);
    EXPECT_EQ(plain_with(page, testing::kAtUpper, std::uint16_t{0xffff}), kCorrupted);
    EXPECT_EQ(plain_with(page, testing::kPageHeader, std::uint16_t{0}), kCorrupted);
    EXPECT_EQ(plain_with(page, testing::kPageHeader + 2, std::uint16_t{0xffff}), kCorrupted);
    EXPECT_EQ(plain_with(page, testing::kAtLower,
                         static_cast<std::uint16_t>(testing::kPageHeader - testing::kSlotBase)) &
                  kCorrupted,
              kCorrupted)
        << "no entries";
  }
  EXPECT_EQ(plain_with(2, first + 6, std::uint16_t{0xffff}), kCorrupted) << "key size";
  EXPECT_EQ(plain_with(2, first, std::uint32_t{0xffffffff}), kCorrupted) << "data size";
  EXPECT_EQ(plain_with(2, first + 4, std::uint16_t{format::kDupData}), kCorrupted) << "no duplicates here";
  EXPECT_EQ(plain_with(4, data_at(p.f, 4, 1), std::uint64_t{99}), kPageNotFound)
      << "run beyond the last page";
  EXPECT_EQ(plain_with(4, data_at(p.f, 4, 1), std::uint64_t{6}), kCorrupted)
      << "run that ends beyond the file";
  EXPECT_EQ(plain_with(4, big, std::uint32_t{0x7fffffff}), kCorrupted) << "size of the run";
  EXPECT_EQ(plain_with(3, branch, std::uint32_t{99}), kPageNotFound) << "child";
  EXPECT_EQ(plain_with(3, branch + 4, std::uint16_t{0xffff}), kPageNotFound) << "child, high part";
  EXPECT_EQ(plain_with(3, branch, std::uint32_t{0}), kCorrupted) << "meta page as child";
  EXPECT_EQ(plain_with(3, branch, std::uint32_t{5}), kCorrupted) << "overflow page as child";
  EXPECT_EQ(plain_with(3, branch, std::uint32_t{6}), kCorrupted) << "inside of a run as child";
  EXPECT_EQ(plain_with(3, branch, std::uint32_t{3}), kCorrupted) << "cycle";
}

template <class T>
unsigned dups_with(std::uint64_t page, std::size_t at, T value) {
  Dups p;
  put(p.f.page(page) + at, value);
  return Damaged(p.f).read_all(kDupKeys);
}

TEST(Cursor, EachWrongFieldBelowDuplicates) {
  Dups p;
  const std::size_t sub = data_at(p.f, 5, 1), rec = data_at(p.f, 5, 2);
  EXPECT_EQ(dups_with(5, sub + testing::kAtFlags, std::uint16_t{format::kBranch}), kCorrupted);
  EXPECT_EQ(dups_with(5, sub + testing::kAtLower, std::uint16_t{0}), kCorrupted);
  EXPECT_EQ(dups_with(5, sub + testing::kAtLower, std::uint16_t{0xfff0}), kCorrupted)
      << "items beyond the sub-page";
  EXPECT_EQ(dups_with(5, sub + testing::kAtLower,
                      static_cast<std::uint16_t>(testing::kPageHeader - testing::kSlotBase)),
            kCorrupted)
      << "no items";
  EXPECT_EQ(dups_with(5, sub + testing::kAtPad, std::uint16_t{0xffff}), kCorrupted) << "item size";
  EXPECT_EQ(dups_with(5, node_at(p.f, 5, 1), std::uint32_t{15}), kCorrupted) << "sub-page without a header";
  EXPECT_EQ(dups_with(5, node_at(p.f, 5, 2), std::uint32_t{47}), kCorrupted) << "record cut short";
  EXPECT_EQ(dups_with(5, node_at(p.f, 5, 1) + 4, std::uint16_t{format::kDupData | format::kBigData}),
            kCorrupted);
  EXPECT_EQ(dups_with(5, rec + offsetof(format::DbRecord, root), std::uint64_t{99}), kPageNotFound);
  EXPECT_EQ(dups_with(5, rec + offsetof(format::DbRecord, root), std::uint64_t{1} << 63), kPageNotFound);
  EXPECT_EQ(dups_with(5, rec + offsetof(format::DbRecord, root), std::uint64_t{0}), kCorrupted);
  EXPECT_EQ(dups_with(5, rec, std::uint32_t{0xffffffff}), kCorrupted) << "item size";
  for (const std::uint64_t page : {2u, 3u, 4u}) {
    SCOPED_TRACE(page);
    EXPECT_EQ(dups_with(page, 0, std::uint64_t{99}), kCorrupted);
    EXPECT_EQ(dups_with(page, testing::kAtFlags, std::uint16_t{0}), kCorrupted);
    EXPECT_EQ(
        dups_with(page, testing::kAtFlags, std::uint16_t{format::kBranch | format::kLeaf | format::kLeaf2}),
        kCorrupted);
    EXPECT_EQ(dups_with(page, testing::kAtLower, std::uint16_t{0}), kCorrupted);
    EXPECT_EQ(dups_with(page, testing::kAtLower, std::uint16_t{0xfff0}), kCorrupted);
  }
  EXPECT_EQ(dups_with(4, node_at(p.f, 4, 1), std::uint32_t{4}), kCorrupted) << "cycle";
}

// Every byte of every page of both trees, one at a time, to telling values; both behaviours.
TEST(Cursor, NoSingleByteLeadsAstray) {
  Plain plain;
  Dups dups;
  unsigned found = 0, tried = 0;
  for (FileImage* const f : {&plain.f, &dups.f}) {
    const auto& keys = f == &plain.f ? kKeys : kDupKeys;
    for (std::uint64_t p = 2; p < f->pages(); ++p) {
      if (f == &plain.f && p == 6) continue;  // inside of a run: a value's bytes
      const auto upper = load<std::uint16_t>(f->page(p) + testing::kAtUpper) + testing::kSlotBase;
      for (std::size_t at = 0; at < kPage; ++at) {
        if (at >= 40 && (at < upper || upper == kPage)) continue;  // free space
        std::byte& b = f->page(p)[at];
        const std::byte was = b;
        for (const unsigned v : {0u, 0xffu, std::to_integer<unsigned>(was) ^ 5u}) {
          b = static_cast<std::byte>(v);
          found += Damaged(*f, Behaviour::of_release(v % 2 == 0 ? 24 : 90)).read_all(keys) != 0;
          ++tried;
          ASSERT_FALSE(HasFailure()) << "page " << p << " byte " << at << " value " << v;
        }
        b = was;
      }
    }
  }
  EXPECT_GT(found, tried / 10);
}

// Random pages that name each other at random: steps stay bounded.
TEST(Cursor, RandomGraphsOfPagesEnd) {
  constexpr std::uint64_t kSeed = 12;
  std::cout << "seed " << kSeed << '\n';
  test::Rng rng(kSeed);
  unsigned found = 0;
  for (unsigned round = 0; round < 150; ++round) {
    FileImage f(kPage);
    const std::uint64_t pages = rng.between(3, 10);
    for (std::uint64_t p = 0; p < pages; ++p) {
      if (rng.percent(70)) {
        f.branch({{"", 2 + rng.below(pages)}, {"c", 2 + rng.below(pages)}, {"m", 2 + rng.below(pages)}});
      } else {
        f.leaf({{"a", "1"}, {"n", "2"}});
      }
    }
    f.metas(FileImage::record(rng.percent(50) ? MDB_DUPSORT : 0, 1 + rng.below(40), 2 + rng.below(pages), 9),
            3);
    found += Damaged(f).read_all(kKeys) != 0;
  }
  EXPECT_GT(found, 20u);
}

// A chain of branch pages deeper than any tree.
TEST(Cursor, DepthIsBounded) {
  for (const unsigned depth : {30u, 31u, 32u, 33u, 60u}) {
    FileImage f(kPage);
    f.leaf({{"a", "1"}, {"b", "2"}});
    for (unsigned i = 1; i < depth; ++i) f.branch({{"", f.pages() - 1}, {"z", f.pages() - 1}});
    f.metas(FileImage::record(0, depth, f.pages() - 1, 2), 3);
    EXPECT_EQ(Damaged(f).read_all({"a", "b"}), depth <= format::kMaxDepth ? 0u : kCorrupted) << depth;
  }
}

// The same bound where no path is kept.
TEST(Cursor, DepthOfALookupIsBounded) {
  for (const unsigned depth : {32u, 33u}) {
    FileImage f(kPage);
    f.leaf({{"a", "1"}, {"b", "2"}});
    for (unsigned i = 1; i < depth; ++i) f.branch({{"", f.pages() - 1}, {"z", f.pages() - 1}});
    f.metas(FileImage::record(0, depth, f.pages() - 1, 2), 3);
    Damaged d(f);
    MDB_val v{};
    EXPECT_EQ(d.txn->get(kMainDbi, as_val("a"), v).raw(), depth <= format::kMaxDepth ? 0 : MDB_CORRUPTED)
        << depth;
  }
}

// Pages that the file has and the snapshot has not.
TEST(Cursor, NoPageBehindTheSnapshotsLast) {
  Plain p;
  for (const unsigned meta : {0u, 1u})
    put(p.f.page(meta) + testing::kPageHeader + detail::kAtLastPg, std::uint64_t{3});
  EXPECT_EQ(Damaged(p.f).read_all(kKeys), kPageNotFound);
}

TEST(Cursor, AFileCutShort) {
  Plain p;
  for (std::size_t pages = 2; pages < p.f.pages(); ++pages) {
    const testing::ExactBytes bytes(p.f.bytes().first(pages * kPage));
    auto env = std::move(
        Env::over(bytes.bytes(), {testing::pages_of(kPage), bytes.bytes().size(), 4, false}).value());
    Txn txn(*env);
    ASSERT_TRUE(txn.begin(7, MetaSource(env->metas().records)).ok());
    MDB_val v{};
    const std::string key = "n";
    EXPECT_EQ(txn.get(kMainDbi, as_val(key), v).raw(), MDB_CORRUPTED) << pages;
    EXPECT_TRUE(txn.blocked()) << pages;
    Cursor c(txn, kMainDbi);
    EXPECT_EQ(c.get(&v, &v, MDB_FIRST).raw(), MDB_BAD_TXN) << pages;
  }
}

TEST(Cursor, BlockedTransactionAnswersBadTxnToEveryCall) {
  Dups p;
  put(p.f.page(3), std::uint64_t{99});
  Damaged d(p.f);
  Cursor c(*d.txn, kMainDbi), idle(*d.txn, kMainDbi);
  MDB_val k{}, v{};
  ASSERT_TRUE(idle.get(&k, &v, MDB_FIRST).ok());
  ASSERT_EQ(c.get(&k, &v, MDB_LAST).raw(), MDB_CORRUPTED);
  EXPECT_TRUE(d.txn->blocked());
  EXPECT_FALSE(d.txn->finished());
  for (int op = 0; op < 20; ++op) {
    EXPECT_EQ(c.get(&k, &v, static_cast<MDB_cursor_op>(op)).raw(), MDB_BAD_TXN) << op;
    EXPECT_EQ(idle.get(&k, &v, static_cast<MDB_cursor_op>(op)).raw(), MDB_BAD_TXN) << op;
  }
  std::size_t n;
  EXPECT_EQ(idle.count(n).raw(), MDB_BAD_TXN);
}

TEST(Cursor, PardonedTransactionReadsOnUntilItsEnd) {
  Dups p;
  put(p.f.page(3), std::uint64_t{99});
  Damaged d(p.f);
  MDB_val k{}, v{};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Cursor(*d.txn, kMainDbi).get(&k, &v, MDB_LAST).raw(), MDB_CORRUPTED);
    EXPECT_TRUE(d.txn->blocked());
    EXPECT_TRUE(d.txn->pardon());
    EXPECT_FALSE(d.txn->blocked());
    EXPECT_TRUE(Cursor(*d.txn, kMainDbi).get(&k, &v, MDB_FIRST).ok());
  }
  EXPECT_TRUE(d.txn->pardon()) << "nothing to pardon";
  d.txn->lose();
  EXPECT_FALSE(d.txn->pardon());
  EXPECT_EQ(Cursor(*d.txn, kMainDbi).get(&k, &v, MDB_FIRST).raw(), MDB_BAD_TXN);
  d.txn->end(true);
  EXPECT_FALSE(d.txn->pardon());
}

}  // namespace
}  // namespace lmdbio::tree
