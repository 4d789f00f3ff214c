#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/io/file.h"
#include "tests/support/child.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

using testing::TempFile;

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(File, OpensForReadingAndClosesOnExec) {
  TempFile t(testing::pattern(5000));
  int fd;
  {
    Result<File> r = File::open(t.path(), File::Mode::buffered);
    ASSERT_TRUE(r);
    const File& f = r.value();
    fd = f.fd();
    EXPECT_FALSE(f.direct());
    EXPECT_EQ(f.alignment(), 1u);
    EXPECT_EQ(::fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT_EQ(f.size().value(), 5000u);
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(File, DirectOrElseBuffered) {
  TempFile t(testing::pattern(10'000));
  Result<File> r = File::open(t.path(), File::Mode::direct_if_possible);
  ASSERT_TRUE(r);
  const File& f = r.value();
  EXPECT_EQ((::fcntl(f.fd(), F_GETFL) & O_DIRECT) != 0, f.direct());
  EXPECT_TRUE(is_power_of_two(f.alignment()));
  if (f.direct()) {
    EXPECT_GE(f.alignment(), 2u);
    testing::AlignedBuffer b(f.alignment(), f.alignment());
    EXPECT_EQ(::pread(f.fd(), b.bytes().data(), b.bytes().size(), 0), static_cast<ssize_t>(b.bytes().size()));
  } else {
    EXPECT_EQ(f.alignment(), 1u);
  }
}

TEST(File, DirectIsRefusedByProc) {
  Result<File> r = File::open("/proc/self/status", File::Mode::direct_if_possible);
  ASSERT_TRUE(r);
  EXPECT_FALSE(r.value().direct());
}

TEST(File, EmptyFile) {
  TempFile t;
  Result<File> r = File::open(t.path(), File::Mode::direct_if_possible);
  ASSERT_TRUE(r);
  EXPECT_EQ(r.value().size().value(), 0u);
}

TEST(File, ReadOnlyFile) {
  TempFile t(testing::pattern(10));
  ASSERT_EQ(::chmod(t.path(), 0444), 0);
  EXPECT_TRUE(File::open(t.path(), File::Mode::direct_if_possible));
}

TEST(File, Errors) {
  for (const auto mode : {File::Mode::buffered, File::Mode::direct_if_possible}) {
    const auto code = [mode](const std::string& path) {
      const Result<File> r = File::open(path.c_str(), mode);
      return r ? 0 : r.error().raw();
    };
    TempFile t;
    EXPECT_EQ(code(std::string(t.path()) + ".none"), ENOENT);
    EXPECT_EQ(code(std::string(t.path()) + "/below"), ENOTDIR);
    EXPECT_EQ(code(""), ENOENT);
    EXPECT_EQ(code("/"), EISDIR);
    EXPECT_EQ(code("/dev/null"), EINVAL);
    const std::string pipe = std::string(t.path()) + ".pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(code(pipe), EINVAL);  // and does not wait for a writer
    ::unlink(pipe.c_str());
    if (::geteuid() != 0) {
      ASSERT_EQ(::chmod(t.path(), 0), 0);
      EXPECT_EQ(code(t.path()), EACCES);
    }
  }
}

TEST(File, FromDescriptor) {
  TempFile t(testing::pattern(100));
  int own;
  {
    Result<File> borrowed = File::from_fd(t.fd(), File::Take::borrow);
    ASSERT_TRUE(borrowed);
    EXPECT_EQ(borrowed.value().fd(), t.fd());
    EXPECT_FALSE(borrowed.value().direct());
    EXPECT_EQ(borrowed.value().size().value(), 100u);
    Result<File> copy = File::from_fd(t.fd(), File::Take::duplicate);
    ASSERT_TRUE(copy);
    own = copy.value().fd();
    EXPECT_NE(own, t.fd());
    EXPECT_EQ(::fcntl(own, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
  EXPECT_TRUE(is_open(t.fd()));
  EXPECT_FALSE(is_open(own));
  EXPECT_EQ(File::from_fd(-1, File::Take::borrow).error().raw(), EBADF);
  UniqueFd directory(::open("/", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(File::from_fd(directory.get(), File::Take::duplicate).error().raw(), EISDIR);
}

TEST(File, FromDirectDescriptor) {
  TempFile t(testing::pattern(100));
  UniqueFd fd(::open(t.path(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!fd) GTEST_SKIP() << "no O_DIRECT in " << t.path();
  Result<File> r = File::from_fd(fd.get(), File::Take::borrow);
  ASSERT_TRUE(r);
  EXPECT_TRUE(r.value().direct());
  EXPECT_GT(r.value().alignment(), 1u);
}

TEST(File, ReopensWhatIsBehindADescriptor) {
  TempFile t(testing::pattern(10'000));
  ASSERT_EQ(::lseek(t.fd(), 77, SEEK_SET), 77);
  for (const bool direct : {false, true}) {
    int fd;
    {
      Result<File> r = File::reopen(t.fd(), direct ? File::Kind::direct : File::Kind::buffered);
      if (direct && !r && !File::open(t.path(), File::Mode::direct_if_possible).value().direct())
        GTEST_SKIP() << "no O_DIRECT in " << t.path();
      ASSERT_TRUE(r);
      const File& f = r.value();
      fd = f.fd();
      EXPECT_NE(fd, t.fd());
      EXPECT_EQ(f.direct(), direct);
      EXPECT_EQ(f.alignment() > 1, direct);
      EXPECT_EQ(::fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
      EXPECT_EQ((::fcntl(fd, F_GETFL) & O_DIRECT) != 0, direct);
      EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
      EXPECT_EQ(::lseek(fd, 0, SEEK_CUR), 0) << "a description of its own";
      EXPECT_EQ(f.identity().value(), File::from_fd(t.fd(), File::Take::borrow).value().identity().value());
    }
    EXPECT_FALSE(is_open(fd));
  }
  EXPECT_EQ(::fcntl(t.fd(), F_GETFL) & O_DIRECT, 0);
}

TEST(File, ReopensWhateverBecameOfTheName) {
  TempFile t(testing::pattern(100));
  const ino_t ino =
      static_cast<ino_t>(File::open(t.path(), File::Mode::buffered).value().identity().value().ino);
  const std::string other = std::string(t.path()) + "_moved";
  ASSERT_EQ(::rename(t.path(), other.c_str()), 0);
  UniqueFd squatter(::open(t.path(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_EQ(File::reopen(t.fd(), File::Kind::buffered).value().identity().value().ino, ino);
  ASSERT_EQ(::unlink(other.c_str()), 0);
  EXPECT_EQ(File::reopen(t.fd(), File::Kind::buffered).value().identity().value().ino, ino) << "deleted";
}

TEST(File, ReopensOrSaysWhyNot) {
  for (const File::Kind kind : {File::Kind::buffered, File::Kind::direct, File::Kind::exact}) {
    const auto reopen = [kind](int fd) { return File::reopen(fd, kind); };
    EXPECT_EQ(reopen(-1).error().raw(), EBADF);
    UniqueFd directory(::open("/", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(reopen(directory.get()).error().raw(), EISDIR);
    UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(reopen(null.get()).error().raw(), EINVAL);
    TempFile t(testing::pattern(100));
    ASSERT_EQ(::fchmod(t.fd(), 0), 0);
    const auto child = testing::in_child([&] {
      if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return EACCES;
      return reopen(t.fd()).error().raw();
    });
    EXPECT_EQ(child.exit_code, EACCES);
  }
  UniqueFd proc(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(File::reopen(proc.get(), File::Kind::direct).has_error());
}

TEST(File, MovesKeepTheDescriptor) {
  TempFile t(testing::pattern(100));
  Result<File> r = File::open(t.path(), File::Mode::buffered);
  ASSERT_TRUE(r);
  File a = std::move(r.value());
  const int fd = a.fd();
  File b = std::move(a);
  EXPECT_EQ(b.fd(), fd);
  EXPECT_EQ(b.size().value(), 100u);
}

TEST(File, IdentityTellsFilesAndChangesApart) {
  TempFile t(testing::pattern(100)), u(testing::pattern(100));
  const auto id = [](const File& f) { return f.identity().value(); };
  const File a = std::move(File::open(t.path(), File::Mode::buffered).value());
  const File b = std::move(File::open(u.path(), File::Mode::buffered).value());
  const FileIdentity before = id(a);
  EXPECT_EQ(before.size, 100u);
  struct stat st;
  ASSERT_EQ(::stat(t.path(), &st), 0);
  EXPECT_EQ(before.dev, st.st_dev);
  EXPECT_EQ(before.ino, st.st_ino);
  EXPECT_EQ(before.mtime_ns, st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec);
  EXPECT_EQ(before, id(a));
  EXPECT_NE(before, id(b));
  t.append(testing::pattern(1));
  EXPECT_EQ(id(a).size, 101u);
  EXPECT_NE(before, id(a));
  const FileIdentity grown = id(a);
  const struct timespec times[2] = {{0, UTIME_OMIT}, {1, 5}};
  ASSERT_EQ(::futimens(t.fd(), times), 0);
  EXPECT_EQ(id(a).mtime_ns, 1'000'000'005);
  EXPECT_NE(grown, id(a));
}

}  // namespace
}  // namespace lmdbio
