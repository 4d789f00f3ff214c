// Fills of the page cache: what they leave there, what they answer, and what they do where the kernel
// refuses.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "lmdbio/io/page_filler.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace {
int refuse_populate = 0;  // an errno
std::atomic<unsigned> populates{0};
}  // namespace

extern "C" int madvise(void* at, size_t n, int advice) {
  constexpr int kPopulateRead = 22;
  if (advice == kPopulateRead) {
    ++populates;
    if (refuse_populate != 0) {
      errno = refuse_populate;
      return -1;
    }
  }
  return static_cast<int>(::syscall(SYS_madvise, at, n, advice));
}

namespace lmdbio {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20, kPiece = PageFiller::kPiece;
constexpr std::size_t kFile = 3 * kPiece + 3 * 4096 + 77;

class PageFillerTest : public ::testing::Test {
 protected:
  PageFillerTest()
      : contents_(testing::pattern(kFile)),
        temp_(contents_),
        file_(File::open(temp_.path(), File::Mode::buffered).value()),
        residency_(file_.fd(), Residency::Sampling::no) {
    refuse_populate = 0;
    populates = 0;
    ::fsync(temp_.fd());
    ::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED);
    place_.resize(kPiece, std::byte{0xEE});
  }
  ~PageFillerTest() override { refuse_populate = 0; }
  std::unique_ptr<PageFiller> filler(PageFiller::Bytes b = PageFiller::Bytes::unwanted) {
    return std::move(PageFiller::make(file_, b).value());
  }
  bool there(std::uint64_t offset, std::uint64_t bytes) const {
    return residency_.share(offset, bytes) == 1.0;
  }
  bool right(std::uint64_t offset, std::size_t bytes) const {
    return std::memcmp(place_.data(), contents_.data() + offset, bytes) == 0;
  }
  MutableBytes place(std::size_t bytes) { return {place_.data(), bytes}; }

  std::vector<std::byte> contents_;
  testing::TempFile temp_;
  File file_;
  Residency residency_;
  std::vector<std::byte> place_;
};

TEST_F(PageFillerTest, WhatIsFilledIsThere) {
  const auto f = filler();
  for (std::uint64_t at = 0; at < kFile; at += kPiece) {
    const std::size_t n = std::min(kPiece, kFile - at);
    EXPECT_EQ(f->fill(at, place(n)), static_cast<long>(n));
    EXPECT_TRUE(there(at, n)) << at;
  }
  EXPECT_EQ(f->fill(0, place(kPiece)), static_cast<long>(kPiece)) << "again";
}

TEST_F(PageFillerTest, BytesAreCopiedIfTheyAreWanted) {
  const auto f = filler(PageFiller::Bytes::copied);
  EXPECT_EQ(f->fill(kPiece, place(kPiece)), static_cast<long>(kPiece));
  EXPECT_TRUE(right(kPiece, kPiece));
  EXPECT_EQ(f->fill(kMiB + 5, place(kMiB + 77)), static_cast<long>(kMiB + 77)) << "not aligned";
  EXPECT_TRUE(right(kMiB + 5, kMiB + 77));
  EXPECT_EQ(f->fill(4711, place(100)), 100) << "small pieces are read";
  EXPECT_TRUE(right(4711, 100));
}

TEST_F(PageFillerTest, TheEndOfTheFile) {
  for (const auto bytes : {PageFiller::Bytes::unwanted, PageFiller::Bytes::copied}) {
    const auto f = filler(bytes);
    const long rest = static_cast<long>(kFile - 2 * kPiece);
    EXPECT_EQ(f->fill(2 * kPiece, place(kPiece)), static_cast<long>(kPiece));
    EXPECT_EQ(f->fill(3 * kPiece, place(kPiece)), rest - static_cast<long>(kPiece)) << "a tail";
    EXPECT_EQ(f->fill(kFile, place(kPiece)), 0);
    EXPECT_EQ(f->fill(std::uint64_t{1} << 40, place(kPiece)), 0);
  }
}

// Grown or cut since: what the mapping does not have, or has no more, is read.
TEST_F(PageFillerTest, AFileThatChangesItsLength) {
  const auto f = filler();
  const std::vector<std::byte> more = testing::pattern(2 * kPiece);
  temp_.append(more);
  EXPECT_EQ(f->fill(4 * kPiece, place(kMiB)), static_cast<long>(kMiB));
  EXPECT_EQ(f->fill(2 * kPiece, place(kPiece)), static_cast<long>(kPiece));
  ASSERT_EQ(::ftruncate(temp_.fd(), kPiece + 100), 0);
  EXPECT_EQ(f->fill(kPiece, place(kPiece)), 100);
  EXPECT_EQ(f->fill(2 * kPiece, place(kPiece)), 0);
}

// A read tells what is wrong, or that nothing is; a kernel without the call is asked once.
TEST_F(PageFillerTest, WhereTheKernelRefusesReadsDoIt) {
  for (const int error : {EFAULT, EHWPOISON, ENOMEM, EINVAL, EPERM, ENOSYS}) {
    const auto f = filler();
    ::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED);
    refuse_populate = error;
    populates = 0;
    for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(f->fill(i * kPiece, place(kPiece)), static_cast<long>(kPiece));
    EXPECT_TRUE(there(0, 3 * kPiece)) << error;
    EXPECT_TRUE(right(2 * kPiece, kPiece)) << error;
    const bool never = error == EINVAL || error == EPERM || error == ENOSYS;
    EXPECT_EQ(f->works(), !never) << error;
    EXPECT_EQ(populates.load(), never ? 1u : 3u) << error;
    refuse_populate = 0;
  }
}

TEST_F(PageFillerTest, AsAnEngine) {
  const auto engine = std::move(populate_engine(file_, 16, PageFiller::Bytes::unwanted).value());
  std::vector<ReadOp> ops;
  for (std::uint64_t at = 0; at < kFile; at += kPiece)
    ops.push_back(
        {at, place(kPiece), at, static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, kFile - at))});
  ASSERT_EQ(engine->submit(ops).value(), ops.size());
  Completion done[8];
  ASSERT_EQ(engine->reap(done, ops.size()).value(), ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) EXPECT_TRUE(done[i].status.ok()) << done[i].tag;
  EXPECT_TRUE(there(0, kFile));
  const ReadOp beyond{2 * kFile, place(kPiece), 1};
  ASSERT_EQ(engine->submit({&beyond, 1}).value(), 1u);
  ASSERT_EQ(engine->reap(done, 1).value(), 1u);
  EXPECT_EQ(done[0].status.raw(), EIO);
}

TEST_F(PageFillerTest, FilesThatCannotBeFilled) {
  const testing::TempFile empty;
  EXPECT_FALSE(
      PageFiller::make(File::open(empty.path(), File::Mode::buffered).value(), PageFiller::Bytes::unwanted));
}

}  // namespace
}  // namespace lmdbio
