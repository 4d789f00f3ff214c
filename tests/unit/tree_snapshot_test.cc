// Snapshots beside a writer that commits between any two loads of the reader.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>

#include "lmdbio/tree/snapshot.h"
#include "tests/support/rng.h"

namespace lmdbio::tree {
namespace {

using test::Rng;

constexpr std::size_t kDbWords = sizeof(Snapshot{}.dbs) / 8;
static_assert(kDbWords == 12);
// A commit's stores in stock's order: map size, records, last page, transaction id; then the lock file's id.
constexpr std::size_t kAtMapsize = offsetof(format::MetaRecord, mapsize);
constexpr unsigned kStores = 1 + kDbWords + 1 + 1, kSteps = kStores + 1;

/// What commit `n` stores at word `i` of the records: tells both.
constexpr std::uint64_t word_of(std::uint64_t n, std::uint64_t i) { return n * 1000 + i; }

/// Two meta pages, a lock file, and a writer that can stop between any two stores.
class Writer {
 public:
  explicit Writer(std::uint64_t last_commit) : next_(last_commit + 1), lock_txnid_(last_commit) {
    // A fresh file has the content of transaction 0 in both.
    for (const std::uint64_t n : {last_commit == 0 ? 0 : last_commit - 1, last_commit}) store_all(n, n & 1);
    if (last_commit == 0) store_all(0, 1);
  }
  void advance(std::uint64_t steps) {
    for (; steps > 0; --steps) step();
  }
  std::uint64_t lock_txnid() const { return lock_txnid_; }
  const std::byte* meta(unsigned which) const {
    return reinterpret_cast<const std::byte*>(metas_[which].data());
  }

 private:
  void store(unsigned which, std::size_t at, std::uint64_t value) { metas_[which][at / 8] = value; }
  void store_step(std::uint64_t n, unsigned which, unsigned step) {
    if (step == 0)
      store(which, kAtMapsize, n);
    else if (step <= kDbWords)
      store(which, detail::kAtDbs + 8 * (step - 1), word_of(n, step - 1));
    else if (step == kDbWords + 1)
      store(which, detail::kAtLastPg, word_of(n, kDbWords));
    else
      store(which, detail::kAtTxnid, n);
  }
  void store_all(std::uint64_t n, std::uint64_t which) {
    for (unsigned i = 0; i < kStores; ++i) store_step(n, static_cast<unsigned>(which), i);
  }
  void step() {
    if (done_ < kStores)
      store_step(next_, static_cast<unsigned>(next_ & 1), done_);
    else
      lock_txnid_ = next_;
    if (++done_ == kSteps) {
      done_ = 0;
      ++next_;
    }
  }

  std::array<std::array<std::uint64_t, 32>, 2> metas_{};
  std::uint64_t next_;
  unsigned done_ = 0;  // steps of commit next_
  std::uint64_t lock_txnid_;
};

/// Lets the writer run before each load of the reader.  One test at a time, one thread.
struct SteppedWords {
  static inline std::function<void()> before;
  static std::uint64_t load(const std::byte* p) {
    before();
    std::uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
};

/// As a transaction of the real library: the id comes from the lock file.
struct LockSource {
  const Writer& writer;
  std::uint64_t held;
  unsigned renewed = 0;
  Status renew(std::uint64_t& txnid) {
    SteppedWords::before();
    txnid = held = writer.lock_txnid();
    ++renewed;
    SteppedWords::before();
    return {};
  }
};

/// MetaSource, with the writer running between its two loads.
struct FreeSource {
  const Writer& writer;
  std::uint64_t held;
  unsigned renewed = 0;
  Status renew(std::uint64_t& txnid) {
    const std::uint64_t a = SteppedWords::load(writer.meta(0) + detail::kAtTxnid);
    const std::uint64_t b = SteppedWords::load(writer.meta(1) + detail::kAtTxnid);
    txnid = held = a < b ? b : a;
    ++renewed;
    return {};
  }
};

/// read_snapshot with the check that looks enough and is not: the meta's own id before and after.
template <class Words, class Source>
Status read_weakened(const std::byte* const (&metas)[2], Source&& source, Snapshot& out) {
  for (int round = 0; round < 1000; ++round) {
    const std::uint64_t txnid = out.txnid;
    const std::byte* const meta = metas[txnid & 1];
    const std::uint64_t before = Words::load(meta + detail::kAtTxnid);
    std::uint64_t words[kDbWords];
    for (std::size_t i = 0; i < kDbWords; ++i) words[i] = Words::load(meta + detail::kAtDbs + 8 * i);
    out.last_pg = Words::load(meta + detail::kAtLastPg);
    const std::uint64_t after = Words::load(meta + detail::kAtTxnid);
    if (before == txnid && after == txnid) {
      std::memcpy(out.dbs, words, sizeof out.dbs);
      return {};
    }
    if (const Status st = source.renew(out.txnid); !st.ok()) return st;
  }
  return Status::from_mdb(MDB_BAD_TXN);
}

struct Rule {
  template <class Source>
  static Status read(const std::byte* const (&metas)[2], Source& source, Snapshot& out) {
    return read_snapshot<SteppedWords>(metas, source, out);
  }
};
struct Weakened {
  template <class Source>
  static Status read(const std::byte* const (&metas)[2], Source& source, Snapshot& out) {
    return read_weakened<SteppedWords>(metas, source, out);
  }
};

/// What reads came to.
struct Tally {
  std::uint64_t reads = 0, mixed = 0, wrong_id = 0, not_held = 0, gave_up = 0, retried = 0, moved_on = 0;
};

/// One read that begins while commit `last` + 1 has made `begun` steps; `schedule(i)` steps before load i.
template <class R, class Source>
void one_read(std::uint64_t last, unsigned begun, const std::function<std::uint64_t(unsigned)>& schedule,
              Tally& tally) {
  Writer writer(last);
  writer.advance(begun);
  unsigned loads = 0;
  SteppedWords::before = [&] { writer.advance(schedule(loads++)); };
  Snapshot s;
  s.txnid = last;
  Source source{writer, last};
  const std::byte* const metas[2] = {writer.meta(0), writer.meta(1)};
  const Status st = R::read(metas, source, s);
  SteppedWords::before = nullptr;
  ++tally.reads;
  tally.retried += source.renewed != 0;
  if (!st.ok()) {
    EXPECT_EQ(st.raw(), MDB_BAD_TXN);
    ++tally.gave_up;
    return;
  }
  std::uint64_t words[kDbWords + 1];
  std::memcpy(words, s.dbs, sizeof s.dbs);
  words[kDbWords] = s.last_pg;
  const std::uint64_t commit = words[0] / 1000;
  bool whole = true;
  for (std::size_t i = 0; i <= kDbWords; ++i) whole = whole && words[i] == word_of(commit, i);
  tally.mixed += !whole;
  tally.wrong_id += whole && s.txnid != commit;
  tally.not_held += s.txnid != source.held && source.held != 0;  // 0 holds all
  tally.moved_on += s.txnid > last;
}

/// Each stop of the writer when the read begins, each single pause of the reader, each length of it.
template <class R, class Source>
Tally every_single_pause(std::initializer_list<std::uint64_t> lasts) {
  Tally tally;
  for (const std::uint64_t last : lasts) {
    for (unsigned begun = 0; begun < kSteps; ++begun) {
      for (unsigned i = 0; i < 2 * (kDbWords + 6); ++i) {
        for (unsigned j = 1; j <= 4 * kSteps; ++j)
          one_read<R, Source>(
              last, begun, [&](unsigned load) { return load == i ? j : 0u; }, tally);
      }
    }
  }
  return tally;
}

template <class R, class Source>
Tally two_pauses(std::uint64_t last) {
  Tally tally;
  for (unsigned begun = 0; begun < kSteps; begun += 8) {
    for (unsigned i = 0; i < kDbWords + 8; ++i) {
      for (unsigned k = i; k < kDbWords + 8; ++k) {
        for (unsigned j = 1; j <= 3 * kSteps; j += 5) {
          for (const unsigned m : {1u, 2u, 7u, kStores - 1, kStores, kSteps, kSteps + 3, 2 * kSteps})
            one_read<R, Source>(
                last, begun, [&](unsigned load) { return (load == i ? j : 0u) + (load == k ? m : 0u); },
                tally);
        }
      }
    }
  }
  return tally;
}

template <class R, class Source>
Tally random_pauses(std::uint64_t seed, unsigned reads) {
  Tally tally;
  Rng rng(seed);
  for (unsigned n = 0; n < reads; ++n) {
    const unsigned pace = rng.between(1, 100), longest = rng.between(1, 40);
    unsigned left = 12 * kSteps;  // so many commits, and the writer rests
    one_read<R, Source>(
        rng.below(20), rng.below(kSteps),
        [&](unsigned) {
          const unsigned steps = rng.percent(pace) ? std::min(left, rng.between(0, longest)) : 0;
          left -= steps;
          return steps;
        },
        tally);
  }
  return tally;
}

constexpr std::uint64_t kSeed = 20191;

template <class Source>
class TornCommit : public ::testing::Test {};
using Sources = ::testing::Types<LockSource, FreeSource>;
TYPED_TEST_SUITE(TornCommit, Sources);

void expect_never_mixed(const Tally& t) {
  EXPECT_EQ(t.mixed, 0u) << t.reads;
  EXPECT_EQ(t.wrong_id, 0u) << t.reads;
  EXPECT_EQ(t.not_held, 0u) << t.reads;
  EXPECT_GT(t.retried, 0u) << "the writer was never in the way";
  EXPECT_GT(t.moved_on, 0u);
}

TYPED_TEST(TornCommit, AtEachStoreBeforeEachLoad) {
  const Tally t = every_single_pause<Rule, TypeParam>({0, 1, 8});
  expect_never_mixed(t);
  EXPECT_EQ(t.gave_up, 0u);
}

TYPED_TEST(TornCommit, WithTwoPauses) {
  const Tally t = two_pauses<Rule, TypeParam>(3);
  expect_never_mixed(t);
  EXPECT_EQ(t.gave_up, 0u);
}

TYPED_TEST(TornCommit, UnderRandomSchedules) {
  std::cout << "seed " << kSeed << '\n';
  const Tally t = random_pauses<Rule, TypeParam>(kSeed, 15'000);
  expect_never_mixed(t);
  EXPECT_EQ(t.gave_up, 0u);
}

// The same programs find what is wrong with a check that is too weak: they can fail.
TYPED_TEST(TornCommit, TheWeakerCheckIsCaught) {
  EXPECT_GT((every_single_pause<Weakened, TypeParam>({7}).mixed), 0u);
  EXPECT_GT((two_pauses<Weakened, TypeParam>(3).mixed), 0u);
  EXPECT_GT((random_pauses<Weakened, TypeParam>(kSeed, 5'000).mixed), 0u);
}

TEST(ReadSnapshot, AWriterThatNeverPausesIsNotWaitedForForever) {
  Tally t;
  one_read<Rule, LockSource>(
      5, 0, [](unsigned) { return 3 * kSteps; }, t);
  EXPECT_EQ(t.gave_up, 1u);
}

TEST(ReadSnapshot, AQuietFileIsReadWithoutAskingAgain) {
  for (std::uint64_t last = 0; last < 6; ++last) {
    for (unsigned begun = 0; begun < kStores; ++begun) {  // the next commit's id is not yet there
      Tally t;
      one_read<Rule, LockSource>(
          last, begun, [](unsigned) { return 0u; }, t);
      EXPECT_EQ(t.retried + t.mixed + t.wrong_id + t.gave_up, 0u) << last << ' ' << begun;
    }
  }
}

// A commit whose meta is there and whose id is not yet in the lock file: the older copy is whole.
TEST(ReadSnapshot, TheSameIdTwiceIsEnough) {
  Tally t;
  one_read<Rule, LockSource>(
      4, kStores, [](unsigned) { return 0u; }, t);
  EXPECT_EQ(t.retried, 1u);
  EXPECT_EQ(t.moved_on + t.mixed + t.wrong_id + t.gave_up, 0u);
}

// A lock file that belongs to another state of the file.
TEST(ReadSnapshot, AnIdThatNoMetaHasIsNoSnapshot) {
  struct Stubborn {
    std::uint64_t id;
    Status renew(std::uint64_t& txnid) {
      txnid = id;
      return {};
    }
  };
  Writer writer(4);
  SteppedWords::before = [] {};
  const std::byte* const metas[2] = {writer.meta(0), writer.meta(1)};
  for (const std::uint64_t id : {1u, 2u, 5u, 6u, 100u}) {
    Snapshot s;
    s.txnid = id;
    EXPECT_EQ(read_snapshot<SteppedWords>(metas, Stubborn{id}, s).raw(), MDB_BAD_TXN) << id;
  }
  // 0 is one that is just being set up, by the same process.
  Snapshot s;
  s.txnid = 0;
  EXPECT_TRUE(read_snapshot<SteppedWords>(metas, Stubborn{0}, s).ok());
  EXPECT_EQ(s.txnid, 4u);
  EXPECT_EQ(s.last_pg, word_of(4, kDbWords));
  SteppedWords::before = nullptr;
}

TEST(ReadSnapshot, TheSourcesFailureIsTheReaders) {
  struct Failing {
    Status renew(std::uint64_t&) { return Status::from_errno(EIO); }
  };
  Writer writer(4);
  SteppedWords::before = [] {};
  Snapshot s;
  s.txnid = 3;  // the other meta is newer
  const std::byte* const metas[2] = {writer.meta(0), writer.meta(1)};
  EXPECT_EQ(read_snapshot<SteppedWords>(metas, Failing{}, s).raw(), EIO);
  SteppedWords::before = nullptr;
}

TEST(MetaSource, TakesTheNewer) {
  for (const std::uint64_t last : {0u, 1u, 2u, 9u}) {
    const Writer writer(last);
    const std::byte* const metas[2] = {writer.meta(0), writer.meta(1)};
    std::uint64_t txnid = 77;
    EXPECT_TRUE(MetaSource(metas).renew(txnid).ok());
    EXPECT_EQ(txnid, last);
    Snapshot s;
    s.txnid = txnid;
    EXPECT_TRUE(read_snapshot(metas, MetaSource(metas), s).ok());
    EXPECT_EQ(s.txnid, last);
    EXPECT_EQ(s.last_pg, word_of(last, kDbWords));
  }
}

}  // namespace
}  // namespace lmdbio::tree
