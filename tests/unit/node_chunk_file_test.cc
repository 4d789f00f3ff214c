// Chunk files: who finds them, what is left of them, and what others put in their place.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "lmdbio/node/chunk_file.h"
#include "lmdbio/node/life.h"
#include "tests/support/ahead_file.h"
#include "tests/support/node_processes.h"

namespace lmdbio::node {
namespace {

constexpr std::size_t kBytes = 4 << 20;

std::string directory() { return "/dev/shm/lmdbio-" + std::to_string(::geteuid()); }

class NodeChunkFile : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!own_namespaces) GTEST_SKIP() << "no /dev/shm of its own can be had here";
    Result<Segment> made = Segment::make_unnamed(1);
    ASSERT_TRUE(made);
    life_ = std::move(made).value();
  }
  void TearDown() override {
    if (!own_namespaces) return;
    for (const ListedChunk& c : list_chunk_files()) (void)unlink_chunk_file(c.name);
    (void)::rmdir(directory().c_str());
    EXPECT_NE(::access(directory().c_str(), F_OK), 0);
  }
  ChunkName name(std::uint32_t chunk) const { return {life_of(life_), {1, 2}, chunk}; }
  // Linked, with bytes that tell the chunk.
  Status make(const ChunkName& name) {
    Result<UnnamedChunk> made = make_chunk_file(kBytes);
    if (!made) return made.error();
    std::memset(made.value().memory.data(), static_cast<int>(name.chunk + 1), kBytes);
    return link_chunk_file(made.value().fd, name, {made.value().memory.data(), kBytes});
  }
  static bool has(const Mapping& m, std::uint32_t chunk) {
    for (std::size_t at = 0; at < kBytes; at += 1000)
      if (m.data()[at] != static_cast<std::byte>(chunk + 1)) return false;
    return m.size() == kBytes && reinterpret_cast<std::uintptr_t>(m.data()) % (2 << 20) == 0;
  }
  Segment life_;
};

TEST_F(NodeChunkFile, IsFoundByItsName) {
  ASSERT_TRUE(make(name(3)).ok());
  Result<Mapping> found = open_chunk_file(name(3), kBytes);
  ASSERT_TRUE(found);
  EXPECT_TRUE(has(found.value(), 3));
  for (const ChunkName& other : {name(4), ChunkName{life_of(life_), {1, 3}, 3},
                                 ChunkName{life_of(life_), {2, 2}, 3}, ChunkName{1, {1, 2}, 3}})
    EXPECT_EQ(open_chunk_file(other, kBytes).error().raw(), ENOENT);
  EXPECT_EQ(open_chunk_file(name(3), 2 * kBytes).error().raw(), ENOENT) << "of another size";
  EXPECT_EQ(make(name(3)).raw(), EEXIST);
  EXPECT_TRUE(unlink_chunk_file(name(3)).ok());
  EXPECT_TRUE(has(found.value(), 3)) << "who has it keeps it";
  EXPECT_EQ(open_chunk_file(name(3), kBytes).error().raw(), ENOENT);
  EXPECT_EQ(unlink_chunk_file(name(3)).raw(), ENOENT);
}

TEST_F(NodeChunkFile, CannotBeFoundBeforeItIsLinked) {
  Result<UnnamedChunk> made = make_chunk_file(kBytes);
  ASSERT_TRUE(made);
  EXPECT_TRUE(list_chunk_files().empty());
  struct stat st;
  ASSERT_EQ(::fstat(made.value().fd.get(), &st), 0);
  EXPECT_GE(static_cast<std::size_t>(st.st_blocks) * 512, kBytes) << "it has all of its memory";
}

TEST_F(NodeChunkFile, IsForThisUserAlone) {
  ASSERT_TRUE(make(name(0)).ok());
  struct stat st;
  ASSERT_EQ(::stat(directory().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700u);
  std::string path;
  for (const auto& c : list_chunk_files())
    if (c.name == name(0)) path = "found";
  EXPECT_EQ(path, "found");
  if (::geteuid() != 0) GTEST_SKIP() << "another user can be tried as root alone";
  const std::string ours = directory();
  testing::expect_success(testing::fork_a_child([&] {
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) return 2;
    return ::open(ours.c_str(), O_RDONLY | O_DIRECTORY) < 0 && errno == EACCES && list_chunk_files().empty()
               ? 0
               : 1;
  }));
}

TEST_F(NodeChunkFile, IsNotInheritedAndNotWritable) {
  ASSERT_TRUE(make(name(0)).ok());
  Result<Mapping> found = open_chunk_file(name(0), kBytes);
  ASSERT_TRUE(found);
  EXPECT_NE(::mprotect(found.value().data(), kBytes, PROT_READ | PROT_WRITE), 0);
  const auto mapped = [&] {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find(directory()) != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(mapped());
  testing::expect_success(testing::fork_a_child([&] { return mapped() ? 1 : 0; }));
}

// What is found under the name of the directory is somebody else's.
TEST_F(NodeChunkFile, ADirectoryThatIsNotOurs) {
  const std::string at = directory();
  const auto refused = [&](int error) {
    EXPECT_EQ(make(name(0)).raw(), error);
    EXPECT_FALSE(open_chunk_file(name(0), kBytes));
    EXPECT_EQ(remove_dead_chunk_files(), 0u);
  };
  ASSERT_EQ(::symlink("/tmp", at.c_str()), 0);
  refused(EPERM);
  ASSERT_EQ(::unlink(at.c_str()), 0);
  for (const mode_t mode : {0755u, 0770u, 0500u}) {
    ASSERT_EQ(::mkdir(at.c_str(), 0700), 0);
    ASSERT_EQ(::chmod(at.c_str(), mode), 0);
    refused(EPERM);  // which removes it: it is empty
  }
  std::ofstream(at) << "a file\n";
  refused(EPERM);
  ASSERT_EQ(::unlink(at.c_str()), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::mkdir(at.c_str(), 0700), 0);
    ASSERT_EQ(::chown(at.c_str(), 65534, 65534), 0);
    refused(EPERM);
  }
  EXPECT_TRUE(make(name(0)).ok());
}

// A symbolic link, a pipe, a file that was cut off, one with holes.
TEST_F(NodeChunkFile, SomethingElseUnderItsName) {
  ASSERT_TRUE(make(name(0)).ok());
  ASSERT_TRUE(make(name(1)).ok());
  char text[96];
  (void)std::snprintf(text, sizeof text, "/%016llx-%016x%016x-%08x",
                      static_cast<unsigned long long>(life_of(life_)), 1u, 2u, 0u);
  const std::string at = directory() + text;
  ASSERT_EQ(::access(at.c_str(), F_OK), 0) << at;
  const auto refused = [&] { EXPECT_FALSE(open_chunk_file(name(0), kBytes)); };
  ASSERT_EQ(::unlink(at.c_str()), 0);
  ASSERT_EQ(::mkfifo(at.c_str(), 0600), 0);
  refused();
  ASSERT_EQ(::unlink(at.c_str()), 0);
  std::string other = at;
  other.back() = '1';
  ASSERT_EQ(::symlink(other.c_str(), at.c_str()), 0);
  refused();
  ASSERT_EQ(::unlink(at.c_str()), 0);
  std::ofstream(at) << "short";
  refused();
  ASSERT_EQ(::truncate(at.c_str(), kBytes), 0);
  refused();
}

// A page that is not as it was written.
TEST_F(NodeChunkFile, OtherBytes) {
  ASSERT_TRUE(make(name(0)).ok());
  ASSERT_TRUE(open_chunk_file(name(0), kBytes));
  char text[96];
  (void)std::snprintf(text, sizeof text, "/%016llx-%016x%016x-%08x",
                      static_cast<unsigned long long>(life_of(life_)), 1u, 2u, 0u);
  const std::string at = directory() + text;
  struct stat before;
  ASSERT_EQ(::stat(at.c_str(), &before), 0);
  ASSERT_EQ(::chmod(at.c_str(), 0600), 0);
  const UniqueFd fd(::open(at.c_str(), O_RDWR));
  ASSERT_TRUE(fd);
  std::array<char, 4096> page;
  page.fill(1);
  for (const off_t place : {0, 4096, 3 << 20, static_cast<int>(kBytes - page.size())}) {
    for (const bool damaged : {true, false}) {
      if (damaged) page.fill(0);
      ASSERT_EQ(::pwrite(fd.get(), page.data(), page.size(), place), static_cast<ssize_t>(page.size()));
      const timespec times[2] = {{0, UTIME_OMIT}, before.st_mtim};
      ASSERT_EQ(::futimens(fd.get(), times), 0);
      const Result<Mapping> found = open_chunk_file(name(0), kBytes);
      EXPECT_EQ(static_cast<bool>(found), !damaged) << place;
      if (!found) {
        EXPECT_EQ(found.error().raw(), EBADMSG);
      }
      page.fill(1);
    }
  }
  EXPECT_TRUE(unlink_chunk_file(name(0)).ok());
}

TEST_F(NodeChunkFile, WhatTheKilledLeaveIsRemoved) {
  ASSERT_TRUE(make(name(0)).ok());
  {
    Result<Segment> theirs = Segment::make_unnamed(1);
    ASSERT_TRUE(theirs);
    const std::uint64_t life = life_of(theirs.value());
    ASSERT_TRUE(make({life, {1, 2}, 0}).ok());
    ASSERT_TRUE(make({life, {1, 2}, 1}).ok());
    EXPECT_EQ(remove_dead_chunk_files(), 0u);
  }
  std::ofstream(directory() + "/notes") << "somebody's\n";
  std::size_t dead = 0;
  for (const ListedChunk& c : list_chunk_files()) {
    EXPECT_GE(c.bytes, kBytes);
    dead += c.dead;
  }
  EXPECT_EQ(dead, 2u);
  EXPECT_EQ(remove_dead_chunk_files(), 2u);
  EXPECT_EQ(list_chunk_files().size(), 1u);
  remove_chunk_files_of(life_of(life_));
  EXPECT_TRUE(list_chunk_files().empty());
  ASSERT_EQ(::unlink((directory() + "/notes").c_str()), 0) << "what is no chunk file stays";
}

class Mounted {
 public:
  explicit Mounted(const char* options, unsigned long flags = 0)
      : done_(::mount("tmpfs", "/dev/shm", "tmpfs", flags, options) == 0) {}
  ~Mounted() {
    if (done_) (void)::umount("/dev/shm");
  }
  bool done() const { return done_; }

 private:
  bool done_;
};

// /dev/shm is the programs': none is made in a small one, and a quarter of it is taken at most.
TEST_F(NodeChunkFile, NoRoom) {
  for (const char* const size : {"14m", "64m", "255m"}) {
    const Mounted small((std::string("mode=1777,size=") + size).c_str());
    ASSERT_TRUE(small.done());
    EXPECT_EQ(make(name(0)).raw(), ENOSPC) << size;
    EXPECT_EQ(chunk_room().left, 0u);
    remove_chunk_files_of(life_of(life_));  // and the directory
  }
  const Mounted own("mode=1777,size=256m");
  ASSERT_TRUE(own.done());
  EXPECT_EQ(chunk_room().left, 0u) << "nobody has any: there is no directory";
  std::uint32_t made = 0;
  for (; made < 12; ++made) {
    EXPECT_TRUE(make(name(made)).ok());
    EXPECT_LE(chunk_room().left, (48u << 20) - (made + 1) * kBytes);
    EXPECT_GE(chunk_room().left + (1 << 20), (48u << 20) - (made + 1) * kBytes);
  }
  EXPECT_EQ(chunk_room().left, 0u);
  for (; made < 20 && make(name(made)).ok();) ++made;
  EXPECT_GE(made, 15u);
  EXPECT_LE(made, 16u);
  EXPECT_EQ(make(name(20)).raw(), ENOSPC);
  ASSERT_TRUE(unlink_chunk_file(name(0)).ok());
  EXPECT_TRUE(make(name(20)).ok());
  EXPECT_TRUE(open_chunk_file(name(20), kBytes));
  const UniqueFd program(::open("/dev/shm/program", O_RDWR | O_CREAT, 0600));
  EXPECT_EQ(::posix_fallocate(program.get(), 0, 60 << 20), 0);
  EXPECT_FALSE(chunk_room().crowded);
  EXPECT_EQ(::posix_fallocate(program.get(), 0, 80 << 20), 0);
  EXPECT_TRUE(chunk_room().crowded);
  remove_chunk_files_of(life_of(life_));
  EXPECT_EQ(make(name(0)).raw(), ENOSPC) << "what the program has counts";
  EXPECT_EQ(::unlink("/dev/shm/program"), 0);
  remove_chunk_files_of(life_of(life_));
}

// Each byte that is written to it stays, in whatever mapping it is looked at, and before it is written to it
// is 0.
TEST_F(NodeChunkFile, HugePages) {
  for (const char* const huge : {"never", "always", "within_size", "advise"}) {
    const Mounted own((std::string("mode=1777,huge=") + huge).c_str());
    if (!own.done()) GTEST_SKIP() << "a tmpfs without huge pages";
    for (std::uint32_t i = 0; i < 3; ++i) {
      Result<UnnamedChunk> made = make_chunk_file(kBytes);
      ASSERT_TRUE(made) << huge;
      std::byte* const at = made.value().memory.data();
      EXPECT_EQ(std::count(at, at + kBytes, std::byte{}), kBytes) << huge;
      std::memset(at, static_cast<int>(i + 1), kBytes);
      EXPECT_TRUE(link_chunk_file(made.value().fd, name(i), {at, kBytes}).ok()) << huge;
      const Result<Mapping> found = open_chunk_file(name(i), kBytes);
      ASSERT_TRUE(found) << huge;
      for (const Mapping* const m :
           std::initializer_list<const Mapping*>{&made.value().memory, &found.value()})
        EXPECT_EQ(std::count(m->data(), m->data() + kBytes, static_cast<std::byte>(i + 1)), kBytes) << huge;
    }
    remove_chunk_files_of(life_of(life_));
  }
}

TEST_F(NodeChunkFile, ReadOnly) {
  const Mounted fixed("mode=1777", MS_RDONLY);
  ASSERT_TRUE(fixed.done());
  EXPECT_EQ(make(name(0)).raw(), EROFS);
  EXPECT_FALSE(open_chunk_file(name(0), kBytes));
}

}  // namespace
}  // namespace lmdbio::node
