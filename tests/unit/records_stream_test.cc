// One stream, and two that share a reader's memory: order, positions, what is read ahead, who gives way.
// All kinds of orders against a walk: tests/diff/records_stream_test.cc.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "lmdbio/records/stream.h"
#include "tests/support/kept_file.h"
#include "tests/support/reader_file.h"
#include "tests/support/scripted_engine.h"

namespace lmdbio::records {
namespace {

using testing::KeptParts;
using testing::ReaderFile;

constexpr ReadDecision kDirectly{ReadPath::direct, false, false, ""};
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
/// 64 values of 256 KiB.
constexpr unsigned kValues = 64;
constexpr std::uint64_t kValuePages = 64;

class StreamTest : public ::testing::Test {
 protected:
  static lmdbio_order order(lmdbio_order_kind kind, std::uint64_t batch, std::uint64_t end_epoch = 0) {
    lmdbio_order o{};
    o.size = sizeof o;
    o.kind = kind;
    o.batch = batch;
    o.end_epoch = end_epoch;
    return o;
  }
  static std::unique_ptr<Stream> open(Reader& r, const lmdbio_order& o) {
    std::unique_ptr<Stream> s;
    std::string why;
    EXPECT_EQ(Stream::open(r, o, s, why).raw(), 0) << why;
    return s;
  }
  /// The ordinals of the next batch, whose records are right; none if there is none.
  std::vector<std::uint64_t> next(Stream& s) {
    std::string why;
    batch_.reset();
    status_ = s.next(batch_, why);
    std::vector<std::uint64_t> got;
    if (!status_.ok()) return got;
    for (std::size_t i = 0; i < batch_->count; ++i) {
      const lmdbio_record& r = batch_->records[i];
      EXPECT_EQ(std::string(static_cast<const char*>(r.value.mv_data), r.value.mv_size),
                file_.value_of(r.ordinal));
      got.push_back(r.ordinal);
    }
    return got;
  }
  /// Of the file, in the page cache.
  std::uint64_t resident_pages() const {
    const std::size_t bytes = file_.bytes();
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file_.fd(), 0);
    if (at == MAP_FAILED) throw std::runtime_error("mmap");
    std::vector<unsigned char> pages((bytes + ReaderFile::kPage - 1) / ReaderFile::kPage);
    const int rc = ::mincore(at, bytes, pages.data());
    ::munmap(at, bytes);
    if (rc != 0) throw std::runtime_error("mincore");
    return static_cast<std::uint64_t>(
        std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
  }
  using Ordinals = std::vector<std::uint64_t>;

  ReaderFile file_{kValues, kValuePages, {0}};
  std::unique_ptr<Batch> batch_;
  Status status_;
};

TEST_F(StreamTest, BatchesComeInOrderAndPositionsTellWhereItGoesOn) {
  const auto r = file_.reader(32 * kMiB, kDirectly);
  const std::uint64_t list[] = {5, 63, 5, 0, 7};
  lmdbio_order o = order(LMDBIO_ORDER_LIST, 2, 2);
  o.list = list;
  o.length = std::size(list);
  const auto s = open(*r, o);
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(s->position(), (Position{epoch, 0}));
    EXPECT_EQ(next(*s), (Ordinals{5, 63}));
    EXPECT_EQ(s->position(), (Position{epoch, 2}));
    EXPECT_EQ(next(*s), (Ordinals{5, 0}));
    EXPECT_EQ(s->position(), (Position{epoch, 4}));
    EXPECT_EQ(next(*s), (Ordinals{7}));
  }
  EXPECT_TRUE(next(*s).empty());
  EXPECT_EQ(status_.raw(), MDB_NOTFOUND);
  EXPECT_EQ(s->position(), (Position{2, 0}));
}

TEST_F(StreamTest, AResumedStreamHasTheSameEnd) {
  const auto r = file_.reader(32 * kMiB, kDirectly);
  for (const int across : {0, 1}) {
    for (const lmdbio_last last : {LMDBIO_LAST_KEEP, LMDBIO_LAST_DROP, LMDBIO_LAST_PAD}) {
      lmdbio_order o = order(LMDBIO_ORDER_SHUFFLE, 5, 3);
      o.across_epochs = across;
      o.last = last;
      const auto whole = open(*r, o);
      std::vector<Ordinals> expected;
      std::vector<Position> at;
      do {
        at.push_back(whole->position());
        expected.push_back(next(*whole));
      } while (status_.ok());
      EXPECT_EQ(status_.raw(), MDB_NOTFOUND);
      for (std::size_t first = 0; first < expected.size(); ++first) {
        o.epoch = at[first].epoch;
        o.position = at[first].position;
        const auto rest = open(*r, o);
        for (std::size_t i = first; i < expected.size(); ++i) {
          EXPECT_EQ(rest->position(), at[i]);
          EXPECT_EQ(next(*rest), expected[i]) << first << ' ' << i;
        }
        EXPECT_EQ(status_.raw(), MDB_NOTFOUND);
      }
    }
  }
}

TEST_F(StreamTest, AStreamThatDoesNotStartBeforeItsEndIsEmpty) {
  const auto r = file_.reader(32 * kMiB, kDirectly);
  for (const int across : {0, 1}) {
    for (const std::uint64_t epoch : {std::uint64_t{3}, std::uint64_t{4}, UINT64_MAX}) {
      lmdbio_order o = order(LMDBIO_ORDER_SEQUENTIAL, 5, 3);
      o.across_epochs = across;
      o.last = LMDBIO_LAST_PAD;
      o.epoch = epoch;
      const auto s = open(*r, o);
      EXPECT_EQ(s->position(), (Position{epoch, 0}));
      EXPECT_TRUE(next(*s).empty());
      EXPECT_EQ(status_.raw(), MDB_NOTFOUND);
    }
  }
}

// Of a file that is read through the page cache, as by one of several ranks: the kernel reads ahead of none
// of the reads.
TEST_F(StreamTest, NothingButItsRecordsIsRead) {
  file_.drop_page_cache();
  if (resident_pages() != 0) GTEST_SKIP() << "this file system's pages cannot be evicted";
  const auto r = file_.reader(32 * kMiB, {ReadPath::page_cache, true, false, ""});
  lmdbio_order o = order(LMDBIO_ORDER_SEQUENTIAL, 1);
  o.step = 8;
  const auto s = open(*r, o);
  for (std::uint64_t i = 0; i < kValues; i += 8) EXPECT_EQ(next(*s), Ordinals{i});
  EXPECT_GE(resident_pages(), kValues / 8 * kValuePages);
  EXPECT_LE(resident_pages(), kValues / 8 * kValuePages + 8) << "with the leaf page";
}

TEST_F(StreamTest, WhatIsInThePageCacheIsNotCopiedIfThatIsAskedFor) {
  const auto r = file_.reader(32 * kMiB, {ReadPath::page_cache, true, false, ""});
  file_.fill_page_cache();
  if (resident_pages() < kValues * kValuePages) GTEST_SKIP() << "this file system keeps no pages";
  for (const int zero_copy : {0, 1}) {
    lmdbio_order o = order(LMDBIO_ORDER_SHUFFLE, 3);
    o.zero_copy = zero_copy;
    const auto s = open(*r, o);
    Ordinals all;
    for (Ordinals got = next(*s); !got.empty(); got = next(*s)) {
      all.insert(all.end(), got.begin(), got.end());
      EXPECT_EQ(r->shared().pool->counters().used_bytes != 0, zero_copy == 0);
    }
    EXPECT_EQ(status_.raw(), MDB_NOTFOUND);
    EXPECT_EQ(all.size(), kValues);
    EXPECT_EQ(r->shared().counters.requests, 0u);
    batch_.reset();
  }
}

// Otherwise the kernel maps each page of a large folio by itself: an epoch of a file in memory took 1.4 times
// as long as with LMDB.
TEST_F(StreamTest, TheFileIsMappedSoThatLargeFoliosCanBe) {
  const auto r = file_.reader(32 * kMiB, {ReadPath::page_cache, true, false, ""});
  const std::byte* const mapped = r->shared().mapped();
  ASSERT_NE(mapped, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapped) % kHugePage, 0u);
}

TEST_F(StreamTest, WhatIsNotCopiedStaysValidUntilTheReaderIsClosed) {
  const auto r = file_.reader(2 * kMiB, {ReadPath::page_cache, true, false, ""});
  file_.fill_page_cache();
  if (resident_pages() < kValues * kValuePages) GTEST_SKIP() << "this file system keeps no pages";
  std::vector<std::unique_ptr<Batch>> held;
  {
    lmdbio_order o = order(LMDBIO_ORDER_SHUFFLE, 3);
    o.zero_copy = 1;
    const auto s = open(*r, o);
    for (Ordinals got = next(*s); !got.empty(); got = next(*s)) held.push_back(std::move(batch_));
    EXPECT_EQ(status_.raw(), MDB_NOTFOUND) << "more than the reader's memory, but nothing of it";
  }
  std::uint64_t records = 0;
  for (const auto& b : held)
    for (std::size_t i = 0; i < b->count; ++i, ++records)
      EXPECT_EQ(*static_cast<const char*>(b->records[i].value.mv_data),
                static_cast<char>('a' + b->records[i].ordinal % 26));
  EXPECT_EQ(records, kValues);
}

// Not SIGBUS, unless the file is cut while the program uses a batch.
TEST_F(StreamTest, WithoutACopyAFileThatIsCutIsAnError) {
  const auto r = file_.reader(32 * kMiB, {ReadPath::page_cache, true, false, ""});
  file_.fill_page_cache();
  if (resident_pages() < kValues * kValuePages) GTEST_SKIP() << "this file system keeps no pages";
  lmdbio_order o = order(LMDBIO_ORDER_SEQUENTIAL, 1);
  o.zero_copy = 1;
  const auto s = open(*r, o);
  EXPECT_EQ(next(*s), Ordinals{0});
  ASSERT_EQ(::ftruncate(file_.fd(), static_cast<off_t>(file_.first_page(1) * ReaderFile::kPage)), 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(next(*s).empty());
    EXPECT_FALSE(status_.ok());
    EXPECT_EQ(s->position(), (Position{0, 1}));
  }
}

// The batch that has it is an error, each time; those before are not.
TEST_F(StreamTest, AFunctionReturnsNoRecord) {
  const auto r = file_.reader(32 * kMiB, kDirectly);
  lmdbio_order o = order(LMDBIO_ORDER_FUNCTION, 2);
  o.function = [](void*, std::uint64_t, std::uint64_t i) -> std::uint64_t {
    return i == 3 ? kValues : kValues - 1 - i;
  };
  o.length = 6;
  const auto s = open(*r, o);
  EXPECT_EQ(next(*s), (Ordinals{kValues - 1, kValues - 2}));
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(next(*s).empty());
    EXPECT_EQ(status_.raw(), EINVAL);
  }
}

TEST_F(StreamTest, GoesOnFromAPosition) {
  const auto r = file_.reader(32 * kMiB, kDirectly);
  lmdbio_order o = order(LMDBIO_ORDER_SEQUENTIAL, 3);
  o.position = 10;
  const auto s = open(*r, o);
  EXPECT_EQ(next(*s), (Ordinals{10, 11, 12}));
}

TEST_F(StreamTest, ReadsAheadWithinTheLimit) {
  const auto r = file_.reader(8 * kMiB, kDirectly);
  const auto s = open(*r, order(LMDBIO_ORDER_SEQUENTIAL, 1, 2));
  ASSERT_EQ(next(*s), (Ordinals{0}));
  const BufferPool& pool = *r->shared().pool;
  EXPECT_GT(pool.counters().used_bytes, 4 * kValuePages * ReaderFile::kPage)
      << "more than one value is on its way";
  for (unsigned i = 1; i < 2 * kValues; ++i) ASSERT_EQ(next(*s), (Ordinals{i % kValues}));
  EXPECT_LE(pool.counters().most_bytes, pool.limit());
  // Read once in each turn: nothing was dropped.
  EXPECT_LE(r->shared().counters.bytes_read, 2 * file_.bytes() + kMiB);
}

// A stream in a scattered order tells at its beginning what an epoch needs.  While the whole file is being
// read, it reads little ahead.
TEST_F(StreamTest, WhatAProcessKeepsOfTheFile) {
  const auto reader = [&](const std::shared_ptr<KeptParts>& kept) {
    Source source = file_.source();
    source.kept = kept;
    return std::make_unique<Reader>(std::move(source), file_.locations(), 32 * kMiB, kDirectly);
  };
  constexpr std::uint64_t kValue = kValuePages * ReaderFile::kPage;
  for (const lmdbio_order_kind kind : {LMDBIO_ORDER_SHUFFLE, LMDBIO_ORDER_SEQUENTIAL}) {
    const auto kept = std::make_shared<KeptParts>(file_);
    const auto r = reader(kept);
    const auto s = open(*r, order(kind, 1, 2));
    EXPECT_EQ(kept->needed_requests, 0u) << "a stream may never be used";
    kept->loading = true;
    ASSERT_EQ(next(*s).size(), 1u);
    EXPECT_LE(r->shared().pool->counters().used_bytes, 4 * kMiB) << "at most three fetches of 1 MiB";
    const bool scattered = kind == LMDBIO_ORDER_SHUFFLE;
    EXPECT_GE(kept->needed_bytes, scattered ? kValues * kValue : kValue);
    EXPECT_LE(kept->needed_bytes, (scattered ? kValues * kValue : 0) + 4 * kMiB);

    kept->loading = false;
    kept->keep_page(0, file_.bytes() / ReaderFile::kPage);
    for (unsigned i = 1; i < kValues; ++i) ASSERT_EQ(next(*s).size(), 1u);
    const std::uint64_t read = r->shared().counters.bytes_read, needed = kept->needed_requests;
    EXPECT_LE(read, 4 * kMiB);
    for (unsigned i = 0; i < kValues; ++i) ASSERT_EQ(next(*s).size(), 1u);  // the second epoch
    EXPECT_EQ(r->shared().counters.bytes_read, read);
    EXPECT_EQ(kept->needed_requests, needed);
  }
}

TEST_F(StreamTest, ACancelledStreamStaysWhereItIs) {
  const auto r = file_.reader(32 * kMiB, kDirectly);
  const auto s = open(*r, order(LMDBIO_ORDER_SEQUENTIAL, 4));
  ASSERT_EQ(next(*s), (Ordinals{0, 1, 2, 3}));
  s->cancel();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(next(*s).empty());
    EXPECT_EQ(status_.raw(), ECANCELED);
    EXPECT_EQ(s->position(), (Position{0, 4}));
  }
}

// The read ends right after cancel(), maybe before the one who waits has looked for it.
TEST_F(StreamTest, ACancelledStreamGivesNothingMore) {
  testing::EngineScript& script = testing::engine_script();
  script.reset();
  Source source = file_.source();
  source.make_engine = testing::ScriptedEngine::make;
  Reader r(std::move(source), file_.locations(), 32 * kMiB, kDirectly);
  const auto s = open(r, order(LMDBIO_ORDER_SEQUENTIAL, 4));
  script.hold();
  std::thread waits([&] { EXPECT_TRUE(next(*s).empty()); });
  script.wait_for_held();
  s->cancel();
  script.release();
  waits.join();
  EXPECT_EQ(status_.raw(), ECANCELED);
  EXPECT_EQ(s->position(), (Position{0, 0}));
}

// Both have as many batches as there are; each needs almost all of the memory for one of its own.
TEST_F(StreamTest, ReadAheadGivesWayToTheNeedOfAnother) {
  const auto r = file_.reader(8 * kMiB, kDirectly);
  const auto a = open(*r, order(LMDBIO_ORDER_SEQUENTIAL, 1));
  ASSERT_EQ(next(*a), (Ordinals{0}));
  batch_.reset();
  const BufferPool& pool = *r->shared().pool;
  const std::uint64_t ahead = pool.counters().used_bytes;
  constexpr unsigned kLarge = 24;  // 6 MiB
  ASSERT_GT(ahead + kLarge * kValuePages * ReaderFile::kPage, pool.limit())
      << "there is room for one of them";
  const auto b = open(*r, order(LMDBIO_ORDER_SEQUENTIAL, kLarge));
  EXPECT_EQ(next(*b).size(), kLarge);
  EXPECT_TRUE(status_.ok()) << status_.raw();
  EXPECT_EQ(a->position(), (Position{0, 1})) << "what was dropped is read again";
  batch_.reset();
  for (unsigned i = 1; i < kValues; ++i) ASSERT_EQ(next(*a), (Ordinals{i}));
  EXPECT_LE(pool.counters().most_bytes, pool.limit());
}

TEST_F(StreamTest, ABatchThatTheProgramHoldsDoesNotGiveWay) {
  const auto r = file_.reader(8 * kMiB, kDirectly);
  const auto a = open(*r, order(LMDBIO_ORDER_SEQUENTIAL, 20));
  ASSERT_EQ(next(*a).size(), 20u);
  const std::unique_ptr<Batch> held = std::move(batch_);
  const auto b = open(*r, order(LMDBIO_ORDER_SEQUENTIAL, 20));
  EXPECT_TRUE(next(*b).empty());
  EXPECT_EQ(status_.raw(), ENOMEM);
  EXPECT_EQ(b->position(), (Position{0, 0}));
  for (std::size_t i = 0; i < held->count; ++i)
    EXPECT_EQ(*static_cast<const char*>(held->records[i].value.mv_data), static_cast<char>('a' + i % 26));
}

TEST_F(StreamTest, ADamagedValueFailsItsBatchAlone) {
  file_.damage(file_.first_page(5));
  const auto r = file_.reader(32 * kMiB, kDirectly);
  const auto s = open(*r, order(LMDBIO_ORDER_SEQUENTIAL, 2));
  EXPECT_EQ(next(*s), (Ordinals{0, 1}));
  EXPECT_EQ(next(*s), (Ordinals{2, 3}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(next(*s).empty());
    EXPECT_EQ(status_.raw(), MDB_CORRUPTED);
    EXPECT_EQ(s->position(), (Position{0, 4}));
  }
}

}  // namespace
}  // namespace lmdbio::records
