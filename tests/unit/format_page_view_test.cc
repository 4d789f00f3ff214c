// Page and node views: what they prove, field by field.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "lmdbio/format/page_view.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"

namespace lmdbio::format {
namespace {

using testing::ExactBytes;
using testing::FileImage;
using testing::kAtFlags;
using testing::kAtLower;
using testing::kAtUpper;
using testing::kPageHeader;
using testing::kSlotBase;
using testing::put;

constexpr std::size_t kPage = 512;

/// A page of an image, alone in memory.
class OnePage {
 public:
  OnePage(FileImage& image, std::uint64_t p) : bytes_(Bytes(image.page(p), image.page_size())), pgno_(p) {}
  template <class T>
  OnePage& set(std::size_t at, T v) {
    put(bytes_.data() + at, v);
    return *this;
  }
  bool open(PageView& view) const {
    return PageView::open(testing::version(), bytes_.data(), bytes_.bytes().size(), Pgno{pgno_}, view);
  }
  bool opens() const {
    PageView view;
    return open(view);
  }
  std::byte* data() const { return bytes_.data(); }

 private:
  ExactBytes bytes_;
  std::uint64_t pgno_;
};

FileImage tree() {
  FileImage f(kPage);
  f.leaf({{"a", "1"}, {"bb", "22"}, FileImage::big("c", 9, 5000)});
  f.branch({{"", 2}, {"m", 0x123456789abc}});
  f.leaf2(3, {"aaa", "bbb", "ccc"});
  return f;
}
constexpr std::uint64_t kLeafPage = 2, kBranchPage = 3, kLeaf2Page = 4;

TEST(PageView, Leaf) {
  FileImage f = tree();
  PageView v;
  const OnePage page(f, kLeafPage);
  ASSERT_TRUE(page.open(v));
  EXPECT_TRUE(v.is_leaf());
  EXPECT_FALSE(v.is_branch());
  EXPECT_FALSE(v.is_leaf2());
  ASSERT_EQ(v.count(), 3u);
  Node n;
  ASSERT_TRUE(v.node(1, n));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(n.key()), n.key_size()), "bb");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(n.data()), n.data_size()), "22");
  ASSERT_TRUE(v.node(2, n));
  EXPECT_EQ(n.flags(), kBigData);
  EXPECT_EQ(n.data_size(), 5000u);
  EXPECT_EQ(n.overflow(), Pgno{9});
}

TEST(PageView, BranchHasSixByteChildren) {
  FileImage f = tree();
  PageView v;
  const OnePage page(f, kBranchPage);
  ASSERT_TRUE(page.open(v));
  EXPECT_TRUE(v.is_branch());
  Node n;
  ASSERT_TRUE(v.node(0, n));
  EXPECT_EQ(n.child(), Pgno{2});
  EXPECT_EQ(n.key_size(), 0u);
  ASSERT_TRUE(v.node(1, n));
  EXPECT_EQ(n.child(), Pgno{0x123456789abc});
}

TEST(PageView, Leaf2) {
  FileImage f = tree();
  PageView v;
  const OnePage page(f, kLeaf2Page);
  ASSERT_TRUE(page.open(v));
  EXPECT_TRUE(v.is_leaf2());
  EXPECT_EQ(v.count(), 3u);
  EXPECT_EQ(v.item_size(), 3u);
  EXPECT_EQ(v.item(2, 3), v.bytes() + kPageHeader + 6);
  // The item that ends at the page's end is the last.
  EXPECT_NE(v.item(0, kPage - kPageHeader), nullptr);
  EXPECT_EQ(v.item(0, kPage - kPageHeader + 1), nullptr);
  EXPECT_EQ(v.item(1, (kPage - kPageHeader) / 2), v.bytes() + kPageHeader + (kPage - kPageHeader) / 2);
  EXPECT_EQ(v.item(1, (kPage - kPageHeader) / 2 + 1), nullptr);
  EXPECT_EQ(v.item(65535, std::numeric_limits<std::uint32_t>::max()), nullptr);
}

TEST(PageView, EachWrongHeaderIsRefused) {
  FileImage f = tree();
  for (const std::uint64_t p : {kLeafPage, kBranchPage, kLeaf2Page}) {
    SCOPED_TRACE(p);
    EXPECT_TRUE(OnePage(f, p).opens());
    EXPECT_FALSE(OnePage(f, p).set<std::uint64_t>(0, p + 1).opens()) << "number";
    EXPECT_FALSE(OnePage(f, p).set<std::uint64_t>(0, p | std::uint64_t{1} << 63).opens()) << "number";
    for (const unsigned lower : {0u, 2u, 15u}) {  // in 1.0, it counts from the end of the header
      EXPECT_EQ(OnePage(f, p).set(kAtLower, static_cast<std::uint16_t>(lower)).opens(), testing::is_10())
          << lower;
    }
    for (const unsigned flags : {0u, kOverflow, kMeta, kSubPage, kLeaf2})
      EXPECT_FALSE(OnePage(f, p).set(kAtFlags, static_cast<std::uint16_t>(flags)).opens()) << flags;
    if (p == kLeaf2Page) continue;
    EXPECT_FALSE(OnePage(f, p).set<std::uint16_t>(kAtFlags, kBranch | kLeaf).opens());
    EXPECT_FALSE(OnePage(f, p).set(kAtUpper, static_cast<std::uint16_t>(kPage + 1 - kSlotBase)).opens())
        << "upper beyond the page";
    EXPECT_FALSE(OnePage(f, p).set<std::uint16_t>(kAtUpper, 0xffff).opens());
    EXPECT_TRUE(OnePage(f, p).set(kAtUpper, static_cast<std::uint16_t>(kPage - kSlotBase)).opens());
    const auto upper = load<std::uint16_t>(f.page(p) + kAtUpper);
    EXPECT_FALSE(OnePage(f, p).set(kAtLower, static_cast<std::uint16_t>(upper + 2)).opens())
        << "lower beyond upper";
    EXPECT_TRUE(OnePage(f, p).set(kAtLower, upper).opens());
  }
}

TEST(PageView, EachWrongSlotIsRefused) {
  FileImage f = tree();
  for (const std::uint64_t p : {kLeafPage, kBranchPage}) {
    const unsigned n = p == kLeafPage ? 3 : 2;
    for (unsigned i = 0; i < n; ++i) {
      const auto refused = [&](unsigned offset) {
        OnePage page(f, p);
        page.set(kPageHeader + 2 * std::size_t{i}, static_cast<std::uint16_t>(offset - kSlotBase));
        PageView v = PageView::none();
        Node node;
        EXPECT_TRUE(page.open(v));
        const bool ok = v.node(i, node);
        if (p == kLeafPage) {
          unsigned flags;
          std::size_t key, data;
          EXPECT_EQ(v.leaf_node(i, node, flags, key, data), ok) << offset;
        }
        return !ok;
      };
      for (const unsigned offset : {0u, 1u, 15u, 16u, static_cast<unsigned>(kPageHeader) + 2 * n - 1,
                                    unsigned{kPage} - 7, unsigned{kPage}, 0xffffu})
        EXPECT_TRUE(refused(offset)) << p << ' ' << i << ' ' << offset;
    }
  }
}

// A node may end where its page does and no later: key, data, and the page number of a big value.
TEST(PageView, NodesEndInsideTheirPage) {
  constexpr std::size_t kAt = kPage - 40;
  struct Case {
    bool leaf;
    unsigned flags;
    std::size_t key, data;
    bool ok;  // in 0.9
    bool ok_in_10;
  };
  const Case cases[] = {
      {true, 0, 12, 20, true, true},
      {true, 0, 12, 21, false, false},
      {true, 0, 11, 21, true, false},  // in 1.0, the data begin at an even offset from the key
      {true, 0, 11, 20, true, true},
      {true, 0, 32, 0, true, true},
      {true, 0, 33, 0, false, false},
      {true, 0, 65535, 0, false, false},
      {true, 0, 0, 0xffffffff, false, false},
      {true, kBigData, 24, 1u << 30, true, false},  // in 1.0, the node has 24 bytes
      {true, kBigData, 25, 1, false, false},
      {true, kBigData, 8, 1u << 30, true, true},
      {true, kBigData, 7, 1u << 30, true, true},
      {true, kBigData, 9, 1u << 30, true, false},
      {true, kDupData, 12, 20, true, true},
      {true, kSubData, 12, 21, false, false},
      {false, 0xffff, 32, 0xffffffff, true, true},
      {false, 0xffff, 31, 0xffffffff, true, true},
      {false, 0, 33, 0, false, false},
  };
  for (Case c : cases) {
    if (testing::is_10()) c.ok = c.ok_in_10;
    FileImage f(kPage);
    f.leaf({{"k", ""}});
    OnePage page(f, 2);
    page.set<std::uint16_t>(kAtFlags, static_cast<std::uint16_t>(c.leaf ? kLeaf : kBranch));
    page.set(kPageHeader, static_cast<std::uint16_t>(kAt - kSlotBase));
    page.set(kAt, static_cast<std::uint32_t>(c.data)).set(kAt + 4, static_cast<std::uint16_t>(c.flags));
    page.set(kAt + 6, static_cast<std::uint16_t>(c.key));
    PageView v;
    ASSERT_TRUE(page.open(v));
    Node n;
    EXPECT_EQ(v.node(0, n), c.ok) << c.leaf << ' ' << c.flags << ' ' << c.key << ' ' << c.data;
    if (!c.leaf) continue;
    unsigned flags;
    std::size_t key, data;
    EXPECT_EQ(v.leaf_node(0, n, flags, key, data), c.ok) << c.flags << ' ' << c.key << ' ' << c.data;
    if (!c.ok) continue;
    EXPECT_EQ(flags, c.flags);
    EXPECT_EQ(key, c.key);
    EXPECT_EQ(data, c.data);
  }
}

TEST(PageView, SubPages) {
  const auto open = [](std::string s, auto&& change) {
    const ExactBytes block(std::as_bytes(std::span(s)));
    change(block.data());
    PageView v;
    return PageView::open_sub(testing::version(), block.data(), block.bytes().size(), v);
  };
  const auto nothing = [](std::byte*) {};
  const std::string plain = FileImage::sub_page({"a", "bb"}),
                    fixed = FileImage::sub_page2(1, {"a", "b", "c"});
  EXPECT_TRUE(open(plain, nothing));
  EXPECT_TRUE(open(fixed, nothing)) << "its slots would not fit into it";
  EXPECT_FALSE(open(plain.substr(0, kPageHeader - 1), nothing));
  EXPECT_FALSE(open("", nothing));
  EXPECT_FALSE(open(plain.substr(0, kPageHeader), nothing)) << "upper beyond its end";
  EXPECT_FALSE(open(plain, [](std::byte* p) { put<std::uint16_t>(p + kAtFlags, kBranch); }));
  EXPECT_FALSE(open(plain, [](std::byte* p) { put<std::uint16_t>(p + kAtFlags, kBranch | kSubPage); }));
  EXPECT_FALSE(open(fixed, [](std::byte* p) { put<std::uint16_t>(p + kAtFlags, kLeaf2); }));
}

}  // namespace
}  // namespace lmdbio::format
