// Tests which directories the cache uses, what it lists, and what it removes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cache/directory.h"
#include "lmdbio/cache/table.h"

namespace lmdbio::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;

class DirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    parent_ = ::testing::TempDir() + "lmdbio_directory_XXXXXX";
    ASSERT_NE(::mkdtemp(parent_.data()), nullptr);
    path_ = parent_ + "/lmdbio-" + std::to_string(::geteuid());
  }
  void TearDown() override { fs::remove_all(parent_); }

  Directory open() { return std::move(Directory::open(parent_, true).value()); }
  static std::string name(char digit) { return std::string(32, digit); }
  /// Makes a file of `bytes`, all on disk, that was last used at `used_s`.
  void make(const std::string& file, std::uint64_t bytes, std::int64_t used_s) const {
    const UniqueFd fd(::open((path_ + "/" + file).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd) << file;
    if (bytes != 0) {
      ASSERT_EQ(::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)), 0);
    }
    const timespec times[2] = {{used_s, 0}, {used_s, 0}};
    ASSERT_EQ(::futimens(fd.get(), times), 0);
  }
  void make_image(char digit, std::uint64_t bytes, std::int64_t used_s) const {
    make(name(digit) + ".data", bytes, used_s - 5);
    make(name(digit) + ".table", 0, used_s - 3);
    make(name(digit) + ".0123456789abcdef.map", 0, used_s);
  }
  UniqueFd use(char digit) const {
    UniqueFd fd(::open((path_ + "/" + name(digit) + ".0123456789abcdef.map").c_str(), O_RDONLY | O_CLOEXEC));
    mark_in_use(fd.get());
    EXPECT_FALSE(is_in_use(fd.get())) << "by nobody else";
    return fd;
  }
  static std::string listed(const Directory& d) {
    std::string digits;
    for (const ImageFacts& f : d.list(false)) digits += f.name[0];
    return digits;
  }

  std::string parent_, path_;
};

TEST_F(DirectoryTest, MadeForItsOwnerAlone) {
  EXPECT_EQ(Directory::open(parent_, false).error().raw(), ENOENT);
  const ::mode_t before = ::umask(0);
  const Directory d = open();
  ::umask(before);
  EXPECT_EQ(d.path(), path_);
  struct stat st;
  ASSERT_EQ(::fstat(d.fd(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700u);
  EXPECT_TRUE(Directory::open(parent_, false));
  EXPECT_TRUE(d.list(true).empty());
  EXPECT_EQ(Directory::open(parent_ + "/none", true).error().raw(), ENOENT);
  EXPECT_FALSE(Directory::open("", false)) << "nothing at the root";
}

TEST_F(DirectoryTest, RefusesWhatOthersMayUse) {
  fs::create_directory(path_);
  for (const unsigned mode : {0755u, 0710u, 0701u, 0720u, 0777u, 01777u}) {
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    EXPECT_EQ(Directory::open(parent_, true).error().raw(), EPERM) << std::oct << mode;
  }
  ASSERT_EQ(::chmod(path_.c_str(), 0700), 0);
  EXPECT_TRUE(Directory::open(parent_, true));
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(path_.c_str(), 1234, 0), 0);
  EXPECT_EQ(Directory::open(parent_, true).error().raw(), EPERM);
}

TEST_F(DirectoryTest, RefusesLinksAndFiles) {
  fs::create_directory(parent_ + "/other");
  ASSERT_EQ(::chmod((parent_ + "/other").c_str(), 0700), 0);
  fs::create_directory_symlink(parent_ + "/other", path_);
  const int link = Directory::open(parent_, true).error().raw();
  EXPECT_TRUE(link == ELOOP || link == ENOTDIR) << link;
  fs::remove(path_);
  fs::create_directory_symlink(parent_ + "/nowhere", path_);
  EXPECT_FALSE(Directory::open(parent_, true));
  EXPECT_FALSE(fs::exists(parent_ + "/nowhere"));
  fs::remove(path_);
  const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0700));
  EXPECT_EQ(Directory::open(parent_, true).error().raw(), ENOTDIR);
}

TEST_F(DirectoryTest, ListsTheOldestFirst) {
  const Directory d = open();
  make_image('c', kMib, 300);
  make_image('a', 2 * kMib, 100);
  make_image('b', 0, 200);
  const UniqueFd used = use('a');
  const std::vector<ImageFacts> all = d.list(false);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(listed(d), "abc");
  EXPECT_EQ(all[0].used_s, 100);
  EXPECT_GE(all[0].disk_bytes, 2 * kMib);
  EXPECT_LT(all[0].disk_bytes, 3 * kMib);
  EXPECT_TRUE(all[0].in_use);
  EXPECT_FALSE(all[1].in_use);
}

TEST_F(DirectoryTest, ReadsTables) {
  const Directory d = open();
  make_image('a', 0, 100);
  make_image('b', 0, 200);
  const UniqueFd table(::open((path_ + "/" + name('a') + ".table").c_str(), O_RDWR | O_CLOEXEC));
  TableHeader header{};
  header.used_bytes = 2 * kChunkBytes + 1;
  header.snapshot = 42;
  std::string("/data/train").copy(header.path, sizeof header.path - 1);
  ASSERT_TRUE(write_header(table.get(), header));
  ASSERT_TRUE(write_entry(table.get(), 1, {1234, 4096, 0}));
  const std::vector<ImageFacts> all = d.list(true);
  ASSERT_EQ(all.size(), 2u);
  const ImageFacts& f = all[0].name == name('a') ? all[0] : all[1];
  EXPECT_EQ(f.path, "/data/train");
  EXPECT_EQ(f.used_bytes, 2 * kChunkBytes + 1);
  EXPECT_EQ(f.snapshot, 42u);
  EXPECT_EQ(f.chunks, 3u);
  EXPECT_EQ(f.chunks_there, 1u);
}

TEST_F(DirectoryTest, RemovesOnlyFilesOfTheImage) {
  const Directory d = open();
  make_image('a', 0, 100);
  make_image('b', 0, 200);
  const std::vector<std::string> kept = {name('a') + ".dat",
                                         name('a'),
                                         name('a') + "data",
                                         name('A') + ".data",
                                         name('a').substr(1) + ".data",
                                         "x" + name('a') + ".data",
                                         name('a') + ".table.old",
                                         "notes.txt",
                                         ".data",
                                         name('g') + ".map"};
  for (const std::string& file : kept) make(file, 0, 50);
  fs::create_directory(path_ + "/" + name('a') + ".5.new");  // unlink(2) leaves it
  EXPECT_EQ(listed(d).size(), 2u);
  d.remove(name('a'));
  d.remove("");
  d.remove("notes.txt");
  d.remove(name('c'));
  for (const std::string& file : kept) EXPECT_TRUE(fs::exists(path_ + "/" + file)) << file;
  for (const char* const ending : {".data", ".table", ".0123456789abcdef.map"}) {
    EXPECT_FALSE(fs::exists(path_ + "/" + name('a') + ending)) << ending;
    EXPECT_TRUE(fs::exists(path_ + "/" + name('b') + ending)) << ending;
  }
}

// What a killed process has left counts, and goes with its image.
TEST_F(DirectoryTest, FilesThatWereNotFinished) {
  const Directory d = open();
  make_image('a', 0, 100);
  make(name('a') + ".1234.new", kMib, 90);
  make(name('a') + ".map1234.new", kMib, 90);
  const std::vector<ImageFacts> all = d.list(false);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_GE(all[0].disk_bytes, 2 * kMib);
  d.remove(name('a'));
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(DirectoryTest, RoomIsWhatTheLimitLeaves) {
  const Directory d = open();
  EXPECT_EQ(d.room_for(name('a'), 100 * kMib, 8 * kMib), 8 * kMib);
  make_image('a', 3 * kMib, 100);
  EXPECT_EQ(d.room_for(name('a'), 100 * kMib, 8 * kMib), 8 * kMib) << "its own bytes are among them";
  make_image('b', 3 * kMib, 100);
  const UniqueFd used = use('b');
  const std::uint64_t room = d.room_for(name('a'), 100 * kMib, 8 * kMib);
  EXPECT_LE(room, 5 * kMib);
  EXPECT_GE(room, 5 * kMib - 64 * 1024);
  EXPECT_EQ(listed(d).size(), 2u);
  EXPECT_GE(d.room_for(name('a'), 100 * kMib, kMib), 3 * kMib) << "it keeps what it has";
  EXPECT_LT(d.room_for(name('c'), 100 * kMib, kMib), kMib);
  EXPECT_GT(d.room_for(name('a'), kMib, 0), 0u) << "half of the free space";
}

TEST_F(DirectoryTest, TheOldestGoFirstAndOnlyIfNeeded) {
  const Directory d = open();
  make_image('c', 2 * kMib, 300);
  make_image('a', 2 * kMib, 100);
  make_image('b', 2 * kMib, 200);
  make_image('d', 2 * kMib, 400);
  const UniqueFd used = use('a');
  EXPECT_GE(d.room_for(name('e'), 2 * kMib, 11 * kMib), 2 * kMib);
  EXPECT_EQ(listed(d), "abcd") << "there is room";
  EXPECT_GE(d.room_for(name('e'), 3 * kMib, 9 * kMib), 3 * kMib);
  EXPECT_EQ(listed(d), "acd") << "b is the oldest that nobody uses";
  (void)d.room_for(name('c'), 100 * kMib, 6 * kMib);
  EXPECT_EQ(listed(d), "ac") << "never one that is used, or the own one";
  EXPECT_LE(d.room_for(name('c'), 100 * kMib, 6 * kMib), 4 * kMib);
}

TEST_F(DirectoryTest, Names) {
  EXPECT_EQ(image_name({0x0123456789abcdef, 0xfedcba9876543210}), "fedcba98765432100123456789abcdef");
  EXPECT_EQ(image_name({1, 0}), std::string(31, '0') + "1");
  EXPECT_EQ(map_name("x"), map_name("x"));
  EXPECT_EQ(map_name("x").size(), 1 + 1 + 16 + std::string(kMapEnding).size());
}

}  // namespace
}  // namespace lmdbio::cache
