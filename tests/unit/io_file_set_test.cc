#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/io/file_set.h"
#include "lmdbio/io/read_queue.h"
#include "tests/support/temp_file.h"

namespace lmdbio {
namespace {

constexpr std::size_t kFile = 20000;

class FileSetTest : public ::testing::Test {
 protected:
  std::shared_ptr<FileSet> make(std::size_t files, bool direct = false) {
    std::vector<FileSet::Part> parts;
    for (std::size_t i = 0; i < files; ++i) {
      temps_.push_back(std::make_unique<testing::TempFile>(contents(i)));
      parts.push_back({temps_.back()->path(), identity_of(temps_.back()->fd()).value(), kFile});
    }
    return std::make_shared<FileSet>(std::move(parts), direct);
  }
  static std::vector<std::byte> contents(std::size_t i) {
    std::vector<std::byte> all(kFile);
    for (std::size_t at = 0; at < kFile; ++at) all[at] = static_cast<std::byte>(at * 7 + i * 31 + at / 256);
    return all;
  }
  static long read(FileSet& files, std::uint64_t offset, MutableBytes to, bool direct) {
    long n = 0;
    EXPECT_TRUE(PrivateTable::run([&]() noexcept { n = files.read(offset, to, direct); }));
    return n;
  }
  static std::size_t descriptors() {
    std::size_t n = 0;
    for (int fd = 0; fd < 2000; ++fd) n += ::fcntl(fd, F_GETFD) >= 0;
    return n;
  }
  std::vector<std::unique_ptr<testing::TempFile>> temps_;
};

TEST_F(FileSetTest, OffsetsBelongToFiles) {
  const auto files = make(3);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(files->first(i) % FileSet::kSpacing, 0u);
    EXPECT_EQ(files->at(files->first(i)), i);
    EXPECT_EQ(files->at(files->first(i) + kFile), i);
    for (std::size_t k = 0; k <= i; ++k) EXPECT_EQ(files->at(files->first(i), k), i);
  }
  EXPECT_GE(files->first(1), kFile + FileSet::kSpacing);
  EXPECT_GE(files->bytes(), files->first(2) + kFile);
}

TEST_F(FileSetTest, ReadsOfManyFilesKeepFewOpen) {
  constexpr std::size_t kFiles = 200;
  const auto files = make(kFiles);
  const std::size_t before = descriptors();
  const auto read_all = [&] {
    for (std::size_t i = 0; i < kFiles; ++i) {
      std::vector<std::byte> got(1000);
      ASSERT_EQ(read(*files, files->first(i) + 3000, got, false), 1000);
      EXPECT_EQ(std::memcmp(got.data(), contents(i).data() + 3000, 1000), 0) << i;
      EXPECT_EQ(files->length(i), kFile);
      EXPECT_EQ(files->resident(files->first(i), kFile), 1.0);
      EXPECT_EQ(files->error(i), 0);
    }
  };
  std::thread one(read_all), two(read_all);
  one.join();
  two.join();
  read_all();
  EXPECT_LE(descriptors(), before + FileSet::kMostProbed);
}

TEST_F(FileSetTest, SetsKeepFewOpenOnceHalfOfTheDescriptorsAreInUse) {
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  constexpr std::size_t kLimit = 240, kFiles = kLimit / 4;
  const rlimit low{kLimit, usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<std::shared_ptr<FileSet>> sets;
  for (int i = 0; i < 3; ++i) sets.push_back(make(kFiles));
  const auto in_private_table = [] {
    std::size_t n = 0;
    EXPECT_TRUE(PrivateTable::run([&]() noexcept { n = descriptors(); }));
    return n;
  };
  const std::size_t before = in_private_table();
  for (const auto& files : sets)
    for (std::size_t i = 0; i < kFiles; ++i) {
      std::byte one[1];
      ASSERT_EQ(read(*files, files->first(i), one, false), 1) << i;
    }
  EXPECT_GT(in_private_table(), before + 2 * FileSet::kMostRead + FileSet::kMostRead / 2);
  EXPECT_LE(in_private_table(), before + 2 * kFiles + FileSet::kMostRead);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
}

TEST_F(FileSetTest, LengthsAreCheckedAgainAfterSomeTime) {
  const auto files = make(20);
  const std::int64_t then = now_ns();
  EXPECT_EQ(files->recent_length(1, then), kFile);
  ASSERT_EQ(::ftruncate(temps_[1]->fd(), 18000), 0);
  EXPECT_EQ(files->recent_length(1, then), kFile);
  EXPECT_EQ(files->recent_length(1, then + 20 * FileSet::kRecentPerFileNs), 0u) << "it was modified";
}

TEST_F(FileSetTest, ResidencyOfMappedFilesNeedsNoDescriptor) {
  const auto files = make(1);
  Result<Mapping> range = Mapping::reserve(files->bytes(), FileSet::kSpacing);
  ASSERT_TRUE(range.has_value());
  EXPECT_FALSE(files->is_resident(0, 0, kFile)) << "not mapped";
  ASSERT_TRUE(files->map(0, range.value().data()));
  EXPECT_TRUE(files->is_resident(0, 0, kFile));
  EXPECT_FALSE(files->is_resident(0, 0, kFile + 1)) << "beyond the part";
}

TEST_F(FileSetTest, AQueueReadsFromAllFiles) {
  const auto files = make(40);
  const Result<std::shared_ptr<const OpenFile>> like = files->open(0);
  ASSERT_TRUE(like.has_value());
  ReadQueue queue(FileSet::engine(files, like.value()->base(), 16, EngineKind::threads).value(),
                  files->bytes());
  ReadGroup group;
  std::vector<std::vector<std::byte>> got(40, std::vector<std::byte>(kFile));
  for (std::size_t i = 0; i < 40; ++i)
    ASSERT_TRUE(queue.add(group, {files->first(i), kFile}, got[i].data()).ok());
  ASSERT_TRUE(queue.wait(group).ok());
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(got[i], contents(i));
}

TEST_F(FileSetTest, BytesBeyondTheEndAreZerosOnlyBeyondThePart) {
  const auto files = make(1);
  std::vector<std::byte> got(8192, std::byte{1});
  EXPECT_EQ(read(*files, 16384, got, false), 8192) << "a direct read of the tail";
  EXPECT_EQ(got[kFile - 16384], std::byte{0});
  EXPECT_EQ(files->length(0), kFile);
  ASSERT_EQ(::ftruncate(temps_[0]->fd(), 18000), 0);
  EXPECT_EQ(read(*files, 16384, got, false), 18000 - 16384) << "the file has become shorter";
  EXPECT_EQ(files->length(0), 0u) << "it was modified";
}

TEST_F(FileSetTest, OtherFilesAtAPathAreErrors) {
  const auto files = make(2);
  ::unlink(temps_[1]->path());
  std::byte one[1];
  EXPECT_EQ(read(*files, files->first(1), one, false), -ENOENT);
  EXPECT_EQ(files->error(1), ENOENT);
  EXPECT_EQ(files->length(1), 0u);
  ASSERT_EQ(::link(temps_[0]->path(), temps_[1]->path()), 0);
  EXPECT_EQ(read(*files, files->first(1), one, false), -ESTALE);
  EXPECT_EQ(files->read_here(1, 0, one).raw(), ESTALE);
  EXPECT_FALSE(files->resident(files->first(1), 1).has_value());
  EXPECT_EQ(read(*files, 0, one, false), 1);
}

TEST_F(FileSetTest, AProgramMayCloseTheDescriptors) {
  const auto files = make(1);
  const std::size_t before = descriptors();
  EXPECT_EQ(files->resident(0, kFile), 1.0);
  EXPECT_EQ(descriptors(), before + 1);
  int own = -1;
  for (int fd = 3; fd < 2000 && own < 0; ++fd)
    if (fd != temps_[0]->fd() && is_inode(fd, files->part(0).id)) own = fd;
  ASSERT_GE(own, 0);
  const UniqueFd other(::open("/dev/null", O_RDONLY));
  ASSERT_EQ(::dup2(other.get(), own), own);  // the number is the program's now
  EXPECT_EQ(files->resident(0, kFile), 1.0) << "the file was opened again";
  EXPECT_GE(::fcntl(own, F_GETFD), 0) << "and leaves the program's descriptor alone";
  ::close(own);
}

TEST_F(FileSetTest, MapsEachFileAtItsAddress) {
  const auto files = make(3);
  Result<Mapping> range = Mapping::reserve(files->bytes(), FileSet::kSpacing);
  ASSERT_TRUE(range.has_value());
  for (const std::size_t i : {2u, 0u}) {
    std::byte* const to = range.value().data() + files->first(i);
    ASSERT_TRUE(files->map(i, to));
    EXPECT_EQ(std::memcmp(to, contents(i).data(), kFile), 0);
  }
}

}  // namespace
}  // namespace lmdbio
