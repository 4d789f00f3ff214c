// Single reads that a thread waits for: into the page cache and no more than that, or to where they are asked
// for; of files of the program's table and of the private one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/engine_single.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/io/residency.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

constexpr std::size_t kPage = 4096, kFile = (std::size_t{8} << 20) + 77;

Status bring(const File& file, std::uint64_t offset, std::uint64_t bytes) {
  static std::byte nowhere[ReadQueue::kMostRequest];
  ReadQueue queue(std::move(SingleEngine::make(file, SingleEngine::Bytes::unwanted).value()), INT64_MAX);
  ReadGroup group;
  const std::uint64_t from = offset / kPage * kPage;
  const Extent pages{from, (offset + bytes + kPage - 1) / kPage * kPage - from};
  if (const Status st = queue.add_unread(group, pages, nowhere); !st.ok()) return st;
  const Status st = queue.wait(group);
  EXPECT_EQ(nowhere[0], std::byte{0}) << "nothing is written there";
  return st;
}

class ExactRead : public ::testing::Test {
 protected:
  ExactRead() : temp_(testing::pattern(kFile)) { ::fsync(temp_.fd()); }
  void SetUp() override {
    Result<File> opened = File::reopen(temp_.fd(), File::Kind::exact);
    ASSERT_TRUE(opened);
    file_.emplace(std::move(opened).value());
    ::posix_fadvise(file_->fd(), 0, 0, POSIX_FADV_DONTNEED);
    residency_.emplace(file_->fd(), Residency::Sampling::no);
    if (residency_->share(0, kFile) != 0.0)
      GTEST_SKIP() << "nothing tells what is in memory, or all of it stays there";
  }
  double pages_there() const {
    return *residency_->share(0, kFile) * static_cast<double>((kFile + kPage - 1) / kPage);
  }

  testing::TempFile temp_;
  std::optional<File> file_;
  std::optional<Residency> residency_;
};

TEST_F(ExactRead, ThosePagesAndNoOthers) {
  double there = 0;
  for (const auto& [at, pages] :
       {std::pair<std::uint64_t, std::uint64_t>{3 << 20, 28}, {100, 1}, {100 * kPage, 600}}) {
    ASSERT_TRUE(bring(*file_, at, pages * kPage - at % kPage).ok());
    EXPECT_EQ(*residency_->share(at, pages * kPage - at % kPage), 1.0);
    there += static_cast<double>(pages);
    EXPECT_NEAR(pages_there(), there, 0.01);
  }
}

TEST_F(ExactRead, UpToTheEnd) {
  ASSERT_TRUE(bring(*file_, kFile - 10, 10).ok());
  EXPECT_NEAR(pages_there(), 1, 0.01);
  ASSERT_TRUE(bring(*file_, kFile - 2 * kPage, 100 * kPage).ok());
  EXPECT_NEAR(pages_there(), 3, 0.01);
  EXPECT_TRUE(bring(*file_, kFile + 10 * kPage, kPage).ok());
  EXPECT_TRUE(bring(*file_, 0, 0).ok());
}

TEST(ExactReadOfNothing, Fails) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd a(ends[0]), b(ends[1]);
  EXPECT_FALSE(File::reopen(a.get(), File::Kind::exact));
  EXPECT_FALSE(File::reopen(-1, File::Kind::exact));
}

class SingleReads : public ::testing::Test {
 protected:
  SingleReads() : temp_(testing::pattern(kFile)) {}
  Result<File> kept() const {
    return File::keep({temp_.fd(), temp_.path(), identity_of(temp_.fd()).value()}, File::Kind::buffered);
  }
  testing::TempFile temp_;
};

TEST_F(SingleReads, RightBytesOfBothTables) {
  Result<File> ours = File::from_fd(temp_.fd(), File::Take::borrow);
  ASSERT_TRUE(ours);
  Result<File> its = kept();
  ASSERT_TRUE(its);
  const std::vector<std::byte> want = testing::pattern(kFile);
  for (const File* const f : {&ours.value(), &its.value()}) {
    const char* name = nullptr;
    ReadQueue queue(std::move(select_engine(*f, 1, EngineKind::single, &name).value()), kFile);
    EXPECT_STREQ(name, "single");
    queue.tell_stalls("file");
    std::vector<std::byte> got(kFile);
    ReadGroup whole, again;
    ASSERT_TRUE(queue.add(whole, {0, kFile}, got.data()).ok());
    EXPECT_TRUE(queue.wait(whole).ok());
    EXPECT_EQ(got, want);
    got.assign(kFile, std::byte{0});
    ASSERT_TRUE(queue.add(again, {77, 1000}, got.data()).ok());
    EXPECT_TRUE(queue.wait(again).ok());
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + 1000, want.begin() + 77));
    EXPECT_EQ(queue.counters().bytes, kFile + 1000);
    EXPECT_EQ(queue.counters().requests, 10u) << "each MiB by one";
  }
}

TEST_F(SingleReads, BeyondTheEnd) {
  const Result<File> its = kept();
  ASSERT_TRUE(its);
  ReadQueue queue(std::move(SingleEngine::make(its.value(), SingleEngine::Bytes::copied).value()), INT64_MAX);
  queue.tell_stalls("file");
  std::vector<std::byte> got(200);
  ReadGroup group;
  ASSERT_TRUE(queue.add(group, {kFile - 100, 200}, got.data()).ok());
  EXPECT_EQ(queue.wait(group).raw(), EIO);
  EXPECT_TRUE(bring(its.value(), kFile - 100, 200).ok()) << "as far as the file goes";
}

}  // namespace
}  // namespace lmdbio
