// Most requests of a batch were only submitted when the program asked for the batch.  Nothing was read while
// it computed.  The same happened after each batch that came from the page cache.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "tests/support/reader_db.h"
#include "tests/support/reader_file.h"

namespace lmdbio::records {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::size_t kBatch = 150, kRecords = 4 * kBatch;
/// Larger than a gap that is read, so that each second record needs a request of its own.
constexpr std::size_t kValueBytes = std::size_t{70} << 10;

/// Reads only as much as its caller waits for, one request after the other, like storage that has just begun.
class LazyEngine final : public IoEngine {
 public:
  LazyEngine(const File& file, unsigned depth, std::size_t& taken)
      : IoEngine({file.alignment(), depth, file.direct()}), fd_(file.fd()), taken_(taken) {}
  void wait_briefly(std::int64_t) noexcept override { waited_ = true; }

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    taken_ += reads.size();
    reads_.insert(reads_.end(), reads.begin(), reads.end());
    return reads.size();
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override {
    if (std::exchange(waited_, false)) min = std::max<std::size_t>(min, 1);
    std::size_t n = 0;
    for (; n < std::min(min, out.size()) && !reads_.empty(); ++n, reads_.pop_front()) {
      const RawRead& r = reads_.front();
      const ssize_t got = ::pread(fd_, r.dst.data(), r.dst.size(), static_cast<off_t>(r.offset));
      out[n] = {r.slot, got < 0 ? -static_cast<long>(errno) : static_cast<long>(got)};
    }
    return n;
  }

  const int fd_;
  std::size_t& taken_;
  std::deque<RawRead> reads_;
  bool waited_ = false;
};

TEST(StreamDepth, AllRequestsOfTheNextBatchAreSubmittedBeforeItIsTaken) {
  testing::ReaderDb db;
  db.fill(kRecords, [](std::uint64_t) { return kValueBytes; });
  const testing::Records all = db.walk();
  std::size_t taken = 0;
  const auto reader = db.reader(
      64 * kMiB, testing::kDirectly, [&](const File& file, unsigned depth, EngineKind, const char**) {
        return Result<std::unique_ptr<IoEngine>>(std::make_unique<LazyEngine>(file, depth, taken));
      });
  std::vector<std::uint64_t> list;
  for (std::uint64_t i = 0; i < kRecords; i += 2) list.push_back(i);
  lmdbio_order order = testing::order_of(LMDBIO_ORDER_LIST, kBatch, 1);
  order.list = list.data();
  order.length = list.size();
  const auto stream = testing::stream_of(*reader, order);
  ASSERT_NE(stream, nullptr);
  std::size_t submitted[2];
  for (std::size_t& n : submitted) {
    std::unique_ptr<Batch> batch;
    std::string why;
    ASSERT_TRUE(stream->next(batch, why).ok()) << why;
    ASSERT_EQ(batch->count, kBatch);
    for (std::size_t i = 0; i < kBatch; ++i) testing::expect_record(batch->records[i], all);
    n = taken;
  }
  EXPECT_GE(submitted[0], 2 * kBatch);
  EXPECT_EQ(submitted[0], submitted[1]) << "the call for the second batch had to submit requests";
}

// Each second record is in the page cache.
TEST(StreamDepth, ABatchFromThePageCacheDoesNotEndTheReadAhead) {
  constexpr std::uint64_t kPage = testing::ReaderFile::kPage, kPages = 640, kBytes = kPages * kPage;
  constexpr unsigned kValues = 8;  // so large that each fetch has one
  const testing::ReaderFile file(kValues, kPages, {0});
  file.drop_page_cache();
  const UniqueFd fd(::open(file.path(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM), 0);  // no read-ahead
  std::vector<char> to(kBytes);
  for (std::uint64_t i = 1; i < kValues; i += 2) {
    const auto at = static_cast<off_t>(file.first_page(i) * kPage);
    ASSERT_EQ(::pread(fd.get(), to.data(), kBytes, at), static_cast<ssize_t>(kBytes));
  }
  ASSERT_EQ(::pread(fd.get(), to.data(), kPage, static_cast<off_t>(file.leaf() * kPage)), ssize_t{kPage});
  std::size_t taken = 0;
  Source source = file.source();
  source.make_engine = [&](const File& of, unsigned depth, EngineKind, const char**) {
    return Result<std::unique_ptr<IoEngine>>(std::make_unique<LazyEngine>(of, depth, taken));
  };
  Reader reader(std::move(source), file.locations(), 64 * kMiB, testing::kAsResident);
  Shared& shared = reader.shared();
  const auto share = [&](std::uint64_t i) { return shared.resident({file.first_page(i) * kPage, kBytes}); };
  if (share(1) != 1.0 || share(2) != 0.0) GTEST_SKIP() << "the file cannot be evicted";
  const auto stream = testing::stream_of(reader, testing::order_of(LMDBIO_ORDER_SEQUENTIAL, 1, 1));
  ASSERT_NE(stream, nullptr);
  std::size_t submitted = 0;
  for (unsigned i = 0; i < kValues; ++i) {
    std::unique_ptr<Batch> batch;
    std::string why;
    ASSERT_TRUE(stream->next(batch, why).ok()) << why;
    ASSERT_EQ(batch->records[0].ordinal, i);
    if (i == 0) submitted = taken;
  }
  EXPECT_GE(shared.counters.fetches_cached, 1u);
  EXPECT_EQ(submitted, taken) << "all records fit into what is read ahead";
}

}  // namespace
}  // namespace lmdbio::records
