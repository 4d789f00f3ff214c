// What a transaction prefetches: which keys are looked at, how values are read, and what lookups are told.
// All values go past the page cache; failing reads, forks and ends: tests/fault/tree_prefetch_fault_test.cc.
#include <gtest/gtest.h>

#include <set>

#include "lmdbio/tree/txn_prefetch.h"
#include "tests/support/format_version.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/walk_env.h"

namespace lmdbio::tree {
namespace {

using testing::engine_script;
using testing::WalkEnv;

const bool set = testing::script_all_reads("8M");

constexpr std::uint64_t kPagesEach = 4;
constexpr unsigned kValues = 90;

class TxnPrefetchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_script().reset();
    std::shared_ptr<PrefetchFile> file = env_.env().prefetch_file(env_.bytes() >> env_.env().page_shift());
    if (file == nullptr || file->path() != ReadPath::direct) GTEST_SKIP() << "no direct reads here";
    prefetch_ = TxnPrefetch::make(std::move(file));
    ASSERT_NE(prefetch_, nullptr);
    env_.drop_page_cache();
  }
  void TearDown() override { prefetch_.reset(); }

  /// What came of it alone.
  PrefetchCounters add(const std::vector<std::string>& keys) {
    std::vector<MDB_val> vals;
    for (const std::string& k : keys) vals.push_back({k.size(), const_cast<char*>(k.data())});
    (void)prefetch_->take_counters();
    prefetch_->add(env_.txn(), kMainDbi, vals);
    return prefetch_->take_counters();
  }
  PrefetchCounters add(unsigned from, unsigned end, unsigned step = 1) {
    std::vector<std::string> keys;
    for (unsigned i = from; i < end; i += step) keys.push_back(WalkEnv::key_of(i));
    return add(keys);
  }
  PrefetchedTree tree() {
    const format::DbRecord& db = env_.txn().record_now(kMainDbi);
    return {kMainDbi, format::raw(db.root), db.flags, env_.env().dbx(kMainDbi).key_order};
  }
  /// Whether the answer is the prefetched one, and which.
  bool answered(const PrefetchedTree& tree, const std::string& key) {
    data_ = {};
    return prefetch_->answer(tree, {key.size(), const_cast<char*>(key.data())}, env_.view(), data_, status_);
  }
  bool is_value() const {
    return status_.ok() && data_.mv_size == kPagesEach * WalkEnv::kPage - testing::kPageHeader &&
           *static_cast<const char*>(data_.mv_data) == 'v';
  }
  bool in_window() const {
    const auto* const at = static_cast<const std::byte*>(data_.mv_data);
    return at >= env_.view().base() && at < env_.view().base() + env_.bytes();
  }
  /// Reads of values so far, by offset.
  static std::set<std::uint64_t> value_reads() {
    std::set<std::uint64_t> at;
    for (const auto& [offset, n] : engine_script().attempts())
      if (offset >= WalkEnv::kPage * 10) at.insert(offset);
    return at;
  }

  WalkEnv env_{kValues, kPagesEach, true};
  std::unique_ptr<TxnPrefetch> prefetch_;
  MDB_val data_{};
  Status status_;
};

TEST_F(TxnPrefetchTest, AbsentKeysAreAnsweredWithoutTheTree) {
  ASSERT_TRUE(set);
  const PrefetchCounters n = add({WalkEnv::key_of(3), "none such", WalkEnv::key_of(kValues)});
  EXPECT_EQ(n.keys, 3u);
  EXPECT_EQ(n.found, 1u);
  ASSERT_TRUE(answered(tree(), "none such"));
  EXPECT_EQ(status_.raw(), MDB_NOTFOUND);
  ASSERT_TRUE(answered(tree(), WalkEnv::key_of(kValues)));
  EXPECT_EQ(status_.raw(), MDB_NOTFOUND);
  ASSERT_TRUE(answered(tree(), WalkEnv::key_of(3)));
  EXPECT_TRUE(is_value());
  EXPECT_FALSE(in_window());
  EXPECT_FALSE(answered(tree(), WalkEnv::key_of(4))) << "nobody has asked for it";
}

TEST_F(TxnPrefetchTest, NeighboursAreReadTogether) {
  const PrefetchCounters n = add(0, 12);  // 12 values of 16 KiB
  EXPECT_EQ(n.found, 12u);
  EXPECT_EQ(n.arena, 12u);
  EXPECT_EQ(value_reads().size(), 1u);
  engine_script().reset();
  EXPECT_EQ(add(20, 40, 2).arena, 10u);
  EXPECT_EQ(value_reads().size(), 10u) << "those apart by themselves";
  for (unsigned i = 0; i < 12; ++i) {
    ASSERT_TRUE(answered(tree(), WalkEnv::key_of(i)));
    EXPECT_TRUE(is_value()) << i;
  }
}

// Told once or twice, in one call or two.
TEST_F(TxnPrefetchTest, NothingIsReadTwice) {
  EXPECT_EQ(add({WalkEnv::key_of(5), WalkEnv::key_of(9), WalkEnv::key_of(5)}).arena, 2u);
  const std::size_t reads = value_reads().size();
  EXPECT_EQ(reads, 2u);
  const PrefetchCounters n = add({WalkEnv::key_of(9), WalkEnv::key_of(5)});
  EXPECT_EQ(n.keys, 2u);
  EXPECT_EQ(n.found, 0u) << "not looked up again";
  EXPECT_EQ(value_reads().size(), reads);
}

// Values of 1 MiB are read as one at most: a read that fails spoils no more than those.
TEST_F(TxnPrefetchTest, ARunHasABound) {
  constexpr unsigned kMerged = (1 << 20) / (kPagesEach * WalkEnv::kPage);
  constexpr unsigned kAll = kValues - 1;
  (void)add({WalkEnv::key_of(kAll)});  // the leaf is read and kept
  engine_script().error = EIO;
  engine_script().fail_nth = engine_script().reads + 1;
  EXPECT_EQ(add(0, kAll).found, kAll);
  EXPECT_EQ(engine_script().failed, 1u);
  unsigned there = 0;
  for (unsigned i = 0; i < kAll; ++i) there += answered(tree(), WalkEnv::key_of(i));
  EXPECT_EQ(there, kAll - kMerged);
}

TEST_F(TxnPrefetchTest, AnotherTreeHasOtherAnswers) {
  (void)add(0, 4);
  PrefetchedTree other = tree();
  other.root += 1;
  EXPECT_FALSE(answered(other, WalkEnv::key_of(1)));
  other = tree();
  other.dbi = 5;
  EXPECT_FALSE(answered(other, WalkEnv::key_of(1)));
  EXPECT_TRUE(answered(tree(), WalkEnv::key_of(1)));
}

// Where all is in the page cache one key in 2, 4, 8 is looked at; a miss makes it each one again.
TEST_F(TxnPrefetchTest, FewerKeysAreLookedAtWhereAllIsThere) {
  env_.fill_page_cache();
  std::uint64_t found = 8;
  unsigned at = 0;
  for (const std::uint64_t one_in : {1u, 2u, 4u, 8u}) {
    const PrefetchCounters n = add(at, at + 8);
    EXPECT_EQ(n.keys, 8u);
    EXPECT_EQ(n.found, found / one_in) << one_in;
    EXPECT_EQ(n.cached, n.found);
    EXPECT_EQ(n.arena, 0u);
    at += 8;
  }
  EXPECT_EQ(add(at, at + 16).found, 2u) << "one in 8 at least";
  at += 16;
  EXPECT_FALSE(answered(tree(), WalkEnv::key_of(0))) << "the mapping has it";
  EXPECT_TRUE(value_reads().empty());
  env_.drop_page_cache();
  const PrefetchCounters n = add(at, at + 16);
  EXPECT_EQ(n.arena, 16u) << "all of them, once one was missing";
  EXPECT_EQ(add(at + 16, at + 19).arena, 3u);
}

TEST_F(TxnPrefetchTest, TheEndForgetsAll) {
  (void)add(0, 4);
  ASSERT_TRUE(answered(tree(), WalkEnv::key_of(1)));
  prefetch_->end();
  EXPECT_FALSE(answered(tree(), WalkEnv::key_of(1)));
  EXPECT_EQ(add(0, 4).arena, 4u) << "it may be used again";
  EXPECT_TRUE(answered(tree(), WalkEnv::key_of(1)));
}

TEST_F(TxnPrefetchTest, AProgramsOrderIsNotAsked) {
  Dbx& slot = env_.env().dbx(kMainDbi);
  const format::Comparator was = slot.key_order;
  slot.key_order = {format::Order::user, [](const MDB_val*, const MDB_val*) -> int { std::abort(); }};
  EXPECT_EQ(add(0, 4).found, 0u);
  slot.key_order = was;
  EXPECT_TRUE(value_reads().empty());
}

}  // namespace
}  // namespace lmdbio::tree
