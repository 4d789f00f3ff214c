// The image of a database in the cache on local disk: same bytes or none, whatever happens to its files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/cache/image_format.h"
#include "lmdbio/io/private_table.h"
#include "tests/support/ahead_file.h"
#include "tests/support/cache_file.h"
#include "tests/support/child.h"

namespace lmdbio::cache {
namespace {

namespace fs = std::filesystem;
using testing::CacheDatabase;
using testing::fill;
using testing::read_all_chunks;

constexpr std::size_t kMib = std::size_t{1} << 20;
constexpr std::size_t kBytes = 9 * kMib + 3 * 4096;  // three chunks, the last one short
constexpr std::size_t kSmall = 200 * 1024;           // one chunk that is not completed by itself

// config() is read once.  Images of this test are smaller than this limit, but for one.
const bool is_set = [] {
  (void)testing::cache_parent();
  ::setenv("LMDBIO_CACHE_SIZE", "16M", 1);
  (void)::testing::AddGlobalTestEnvironment(new testing::CacheParent);
  return true;
}();

class ImageTest : public testing::CacheCase {};

/// Returns whether images are stored as they are.  CMakeLists.txt runs this program with several recipes.
bool is_raw(const Image& image) { return image.recipe().codec == Codec::raw; }

/// Distance of the stored chunks in the data file, in bytes.
std::uint64_t pitch(const Image& image) { return is_raw(image) ? kChunkBytes : kChunkBytes + kUnitBytes; }

Bytes part(const CacheDatabase& db, std::uint64_t from, std::uint64_t to) {
  return Bytes(db.bytes()).subspan(from, std::min<std::uint64_t>(to, db.bytes().size()) - from);
}

// --- what is added ----------------------------------------------------------------------------------------

TEST_F(ImageTest, HasNothingAtFirst) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  EXPECT_EQ(image->bytes(), 3 * kChunkBytes);
  EXPECT_EQ(image->share(), 0);
  EXPECT_EQ(image->whole_file(), nullptr);
  EXPECT_EQ(read_all_chunks(db, *image), 0u);
  EXPECT_TRUE(image->wants(0, 1));
  EXPECT_FALSE(image->wants(kBytes, 4096)) << "behind the end";
  EXPECT_EQ(db.image(), image) << "one image of a process";
}

TEST_F(ImageTest, PiecesInAnyOrderAndOverlapping) {
  std::mt19937 random(44);
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  for (int i = 0; image->wants(0, kBytes); ++i) {
    const std::size_t from = random() % kBytes;
    ASSERT_TRUE(image->add(from, part(db, from, from + 1 + random() % kMib)));
    if (i % 8 == 0) (void)read_all_chunks(db, *image);
  }
  // What is left in a chunk may have been read from the database.
  EXPECT_EQ(read_all_chunks(db, *image), 3u);
  EXPECT_EQ(image->counts().filled, 3u);
  EXPECT_EQ(image->counts().read >= kBytes, true);
  EXPECT_EQ(image->share(), 1);
}

TEST_F(ImageTest, ShareThatIsNotInMemory) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  EXPECT_EQ(image->share_not_in_memory(), 0);
  fill(db, *image);
  EXPECT_EQ(image->share(), 1);
  EXPECT_EQ(image->share_not_in_memory(), 0) << "the database is in a file system in memory";
  ASSERT_EQ(::fallocate(db.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * kChunkBytes), 0);
  EXPECT_DOUBLE_EQ(image->share_not_in_memory(), 2.0 / 3);
}

TEST_F(ImageTest, UnalignedPiecesCountInWholeUnits) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  for (std::size_t at = 100; at < kBytes; at += 4000) (void)image->add(at, part(db, at, at + 4000));
  EXPECT_EQ(image->counts().filled, 0u) << "no piece has a whole unit";
  EXPECT_EQ(read_all_chunks(db, *image), 0u);
  for (std::size_t at = 100; at < kBytes; at += 400'000) (void)image->add(at, part(db, at, at + 404'096));
  EXPECT_EQ(read_all_chunks(db, *image), 3u) << "the first unit is read from the database";
}

TEST_F(ImageTest, TheLastChunkEndsWithTheDatabase) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  (void)image->add(2 * kChunkBytes, part(db, 2 * kChunkBytes, kBytes));
  EXPECT_TRUE(image->has(2));
  EXPECT_FALSE(image->has(1));
  EXPECT_FALSE(image->has(3));
  EXPECT_FALSE(image->has(~std::uint64_t{0}));
  std::vector<std::byte> got(kBytes - 2 * kChunkBytes);
  ASSERT_TRUE(image->read(2 * kChunkBytes, got));
  EXPECT_TRUE(db.has(2 * kChunkBytes, got));
  EXPECT_FALSE(image->read(2 * kChunkBytes - 1, got)) << "a byte of a chunk that is missing";
  got.resize(kChunkBytes + 1);
  EXPECT_FALSE(image->read(2 * kChunkBytes, got)) << "behind the image";
  EXPECT_FALSE(image->read(~std::uint64_t{0}, got));
}

TEST_F(ImageTest, BytesBehindTheEndAreLeftOut) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  std::vector<std::byte> more(db.bytes().begin() + 2 * kChunkBytes, db.bytes().end());
  more.resize(2 * kChunkBytes, std::byte{0x55});
  (void)image->add(2 * kChunkBytes, more);
  (void)image->add(4 * kChunkBytes, more);
  EXPECT_TRUE(image->has(2));
  std::vector<std::byte> got(kChunkBytes);
  ASSERT_TRUE(image->read(2 * kChunkBytes, got));
  EXPECT_TRUE(db.has(2 * kChunkBytes, got));
}

TEST_F(ImageTest, OffersAreWrittenLater) {
  const CacheDatabase db(kSmall);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  image->offer(0, part(db, 0, 100 * 1024));
  image->offer_cached(100 * 1024, kSmall - 100 * 1024);
  testing::wait_for(*image, [&] { return image->has_stored(0); });
  EXPECT_EQ(read_all_chunks(db, *image), 1u);
  EXPECT_FALSE(image->wants(0, kSmall));
  image->offer(0, part(db, 0, kSmall));
  Image::flush_all();
}

// The rest of a chunk that lacks little is read from the database, also after the process that left it so.
TEST_F(ImageTest, AChunkThatLacksLittleIsCompletedAtOpen) {
  const CacheDatabase db(100 * 1024);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  testing::wait_for(*image, [&] { return image->has_stored(0); });
  EXPECT_EQ(read_all_chunks(db, *image), 1u);
}

TEST_F(ImageTest, ManyThreads) {
  const CacheDatabase db(kBytes);
  std::vector<std::shared_ptr<Image>> images(6);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < images.size(); ++t)
    threads.emplace_back([&, t] {
      images[t] = db.image();
      if (images[t] == nullptr) return;
      for (std::size_t at = t * 333'333 % kBytes, n = 0; n < kBytes; n += kMib, at = (at + kMib) % kBytes) {
        (void)images[t]->add(at, part(db, at, at + kMib));
        (void)read_all_chunks(db, *images[t]);
      }
    });
  for (std::thread& t : threads) t.join();
  for (const auto& i : images) EXPECT_EQ(i, images[0]);
  ASSERT_NE(images[0], nullptr);
  fill(db, *images[0]);
  EXPECT_EQ(read_all_chunks(db, *images[0]), 3u);
  EXPECT_TRUE(files(".new").empty());
}

// --- whose image it is ------------------------------------------------------------------------------------

TEST_F(ImageTest, OnlyOfTheNewestSnapshot) {
  const CacheDatabase db(kSmall);
  EXPECT_EQ(db.image(0), nullptr);
  EXPECT_EQ(db.image(CacheDatabase::kSnapshot - 1), nullptr);
  EXPECT_EQ(db.image(CacheDatabase::kSnapshot + 1), nullptr);
  EXPECT_NE(db.image(), nullptr);
}

TEST_F(ImageTest, NoneInTheFileSystemOfTheDatabase) {
  const std::string path = testing::cache_parent() + "/db";
  const CacheDatabase db(kSmall);
  fs::copy_file(db.path(), path);
  {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    const auto file = OpenFile::get({fd.get(), path.c_str(), identity_of(fd.get()).value()},
                                    OpenFile::With::buffered_alone);
    ASSERT_TRUE(file);
    EXPECT_EQ(Image::get(file.value(), path.c_str(), CacheDatabase::kSnapshot), nullptr);
  }
  fs::remove(path);
  EXPECT_TRUE(files().empty()) << "nothing is left behind";
}

TEST_F(ImageTest, ACommitGetsAnotherImage) {
  const CacheDatabase db(kSmall);
  const auto before = db.image();
  ASSERT_NE(before, nullptr);
  fill(db, *before);
  db.commit(CacheDatabase::kSnapshot + 1);
  EXPECT_EQ(db.image(), nullptr);
  const auto after = db.image(CacheDatabase::kSnapshot + 1);
  ASSERT_NE(after, nullptr);
  EXPECT_NE(after, before);
  EXPECT_EQ(after->share(), 0);
  EXPECT_EQ(read_all_chunks(db, *before), 1u) << "the old one stays";
  EXPECT_EQ(files(kDataEnding).size(), 2u);
}

TEST_F(ImageTest, NothingIsAddedAfterACommit) {
  const CacheDatabase db(kBytes);
  auto image = db.image();
  ASSERT_NE(image, nullptr);
  (void)image->add(0, part(db, 0, kChunkBytes + kMib));
  db.commit(CacheDatabase::kSnapshot + 1);
  const std::vector<std::byte> other(kChunkBytes, std::byte{0x55});
  EXPECT_FALSE(image->add(kChunkBytes + kMib, Bytes(other).first(3 * kMib)));
  EXPECT_FALSE(image->has(1));
  EXPECT_FALSE(image->wants(2 * kChunkBytes, 4096));
  image->offer(2 * kChunkBytes, other);
  image->flush();
  EXPECT_EQ(read_all_chunks(db, *image), 1u) << "what it had before";
}

// --- plain bytes of chunks that are not in their final form yet ------------------------------------------

/// Does what another process does that writes all bytes of a chunk and is killed then.
void write_plain(const CacheDatabase& db, const Image& image, std::uint64_t chunk, const fs::path& plain,
                 const fs::path& map, Bytes bytes) {
  const UniqueFd to(::open(plain.c_str(), O_RDWR | O_CLOEXEC)),
      units(::open(map.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::pwrite(to.get(), bytes.data(), bytes.size(), static_cast<off_t>(chunk * kChunkBytes)),
            static_cast<ssize_t>(bytes.size()));
  const std::vector<unsigned char> all(kUnitsPerChunk / 8, 0xff);
  ASSERT_EQ(::pwrite(units.get(), all.data(), all.size(),
                     static_cast<off_t>(units_at(image.bytes() / kChunkBytes, chunk))),
            static_cast<ssize_t>(all.size()));
  ASSERT_LE(chunk * kChunkBytes + bytes.size(), db.bytes().size());
}

class PlainTest : public ImageTest {
 protected:
  /// Returns an image that has chunk 0.
  static std::shared_ptr<Image> image_of(const CacheDatabase& db) {
    std::shared_ptr<Image> image = db.image();
    if (image != nullptr) (void)image->add(0, part(db, 0, kChunkBytes));
    return image;
  }
  static void write_plain_chunk(const CacheDatabase& db, const Image& image, std::uint64_t chunk) {
    const fs::path plain = file(is_raw(image) ? kDataEnding : kPartEnding);
    write_plain(db, image, chunk, plain, file(kMapEnding),
                part(db, chunk * kChunkBytes, (chunk + 1) * kChunkBytes));
  }
};

TEST_F(PlainTest, IsReadUntilItIsStored) {
  const CacheDatabase db(kBytes);
  const auto image = image_of(db);
  ASSERT_NE(image, nullptr);
  EXPECT_FALSE(image->has(1));
  write_plain_chunk(db, *image, 1);
  write_plain_chunk(db, *image, 2);
  EXPECT_TRUE(image->has(1));
  EXPECT_FALSE(image->has_stored(1));
  EXPECT_FALSE(image->wants(kChunkBytes, kBytes - kChunkBytes));
  EXPECT_EQ(read_all_chunks(db, *image), 3u);
  std::vector<std::byte> got(3 * kMib);
  ASSERT_TRUE(image->read(kChunkBytes - kMib, got)) << "of a stored chunk and a plain one";
  EXPECT_TRUE(db.has(kChunkBytes - kMib, got));
  got.resize(2 * kChunkBytes);
  ASSERT_TRUE(image->read(kChunkBytes, got)) << "behind the end of the database";
  EXPECT_TRUE(db.has(kChunkBytes, got));
  EXPECT_EQ(image->counts().filled, 1u);
  image->finish(1);
  EXPECT_TRUE(image->has_stored(1));
  EXPECT_EQ(read_all_chunks(db, *image), 3u);
  EXPECT_EQ(image->counts().filled, 2u);
}

TEST_F(PlainTest, IsNotReadAfterACommit) {
  const CacheDatabase db(kBytes);
  const auto image = image_of(db);
  ASSERT_NE(image, nullptr);
  write_plain_chunk(db, *image, 1);
  EXPECT_TRUE(image->has(1));
  db.commit(CacheDatabase::kSnapshot + 1);
  write_plain_chunk(db, *image, 2);
  EXPECT_TRUE(image->has(1)) << "written before the commit";
  EXPECT_FALSE(image->has(2));
  EXPECT_EQ(read_all_chunks(db, *image), 2u);
}

// Threads read chunks while others compress them, which removes the plain bytes.
TEST_F(PlainTest, IsReadWhileItIsStored) {
  const CacheDatabase db(kBytes);
  for (int round = 0; round < 5; ++round) {
    const auto image = image_of(db);
    ASSERT_NE(image, nullptr);
    write_plain_chunk(db, *image, 1);
    write_plain_chunk(db, *image, 2);
    std::atomic<bool> ends{false};
    std::vector<std::thread> readers;
    for (int t = 0; t < 3; ++t)
      readers.emplace_back([&] {
        do EXPECT_GE(read_all_chunks(db, *image), 1u) << "not a chunk that is about to be stored";
        while (!ends);
      });
    image->finish(2);
    image->finish(1);
    ends = true;
    for (std::thread& t : readers) t.join();
    EXPECT_TRUE(image->has_stored(1) && image->has_stored(2));
    EXPECT_EQ(read_all_chunks(db, *image), 3u);
    fs::remove_all(directory());
  }
}

// --- other processes, earlier ones, and those of an earlier boot ------------------------------------------

TEST_F(ImageTest, OtherProcessesShareIt) {
  const CacheDatabase db(kBytes);
  const auto first = db.image();
  ASSERT_NE(first, nullptr);
  (void)first->add(0, part(db, 0, kChunkBytes));
  // A forked child opens the files again.
  testing::expect_success(testing::fork_a_child([&] {
    if (read_all_chunks(db, *first) != 1) return 1;
    (void)first->add(kChunkBytes, part(db, kChunkBytes, 2 * kChunkBytes));
    first->offer(2 * kChunkBytes, part(db, 2 * kChunkBytes, kBytes));
    testing::wait_for(*first, [&] { return first->has_stored(2); });
    return read_all_chunks(db, *first) == 3 && !::testing::Test::HasFailure() ? 0 : 2;
  }));
  EXPECT_EQ(read_all_chunks(db, *first), 3u);
  EXPECT_EQ(first->whole_file() != nullptr, is_raw(*first));
}

TEST_F(ImageTest, LaterProcessesFindIt) {
  const CacheDatabase db(kBytes);
  fill(db, *db.image());
  const auto image = db.image();
  EXPECT_EQ(read_all_chunks(db, *image), 3u);
  const auto whole = image->whole_file();
  if (!is_raw(*image)) {
    EXPECT_EQ(whole, nullptr);
    return;
  }
  ASSERT_NE(whole, nullptr);
  std::vector<std::byte> got(kBytes);
  ASSERT_TRUE(whole->base().with_fd([&](int fd) noexcept {
    EXPECT_EQ(::pread(fd, got.data(), got.size(), 0), static_cast<ssize_t>(kBytes));
  }));
  EXPECT_TRUE(db.has(0, got));
  EXPECT_EQ(whole->base().size().value(), image->bytes());
}

// Each of them adds all chunks.
TEST_F(ImageTest, ManyProcesses) {
  const CacheDatabase db(kBytes);
  for (int round = 0; round < 2; ++round) {
    std::vector<pid_t> children;
    for (int i = 0; i < 4; ++i)
      children.push_back(testing::fork_a_child([&] {
        for (int turn = 0; turn < 2; ++turn) {
          const auto image = db.image();
          if (image == nullptr) return 1;
          fill(db, *image);
          (void)read_all_chunks(db, *image);  // another process may be about to store a chunk
          if (::testing::Test::HasFailure()) return 2;
        }
        return 0;
      }));
    for (const pid_t child : children) testing::expect_success(child);
    fill(db, *db.image());
    EXPECT_EQ(read_all_chunks(db, *db.image()), 3u);
    restart();
    EXPECT_EQ(read_all_chunks(db, *db.image()), 3u) << "checksums of the right bytes";
    fs::remove_all(directory());
  }
}

// Another process chooses the recipe, but makes no table (because it was stopped, for example).
TEST_F(ImageTest, ManyProcessesMayChoose) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  const UniqueFd data(::open(file(kDataEnding).c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(data.get(), F_OFD_SETLK, &lock), 0);
  fill(db, *image);
  EXPECT_EQ(read_all_chunks(db, *image), 3u);
  lock.l_type = F_UNLCK;
  ASSERT_EQ(::fcntl(data.get(), F_OFD_SETLK, &lock), 0);
  lock.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(data.get(), F_OFD_GETLK, &lock), 0);
  EXPECT_EQ(lock.l_type, F_UNLCK) << "a process holds the lock only while it chooses";
}

// An image without users takes what was offered before its recipe is chosen.
TEST_F(ImageTest, OffersAreKeptWhileTheRecipeIsChosen) {
  if (config().cache_codec != CacheCodec::automatic)
    return;  // it is prescribed, so there is nothing to choose
  const CacheDatabase db(kBytes);
  auto image = db.image();
  ASSERT_NE(image, nullptr);
  const std::weak_ptr<Image> gone = image;
  image->offer_cached(0, kBytes);
  image->flush();
  image.reset();
  while (!gone.expired()) std::this_thread::yield();
  EXPECT_EQ(read_all_chunks(db, *db.image()), 3u);
}

// A process was killed while it stored chunks.
TEST_F(PlainTest, KilledBeforeTheEntryWasWritten) {
  const CacheDatabase db(kBytes);
  auto image = image_of(db);
  ASSERT_NE(image, nullptr);
  const fs::path map = file(kMapEnding);
  for (std::uint64_t c = 1; c < 3; ++c) {
    write_plain_chunk(db, *image, c);
    change(map, sizeof(MapHeader) + c, static_cast<unsigned char>(ChunkState::completing));
  }
  const std::weak_ptr<Image> gone = image;
  image.reset();
  while (!gone.expired()) std::this_thread::yield();  // its thread may still use it
  image = db.image();
  EXPECT_GE(read_all_chunks(db, *image), 1u) << "those that are not just being stored";
  testing::wait_for(*image, [&] { return image->has_stored(1) && image->has_stored(2); });
  const std::weak_ptr<Image> second = image;
  image.reset();
  while (!second.expired()) std::this_thread::yield();
  restart();
  EXPECT_EQ(read_all_chunks(db, *db.image()), 3u);
}

// A process was killed after it wrote the entry.
TEST_F(PlainTest, KilledAfterTheEntryWasWritten) {
  const CacheDatabase db(kBytes);
  fill(db, *db.image());
  const fs::path map = file(kMapEnding);
  for (std::uint64_t c = 0; c < 3; ++c)
    change(
        map, sizeof(MapHeader) + c,
        static_cast<unsigned char>(ChunkState::there) ^ static_cast<unsigned char>(ChunkState::completing));
  EXPECT_EQ(read_all_chunks(db, *db.image()), 3u);
}

// A thread has written the entry, and removes the plain bytes.
TEST_F(PlainTest, ReadWhilePlainBytesAreRemoved) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  if (is_raw(*image)) return;  // there are no others
  fill(db, *image);
  const fs::path map = file(kMapEnding);
  for (std::uint64_t c = 0; c < 3; ++c)
    change(
        map, sizeof(MapHeader) + c,
        static_cast<unsigned char>(ChunkState::there) ^ static_cast<unsigned char>(ChunkState::completing));
  EXPECT_EQ(read_all_chunks(db, *image), 3u);
}

TEST_F(ImageTest, ChunksOfAnEarlierBootAreVerified) {
  const CacheDatabase db(kBytes);
  fill(db, *db.image());
  restart();
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  EXPECT_EQ(image->share(), 1);
  EXPECT_EQ(image->whole_file(), nullptr) << "not before they are verified";
  EXPECT_FALSE(image->wants(0, kBytes));
  EXPECT_EQ(read_all_chunks(db, *image), 3u);
  EXPECT_EQ(image->whole_file() != nullptr, is_raw(*image));
  EXPECT_EQ(image->counts().damaged, 0u);
  EXPECT_EQ(image->counts().filled, 0u);
}

TEST_F(ImageTest, DamagedDataOfAnEarlierBoot) {
  std::mt19937 random(44);
  const CacheDatabase db(kBytes);
  fill(db, *db.image());
  const fs::path data = file(kDataEnding);
  for (int round = 0; round < 12; ++round) {
    restart();
    const std::uint64_t chunk = random() % 3, stored = entries(3)[chunk].bytes;
    const std::uint64_t at = round == 0 ? 0 : round == 1 ? stored - 1 : random() % stored;
    const auto image = db.image();
    ASSERT_NE(image, nullptr);
    change(data, chunk * pitch(*image) + at, static_cast<unsigned char>(1u << random() % 8));
    EXPECT_EQ(read_all_chunks(db, *image), 2u) << chunk << ' ' << at;
    EXPECT_FALSE(image->has(chunk));
    EXPECT_EQ(image->counts().damaged, 1u);
    fill(db, *image);
    EXPECT_EQ(read_all_chunks(db, *image), 3u) << chunk << ' ' << at << ": it is added again";
  }
}

// One bit of a stored chunk: in an earlier boot, or, if the frames have checksums, in this one.
// CACHE_IMAGE_FLIPS: how many.
TEST_F(ImageTest, BitFlips) {
  const char* const wanted = std::getenv("CACHE_IMAGE_FLIPS");
  const int flips = wanted != nullptr ? std::atoi(wanted) : 500;
  std::mt19937 random(44);
  const CacheDatabase db(kSmall);
  fill(db, *db.image());
  const fs::path data = file(kDataEnding), table = file(kTableEnding);
  const std::vector<char> good = contents(table);
  const std::uint64_t stored = entries(1)[0].bytes;
  for (int i = 0; i < flips; ++i) {
    restart();
    const auto image = db.image();
    ASSERT_NE(image, nullptr);
    const bool same_boot = !is_raw(*image) && i % 2 != 0;
    if (same_boot) {
      ASSERT_EQ(read_all_chunks(db, *image), 1u);
    }
    const std::uint64_t at = random() % stored;
    const auto bit = static_cast<unsigned char>(1u << random() % 8);
    change(data, at, bit);
    ASSERT_EQ(read_all_chunks(db, *image), 0u) << at << ' ' << int{bit};
    ASSERT_FALSE(image->has(0));
    change(data, at, bit);
    put_back(table, good);
  }
}

TEST_F(ImageTest, EachByteOfTheTable) {
  const CacheDatabase db(kSmall);
  fill(db, *db.image());
  const fs::path table = file(kTableEnding);
  const std::vector<char> good = contents(table);
  ASSERT_EQ(good.size(), sizeof(TableHeader) + sizeof(TableEntry));
  for (std::size_t at = 0; at < good.size(); ++at) {
    const std::size_t in_path = at - offsetof(TableHeader, path);
    if (in_path > 50 && in_path < sizeof(TableHeader::path) - 50 && in_path % 64 != 0) continue;
    put_back(table, good);
    restart();
    change(table, at, 1u << at % 8);
    const auto image = db.image();
    ASSERT_NE(image, nullptr) << at;
    if (at < sizeof(TableHeader) + offsetof(TableEntry, reserved)) {
      EXPECT_EQ(read_all_chunks(db, *image), 0u) << at;
    } else {
      EXPECT_EQ(read_all_chunks(db, *image), 1u) << at << ": nothing uses it";
    }
  }
}

TEST_F(ImageTest, EachByteOfTheMapsHeader) {
  const CacheDatabase db(kSmall);
  fill(db, *db.image());
  for (std::size_t at = 0; at < sizeof(MapHeader); ++at) {
    change(file(kMapEnding), at, 1u << at % 8);
    const auto image = db.image();
    ASSERT_NE(image, nullptr) << at;
    EXPECT_EQ(read_all_chunks(db, *image), 1u) << at;
  }
}

TEST_F(ImageTest, FilesThatAreTooShort) {
  const CacheDatabase db(kSmall);
  for (const char* const ending : {kDataEnding, kTableEnding, kMapEnding})
    for (const std::uint64_t left : {0u, 1u, 63u, 64u, 4095u, 4096u, 4097u, 4111u}) {
      for (const bool same_boot : {false, true}) {
        fill(db, *db.image());
        const fs::path path = file(ending);
        if (left < fs::file_size(path)) fs::resize_file(path, left);
        if (!same_boot) restart();
        const auto image = db.image();
        ASSERT_NE(image, nullptr) << path << ' ' << left;
        (void)read_all_chunks(db, *image);
        fill(db, *image);
        EXPECT_EQ(read_all_chunks(db, *image), 1u) << path << ' ' << left;
      }
    }
}

TEST_F(ImageTest, EntriesWithoutDataAndDataWithoutEntries) {
  const CacheDatabase db(kBytes);
  fill(db, *db.image());
  const fs::path data = file(kDataEnding), table = file(kTableEnding);
  const std::vector<char> entries = contents(table), bytes = contents(data);
  fs::resize_file(data, 0);
  fs::resize_file(data, bytes.size());
  restart();
  EXPECT_EQ(read_all_chunks(db, *db.image()), 0u) << "entries without data";
  put_back(data, bytes);
  fs::resize_file(table, sizeof(TableHeader));
  restart();
  EXPECT_EQ(read_all_chunks(db, *db.image()), 0u) << "data without entries";
  put_back(table, entries);
  restart();
  EXPECT_EQ(read_all_chunks(db, *db.image()), 3u);
}

// Each file of an image is removed by itself, and the inode of the data file may then be used again.
TEST_F(ImageTest, AFileThatIsMissing) {
  const CacheDatabase db(kBytes);
  for (const char* const ending : {kDataEnding, kTableEnding, kMapEnding, kPartEnding}) {
    for (int tries = 0; tries < 3; ++tries) {
      {
        const auto first = db.image();
        (void)first->add(0, part(db, 0, kBytes - kMib));
        if (is_raw(*first) && ending == kPartEnding) return;
        fs::remove(file(ending));
      }
      const auto image = db.image();
      ASSERT_NE(image, nullptr);
      (void)read_all_chunks(db, *image);
      fill(db, *image);
      EXPECT_EQ(read_all_chunks(db, *image), 3u) << ending;
    }
  }
}

// --- directories ------------------------------------------------------------------------------------------

TEST_F(ImageTest, TheDirectoryIsRemovedWhileItIsUsed) {
  const CacheDatabase db(kBytes);
  auto image = db.image();
  ASSERT_NE(image, nullptr);
  (void)image->add(0, part(db, 0, kChunkBytes));
  fs::remove_all(directory());
  EXPECT_EQ(read_all_chunks(db, *image), 1u);
  fill(db, *image);
  EXPECT_GE(read_all_chunks(db, *image), 1u) << "it has its files, but may take no more";
  (void)image->whole_file();
  testing::expect_success(testing::fork_a_child([&] {
    (void)read_all_chunks(db, *image);
    fill(db, *image);
    return ::testing::Test::HasFailure() ? 1 : 0;
  }));
  image.reset();
  image = db.image();
  ASSERT_NE(image, nullptr) << "made anew";
  EXPECT_EQ(read_all_chunks(db, *image), 0u);
}

// A forked child whose parent's image was removed, and made again by somebody else.
TEST_F(ImageTest, AChildDoesNotTakeAnotherImage) {
  const CacheDatabase db(kBytes);
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  fill(db, *image);
  testing::expect_success(testing::fork_a_child([&] {
    const fs::path data = file(kDataEnding);
    fs::remove(data);
    if (::close(::open(data.c_str(), O_RDWR | O_CREAT, 0600)) != 0) return 1;
    fs::resize_file(data, 3 * kChunkBytes);
    return read_all_chunks(db, *image) == 0 && !::testing::Test::HasFailure() ? 0 : 2;
  }));
}

TEST_F(ImageTest, DirectoriesThatAreNotTaken) {
  const CacheDatabase db(kSmall);
  const fs::path other = testing::cache_parent() + "/other";
  fs::create_directory(other);
  fs::permissions(other, fs::perms::owner_all);
  fs::create_directory_symlink(other, directory());
  EXPECT_EQ(db.image(), nullptr) << "a link";
  fs::remove(directory());
  fs::remove(other);
  put_back(directory(), {'x'});
  EXPECT_EQ(db.image(), nullptr) << "a file";
  fs::remove(directory());
  fs::create_directory(directory());
  for (const unsigned mode : {0755u, 0710u, 0702u, 0740u, 01777u}) {
    fs::permissions(directory(), static_cast<fs::perms>(mode));
    EXPECT_EQ(db.image(), nullptr) << std::oct << mode;
  }
  fs::permissions(directory(), fs::perms::owner_all);
  EXPECT_TRUE(files().empty());
  EXPECT_NE(db.image(), nullptr);
}

// Files of an image that are links, and lead to files of somebody else.
TEST_F(ImageTest, LinksAreNotFollowed) {
  const CacheDatabase db(kSmall);
  fill(db, *db.image());
  const std::vector<char> theirs(100, 'x');
  const fs::path other = testing::cache_parent() + "/theirs";
  for (const char* const ending : {kDataEnding, kTableEnding, kMapEnding}) {
    put_back(other, theirs);
    const fs::path path = file(ending);
    fs::remove(path);
    fs::create_symlink(other, path);
    if (const auto image = db.image(); image != nullptr) {
      (void)read_all_chunks(db, *image);
      fill(db, *image);
    }
    EXPECT_EQ(contents(other), theirs) << ending;
    fs::remove_all(directory());
    fill(db, *db.image());
  }
  fs::remove(other);
}

TEST_F(ImageTest, ADirectoryWithoutPermissions) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const CacheDatabase db(kSmall);
  fill(db, *db.image());
  fs::permissions(directory(), static_cast<fs::perms>(0500));
  restart();
  if (const auto image = db.image(); image != nullptr) (void)read_all_chunks(db, *image);
  fs::permissions(directory(), fs::perms::owner_all);
}

// --- room -------------------------------------------------------------------------------------------------

TEST_F(ImageTest, TakesOnlyWhatTheLimitAllows) {
  const CacheDatabase db(24 * kMib);  // LMDBIO_CACHE_SIZE is 16M
  const auto image = db.image();
  ASSERT_NE(image, nullptr);
  fill(db, *image);
  const std::uint64_t there = read_all_chunks(db, *image);
  EXPECT_GE(there, 3u);
  if (is_raw(*image)) {  // a compressed one holds more
    EXPECT_LE(there, 4u);
  }
  EXPECT_TRUE(image->has(0)) << "the first ones, in each epoch the same";
  EXPECT_FALSE(image->wants(4 * kChunkBytes, kChunkBytes));
  std::uint64_t blocks = 0;
  for (const fs::path& path : files()) {
    struct stat st;
    ASSERT_EQ(::stat(path.c_str(), &st), 0);
    blocks += static_cast<std::uint64_t>(st.st_blocks);
  }
  EXPECT_LE(blocks * 512, 16 * kMib + 64 * 1024);
}

TEST_F(ImageTest, TheOldestImageThatNobodyUsesGoes) {
  const CacheDatabase first(7 * kMib), second(7 * kMib), third(7 * kMib), fourth(7 * kMib);
  const auto used = first.image();
  ASSERT_NE(used, nullptr);
  if (!is_raw(*used)) GTEST_SKIP() << "all of them fit";
  fill(first, *used);
  fill(second, *second.image());
  const auto image = third.image();
  ASSERT_NE(image, nullptr);
  fill(third, *image);
  EXPECT_EQ(read_all_chunks(third, *image), 2u);
  EXPECT_EQ(read_all_chunks(first, *used), 2u);
  EXPECT_EQ(first.image(), used);
  EXPECT_EQ(files(kDataEnding).size(), 2u) << "the second one is gone";
  const auto none = fourth.image();
  if (none != nullptr) {
    fill(fourth, *none);
    EXPECT_LE(read_all_chunks(fourth, *none), 1u) << "all others are in use";
  }
  EXPECT_EQ(read_all_chunks(first, *used), 2u);
  EXPECT_EQ(read_all_chunks(third, *image), 2u);
}

TEST_F(ImageTest, AFullDisk) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a small file system";
  const testing::ChildResult done = testing::in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", testing::cache_parent().c_str(), "tmpfs", 0, "size=32m,mode=0700") != 0)
      return 77;
    const CacheDatabase db(kBytes);
    const auto image = db.image();
    if (image == nullptr) return 1;
    (void)image->add(0, part(db, 0, kChunkBytes));
    // Somebody else takes all but 2 MiB.
    struct statvfs room;
    if (::statvfs(testing::cache_parent().c_str(), &room) != 0) return 2;
    const UniqueFd other(::open((testing::cache_parent() + "/other").c_str(), O_RDWR | O_CREAT, 0600));
    const auto bytes = static_cast<off_t>(room.f_bavail * room.f_frsize - 2 * kMib);
    if (::posix_fallocate(other.get(), 0, bytes) != 0) return 3;
    fill(db, *image);
    if (image->has(1) || !image->has(0) || read_all_chunks(db, *image) != 1) return 4;
    if (image->wants(kChunkBytes, kChunkBytes)) return 5;
    // No room for the files of another one.
    const std::vector<std::byte> rest(64 * 1024, std::byte{1});
    (void)::lseek(other.get(), bytes, SEEK_SET);
    while (::write(other.get(), rest.data(), rest.size()) > 0) {
    }
    const CacheDatabase more(kBytes);
    if (const auto none = more.image(); none != nullptr) {
      fill(more, *none);
      if (read_all_chunks(more, *none) != 0) return 7;
    }
    return ::testing::Test::HasFailure() ? 8 : 0;
  });
  if (done.exit_code == 77) GTEST_SKIP() << "no mounts here";
  EXPECT_EQ(done.exit_code, 0) << done.err;
}

}  // namespace
}  // namespace lmdbio::cache
