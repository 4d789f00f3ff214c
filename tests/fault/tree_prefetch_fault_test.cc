// Values of keys prefetched: the right bytes, kept until the transaction ends, within the limit of memory;
// while each single read fails in turn, without an engine, through a fork, and when the transaction ends
// early.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/tree/env.h"
#include "lmdbio/tree/prefetch_file.h"
#include "lmdbio/tree/txn.h"
#include "lmdbio/window/io_worker.h"
#include "lmdbio/window/prefetcher.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"
#include "tests/support/rng.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/temp_file.h"

// Forking beside threads is what is tested.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace lmdbio::tree {
namespace {

using testing::engine_script;
using testing::FileImage;

const bool set = testing::script_all_reads("8M");

#if defined(__SANITIZE_THREAD__)
constexpr unsigned kStep = 7;  // slow: not each read
#else
constexpr unsigned kStep = 1;
#endif
constexpr std::size_t kPage = 4096;

struct Records {
  const char* name;
  unsigned count;
  std::size_t bytes;
  std::size_t page = kPage;
};
constexpr Records kRecords[] = {{"small", 5'000, 200},
                                {"medium", 1'500, 3'000},
                                {"large", 120, 110'000},
                                {"huge", 4, 3'000'000},
                                {"of small pages", 3'000, 700, 512}};

std::string key_of(unsigned i) {
  char text[16];
  (void)std::snprintf(text, sizeof text, "%07u", i);
  return text;
}
std::string value_of(unsigned i, const Records& r) {
  std::string v(r.bytes, static_cast<char>(i));
  v.replace(0, 7, key_of(i));
  v.replace(r.bytes - 7, 7, key_of(i));
  return v;
}

FileImage database(const Records& r) {
  FileImage f(r.page);
  // The metas are mapped and keep the pages beside them in the page cache.
  (void)f.overflow(std::string(std::size_t{4} << 20, 'x'));
  std::vector<testing::BranchEntry> level;
  const bool big = r.bytes > r.page / 2 - 64;
  const auto a_leaf = big ? static_cast<unsigned>((r.page - 16) / 64)
                          : static_cast<unsigned>((r.page - 16) / (8 + 7 + r.bytes + 4));
  for (unsigned i = 0; i < r.count;) {
    std::vector<testing::LeafEntry> entries;
    for (const unsigned end = std::min(r.count, i + a_leaf); i < end; ++i) {
      if (big)
        entries.push_back(
            FileImage::big(key_of(i), f.overflow(value_of(i, r)), static_cast<std::uint32_t>(r.bytes)));
      else
        entries.push_back({key_of(i), value_of(i, r)});
    }
    level.push_back({entries.front().key, f.leaf(entries)});
  }
  unsigned depth = 1;
  for (; level.size() > 1; ++depth) {
    std::vector<testing::BranchEntry> above;
    for (std::size_t i = 0; i < level.size();) {
      const std::size_t n = std::min<std::size_t>(level.size() - i, r.page / 32);
      const std::vector<testing::BranchEntry> some(level.begin() + static_cast<std::ptrdiff_t>(i),
                                                   level.begin() + static_cast<std::ptrdiff_t>(i + n));
      above.push_back({some.front().key, f.branch(some)});
      i += n;
    }
    level = std::move(above);
  }
  f.metas(FileImage::record(0, depth, level.front().child, r.count), 7);
  return f;
}

class Cold {
 public:
  explicit Cold(const Records& r)
      : image_(database(r)),
        file_(image_.bytes()),
        env_(std::move(Env::open(file_.fd(), {testing::pages_of(r.page),
                                              image_.bytes().size(),
                                              1,
                                              true,
                                              {},
                                              ~std::uint64_t{0} - 1,
                                              "prefetch.mdb"})
                           .value())),
        txn_(std::make_unique<Txn>(*env_)),
        records_(r) {
    begin();
  }
  void begin() {
    const MetaSource source(env_->metas().records);
    std::uint64_t txnid = 0;
    ASSERT_TRUE(source.renew(txnid).ok());
    ASSERT_TRUE(txn_->begin(txnid, source).ok());
    forget_pages();
  }
  /// The page cache, as far as it can be.
  void forget_pages() {
    const window::Window& w = *env_->window();
    (void)::madvise(const_cast<std::byte*>(w.base()), w.length(), MADV_DONTNEED);
    (void)::fdatasync(file_.fd());
    (void)::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
  void prefetch(const std::vector<std::string>& keys) {
    std::vector<MDB_val> vals;
    for (const std::string& k : keys) vals.push_back({k.size(), const_cast<char*>(k.data())});
    txn_->prefetch(kMainDbi, vals);
  }
  void prefetch(unsigned from, unsigned to, unsigned step = 1) {
    std::vector<std::string> keys;
    for (unsigned i = from; i < to; i += step) keys.push_back(key_of(i));
    prefetch(keys);
  }
  /// Null if the answer is wrong.
  const char* get(unsigned i) {
    const std::string key = key_of(i);
    MDB_val data{};
    errno = 4711;
    const Status st = txn_->get(kMainDbi, {key.size(), const_cast<char*>(key.data())}, data);
    if (errno != 4711) return nullptr;
    if (i >= records_.count) return st.raw() == MDB_NOTFOUND ? "" : nullptr;
    if (!st.ok() || data.mv_size != records_.bytes) return nullptr;
    return right(static_cast<const char*>(data.mv_data), i) ? static_cast<const char*>(data.mv_data)
                                                            : nullptr;
  }
  bool right(const char* data, unsigned i) const {
    return std::memcmp(data, value_of(i, records_).data(), records_.bytes) == 0;
  }
  void end() { txn_->end(false); }
  const PrefetchCounters& counters() const { return txn_->counters().prefetch; }
  std::string text() const {
    const PrefetchCounters& n = counters();
    return "keys " + std::to_string(n.keys) + " found " + std::to_string(n.found) + " cached " +
           std::to_string(n.cached) + " arena " + std::to_string(n.arena) + " hits " +
           std::to_string(n.hits) + " waits " + std::to_string(n.waits) + " dropped " +
           std::to_string(n.dropped) + " requests " + std::to_string(n.requests);
  }
  Env& env() { return *env_; }
  const FileImage& image() const { return image_; }
  const testing::TempFile& file() const { return file_; }

 private:
  const FileImage image_;
  const testing::TempFile file_;
  std::unique_ptr<Env> env_;
  std::unique_ptr<Txn> txn_;
  const Records records_;
};

bool direct_here() {
  const testing::TempFile probe(Bytes(database(kRecords[0]).bytes()));
  return File::reopen(probe.fd(), File::Kind::direct).has_value();
}

class PrefetchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!direct_here()) GTEST_SKIP() << "no direct reads in " << ::testing::TempDir();
    engine_script().reset();
  }
  void TearDown() override { engine_script().reset(); }
};

/// All records in a random order, prefetched `ahead`; some that are not there; each value stays what it was.
void read_all(Cold& db, const Records& r, std::uint64_t seed, unsigned ahead, unsigned piece) {
  test::Rng rng(seed);
  std::vector<unsigned> order;
  for (unsigned i = 0; i < r.count + r.count / 10; ++i) order.push_back(i);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  std::vector<const char*> held(r.count);
  std::size_t asked = 0;
  for (std::size_t at = 0; at < order.size(); ++at) {
    if (asked < order.size() && asked < at + ahead) {
      std::vector<std::string> keys;
      for (const std::size_t end = std::min(order.size(), asked + (asked == 0 ? ahead : piece)); asked < end;
           ++asked)
        if (rng.percent(95)) keys.push_back(key_of(order[asked]));
      db.prefetch(keys);
    }
    const char* const v = db.get(order[at]);
    ASSERT_NE(v, nullptr) << r.name << " " << order[at];
    if (order[at] < r.count) held[order[at]] = v;
  }
  for (unsigned i = 0; i < r.count; ++i) ASSERT_TRUE(db.right(held[i], i)) << r.name << " " << i;
  EXPECT_LE(window::Prefetcher::get()->memory().used(), window::Prefetcher::get()->memory().limit());
}

TEST_F(PrefetchTest, ValuesAreRightAndStayAndMemoryIsLimited) {
  for (const Records& r : kRecords) {
    Cold db(r);
    for (unsigned round = 0; round < 3; ++round) {
      if (round != 0) db.begin();
      read_all(db, r, round + 1, 100, round == 2 ? 1 : 20);
      db.end();
    }
    const PrefetchCounters& n = db.counters();
    EXPECT_GT(n.keys, r.count);
    EXPECT_EQ(n.dropped, 0u);
    if (r.bytes < r.page / 2 - 64) continue;
    EXPECT_GT(n.arena, 0u) << r.name;
    EXPECT_GT(n.hits, 0u);
    EXPECT_GT(n.requests, 0u);
  }
}

TEST_F(PrefetchTest, AHitIsAnsweredWithoutATouchOfTheMapping) {
  const Records& r = kRecords[2];
  Cold db(r);
  db.prefetch(0, 30);
  for (unsigned i = 0; i < 30; ++i) {
    const char* const v = db.get(i);
    ASSERT_NE(v, nullptr);
    EXPECT_FALSE(reinterpret_cast<const std::byte*>(v) >= db.env().window()->base() &&
                 reinterpret_cast<const std::byte*>(v) <
                     db.env().window()->base() + db.env().window()->length());
    EXPECT_EQ(db.get(i), v);  // once more
  }
  db.end();
  EXPECT_EQ(db.counters().hits, 60u) << db.text();
  EXPECT_EQ(db.counters().dropped, 0u);
  EXPECT_LT(db.counters().requests, 30u);  // values that lie side by side
}

TEST_F(PrefetchTest, WhatIsNeverLookedUpMakesRoom) {
  const Records& r = kRecords[2];
  Cold db(r);
  for (unsigned round = 0; round < 8; ++round) {
    // Each second one is prefetched in vain; the last one is looked up: those before it were passed.
    for (unsigned i = 0; i + 10 <= r.count; i += 10) {
      db.prefetch(i, i + 10);
      ASSERT_NE(db.get(i + 9), nullptr);
    }
    db.forget_pages();
  }
  EXPECT_LE(window::Prefetcher::get()->memory().used(), window::Prefetcher::get()->memory().limit());
  db.end();
}

// Handles are kept for transactions to come: with nothing that others would lack.
TEST_F(PrefetchTest, TransactionsThatHaveEndedKeepLittle) {
  const Records& r = kRecords[2];
  std::vector<std::unique_ptr<Cold>> all;
  for (unsigned i = 0; i < 24; ++i) {
    all.push_back(std::make_unique<Cold>(r));
    all.back()->prefetch(0, 20);
    ASSERT_NE(all.back()->get(3), nullptr);
    all.back()->end();
  }
  EXPECT_LE(window::Prefetcher::get()->memory().used(), window::Prefetcher::get()->memory().limit() / 8);
  all.front()->begin();
  all.front()->prefetch(0, 20);
  ASSERT_NE(all.front()->get(4), nullptr) << "and they read on";
  all.front()->end();
}

TEST_F(PrefetchTest, EachReadThatFailsIsLeftToTheMapping) {
  for (const Records& r : {kRecords[2], kRecords[1]}) {
    const unsigned count = std::min(r.count, 60u);
    unsigned reads = 0;
    {
      Cold db(r);
      engine_script().reset();
      db.prefetch(0, count, 2);
      for (unsigned i = 0; i < count; ++i) ASSERT_NE(db.get(i), nullptr);
      db.end();
      reads = engine_script().reads;
    }
    ASSERT_GT(reads, 3u);
    Cold db(r);
    db.end();
    unsigned dropped = 0;
    for (const int error : {EIO, 0, ENOMEM}) {
      for (unsigned nth = 1; nth <= reads; nth += error == EIO ? kStep : 7 * kStep) {
        db.begin();
        engine_script().reset();
        engine_script().error = error;
        engine_script().fail_nth = nth;
        db.prefetch(0, count, 2);
        for (unsigned i = 0; i < count; ++i) ASSERT_NE(db.get(i), nullptr) << nth;
        engine_script().reset();
        db.end();
      }
    }
    dropped = static_cast<unsigned>(db.counters().dropped);
    EXPECT_GT(dropped, 0u);
  }
}

TEST_F(PrefetchTest, WithoutAnEngineNothingIsPrefetched) {
  const Records& r = kRecords[2];
  Cold db(r);
  engine_script().fail_make = true;
  db.prefetch(0, 50);
  for (unsigned i = 0; i < 50; ++i) ASSERT_NE(db.get(i), nullptr);
  EXPECT_EQ(db.counters().hits, 0u);
  engine_script().fail_make = false;
  db.prefetch(50, 60);  // there is one now
  for (unsigned i = 50; i < 60; ++i) ASSERT_NE(db.get(i), nullptr);
  db.end();
  EXPECT_EQ(db.counters().hits, 10u);
}

TEST_F(PrefetchTest, ATransactionEndsWithReadsInFlight) {
  const Records& r = kRecords[2];
  Cold db(r);
  for (unsigned round = 0; round < 20; ++round) {
    if (round != 0) db.begin();
    db.prefetch(0, r.count);
    if (round % 2 == 0) {
      ASSERT_NE(db.get(round), nullptr);
    }
    db.end();
  }
  EXPECT_LE(window::Prefetcher::get()->memory().used(), window::Prefetcher::get()->memory().limit());
}

TEST_F(PrefetchTest, ALookupWaitsForAReadThatIsOnItsWay) {
  const Records& r = kRecords[2];
  Cold db(r);
  db.prefetch(0, 1);  // the way down, so that it is kept
  ASSERT_NE(db.get(0), nullptr);
  engine_script().hold();
  db.prefetch(10, 20);
  engine_script().hold();  // who looks from here on is a lookup
  std::thread later([] {
    engine_script().wait_for_held();
    engine_script().release();
  });
  for (unsigned i = 10; i < 20; ++i) EXPECT_NE(db.get(i), nullptr);
  later.join();
  db.end();
  EXPECT_GE(db.counters().waits, 1u);
}

/// What a thread does that is cancelled while it waits.
struct Cancelled {
  Cold& db;
  unsigned record;     ///< that it looks up; kEnds: it ends the transaction
  bool cleans_up;      ///< its cleanup handler ends the transaction
  bool right = false;  ///< the call went to its end, with the right answer
  static constexpr unsigned kEnds = ~0u;

  static void* run(void* self) {
    auto& c = *static_cast<Cancelled*>(self);
    const auto ends = [](void* s) { static_cast<Cancelled*>(s)->db.end(); };
    pthread_cleanup_push(ends, self);
    if (c.record == kEnds)
      c.db.end();
    else
      c.right = c.db.get(c.record) != nullptr;
    if (c.record == kEnds) c.right = true;
    if (c.cleans_up) ::pthread_testcancel();
    pthread_cleanup_pop(0);
    ::pthread_testcancel();
    return nullptr;
  }
};

// No call is a cancellation point: who is cancelled in one ends when the program asks for it, and leaves all
// whole.
TEST_F(PrefetchTest, ACancelledThreadWaitsToTheEnd) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' runtimes write to the stack of a cancelled thread";
#endif
  const Records& r = kRecords[2];
  // In the arena; beyond it, in the page cache; at the end of the transaction.
  for (const unsigned record : {0u, r.count - 1, Cancelled::kEnds}) {
    for (const bool cleans_up : {true, false}) {
      Cold db(r);
      db.prefetch(0, 1), db.prefetch(100, 101);  // the ways down, so that they are kept
      engine_script().hold();
      db.prefetch(0, r.count);
      engine_script().hold();  // who looks from here on is the thread
      Cancelled what{db, record, cleans_up};
      pthread_t thread;
      ASSERT_EQ(::pthread_create(&thread, nullptr, Cancelled::run, &what), 0);
      engine_script().wait_for_held();
      ASSERT_EQ(::pthread_cancel(thread), 0);
      engine_script().hold();
      engine_script().wait_for_held();  // it waits on
      engine_script().release();
      void* how = nullptr;
      ASSERT_EQ(::pthread_join(thread, &how), 0);
      EXPECT_EQ(how, PTHREAD_CANCELED);
      EXPECT_TRUE(what.right) << record;
      if (!cleans_up) {
        for (unsigned i = 0; record != Cancelled::kEnds && i < r.count; ++i)
          EXPECT_NE(db.get(i), nullptr) << record << " " << i;
        db.end();
      }
      db.begin();
      db.prefetch(0, 30);
      for (unsigned i = 0; i < 30; ++i) EXPECT_NE(db.get(i), nullptr) << record << " " << i;
      db.end();
      EXPECT_EQ(db.counters().dropped, 0u) << db.text();
    }
  }
}

// io_uring gives up what a thread that has ended was reading: by EFAULT where it was read through the page
// cache.
TEST_F(PrefetchTest, ReadsOfAThreadThatHasEndedAreTakenByAnother) {
  const Records& r = kRecords[2];
  for (const int given_up : {0, ECANCELED, EFAULT}) {
    Cold db(r);
    db.prefetch(0, 1), db.prefetch(100, 101);
    engine_script().reset();
    engine_script().hold();
    engine_script().error = given_up;
    engine_script().fail_times = ~0u;
    engine_script().fail_nth = given_up != 0 ? 1 : 0;
    std::thread([&] { db.prefetch(0, r.count); }).join();
    EXPECT_GT(engine_script().reads, 10u);
    EXPECT_EQ(engine_script().failed, given_up != 0 ? engine_script().reads.load() : 0u);
    engine_script().fail_nth = 0;
    engine_script().release();
    unsigned right = 0;
    std::thread([&] {
      for (unsigned i = 0; i < r.count; ++i) right += db.get(i) != nullptr;
    }).join();
    EXPECT_EQ(right, r.count) << given_up;
    db.end();
    EXPECT_EQ(db.counters().dropped, 0u) << given_up << ": " << db.text();
    EXPECT_EQ(db.counters().hits, r.count) << given_up << ": " << db.text();
  }
}

TEST_F(PrefetchTest, AForkedChildKeepsWhatWasGivenOutAndReadsTheRestItself) {
  const Records& r = kRecords[2];
  for (const bool in_flight : {false, true}) {
    Cold db(r);
    db.prefetch(0, 30);
    std::vector<const char*> held;
    for (unsigned i = 0; i < 10; ++i) held.push_back(db.get(i));
    db.prefetch(100, 101);  // the other leaf, so that it is kept
    if (in_flight) engine_script().hold();
    db.prefetch(40, 80);
    window::Prefetcher::get()->lock();
    const pid_t pid = ::fork();
    if (pid == 0) {
      window::Prefetcher::get()->after_fork_in_child();
      for (unsigned i = 0; i < 10; ++i)
        if (held[i] == nullptr || !db.right(held[i], i)) ::_exit(1);
      engine_script().release();
      for (unsigned i = 0; i < r.count; ++i)
        if (db.get(i) == nullptr) ::_exit(2);
      db.prefetch(0, r.count);  // its own
      for (unsigned i = 0; i < r.count; ++i)
        if (db.get(i) == nullptr) ::_exit(3);
      for (unsigned i = 0; i < 10; ++i)
        if (!db.right(held[i], i)) ::_exit(4);
      db.end();
      db.begin();
      db.prefetch(0, r.count);
      for (unsigned i = 0; i < r.count; ++i)
        if (db.get(i) == nullptr) ::_exit(5);
      db.end();
      ::_exit(0);
    }
    window::Prefetcher::get()->unlock();
    engine_script().release();
    for (unsigned i = 0; i < r.count; ++i) ASSERT_NE(db.get(i), nullptr);
    for (unsigned i = 0; i < 10; ++i) EXPECT_TRUE(db.right(held[i], i));
    db.end();
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << in_flight << " " << status;
  }
}

TEST_F(PrefetchTest, AnOrderThatIsSetLaterAsksTheTree) {
  const Records& r = kRecords[2];
  Cold db(r);
  db.prefetch(0, 10);
  db.env().dbx(kMainDbi).key_order = {format::Order::memnr};
  for (unsigned i = 0; i < 10; ++i) (void)db.get(i);  // whatever a search by another order finds
  EXPECT_EQ(db.counters().hits, 0u);
  db.env().dbx(kMainDbi).key_order = {format::Order::memn};
  for (unsigned i = 0; i < 10; ++i) ASSERT_NE(db.get(i), nullptr);
  db.end();
  EXPECT_EQ(db.counters().hits, 10u);
}

TEST_F(PrefetchTest, ARunWithoutItsHeaderIsNotTaken) {
  const Records& r = kRecords[2];
  Cold db(r);
  db.end();
  // Its pages' header, wherever it is.
  FileImage image = db.image();
  for (std::uint64_t p = 2; p < image.pages(); ++p) {
    std::byte* const page = image.page(p);
    if (load<std::uint16_t>(page + testing::kAtFlags) != format::kOverflow || load<std::uint64_t>(page) != p)
      continue;
    const std::uint64_t wrong = p + 1;
    ASSERT_EQ(::pwrite(db.file().fd(), &wrong, sizeof wrong, static_cast<off_t>(p * r.page)),
              static_cast<ssize_t>(sizeof wrong));
  }
  db.begin();
  db.prefetch(0, 30);
  for (unsigned i = 0; i < 30; ++i) ASSERT_NE(db.get(i), nullptr);  // as stock, which does not look at it
  db.end();
  EXPECT_EQ(db.counters().dropped, 30u);
}

}  // namespace
}  // namespace lmdbio::tree
