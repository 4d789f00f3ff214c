// Single pages read in file order: which requests that takes, from where, with how much memory, and what a
// failure leaves behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <vector>

#include "lmdbio/io/engine_memory.h"
#include "lmdbio/records/page_reads.h"
#include "tests/support/faulty_engine.h"
#include "tests/support/fixed_source.h"
#include "tests/support/rng.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::records {
namespace {

using testing::FaultPlan;
using testing::FaultyEngine;
using testing::FixedSource;

constexpr std::size_t kKiB = 1024;

/// Around another engine: gives one completion at a time, so that others are in flight meanwhile.
class OneAtATime final : public IoEngine {
 public:
  explicit OneAtATime(std::unique_ptr<IoEngine> inner) : IoEngine(inner->caps()), inner_(std::move(inner)) {}

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    for (const RawRead& r : reads) {
      const ReadOp op{r.offset, r.dst, r.slot, 1};
      const Result<std::size_t> passed = inner_->submit({&op, 1});
      if (!passed) return passed;
    }
    return reads.size();
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t) noexcept override {
    Completion c;
    const Result<std::size_t> n = inner_->reap({&c, 1}, 1);
    if (!n || n.value() == 0) return n;
    out[0] = {static_cast<unsigned>(c.tag),
              c.status.ok() ? static_cast<long>(c.bytes) : -static_cast<long>(c.status.raw())};
    return std::size_t{1};
  }
  const std::unique_ptr<IoEngine> inner_;
};

/// What make_engine() makes, and has made.  The engines read the file's bytes in memory.
struct Engines {
  Bytes file;
  const File* direct_file = nullptr;  ///< of OpenFile::direct()
  IoEngine::Caps caps{512, 4, false};
  FaultPlan plan;
  std::uint64_t shuffle = 0;
  bool fails = false, fails_directly = false;

  struct Made {
    bool direct;
    EngineKind wanted;
    unsigned depth;
  };
  std::vector<Made> made;
  FaultyEngine* last = nullptr;
  IoEngine* outer = nullptr;  ///< around it
};
Engines engines;

Result<std::unique_ptr<IoEngine>> make_engine(const File& file, unsigned depth, EngineKind wanted,
                                              const char**) noexcept {
  const bool direct = &file == engines.direct_file;
  engines.made.push_back({direct, wanted, depth});
  if (engines.fails || (direct && engines.fails_directly)) return Status::from_errno(EMFILE);
  auto made = std::make_unique<FaultyEngine>(memory_engine(engines.file, engines.caps), engines.plan,
                                             engines.shuffle);
  engines.last = made.get();
  auto outer = std::make_unique<OneAtATime>(std::move(made));
  engines.outer = outer.get();
  return std::unique_ptr<IoEngine>(std::move(outer));
}

class PageReadsTest : public ::testing::Test {
 protected:
  void SetUp() override { file_of(200, 4096); }
  void TearDown() override { engines = {}; }

  void file_of(std::uint64_t pages, std::size_t page_size) {
    contents_ = testing::pattern(pages * page_size);
    temp_ = std::make_unique<testing::TempFile>(contents_);
    file_ = OpenFile::open(temp_->path()).value();
    engines = {};
    engines.file = contents_;
    engines.direct_file = file_->direct();
    request_ = {};
    request_.file = file_.get();
    request_.file_pages = pages;
    request_.page_size = page_size;
    request_.make_engine = make_engine;
    request_.available = UINT64_MAX;
  }
  static std::vector<WantedPage> wanted(const std::vector<std::uint64_t>& pages) {
    std::vector<WantedPage> out;
    for (const std::uint64_t p : pages) out.push_back({p, out.size()});
    return out;
  }
  bool right(const WantedPage& w, const std::byte* page) const {
    return std::memcmp(page, contents_.data() + w.page * request_.page_size, request_.page_size) == 0;
  }
  /// Reads all, and checks that each page comes once, with its bytes.
  void read_all(PageReads& reads, const std::vector<WantedPage>& pages) const {
    ASSERT_TRUE(reads.prepare(pages).ok());
    std::vector<unsigned> came(pages.size());
    const Status st = reads.read(
        pages,
        [&](const WantedPage& w, const std::byte* page) {
          EXPECT_TRUE(right(w, page)) << "page " << w.page;
          ++came[w.index];
          return true;
        },
        [] { return true; });
    ASSERT_EQ(st.raw(), 0);
    for (std::size_t i = 0; i < came.size(); ++i) ASSERT_EQ(came[i], 1u) << "page " << pages[i].page;
  }
  /// Requests and bytes that the pages take.
  IndexReads cost(const std::vector<std::uint64_t>& pages) const {
    PageReads reads(request_);
    read_all(reads, wanted(pages));
    return reads.reads();
  }
  void fill_page_cache() const {
    std::vector<std::byte> all(contents_.size());
    ASSERT_EQ(::pread(temp_->fd(), all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
  }
  bool drop_page_cache() const {
    (void)::fdatasync(temp_->fd());
    (void)::posix_fadvise(temp_->fd(), 0, 0, POSIX_FADV_DONTNEED);
    return file_->residency(-1).share(0, contents_.size()).value_or(1) == 0;
  }

  std::vector<std::byte> contents_;
  std::unique_ptr<testing::TempFile> temp_;
  std::shared_ptr<const OpenFile> file_;
  IndexRequest request_;
};

TEST_F(PageReadsTest, EachPageComesOnceWithItsBytes) {
  constexpr std::uint64_t kSeed = 31;
  std::cout << "seed " << kSeed << '\n';
  test::Rng rng(kSeed);
  for (const std::size_t page_size : {std::size_t{512}, std::size_t{4096}, std::size_t{32768}}) {
    file_of(page_size == 32768 ? 40 : 301, page_size);
    for (int round = 0; round < 30; ++round) {
      SCOPED_TRACE(::testing::Message() << "page size " << page_size << " round " << round);
      engines.caps = {std::size_t{512} << rng.below(4), rng.between(1, 8), false};
      engines.shuffle = rng.next();
      PageReads reads(request_);
      for (int again = 0; again < 2; ++again) {  // with the same engine
        std::vector<WantedPage> pages;
        const unsigned sparse = rng.between(1, 100);
        for (std::uint64_t p = 0; p < request_.file_pages; ++p)
          while (rng.below(100) < sparse && pages.size() < 2 * request_.file_pages)
            pages.push_back({p, pages.size()});  // some pages several times
        if (pages.empty()) pages.push_back({request_.file_pages - 1, 0});
        read_all(reads, pages);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(PageReadsTest, NeighboursAndSmallGapsShareARequest) {
  EXPECT_EQ(cost({7}).requests, 1u);
  EXPECT_EQ(cost({7}).bytes, 4 * kKiB);
  EXPECT_EQ(cost({0, 1, 2, 3}).requests, 1u);
  EXPECT_EQ(cost({10, 15}).requests, 1u) << "a gap of 16 KiB";
  EXPECT_EQ(cost({10, 15}).bytes, 24 * kKiB);
  EXPECT_EQ(cost({10, 16}).requests, 2u) << "a larger gap";
  EXPECT_EQ(cost({10, 16}).bytes, 8 * kKiB);
  EXPECT_EQ(cost({5, 5, 5}).bytes, 4 * kKiB) << "a page is read once";
}

TEST_F(PageReadsTest, ARequestHas256KiBAtMost) {
  std::vector<std::uint64_t> pages;
  for (std::uint64_t p = 0; p < 130; ++p) pages.push_back(p);
  EXPECT_EQ(cost(pages).requests, 3u) << "64 pages each";
  EXPECT_EQ(cost(pages).bytes, 130 * 4 * kKiB);
}

TEST_F(PageReadsTest, PreparingAgainKeepsTheEngine) {
  PageReads reads(request_);
  EXPECT_EQ(reads.reads().requests, 0u);
  read_all(reads, wanted({1}));
  read_all(reads, wanted({100}));
  EXPECT_EQ(engines.made.size(), 1u);
  EXPECT_EQ(reads.reads().requests, 2u);
}

TEST_F(PageReadsTest, TheCallerCanEndARead) {
  PageReads reads(request_);
  const std::vector<WantedPage> pages = wanted({0, 20, 40, 60, 80, 100, 120});
  ASSERT_TRUE(reads.prepare(pages).ok());
  unsigned takes = 0, ticks = 0;
  const auto taken = [&](const WantedPage&, const std::byte*) { return ++takes < 3; };
  EXPECT_EQ(reads.read(pages, taken, [] { return true; }).raw(), ECANCELED);
  EXPECT_EQ(takes, 3u);
  const auto any = [](const WantedPage&, const std::byte*) { return true; };
  EXPECT_EQ(reads.read(pages, any, [&] { return ++ticks < 2; }).raw(), ECANCELED);
  EXPECT_EQ(ticks, 2u);
  read_all(reads, pages);
}

TEST_F(PageReadsTest, AnExceptionIsPassedOnWhenNothingIsInFlight) {
  PageReads reads(request_);
  const std::vector<WantedPage> pages = wanted({0, 20, 40, 60, 80, 100, 120});
  ASSERT_TRUE(reads.prepare(pages).ok());
  const auto throws = [](const WantedPage&, const std::byte*) -> bool { throw std::runtime_error("mine"); };
  EXPECT_THROW((void)reads.read(pages, throws, [] { return true; }), std::runtime_error);
  EXPECT_EQ(engines.outer->in_flight(), 0u);
  read_all(reads, pages);
}

TEST_F(PageReadsTest, EachFailureIsReportedThenForgotten) {
  const std::vector<WantedPage> pages = wanted({0, 20, 40, 60, 80, 100, 120});
  for (unsigned k = 1;; ++k) {
    SCOPED_TRACE(k);
    engines.plan = testing::fail_nth(k, EIO);
    PageReads reads(request_);
    ASSERT_TRUE(reads.prepare(pages).ok());
    const Status st = reads.read(
        pages, [&](const WantedPage& w, const std::byte* page) { return right(w, page); },
        [] { return true; });
    if (!engines.last->fired()) {
      EXPECT_TRUE(st.ok());
      EXPECT_EQ(k, pages.size() + 1);
      break;
    }
    EXPECT_EQ(st.raw(), EIO);
    read_all(reads, pages);
  }
}

TEST_F(PageReadsTest, WithoutAnEngineThereIsAnError) {
  engines.fails = true;
  PageReads reads(request_);
  EXPECT_EQ(reads.prepare(wanted({1})).raw(), EMFILE);
  EXPECT_FALSE(reads.direct());
  engines.fails = false;
  read_all(reads, wanted({1}));
}

// A caller that needs the pages gets along with one buffer; a helper wants four.
TEST_F(PageReadsTest, LittleMemoryMeansFewBuffers) {
  engines.caps.depth = 8;
  const std::uint64_t buffer = 256 * kKiB + 2 * engines.caps.align;
  std::vector<std::uint64_t> pages;
  for (std::uint64_t p = 0; p < 200; p += 10) pages.push_back(p);
  for (const std::uint64_t room : {0u, 1u, 2u, 3u, 4u, 7u, 8u, 20u}) {
    SCOPED_TRACE(room);
    FixedSource source(room * buffer);
    request_.memory = std::make_shared<Memory>(&source);
    {
      PageReads reads(request_);
      ASSERT_EQ(reads.prepare(wanted(pages)).raw(), room == 0 ? ENOMEM : 0);
      if (room != 0) read_all(reads, wanted(pages));
      const std::uint64_t buffers = room >= 8 ? 8 : room >= 4 ? 4 : room >= 2 ? 2 : room;
      EXPECT_EQ(source.used(), buffers * buffer);
    }
    EXPECT_EQ(source.used(), 0u);
    {
      PageReads helper(request_, false);
      EXPECT_EQ(helper.prepare(wanted(pages)).raw(), room < 4 ? ENOMEM : 0);
    }
    EXPECT_EQ(source.used(), 0u);
  }
  request_.memory.reset();
}

TEST_F(PageReadsTest, ResidentPagesAreCopied) {
  if (*file_->residency(-1).how() == '\0') GTEST_SKIP() << "nothing tells what is in the page cache";
  fill_page_cache();
  PageReads reads(request_);
  read_all(reads, wanted({1, 50, 150}));
  ASSERT_EQ(engines.made.size(), 1u);
  EXPECT_FALSE(engines.made[0].direct);
  EXPECT_EQ(engines.made[0].wanted, EngineKind::pread);
}

TEST_F(PageReadsTest, AFewResidentPagesAreNotEnough) {
  if (*file_->residency(-1).how() == '\0') GTEST_SKIP() << "nothing tells what is in the page cache";
  if (!drop_page_cache()) GTEST_SKIP() << "the page cache keeps the file";
  (void)::posix_fadvise(temp_->fd(), 0, 0, POSIX_FADV_RANDOM);  // a read brings what it asks for and no more
  std::vector<std::byte> page(4 * kKiB);
  ASSERT_EQ(::pread(temp_->fd(), page.data(), page.size(), 4 * kKiB), static_cast<ssize_t>(page.size()));
  PageReads reads(request_);
  read_all(reads, wanted({1, 50, 150}));
  ASSERT_EQ(engines.made.size(), 1u);
  EXPECT_EQ(engines.made[0].wanted, EngineKind::threads);
}

TEST_F(PageReadsTest, OtherPagesAreReadByManyRequests) {
  if (!drop_page_cache()) GTEST_SKIP() << "the page cache keeps the file";
  PageReads reads(request_);
  read_all(reads, wanted({1, 50, 150}));
  ASSERT_EQ(engines.made.size(), 1u);
  EXPECT_FALSE(engines.made[0].direct) << "the file fits into the page cache";
  EXPECT_EQ(engines.made[0].wanted, EngineKind::threads);
  EXPECT_GT(engines.made[0].depth, 1u);
}

TEST_F(PageReadsTest, WhatDoesNotFitThePageCacheIsReadDirectly) {
  if (!drop_page_cache()) GTEST_SKIP() << "the page cache keeps the file";
  if (file_->direct() == nullptr) GTEST_SKIP() << "no direct reads here";
  request_.available = 0;
  engines.caps.direct = true;
  {
    PageReads reads(request_);
    read_all(reads, wanted({1, 50, 150}));
    ASSERT_EQ(engines.made.size(), 1u);
    EXPECT_TRUE(engines.made[0].direct);
    EXPECT_TRUE(reads.direct());
    EXPECT_TRUE(reads.reads().direct);
  }
  engines.made.clear();
  engines.fails_directly = true;
  engines.caps.direct = false;
  PageReads reads(request_);
  read_all(reads, wanted({1, 50, 150}));
  ASSERT_EQ(engines.made.size(), 2u) << "if that fails, through the page cache";
  EXPECT_FALSE(engines.made[1].direct);
  EXPECT_FALSE(reads.direct());
  read_all(reads, wanted({2}));
  EXPECT_EQ(engines.made.size(), 2u) << "it is not tried again";
}

TEST_F(PageReadsTest, ANewEngineKeepsTheCountsOfTheOld) {
  if (file_->direct() == nullptr) GTEST_SKIP() << "no direct reads here";
  if (*file_->residency(-1).how() == '\0') GTEST_SKIP() << "nothing tells what is in the page cache";
  fill_page_cache();
  PageReads reads(request_);
  read_all(reads, wanted({1, 50}));
  if (!drop_page_cache()) GTEST_SKIP() << "the page cache keeps the file";
  request_.available = 0;
  read_all(reads, wanted({100}));
  ASSERT_EQ(engines.made.size(), 2u);
  EXPECT_EQ(reads.reads().requests, 3u);
  EXPECT_EQ(reads.reads().bytes, 12 * kKiB);
}

}  // namespace
}  // namespace lmdbio::records
