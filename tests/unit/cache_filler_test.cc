// The thread that writes to the cache: what it is given, in order, and never more than fits.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "lmdbio/cache/filler.h"
#include "lmdbio/io/private_table.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::cache {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

class FillerTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kWork = 1'000'000'000;
  struct Written {
    std::uint64_t offset;
    std::vector<std::byte> bytes;
  };
  void TearDown() override {
    // The thread uses this object.
    const std::weak_ptr<Filler> filler = filler_;
    if (filler_ != nullptr) filler_->end();
    filler_.reset();
    while (!filler.expired()) std::this_thread::yield();
  }
  void SetUp() override {
    filler_ = Filler::start(
        [](void* context, std::uint64_t offset, Bytes bytes) noexcept {
          auto& self = *static_cast<FillerTest*>(context);
          self.hold(offset);
          self.inside_ = self.inside_ && PrivateTable::inside();
          self.written_.push_back({offset, {bytes.begin(), bytes.end()}});
        },
        [](void* context, std::uint64_t offset, std::size_t bytes) noexcept {
          static_cast<FillerTest*>(context)->copied_.push_back({offset, bytes});
        },
        [](void* context) noexcept {
          auto& self = *static_cast<FillerTest*>(context);
          ++self.idle_;
          if (self.left_ == 0) return kForever;
          --self.left_;
          return std::int64_t{0};
        },
        [](void* context) noexcept {
          auto& self = *static_cast<FillerTest*>(context);
          if (self.work_ == 0) return false;
          --self.work_;
          self.hold(kWork);
          return !self.for_work_.load()->interrupted();
        },
        this, owner_);
    ASSERT_NE(filler_, nullptr);
    for_work_ = filler_.get();
  }
  void hold(std::uint64_t offset) {
    current_ = offset;
    if (!holds_) return;
    begun_.release();
    go_.acquire();
  }
  bool add(std::uint64_t offset, std::size_t bytes) {
    std::unique_ptr<std::byte[]> memory = filler_->take(bytes);
    if (memory == nullptr) return false;
    const auto contents = testing::pattern(bytes, offset);
    if (bytes != 0) std::memcpy(memory.get(), contents.data(), bytes);
    filler_->add(offset, std::move(memory), bytes);
    return true;
  }

  // The thread alone uses these until flush_until() has returned or the filler is gone.
  std::vector<Written> written_;
  std::vector<std::pair<std::uint64_t, std::size_t>> copied_;
  bool inside_ = true;
  std::atomic<bool> holds_{false};
  std::atomic<std::uint64_t> current_{0};  ///< where the last call wrote, or kWork
  std::atomic<int> work_{0};               ///< calls of Work that will have something to do
  std::atomic<int> idle_{0};               ///< calls while there was nothing to write
  std::atomic<int> left_{0};               ///< of them, how many will have something to do
  std::counting_semaphore<> begun_{0}, go_{0}, owner_gone_{0};
  std::shared_ptr<int> owner_{new int(), [this](const int* i) {
                                delete i;
                                owner_gone_.release();
                              }};
  std::shared_ptr<Filler> filler_;
  std::atomic<Filler*> for_work_{nullptr};  ///< the same, for the thread
};

TEST(FillerPause, IsForBusyProcessors) {
  EXPECT_EQ(pause_after(1000, 0, 0), 0);
  EXPECT_EQ(pause_after(1000, 5'000'000, 5), 0);
  EXPECT_EQ(pause_after(1000, 5'000'001, 5), 20'000);
  EXPECT_EQ(pause_after(1'000'000'000, 2'000'000, 1), 1'000'000'000) << "never longer than a second";
  EXPECT_EQ(pause_after(0, 2'000'000, 1), 0);
}

TEST_F(FillerTest, WritesInOrder) {
  constexpr std::size_t kSizes[] = {1, 4096, 0, 5000, std::size_t{1} << 20};
  std::uint64_t offset = 0;
  for (const std::size_t bytes : kSizes) {
    ASSERT_TRUE(add(offset, bytes));
    offset += 10'000'000;
  }
  filler_->flush_until(kForever);
  ASSERT_EQ(written_.size(), std::size(kSizes));
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    EXPECT_EQ(written_[i].offset, i * 10'000'000);
    EXPECT_EQ(written_[i].bytes, testing::pattern(kSizes[i], i * 10'000'000));
  }
  EXPECT_TRUE(inside_) << "in the private table";
}

TEST_F(FillerTest, TakesNoMoreThanFits) {
  holds_ = true;
  constexpr std::size_t kPiece = Filler::kMostBytes / 4 - 4096;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(add(0, kPiece));
  begun_.acquire();
  EXPECT_FALSE(add(0, kPiece)) << "the piece that is being written counts";
  EXPECT_FALSE(add(0, Filler::kMostBytes + 1));
  EXPECT_TRUE(add(0, 4096));
  std::unique_ptr<std::byte[]> memory = filler_->take(4096);
  ASSERT_NE(memory, nullptr);
  EXPECT_FALSE(add(0, 12 * 1024));
  filler_->give_back(4096);
  EXPECT_TRUE(add(0, 4096));
  holds_ = false;
  go_.release();
  filler_->flush_until(kForever);
  EXPECT_EQ(written_.size(), 6u);
  EXPECT_TRUE(add(0, kPiece)) << "there is room again";
  filler_->flush_until(kForever);
  EXPECT_EQ(written_.size(), 7u);
}

TEST_F(FillerTest, FlushWaitsNoLongerThanItMay) {
  holds_ = true;
  EXPECT_TRUE(add(0, 100));
  begun_.acquire();
  filler_->flush_until(0);
  filler_->flush_until(now_ns() + 1'000'000);
  holds_ = false;
  go_.release();
  filler_->flush_until(kForever);
  EXPECT_EQ(written_.size(), 1u);
  filler_->flush_until(kForever);
}

TEST_F(FillerTest, JoinsPiecesOfThePageCache) {
  holds_ = true;
  EXPECT_TRUE(add(0, 100));
  begun_.acquire();
  for (std::uint64_t at = 0; at < Filler::kMostJoined + 8192; at += 4096)
    EXPECT_TRUE(filler_->add_cached(at, 4096));
  EXPECT_TRUE(add(Filler::kMostJoined + 8192, 100));
  EXPECT_TRUE(filler_->add_cached(Filler::kMostJoined + 8192, 4096)) << "behind another kind of piece";
  EXPECT_TRUE(filler_->add_cached(0, 4096));
  holds_ = false;
  go_.release();
  filler_->flush_until(kForever);
  const std::vector<std::pair<std::uint64_t, std::size_t>> expected = {
      {0, Filler::kMostJoined}, {Filler::kMostJoined, 8192}, {Filler::kMostJoined + 8192, 4096}, {0, 4096}};
  EXPECT_EQ(copied_, expected);
  EXPECT_EQ(written_.size(), 2u);
}

TEST_F(FillerTest, TakesNoMorePiecesOfThePageCacheThanItMay) {
  holds_ = true;
  EXPECT_TRUE(add(0, 100));
  begun_.acquire();
  EXPECT_FALSE(filler_->add_cached(0, Filler::kMostCached + 1));
  std::size_t pieces = 0;
  while (filler_->add_cached(pieces * 8192, 1)) ++pieces;
  EXPECT_EQ(pieces, Filler::kMostPieces);
  holds_ = false;
  go_.release();
  filler_->flush_until(kForever);
  EXPECT_EQ(copied_.size(), Filler::kMostPieces);
  for (std::uint64_t at = 0; at < Filler::kMostCached; at += Filler::kMostCached / 4)
    EXPECT_TRUE(filler_->add_cached(at, Filler::kMostCached / 4));
  filler_->flush_until(kForever);
}

// Work comes before pieces that wait, as long as they are few.
TEST_F(FillerTest, WorksBeforeItWritesMore) {
  const auto order = [&](std::size_t bytes) {
    holds_ = true;
    EXPECT_TRUE(add(0, 100));
    begun_.acquire();
    EXPECT_TRUE(add(1, bytes));
    work_ = 1;
    filler_->ask();
    go_.release();
    begun_.acquire();
    const std::uint64_t second = current_;
    go_.release();
    begun_.acquire();
    const std::uint64_t third = current_;
    holds_ = false;
    go_.release();
    filler_->flush_until(kForever);
    return std::pair(second, third);
  };
  EXPECT_EQ(order(100), std::pair(kWork, std::uint64_t{1}));
  EXPECT_EQ(order(Filler::kMostBytes / 2), std::pair(std::uint64_t{1}, kWork));
}

TEST_F(FillerTest, WritesMuchDuringWork) {
  holds_ = true;
  work_ = 1;
  filler_->ask();
  begun_.acquire();
  EXPECT_TRUE(add(1, Filler::kMostBytes / 2));
  go_.release();
  begun_.acquire();
  EXPECT_EQ(current_, 1u);
  EXPECT_EQ(work_, 0);
  holds_ = false;
  go_.release();
  filler_->flush_until(kForever);
}

// A flush interrupts work, which goes on afterwards.
TEST_F(FillerTest, FlushInterruptsWork) {
  holds_ = true;
  work_ = 3;
  filler_->ask();
  begun_.acquire();
  std::thread other([&] {
    filler_->flush_until(now_ns() + 1'000'000);  // ends although the work is held
    filler_->flush_until(kForever);
  });
  holds_ = false;
  go_.release();
  other.join();
  while (work_ != 0) std::this_thread::yield();
}

TEST_F(FillerTest, WorkEnds) {
  holds_ = true;
  work_ = 3;
  filler_->ask();
  begun_.acquire();
  filler_->stop_work(now_ns() + 1'000'000);  // the work is held
  holds_ = false;
  go_.release();
  filler_->stop_work(kForever);
  EXPECT_TRUE(add(0, 100));
  filler_->flush_until(kForever);
  EXPECT_EQ(written_.size(), 1u);
  EXPECT_EQ(work_, 2);
}

TEST_F(FillerTest, FlushMayWaitForMore) {
  for (int i = 0; i < 100; ++i) {
    left_ = 5;
    if (i % 2 != 0) {
      EXPECT_TRUE(add(0, 100));
    }
    filler_->flush_until(kForever, Filler::Idleness::awaited);
    EXPECT_EQ(left_, 0);
  }
  EXPECT_EQ(written_.size(), 50u);
  holds_ = true;
  EXPECT_TRUE(add(0, 100));
  begun_.acquire();
  filler_->flush_until(now_ns() + 1'000'000, Filler::Idleness::awaited);
  holds_ = false;
  go_.release();
}

// Memory that is given back ends a flush as a write does.
TEST_F(FillerTest, FlushSeesWhatIsGivenBack) {
  std::unique_ptr<std::byte[]> memory = filler_->take(100);
  ASSERT_NE(memory, nullptr);
  std::thread other([&] { filler_->give_back(100); });
  filler_->flush_until(kForever);
  other.join();
}

// The thread keeps the owner alive during a piece, and writes no other piece for an owner that is gone.
TEST_F(FillerTest, EndsWithItsOwner) {
  holds_ = true;
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(add(i, 100));
  begun_.acquire();
  const std::weak_ptr<int> owner = owner_;
  owner_.reset();
  EXPECT_FALSE(owner.expired()) << "a piece is being written";
  const std::weak_ptr<Filler> filler = filler_;
  filler_->end();
  filler_.reset();
  go_.release();
  owner_gone_.acquire();
  while (!filler.expired()) std::this_thread::yield();
  EXPECT_EQ(written_.size(), 1u);
}

// keep(): the owner lives until all pieces are written.
TEST_F(FillerTest, KeepsItsOwnerUntilAllIsWritten) {
  holds_ = true;
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(add(i, 100));
  begun_.acquire();
  filler_->keep(std::exchange(owner_, nullptr));
  holds_ = false;
  go_.release();
  owner_gone_.acquire();
  const std::weak_ptr<Filler> filler = filler_;
  filler_->end();
  filler_.reset();
  while (!filler.expired()) std::this_thread::yield();
  EXPECT_EQ(written_.size(), 5u);
}

TEST_F(FillerTest, EndsWhileThereIsNothingToDo) {
  while (idle_ == 0) std::this_thread::yield();
  const std::weak_ptr<Filler> filler = filler_;
  filler_->end();
  filler_.reset();
  while (!filler.expired()) std::this_thread::yield();
}

TEST_F(FillerTest, ManyThreads) {
  std::atomic<std::size_t> taken{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 50; ++i)
        if (add((t * 50 + i) << 20, 100'000)) ++taken;
    });
  for (std::thread& t : threads) t.join();
  filler_->flush_until(kForever);
  EXPECT_EQ(written_.size(), taken);
  EXPECT_GE(taken, 1u);
  for (const Written& w : written_) EXPECT_EQ(w.bytes, testing::pattern(100'000, w.offset));
}

}  // namespace
}  // namespace lmdbio::cache
