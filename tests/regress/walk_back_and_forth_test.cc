// The count that ends walks over shared pages took a cursor that goes to and fro over one entry for such a
// walk.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/damaged.h"

namespace lmdbio::testing {
namespace {

// "a" and "c" have one value each, "b" a tree of duplicates of two leaves.
FileImage image() {
  FileImage f(512);
  const std::uint64_t low = f.leaf({{"1", ""}, {"2", ""}}), high = f.leaf({{"3", ""}, {"4", ""}});
  const std::uint64_t dups = f.branch({{"", low}, {"3", high}});
  const std::uint64_t root = f.leaf(
      {{"a", "x"},
       {"b", FileImage::as_data(FileImage::record(0, 2, dups, 4)), format::kSubData | format::kDupData},
       {"c", "y"}});
  f.metas(FileImage::record(MDB_DUPSORT, 1, root, 6), 1);
  return f;
}

TEST(WalkBackAndForth, IsNoEndlessTree) {
  Damaged healthy(image());
  const std::pair<MDB_cursor_op, MDB_cursor_op> turns[] = {{MDB_NEXT, MDB_PREV},
                                                           {MDB_NEXT_NODUP, MDB_PREV_NODUP},
                                                           {MDB_PREV, MDB_NEXT},
                                                           {MDB_PREV_NODUP, MDB_NEXT_NODUP}};
  for (const auto& [forth, back] : turns) {
    for (const char* const from : {"a", "b", "c"}) {
      tree::Cursor cursor(*healthy.txn, tree::kMainDbi);
      const std::string start = from;
      MDB_val key = as_val(start), data{};
      ASSERT_TRUE(cursor.get(&key, &data, MDB_SET).ok());
      for (int i = 0; i < 1000; ++i) {
        for (const MDB_cursor_op op : {forth, back}) {
          const int rc = cursor.get(&key, &data, op).raw();
          ASSERT_TRUE(rc == 0 || rc == MDB_NOTFOUND) << rc << " in round " << i << " from " << from;
        }
      }
    }
  }
}

// All the same a walk in one direction ends, where every entry has the same tree of duplicates.
TEST(WalkBackAndForth, SharedDuplicatesAreDamage) {
  FileImage f(512);
  const std::uint64_t low = f.leaf({{"1", ""}, {"2", ""}}), high = f.leaf({{"3", ""}, {"4", ""}});
  const std::uint64_t dups = f.branch({{"", low}, {"3", high}});
  std::vector<LeafEntry> entries;
  for (char c = 'a'; c < 'a' + 6; ++c)
    entries.push_back({std::string(1, c), FileImage::as_data(FileImage::record(0, 2, dups, 4)),
                       format::kSubData | format::kDupData});
  const std::uint64_t root = f.leaf(entries);
  f.metas(FileImage::record(MDB_DUPSORT, 1, root, 24), 1);
  for (const bool forwards : {true, false}) {
    Damaged damaged(f);
    tree::Cursor cursor(*damaged.txn, tree::kMainDbi);
    MDB_val key{}, data{};
    Status st = cursor.get(&key, &data, forwards ? MDB_FIRST : MDB_LAST);
    int steps = 0;
    for (; st.ok(); ++steps) st = cursor.get(&key, &data, forwards ? MDB_NEXT : MDB_PREV);
    EXPECT_EQ(st.raw(), MDB_CORRUPTED);
    EXPECT_LT(steps, 24);
  }
}

}  // namespace
}  // namespace lmdbio::testing
