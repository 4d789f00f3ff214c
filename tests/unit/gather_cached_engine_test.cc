// Engines that read through an image: bytes of the image or of the file, and what is offered.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/gather/cached_engine.h"
#include "lmdbio/gather/queues.h"
#include "lmdbio/io/private_table.h"
#include "tests/support/cache_file.h"

namespace lmdbio::gather {
namespace {

using testing::CacheDatabase;
using testing::fill;

constexpr std::size_t kBytes = 6 * (std::size_t{1} << 20);
constexpr std::size_t kPiece = std::size_t{1} << 20;

const bool is_set = [] {
  (void)testing::cache_parent();
  (void)::testing::AddGlobalTestEnvironment(new testing::CacheParent);
  return true;
}();

class CachedEngineTest : public testing::CacheCase {
 protected:
  void SetUp() override {
    CacheCase::SetUp();
    if (IsSkipped()) return;
    image_ = db_.image();
    ASSERT_NE(image_, nullptr);
  }
  /// Reads all of the database by a queue of this kind.  Returns whether the bytes are `want`.
  bool reads(ReadKind kind, bool copies, const std::vector<std::byte>& want) {
    Queues queues(db_.file(), cached_engines({image_, nullptr}, copies));
    queues.set_file_bytes(kBytes);
    const auto queue = queues.get(kind, &name_);
    if (!queue) return false;
    std::vector<std::byte> buffer(kPiece + 8192);
    bool good = true;
    for (std::size_t at = 0; at < kBytes; at += kPiece) {
      std::byte* const to = reinterpret_cast<std::byte*>(
          (reinterpret_cast<std::uintptr_t>(buffer.data()) + 4095) / 4096 * 4096);
      ReadGroup group;
      good = queue.value()->add(group, {at, kPiece}, to).ok() && queue.value()->wait(group).ok() && good;
      if (kind != ReadKind::chunk_filled) good = good && std::memcmp(to, want.data() + at, kPiece) == 0;
      if (good) testing::wait_for(*image_, [&] { return !image_->wants(at, kPiece); });
    }
    return good;
  }

  const CacheDatabase db_{kBytes};
  std::shared_ptr<cache::Image> image_;
  const char* name_ = "";
};

TEST_F(CachedEngineTest, FillsTheImageAndReadsIt) {
  EXPECT_TRUE(reads(ReadKind::record_cached, true, db_.bytes()));
  EXPECT_STREQ(name_, "cache");
  testing::wait_for(*image_, [&] { return image_->share() == 1; });
  // The filler also finds what is in the page cache, so some of it may have been read from the image.
  const std::uint64_t before = image_->counts().read;
  EXPECT_LT(before, kBytes);
  // The image has the bytes from before, so it is the image that is read.
  const std::vector<std::byte> other(kBytes - 8192, std::byte{0x77});
  db_.write(8192, other);
  EXPECT_TRUE(reads(ReadKind::record_cached, true, db_.bytes()));
  EXPECT_EQ(image_->counts().read, before + kBytes);
  EXPECT_EQ(image_->counts().filled, 2u);
}

TEST_F(CachedEngineTest, ReadsWhatIsMissingFromTheFile) {
  (void)image_->add(0, Bytes(db_.bytes()).first(cache::kChunkBytes));
  EXPECT_TRUE(reads(ReadKind::record_cached, true, db_.bytes()));
  EXPECT_GE(image_->counts().read, cache::kChunkBytes);
  EXPECT_LT(image_->counts().read, kBytes);
  testing::wait_for(*image_, [&] { return image_->share() == 1; });
}

TEST_F(CachedEngineTest, ReadsIntoThePageCacheOnlyOffer) {
  fill(db_, *image_);
  EXPECT_TRUE(reads(ReadKind::chunk_cached, false, db_.bytes()));
  EXPECT_EQ(image_->counts().read, 0u) << "nobody would find the bytes in the page cache of the file";
}

TEST_F(CachedEngineTest, OffersWhatItBringsIntoThePageCache) {
  EXPECT_TRUE(reads(ReadKind::chunk_cached, false, db_.bytes()));
  testing::wait_for(*image_, [&] { return image_->share() == 1; });
  EXPECT_EQ(image_->counts().read, 0u);
}

TEST_F(CachedEngineTest, AShortFileIsShort) {
  ASSERT_EQ(::ftruncate(db_.fd(), kBytes / 2), 0);
  EXPECT_FALSE(reads(ReadKind::record_cached, true, db_.bytes()));
  EXPECT_LT(image_->share(), 1);
}

TEST_F(CachedEngineTest, NothingOfADatabaseThatHasChangedIsAdded) {
  db_.commit(CacheDatabase::kSnapshot + 1);
  const std::vector<std::byte> other(kBytes - 8192, std::byte{0x77});
  db_.write(8192, other);
  std::vector<std::byte> now(kBytes);
  ASSERT_EQ(::pread(db_.fd(), now.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
  EXPECT_TRUE(reads(ReadKind::record_cached, true, now));
  EXPECT_EQ(image_->counts().filled, 0u);
  EXPECT_TRUE(reads(ReadKind::record_cached, true, now));
  EXPECT_EQ(image_->counts().read, 0u);
}

TEST_F(CachedEngineTest, ForkedChildrenReadIt) {
  fill(db_, *image_);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(reads(ReadKind::record_cached, true, db_.bytes()) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lmdbio::gather
