#include <gtest/gtest.h>

#include <cerrno>

#include "lmdbio/cache/engine_factory.h"
#include "lmdbio/cache/need_reads.h"
#include "tests/support/ahead_file.h"
#include "tests/support/scripted_engine.h"

namespace lmdbio::cache {
namespace {

using testing::AheadFile;
using testing::need_script;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class NeedReadsTest : public ::testing::Test {
 protected:
  NeedReadsTest() {
    engine_factory() = testing::ScriptedEngine::make;
    need_script().reset();
  }
  ~NeedReadsTest() override { need_script().reset(); }

  AheadFile file_{8 * kMiB};
  NeedReads reads_;
};

TEST_F(NeedReadsTest, ARequestForEachMiB) {
  EXPECT_TRUE(reads_.bring(*file_.cache(), 0, 4096).ok());
  EXPECT_EQ(need_script().reads, 1u);
  EXPECT_TRUE(reads_.bring(*file_.cache(), 5000, 3 * kMiB).ok());
  EXPECT_EQ(need_script().reads, 1u + 4u);
}

// Where each failure takes a minute, a value of many MiB does not take as many minutes.
TEST_F(NeedReadsTest, NothingIsTriedAfterAFailure) {
  need_script().error = EIO;
  need_script().fail_nth = 3;
  EXPECT_EQ(reads_.bring(*file_.cache(), 0, 8 * kMiB).raw(), EIO);
  EXPECT_EQ(need_script().reads, 3u);
  need_script().fail_nth = 0;
  EXPECT_TRUE(reads_.bring(*file_.cache(), 0, 8 * kMiB).ok());
}

// That tells nothing of the file.
TEST_F(NeedReadsTest, WithoutAnEngine) {
  need_script().fail_make = true;
  EXPECT_EQ(reads_.bring(*file_.cache(), 0, 4096).raw(), EBADF);
  need_script().fail_make = false;
  EXPECT_TRUE(reads_.bring(*file_.cache(), 0, 4096).ok());
}

}  // namespace
}  // namespace lmdbio::cache
