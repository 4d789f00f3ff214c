// Ranks that read for each other, when reads fail and pages are damaged: each rank has the right records or
// the error of its own batch, and nobody waits for ever.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "lmdbio/ranks/file_source.h"
#include "lmdbio/ranks/rank_stream.h"
#include "tests/support/fake_ranks.h"
#include "tests/support/faulty_engine.h"
#include "tests/support/reader_db.h"

namespace lmdbio::ranks {
namespace {

using gather::MakeEngine;
using records::Reader;
using testing::expect_record;
using testing::FaultPlan;
using testing::FaultyEngine;
using testing::kDirectly;
using testing::ReaderDb;
using testing::Records;

constexpr std::uint32_t kRanks = 4;

class Faults;

class DistFault : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRecords = 400;
  static std::size_t size_of(std::uint64_t i) { return i % 2 != 0 ? 9000 : 500; }
  void SetUp() override {
    db.fill(kRecords, size_of);
    all = db.walk();
  }

  struct Outcome {
    std::vector<std::uint64_t> records = std::vector<std::uint64_t>(kRanks);
    std::map<std::uint32_t, std::vector<int>> errors;  ///< by rank
    bool finished = true, fired = false;
  };

  /// All ranks; rank 0 and 2 read.  An error is tried again, up to `tries` times a rank, which then ends.
  Outcome run(Faults& of_rank_0, unsigned tries);

  ReaderDb db;
  Records all;
};

/// An engine that fails by plan.
class Faults {
 public:
  explicit Faults(FaultPlan plan) : plan_(plan) {}
  MakeEngine maker() {
    return
        [this](const File& f, unsigned depth, EngineKind, const char**) -> Result<std::unique_ptr<IoEngine>> {
          auto inner = select_engine(f, depth, EngineKind::automatic, nullptr);
          if (!inner) return inner;
          auto made = std::make_unique<FaultyEngine>(std::move(inner).value(), plan_);
          engine_ = made.get();
          return std::unique_ptr<IoEngine>(std::move(made));
        };
  }
  /// While the reader lives.
  bool fired() const { return engine_ != nullptr && engine_->fired(); }

 private:
  const FaultPlan plan_;
  FaultyEngine* engine_ = nullptr;
};

DistFault::Outcome DistFault::run(Faults& of_rank_0, unsigned tries) {
  Job job;
  job.order = testing::order_of(LMDBIO_ORDER_SEQUENTIAL, 8, 1);
  job.ranks = kRanks, job.readers = 2, job.round_records = 100;
  const Assignment assignment = Assignment::make(job, kRecords).value();
  test::FakeNetwork network(kRanks, 1);
  std::vector<std::unique_ptr<Reader>> readers;
  std::vector<std::unique_ptr<FileSource>> sources;
  std::vector<std::unique_ptr<RankStream>> streams;
  for (std::uint32_t r = 0; r < kRanks; ++r) {
    readers.push_back(r == 0 ? db.reader(std::uint64_t{16} << 20, kDirectly, of_rank_0.maker())
                             : db.reader(std::uint64_t{16} << 20, kDirectly));
    sources.push_back(std::make_unique<FileSource>(*readers.back()));
    streams.emplace_back();
    RankStream::Settings settings;
    settings.reader_ranks = {0, 2};
    settings.ahead = 2;
    EXPECT_TRUE(
        RankStream::open(assignment, settings, network.rank(r), *sources.back(), streams.back()).ok());
  }
  Outcome out;
  std::vector<bool> ended(kRanks);
  for (std::uint64_t step = 0; step < 2'000'000; ++step) {
    const auto r = static_cast<std::uint32_t>(step % kRanks);
    (void)network.rank(r).poll();
    RankBatch b;
    std::string why;
    if (out.errors[r].size() >= tries) {
      streams[r]->leave();
      EXPECT_TRUE(streams[r]->progress(why).ok()) << why;
    } else {
      const records::Position before = streams[r]->position();
      const Status st = streams[r]->next(b, why);
      if (!st.ok() && st.raw() != EAGAIN && st.raw() != MDB_NOTFOUND) {
        EXPECT_EQ(streams[r]->position(), before);
        EXPECT_NE(why.find(db.file()), std::string::npos) << why;
        out.errors[r].push_back(st.raw());
      }
      for (const lmdbio_record& record : b.records) expect_record(record, all);
      out.records[r] += b.records.size();
    }
    ended[r] = streams[r]->closed();
    if (HasFatalFailure()) return out;
    if (std::count(ended.begin(), ended.end(), true) == kRanks) {
      out.fired = of_rank_0.fired();
      return out;
    }
  }
  out.finished = false;
  return out;
}

// One read of a reader fails: the ranks that wait for it read for themselves, and no program is told.
TEST_F(DistFault, OneReadFails) {
  const FaultPlan kinds[] = {testing::fail_nth(1, EIO), testing::interrupt_nth(1),
                             testing::again_nth(1, 3),  testing::short_nth(1),
                             testing::zero_nth(1),      testing::refuse_nth(1, ENOMEM)};
  for (FaultPlan plan : kinds) {
    unsigned fired = 0;
    for (unsigned k = 1;; ++k) {
      SCOPED_TRACE(std::to_string(static_cast<int>(plan.fault)) + " " + std::to_string(k));
      plan.nth = k;
      Faults faults(plan);
      const Outcome o = run(faults, 5);
      ASSERT_TRUE(o.finished);
      for (std::uint32_t r = 0; r < kRanks; ++r) EXPECT_EQ(o.records[r], kRecords / kRanks) << r;
      for (const auto& [rank, errors] : o.errors) EXPECT_EQ(errors.size(), 0u) << rank;
      if (!o.fired) break;
      ++fired;
    }
    EXPECT_GE(fired, 3u) << static_cast<int>(plan.fault);
  }
}

// All reads of one rank fail, from some read on: its own batches are errors, with the file's name; the others
// have everything.
TEST_F(DistFault, AllReadsOfOneRankFail) {
  for (unsigned k = 1; k < 5; ++k) {
    SCOPED_TRACE(k);
    FaultPlan plan = testing::fail_nth(k, EIO);
    plan.times = 1'000'000;
    Faults faults(plan);
    const Outcome o = run(faults, 5);
    ASSERT_TRUE(o.finished);
    for (std::uint32_t r = 1; r < kRanks; ++r) EXPECT_EQ(o.records[r], kRecords / kRanks) << r;
    EXPECT_LT(o.records[0], kRecords / kRanks);
    EXPECT_EQ(o.errors.at(0), std::vector<int>(5, EIO));
  }
}

// Another program overwrites or truncates the file while records from the page cache are sent.  The receiver
// gets the records that were sent before, as they were, and an error for the others.
TEST_F(DistFault, AFileChangesWhileItsRecordsAreSent) {
  for (const bool truncated : {false, true}) {
    SCOPED_TRACE(truncated);
    ReaderDb changed;
    changed.fill(kRecords, size_of);
    const auto pages = std::filesystem::file_size(changed.file()) / 4096;
    Job job;
    job.order = testing::order_of(LMDBIO_ORDER_SEQUENTIAL, 10, 1);
    job.ranks = 2, job.readers = 1, job.round_records = 100;
    const Assignment assignment = Assignment::make(job, kRecords).value();
    test::FakeNetwork network(2, 1);
    const auto reader = changed.reader(std::uint64_t{16} << 20, testing::kAsResident);
    if (reader->shared().residency.samples()) GTEST_SKIP() << "nothing tells what is in the page cache";
    FileSource source(*reader);
    RankStream::Settings settings;
    settings.reader_ranks = {0};
    settings.ahead = 2;
    std::vector<std::unique_ptr<RankStream>> streams(2);
    for (std::uint32_t r = 0; r < 2; ++r)
      ASSERT_TRUE(RankStream::open(assignment, settings, network.rank(r), source, streams[r]).ok());
    std::string why;
    while (streams[0]->traffic().messages_sent < settings.ahead)
      ASSERT_TRUE(streams[0]->progress(why).ok()) << why;
    ASSERT_EQ(reader->shared().counters.bytes_read, 0u) << "the page cache has the records";
    if (truncated) {
      std::filesystem::resize_file(changed.file(), 2 * std::uintmax_t{4096});
    } else {
      const int fd = ::open(changed.file().c_str(), O_WRONLY | O_CLOEXEC);
      const std::vector<char> other(4096, '\xff');
      for (std::uint64_t page = 2; page < pages; ++page)
        ASSERT_EQ(::pwrite(fd, other.data(), other.size(), static_cast<off_t>(page * 4096)), 4096);
      ::close(fd);
    }
    std::uint64_t received = 0;
    Status failed;
    while (failed.ok()) {
      ASSERT_TRUE(streams[0]->progress(why).ok()) << why;
      (void)network.rank(1).poll();
      RankBatch b;
      const Status st = streams[1]->next(b, why);
      for (const lmdbio_record& record : b.records) expect_record(record, all);
      if (st.ok()) received += b.records.size();
      if (!st.ok() && st.raw() != EAGAIN) failed = st;
    }
    EXPECT_EQ(received, settings.ahead * job.round_records / 2);
    EXPECT_EQ(failed.raw(), truncated ? EIO : MDB_CORRUPTED) << why;
    EXPECT_NE(why.find(changed.file()), std::string::npos) << why;
    for (const auto& stream : streams) stream->leave();
    while (!streams[0]->closed() || !streams[1]->closed())
      for (std::uint32_t r = 0; r < 2; ++r) {
        (void)network.rank(r).poll();
        ASSERT_TRUE(streams[r]->progress(why).ok()) << why;
      }
  }
}

// A damaged page is the error of the batches that have a record in it.
TEST_F(DistFault, ADamagedPage) {
  std::unique_ptr<records::RecordLocations> locations = ReaderDb::locations(db.source());
  records::RecordLocation location;
  locations->locations(101, {&location, 1});
  ASSERT_NE(location.overflow, 0u);
  const int fd = ::open(db.file().c_str(), O_WRONLY | O_CLOEXEC);
  const std::uint64_t wrong = 0;  // the page's number
  ASSERT_EQ(::pwrite(fd, &wrong, sizeof wrong, static_cast<off_t>(location.overflow * 4096)), 8);
  ::close(fd);
  Faults none(FaultPlan{});
  const Outcome o = run(none, 5);
  ASSERT_TRUE(o.finished);
  for (std::uint32_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(o.errors.at(r), r == 101 % kRanks ? std::vector<int>(5, MDB_CORRUPTED) : std::vector<int>())
        << r;
    EXPECT_EQ(o.records[r], r == 101 % kRanks ? 101 / kRanks / 8 * 8 : kRecords / kRanks) << r;
  }
}

}  // namespace
}  // namespace lmdbio::ranks
