// The table of prefetched keys: answers of one tree only, the youngest of a key, and the oldest go.
#include <gtest/gtest.h>

#include <string>

#include "lmdbio/tree/prefetch_table.h"

namespace lmdbio::tree {
namespace {

using Kind = PrefetchedKey::Kind;

MDB_val val(const std::string& s) { return {s.size(), const_cast<char*>(s.data())}; }

const PrefetchedTree kTree{1, 100, 0, {format::Order::memn}};

TEST(PrefetchTable, KnowsAKeyOfItsTreeOnly) {
  PrefetchTable t;
  const std::string key = "key";
  EXPECT_EQ(t.find(kTree, val(key)), nullptr);
  PrefetchedKey& k = t.add(t.number_of(kTree), val(key));
  EXPECT_EQ(k.kind, Kind::gone) << "until the caller says what it is";
  k.kind = Kind::absent;
  EXPECT_EQ(t.find(kTree, val(key)), &k);
  EXPECT_EQ(t.find(kTree, val("ke")), nullptr);
  PrefetchedTree other = kTree;
  other.dbi = 2;
  EXPECT_EQ(t.find(other, val(key)), nullptr);
  other = kTree;
  other.root = 101;
  EXPECT_EQ(t.find(other, val(key)), nullptr) << "a later root has other answers";
  other = kTree;
  other.flags = MDB_DUPSORT;
  EXPECT_EQ(t.find(other, val(key)), nullptr);
  other = kTree;
  other.order.order = format::Order::memnr;
  EXPECT_EQ(t.find(other, val(key)), nullptr);
  EXPECT_EQ(t.find(kTree, val(key)), &k);
}

TEST(PrefetchTable, TreesHaveNumbers) {
  PrefetchTable t;
  PrefetchedTree second = kTree;
  second.root = 7;
  EXPECT_EQ(t.number_of(kTree), 0u);
  EXPECT_EQ(t.number_of(second), 1u);
  EXPECT_EQ(t.number_of(kTree), 0u);
  EXPECT_EQ(t.number_of(second), 1u);
}

TEST(PrefetchTable, AKeyThatIsAddedAgainIsTheYoungestAndUnknown) {
  PrefetchTable t;
  const std::size_t tree = t.number_of(kTree);
  PrefetchedKey& first = t.add(tree, val("a"));
  first.kind = Kind::absent;
  first.given_out = true;
  EXPECT_EQ(first.number, 1u);
  EXPECT_EQ(t.add(tree, val("b")).number, 2u);
  PrefetchedTree moved = kTree;
  moved.root = 200;
  PrefetchedKey& again = t.add(t.number_of(moved), val("a"));
  EXPECT_EQ(&again, &first) << "one entry a key";
  EXPECT_EQ(again.kind, Kind::gone);
  EXPECT_FALSE(again.given_out);
  EXPECT_EQ(again.number, 3u);
  EXPECT_EQ(t.size(), 2u);
  EXPECT_EQ(t.find(kTree, val("a")), nullptr);
  EXPECT_EQ(t.find(moved, val("a")), &again);
}

TEST(PrefetchTable, TheOldestGo) {
  PrefetchTable t;
  const std::size_t tree = t.number_of(kTree);
  const auto key = [](std::size_t i) { return std::to_string(i); };
  for (std::size_t i = 0; i < PrefetchTable::kMostKeys; ++i) (void)t.add(tree, val(key(i)));
  EXPECT_EQ(t.size(), PrefetchTable::kMostKeys);
  EXPECT_NE(t.find(kTree, val(key(0))), nullptr);
  // Drops 0: it is the oldest.  1 is young again and stays when the next ones go.
  (void)t.add(tree, val(key(1)));
  EXPECT_EQ(t.find(kTree, val(key(0))), nullptr);
  for (std::size_t i = 0; i < 3; ++i) (void)t.add(tree, val("new " + key(i)));
  EXPECT_NE(t.find(kTree, val(key(1))), nullptr);
  EXPECT_EQ(t.find(kTree, val(key(2))), nullptr);
  EXPECT_EQ(t.find(kTree, val(key(3))), nullptr);
  EXPECT_NE(t.find(kTree, val(key(4))), nullptr);
  EXPECT_LE(t.size(), PrefetchTable::kMostKeys);
  // One key again and again keeps no more than that either, and is not lost.
  for (std::size_t i = 0; i < 3 * PrefetchTable::kMostKeys; ++i) (void)t.add(tree, val("one"));
  EXPECT_NE(t.find(kTree, val("one")), nullptr);
  EXPECT_EQ(t.find(kTree, val("new 0")), nullptr) << "its place in the queue was needed";
}

TEST(PrefetchTable, ClearForgetsAll) {
  PrefetchTable t;
  (void)t.add(t.number_of(kTree), val("a"));
  t.clear();
  EXPECT_EQ(t.size(), 0u);
  EXPECT_EQ(t.find(kTree, val("a")), nullptr);
  EXPECT_EQ(t.add(t.number_of(kTree), val("a")).number, 1u);
}

}  // namespace
}  // namespace lmdbio::tree
