// The queues of a file: made at the first use, one for each kind of read, with the descriptor and the engine
// that suit it.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "lmdbio/gather/queues.h"
#include "lmdbio/io/engine_pread.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::gather {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;

class QueuesTest : public ::testing::Test {
 protected:
  struct Made {
    const File* file;
    unsigned depth;
    EngineKind wanted;
  };
  MakeEngine noting() {
    return [this](const File& f, unsigned depth, EngineKind wanted,
                  const char** name) -> Result<std::unique_ptr<IoEngine>> {
      made_.push_back({&f, depth, wanted});
      if (name != nullptr) *name = "test";
      if (fails_ && wanted == EngineKind::populate_copied) return Status::from_errno(ENODEV);
      return std::unique_ptr<IoEngine>(new PreadEngine(f));
    };
  }
  std::vector<std::byte> read(Queues& queues, ReadKind kind, const Extent& extent) {
    ReadQueue& queue = *queues.get(kind).value();
    alignas(4096) static std::byte buffer[std::size_t{1} << 18];
    EXPECT_LE(queue.room(extent), sizeof buffer);
    ReadGroup group;
    EXPECT_TRUE(queue.add(group, extent, buffer).ok());
    EXPECT_TRUE(queue.wait(group).ok());
    const std::byte* const from = buffer + extent.offset % queue.alignment();
    return {from, from + extent.bytes};
  }

  const std::vector<std::byte> contents_ = testing::pattern(kBytes);
  const testing::TempFile temp_{contents_};
  const std::shared_ptr<const OpenFile> file_ = OpenFile::open(temp_.path()).value();
  std::vector<Made> made_;
  bool fails_ = false;
};

TEST_F(QueuesTest, OneForEachKind) {
  Queues queues(file_, noting());
  queues.set_file_bytes(kBytes);
  const char* name = nullptr;
  ReadQueue* const first = queues.get(ReadKind::record_cached, &name).value();
  EXPECT_STREQ(name, "test");
  name = nullptr;
  EXPECT_EQ(queues.get(ReadKind::record_cached, &name).value(), first);
  EXPECT_EQ(name, nullptr) << "nothing was made";
  EXPECT_NE(queues.get(ReadKind::index_resident).value(), first);
  ASSERT_EQ(made_.size(), 2u);
  EXPECT_EQ(made_[1].file, &file_->base());
}

TEST_F(QueuesTest, ReadsTheFileWhateverTheKind) {
  Queues queues(file_, noting());
  queues.set_file_bytes(kBytes);
  const Extent extent{5000, 70000};
  std::vector<ReadKind> kinds = {ReadKind::chunk_cached, ReadKind::needed_copied, ReadKind::told_cached,
                                 ReadKind::record_cached, ReadKind::index_cached};
  if (file_->direct() != nullptr) kinds.push_back(ReadKind::record_direct);
  for (const ReadKind kind : kinds) {
    const std::vector<std::byte> got = read(queues, kind, extent);
    EXPECT_EQ(std::memcmp(got.data(), contents_.data() + extent.offset, extent.bytes), 0)
        << static_cast<int>(kind);
  }
  const ReadCounts counts = queues.take_counts();
  EXPECT_EQ(counts.requests, kinds.size());
  EXPECT_GE(counts.bytes, kinds.size() * extent.bytes);
  EXPECT_EQ(queues.take_counts().requests, 0u);
}

TEST_F(QueuesTest, CountsOfQueuesThatAreGone) {
  Queues queues(file_, noting());
  queues.set_file_bytes(kBytes);
  (void)read(queues, ReadKind::record_cached, {0, 4096});
  queues.clear();
  (void)read(queues, ReadKind::record_cached, {0, 4096});
  EXPECT_EQ(made_.size(), 2u);
  EXPECT_EQ(queues.take_counts().bytes, 2u * 4096);
}

TEST_F(QueuesTest, NothingIsReadBeyondTheEnd) {
  Queues queues(file_, noting());
  queues.set_file_bytes(8192);
  (void)read(queues, ReadKind::record_cached, {4096, 16384});
  EXPECT_EQ(queues.take_counts().bytes, 4096u);
  queues.set_file_bytes(kBytes);
  (void)read(queues, ReadKind::record_cached, {4096, 16384});
  EXPECT_EQ(queues.take_counts().bytes, 16384u) << "queues that exist learn of it";
}

TEST_F(QueuesTest, WithoutPageFiller) {
  fails_ = true;
  Queues queues(file_, noting());
  queues.set_file_bytes(kBytes);
  EXPECT_TRUE(queues.get(ReadKind::record_filled));
  ASSERT_EQ(made_.size(), 2u);
  EXPECT_EQ(made_[0].wanted, EngineKind::populate_copied);
  EXPECT_NE(made_[1].wanted, EngineKind::populate_copied);
}

TEST_F(QueuesTest, ErrorsOfEnginesArePassedOn) {
  Queues queues(file_,
                [](const File&, unsigned, EngineKind, const char**) -> Result<std::unique_ptr<IoEngine>> {
                  return Status::from_errno(EMFILE);
                });
  EXPECT_EQ(queues.get(ReadKind::record_cached).error().raw(), EMFILE);
  EXPECT_FALSE(queues.is_busy());
}

TEST_F(QueuesTest, AForkedChildGivesUpItsParentsReads) {
  testing::EngineScript& script = testing::engine_script();
  script.reset();
  Queues queues(file_, testing::ScriptedEngine::make);
  queues.set_file_bytes(kBytes);
  alignas(4096) static std::byte buffer[8192];
  ReadGroup group;
  script.hold();
  ReadQueue& queue = *queues.get(ReadKind::record_cached).value();
  ASSERT_TRUE(queue.add(group, {0, 4096}, buffer).ok());
  queues.pump();
  EXPECT_TRUE(queues.is_busy());
  testing::expect_success(testing::fork_a_child([&] {
    queues.forget();
    return !queues.is_busy() && queues.take_counts().requests == 0 ? 0 : 1;
  }));
  script.release();
  EXPECT_TRUE(queue.wait(group).ok());
  EXPECT_EQ(std::memcmp(buffer, contents_.data(), 4096), 0);
}

}  // namespace
}  // namespace lmdbio::gather
