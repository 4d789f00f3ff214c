// Pages that can be read without waiting; page numbers come from the file and may be any.
#include <gtest/gtest.h>

#include "lmdbio/ahead/pages_there.h"
#include "tests/support/walk_env.h"

namespace lmdbio::ahead {
namespace {

using testing::WalkEnv;

TEST(PagesThere, PagesOutsideOfTheSnapshotAreNot) {
  WalkEnv env(20, 20, true);
  const auto file = env.env().file().window_file(env.view());
  ASSERT_NE(file, nullptr);
  PagesThere there(*file, env.view(), 100);
  format::PageView page;
  // The last ones but two lie gigabytes behind the table of chunks.
  for (const std::uint64_t p :
       {std::uint64_t{0}, std::uint64_t{1}, env.view().pages(), std::uint64_t{1} << 36,
        std::uint64_t{1} << 39, std::uint64_t{1} << 40, ~std::uint64_t{0}})
    EXPECT_FALSE(there.get(p, page)) << p;
}

TEST(PagesThere, PagesOfTreesInThePageCacheAre) {
  WalkEnv env(20, 20, true);
  env.fill_page_cache();
  const auto file = env.env().file().window_file(env.view());
  ASSERT_NE(file, nullptr);
  if (file->residency().share(0, WalkEnv::kPage, env.view().base()).value_or(0) < 1)
    GTEST_SKIP() << "nothing tells what is in the page cache";
  PagesThere there(*file, env.view(), 1);
  format::PageView page;
  ASSERT_TRUE(there.get(env.leaf_page().first, page));
  EXPECT_TRUE(page.is_leaf());
  EXPECT_FALSE(there.get(env.leaf_page().first, page)) << "no look is left";
}

}  // namespace
}  // namespace lmdbio::ahead
