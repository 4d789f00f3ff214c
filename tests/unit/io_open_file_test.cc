#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/io/open_file.h"
#include "tests/support/ahead_file.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

using testing::TempFile;
using Shared = std::shared_ptr<const OpenFile>;

Origin origin_of(const TempFile& f) { return {f.fd(), f.path(), identity_of(f.fd()).value()}; }

Shared get(const TempFile& f, OpenFile::With with = OpenFile::With::buffered_alone) {
  Result<Shared> made = OpenFile::get(origin_of(f), with);
  return made ? made.value() : nullptr;
}

/// Descriptors of `f` in the private table.
unsigned descriptors_of(const TempFile& f) {
  const FileIdentity id = identity_of(f.fd()).value();
  unsigned n = 0;
  EXPECT_TRUE(PrivateTable::run([&]() noexcept {
    for (int fd = 0; fd < 256; ++fd) {
      struct stat st;
      n += ::fstat(fd, &st) == 0 && st.st_dev == id.dev && st.st_ino == id.ino;
    }
  }));
  return n;
}

std::byte byte_at(const File& file, off_t at) {
  std::byte b{};
  ssize_t n = -1;
  EXPECT_TRUE(file.with_fd([&](int fd) noexcept { n = ::pread(fd, &b, 1, at); }));
  EXPECT_EQ(n, 1);
  return b;
}

TEST(OpenFile, OnceAFile) {
  const auto bytes = testing::pattern(10000);
  const TempFile f(bytes), other(bytes);
  const Shared a = get(f), b = get(f), c = get(other);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_EQ(descriptors_of(f), 1u);
  const File* const exact = a->exact();
  ASSERT_NE(exact, nullptr);
  EXPECT_EQ(b->exact(), exact);
  const File* const direct = a->direct();
  EXPECT_EQ(b->direct(), direct);
  EXPECT_EQ(descriptors_of(f), direct != nullptr ? 3u : 2u);
  for (const File* file : {&a->buffered(), exact}) EXPECT_EQ(byte_at(*file, 4321), bytes[4321]);
  if (direct != nullptr) {
    EXPECT_TRUE(direct->direct());
  }
}

TEST(OpenFile, OneDescriptorForExactReads) {
  const auto bytes = testing::pattern(5000);
  const TempFile f(bytes);
  const Shared a = get(f, OpenFile::With::exact_alone);
  EXPECT_EQ(a->exact(), &a->base());
  EXPECT_EQ(descriptors_of(f), 1u);
  EXPECT_EQ(byte_at(a->base(), 4321), bytes[4321]);
  const File& buffered = a->buffered();
  EXPECT_NE(&buffered, a->exact());
  EXPECT_EQ(&buffered, &a->buffered());
  EXPECT_EQ(descriptors_of(f), 2u);
  EXPECT_EQ(byte_at(buffered, 4321), bytes[4321]);
}

// Files that are opened later have half of the numbers: they do without the descriptors that they need not.
TEST(OpenFile, FewDescriptors) {
  const auto bytes = testing::pattern(5000);
  const TempFile f(bytes);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const Shared a = get(f, OpenFile::With::exact_alone);
  const rlimit few{8, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const File* const direct = a->direct();
  const File* const buffered = &a->buffered();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(direct, nullptr);
  EXPECT_EQ(buffered, &a->base());
  EXPECT_EQ(descriptors_of(f), 1u);
  EXPECT_EQ(byte_at(*buffered, 4321), bytes[4321]);
  EXPECT_NE(&a->buffered(), &a->base()) << "not for good";
}

TEST(OpenFile, ClosedWithTheLastOwner) {
  const TempFile f(testing::pattern(5000));
  Shared a = get(f, OpenFile::With::direct), b = get(f);
  (void)a->exact();
  a.reset();
  EXPECT_GE(descriptors_of(f), 2u);
  b.reset();
  EXPECT_EQ(descriptors_of(f), 0u);
  EXPECT_NE(get(f), nullptr) << "opened anew";
}

TEST(OpenFile, AProgramThatHasClosedItsDescriptor) {
  const auto bytes = testing::pattern(5000);
  const TempFile f(bytes);
  const UniqueFd mine(::open(f.path(), O_RDONLY | O_CLOEXEC));
  Result<Shared> first =
      OpenFile::get({mine.get(), nullptr, identity_of(f.fd()).value()}, OpenFile::With::buffered_alone);
  ASSERT_TRUE(first);
  // Neither a descriptor nor a path leads to it any more: nobody who has it open needs them.
  Result<Shared> second =
      OpenFile::get({-1, nullptr, identity_of(f.fd()).value()}, OpenFile::With::buffered_alone);
  ASSERT_TRUE(second);
  EXPECT_EQ(first.value(), second.value());
  first = Status::from_errno(EBADF);
  second = Status::from_errno(EBADF);
  EXPECT_FALSE(OpenFile::get({-1, nullptr, identity_of(f.fd()).value()}, OpenFile::With::buffered_alone));
}

TEST(OpenFile, AnotherFileUnderTheSameName) {
  const TempFile f(testing::pattern(5000));
  const Shared before = get(f);
  const std::string moved = std::string(f.path()) + ".moved";
  std::filesystem::rename(f.path(), moved);
  std::filesystem::copy_file(moved, f.path());
  const UniqueFd fd(::open(f.path(), O_RDONLY | O_CLOEXEC));
  const Result<Shared> after =
      OpenFile::get({fd.get(), f.path(), identity_of(fd.get()).value()}, OpenFile::With::buffered_alone);
  ASSERT_TRUE(after);
  EXPECT_NE(before, after.value());
  EXPECT_TRUE(before->buffered().is_inode(before->identity()));
  EXPECT_FALSE(after.value()->buffered().is_inode(before->identity()));
  std::filesystem::remove(moved);
}

// The first one to open it has closed its descriptor, and its path leads nowhere: the next one's are used.
TEST(OpenFile, OpenedAnewByWhoStillHasIt) {
  const auto bytes = testing::pattern(5000);
  const TempFile f(bytes);
  const std::string moved = std::string(f.path()) + ".moved";
  const FileIdentity id = identity_of(f.fd()).value();
  UniqueFd first(::open(f.path(), O_RDONLY | O_CLOEXEC));
  const Result<Shared> a = OpenFile::get({first.get(), f.path(), id}, OpenFile::With::buffered_alone);
  ASSERT_TRUE(a);
  const UniqueFd second(::open(f.path(), O_RDONLY | O_CLOEXEC));
  std::filesystem::rename(f.path(), moved);
  first.reset();
  EXPECT_EQ(a.value()->exact(), nullptr) << "nobody is known who has it";
  const Result<Shared> b = OpenFile::get({second.get(), moved.c_str(), id}, OpenFile::With::buffered_alone);
  ASSERT_TRUE(b);
  EXPECT_EQ(a.value(), b.value());
  ASSERT_NE(b.value()->exact(), nullptr);
  EXPECT_EQ(byte_at(*b.value()->exact(), 77), bytes[77]);
#if !defined(__SANITIZE_THREAD__)  // which knows no threads of a child's own
  testing::expect_success(
      testing::fork_a_child([&] { return byte_at(b.value()->buffered(), 1234) == bytes[1234] ? 0 : 1; }));
#endif
  std::filesystem::rename(moved, f.path());
}

TEST(OpenFile, ManyThreadsAtOnce) {
  const TempFile f(testing::pattern(5000));
  constexpr unsigned kThreads = 8;
  for (unsigned turn = 0; turn < 20; ++turn) {
    std::array<Shared, kThreads> got;
    std::array<const File*, kThreads> exact{};
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < kThreads; ++i)
        threads.emplace_back([&, i] {
          got[i] = get(f);
          exact[i] = got[i]->exact();
        });
    }
    for (unsigned i = 0; i < kThreads; ++i) {
      ASSERT_EQ(got[i], got[0]) << turn;
      ASSERT_EQ(exact[i], exact[0]) << turn;
    }
    ASSERT_EQ(descriptors_of(f), 2u) << "what a slower thread has opened is closed";
  }
}

TEST(OpenFile, AForkedChildOpensItAnew) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer knows no threads of a child's own";
#endif
  const auto bytes = testing::pattern(5000);
  const TempFile f(bytes);
  const Shared file = get(f);
  ASSERT_NE(file->exact(), nullptr);
  testing::expect_success(testing::fork_a_child([&] {
    if (byte_at(file->buffered(), 1234) != bytes[1234] || byte_at(*file->exact(), 77) != bytes[77]) return 1;
    return get(f) == file ? 0 : 2;
  }));
}

TEST(OpenFile, ByPathForACommand) {
  const auto bytes = testing::pattern(5000);
  const TempFile f(bytes);
  const Result<Shared> made = OpenFile::open(f.path());
  ASSERT_TRUE(made);
  EXPECT_FALSE(made.value()->buffered().kept());
  EXPECT_EQ(byte_at(made.value()->buffered(), 99), bytes[99]);
  EXPECT_TRUE(made.value()->buffered().is_inode(origin_of(f).id));
  if (const File* const direct = made.value()->direct(); direct != nullptr) {
    EXPECT_TRUE(direct->direct());
  }
  EXPECT_EQ(OpenFile::open("/no/such/file").error().raw(), ENOENT);
}

TEST(OpenFile, ResidencyIsAskedByTheProgramsDescriptorAsLongAsItIsTheFile) {
  const TempFile f(testing::pattern(64 << 10)), other(testing::pattern(100));
  const Shared file = get(f);
  const UniqueFd programs(::open(f.path(), O_RDONLY | O_CLOEXEC));
  const Residency own = file->residency(-1), by_program = file->residency(programs.get());
  if (*own.how() == '\0') GTEST_SKIP() << "nothing tells";
  EXPECT_STREQ(own.how(), by_program.how());
  EXPECT_EQ(own.share(0, 64 << 10), by_program.share(0, 64 << 10));
  ASSERT_GE(::dup2(other.fd(), programs.get()), 0);
  EXPECT_EQ(own.share(0, 64 << 10), by_program.share(0, 64 << 10));
}

}  // namespace
}  // namespace lmdbio
