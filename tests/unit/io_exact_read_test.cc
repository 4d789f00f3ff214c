#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/exact_read.h"
#include "lmdbio/io/residency.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

constexpr std::size_t kPage = 4096, kFile = (std::size_t{8} << 20) + 77;

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
    ASSERT_TRUE(bring_exactly(*file_, at, pages * kPage - at % kPage).ok());
    EXPECT_EQ(*residency_->share(at, pages * kPage - at % kPage), 1.0);
    there += static_cast<double>(pages);
    EXPECT_NEAR(pages_there(), there, 0.01);
  }
}

TEST_F(ExactRead, UpToTheEnd) {
  ASSERT_TRUE(bring_exactly(*file_, kFile - 10, 10).ok());
  EXPECT_NEAR(pages_there(), 1, 0.01);
  ASSERT_TRUE(bring_exactly(*file_, kFile - 2 * kPage, 100 * kPage).ok());
  EXPECT_NEAR(pages_there(), 3, 0.01);
  EXPECT_TRUE(bring_exactly(*file_, kFile + 10 * kPage, kPage).ok());
  EXPECT_TRUE(bring_exactly(*file_, 0, 0).ok());
}

TEST(ExactReadOfNothing, Fails) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd a(ends[0]), b(ends[1]);
  EXPECT_FALSE(File::reopen(a.get(), File::Kind::exact));
  EXPECT_FALSE(File::reopen(-1, File::Kind::exact));
}

}  // namespace
}  // namespace lmdbio
