// A database on one file system and a cache on another one.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/directory.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/cache/table.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::testing {

/// The value of LMDBIO_CACHE_DIR: a directory of this process.  A test calls it before the first use of
/// config(), and removes it at the end.
inline const std::string& cache_parent() {
  static const std::string made = [] {
    std::string path = ::testing::TempDir() + "lmdbio_cache_XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) std::abort();
    ::setenv("LMDBIO_CACHE_DIR", path.c_str(), 1);
    ::setenv("LMDBIO_CACHE_CODEC", "raw", 0);
    return path;
  }();
  return made;
}

/// Why there can be no cache here, or an empty string.
inline std::string why_no_cache() {
  struct stat cache, database;
  if (::stat(cache_parent().c_str(), &cache) != 0 || ::stat("/dev/shm", &database) != 0)
    return "there is no /dev/shm";
  return cache.st_dev == database.st_dev
             ? "the directory for temporary files is in the file system of /dev/shm"
             : "";
}

/// A database file: two meta pages and a value of pseudo-random bytes that fills it to `bytes`.  A half of
/// the value can be compressed.
class CacheDatabase {
 public:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::uint64_t kSnapshot = 7;

  explicit CacheDatabase(std::size_t bytes) {
    FileImage image(kPage);
    std::vector<std::byte> value = pattern(bytes - 2 * kPage - testing::kPageHeader);
    for (std::size_t i = 0; i < value.size(); ++i)
      if (i / cache::kFrameBytes % 2 == 1) value[i] &= std::byte{0x0f};
    (void)image.overflow({reinterpret_cast<const char*>(value.data()), value.size()});
    image.metas(FileImage::record(0, 1, 2, 1), kSnapshot);
    bytes_.assign(image.bytes().begin(), image.bytes().end());
    fd_.reset(::mkstemp(path_.data()));
    EXPECT_TRUE(fd_);
    write(0, bytes_);
    reopen();
  }
  CacheDatabase(const CacheDatabase&) = delete;
  CacheDatabase& operator=(const CacheDatabase&) = delete;
  ~CacheDatabase() { ::unlink(path_.c_str()); }

  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::uint64_t chunks() const { return (bytes_.size() + cache::kChunkBytes - 1) / cache::kChunkBytes; }
  const std::shared_ptr<const OpenFile>& file() const { return file_; }
  const char* path() const { return path_.c_str(); }
  int fd() const { return fd_.get(); }
  Origin origin() const { return {fd_.get(), path_.c_str(), identity_of(fd_.get()).value()}; }

  /// Returns its image, or null.
  std::shared_ptr<cache::Image> image(std::uint64_t snapshot = kSnapshot) const {
    return cache::Image::get(file_, path_.c_str(), snapshot);
  }
  void write(std::uint64_t at, Bytes bytes) const {
    ASSERT_EQ(::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes.size()));
  }
  /// A commit that changes the meta page alone.
  void commit(std::uint64_t snapshot) const {
    FileImage image(kPage);
    (void)image.overflow(std::string(bytes_.size() - 2 * kPage - testing::kPageHeader, 'x'));
    image.meta(FileImage::record(0, 1, 2, 1), snapshot);
    write((snapshot & 1) * kPage, {image.page(snapshot & 1), kPage});
  }
  /// Returns whether the file has these bytes at `at`.  Behind its end it has zeros.
  bool has(std::uint64_t at, Bytes got) const {
    const std::size_t n = at < bytes_.size() ? std::min<std::size_t>(got.size(), bytes_.size() - at) : 0;
    for (const std::byte b : got.subspan(n))
      if (b != std::byte{}) return false;
    return std::memcmp(got.data(), bytes_.data() + at, n) == 0;
  }
  /// Opens the file again, with another identity for the process if it has changed.
  void reopen() {
    file_.reset();
    auto opened = OpenFile::get(origin(), OpenFile::With::buffered_alone);
    ASSERT_TRUE(opened);
    file_ = std::move(opened).value();
  }

 private:
  std::string path_ = "/dev/shm/lmdbio_db_XXXXXX";
  UniqueFd fd_;
  std::vector<std::byte> bytes_;
  std::shared_ptr<const OpenFile> file_;
};

/// Adds the whole database to its image.
inline void fill(const CacheDatabase& db, cache::Image& image) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  for (std::size_t at = 0; at < db.bytes().size(); at += kPiece)
    (void)image.add(at, Bytes(db.bytes()).subspan(at, std::min(kPiece, db.bytes().size() - at)));
}

/// Waits until `done()`.  The thread that fills images may be slow, because it runs only when nobody else
/// does.
template <class Done>
void wait_for(cache::Image& image, Done&& done) {
  while (!done()) image.flush();
}

/// Reads each chunk of the image that it has.  Returns how many it has.  Any wrong byte is a failure.
inline std::uint64_t read_all_chunks(const CacheDatabase& db, cache::Image& image) {
  std::uint64_t there = 0;
  for (std::uint64_t c = 0; c < db.chunks(); ++c) {
    const std::uint64_t at = c * cache::kChunkBytes;
    std::vector<std::byte> got(std::min<std::uint64_t>(cache::kChunkBytes, db.bytes().size() - at));
    if (!image.read(at, got)) continue;
    EXPECT_TRUE(db.has(at, got)) << "chunk " << c << " has wrong bytes";
    ++there;
  }
  return there;
}

class CacheCase : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cache(); !why.empty()) GTEST_SKIP() << why;
  }
  void TearDown() override { std::filesystem::remove_all(cache_parent() + "/" + name_of_directory()); }

  static std::string name_of_directory() { return "lmdbio-" + std::to_string(::geteuid()); }
  static std::filesystem::path directory() { return cache_parent() + "/" + name_of_directory(); }
  /// Paths of the files of all images that end so.
  static std::vector<std::filesystem::path> files(const std::string& ending = "") {
    std::vector<std::filesystem::path> found;
    std::error_code none;
    for (const auto& e : std::filesystem::directory_iterator(directory(), none))
      if (e.path().string().ends_with(ending)) found.push_back(e.path());
    return found;
  }
  static std::filesystem::path file(const std::string& ending) {
    const auto found = files(ending);
    EXPECT_EQ(found.size(), 1u) << ending;
    return found.empty() ? "" : found[0];
  }
  /// The entries of the only table.
  static std::vector<cache::TableEntry> entries(std::uint64_t chunks) {
    std::vector<cache::TableEntry> all(chunks);
    const UniqueFd fd(::open(file(cache::kTableEnding).c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_TRUE(cache::read_entries(fd.get(), all));
    return all;
  }
  /// What a start of the machine leaves: the maps of the boot before do not count.
  static void restart() {
    for (const auto& path : files(cache::kMapEnding)) std::filesystem::remove(path);
  }
  static std::vector<char> contents(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void change(const std::filesystem::path& path, std::uint64_t at, unsigned char flip) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(::pread(fd.get(), &byte, 1, static_cast<off_t>(at)), 1) << path << ' ' << at;
    byte = static_cast<char>(byte ^ flip);
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, static_cast<off_t>(at)), 1);
  }
  static void put_back(const std::filesystem::path& path, const std::vector<char>& bytes) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
};

/// Removes the directory of the cache after all tests.
class CacheParent : public ::testing::Environment {
 public:
  void TearDown() override { std::filesystem::remove_all(cache_parent()); }
};

}  // namespace lmdbio::testing
