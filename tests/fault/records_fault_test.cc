// Readers when reads fail, pages are damaged, files shrink, and streams are cancelled.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <numeric>
#include <thread>

#include "tests/support/faulty_engine.h"
#include "tests/support/reader_db.h"

namespace lmdbio::records {
namespace {

using gather::MakeEngine;
using testing::expect_record;
using testing::Fault;
using testing::FaultPlan;
using testing::FaultyEngine;
using testing::kAsResident;
using testing::kDirectly;
using testing::kThroughPageCache;
using testing::order_of;
using testing::ReaderDb;
using testing::Records;
using testing::stream_of;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Engines that fail once in all, by plan.
class Faults {
 public:
  explicit Faults(FaultPlan plan) : plan_(plan) {}
  MakeEngine maker() {
    return
        [this](const File& f, unsigned depth, EngineKind, const char**) -> Result<std::unique_ptr<IoEngine>> {
          auto inner = select_engine(f, depth, EngineKind::automatic, nullptr);
          if (!inner) return inner;
          auto made = std::make_unique<FaultyEngine>(std::move(inner).value(), plan_, ++seed_);
          engine_ = made.get();
          return std::unique_ptr<IoEngine>(std::move(made));
        };
  }
  bool fired() const { return engine_ != nullptr && engine_->fired(); }

 private:
  FaultPlan plan_;
  std::uint64_t seed_ = 0;
  FaultyEngine* engine_ = nullptr;
};

class ReaderFault : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRecords = 400;
  void SetUp() override {
    db.fill(kRecords, [](std::uint64_t i) -> std::size_t { return i % 2 != 0 ? 9000 : 500; });
    all = db.walk();
  }
  /// All records in order of `o`; every failed next() is tried again, up to a limit.  The codes met.
  std::vector<int> read_all(Stream& s, std::uint64_t expected) {
    std::vector<int> errors;
    std::uint64_t n = 0;
    while (errors.size() < 50) {
      std::unique_ptr<Batch> b;
      std::string why;
      const Position before = s.position();
      const Status st = s.next(b, why);
      if (st.raw() == MDB_NOTFOUND) break;
      if (!st.ok()) {
        EXPECT_EQ(s.position(), before);
        EXPECT_NE(why.find(db.file()), std::string::npos) << why;
        errors.push_back(st.raw());
        continue;
      }
      EXPECT_EQ(b->position, before.position);
      for (std::size_t i = 0; i < b->count; ++i) expect_record(b->records[i], all);
      n += b->count;
    }
    EXPECT_EQ(n, expected);
    return errors;
  }

  ReaderDb db;
  Records all;
};

TEST_F(ReaderFault, AnyOneFailureIsToldOrSurvived) {
  const FaultPlan kinds[] = {
      testing::fail_nth(1, EIO),      testing::fail_nth(1, ECANCELED), testing::interrupt_nth(1),
      testing::again_nth(1, 3),       testing::short_nth(1),           testing::zero_nth(1),
      testing::refuse_nth(1, ENOMEM), testing::full_nth(1, 3),         testing::reap_nth(1, EIO)};
  for (const std::uint64_t batch : {1u, 64u, 1000u}) {
    for (FaultPlan plan : kinds) {
      const bool tells = plan.fault == Fault::fail && plan.error == EIO;
      unsigned told = 0;
      unsigned k = 1;
      for (;; k += k < 20 ? 1 : 17) {
        plan.nth = k;
        Faults faults(plan);
        const auto r = db.reader(16 * kMiB, kDirectly, faults.maker());
        bool fired;
        {
          const auto s = stream_of(*r, order_of(LMDBIO_ORDER_SHUFFLE, batch));
          const std::vector<int> errors = read_all(*s, kRecords);
          fired = faults.fired();
          EXPECT_LE(errors.size(), fired ? 1u : 0u) << k;
          told += static_cast<unsigned>(errors.size());
          for (const int e : errors) EXPECT_TRUE(e == EIO || e == ENOMEM) << e;
        }
        EXPECT_EQ(r->shared().pool->counters().used_bytes, 0u);
        if (HasFailure()) return;
        if (!fired) break;
      }
      EXPECT_GT(k, 1u);  // a fault that is never met shows nothing
      // One large batch has nobody else to blame; of many small ones each is read again.
      if (tells && batch != 64) {
        EXPECT_EQ(told != 0, batch == 1000) << batch;
      }
    }
  }
}

TEST_F(ReaderFault, FailuresInARowAreToldEachTime) {
  Faults faults(FaultPlan{Fault::fail, 2, EIO, 60});
  const auto r = db.reader(16 * kMiB, kDirectly, faults.maker());
  const auto s = stream_of(*r, order_of(LMDBIO_ORDER_SEQUENTIAL, 50));
  const std::vector<int> errors = read_all(*s, kRecords);
  EXPECT_GT(errors.size(), 1u);
  for (const int e : errors) EXPECT_EQ(e, EIO);
}

TEST_F(ReaderFault, AFailedCallLeavesTheReaderWhole) {
  Faults faults(testing::fail_nth(1, EIO));
  const auto r = db.reader(16 * kMiB, kDirectly, faults.maker());
  const std::uint64_t some[] = {1, 2, 399};
  std::unique_ptr<Batch> b;
  std::string why;
  EXPECT_EQ(r->read(some, b, why).raw(), EIO);
  EXPECT_NE(why.find("Input/output error"), std::string::npos) << why;
  ASSERT_EQ(r->read(some, b, why).raw(), 0) << why;
  for (std::size_t i = 0; i < 3; ++i) expect_record(b->records[i], all);
}

TEST_F(ReaderFault, NoEngine) {
  const auto r =
      db.reader(16 * kMiB, kDirectly,
                [](const File&, unsigned, EngineKind, const char**) -> Result<std::unique_ptr<IoEngine>> {
                  return Status::from_errno(EPERM);
                });
  const auto s = stream_of(*r, order_of(LMDBIO_ORDER_SEQUENTIAL, 50));
  std::unique_ptr<Batch> b;
  std::string why;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s->next(b, why).raw(), EPERM);
  EXPECT_NE(why.find(db.file()), std::string::npos) << why;
}

// Whatever a page holds: MDB_CORRUPTED or bytes inside the buffer, and all other records are right.
TEST_F(ReaderFault, DamagedPages) {
  const Source source = db.source();
  const auto locations = ReaderDb::locations(source);
  std::vector<RecordLocation> at(kRecords);
  locations->locations(0, at);
  const UniqueFd file(::open(db.file().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);
  test::Rng rng(3);
  unsigned corrupted = 0;
  for (unsigned round = 0; round < 300; ++round) {
    const RecordLocation& victim = at[rng.below(kRecords)];
    const bool run = victim.overflow != 0 && rng.percent(50);
    const std::uint64_t page = run ? victim.overflow : victim.leaf;
    const std::uint64_t offset = page * source.page_size + rng.below(run ? 16 : 120);
    std::uint64_t good, bad = rng.next();
    if (rng.percent(50)) bad &= 0xff;
    const std::size_t n = rng.between(1, 8);
    ASSERT_EQ(::pread(file.get(), &good, n, static_cast<off_t>(offset)), static_cast<ssize_t>(n));
    ASSERT_EQ(::pwrite(file.get(), &bad, n, static_cast<off_t>(offset)), static_cast<ssize_t>(n));
    {
      const auto r = std::make_unique<Reader>(db.source(), ReaderDb::locations_of(*locations), 8 * kMiB,
                                              rng.percent(50) ? kDirectly : kThroughPageCache);
      lmdbio_order o = order_of(LMDBIO_ORDER_SEQUENTIAL, 1);
      auto s = stream_of(*r, o);
      std::unique_ptr<Batch> b;
      std::string why;
      std::uint64_t sum = 0;
      for (std::uint64_t i = 0; i < kRecords; ++i) {
        const Status st = s->next(b, why);
        const bool hit = at[i].leaf == page || at[i].overflow == page;
        if (st.ok()) {
          ASSERT_EQ(b->records[0].ordinal, i);
          if (!hit) expect_record(b->records[0], all);
          for (const MDB_val& v : {b->records[0].key, b->records[0].value})  // readable
            sum +=
                std::accumulate(static_cast<const unsigned char*>(v.mv_data),
                                static_cast<const unsigned char*>(v.mv_data) + v.mv_size, std::uint64_t{0});
          continue;
        }
        ASSERT_EQ(st.raw(), MDB_CORRUPTED);
        ASSERT_TRUE(hit) << i << " " << why;
        ASSERT_NE(why.find("page " + std::to_string(page)), std::string::npos) << why;
        ++corrupted;
        o.position = i + 1;
        if (o.position == kRecords) break;
        s = stream_of(*r, o);
      }
      EXPECT_NE(sum, 0u);
    }
    ASSERT_EQ(::pwrite(file.get(), &good, n, static_cast<off_t>(offset)), static_cast<ssize_t>(n));
    if (HasFailure()) return;
  }
  EXPECT_GT(corrupted, 100u);
}

TEST_F(ReaderFault, AFileThatShrinks) {
  for (const ReadDecision& read : {kDirectly, kThroughPageCache, kAsResident}) {
    const auto r = db.reader(16 * kMiB, read);
    const std::uint64_t size = std::filesystem::file_size(db.file());
    const std::string copy = db.file() + ".whole";
    std::filesystem::copy_file(db.file(), copy);
    std::filesystem::resize_file(db.file(), size / 2 + 100);
    std::unique_ptr<Batch> b;
    std::string why;
    unsigned good = 0, bad = 0;
    for (std::uint64_t i = 0; i < kRecords; ++i) {
      const Status st = r->read({&i, 1}, b, why);
      if (st.ok()) {
        expect_record(b->records[0], all);
        ++good;
      } else {
        EXPECT_EQ(st.raw(), EIO);
        ++bad;
      }
    }
    EXPECT_GT(good, 50u);
    EXPECT_GT(bad, 50u);
    {
      const auto s = stream_of(*r, order_of(LMDBIO_ORDER_SEQUENTIAL, 1));
      while (s->next(b, why).ok()) {
      }
      EXPECT_LT(s->position().position, kRecords);
    }
    // A reader that is opened now knows the end.
    std::filesystem::rename(copy, db.file());
  }
}

/// Reads that are not answered before `open` says so.  `gate`, if given, is readable from then on.
class HeldEngine final : public IoEngine {
 public:
  HeldEngine(const File& file, std::atomic<unsigned>& held, std::atomic<bool>& open, int gate = -1)
      : IoEngine({file.alignment(), 8, file.direct()}),
        fd_(file.fd()),
        ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        held_(held),
        open_(open),
        gate_(gate) {}
  int ready_fd() const noexcept override { return gate_ >= 0 ? gate_ : ready_.get(); }

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    reads_.insert(reads_.end(), reads.begin(), reads.end());
    held_.store(static_cast<unsigned>(reads_.size()), std::memory_order_release);
    return reads.size();
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t) noexcept override {
    std::size_t n = 0;
    while (open_.load(std::memory_order_acquire) && n < out.size() && !reads_.empty()) {
      const RawRead r = reads_.back();
      reads_.pop_back();
      out[n++] = {r.slot, ::pread(fd_, r.dst.data(), r.dst.size(), static_cast<off_t>(r.offset))};
    }
    return n;
  }
  const int fd_;
  const UniqueFd ready_;
  std::vector<RawRead> reads_;
  std::atomic<unsigned>& held_;
  std::atomic<bool>& open_;
  const int gate_;
};

TEST_F(ReaderFault, CancelWakesWhoWaits) {
  std::atomic<unsigned> held{0};
  std::atomic<bool> open{false};
  const auto r =
      db.reader(16 * kMiB, kDirectly,
                [&](const File& f, unsigned, EngineKind, const char**) -> Result<std::unique_ptr<IoEngine>> {
                  return std::unique_ptr<IoEngine>(std::make_unique<HeldEngine>(f, held, open));
                });
  auto s = stream_of(*r, order_of(LMDBIO_ORDER_SEQUENTIAL, 50));
  int rc = 0, again = 0;
  std::thread waits([&] {
    std::unique_ptr<Batch> b;
    std::string why;
    rc = s->next(b, why).raw();
    again = s->next(b, why).raw();
  });
  while (held.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  s->cancel();
  waits.join();
  EXPECT_EQ(rc, ECANCELED);
  EXPECT_EQ(again, ECANCELED);
  open.store(true);
  s.reset();
  EXPECT_EQ(r->shared().pool->counters().used_bytes, 0u);
}

/// Reads of the first stream are held; it has read ahead what leaves no room for a batch of 120 records.
class ReadAheadInFlight : public ReaderFault {
 protected:
  static constexpr int kRunning = -1;
  void SetUp() override {
    ReaderFault::SetUp();
    ASSERT_TRUE(gate);
    reader = db.reader(
        kMiB + kMiB / 2, kDirectly,
        [this](const File& f, unsigned, EngineKind, const char**) -> Result<std::unique_ptr<IoEngine>> {
          return std::unique_ptr<IoEngine>(std::make_unique<HeldEngine>(f, held, open, gate.get()));
        });
    first = stream_of(*reader, order_of(LMDBIO_ORDER_SEQUENTIAL, 80));
    second = stream_of(*reader, order_of(LMDBIO_ORDER_SEQUENTIAL, 120));
  }
  void answer() {
    open.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(gate.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  /// The first stream waits for its first batch, and has asked for those after it.
  std::thread in_first(std::atomic<int>& rc) {
    std::thread waits([this, &rc] {
      std::unique_ptr<Batch> b;
      std::string why;
      rc = first->next(b, why).raw();
    });
    while (held.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    return waits;
  }
  /// The second lacks memory.
  std::thread in_second(std::atomic<int>& rc) {
    std::thread waits([this, &rc] {
      std::unique_ptr<Batch> b;
      std::string why;
      rc = second->next(b, why).raw();
    });
    while (reader->shared().pool->needs() == 0 && rc.load() == kRunning) std::this_thread::yield();
    EXPECT_EQ(rc.load(), kRunning);
    return waits;
  }
  void finish() {
    std::unique_ptr<Batch> b;
    std::string why;
    for (Stream* const s : {first.get(), second.get()})
      if (s != nullptr && s->next(b, why).ok())
        for (std::size_t i = 0; i < b->count; ++i) expect_record(b->records[i], all);
    b.reset();
    first.reset();
    second.reset();
    EXPECT_EQ(reader->shared().pool->counters().used_bytes, 0u);
    EXPECT_EQ(reader->shared().pool->needs(), 0u);
  }

  std::atomic<unsigned> held{0};
  std::atomic<bool> open{false};
  const UniqueFd gate{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<Reader> reader;
  std::unique_ptr<Stream> first, second;
};

TEST_F(ReadAheadInFlight, OfAStreamInACallIsWaitedFor) {
  std::atomic<int> one{kRunning}, two{kRunning};
  std::thread a = in_first(one), b = in_second(two);
  answer();
  a.join();
  b.join();
  EXPECT_EQ(one, 0);
  EXPECT_EQ(two, 0);
  finish();
}

TEST_F(ReadAheadInFlight, OfAStreamInACallDoesNotOutlastCancel) {
  std::atomic<int> one{kRunning}, two{kRunning};
  std::thread a = in_first(one), b = in_second(two);
  second->cancel();
  b.join();
  EXPECT_EQ(two, ECANCELED);
  answer();
  a.join();
  EXPECT_EQ(one, 0);
  finish();
}

// After a cancelled call the stream is idle and its reads are in flight.
TEST_F(ReadAheadInFlight, OfAnIdleStreamIsWaitedFor) {
  std::atomic<int> one{kRunning}, two{kRunning};
  std::thread a = in_first(one);
  first->cancel();
  a.join();
  EXPECT_EQ(one, ECANCELED);
  std::thread b = in_second(two);
  answer();
  b.join();
  EXPECT_EQ(two, 0);
  finish();
}

TEST_F(ReadAheadInFlight, OfAnIdleStreamDoesNotOutlastCancel) {
  std::atomic<int> one{kRunning}, two{kRunning};
  std::thread a = in_first(one);
  first->cancel();
  a.join();
  std::thread b = in_second(two);
  second->cancel();
  b.join();
  EXPECT_EQ(two, ECANCELED);
  answer();
  finish();
}

TEST_F(ReadAheadInFlight, OfAStreamThatIsClosed) {
  std::atomic<int> one{kRunning}, two{kRunning};
  std::thread a = in_first(one);
  first->cancel();
  a.join();
  std::thread b = in_second(two);
  std::thread closes([this] { first.reset(); });
  answer();
  closes.join();
  b.join();
  EXPECT_EQ(two, 0);
  finish();
}

// With reads in flight that nobody will answer in the child.
TEST_F(ReaderFault, AChildDoesNotWait) {
  std::atomic<unsigned> held{0};
  std::atomic<bool> open{false};
  auto r =
      db.reader(16 * kMiB, kDirectly,
                [&](const File& f, unsigned, EngineKind, const char**) -> Result<std::unique_ptr<IoEngine>> {
                  return std::unique_ptr<IoEngine>(std::make_unique<HeldEngine>(f, held, open));
                });
  auto s = stream_of(*r, order_of(LMDBIO_ORDER_SEQUENTIAL, 50));
  std::thread waits([&] {
    std::unique_ptr<Batch> b;
    std::string why;
    EXPECT_EQ(s->next(b, why).raw(), ECANCELED);
  });
  while (held.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  s->cancel();
  waits.join();
  const pid_t child = ::fork();
  if (child == 0) {
    std::unique_ptr<Batch> b;
    std::string why;
    const std::uint64_t zero = 0;
    const bool refused = s->next(b, why).raw() == EINVAL && r->read({&zero, 1}, b, why).raw() == EINVAL;
    s.reset();
    r.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  open.store(true);
  s.reset();
}

// As before, but a thread of the parent is inside: in next(), in read(), in next() for want of memory.
class InsideAtTheFork : public ReadAheadInFlight {
 protected:
  /// A forked child closes all, and its other calls are refused.
  void close_in_child() {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      std::unique_ptr<Batch> b;
      std::string why;
      const std::uint64_t zero = 0;
      first->cancel();
      const bool refused = first->next(b, why).raw() == EINVAL && second->next(b, why).raw() == EINVAL &&
                           reader->read({&zero, 1}, b, why).raw() == EINVAL;
      second.reset();
      first.reset();
      reader.reset();
      ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
};

TEST_F(InsideAtTheFork, Streams) {
  std::atomic<int> one{kRunning}, two{kRunning};
  std::thread a = in_first(one);
  close_in_child();
  std::thread b = in_second(two);
  close_in_child();
  EXPECT_EQ(one, kRunning);
  EXPECT_EQ(two, kRunning);
  answer();
  a.join();
  b.join();
  EXPECT_EQ(one, 0);
  EXPECT_EQ(two, 0);
  finish();
}

TEST_F(InsideAtTheFork, ReadsByOrdinals) {
  const std::uint64_t some[] = {1, 7, 399};
  std::unique_ptr<Batch> got;
  std::atomic<int> rc{kRunning};
  std::thread reads([&] {
    std::string why;
    rc = reader->read(some, got, why).raw();
  });
  while (held.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  close_in_child();
  EXPECT_EQ(rc, kRunning);
  answer();
  reads.join();
  ASSERT_EQ(rc, 0);
  for (std::size_t i = 0; i < std::size(some); ++i) {
    EXPECT_EQ(got->records[i].ordinal, some[i]);
    expect_record(got->records[i], all);
  }
  got.reset();
  finish();
}

/// Answers one read at a time, the oldest first; what another thread has submitted was given up, as io_uring
/// does when a thread ends.
class OrphaningEngine final : public IoEngine {
 public:
  OrphaningEngine(const File& file, int error, std::atomic<unsigned>& given_up)
      : IoEngine({file.alignment(), 64, file.direct()}), fd_(file.fd()), error_(error), given_up_(given_up) {}
  int ready_fd() const noexcept override { return always_.get(); }

 private:
  /// Not used again, as the system's are.
  static unsigned this_thread() noexcept {
    static std::atomic<unsigned> threads{0};
    thread_local const unsigned number = ++threads;
    return number;
  }
  struct Taken {
    RawRead read;
    unsigned by;
  };
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    for (const RawRead& r : reads) reads_.push_back({r, this_thread()});
    return reads.size();
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t) noexcept override {
    if (reads_.empty() || out.empty()) return std::size_t{0};
    const Taken t = reads_.front();
    reads_.pop_front();
    if (t.by != this_thread()) {
      ++given_up_;
      out[0] = {t.read.slot, -static_cast<long>(error_)};
    } else {
      out[0] = {t.read.slot,
                ::pread(fd_, t.read.dst.data(), t.read.dst.size(), static_cast<off_t>(t.read.offset))};
    }
    return std::size_t{1};
  }
  const int fd_, error_;
  std::deque<Taken> reads_;
  std::atomic<unsigned>& given_up_;
  const UniqueFd always_{::eventfd(1, EFD_CLOEXEC)};
};

// Each batch is asked for by a thread of its own, which ends, and given back by another one.
TEST(ReaderThreads, ReadsOfThoseThatHaveEndedAreTakenByOthers) {
  constexpr std::uint64_t kRecords = 1500;  // many loads
  ReaderDb db;
  db.fill(kRecords, [](std::uint64_t) -> std::size_t { return 9000; });
  const Records all = db.walk();
  for (const int error : {0, ECANCELED, EFAULT}) {
    for (const ReadDecision& read : {kDirectly, kThroughPageCache}) {
      std::atomic<unsigned> given_up{0};
      const MakeEngine orphaning = [&](const File& f, unsigned, EngineKind,
                                       const char**) -> Result<std::unique_ptr<IoEngine>> {
        return std::unique_ptr<IoEngine>(std::make_unique<OrphaningEngine>(f, error, given_up));
      };
      const auto r = db.reader(16 * kMiB, read, error != 0 ? orphaning : ReaderDb::engines());
      const auto s = stream_of(*r, order_of(LMDBIO_ORDER_SHUFFLE, 50));
      if (const UniqueFd file(::open(db.file().c_str(), O_RDONLY | O_CLOEXEC)); file) {
        (void)::fdatasync(file.get());
        (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
      }
      std::uint64_t n = 0;
      for (int rc = 0; rc == 0;) {
        std::unique_ptr<Batch> b;
        std::string why;
        std::thread([&] { rc = s->next(b, why).raw(); }).join();
        ASSERT_TRUE(rc == 0 || rc == MDB_NOTFOUND) << rc << " " << why;
        for (std::size_t i = 0; b != nullptr && i < b->count; ++i) expect_record(b->records[i], all);
        n += b != nullptr ? b->count : 0;
        std::thread([&] { b.reset(); }).join();
      }
      EXPECT_EQ(n, kRecords);
      EXPECT_EQ(given_up != 0, error != 0) << "reads were in flight when a thread ended";
    }
  }
}

}  // namespace
}  // namespace lmdbio::records
