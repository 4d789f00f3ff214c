// Transactions over the caller's bytes: life cycles of database handles, renewals, cursors that outlive them.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "tests/support/damaged.h"
#include "tests/support/temp_file.h"

namespace lmdbio::tree {
namespace {

using testing::as_val;
using testing::ExactBytes;
using testing::FileImage;
using testing::put;

constexpr std::size_t kPage = 512;
constexpr MDB_dbi kFirst = kCoreDbs, kSecond = kCoreDbs + 1;

const std::string kText = FileImage::name_key("text");

/// Leaf 2 and 3 of the named databases "one" and "two" (DUPSORT), main root 4; "text" is no database.
struct Named {
  Named() : f(kPage) {
    f.leaf({{"k", "one"}});
    f.leaf({{"k", "two"}});
    rewrite(7);
  }
  void rewrite(std::uint64_t txnid, unsigned two_flags = MDB_DUPSORT) {
    root = f.leaf(
        {{FileImage::name_key("one"), FileImage::as_data(FileImage::record(0, 1, 2, 1)), format::kSubData},
         {kText, "not a database"},
         {FileImage::name_key("two"), FileImage::as_data(FileImage::record(two_flags, 1, 3, 1)),
          format::kSubData}});
    f.metas(FileImage::record(0, 1, root, 3), txnid);
  }
  FileImage f;
  std::uint64_t root = 0;
};

class TxnTest : public ::testing::Test {
 protected:
  void open(const FileImage& f, Behaviour b = {}) {
    bytes_ = std::make_unique<ExactBytes>(f.bytes());
    env_ = std::move(
        Env::over(bytes_->bytes(), {testing::pages_of(kPage), bytes_->bytes().size(), 3, false, b}).value());
  }
  Status begin(Txn& txn) {
    const MetaSource source(env_->metas().records);
    std::uint64_t txnid = 0;
    (void)source.renew(txnid);
    return txn.begin(txnid, source);
  }
  // A later commit over the same bytes: both metas.
  void commit(std::uint64_t txnid, std::uint64_t root) {
    for (const std::uint64_t id : {txnid - 1, txnid}) {
      std::byte* const meta = bytes_->data() + (id & 1) * kPage + testing::kPageHeader;
      put(meta + detail::kAtDbs + sizeof(format::DbRecord) + offsetof(format::DbRecord, root), root);
      put(meta + detail::kAtTxnid, id);
    }
  }
  /// The handle, or the code.
  static int opened(Txn& txn, const char* name, unsigned flags) {
    MDB_dbi dbi = 0;
    const Status st = txn.open_dbi(name, flags, dbi);
    return st.ok() ? static_cast<int>(dbi) : st.raw();
  }
  static std::string get(Txn& txn, MDB_dbi dbi, const std::string& key) {
    MDB_val v{};
    const Status st = txn.get(dbi, as_val(key), v);
    return st.ok() ? std::string(static_cast<char*>(v.mv_data), v.mv_size) : std::to_string(st.raw());
  }
  std::unique_ptr<ExactBytes> bytes_;
  std::unique_ptr<Env> env_;
};

TEST_F(TxnTest, AnAdoptedHandleIsUsableAtOnceAndKeptIfTheTransactionSaysSo) {
  for (const bool keep : {true, false}) {
    open(Named().f);
    Txn txn(*env_), later(*env_);
    ASSERT_TRUE(begin(txn).ok());
    EXPECT_FALSE(txn.has_dbi(kFirst));
    EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst));
    EXPECT_EQ(opened(txn, "two", MDB_DUPSORT), static_cast<int>(kSecond));
    EXPECT_TRUE(txn.has_dbi(kFirst));
    EXPECT_EQ(get(txn, kFirst, "k"), "one");
    EXPECT_EQ(get(txn, kSecond, "k"), "two");
    // Not yet anybody else's.
    ASSERT_TRUE(begin(later).ok());
    EXPECT_FALSE(later.has_dbi(kFirst));
    later.end(true);
    txn.end(keep);
    EXPECT_TRUE(txn.finished());
    EXPECT_FALSE(txn.has_dbi(kFirst));
    ASSERT_TRUE(begin(later).ok());
    EXPECT_EQ(later.has_dbi(kFirst), keep);
    EXPECT_EQ(later.has_dbi(kSecond), keep);
    EXPECT_EQ(env_->dbx(kFirst).named(), keep);
    EXPECT_EQ(env_->num_dbs(), keep ? kSecond + 1 : kCoreDbs);
    if (!keep) continue;
    EXPECT_EQ(later.record_now(kSecond).flags, MDB_DUPSORT) << "flags are known before the first use";
    EXPECT_EQ(get(later, kFirst, "k"), "one");
    EXPECT_EQ(later.record_now(kFirst).root, format::Pgno{2});
  }
}

TEST_F(TxnTest, OpeningChecksInStocksOrder) {
  open(Named().f);
  Txn txn(*env_);
  EXPECT_EQ(opened(txn, "one", 0x1000), EINVAL) << "before all";
  EXPECT_EQ(opened(txn, "one", 0), MDB_BAD_TXN);
  ASSERT_TRUE(begin(txn).ok());
  EXPECT_EQ(opened(txn, "absent", 0), MDB_NOTFOUND);
  EXPECT_EQ(opened(txn, "absent", MDB_CREATE), EACCES);
  EXPECT_EQ(opened(txn, "", 0), testing::is_10() ? MDB_NOTFOUND : MDB_BAD_VALSIZE);
  EXPECT_EQ(opened(txn, "text", 0), MDB_INCOMPATIBLE);
  EXPECT_EQ(opened(txn, "text", MDB_CREATE), MDB_INCOMPATIBLE);
  EXPECT_FALSE(txn.blocked());
  EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst));
  EXPECT_EQ(opened(txn, nullptr, MDB_INTEGERKEY), static_cast<int>(kMainDbi));
  EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst)) << "open ones are found first";
  EXPECT_EQ(opened(txn, "two", 0), MDB_NOTFOUND) << "no names in such a main database";
  EXPECT_EQ(opened(txn, "two", MDB_CREATE), MDB_INCOMPATIBLE);
}

TEST_F(TxnTest, OpeningTakesTheFirstFreeSlotUntilThereIsNone) {
  Named n;
  const std::string record = FileImage::as_data(FileImage::record(0, 1, 2, 1));
  std::vector<testing::LeafEntry> names;
  for (const char* name : {"a", "b", "c", "d", "e"})
    names.push_back({FileImage::name_key(name), record, format::kSubData});
  const std::uint64_t root = n.f.leaf(names);
  n.f.metas(FileImage::record(0, 1, root, 5), 7);
  open(n.f);
  Txn txn(*env_);
  ASSERT_TRUE(begin(txn).ok());
  const int free = static_cast<int>(env_->max_dbs() - kCoreDbs);
  ASSERT_LT(free, 5);
  const char* const all[] = {"a", "b", "c", "d", "e"};
  for (int i = 0; i < free; ++i) EXPECT_EQ(opened(txn, all[i], 0), static_cast<int>(kFirst) + i);
  EXPECT_EQ(opened(txn, all[free], 0), MDB_DBS_FULL);
  env_->close_dbi(kFirst + 1);
  env_->close_dbi(kFirst);
  EXPECT_EQ(opened(txn, all[free], 0), static_cast<int>(kFirst));
  EXPECT_EQ(opened(txn, "a", 0), static_cast<int>(kFirst) + 1);
}

TEST_F(TxnTest, OpeningItAgainChangesNothing) {
  open(Named().f);
  Txn txn(*env_);
  ASSERT_TRUE(begin(txn).ok());
  EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst));
  env_->dbx(kFirst).key_order = {format::Order::memnr};
  EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst));
  EXPECT_EQ(env_->dbx(kFirst).key_order.order, format::Order::memnr);
  txn.end(true);
  ASSERT_TRUE(begin(txn).ok());
  EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst));
  txn.end(false);  // it was open before: it stays
  ASSERT_TRUE(begin(txn).ok());
  EXPECT_TRUE(txn.has_dbi(kFirst));
}

TEST_F(TxnTest, AClosedHandleIsGoneForLaterTransactions) {
  for (const int release : {24, 31, 32, 90}) {
    open(Named().f, Behaviour::of_release(release));
    Txn txn(*env_), running(*env_);
    ASSERT_TRUE(begin(txn).ok());
    EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst));
    txn.end(true);
    ASSERT_TRUE(begin(running).ok());
    env_->close_dbi(kFirst);
    EXPECT_TRUE(running.has_dbi(kFirst)) << "it began before";
    EXPECT_EQ(get(running, kFirst, "k"), std::to_string(release < 32 ? MDB_NOTFOUND : MDB_BAD_DBI))
        << release;
    EXPECT_FALSE(running.blocked());
    ASSERT_TRUE(begin(txn).ok());
    EXPECT_FALSE(txn.has_dbi(kFirst));
    EXPECT_EQ(opened(txn, "two", MDB_DUPSORT), static_cast<int>(kFirst));  // the slot is used again
    EXPECT_EQ(get(txn, kFirst, "k"), "two");
  }
}

TEST_F(TxnTest, CloseIgnoresWhatIsNotOpen) {
  open(Named().f);
  for (const unsigned dbi : {0u, 1u, 2u, 4u, 5u, ~0u}) env_->close_dbi(dbi);
  Txn txn(*env_);
  ASSERT_TRUE(begin(txn).ok());
  EXPECT_TRUE(txn.has_dbi(kMainDbi));
  EXPECT_FALSE(txn.has_dbi(kFreeDbi));
  EXPECT_TRUE(txn.has_dbi(kFreeDbi, true));
  EXPECT_FALSE(txn.has_dbi(kFirst, true));
  EXPECT_FALSE(txn.has_dbi(~0u, true));
}

TEST_F(TxnTest, AStaleHandleWhoseDatabaseIsGoneOrChanged) {
  for (const int release : {24, 90}) {
    Named n;
    const std::uint64_t before = n.root;
    const std::uint64_t none = n.f.leaf({{kText, "x"}});
    const std::uint64_t text = n.f.leaf({{FileImage::name_key("one"), "plain"}});
    const std::uint64_t shorter = n.f.leaf({{FileImage::name_key("one"), "short", format::kSubData}});
    const std::uint64_t other =
        n.f.leaf({{FileImage::name_key("one"), FileImage::as_data(FileImage::record(MDB_REVERSEKEY, 1, 2, 1)),
                   format::kSubData}});
    n.f.metas(FileImage::record(0, 1, before, 3), 7);
    open(n.f, Behaviour::of_release(release));
    Txn txn(*env_);
    ASSERT_TRUE(begin(txn).ok());
    EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst));
    txn.end(true);
    std::uint64_t id = 10;
    const auto expect = [&](std::uint64_t root, int rc, bool blocked) {
      commit(id += 2, root);
      ASSERT_TRUE(begin(txn).ok());
      EXPECT_EQ(txn.id(), id);
      EXPECT_EQ(get(txn, kFirst, "k"), rc == 0 ? "one" : std::to_string(rc)) << release << ' ' << root;
      EXPECT_EQ(txn.blocked(), blocked);
      txn.end(true);
    };
    expect(before, 0, false);
    expect(none, release < 32 ? MDB_NOTFOUND : MDB_BAD_DBI, false);
    expect(text, MDB_INCOMPATIBLE, false);
    expect(shorter, MDB_BAD_TXN, true);  // found damaged when the search is prepared, refused when it is made
    expect(other, MDB_INCOMPATIBLE, false);
    expect(format::raw(format::kNoPage), MDB_NOTFOUND, false);
    expect(before, 0, false);
  }
}

TEST_F(TxnTest, UnchangedTxnidStartsAgain) {
  open(Named().f);
  Txn txn(*env_);
  ASSERT_TRUE(begin(txn).ok());
  EXPECT_EQ(opened(txn, "one", 0), static_cast<int>(kFirst));
  EXPECT_EQ(opened(txn, nullptr, MDB_DUPSORT),
            static_cast<int>(kMainDbi));  // a program's flags last as long as its transaction
  EXPECT_EQ(txn.record_now(kMainDbi).flags, MDB_DUPSORT);
  txn.end(true);
  EXPECT_TRUE(txn.blocked());
  // Nothing of the metas is read where the id is the same: damage there goes unseen.
  put(bytes_->data() + kPage + testing::kPageHeader + detail::kAtTxnid, std::uint64_t{7});
  std::memset(bytes_->data() + kPage + testing::kPageHeader + detail::kAtDbs, 0xff, sizeof(Snapshot{}.dbs));
  ASSERT_TRUE(begin(txn).ok());
  EXPECT_FALSE(txn.blocked());
  EXPECT_EQ(txn.record_now(kMainDbi).flags, 0u);
  EXPECT_EQ(get(txn, kMainDbi, kText), "not a database");
  EXPECT_EQ(get(txn, kFirst, "k"), "one");
}

TEST_F(TxnTest, FailureToBeginLeavesItFinished) {
  open(Named().f);
  Txn txn(*env_);
  struct Failing {
    Status renew(std::uint64_t&) { return Status::from_errno(EIO); }
  };
  EXPECT_EQ(txn.begin(3, Failing{}).raw(), EIO);
  EXPECT_TRUE(txn.finished());
  ASSERT_TRUE(begin(txn).ok());
  EXPECT_FALSE(txn.blocked());
  EXPECT_EQ(txn.id(), 7u);
}

TEST_F(TxnTest, CursorsOfATransactionWhoseMemoryIsUsedAgain) {
  open(Named().f);
  MDB_val k{}, v{};
  auto txn = std::make_unique<Txn>(*env_);
  ASSERT_TRUE(begin(*txn).ok());
  Cursor a(*txn, kMainDbi), b(*txn, kMainDbi);
  auto c = std::make_unique<Cursor>(*txn, kMainDbi);
  ASSERT_TRUE(a.get(&k, &v, MDB_FIRST).ok());
  txn->end(true);
  EXPECT_EQ(a.get(&k, &v, MDB_NEXT).raw(), MDB_BAD_TXN);
  EXPECT_EQ(a.txn(), txn.get()) << "attached until the memory goes";
  c.reset();
  txn->recycle();  // as a pool of transactions does
  EXPECT_EQ(a.txn(), nullptr);
  EXPECT_EQ(a.get(&k, &v, MDB_FIRST).raw(), MDB_BAD_TXN);
  EXPECT_EQ(b.get(&k, &v, MDB_NEXT).raw(), MDB_BAD_TXN);
  ASSERT_TRUE(begin(*txn).ok());
  EXPECT_EQ(a.get(&k, &v, MDB_FIRST).raw(), MDB_BAD_TXN) << "the memory's next user is another transaction";
  Txn next(*env_);
  ASSERT_TRUE(begin(next).ok());
  a.renew(next);
  EXPECT_EQ(a.txn(), &next);
  EXPECT_EQ(a.get(&k, &v, MDB_GET_CURRENT).raw(), EINVAL) << "a renewed cursor is nowhere";
  EXPECT_TRUE(a.get(&k, &v, MDB_NEXT).ok());
}

TEST_F(TxnTest, TwoSnapshotsAtOnce) {
  Named n;
  const std::uint64_t older = n.root;
  const std::uint64_t newer = n.f.leaf({{kText, "newer"}});
  n.f.metas(FileImage::record(0, 1, older, 3), 7);
  open(n.f);
  Txn before(*env_), after(*env_);
  ASSERT_TRUE(begin(before).ok());
  commit(9, newer);
  ASSERT_TRUE(begin(after).ok());
  EXPECT_EQ(get(before, kMainDbi, kText), "not a database");
  EXPECT_EQ(get(after, kMainDbi, kText), "newer");
  before.end(true);
  ASSERT_TRUE(begin(before).ok());
  EXPECT_EQ(before.id(), 9u);
  EXPECT_EQ(get(before, kMainDbi, kText), "newer");
}

TEST_F(TxnTest, EveryCallIsCounted) {
  open(Named().f);
  Txn txn(*env_);
  ASSERT_TRUE(begin(txn).ok());
  (void)get(txn, kMainDbi, kText);
  (void)get(txn, kMainDbi, "absent");
  Cursor c(txn, kMainDbi);
  MDB_val k, v;
  for (MDB_cursor_op op = MDB_FIRST; c.get(&k, &v, op).ok(); op = MDB_NEXT) {
  }
  (void)c.get(&k, &v, static_cast<MDB_cursor_op>(25));
  const Counters& n = txn.counters();
  EXPECT_EQ(n.get, 2u);
  EXPECT_EQ(n.get_missed, 1u);
  EXPECT_EQ(n.cursor_op[MDB_FIRST], 1u);
  EXPECT_EQ(n.cursor_op[MDB_NEXT], 3u);
  EXPECT_EQ(n.cursor_op[Counters::kCursorOps], 1u);
  EXPECT_EQ(n.cursor_failed, 2u);
  EXPECT_EQ(n.bytes, 14u + 14u + 2 * sizeof(format::DbRecord));
  Counters sum = n;
  sum.add(n);
  EXPECT_EQ(sum.get, 4u);
  EXPECT_EQ(sum.bytes, 2 * n.bytes);
  EXPECT_EQ(sum.cursor_op[Counters::kCursorOps], 2u);
}

TEST_F(TxnTest, ReleasesDifferAtTheLastDuplicate) {
  FileImage f(kPage);
  const std::uint64_t root = f.leaf({{"k", FileImage::sub_page({"1", "2"}), format::kDupData}});
  f.metas(FileImage::record(MDB_DUPSORT, 1, root, 2), 7);
  for (const int release : {24, 26, 27, 29, 30, 90}) {
    open(f, Behaviour::of_release(release));
    Txn txn(*env_);
    ASSERT_TRUE(begin(txn).ok());
    Cursor c(txn, kMainDbi);
    MDB_val k{}, v{};
    ASSERT_TRUE(c.get(&k, nullptr, MDB_FIRST).ok());
    EXPECT_EQ(c.get(&k, &v, MDB_LAST_DUP).raw(), release < 27 ? EINVAL : 0) << release;
  }
}

TEST(EnvFile, RemapLeavesRunningTransactionsTheirWindow) {
  Named n;
  testing::TempFile file(n.f.bytes());
  auto env =
      std::move(Env::open(file.fd(), {testing::pages_of(kPage), n.f.bytes().size(), 3, false}).value());
  Txn running(*env), later(*env);
  const auto begin = [&](Txn& t) { return t.begin(7, MetaSource(env->metas().records)); };
  ASSERT_TRUE(begin(running).ok());
  MDB_val before{}, k{}, v{};
  ASSERT_TRUE(running.get(kMainDbi, as_val(kText), before).ok());
  Cursor c(running, kMainDbi);
  ASSERT_TRUE(c.get(&k, &v, MDB_FIRST).ok());
  const Txn::Stamp stamp = running.stamp();
  env->retire_window(false);
  ASSERT_TRUE(env->remap(std::uint64_t{8} << 20).ok());
  EXPECT_EQ(running.stamp().bits, stamp.bits);
  EXPECT_EQ(std::string(static_cast<char*>(before.mv_data), before.mv_size), "not a database");
  EXPECT_TRUE(c.get(&k, &v, MDB_NEXT).ok());
  ASSERT_TRUE(begin(later).ok());
  EXPECT_NE(later.stamp().window(), stamp.window());
  // The same id, another window: the place of a cursor that was not renewed is forgotten.
  running.end(true);
  ASSERT_TRUE(begin(running).ok());
  EXPECT_EQ(running.stamp().window(), later.stamp().window());
  EXPECT_EQ(c.get(&k, &v, MDB_GET_CURRENT).raw(), EINVAL);
  EXPECT_TRUE(c.get(&k, &v, MDB_NEXT).ok());
  EXPECT_EQ(env->window()->length(), std::uint64_t{8} << 20);
}

TEST(EnvFile, WindowsOfTheSameAddressAreToldApart) {
  Named n;
  testing::TempFile file(n.f.bytes());
  auto env =
      std::move(Env::open(file.fd(), {testing::pages_of(kPage), n.f.bytes().size(), 3, false}).value());
  Txn txn(*env);
  const auto begin = [&] { return txn.begin(7, MetaSource(env->metas().records)); };
  ASSERT_TRUE(begin().ok());
  // Two changes of the map while nothing runs: memory and addresses of the first window are free for the
  // third.
  for (const int mib : {8, 16}) {
    txn.end(false);
    env->retire_window(true);
    EXPECT_EQ(env->window(), nullptr);
    ASSERT_TRUE(env->remap(std::uint64_t{1} << 20 << mib / 8).ok());
  }
  ASSERT_TRUE(begin().ok());
  MDB_val v{};
  EXPECT_TRUE(txn.get(kMainDbi, as_val(kText), v).ok());
  EXPECT_EQ(txn.view().base(), env->window()->view(2).base());
}

TEST(EnvFile, WithoutAWindowNothingBegins) {
  Named n;
  testing::TempFile file(n.f.bytes());
  auto env =
      std::move(Env::open(file.fd(), {testing::pages_of(kPage), n.f.bytes().size(), 3, false}).value());
  Txn txn(*env);
  env->retire_window(true);
  EXPECT_EQ(txn.begin(7, MetaSource(env->metas().records)).raw(), ENOMEM);
  ASSERT_TRUE(env->remap(std::uint64_t{1} << 20).ok());
  EXPECT_TRUE(txn.begin(7, MetaSource(env->metas().records)).ok());
}

TEST(EnvFile, WithoutAddressesForAllOfTheMapTheFileIsMapped) {
  Named n;
  testing::TempFile file(n.f.bytes());
  const std::uint64_t length = n.f.bytes().size();
  auto env = std::move(Env::open(file.fd(), {testing::pages_of(kPage), length, 3, false}).value());
  env->retire_window(true);
  ASSERT_TRUE(env->remap(std::uint64_t{1} << 62).ok());
  EXPECT_GE(env->window()->length(), length);
  Txn txn(*env);
  EXPECT_TRUE(txn.begin(7, MetaSource(env->metas().records)).ok());
}

TEST(EnvFile, ASnapshotBeyondTheMapIsRefusedAsByStock) {
  Named n;
  testing::TempFile file(n.f.bytes());
  auto env = std::move(Env::open(file.fd(), {testing::pages_of(kPage), 3 * kPage, 3, false}).value());
  Txn txn(*env);
  EXPECT_EQ(txn.begin(7, MetaSource(env->metas().records)).raw(), MDB_MAP_RESIZED);
  EXPECT_TRUE(txn.finished());
}

TEST(EnvFile, TheFilesLengthBoundsWhatTheMetaPromises) {
  Named n;
  testing::TempFile file(n.f.bytes().first(4 * kPage));  // the root is missing
  auto env =
      std::move(Env::open(file.fd(), {testing::pages_of(kPage), std::uint64_t{1} << 20, 3, false}).value());
  Txn txn(*env);
  ASSERT_TRUE(txn.begin(7, MetaSource(env->metas().records)).ok());
  MDB_val v{};
  EXPECT_EQ(txn.get(kMainDbi, as_val(kText), v).raw(), MDB_CORRUPTED);
}

TEST(EnvOver, NeedsTwoMetas) {
  const std::vector<std::byte> bytes(2 * kPage - 1);
  EXPECT_EQ(Env::over(bytes, {testing::pages_of(kPage), bytes.size(), 3, false}).error().raw(), MDB_INVALID);
}

}  // namespace
}  // namespace lmdbio::tree
