// When lookups ask, which of them go in order, and how leaf pages are listed: over pages in memory.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "lmdbio/ahead/leaf_lister.h"
#include "lmdbio/ahead/lookups.h"
#include "lmdbio/format/layout_09.h"

namespace lmdbio::ahead {
namespace {

TEST(LookupSensor, AsksLessAndLessWhereAllIsThere) {
  LookupSensor s;
  unsigned wanted = 1;
  for (int i = 0; i < 20; ++i) {
    wanted = std::min(2 * wanted, LookupSensor::kMost);
    EXPECT_EQ(s.asked(false), wanted);
    EXPECT_FALSE(s.cold());
  }
  EXPECT_EQ(wanted, LookupSensor::kMost);
}

TEST(LookupSensor, AMissMakesEachAsk) {
  LookupSensor s;
  for (int i = 0; i < 20; ++i) (void)s.asked(false);
  EXPECT_EQ(s.asked(true), 1u);
  EXPECT_TRUE(s.cold());
  for (unsigned i = 1; i < LookupSensor::kInARow; ++i) {
    EXPECT_EQ(s.asked(false), 1u);
    EXPECT_TRUE(s.cold());
  }
  EXPECT_EQ(s.asked(true), 1u);  // not in a row
  for (unsigned i = 1; i < LookupSensor::kInARow; ++i) EXPECT_EQ(s.asked(false), 1u);
  EXPECT_EQ(s.asked(false), 2u);
  EXPECT_FALSE(s.cold());
  EXPECT_EQ(s.asked(false), 4u);
  EXPECT_EQ(s.asked(true), 1u);
}

// What is used often is scattered over a file of which little is in memory: each question finds an edge.
TEST(LookupSensor, AtAnEdgeAFewInARowAsk) {
  LookupSensor s;
  EXPECT_EQ(s.asked(false, true), 1u);
  for (unsigned i = 1; i < LookupSensor::kAtEdge; ++i) {
    EXPECT_FALSE(s.wants_edge());
    EXPECT_EQ(s.asked(false), 1u);
  }
  EXPECT_FALSE(s.wants_edge());
  EXPECT_EQ(s.asked(false), 4u) << "it is no walk";
  EXPECT_TRUE(s.wants_edge());
  unsigned asked = 0, lookups = 0;
  for (; lookups < 100'000; ++asked) lookups += s.asked(false, s.wants_edge());
  EXPECT_LT(asked, lookups / 100);
  EXPECT_EQ(s.asked(true), 1u);
  EXPECT_FALSE(s.wants_edge());
}

TEST(LookupOrder, NearAndFar) {
  LookupOrder o;
  constexpr std::uint64_t kGap = 1000;
  EXPECT_FALSE(o.near(5000, 100, kGap)) << "the first one";
  EXPECT_TRUE(o.near(5100, 100, kGap)) << "the next";
  EXPECT_TRUE(o.near(5100, 100, kGap)) << "the same";
  EXPECT_TRUE(o.near(5000, 100, kGap)) << "the one before";
  EXPECT_TRUE(o.near(6100, 100, kGap));
  EXPECT_FALSE(o.near(7201, 100, kGap));
  EXPECT_TRUE(o.near(6101, 100, kGap));
  EXPECT_FALSE(o.near(5000, 100, kGap));
  EXPECT_FALSE(o.near(0, 100, kGap));
  EXPECT_TRUE(o.near(100, 100, 0));
}

constexpr std::size_t kPage = 4096;

/// Branch pages as LMDB writes them, and which of them can be read.
class Tree final : public PageSource {
 public:
  void branch(std::uint64_t page, const std::vector<std::uint64_t>& children,
              std::uint16_t flags = format::kBranch) {
    std::vector<std::byte>& p = pages_[page];
    p.assign(kPage, std::byte{0});
    put(p, 0, page);
    put(p, format::kAtFlags, flags);
    std::size_t upper = kPage;
    for (std::size_t i = 0; i < children.size(); ++i) {
      upper -= 16;
      put(p, upper, static_cast<std::uint32_t>(children[i]));
      put(p, upper + 4, static_cast<std::uint16_t>(children[i] >> 32));
      put(p, upper + 6, std::uint16_t{8});
      put(p, format::kPageHeader + 2 * i, static_cast<std::uint16_t>(upper));
    }
    put(p, format::kAtLower, static_cast<std::uint16_t>(format::kPageHeader + 2 * children.size()));
    put(p, format::kAtUpper, static_cast<std::uint16_t>(upper));
  }
  bool get(std::uint64_t page, format::PageView& out) override {
    ++asked_[page];
    const auto p = pages_.find(page);
    return p != pages_.end() && there.count(page) != 0 &&
           format::PageView::open(format::Version::v09, p->second.data(), kPage, format::Pgno{page}, out);
  }
  std::set<std::uint64_t> there;
  unsigned most_asked() const {
    unsigned most = 0;
    for (const auto& [page, n] : asked_) most = std::max(most, n);
    return most;
  }

 private:
  template <class T>
  static void put(std::vector<std::byte>& to, std::size_t at, T v) {
    std::memcpy(to.data() + at, &v, sizeof v);
  }
  std::map<std::uint64_t, std::vector<std::byte>> pages_;
  std::map<std::uint64_t, unsigned> asked_;
};

using Pages = std::vector<std::uint64_t>;

class Lister : public ::testing::Test {
 protected:
  Lister() {
    tree_.branch(100, {10, 11, 12});
    tree_.branch(10, {20, 21});
    tree_.branch(11, {22});
    tree_.branch(12, {23, 24, std::uint64_t{5} << 32});
  }
  LeafLister::Step go_on() { return lister_.go_on(tree_, missing_); }
  Tree tree_;
  LeafLister lister_;
  Pages missing_;
  const Pages leaves_{20, 21, 22, 23, 24, std::uint64_t{5} << 32};
};

TEST_F(Lister, AllThere) {
  tree_.there = {100, 10, 11, 12};
  lister_.start(100, 3, 100);
  ASSERT_EQ(go_on(), LeafLister::Step::done);
  EXPECT_EQ(lister_.leaves(), leaves_);
  EXPECT_TRUE(missing_.empty());
  EXPECT_EQ(tree_.most_asked(), 1u) << "a page is read once; leaf pages never";
}

TEST_F(Lister, LevelByLevel) {
  lister_.start(100, 3, 100);
  ASSERT_EQ(go_on(), LeafLister::Step::wait);
  EXPECT_EQ(missing_, Pages{100});
  ASSERT_EQ(go_on(), LeafLister::Step::wait);
  EXPECT_TRUE(missing_.empty()) << "named once";
  tree_.there = {100, 11};
  ASSERT_EQ(go_on(), LeafLister::Step::wait);
  EXPECT_EQ(missing_, (Pages{10, 11, 12}));
  tree_.there = {100, 10, 11};
  ASSERT_EQ(go_on(), LeafLister::Step::wait);
  EXPECT_TRUE(missing_.empty());
  tree_.there = {12};  // others were read before
  ASSERT_EQ(go_on(), LeafLister::Step::done);
  EXPECT_EQ(lister_.leaves(), leaves_);
}

TEST_F(Lister, TwoLevels) {
  tree_.there = {11};
  lister_.start(11, 2, 1);
  ASSERT_EQ(go_on(), LeafLister::Step::done);
  EXPECT_EQ(lister_.leaves(), Pages{22});
}

TEST_F(Lister, MorePagesThanThereCanBe) {
  tree_.there = {100, 10, 11, 12};
  lister_.start(100, 3, 5);
  EXPECT_EQ(go_on(), LeafLister::Step::given_up);
  tree_.branch(100, {100, 100});  // an endless one
  lister_.start(100, 31, 1000);
  EXPECT_EQ(go_on(), LeafLister::Step::given_up);
}

TEST_F(Lister, OtherPages) {
  tree_.there = {100, 10, 11, 12};
  tree_.branch(11, {22}, format::kLeaf);
  lister_.start(100, 3, 100);
  EXPECT_EQ(go_on(), LeafLister::Step::given_up);
  tree_.branch(11, {});
  lister_.start(100, 3, 100);
  EXPECT_EQ(go_on(), LeafLister::Step::given_up);
}

TEST_F(Lister, Anew) {
  tree_.there = {100, 10, 11, 12};
  lister_.start(100, 3, 100);
  ASSERT_EQ(go_on(), LeafLister::Step::done);
  lister_.start(12, 2, 100);
  ASSERT_EQ(go_on(), LeafLister::Step::done);
  EXPECT_EQ(lister_.leaves().size(), 3u);
}

}  // namespace
}  // namespace lmdbio::ahead
