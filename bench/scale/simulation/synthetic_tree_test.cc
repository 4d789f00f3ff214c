// Synthetic trees against the files that stock LMDB writes.
#include "bench/scale/simulation/synthetic_tree.h"

#include <gtest/gtest.h>
#include <lmdb.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lmdbio/base/mix.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/format/layout_09.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::bench {
namespace {

using namespace format;
using Kind = SyntheticTree::Kind;

constexpr std::size_t kPage = 4096;
constexpr unsigned kFlags = MDB_NOSUBDIR;
constexpr std::uint64_t kMap = std::uint64_t{4} << 30;

struct Shape {
  const char* name;
  std::uint64_t count;
  std::size_t digits;               ///< of keys
  std::size_t suffix;               ///< longest, of keys; different from key to key
  std::uint64_t smallest, largest;  ///< value
  std::uint64_t interval;
  bool append = false;
};

class ShapedRecords final : public Records {
 public:
  explicit ShapedRecords(const Shape& s) : s_(s) {}
  std::uint64_t count() const override { return s_.count; }
  std::size_t key(std::uint64_t o, char* to) const override {
    std::uint64_t rest = o;
    for (std::size_t i = s_.digits; i-- > 0; rest /= 10) to[i] = static_cast<char>('0' + rest % 10);
    const std::size_t suffix = s_.suffix == 0 ? 0 : drawn(o, 1) % (s_.suffix + 1);
    std::memset(to + s_.digits, 'x', suffix);
    return s_.digits + suffix;
  }
  std::uint64_t value_bytes(std::uint64_t o) const override {
    return s_.smallest + (uniform_values() ? 0 : drawn(o, 2) % (s_.largest - s_.smallest + 1));
  }
  bool uniform() const override { return s_.suffix == 0 && uniform_values(); }
  void value(std::uint64_t o, std::byte* to) const override {
    std::memset(to, static_cast<int>(o % 251), value_bytes(o));
  }

 private:
  bool uniform_values() const { return s_.smallest == s_.largest; }
  static std::uint64_t drawn(std::uint64_t o, std::uint64_t what) { return mix(o * 2 + what) >> 8; }
  const Shape& s_;
};

void write_with_stock(const std::string& path, const Shape& s, const Records& records) {
  MDB_env* env = nullptr;
  ASSERT_EQ(mdb_env_create(&env), 0);
  ASSERT_EQ(mdb_env_set_mapsize(env, kMap), 0);
  ASSERT_EQ(mdb_env_open(env, path.c_str(), kFlags | MDB_NOSYNC | MDB_NOLOCK, 0644), 0);
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  for (std::uint64_t i = 0; i < s.count; ++i) {
    if (txn == nullptr) {
      ASSERT_EQ(mdb_txn_begin(env, nullptr, 0, &txn), 0);
      ASSERT_EQ(mdb_dbi_open(txn, nullptr, 0, &dbi), 0);
    }
    char key[Records::kKeyRoom];
    MDB_val k{records.key(i, key), key}, v{records.value_bytes(i), nullptr};
    ASSERT_EQ(mdb_put(txn, dbi, &k, &v, MDB_RESERVE | (s.append ? MDB_APPEND : 0)), 0);
    records.value(i, static_cast<std::byte*>(v.mv_data));
    if (s.interval != 0 && (i + 1) % s.interval == 0) {
      ASSERT_EQ(mdb_txn_commit(txn), 0);
      txn = nullptr;
    }
  }
  if (txn != nullptr) {
    ASSERT_EQ(mdb_txn_commit(txn), 0);
  }
  mdb_env_close(env);
}

template <class T>
T load(const std::string& page, std::size_t at) {
  T v;
  std::memcpy(&v, page.data() + at, sizeof v);
  return v;
}

/// Sets bytes to zero that LMDB leaves undefined: the header's padding, the gap between pointers and nodes,
/// and the byte that makes a node's size even.
std::string defined(std::string page, Kind kind) {
  if (kind == Kind::value) return page.substr(0, kPageHeader);
  if (kind == Kind::meta) return page.substr(0, kMetaBytes);
  std::memset(page.data() + kAtPad, 0, 2);
  const auto lower = load<std::uint16_t>(page, kAtLower), upper = load<std::uint16_t>(page, kAtUpper);
  if (lower < kPageHeader || lower > upper || upper > kPage) return page;
  std::memset(page.data() + lower, 0, upper - lower);
  for (std::size_t at = kPageHeader; at < lower; at += 2) {
    const auto node = load<std::uint16_t>(page, at);
    std::size_t end = node + kNodeHeader + load<std::uint16_t>(page, node + 6);
    if (kind == Kind::leaf)
      end += (load<std::uint16_t>(page, node + 4) & kBigData) != 0 ? 8 : load<std::uint32_t>(page, node);
    if (end % 2 != 0) page[end] = '\0';
  }
  return page;
}

class SyntheticTrees : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "synthetic_tree.XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_P(SyntheticTrees, HaveStocksBytes) {
  const Shape& shape = GetParam();
  const ShapedRecords records(shape);
  const std::string path = folder_ / "data.mdb";
  write_with_stock(path, shape, records);
  const SyntheticTree tree(records, {kPage, shape.interval, shape.append, kMap, kFlags});

  std::ifstream file(path, std::ios::binary);
  std::string stock(kPage, '\0'), ours(kPage, '\0');
  std::uint64_t pages[5] = {};
  for (std::uint64_t page = 0; page < tree.pages(); ++page) {
    const Kind kind = tree.kind(page);
    ++pages[static_cast<int>(kind)];
    if (kind == Kind::free) continue;
    file.seekg(static_cast<std::streamoff>(page * kPage));
    ASSERT_TRUE(file.read(stock.data(), kPage)) << "page " << page;
    tree.make(page, std::as_writable_bytes(std::span(ours)));
    if (kind == Kind::value && ours.substr(0, kPageHeader) == std::string(kPageHeader, '\0')) continue;
    ASSERT_EQ(defined(stock, kind), defined(ours, kind))
        << "page " << page << ", kind " << static_cast<int>(kind);
  }
  EXPECT_EQ(pages[static_cast<int>(Kind::meta)], 2U);
  EXPECT_EQ(pages[static_cast<int>(Kind::leaf)], tree.leaf_pages());
  EXPECT_EQ(pages[static_cast<int>(Kind::branch)], tree.branch_pages());
  EXPECT_LE(std::filesystem::file_size(path), tree.bytes());

  MDB_env* env = nullptr;
  MDB_stat stat{};
  ASSERT_EQ(mdb_env_create(&env), 0);
  ASSERT_EQ(mdb_env_open(env, path.c_str(), MDB_NOSUBDIR | MDB_RDONLY | MDB_NOLOCK, 0644), 0);
  ASSERT_EQ(mdb_env_stat(env, &stat), 0);
  mdb_env_close(env);
  EXPECT_EQ(stat.ms_leaf_pages, tree.leaf_pages());
  EXPECT_EQ(stat.ms_branch_pages, tree.branch_pages());
  EXPECT_EQ(stat.ms_overflow_pages, pages[static_cast<int>(Kind::value)]);
  EXPECT_EQ(stat.ms_depth, tree.depth());
}

/// Returns whether `child` is a child of the branch page `parent`.
bool has_child(const SyntheticTree& tree, SyntheticTree::Page parent, SyntheticTree::Page child) {
  std::vector<std::byte> bytes(kPage);
  tree.make(parent, bytes);
  format::PageView page;
  if (!format::PageView::open(format::Version::v09, bytes.data(), kPage, format::Pgno{parent}, page) ||
      !page.is_branch())
    return false;
  for (unsigned n = 0; n < page.count(); ++n)
    if (format::Node node; page.node(n, node) && static_cast<std::uint64_t>(node.child()) == child)
      return true;
  return false;
}

TEST_P(SyntheticTrees, FindEachRecord) {
  const ShapedRecords records(GetParam());
  const SyntheticTree tree(records, {kPage, GetParam().interval, GetParam().append, kMap, kFlags});
  const std::uint64_t step = std::max<std::uint64_t>(1, GetParam().count / 500);
  for (std::uint64_t o = 0; o < GetParam().count; o += step) {
    const std::uint64_t leaf = tree.leaf_of(o);
    ASSERT_LE(tree.first_record(leaf), o);
    if (leaf + 1 < tree.leaf_pages()) {
      ASSERT_GT(tree.first_record(leaf + 1), o);
    }
    ASSERT_EQ(tree.kind(tree.leaf_page(leaf)), Kind::leaf);
    std::vector<SyntheticTree::Page> path = tree.branch_pages_above(leaf);
    path.push_back(tree.leaf_page(leaf));
    ASSERT_EQ(path.size(), tree.depth());
    ASSERT_EQ(path.front(), tree.root());
    for (std::size_t level = 1; level < path.size(); ++level)
      ASSERT_TRUE(has_child(tree, path[level - 1], path[level])) << o;
    if (tree.value_pages(o) == 0) continue;
    ASSERT_EQ(tree.kind(tree.value_page(o)), Kind::value);
    EXPECT_EQ(tree.kind(tree.value_page(o) + tree.value_pages(o) - 1), Kind::value);
  }
}

constexpr Shape kShapes[] = {
    {"OneRecord", 1, 8, 0, 100, 100, 0},
    {"OneLeaf", 12, 8, 0, 300, 300, 0},
    {"SmallValues", 40000, 8, 0, 100, 100, 0},
    {"SmallValuesEachThousand", 40000, 8, 0, 100, 100, 1000},
    {"EmptyValues", 30000, 8, 0, 0, 0, 1000},
    {"Cifar", 30000, 8, 0, 3072, 3072, 1000},
    {"CifarAtOnce", 30000, 8, 0, 3072, 3072, 0},
    {"CifarAppended", 30000, 8, 0, 3072, 3072, 1000, true},
    {"ImageNet", 2000, 8, 15, 110 << 10, 110 << 10, 1000},
    {"ImageNetEachHundred", 2000, 8, 0, 110 << 10, 110 << 10, 100},
    {"LargeImages", 700, 8, 0, 192 << 10, 192 << 10, 64},
    {"Photographs", 2000, 8, 15, 1024, 220 << 10, 1000},
    {"PhotographsOneByOne", 600, 8, 15, 1024, 220 << 10, 1},
    {"MixedSizes", 20000, 8, 20, 1000, 3000, 333},
    {"MixedSizesAppended", 20000, 8, 20, 1000, 3000, 333, true},
    {"LongKeys", 8000, 8, 500, 50, 400, 500},
    {"LongKeysAtOnce", 8000, 8, 500, 50, 400, 0},
    {"TwoRecordsALeaf", 3000, 8, 0, 2010, 2022, 100},
    {"OneByOne", 3000, 8, 0, 500, 500, 1},
    {"TwoByTwo", 3000, 8, 0, 5000, 5000, 2},
    {"OddIntervals", 20011, 9, 3, 200, 9000, 37},
    {"Spilled", 140000, 8, 0, 3072, 3072, 0},
    {"SpilledAndAgain", 150000, 8, 0, 2100, 2100, 140001},
};

INSTANTIATE_TEST_SUITE_P(Shapes, SyntheticTrees, ::testing::ValuesIn(kShapes),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace lmdbio::bench
