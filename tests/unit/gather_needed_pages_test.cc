#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "lmdbio/gather/needed_pages.h"
#include "lmdbio/gather/queues.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"

namespace lmdbio::gather {
namespace {

using testing::AheadFile;
using testing::need_script;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class NeededPagesTest : public ::testing::Test {
 protected:
  NeededPagesTest() {
    engine_factory() = testing::ScriptedEngine::make;
    need_script().reset();
  }
  ~NeededPagesTest() override { need_script().reset(); }

  Status bring(std::uint64_t offset, std::uint64_t bytes, int fd = -1) {
    return pages_.bring(file_.window_file()->file(), "a file", fd, offset, bytes);
  }

  AheadFile file_{8 * kMiB};
  NeededPages pages_;
};

TEST_F(NeededPagesTest, ARequestForEachMiB) {
  EXPECT_TRUE(bring(0, 4096).ok());
  EXPECT_EQ(need_script().reads, 1u);
  EXPECT_TRUE(bring(5000, 3 * kMiB).ok());
  EXPECT_EQ(need_script().reads, 1u + 4u);
  const ReadCounts counts = pages_.take_counts();
  EXPECT_EQ(counts.requests, 5u);
  EXPECT_EQ(counts.bytes, 4096 + 3 * kMiB + 4096) << "5000 bytes later, whole pages";
  EXPECT_EQ(pages_.take_counts().requests, 0u);
}

// Where each failure takes a minute, a value of many MiB does not take as many minutes.
TEST_F(NeededPagesTest, NothingIsTriedAfterAFailure) {
  need_script().error = EIO;
  need_script().fail_nth = 3;
  EXPECT_EQ(bring(0, 8 * kMiB).raw(), EIO);
  EXPECT_EQ(need_script().reads, 3u);
  need_script().fail_nth = 0;
  EXPECT_TRUE(bring(0, 8 * kMiB).ok());
}

// That tells nothing of the file.
TEST_F(NeededPagesTest, WithoutAnEngine) {
  need_script().fail_make = true;
  EXPECT_EQ(bring(0, 4096).raw(), EBADF);
  need_script().fail_make = false;
  EXPECT_TRUE(bring(0, 4096).ok());
}

// --- small pieces, which the calling thread reads through the program's descriptor ---

/// For each engine that was made: whether its file lies in the private table.
std::vector<bool>& made_for_kept() {
  static std::vector<bool> made;
  return made;
}
Result<std::unique_ptr<IoEngine>> note_file(const File& file, unsigned depth, EngineKind wanted,
                                            const char** name) noexcept {
  made_for_kept().push_back(file.kept());
  return testing::ScriptedEngine::make(file, depth, wanted, name);
}

class SmallReads : public NeededPagesTest {
 protected:
  SmallReads() {
    engine_factory() = note_file;
    made_for_kept().clear();
    EXPECT_EQ(::fsync(file_.fd()), 0);
    EXPECT_EQ(::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }
  Status bring(std::uint64_t offset, std::uint64_t bytes) { return bring(offset, bytes, file_.fd()); }
  using NeededPagesTest::bring;
  bool is_local() const { return file_.window_file()->local; }
  static constexpr std::uint64_t kSmall = NeededPages::kMostBySelf;
  static constexpr bool kBySelf = false, kByPrivateTable = true;
};

TEST_F(SmallReads, AreReadByTheCallingThread) {
  if (!is_local()) GTEST_SKIP() << "the temporary directory is on no local file system";
  EXPECT_TRUE(bring(kMiB, kSmall).ok());
  EXPECT_TRUE(bring(3 * kMiB + 5000, 100).ok());
  EXPECT_EQ(made_for_kept(), std::vector<bool>{kBySelf});
  EXPECT_EQ(need_script().reads, 2u);
  EXPECT_TRUE(file_.window_file()->residency().is_read(kMiB, kSmall, file_.window()->base()));
}

TEST_F(SmallReads, LargerPiecesAreNot) {
  EXPECT_TRUE(bring(kMiB, kSmall + 1).ok());
  EXPECT_TRUE(bring(2 * kMiB + 1, kSmall).ok()) << "nine pages";
  EXPECT_EQ(made_for_kept(), std::vector<bool>{kByPrivateTable});
}

TEST_F(SmallReads, WithoutTheProgramsDescriptor) {
  EXPECT_TRUE(bring(kMiB, kSmall, -1).ok());
  EXPECT_EQ(made_for_kept(), std::vector<bool>{kByPrivateTable});
}

// The program has closed the descriptor, and has another file or a pipe under its number.
TEST_F(SmallReads, AnotherFileUnderTheNumberIsNotRead) {
  if (!is_local()) GTEST_SKIP() << "the temporary directory is on no local file system";
  const UniqueFd number(::dup(file_.fd()));
  EXPECT_TRUE(bring(kMiB, 4096, number.get()).ok());
  EXPECT_EQ(made_for_kept(), std::vector<bool>{kBySelf});
  const testing::TempFile other(testing::pattern(8 * kMiB));
  ASSERT_EQ(::dup2(other.fd(), number.get()), number.get());
  EXPECT_TRUE(bring(2 * kMiB, 4096, number.get()).ok());
  EXPECT_EQ(made_for_kept(), (std::vector<bool>{kBySelf, kByPrivateTable}));
  EXPECT_TRUE(file_.window_file()->residency().is_read(2 * kMiB, 4096, file_.window()->base()));
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const UniqueFd read_end(pipe[0]), write_end(pipe[1]);
  ASSERT_EQ(::write(write_end.get(), "x", 1), 1);
  ASSERT_EQ(::dup2(read_end.get(), number.get()), number.get());
  EXPECT_TRUE(bring(3 * kMiB, 4096, number.get()).ok());
  char byte = 0;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 1) << "the pipe has lost its byte";
}

// The number may become another file's between the check and the read.
TEST_F(SmallReads, AFailureOfTheDescriptorIsNotOneOfTheFile) {
  if (!is_local()) GTEST_SKIP() << "the temporary directory is on no local file system";
  for (const int error : {EBADF, ESPIPE, EISDIR}) {
    need_script().reset();
    need_script().error = error;
    need_script().fail_nth = 1;
    EXPECT_TRUE(bring(kMiB, 4096).ok()) << error;
    EXPECT_EQ(need_script().reads, 2u) << error;
  }
}

TEST_F(SmallReads, AFailureOfTheFileIsReportedAtOnce) {
  need_script().error = EIO;
  need_script().fail_nth = 1;
  EXPECT_EQ(bring(kMiB, 4096).raw(), EIO);
  EXPECT_EQ(need_script().reads, 1u);
  need_script().fail_nth = 0;
  EXPECT_TRUE(bring(kMiB, 4096).ok());
}

TEST_F(SmallReads, AForkedChildReadsByItself) {
  if (!is_local()) GTEST_SKIP() << "the temporary directory is on no local file system";
  EXPECT_TRUE(bring(kMiB, 4096).ok());
  testing::expect_success(testing::fork_a_child([&] {
    const bool ok = bring(2 * kMiB, 4096).ok();
    return ok && made_for_kept().back() == kBySelf ? 0 : 1;
  }));
}

}  // namespace
}  // namespace lmdbio::gather
