// UniqueFd and Mapping.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/unique_fd.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

/// As in processes that use UCX: the new address is lost.
extern "C" void* mremap(void* from, std::size_t old_bytes, std::size_t new_bytes, int flags, ...) noexcept {
  return reinterpret_cast<void*>(::syscall(SYS_mremap, from, old_bytes, new_bytes, flags, nullptr));
}

namespace lmdbio {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

int null_fd() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesOnce) {
  const int n = null_fd();
  {
    UniqueFd fd(n);
    EXPECT_TRUE(fd);
    EXPECT_EQ(fd.get(), n);
    EXPECT_TRUE(is_open(n));
  }
  EXPECT_FALSE(is_open(n));
  UniqueFd none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.get(), -1);
}

TEST(UniqueFd, Moves) {
  const int n = null_fd(), m = null_fd();
  UniqueFd a(n), b(m);
  UniqueFd c(std::move(a));
  EXPECT_EQ(a.get(), -1);  // NOLINT(bugprone-use-after-move): promised
  EXPECT_EQ(c.get(), n);
  c = std::move(b);
  EXPECT_FALSE(is_open(n));
  EXPECT_EQ(c.get(), m);
  UniqueFd& self = c;
  c = std::move(self);
  EXPECT_EQ(c.get(), m);
  EXPECT_TRUE(is_open(m));
}

TEST(UniqueFd, ReleaseAndResetKeepErrno) {
  const int n = null_fd(), m = null_fd();
  UniqueFd a(n);
  errno = EXDEV;
  a.reset(m);
  EXPECT_EQ(errno, EXDEV);
  EXPECT_FALSE(is_open(n));
  EXPECT_EQ(a.release(), m);
  EXPECT_FALSE(a);
  a.reset();
  EXPECT_TRUE(is_open(m));
  UniqueFd closer(m);
}

// Whether the system page at `p` is mapped.
bool is_mapped(const void* p) {
  unsigned char v;
  return ::mincore(const_cast<void*>(p), 1, &v) == 0;
}

TEST(Mapping, ReserveIsAlignedAndExact) {
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (const std::size_t align : {std::size_t{1}, page, 64 * page, 2 * kMiB, 1024 * kMiB}) {
    for (const std::size_t size : {std::size_t{1}, page, page + 1, 3 * kMiB}) {
      Result<Mapping> r = Mapping::reserve(size, align);
      ASSERT_TRUE(r) << r.error().raw();
      Mapping m = std::move(r.value());
      EXPECT_TRUE(m);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(m.data()) % align, 0u);
      EXPECT_EQ(m.size(), align_up(size, page));
      EXPECT_TRUE(is_mapped(m.data()));
      EXPECT_TRUE(is_mapped(m.data() + m.size() - page));
      const std::byte* const first = m.data();
      m.reset();
      EXPECT_EQ(m.data(), nullptr);
      EXPECT_EQ(m.size(), 0u);
      EXPECT_FALSE(is_mapped(first));
    }
  }
}

TEST(Mapping, ReserveRefusesNonsense) {
  EXPECT_EQ(Mapping::reserve(0, 4096).error().raw(), EINVAL);
  EXPECT_EQ(Mapping::reserve(4096, 0).error().raw(), EINVAL);
  EXPECT_EQ(Mapping::reserve(4096, 3 * 4096).error().raw(), EINVAL);
  EXPECT_EQ(Mapping::reserve(SIZE_MAX, 4096).error().raw(), ENOMEM);
  EXPECT_EQ(Mapping::reserve(SIZE_MAX / 2, 4096).error().raw(), ENOMEM);
  EXPECT_EQ(Mapping::reserve(std::size_t{1} << 52, 2 * kMiB).error().raw(), ENOMEM);
}

TEST(Mapping, Moves) {
  Mapping a = std::move(Mapping::reserve(kMiB, kMiB).value());
  std::byte* const p = a.data();
  Mapping b(std::move(a));
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): promised
  EXPECT_EQ(a.size(), 0u);
  Mapping c = std::move(Mapping::reserve(kMiB, kMiB).value());
  const std::byte* const q = c.data();
  c = std::move(b);
  EXPECT_EQ(c.data(), p);
  EXPECT_EQ(c.size(), kMiB);
  EXPECT_FALSE(is_mapped(q));
  Mapping& self = c;
  c = std::move(self);
  EXPECT_EQ(c.data(), p);
  EXPECT_TRUE(is_mapped(p));
  const std::size_t size = c.size();
  Mapping again(c.release(), size);
  EXPECT_FALSE(c);
  EXPECT_TRUE(is_mapped(p));
}

TEST(Mapping, FileIsSeenAndGrows) {
  const auto contents = testing::pattern(10'000);
  testing::TempFile file(contents);
  Result<Mapping> r = Mapping::map_file(file.fd(), 5 * kMiB, 2 * kMiB);
  ASSERT_TRUE(r);
  const Mapping& m = r.value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(m.data()) % (2 * kMiB), 0u);
  EXPECT_EQ(m.size(), 5 * kMiB);
  EXPECT_EQ(std::memcmp(m.data(), contents.data(), contents.size()), 0);
  const auto more = testing::pattern(20'000, 10'000);
  file.append(more);
  EXPECT_EQ(std::memcmp(m.data() + 10'000, more.data(), more.size()), 0);
}

TEST(Mapping, FileErrors) {
  EXPECT_EQ(Mapping::map_file(-1, 4096, 4096).error().raw(), EBADF);
  testing::TempFile file;
  EXPECT_EQ(Mapping::map_file(file.fd(), 0, 4096).error().raw(), EINVAL);
  UniqueFd write_only(::open(file.path(), O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(Mapping::map_file(write_only.get(), 4096, 4096).error().raw(), EACCES);
  UniqueFd directory(::open("/", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(Mapping::map_file(directory.get(), 4096, 4096).error().raw(), ENODEV);
}

TEST(Mapping, MovesOverAnotherOne) {
  const auto make = [](int value) {
    void* const p = ::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(p, value, kMiB);
    return Mapping(p, kMiB);
  };
  Mapping from = make(1), to = make(2);
  EXPECT_EQ(move_mapping(from.release(), kMiB, to.data()), to.data());
  EXPECT_EQ(to.data()[0], std::byte{1});
  EXPECT_EQ(to.data()[kMiB - 1], std::byte{1});
  EXPECT_EQ(move_mapping(to.data() + 1, kMiB, to.data()), MAP_FAILED);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace lmdbio
