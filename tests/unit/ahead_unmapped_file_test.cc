// Windows of a file that cannot be mapped: each transaction keeps its snapshot's bytes, whatever others
// begin, and memory goes when nobody reads it.
#include <gtest/gtest.h>
#include <lmdb.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/ahead/unmapped_file.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "tests/support/ahead_file.h"
#include "tests/support/damaged.h"
#include "tests/support/rng.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

// Forking beside threads is what is tested.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace lmdbio::ahead {
namespace {

using testing::as_val;
using testing::engine_script;
using testing::FileImage;
using testing::need_script;
using window::ChunkIndex;
using window::Prefetcher;

constexpr std::size_t kPage = 4096, kChunk = std::size_t{2} << 20;
constexpr std::uint64_t kMap = std::uint64_t{64} << 20;

// Before anything asks for the configuration.
const bool set = testing::script_all_reads("8M");

Prefetcher& prefetcher() { return *Prefetcher::get(); }

void write_all(int fd, Bytes bytes) {
  ASSERT_EQ(::pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
}

class Unmapped : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kChunks = 6;  // more than the limit
  static constexpr std::uint64_t kBytes = kChunks * kChunk - 3 * kPage;

  Unmapped() : contents_(testing::pattern(kBytes)), temp_(contents_) {
    engine_script().reset();
    need_script().reset();
    auto window =
        std::make_shared<window::Window>(window::Window::reserve(kMap, testing::pages_of(kPage)).value());
    first_ = std::move(prefetcher().open(window, origin(), "file", kBytes, 0).value());
    file_ = std::make_unique<UnmappedFile>(origin(), kPage, "file", window, first_);
  }
  ~Unmapped() override {
    file_.reset();
    prefetcher().close(first_);
    EXPECT_EQ(prefetcher().memory().used(), 0u) << "all files are closed";
  }

  Origin origin() const { return {temp_.fd(), temp_.path(), identity_of(temp_.fd()).value()}; }
  UnmappedFile::Entry* enter(std::uint64_t txnid) {
    const Result<UnmappedFile::Entry*> e = file_->enter(txnid, kBytes, kBytes);
    return e ? e.value() : nullptr;
  }
  static bool load(const UnmappedFile::Entry& e, std::uint32_t chunk) {
    return prefetcher().read_chunk(*e.file, ChunkIndex{chunk}).ok();
  }
  static bool load_all(const UnmappedFile::Entry& e) {
    for (std::uint32_t c = 0; c < kChunks; ++c)
      if (!load(e, c)) return false;
    return true;
  }
  static bool holds(const UnmappedFile::Entry& e, const std::vector<std::byte>& bytes) {
    return std::memcmp(e.window->base(), bytes.data(), bytes.size()) == 0;
  }
  static std::uint64_t memory() { return prefetcher().memory().used(); }
  void commit() {
    for (std::byte& b : contents_) b ^= std::byte{0x5a};
    write_all(temp_.fd(), contents_);
  }

  std::vector<std::byte> contents_;
  testing::TempFile temp_;
  std::shared_ptr<window::WindowFile> first_;
  std::unique_ptr<UnmappedFile> file_;
};

TEST_F(Unmapped, EachSnapshotKeepsItsBytes) {
  UnmappedFile::Entry* const old = enter(1);
  ASSERT_NE(old, nullptr);
  ASSERT_TRUE(load_all(*old));
  const std::vector<std::byte> before = contents_;
  commit();
  UnmappedFile::Entry* const now = enter(2);
  ASSERT_NE(now, nullptr);
  EXPECT_NE(now->number, old->number);
  EXPECT_EQ(file_->file_at(now->window->base()), now->file);
  EXPECT_EQ(file_->file_at(old->window->base()), old->file);
  EXPECT_TRUE(holds(*old, before));
  ASSERT_TRUE(load_all(*now));
  EXPECT_TRUE(holds(*now, contents_)) << "none of the older one's chunks";
  EXPECT_TRUE(holds(*old, before));
  EXPECT_EQ(memory(), 2 * kChunks * kChunk);
  EXPECT_EQ(enter(1), old) << "a thread that read the metas before the commit";
  file_->leave(old);
  EXPECT_EQ(memory(), 2 * kChunks * kChunk);
  file_->leave(old);
  EXPECT_EQ(memory(), kChunks * kChunk) << "what nobody reads of an older snapshot goes";
  EXPECT_TRUE(holds(*now, contents_));

  const window::FileStats so_far = file_->stats();
  EXPECT_EQ(so_far.published, 2 * kChunks);
  file_->leave(now);
  EXPECT_EQ(file_->stats().published, so_far.published);
}

TEST_F(Unmapped, AChunkThatCannotBeRead) {
  UnmappedFile::Entry* const e = enter(1);
  ASSERT_NE(e, nullptr);
  need_script().error = EIO;
  need_script().fail_nth = 1;
  EXPECT_EQ(prefetcher().read_chunk(*e->file, ChunkIndex{0}).raw(), EIO);
  EXPECT_EQ(file_->stats().read_failed, 1u);
  EXPECT_EQ(memory(), 0u);
  EXPECT_TRUE(load_all(*e)) << "the next call tries again";
  EXPECT_TRUE(holds(*e, contents_));
  EXPECT_EQ(need_script().reads, 1 + kChunks) << "each chunk by one request";
  EXPECT_EQ(engine_script().reads, 0u) << "none by the I/O thread";
  EXPECT_EQ(file_->stats().read, kBytes);
  file_->leave(e);
}

TEST_F(Unmapped, ReadsOfChunksThatAreShortOrRefused) {
  for (const int error : {0, EINTR, EAGAIN}) {
    const window::FileStats before = file_->stats();
    UnmappedFile::Entry* const e = enter(static_cast<std::uint64_t>(100 + error));
    ASSERT_NE(e, nullptr);
    need_script().reset();
    need_script().error = error;
    need_script().fail_times = 3;
    need_script().fail_nth = 1;
    ASSERT_TRUE(load_all(*e)) << error;
    EXPECT_TRUE(holds(*e, contents_));
    EXPECT_EQ(file_->stats().short_reads - before.short_reads, error == 0 ? 3u : 0u);
    EXPECT_EQ(file_->stats().retries - before.retries, error == 0 ? 0u : 3u);
    EXPECT_EQ(file_->stats().read - before.read, kBytes);
    file_->leave(e);
  }
}

TEST_F(Unmapped, AWindowThatNobodyReadsIsUsedAgain) {
  const std::byte* base = nullptr;
  std::uint32_t number = 0;
  for (std::uint64_t txnid = 1; txnid < 5; ++txnid) {
    UnmappedFile::Entry* const e = enter(txnid);
    ASSERT_NE(e, nullptr);
    if (base == nullptr) base = e->window->base();
    EXPECT_EQ(e->window->base(), base);
    EXPECT_NE(e->number, number) << "cursors tell snapshots by it";
    number = e->number;
    ASSERT_TRUE(load_all(*e));
    EXPECT_TRUE(holds(*e, contents_));
    file_->leave(e);
    EXPECT_EQ(memory(), kChunks * kChunk) << "kept for the next transaction of this snapshot";
    commit();
  }
}

TEST_F(Unmapped, TooMuchMemoryGoesWhenNobodyReads) {
  UnmappedFile::Entry* const e = enter(1);
  ASSERT_TRUE(load_all(*e));
  ASSERT_EQ(enter(1), e);
  EXPECT_TRUE(holds(*e, contents_)) << "the first one reads it";
  file_->leave(e);
  EXPECT_TRUE(holds(*e, contents_));
  file_->leave(e);
  ASSERT_EQ(enter(1), e);
  EXPECT_EQ(memory(), 0u);
  for (const std::uint32_t c : {0u, 1u}) ASSERT_TRUE(load(*e, c));
  file_->leave(e);
  ASSERT_EQ(enter(1), e);
  EXPECT_EQ(memory(), 2 * kChunk) << "that is not too much";
  file_->leave(e);
}

TEST_F(Unmapped, SnapshotsAtOnceAreBounded) {
  std::vector<UnmappedFile::Entry*> held;
  Status st;
  for (std::uint64_t txnid = 1; st.ok(); ++txnid) {
    ASSERT_LT(txnid, 200u);
    const Result<UnmappedFile::Entry*> e = file_->enter(txnid, kBytes, kBytes);
    if (e)
      held.push_back(e.value());
    else
      st = e.error();
  }
  EXPECT_EQ(st.raw(), MDB_READERS_FULL);
  EXPECT_GE(held.size(), 32u);
  ASSERT_NE(enter(held.front()->txnid), nullptr) << "of a snapshot that is held";
  file_->leave(held.front());
  file_->leave(held.back());
  held.back() = enter(1000);
  ASSERT_NE(held.back(), nullptr);
  ASSERT_TRUE(load_all(*held.back()));
  EXPECT_TRUE(holds(*held.back(), contents_));
  for (UnmappedFile::Entry* const e : held) file_->leave(e);
}

TEST_F(Unmapped, WhatIsBeingReadForAnOlderSnapshotIsNotShown) {
  UnmappedFile::Entry* e = enter(1);
  window::Walk walk(e->file);
  prefetcher().add(walk);
  engine_script().hold();
  const ChunkIndex wanted[] = {ChunkIndex{0}, ChunkIndex{1}};
  EXPECT_TRUE(prefetcher().submit(walk, {wanted, {}, {}, {}}).ready());
  engine_script().wait_for_held();
  file_->leave(e);
  commit();
  e = enter(2);
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(e->file, first_);
  std::thread lets_go([] { engine_script().release(); });
  ASSERT_TRUE(load_all(*e));
  lets_go.join();
  EXPECT_TRUE(holds(*e, contents_));
  file_->leave(e);
  prefetcher().remove(walk);
}

// Between the last reader's end and a drop no transaction begins.
TEST_F(Unmapped, ThreadsBeginAndEnd) {
  std::atomic<unsigned> failed{0};
  const auto body = [&](unsigned seed) {
    test::Rng rng(seed);
    for (unsigned turn = 0; turn < 80; ++turn) {
      UnmappedFile::Entry* const e = enter(1 + rng.below(3));
      if (e == nullptr) {
        ++failed;
        break;
      }
      for (unsigned k = 0; k < 3; ++k) {
        const auto c = static_cast<std::uint32_t>(rng.below(kChunks));
        const std::uint64_t at = c * kChunk + rng.below(kChunk - 4 * kPage);
        if (!load(*e, c) || e->window->base()[at] != contents_[at]) ++failed;
      }
      file_->leave(e);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(body, i + 1);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failed, 0u);
}

TEST_F(Unmapped, ForkedChildrenReadOn) {
  UnmappedFile::Entry* const old = enter(1);
  ASSERT_TRUE(load_all(*old));
  const std::vector<std::byte> before = contents_;
  commit();
  UnmappedFile::Entry* const now = enter(2);
  ASSERT_TRUE(load(*now, 0));
  const pid_t child = testing::fork_a_child([&] {
    int bad = 0;
    if (!holds(*old, before)) bad |= 1;
    if (!load_all(*now) || !holds(*now, contents_)) bad |= 2;
    file_->leave(old);
    if (memory() != kChunks * kChunk) bad |= 4;
    UnmappedFile::Entry* const next = enter(3);
    if (next == nullptr || !load(*next, 1) || !holds(*now, contents_)) bad |= 8;
    return bad;
  });
  testing::expect_success(child);
  EXPECT_TRUE(holds(*old, before));
  file_->leave(now);
  file_->leave(old);
}

// --- transactions

class UnmappedEnv : public ::testing::Test {
 protected:
  UnmappedEnv() : temp_(image(7, "seven").bytes()) {
    env_ = std::move(
        tree::Env::open_unmapped(temp_.fd(), {testing::pages_of(kPage), kMap, 3, false, {}, 2}).value());
  }
  /// A database of one leaf, on page 2 in each version.
  static FileImage image(std::uint64_t txnid, const std::string& value) {
    FileImage f(kPage);
    const std::uint64_t root = f.leaf({{"k1", value}, {"k2", value}});
    f.metas(FileImage::record(0, 1, root, 2), txnid);
    return f;
  }
  void commit(std::uint64_t txnid, const std::string& value) {
    write_all(temp_.fd(), image(txnid, value).bytes());
  }
  static std::string text(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

  testing::TempFile temp_;
  std::unique_ptr<tree::Env> env_;
};

TEST_F(UnmappedEnv, ACallThatCannotReadSaysSo) {
  need_script().reset();
  tree::Txn a(*env_);
  ASSERT_TRUE(a.begin_unmapped().ok());
  need_script().error = EIO;
  need_script().fail_nth = need_script().reads + 1;
  MDB_val v{};
  EXPECT_EQ(a.get(tree::kMainDbi, as_val("k1"), v).raw(), EIO);
  ASSERT_TRUE(a.get(tree::kMainDbi, as_val("k1"), v).ok()) << "the next call tries again";
  EXPECT_EQ(text(v), "seven");
}

TEST_F(UnmappedEnv, ATransactionKeepsItsValuesAndCursors) {
  tree::Txn a(*env_), b(*env_);
  ASSERT_TRUE(a.begin_unmapped().ok());
  MDB_val held{}, k{}, v{};
  ASSERT_TRUE(a.get(tree::kMainDbi, as_val("k1"), held).ok());
  tree::Cursor c(a, tree::kMainDbi);
  ASSERT_TRUE(c.get(&k, &v, MDB_FIRST).ok());
  commit(9, "nine");
  ASSERT_TRUE(b.begin_unmapped().ok());
  EXPECT_EQ(b.id(), 9u);
  EXPECT_NE(b.stamp().window(), a.stamp().window());
  MDB_val w{};
  ASSERT_TRUE(b.get(tree::kMainDbi, as_val("k1"), w).ok());
  EXPECT_EQ(text(w), "nine");
  EXPECT_EQ(text(held), "seven");
  ASSERT_TRUE(c.get(&k, &v, MDB_NEXT).ok());
  EXPECT_EQ(text(v), "seven");
  // Renewed, the first one is of the new snapshot too; the place of a cursor that was not renewed is
  // forgotten.
  a.end(true);
  EXPECT_EQ(text(w), "nine");
  ASSERT_TRUE(a.begin_unmapped().ok());
  EXPECT_EQ(a.stamp().window(), b.stamp().window());
  EXPECT_EQ(c.get(&k, &v, MDB_GET_CURRENT).raw(), EINVAL);
  ASSERT_TRUE(c.get(&k, &v, MDB_FIRST).ok());
  EXPECT_EQ(text(v), "nine");
  EXPECT_EQ(v.mv_data, w.mv_data) << "of the same window";
  b.end(false);
  EXPECT_EQ(text(v), "nine");
  a.end(false);
}

TEST_F(UnmappedEnv, WhatCannotBeginHoldsNothing) {
  tree::Txn a(*env_);
  ASSERT_EQ(::ftruncate(temp_.fd(), kPage), 0);
  EXPECT_FALSE(a.begin_unmapped().ok());
  EXPECT_TRUE(a.finished());
  commit(11, "eleven");
  ASSERT_TRUE(a.begin_unmapped().ok());
  MDB_val v{};
  ASSERT_TRUE(a.get(tree::kMainDbi, as_val("k2"), v).ok());
  EXPECT_EQ(text(v), "eleven");
  a.end(false);
  env_->retire_window(true);
  EXPECT_EQ(a.begin_unmapped().raw(), ENOMEM);
  ASSERT_TRUE(env_->remap(2 * kMap, 2).ok());
  ASSERT_TRUE(a.begin_unmapped().ok());
  EXPECT_TRUE(a.get(tree::kMainDbi, as_val("k2"), v).ok());
}

TEST_F(UnmappedEnv, ThreadsBeginWhileAWriterCommits) {
  std::atomic<bool> stop{false};
  std::atomic<unsigned> failed{0};
  const auto body = [&] {
    tree::Txn txn(*env_);
    while (!stop) {
      if (!txn.begin_unmapped().ok()) continue;  // metas that a commit is writing
      MDB_val v{}, again{};
      if (txn.get(tree::kMainDbi, as_val("k1"), v).ok()) {
        const std::string was = text(v);
        ::sched_yield();
        if (text(v) != was || !txn.get(tree::kMainDbi, as_val("k1"), again).ok() ||
            again.mv_data != v.mv_data)
          ++failed;
      }
      txn.end(false);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) threads.emplace_back(body);
  for (std::uint64_t txnid = 8; txnid < 300; ++txnid) commit(txnid, std::to_string(txnid));
  stop = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failed, 0u);
}

}  // namespace
}  // namespace lmdbio::ahead
