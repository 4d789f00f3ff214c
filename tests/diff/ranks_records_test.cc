// Ranks of a job over a real database against a walk by the real LMDB: each rank's records are those that a
// cursor of the real LMDB comes to that skips the others', however the ranks are numbered and wherever values
// lie.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <numeric>

#include "lmdbio/ranks/file_source.h"
#include "lmdbio/ranks/rank_stream.h"
#include "lmdbio/ranks/stream_terms.h"
#include "tests/support/fake_ranks.h"
#include "tests/support/reader_db.h"

namespace lmdbio::ranks {
namespace {

using records::Reader;
using testing::expect_record;
using testing::kAsResident;
using testing::kDirectly;
using testing::ReaderDb;
using testing::Records;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const lmdbio_order kInOrder = testing::order_of(LMDBIO_ORDER_SEQUENTIAL, 10, 1);

struct Result {
  std::vector<Records> by_rank;
  std::uint64_t bytes_read = 0, file_bytes = 0;
  std::uint64_t bytes_sent = 0;        ///< to other ranks
  std::uint64_t message_bytes = 0;     ///< memory for messages, sent and received
  std::uint64_t used_in_messages = 0;  ///< records that the ranks used where a message has them
};

/// Counts the memory for messages, and knows where it is.
class CountedMemory final : public PayloadMemory {
 public:
  std::byte* allocate(std::size_t size) noexcept override {
    std::byte* const bytes = PayloadMemory::allocate(size);
    all_ += size;
    sizes_[bytes] = size;
    return bytes;
  }
  void release(std::byte* bytes, std::size_t size) noexcept override {
    sizes_.erase(bytes);
    PayloadMemory::release(bytes, size);
  }
  std::uint64_t all() const { return all_; }
  bool has(const MDB_val& v) const {
    const auto* const at = static_cast<const std::byte*>(v.mv_data);
    const auto after = sizes_.upper_bound(at);
    return after != sizes_.begin() && at + v.mv_size <= std::prev(after)->first + std::prev(after)->second;
  }

 private:
  std::uint64_t all_ = 0;
  std::map<const std::byte*, std::size_t> sizes_;
};

/// All ranks of a job, in one thread, with a reader each, until each has had its records.
Result run(ReaderDb& db, const Job& job, const Records& all, ReadDecision how, std::uint64_t seed,
           std::uint64_t memory = 16 * kMiB) {
  Result out;
  const Assignment assignment = Assignment::make(job, all.size()).value();
  test::FakeNetwork network(job.ranks, seed);
  RankStream::Settings settings;
  const auto messages = std::make_shared<CountedMemory>();
  settings.memory = messages;
  for (std::uint32_t r = 0; r < job.readers; ++r)
    settings.reader_ranks.push_back(r * job.ranks / job.readers);
  std::vector<std::unique_ptr<Reader>> readers;
  std::vector<std::unique_ptr<FileSource>> sources;
  std::vector<std::unique_ptr<RankStream>> streams;
  for (std::uint32_t r = 0; r < job.ranks; ++r) {
    readers.push_back(db.reader(memory, how));
    sources.push_back(std::make_unique<FileSource>(*readers.back()));
    streams.emplace_back();
    EXPECT_TRUE(
        RankStream::open(assignment, settings, network.rank(r), *sources.back(), streams.back()).ok());
  }
  out.by_rank.resize(job.ranks);
  test::Rng rng(seed);
  std::vector<RankBatch> held(job.ranks);
  const auto unfinished = [&] {
    return std::any_of(streams.begin(), streams.end(), [](const auto& s) { return !s->closed(); });
  };
  while (unfinished()) {
    const std::size_t r = rng.below(job.ranks);
    (void)network.rank(static_cast<std::uint32_t>(r)).poll();
    RankBatch b;
    std::string why;
    const Status st = streams[r]->next(b, why);
    if (st.raw() == EAGAIN || st.raw() == MDB_NOTFOUND) continue;
    EXPECT_TRUE(st.ok()) << why;
    if (!st.ok()) return out;
    held[r] = std::move(b);
    for (const lmdbio_record& record : held[r].records) {
      expect_record(record, all);
      out.used_in_messages += messages->has(record.value);
      out.by_rank[r].emplace_back(testing::text(record.key), testing::text(record.value));
    }
    if (::testing::Test::HasFatalFailure()) return out;
  }
  held.clear();
  for (const auto& stream : streams) out.bytes_sent += stream->traffic().bytes_sent;
  out.message_bytes = messages->all();
  streams.clear();
  sources.clear();  // which counts what was read
  for (const auto& r : readers) out.bytes_read += r->shared().counters.bytes_read;
  out.file_bytes = readers[0]->shared().file_bytes();
  return out;
}

Job job_of(std::uint32_t ranks, std::uint32_t readers, std::uint64_t batch, std::uint64_t round_records) {
  Job job;
  job.order = testing::order_of(LMDBIO_ORDER_SEQUENTIAL, batch, 2);
  job.order.across_epochs = 1;
  job.ranks = ranks;
  job.readers = readers;
  job.round_records = round_records;
  return job;
}

/// Every rank against a cursor that skips.
void expect_shares(ReaderDb& db, const Job& job, const Records& all, ReadDecision how, std::uint64_t seed) {
  const Result got = run(db, job, all, how, seed);
  if (::testing::Test::HasFailure()) return;
  for (std::uint32_t r = 0; r < job.ranks; ++r)
    ASSERT_EQ(got.by_rank[r], db.walk_share(r, job.ranks, got.by_rank[r].size())) << "rank " << r;
  std::uint64_t given = 0;
  for (const Records& records : got.by_rank) given += records.size();
  ASSERT_EQ(given, 2 * all.size());
}

// What the published LMDBIO (2017) has wrong data or crashes for, each by name.

TEST(DistRecords, RecordsOutOfFileOrder) {
  ReaderDb db;
  db.fill(600, [](std::uint64_t i) -> std::size_t { return i % 3 == 0 ? 9000 : 300; });
  for (unsigned i = 0; i < 300; ++i) db.put_again(i * 7 % 600, i % 2 == 0 ? 12000 : 100);
  const Records all = db.walk();
  for (const ReadDecision& how : {kAsResident, kDirectly})
    expect_shares(db, job_of(4, 2, 8, 64), all, how, 1);
}

TEST(DistRecords, SmallRecords) {
  ReaderDb db;
  db.fill(5000, [](std::uint64_t i) -> std::size_t { return i % 200; });
  expect_shares(db, job_of(5, 2, 32, 700), db.walk(), kDirectly, 2);
}

TEST(DistRecords, UnevenSizes) {
  ReaderDb db;
  test::Rng rng(3);
  db.fill(400, [&rng](std::uint64_t) -> std::size_t {
    return rng.below(4) == 0 ? 0 : rng.below(rng.below(8) == 0 ? 300000 : 3000);
  });
  for (const ReadDecision& how : {kAsResident, kDirectly})
    expect_shares(db, job_of(3, 3, 5, 50), db.walk(), how, 3);
}

TEST(DistRecords, BatchesThatRanksDoNotDivide) {
  ReaderDb db;
  db.fill(997, [](std::uint64_t) -> std::size_t { return 500; });
  expect_shares(db, job_of(7, 3, 13, 91), db.walk(), kDirectly, 4);
}

TEST(DistRecords, WrapAroundOfEpochs) {
  ReaderDb db;
  db.fill(10, [](std::uint64_t) -> std::size_t { return 5000; });
  Job job = job_of(4, 2, 7, 6);
  job.order.end_epoch = 9;
  const Records all = db.walk();
  const Result got = run(db, job, all, kDirectly, 5);
  for (std::uint32_t r = 0; r < job.ranks; ++r) {
    ASSERT_EQ(got.by_rank[r], db.walk_share(r, job.ranks, got.by_rank[r].size()));
    ASSERT_EQ(got.by_rank[r].size(), (90 - r + 3) / 4);
  }
}

TEST(DistRecords, ReadersThatDoNotDivideTheRanks) {
  ReaderDb db;
  db.fill(300, [](std::uint64_t i) -> std::size_t { return i * 37 % 8000; });
  const Records all = db.walk();
  for (std::uint32_t readers = 1; readers <= 8; ++readers)
    expect_shares(db, job_of(8, readers, 4, 100), all, kDirectly, 6 + readers);
}

// The file does not fit into the page cache; what is to stay there does, and nothing else.
TEST(DistRecords, PartsThatComeAgainStayInThePageCache) {
  ReaderDb db;
  db.fill(200, [](std::uint64_t) -> std::size_t { return 20000; });
  const Records all = db.walk();
  const auto reader = db.reader(16 * kMiB, kAsResident);
  records::Shared& shared = reader->shared();
  const int fd = ::open(db.file().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  (void)::fsync(fd);
  (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
  const auto in_page_cache = [&](std::uint64_t ordinal) {
    records::RecordLocation location;
    reader->locations().locations(ordinal, {&location, 1});
    return shared.residency.share(shared.offset(location.overflow), location.value_bytes).value_or(0);
  };
  if (in_page_cache(50) != 0 || shared.residency.samples()) GTEST_SKIP() << "a file system in memory";
  EXPECT_FALSE(has_in_page_cache(*reader, kInOrder, nullptr));
  FileSource source(*reader);
  for (const bool again : {false, true}) {
    std::vector<std::uint64_t> ordinals(20);
    std::iota(ordinals.begin(), ordinals.end(), again ? 100 : 50);
    std::unique_ptr<PartRead> read;
    std::string why;
    ASSERT_TRUE(source.start(ordinals, {.may_lend = true, .comes_again = again}, read, why).ok()) << why;
    read->wait();
    EXPECT_FALSE(read->lends()) << "it is not there yet";
    for (std::size_t i = 0; i < ordinals.size(); ++i) {
      lmdbio_record record;
      ASSERT_TRUE(read->record(i, record, why).ok()) << why;
      expect_record(record, all);
    }
    EXPECT_EQ(in_page_cache(ordinals[10]), again ? 1 : 0);
    // An order of these records alone.
    lmdbio_order list = testing::order_of(LMDBIO_ORDER_LIST, 10, 1);
    list.list = ordinals.data();
    list.length = ordinals.size();
    const auto shared_list = std::make_shared<const std::vector<std::uint64_t>>(ordinals);
    EXPECT_EQ(has_in_page_cache(*reader, list, shared_list), again);
    EXPECT_FALSE(has_in_page_cache(*reader, kInOrder, nullptr));
  }
}

TEST(DistRecords, RoomInThePageCache) {
  ReaderDb db;
  db.fill(200, [](std::uint64_t) -> std::size_t { return 20000; });
  const auto reader = db.reader(16 * kMiB, kAsResident);
  records::Source& source = reader->shared().source;
  const std::uint64_t file = source.pages * source.page_size;
  source.available = file / 3;  // of which three quarters are for the page cache
  EXPECT_NEAR(FileSource(*reader).room(0), 0.25, 0.01);
  EXPECT_NEAR(FileSource(*reader, 0, 0, 0.5).room(0), 0.5, 0.01);
  EXPECT_NEAR(FileSource(*reader).room(file / 6), 0.125, 0.01);
  EXPECT_EQ(FileSource(*reader, 0, 0, 0.1).room(0), 1);
  EXPECT_EQ(FileSource(*reader).room(file), 0);
  EXPECT_EQ(FileSource(*db.reader(16 * kMiB, kDirectly)).room(0), 0) << "LMDBIO_IO=direct";
}

// Records that are lent are those of the file; if it has been truncated meanwhile, that is an error.
TEST(DistRecords, RecordsInThePageCacheAreLent) {
  ReaderDb db;
  db.fill(200, [](std::uint64_t i) -> std::size_t { return i % 2 == 0 ? 20000 : 100; });
  const Records all = db.walk();
  const auto reader = db.reader(16 * kMiB, kAsResident);
  if (reader->shared().residency.samples()) GTEST_SKIP() << "nothing tells what is in the page cache";
  EXPECT_TRUE(has_in_page_cache(*reader, kInOrder, nullptr));
  EXPECT_FALSE(has_in_page_cache(*db.reader(16 * kMiB, kDirectly), kInOrder, nullptr)) << "LMDBIO_IO=direct";
  FileSource source(*reader);
  std::vector<std::uint64_t> ordinals(150);
  std::iota(ordinals.begin(), ordinals.end(), 10);
  for (const bool truncated : {false, true}) {
    std::unique_ptr<PartRead> read;
    std::string why;
    ASSERT_TRUE(source.start(ordinals, {.may_lend = true}, read, why).ok()) << why;
    ASSERT_TRUE(read->done());
    ASSERT_TRUE(read->lends());
    EXPECT_TRUE(read->still_lent());
    if (truncated) std::filesystem::resize_file(db.file(), 2 * reader->shared().source.page_size);
    EXPECT_EQ(read->still_lent(), !truncated);
    for (std::size_t i = 0; i < ordinals.size(); ++i) {
      lmdbio_record record;
      const Status st = read->record(i, record, why);
      ASSERT_EQ(st.raw(), truncated ? EIO : 0) << why;
      if (!truncated) expect_record(record, all);
    }
  }
  EXPECT_EQ(reader->shared().counters.bytes_read, 0u);
}

// In the first epoch each byte leaves the file once, but for pages at the borders of parts.
TEST(DistRecords, EachByteIsReadOnce) {
  ReaderDb db;
  db.fill(4000, [](std::uint64_t) -> std::size_t { return 3000; });
  const Records all = db.walk();
  Job job = job_of(8, 4, 16, 1024);
  job.order.end_epoch = 1;
  const Result got = run(db, job, all, kDirectly, 9);
  EXPECT_LE(got.bytes_read, got.file_bytes + got.file_bytes / 20);
  EXPECT_GE(got.bytes_read, got.file_bytes * 9 / 10);
}

// A reader copies records from the page cache once, into messages.  The ranks use them where they received
// them.
TEST(DistRecords, RecordsInThePageCacheAreCopiedOnce) {
  ReaderDb db;
  db.fill(1000, [](std::uint64_t i) -> std::size_t { return i % 3 == 0 ? 300 : 3000; });
  const Records all = db.walk();
  std::uint64_t bytes = 0;
  for (const auto& [key, value] : all) bytes += key.size() + value.size();
  if (db.reader(16 * kMiB, kAsResident)->shared().residency.samples())
    GTEST_SKIP() << "nothing tells what is in the page cache";
  Job job = job_of(2, 2, 16, 64);
  job.order.end_epoch = 1;
  const Result got = run(db, job, all, kAsResident, 10);
  EXPECT_EQ(got.bytes_read, 0u);
  EXPECT_GT(got.bytes_sent, bytes / 3);
  EXPECT_EQ(got.message_bytes, bytes + got.bytes_sent) << "one message with each record, two if it was sent";
  EXPECT_EQ(got.used_in_messages, all.size());
}

TEST(DistRecords, AnyDatabaseAndJob) {
  unsigned jobs = 0;
  for (std::uint64_t seed = 1; seed < 3; ++seed) {
    for (const test::EnvSpec& spec : test::catalogue(seed)) {
      SCOPED_TRACE(std::to_string(seed) + " " + spec.name);
      ReaderDb db;
      test::generate(db.lmdb(), spec, db.dir());
      if (!std::filesystem::exists(db.file())) continue;
      const test::DbSpec* main = nullptr;
      for (const test::DbSpec& d : spec.dbs)
        if (d.name.empty()) main = &d;
      const Records all = db.walk(main);
      if (all.empty()) continue;
      test::Rng rng(seed + jobs);
      Job job = job_of(rng.between(1, 6), 1, rng.between(1, 40), rng.between(1, 500));
      job.readers = rng.between(1, job.ranks);
      job.distribution = rng.below(2) == 0 ? Distribution::strided : Distribution::contiguous;
      job.order.across_epochs = rng.below(2) == 0;
      job.order.kind = rng.below(2) == 0 ? LMDBIO_ORDER_SEQUENTIAL : LMDBIO_ORDER_WINDOW_SHUFFLE;
      job.order.last = static_cast<lmdbio_last>(rng.below(3));
      const Assignment assignment = Assignment::make(job, all.size()).value();
      if (!assignment.has_rounds()) continue;
      const Result got = run(db, job, all, seed % 2 == 0 ? kAsResident : kDirectly, seed);
      if (HasFailure()) return;
      for (std::uint32_t r = 0; r < job.ranks; ++r) {
        const auto alone = db.reader();
        const auto s = testing::stream_of(*alone, assignment.share(r));
        Records expected;
        std::unique_ptr<records::Batch> b;
        std::string why;
        while (s->next(b, why).ok())
          for (std::size_t i = 0; i < b->count; ++i)
            expected.emplace_back(testing::text(b->records[i].key), testing::text(b->records[i].value));
        ASSERT_EQ(got.by_rank[r], expected) << "rank " << r;
      }
      ++jobs;
    }
  }
  EXPECT_GE(jobs, 25u);
}

}  // namespace
}  // namespace lmdbio::ranks
