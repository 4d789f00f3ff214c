#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/file_system.h"
#include "lmdbio/io/residency.h"
#include "tests/support/child.h"
#include "tests/support/forbid.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

using testing::forbid;
using testing::in_child;

constexpr std::size_t kFile = 1 << 20;
constexpr int kNotHere = 100, kRight = 0;
constexpr long kCachestat = 451;

class ResidencyTest : public ::testing::Test {
 protected:
  ResidencyTest() : temp_(testing::pattern(kFile)), fd_(::open(temp_.path(), O_RDONLY | O_CLOEXEC)) {
    ::fchmod(temp_.fd(), 0644);
    ::fsync(temp_.fd());
    ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);  // a read brings what it asks for and no more
  }
  void evict() const { ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED); }
  void read(std::size_t offset, std::size_t bytes) const {
    std::string b(bytes, '\0');
    EXPECT_EQ(::pread(fd_.get(), b.data(), bytes, static_cast<off_t>(offset)), static_cast<ssize_t>(bytes));
  }
  // Cold, warm, half: what each way is to tell.  0, or the number of the check that failed.
  int check(const char* how, bool exact) const {
    // A sample starts the read of its page, which may be over before the same call looks.
    const double cold = exact ? 0.0 : 0.5;
    const Residency r(fd_.get());
    if (std::strcmp(r.how(), how) != 0) {
      ::dprintf(2, "by \"%s\"\n", r.how());
      return 1;
    }
    // On a busy machine a few of those reads may be over: not each time.
    const auto is_absent = [&](std::uint64_t at, std::uint64_t bytes, std::uint64_t present) {
      for (int tries = exact ? 1 : 20; tries > 0; --tries) {
        evict();
        if (!exact) {  // pages that are being read stay
          ::usleep(2000);
          evict();
        }
        read(0, present);
        if (r.share(at, bytes).value_or(9) <= cold) return true;
      }
      return false;
    };
    if (!is_absent(0, kFile, 0)) return 2;
    evict();
    read(0, kFile);
    if (r.share(0, kFile) != 1.0) return 3;
    if (r.share(0, UINT64_MAX) != 1.0 || r.share(kFile - 1, 2) != 1.0) return 4;
    if (r.share(kFile, 1).has_value() || r.share(UINT64_MAX, UINT64_MAX).has_value()) return 5;
    if (r.share(0, 0).has_value()) return 6;
    evict();
    read(0, kFile / 2);
    if (exact && r.share(0, kFile) != 0.5) return 7;
    if (r.share(0, kFile / 2) != 1.0 || r.share(kFile / 4, 100) != 1.0) return 8;
    if (!is_absent(kFile / 2, kFile / 2, kFile / 2)) return 9;
    return kRight;
  }
  bool can_be_evicted() const {
    struct statfs at;
    constexpr long kTmpfs = 0x01021994;
    return ::fstatfs(fd_.get(), &at) == 0 && at.f_type != kTmpfs;
  }
  void expect_in_child(const char* how, bool exact, const std::function<bool()>& prepare) const {
    if (!can_be_evicted()) GTEST_SKIP() << "a file in memory cannot be evicted";
    const auto child = in_child([&] { return prepare() ? check(how, exact) : kNotHere; });
    if (child.exit_code == kNotHere) GTEST_SKIP() << "cannot be prepared here";
    EXPECT_EQ(child.exit_code, kRight) << child.err;
  }
  static bool drop_privileges() { return ::setgid(65534) == 0 && ::setuid(65534) == 0; }

  const testing::TempFile temp_;
  const UniqueFd fd_;
};

TEST_F(ResidencyTest, Cachestat) {
  expect_in_child("cachestat", true, [&] {
    unsigned long range[2] = {0, 1}, answer[5];
    return ::syscall(kCachestat, fd_.get(), range, answer, 0) == 0;
  });
}

TEST_F(ResidencyTest, MincoreOfTheOwner) {
  expect_in_child("mincore", true, [] { return forbid(kCachestat, ENOSYS); });
}

TEST_F(ResidencyTest, MincoreOfWhoMayWrite) {
  ::fchmod(temp_.fd(), 0646);
  expect_in_child("mincore", true, [] { return forbid(kCachestat, ENOSYS) && drop_privileges(); });
}

// To whom mincore(2) would say that all is there.
TEST_F(ResidencyTest, SamplesOfAnybody) {
  expect_in_child("preadv2", false, [] { return forbid(kCachestat, EPERM) && drop_privileges(); });
}

TEST_F(ResidencyTest, WhatIsRead) {
  if (!can_be_evicted()) GTEST_SKIP() << "a file in memory cannot be evicted";
  const auto child = in_child([&] {
    const Residency r(fd_.get());
    const Mapping map(::mmap(nullptr, kFile, PROT_READ, MAP_SHARED, fd_.get(), 0), kFile);
    evict();
    if (r.is_read(0, 1, map.data())) return 1;
    read(0, kFile / 2);
    if (!r.is_read(0, kFile / 2, map.data()) || !r.is_read(kFile / 4 + 1, 9000, map.data())) return 2;
    if (r.is_read(0, kFile / 2 + 1, map.data()) || r.is_read(kFile - 1, 1, map.data())) return 3;
    if (!drop_privileges()) return kNotHere;
    return r.is_read(0, 1, map.data()) ? 4 : kRight;
  });
  if (child.exit_code == kNotHere) GTEST_SKIP() << "cannot be prepared here";
  EXPECT_EQ(child.exit_code, kRight);
}

TEST_F(ResidencyTest, NothingTells) {
  const auto child = in_child([&] {
    if (!forbid(kCachestat, EPERM) || !drop_privileges()) return kNotHere;
    if (const Residency r(fd_.get(), Residency::Sampling::no); *r.how() != '\0' || r.share(0, 1)) return 1;
    if (!forbid(SYS_preadv2, EOPNOTSUPP)) return kNotHere;
    const Residency r(fd_.get());
    return *r.how() == '\0' && !r.share(0, kFile) ? kRight : 2;
  });
  if (child.exit_code == kNotHere) GTEST_SKIP() << "cannot be prepared here";
  EXPECT_EQ(child.exit_code, kRight);
}

// Who asked as root and is somebody else now is told nothing rather than "all".
TEST_F(ResidencyTest, PrivilegesThatGo) {
  const auto child = in_child([&] {
    if (!forbid(kCachestat, ENOSYS)) return kNotHere;
    const Residency r(fd_.get());
    if (!r.share(0, kFile)) return 1;
    if (!drop_privileges()) return kNotHere;
    return r.share(0, kFile) ? 2 : kRight;
  });
  if (child.exit_code == kNotHere) GTEST_SKIP() << "cannot be prepared here";
  EXPECT_EQ(child.exit_code, kRight);
}

TEST(Residency, OfWhatIsNoFile) {
  errno = 77;
  EXPECT_STREQ(Residency(-1).how(), "");
  const UniqueFd directory(::open("/", O_RDONLY | O_CLOEXEC));
  EXPECT_STREQ(Residency(directory.get()).how(), "");
  EXPECT_FALSE(Residency(directory.get()).share(0, 1));
  const testing::TempFile empty;
  EXPECT_FALSE(Residency(empty.fd()).share(0, 1)) << "nothing is inside";
  errno = 77;
  (void)Residency(empty.fd());
  EXPECT_EQ(errno, 77);
}

TEST(FileSystem, LocalOrNot) {
  errno = 77;
  EXPECT_FALSE(is_local_file_system("/proc/self")) << "not known";
  const UniqueFd proc(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(is_local_file_system(proc.get()));
  EXPECT_TRUE(is_local_file_system("/no/such/path"));
  EXPECT_TRUE(is_local_file_system(-1));
  errno = 77;
  (void)is_local_file_system(-1);
  EXPECT_EQ(errno, 77);
  const testing::TempFile t;
  EXPECT_EQ(is_local_file_system(t.fd()), is_local_file_system(t.path()));
}

}  // namespace
}  // namespace lmdbio
