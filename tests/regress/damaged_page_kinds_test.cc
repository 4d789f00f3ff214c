// Pages and nodes whose flags contradict each other led reads out of their page.  Found by fuzz_file,
// fuzz_page and by reading; each is to be MDB_CORRUPTED.
#include <gtest/gtest.h>

#include "tests/support/damaged.h"
#include "tests/support/format_version.h"

namespace lmdbio::testing {
namespace {

constexpr std::size_t kPage = 512;

// A page that is branch and LEAF2 at once was walked as a branch page with a count that nothing had proved.
TEST(DamagedPageKinds, BranchThatIsLeaf2) {
  FileImage f(kPage);
  f.leaf({{"a", "1"}});
  const std::uint64_t root = f.branch({{"", 2}, {"b", 2}});
  put<std::uint16_t>(f.page(root) + testing::kAtFlags, format::kBranch | format::kLeaf | format::kLeaf2);
  put<std::uint16_t>(f.page(root) + testing::kAtLower, 0xfff0);
  f.metas(FileImage::record(0, 2, root, 1), 1);
  EXPECT_EQ(Damaged(f).read_all({"a", "b", "z"}), 1u);
}

// A meta page that is flagged as a leaf, too: the prefetch of what follows read in front of the file.
TEST(DamagedPageKinds, MetaPageAsALeaf) {
  for (const std::uint64_t meta : {std::uint64_t{0}, std::uint64_t{1}}) {
    FileImage f(kPage);
    const std::uint64_t leaf = f.leaf({{"b", "1"}});
    const std::uint64_t root = f.branch({{"", meta}, {"b", leaf}});
    f.metas(FileImage::record(0, 2, root, 1), 1);
    put<std::uint16_t>(f.page(meta) + testing::kAtFlags, format::kMeta | format::kLeaf);
    put(f.page(meta) + testing::kAtLower, static_cast<std::uint16_t>(testing::kPageHeader + 2 - kSlotBase));
    put(f.page(meta) + testing::kAtUpper, static_cast<std::uint16_t>(kPage - kSlotBase));
    EXPECT_EQ(Damaged(f).read_all({"a", "b"}), 1u) << meta;
  }
}

// In a tree without duplicates of one size, LEAF2's count has no slots behind it.
TEST(DamagedPageKinds, Leaf2InAPlainTree) {
  for (const unsigned flags :
       {0u, unsigned{MDB_DUPSORT}, unsigned{MDB_DUPSORT | MDB_DUPFIXED}, unsigned{MDB_REVERSEKEY}}) {
    for (const std::uint32_t item_size : {0u, 4u}) {
      FileImage f(kPage);
      const std::uint64_t root = f.leaf2(4, {"aaaa", "bbbb"});
      put<std::uint16_t>(f.page(root) + testing::kAtLower, 0xfff0);
      f.metas(FileImage::record(flags, 1, root, 2, item_size), 1);
      EXPECT_EQ(Damaged(f).read_all({"aaaa", "bbbb", "c"}), 1u) << flags;
    }
  }
}

// The size of a big value was taken for that of a sub-page inside the node.
TEST(DamagedPageKinds, DuplicatesThatAreBig) {
  for (const unsigned flag : {format::kDupData, format::kSubData | format::kDupData}) {
    FileImage f(kPage);
    LeafEntry e{"a", FileImage::sub_page({"1", "2"}), flag | format::kBigData, 0x7fffffff};
    const std::uint64_t root = f.leaf({e});
    // The node at the page's end, so that only the first bytes of its data are there.
    const std::size_t at = kPage - format::kNodeHeader - 2 - format::run_record(testing::version());
    put(f.page(root) + testing::kPageHeader, static_cast<std::uint16_t>(at - kSlotBase));
    put(f.page(root) + at, std::uint32_t{0x7fffffff});
    put(f.page(root) + at + 4, static_cast<std::uint16_t>(flag | format::kBigData));
    put(f.page(root) + at + 6, std::uint16_t{1});
    put(f.page(root) + at + 8, 'a');
    f.metas(FileImage::record(MDB_DUPSORT, 1, root, 2), 1);
    EXPECT_EQ(Damaged(f).read_all({"a"}), 1u) << flag;
  }
}

// A sub-page that was refused stayed in the cursor, which looked at it again after a renewal.
TEST(DamagedPageKinds, RefusedSubPageIsNotKept) {
  FileImage f(kPage);
  std::string sub = FileImage::sub_page({"1", "2"});
  put<std::uint16_t>(reinterpret_cast<std::byte*>(sub.data()) + testing::kAtFlags, format::kBranch);
  put<std::uint16_t>(reinterpret_cast<std::byte*>(sub.data()) + testing::kAtLower, 0xfff0);
  const std::uint64_t root =
      f.leaf({{"a", sub, format::kDupData}, {"b", FileImage::sub_page({"1", "2"}), format::kDupData}});
  f.metas(FileImage::record(MDB_DUPSORT, 1, root, 4), 1);
  for (const int release : {24, 90}) {
    for (const MDB_cursor_op op : {MDB_PREV, MDB_PREV_DUP, MDB_NEXT, MDB_NEXT_DUP}) {
      Damaged d(f, tree::Behaviour::of_release(release));
      tree::Cursor c(*d.txn, tree::kMainDbi);
      MDB_val k{}, v{};
      ASSERT_EQ(c.get(&k, &v, MDB_FIRST).raw(), MDB_CORRUPTED);
      d.txn->end(true);
      d.begin();
      c.renew(*d.txn);
      // Old releases come to the last entry without a look at its duplicates where no data is asked for.
      ASSERT_EQ(c.get(&k, nullptr, MDB_LAST).raw(), 0);
      for (int i = 0; i < 4; ++i) (void)c.get(&k, &v, op);
    }
  }
}

}  // namespace
}  // namespace lmdbio::testing
