// Fetches: which pages they read, which ones they keep or copy, and which records a damaged page spoils.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/records/fetch.h"
#include "tests/support/kept_file.h"
#include "tests/support/reader_file.h"

namespace lmdbio::records {
namespace {

using testing::KeptParts;
using testing::ReaderFile;

constexpr ReadDecision kDirectly{ReadPath::direct, false, false, ""},
    kAsResident{ReadPath::direct, true, false, ""};
constexpr std::uint64_t kPage = ReaderFile::kPage, kMemory = std::uint64_t{16} << 20;

class FetchTest : public ::testing::Test {
 protected:
  /// What is read for `records`, and all of it.
  struct Done {
    std::uint64_t requests = 0, pages = 0;
    bool cached = false;
    std::shared_ptr<Fetch> fetch = std::make_shared<Fetch>();
  };
  Done fetch(Shared& shared, const std::vector<std::uint64_t>& records,
             std::uint64_t most = ~std::uint64_t{0}) {
    Done d;
    for (const std::uint64_t i : records) {
      if (i == kNoRecord)
        d.fetch->add_missing();
      else
        d.fetch->add(i, file_.location(i), shared);
    }
    d.fetch->plan(shared, most);
    d.cached = d.fetch->cached();
    Queues queues(shared);
    MemoryRequest memory;
    memory.most = kMemory;
    EXPECT_TRUE(d.fetch->start(shared, queues, memory).ok());
    if (d.fetch->queue() != nullptr) {
      EXPECT_TRUE(d.fetch->queue()->wait(d.fetch->group()).ok());
    }
    const std::uint64_t requests = shared.counters.requests, bytes = shared.counters.bytes_read;
    queues.count();
    d.requests = shared.counters.requests - requests;
    d.pages = (shared.counters.bytes_read - bytes) / kPage;
    EXPECT_TRUE(d.fetch->finish(shared).ok());
    return d;
  }
  void expect_right(const Shared& shared, Fetch& f, std::size_t i, std::uint64_t ordinal) const {
    lmdbio_record r{};
    std::uint64_t bad = 0;
    ASSERT_TRUE(f.give(shared, i, r, bad).ok()) << "page " << bad;
    EXPECT_EQ(r.ordinal, ordinal);
    EXPECT_EQ(std::string(static_cast<const char*>(r.key.mv_data), r.key.mv_size),
              ReaderFile::key_of(ordinal));
    EXPECT_EQ(std::string(static_cast<const char*>(r.value.mv_data), r.value.mv_size),
              file_.value_of(ordinal));
  }

  // 64 KiB between values 0 and 1, more between 1 and 2 and before 0.
  ReaderFile file_{8, 2, {100, 16, 17, 40}};
};

TEST_F(FetchTest, SmallGapsAreReadOver) {
  Shared shared(file_.source(), kMemory, kDirectly);
  Done d = fetch(shared, {0, 1, 2});
  EXPECT_EQ(d.requests, 3u) << "the leaf, two values with what is between, one value";
  EXPECT_EQ(d.pages, 1u + 20 + 2);
  for (std::size_t i = 0; i < 3; ++i) expect_right(shared, *d.fetch, i, i);
}

TEST_F(FetchTest, GapsAreNotReadWhereThatIsTooMuch) {
  Shared shared(file_.source(), kMemory, kDirectly);
  Done d = fetch(shared, {2, 1, 0}, 7 * kPage);
  EXPECT_EQ(d.requests, 4u);
  EXPECT_EQ(d.pages, 7u);
  for (std::size_t i = 0; i < 3; ++i) expect_right(shared, *d.fetch, i, 2 - i);
}

TEST_F(FetchTest, LeafPagesAreKeptForOthers) {
  Shared shared(file_.source(), kMemory, kDirectly);
  EXPECT_EQ(fetch(shared, {0}).pages, 1u + 2);
  EXPECT_EQ(shared.counters.leaf_misses, 1u);
  Done d = fetch(shared, {3, 3});
  EXPECT_EQ(d.pages, 2u) << "the leaf was kept, a value is read once";
  EXPECT_EQ(shared.counters.leaf_hits, 1u);
  expect_right(shared, *d.fetch, 0, 3);
  expect_right(shared, *d.fetch, 1, 3);
}

TEST_F(FetchTest, WhatIsInThePageCacheIsCopied) {
  file_.fill_page_cache();
  Shared shared(file_.source(), kMemory, kAsResident);
  if (*shared.residency.how() == '\0') GTEST_SKIP() << "nothing tells what is in the page cache";
  Done d = fetch(shared, {0, 1, 2});
  EXPECT_TRUE(d.cached);
  EXPECT_EQ(d.fetch->queue(), nullptr) << "nothing to wait for";
  EXPECT_EQ(shared.counters.bytes_copied, (1 + 3 * 2) * kPage) << "and no gaps";
  EXPECT_EQ(shared.counters.bytes_read, 0u);
  for (std::size_t i = 0; i < 3; ++i) expect_right(shared, *d.fetch, i, i);

  Shared past(file_.source(), kMemory, kDirectly);
  EXPECT_FALSE(fetch(past, {0}).cached) << "not where it is to be read directly";
  EXPECT_EQ(past.counters.bytes_copied, 0u);
}

// The kernel's read-ahead for its neighbours reads the ends of a value.
TEST_F(FetchTest, ALargeValueOfWhichOnlyTheEndsAreInThePageCacheIsRead) {
  constexpr std::size_t kPages = 256, kEnd = 32 * kPage;
  const ReaderFile file(1, kPages, {0});
  file.drop_page_cache();
  Shared shared(file.source(), kMemory, kAsResident);
  const std::uint64_t first = file.first_page(0) * kPage, bytes = kPages * kPage;
  const UniqueFd fd(::open(file.path(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM), 0);  // no read-ahead
  std::vector<char> to(kEnd);
  for (const std::uint64_t at : {std::uint64_t{0}, first, first + bytes - kEnd})
    ASSERT_EQ(::pread(fd.get(), to.data(), to.size(), static_cast<off_t>(at)), static_cast<ssize_t>(kEnd));
  if (shared.resident({first + bytes / 2, kPage}) != 0.0) GTEST_SKIP() << "the file cannot be evicted";
  ASSERT_EQ(shared.resident({first, kEnd}), 1.0);
  Fetch f;
  f.add(0, file.location(0), shared);
  f.plan(shared, bytes);
  EXPECT_FALSE(f.cached());
  file.fill_page_cache();
  Fetch again;
  again.add(0, file.location(0), shared);
  again.plan(shared, bytes);
  EXPECT_TRUE(again.cached());
}

TEST_F(FetchTest, WhatTheProcessKeepsIsNotRead) {
  const auto kept = std::make_shared<KeptParts>(file_);
  Source source = file_.source();
  source.kept = kept;
  kept->keep_page(file_.leaf(), 1);
  kept->keep_page(file_.first_page(1), 2);
  Shared shared(std::move(source), kMemory, kDirectly);
  Done d = fetch(shared, {0, 1, 2}, 7 * kPage);
  EXPECT_FALSE(d.cached);
  EXPECT_EQ(d.requests, 2u) << "two of three values";
  EXPECT_EQ(d.pages, 4u);
  EXPECT_EQ(shared.counters.bytes_copied, 3 * kPage);
  EXPECT_EQ(kept->needed_bytes, 4 * kPage);
  EXPECT_EQ(kept->needed_requests, 2u);
  for (std::size_t i = 0; i < 3; ++i) expect_right(shared, *d.fetch, i, i);

  // All of it: the calling thread copies it, and nothing is asked for.
  kept->keep_page(0, file_.bytes() / kPage);
  Done all = fetch(shared, {2, 0, 1});
  EXPECT_TRUE(all.cached);
  EXPECT_EQ(all.fetch->queue(), nullptr);
  EXPECT_EQ(all.requests, 0u);
  EXPECT_EQ(kept->needed_requests, 2u);
  expect_right(shared, *all.fetch, 0, 2);
  expect_right(shared, *all.fetch, 1, 0);

  // And lends it, if that is wanted.
  auto lent = std::make_shared<Fetch>();
  lent->add(5, file_.location(5), shared);
  lent->plan(shared, kMemory);
  lent->lend();
  Queues queues(shared);
  MemoryRequest memory;
  ASSERT_TRUE(lent->start(shared, queues, memory).ok());
  EXPECT_TRUE(lent->lends());
  EXPECT_EQ(lent->buffer_bytes(), 0u);
  ASSERT_TRUE(lent->finish(shared).ok());
  expect_right(shared, *lent, 0, 5);
}

TEST_F(FetchTest, WhatIsKeptOfAFileThatWasCutIsNotUsed) {
  const auto kept = std::make_shared<KeptParts>(file_);
  Source source = file_.source();
  source.kept = kept;
  kept->keep_page(0, file_.bytes() / kPage);
  Shared shared(std::move(source), kMemory, kDirectly);
  ASSERT_EQ(::ftruncate(file_.fd(), static_cast<off_t>(file_.first_page(3) * kPage)), 0);
  auto f = std::make_shared<Fetch>();
  f->add(3, file_.location(3), shared);
  f->plan(shared, kMemory);
  Queues queues(shared);
  MemoryRequest memory;
  memory.most = kMemory;
  ASSERT_TRUE(f->start(shared, queues, memory).ok());
  ASSERT_NE(f->queue(), nullptr);
  EXPECT_EQ(f->queue()->wait(f->group()).raw(), EIO) << "as without what is kept";
}

TEST_F(FetchTest, ADamagedValueSpoilsItsRecord) {
  file_.damage(file_.first_page(1));
  Shared shared(file_.source(), kMemory, kDirectly);
  Done d = fetch(shared, {0, 1, 2});
  lmdbio_record r{};
  std::uint64_t bad = 0;
  EXPECT_EQ(d.fetch->give(shared, 1, r, bad).raw(), MDB_CORRUPTED);
  EXPECT_EQ(bad, file_.first_page(1));
  expect_right(shared, *d.fetch, 0, 0);
  expect_right(shared, *d.fetch, 2, 2);
}

TEST_F(FetchTest, ADamagedLeafIsNamed) {
  file_.damage(file_.leaf());
  Shared shared(file_.source(), kMemory, kDirectly);
  Done d = fetch(shared, {0});
  lmdbio_record r{};
  std::uint64_t bad = 0;
  EXPECT_EQ(d.fetch->give(shared, 0, r, bad).raw(), MDB_CORRUPTED);
  EXPECT_EQ(bad, file_.leaf());
}

// Locations come from an index, which may be wrong.
TEST_F(FetchTest, WhatLiesOutsideIsNotRead) {
  Shared shared(file_.source(), kMemory, kDirectly);
  for (const std::uint64_t page : {std::uint64_t{1}, shared.source.pages - 1, shared.source.pages,
                                   std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    auto f = std::make_shared<Fetch>();
    RecordLocation p = file_.location(0);
    p.overflow = page;
    f->add(0, p, shared);
    f->plan(shared, ~std::uint64_t{0});
    Queues queues(shared);
    MemoryRequest memory;
    memory.most = kMemory;
    ASSERT_TRUE(f->start(shared, queues, memory).ok());
    if (f->queue() != nullptr) {
      EXPECT_TRUE(f->queue()->wait(f->group()).ok());
    }
    EXPECT_TRUE(f->finish(shared).ok());
    lmdbio_record r{};
    std::uint64_t bad = 0;
    EXPECT_EQ(f->give(shared, 0, r, bad).raw(), MDB_CORRUPTED) << page;
  }
  EXPECT_LE(shared.counters.bytes_read, kPage) << "the leaf, once";
}

TEST_F(FetchTest, MissingRecordsAreEmptyAndReadNothing) {
  Shared shared(file_.source(), kMemory, kDirectly);
  Done d = fetch(shared, {kNoRecord, kNoRecord});
  EXPECT_EQ(d.requests, 0u);
  EXPECT_EQ(d.fetch->buffer_bytes(), 0u);
  lmdbio_record r{};
  std::uint64_t bad = 0;
  ASSERT_TRUE(d.fetch->give(shared, 1, r, bad).ok());
  EXPECT_EQ(r.ordinal, kNoRecord);
  EXPECT_EQ(r.value.mv_size, 0u);
}

TEST_F(FetchTest, WithoutMemoryItStaysAsItWas) {
  Shared shared(file_.source(), kMemory, kDirectly);
  Fetch f;
  f.add(0, file_.location(0), shared);
  f.plan(shared, ~std::uint64_t{0});
  Queues queues(shared);
  MemoryRequest memory;
  memory.most = kPage;
  EXPECT_EQ(f.start(shared, queues, memory).raw(), ENOMEM);
  EXPECT_EQ(f.buffer_bytes(), 0u);
  memory.most = kMemory;
  ASSERT_TRUE(f.start(shared, queues, memory).ok());
  ASSERT_TRUE(f.queue()->wait(f.group()).ok());
  EXPECT_TRUE(f.finish(shared).ok());
  expect_right(shared, f, 0, 0);
}

}  // namespace
}  // namespace lmdbio::records
