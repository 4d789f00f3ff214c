// Judging a file's metas, also when a read fails: what cannot be read is not judged, stock decides.
#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "lmdbio/tree/env.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"
#include "tests/support/temp_file.h"

namespace {

// Of the reads of this program, the nth gives `error`, or nothing at all (end of file).
struct Fault {
  unsigned nth = 0, seen = 0;
  int error = 0;
  bool fired = false;
} fault;

}  // namespace

// The product's own calls come here: it is linked into this program.
extern "C" ssize_t pread(int fd, void* to, size_t n, off_t at) {
  if (++fault.seen == fault.nth) {
    fault.fired = true;
    errno = fault.error;
    return fault.error != 0 ? -1 : 0;
  }
  return syscall(SYS_pread64, fd, to, n, at);
}

namespace lmdbio::tree {
namespace {

using testing::FileImage;

FileImage image(std::uint32_t first_size, std::uint32_t second_size) {
  FileImage f(4096);
  f.metas(FileImage::record(0, 0, format::raw(format::kNoPage), 0), 1);
  const std::size_t at = testing::kPageHeader + offsetof(format::MetaRecord, dbs);
  testing::put(f.page(0) + at, first_size);
  testing::put(f.page(1) + at, second_size);
  return f;
}

bool sane(const FileImage& f, unsigned nth = 0, int error = 0) {
  testing::TempFile file(f.bytes());
  Result<File> opened = File::open(file.path(), File::Mode::buffered);
  EXPECT_TRUE(opened);
  fault = {nth, 0, error, false};
  char why[160];
  return prove_metas(opened.value(), why).ok();
}

TEST(ProveMetas, WithoutFaults) {
  EXPECT_TRUE(sane(image(4096, 4096)));
  EXPECT_FALSE(sane(image(4096, 8192)));
  EXPECT_FALSE(sane(image(4096, 0)));
  for (const std::uint32_t size : {0u, 1u, 256u, 4095u, 131072u, ~0u})
    EXPECT_FALSE(sane(image(size, 4096))) << size;
}

Status judged(const FileImage& f, std::string& why) {
  testing::TempFile file(f.bytes());
  char text[160];
  fault = {};
  const Status st = prove_metas(File::open(file.path(), File::Mode::buffered).value(), text);
  why = text;
  return st;
}

TEST(ProveMetas, WhatStockWouldComputeWith) {
  const std::size_t kLast = testing::kPageHeader + offsetof(format::MetaRecord, last_pg),
                    kTxnid = testing::kPageHeader + offsetof(format::MetaRecord, txnid);
  std::string why;
  for (const std::uint64_t last : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 60}) {
    FileImage f = image(4096, 4096);
    testing::put(f.page(1) + kLast, last);
    EXPECT_EQ(judged(f, why).raw(), MDB_CORRUPTED) << last;
    EXPECT_THAT(why, ::testing::HasSubstr("last page is " + std::to_string(last)));
    testing::put(f.page(0) + kLast, last);
    testing::put(f.page(1) + kLast, std::uint64_t{1});
    EXPECT_TRUE(judged(f, why).ok()) << "the older meta";
  }
  FileImage f = image(4096, 4096);
  testing::put(f.page(1) + kTxnid, std::uint64_t{8});
  EXPECT_EQ(judged(f, why).raw(), MDB_CORRUPTED);
  EXPECT_THAT(why, ::testing::HasSubstr("transaction 8 is on meta page 1"));
  f = image(4096, 4096);
  testing::put(f.page(0) + kTxnid, std::uint64_t{1});
  EXPECT_EQ(judged(f, why).raw(), MDB_CORRUPTED) << "both name transaction 1: stock takes the first";
  f = image(4096, 4096);
  testing::TempFile file(f.bytes().first(2 * 4096 - 1));
  char text[160];
  EXPECT_EQ(prove_metas(File::open(file.path(), File::Mode::buffered).value(), text).raw(), MDB_INVALID);
}

TEST(ProveMetas, AnyFailedReadLeavesItToStock) {
  for (const int error : {EIO, ENOMEM, ESTALE, 0}) {
    unsigned k = 1;
    for (;; ++k) {
      ASSERT_LT(k, 100u);
      const bool judged = sane(image(4096, 8192), k, error);
      if (!fault.fired) {
        EXPECT_FALSE(judged) << "nothing failed";
        break;
      }
      EXPECT_TRUE(judged) << "read " << k << " error " << error;
    }
    EXPECT_EQ(k, 3u) << "one read for each meta";
  }
  for (unsigned k = 1; k <= 2; ++k) EXPECT_FALSE(sane(image(4096, 8192), k, EINTR)) << "tried again";
}

TEST(ProveMetas, AFileThatEndsAfterBothMetasIsJudged) {
  const std::size_t kMeta = format::meta_bytes(testing::version());
  for (const std::size_t size : {4096 + kMeta, 4096 + format::kMetaBytes}) {
    const FileImage f = image(4096, 8192);
    testing::TempFile file(f.bytes().first(size));
    fault = {};
    char why[160];
    EXPECT_EQ(prove_metas(File::open(file.path(), File::Mode::buffered).value(), why).raw(), MDB_INVALID);
  }
}

TEST(ProveMetas, ShortFilesAreNotJudged) {
  const std::size_t kMeta = format::meta_bytes(testing::version());
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, kMeta - 1, kMeta, format::kMetaBytes,
                                 std::size_t{4096}, 4096 + kMeta - 1}) {
    const FileImage f = image(4096, 8192);
    testing::TempFile file(f.bytes().first(size));
    fault = {};
    char why[160];
    EXPECT_TRUE(prove_metas(File::open(file.path(), File::Mode::buffered).value(), why).ok()) << size;
  }
}

}  // namespace
}  // namespace lmdbio::tree
