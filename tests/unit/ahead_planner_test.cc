// What walks need next: the planner against the plain order of a tree, on trees that are whole, partly there,
// and damaged; and what that means in chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "lmdbio/ahead/planner.h"
#include "tests/support/file_image.h"
#include "tests/support/rng.h"

namespace lmdbio::ahead {
namespace {

using format::PageView;
using testing::FileImage;
using testing::put;

constexpr std::size_t kPage = 512;
constexpr unsigned kShift = 9;
constexpr std::uint64_t kAll = std::uint64_t{1} << 40;

enum class Order : unsigned char { leaf_first, values_first, backwards };

class Marked final : public ChunkFacts {
 public:
  explicit Marked(std::set<std::uint32_t> exact = {}, std::set<std::uint32_t> here = {})
      : exact_(std::move(exact)), here_(std::move(here)) {}
  bool is_exact(std::uint32_t chunk) override { return exact_.count(chunk) != 0; }
  bool is_here(std::uint32_t chunk) override { return here_.count(chunk) != 0; }

 private:
  std::set<std::uint32_t> exact_, here_;
};

/// What a tree is made of; pages get their numbers in an order of its own.
struct Shape {
  unsigned depth, fan, entries;
  unsigned big;  ///< a bit for each entry, by number modulo 8: its value has pages of its own
  Order order;
};

struct Event {
  std::uint64_t first, pages;
  int leaf;   ///< of a leaf or a value: which one; -1: a branch
  int entry;  ///< of a value; -1: a page of the tree
};

struct Tree {
  explicit Tree(const Shape& shape) : shape_(shape), image(kPage) { root = make(shape.depth - 1); }

  /// Each page and value in the order of a walk through all of it.
  void list(bool forward, std::vector<Event>& out) const {
    int leaf = forward ? 0 : leaves - 1;
    list(root, shape_.depth - 1, forward, leaf, out);
  }
  PageView view(std::uint64_t p) const {
    PageView v;
    EXPECT_TRUE(
        PageView::open(testing::version(), image.bytes().data() + p * kPage, kPage, format::Pgno{p}, v));
    return v;
  }

 private:
  std::uint64_t make(unsigned level) {
    if (level == 0) return make_leaf();
    std::vector<testing::BranchEntry> children;
    for (unsigned i = 0; i < shape_.fan; ++i) children.push_back({"k", make(level - 1)});
    if (shape_.order == Order::backwards) std::reverse(children.begin(), children.end());
    return image.branch(children);
  }
  std::uint64_t make_leaf() {
    ++leaves;
    std::vector<testing::LeafEntry> entries;
    // A leaf that comes first is written again once its values have their pages.
    const std::uint64_t at = shape_.order == Order::leaf_first ? image.leaf({{"k", "v"}}) : 0;
    for (unsigned i = 0; i < shape_.entries; ++i) {
      if ((shape_.big >> (i % 8) & 1) == 0) {
        entries.push_back({"k", "v"});
        continue;
      }
      const std::size_t bytes = 100 + 500 * (i % 3);
      entries.push_back(
          FileImage::big("k", image.overflow(std::string(bytes, 'x')), static_cast<std::uint32_t>(bytes)));
    }
    const std::uint64_t made = image.leaf(entries);
    if (at == 0) return made;
    std::memcpy(image.page(at), image.page(made), kPage);
    put(image.page(at), at);
    return at;
  }
  void list(std::uint64_t p, unsigned level, bool forward, int& leaf, std::vector<Event>& out) const {
    const PageView page = view(p);
    out.push_back({p, 1, level == 0 ? leaf : -1, -1});
    for (unsigned k = 0; k < page.count(); ++k) {
      const unsigned i = forward ? k : page.count() - 1 - k;
      format::Node n;
      ASSERT_TRUE(page.node(i, n));
      if (level != 0)
        list(format::raw(n.child()), level - 1, forward, leaf, out);
      else if ((n.flags() & format::kBigData) != 0)
        out.push_back({format::raw(n.overflow()), format::overflow_pages(n.version, n.data_size(), kShift),
                       leaf, static_cast<int>(i)});
    }
    if (level == 0) leaf += forward ? 1 : -1;
  }

  const Shape shape_;

 public:
  FileImage image;
  std::uint64_t root;
  int leaves = 0;
};

class Pages final : public PageSource {
 public:
  Pages(Bytes bytes, std::set<std::uint64_t> missing) : bytes_(bytes), missing_(std::move(missing)) {}
  bool get(std::uint64_t page, PageView& out) override {
    ++asked;
    if (missing_.count(page) != 0 || page < 2 || page >= bytes_.size() / kPage) return false;
    return PageView::open(testing::version(), bytes_.data() + page * kPage, kPage, format::Pgno{page}, out);
  }
  std::uint64_t asked = 0;

 private:
  const Bytes bytes_;
  const std::set<std::uint64_t> missing_;
};

/// A place in a tree, and the pages on the way.
struct Where {
  std::vector<PageView> branches;
  std::vector<std::uint16_t> taken;
  PageView leaf;
  int leaf_number = 0;
  WalkPlace place(unsigned index, bool forward, bool values) const {
    WalkPlace p;
    p.branches = branches;
    p.taken = taken;
    p.leaf = leaf;
    p.index = index;
    p.forward = forward;
    p.values = values;
    return p;
  }
};

void places(const Tree& t, const PageView& page, Where at, std::vector<Where>& out) {
  if (page.is_leaf()) {
    at.leaf = page;
    at.leaf_number = static_cast<int>(out.size());
    out.push_back(at);
    return;
  }
  at.branches.push_back(page);
  at.taken.push_back(0);
  for (unsigned i = 0; i < page.count(); ++i) {
    at.taken.back() = static_cast<std::uint16_t>(i);
    format::Node n;
    ASSERT_TRUE(page.node(i, n));
    places(t, t.view(format::raw(n.child())), at, out);
  }
}

using Sequence = std::vector<std::uint64_t>;

Sequence flat(const std::vector<PageRun>& runs) {
  Sequence s;
  for (const PageRun& r : runs)
    for (std::uint64_t i = 0; i < r.pages; ++i) s.push_back(r.first + i);
  return s;
}

/// What the walk needs from entry `index` of leaf `leaf` on, as far as it can be known without `missing`.
Sequence expected(const std::vector<Event>& all, int leaf, int index, bool forward, bool values,
                  const std::set<std::uint64_t>& missing, unsigned scout, bool& complete) {
  Sequence s;
  std::size_t i = 0;
  while (all[i].leaf != leaf || all[i].entry >= 0) ++i;
  int unknown = -2;
  complete = false;
  for (++i; i < all.size(); ++i) {
    const Event& e = all[i];
    if (e.entry >= 0) {
      if (!values || e.leaf == unknown) continue;
      if (e.leaf == leaf && (forward ? e.entry < index : e.entry > index)) continue;
    }
    for (std::uint64_t k = 0; k < e.pages; ++k) s.push_back(e.first + k);
    if (e.entry >= 0 || missing.count(e.first) == 0) continue;
    if (e.leaf < 0) return s;
    if (!values) continue;
    unknown = e.leaf;
    if (--scout == 0) return s;
  }
  complete = true;
  return s;
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const Order order : {Order::leaf_first, Order::values_first, Order::backwards})
    for (const unsigned big : {0x00u, 0xffu, 0x55u, 0x04u}) {
      all.push_back({1, 1, 5, big, order});
      all.push_back({2, 1, 2, big, order});
      all.push_back({2, 4, 3, big, order});
      all.push_back({3, 3, 2, big, order});
      all.push_back({4, 2, 2, big, order});
    }
  return all;
}

TEST(PlanWalk, TheOrderOfNeedFromEverywhere) {
  std::uint64_t plans = 0;
  for (const Shape& shape : shapes()) {
    const Tree tree(shape);
    std::vector<Where> from;
    places(tree, tree.view(tree.root), {}, from);
    const std::uint64_t pages = tree.image.pages();
    for (const bool forward : {true, false}) {
      std::vector<Event> all;
      tree.list(forward, all);
      std::vector<std::set<std::uint64_t>> missing = {{}};
      for (const Event& e : all)
        if (e.entry < 0) missing.push_back({e.first});
      std::set<std::uint64_t> leaves, every;
      for (const Event& e : all) {
        if (e.entry < 0) every.insert(e.first);
        if (e.entry < 0 && e.leaf >= 0) leaves.insert(e.first);
      }
      missing.push_back(leaves);
      missing.push_back(every);
      for (const std::uint64_t a : leaves)
        for (const std::uint64_t b : leaves)
          if (a < b && leaves.size() <= 4) missing.push_back({a, b});
      for (const Where& w : from) {
        for (unsigned index = 0; index < shape.entries; ++index) {
          for (const bool values : {true, false}) {
            for (const auto& gone : missing) {
              Pages source(tree.image.bytes(), gone);
              Plan plan;
              plan_walk(w.place(index, forward, values), source, {kAll, 100'000, 16}, kShift, plan);
              bool complete = false;
              const int leaf = w.leaf_number;
              const Sequence want =
                  expected(all, leaf, static_cast<int>(index), forward, values, gone, 16, complete);
              ASSERT_EQ(flat(plan.runs), want)
                  << "depth " << shape.depth << " leaf " << leaf << " entry " << index << " forward "
                  << forward << " missing " << gone.size();
              ASSERT_EQ(plan.complete, complete);
              ASSERT_LE(source.asked, pages);
              ++plans;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(plans, 10'000u);
}

// Of the values each k-th, counted with those that have no pages of their own; after a leaf that is not there
// nobody knows which those are.
TEST(PlanWalk, EachKthValue) {
  for (const Shape& shape : shapes()) {
    const Tree tree(shape);
    std::vector<Where> from;
    places(tree, tree.view(tree.root), {}, from);
    for (const bool forward : {true, false}) {
      std::vector<Event> all;
      tree.list(forward, all);
      const auto n = static_cast<int>(shape.entries);
      std::vector<std::set<std::uint64_t>> missing = {{}};
      for (const Event& e : all)
        if (e.entry < 0 && e.leaf >= 0) missing.push_back({e.first});
      for (const Where& w : from) {
        for (const int index : {0, n / 2, n - 1}) {
          for (const int period : {2, 3, 7}) {
            for (int skip = 0; skip <= period; ++skip) {
              for (const auto& gone : missing) {
                std::vector<PageRun> want;
                bool lost = false;
                std::size_t i = 0;
                while (all[i].leaf != w.leaf_number || all[i].entry >= 0) ++i;
                for (++i; i < all.size(); ++i) {
                  const Event& e = all[i];
                  const int leaves_on = forward ? e.leaf - w.leaf_number : w.leaf_number - e.leaf;
                  const int number = leaves_on * n + (forward ? e.entry - index : index - e.entry);
                  if (e.entry >= 0 && (lost || number < skip || (number - skip) % period != 0)) continue;
                  want.push_back({e.first, e.pages});
                  lost = lost || (e.entry < 0 && gone.count(e.first) != 0);
                }
                WalkPlace place = w.place(static_cast<unsigned>(index), forward, true);
                place.apart = true;
                place.period = static_cast<std::uint64_t>(period);
                place.skip = static_cast<std::uint64_t>(skip);
                Pages source(tree.image.bytes(), gone);
                Plan plan;
                plan_walk(place, source, {kAll, 100'000, 16}, kShift, plan);
                ASSERT_EQ(plan.runs, want) << "depth " << shape.depth << " leaf " << w.leaf_number
                                           << " entry " << index << " period " << period << " skip " << skip;
              }
            }
          }
        }
      }
    }
  }
}

TEST(PlanWalk, LimitsCutAndScoutsStop) {
  const Tree tree({3, 4, 3, 0xff, Order::values_first});
  std::vector<Where> from;
  places(tree, tree.view(tree.root), {}, from);
  std::vector<Event> all;
  tree.list(true, all);
  std::set<std::uint64_t> leaves;
  for (const Event& e : all)
    if (e.entry < 0 && e.leaf >= 0) leaves.insert(e.first);
  bool complete = false;
  const Sequence whole = expected(all, 0, 0, true, true, {}, 16, complete);
  for (std::uint64_t limit = 1; limit <= whole.size() + 1; ++limit) {
    Pages source(tree.image.bytes(), {});
    Plan plan;
    plan_walk(from[0].place(0, true, true), source, {limit, 100'000, 16}, kShift, plan);
    const Sequence some = flat(plan.runs);
    ASSERT_TRUE(some.size() <= whole.size() && std::equal(some.begin(), some.end(), whole.begin()));
    EXPECT_GE(some.size(), std::min<std::size_t>(limit, whole.size()));
    EXPECT_LE(some.size(), limit + 2) << "three pages at most at once";
    EXPECT_EQ(plan.complete, limit > whole.size());
  }
  for (std::size_t runs = 1; runs < 10; ++runs) {
    Pages source(tree.image.bytes(), {});
    Plan plan;
    plan_walk(from[0].place(0, true, true), source, {kAll, runs, 16}, kShift, plan);
    EXPECT_EQ(plan.runs.size(), runs);
  }
  for (unsigned scout = 1; scout < 20; ++scout) {
    Pages source(tree.image.bytes(), leaves);
    Plan plan;
    plan_walk(from[0].place(0, true, true), source, {kAll, 100'000, scout}, kShift, plan);
    EXPECT_EQ(flat(plan.runs), expected(all, 0, 0, true, true, leaves, scout, complete));
    EXPECT_EQ(plan.complete, complete);
  }
}

TEST(PlanWalk, WithoutALeaf) {
  const Tree tree({2, 3, 2, 0xff, Order::values_first});
  std::vector<Where> from;
  places(tree, tree.view(tree.root), {}, from);
  Where w = from[1];
  w.leaf = PageView::none();
  Pages source(tree.image.bytes(), {});
  Plan plan;
  plan_walk(w.place(0, true, true), source, {kAll, 512, 16}, kShift, plan);
  ASSERT_FALSE(plan.runs.empty());
  EXPECT_EQ(flat(plan.runs)[0] * kPage,
            static_cast<std::uint64_t>(from[2].leaf.bytes() - tree.image.bytes().data()));
  EXPECT_TRUE(plan.complete);
}

// Each header, slot and node field with values that it should not have: bounded, and nothing beside the bytes
// (which AddressSanitizer watches) is read.
TEST(PlanWalk, DamagedPages) {
  const Tree tree({3, 3, 3, 0x55, Order::values_first});
  constexpr PlanLimits kLimits{200, 64, 4};
  const ChunkGeometry geometry{12, kShift, tree.image.pages()};
  for (std::uint64_t page = 2; page < tree.image.pages(); ++page) {
    std::vector<std::size_t> offsets;
    for (std::size_t at = 0; at < 24; at += 2) offsets.push_back(at);
    for (std::size_t at = kPage - 64; at < kPage; at += 2) offsets.push_back(at);
    for (const std::size_t at : offsets) {
      for (const std::uint16_t value : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{2},
                                        std::uint16_t{0x22}, std::uint16_t{0x7fff}, std::uint16_t{0xffff}}) {
        const testing::ExactBytes damaged(tree.image.bytes());
        put(damaged.data() + page * kPage + at, value);
        for (const bool forward : {true, false}) {
          // The place itself was checked before: it is of the tree as it was.
          std::vector<Where> from;
          places(tree, tree.view(tree.root), {}, from);
          const Where& w = forward ? from.front() : from.back();
          Pages source(damaged.bytes(), {});
          Plan plan;
          plan_walk(w.place(forward ? 0 : 2, forward, true), source, kLimits, kShift, plan);
          ASSERT_LE(plan.runs.size(), kLimits.runs);
          ASSERT_LE(source.asked, kLimits.pages);
          FoldedPlan folded;
          Marked none;
          fold_plan({2, 1}, plan, forward, {}, geometry, 8, none, folded);
          ASSERT_LE(folded.chunks.size(), 8u);
          for (const std::uint32_t c : folded.chunks)
            ASSERT_LE(c, geometry.chunk_of(geometry.file_pages - 1));
          for (const PageRun& r : folded.alone) ASSERT_LE(r.first + r.pages, geometry.file_pages);
        }
      }
    }
  }
}

TEST(PlanWalk, CyclesAndHugeValuesEnd) {
  FileImage f(kPage);
  f.branch({{"", 2}, {"b", 2}, {"c", 2}});  // itself, at each level
  f.leaf({FileImage::big("a", ~std::uint64_t{0}, 0xffffffff),
          FileImage::big("b", ~std::uint64_t{0} - 3, 2000), FileImage::big("c", 0, 0)});
  f.branch({{"", 3}, {"b", 3}, {"c", 3}, {"d", 3}});  // one leaf, again and again
  const testing::ExactBytes bytes(f.bytes());
  PageView self, leaf, same;
  ASSERT_TRUE(PageView::open(testing::version(), bytes.data() + 2 * kPage, kPage, format::Pgno{2}, self));
  ASSERT_TRUE(PageView::open(testing::version(), bytes.data() + 3 * kPage, kPage, format::Pgno{3}, leaf));
  ASSERT_TRUE(PageView::open(testing::version(), bytes.data() + 4 * kPage, kPage, format::Pgno{4}, same));
  for (const bool forward : {true, false}) {
    Where w;
    w.leaf = leaf;
    for (unsigned depth = 1; depth < format::kMaxDepth; ++depth) {
      w.branches.push_back(self);
      w.taken.push_back(forward ? 0 : 2);
      Pages source(bytes.bytes(), {});
      Plan plan;
      plan_walk(w.place(forward ? 0 : 2, forward, depth % 2 == 0), source, {1000, 512, 16}, kShift, plan);
      EXPECT_LE(source.asked, 1000u);
      EXPECT_LE(plan.runs.size(), 512u);
      FoldedPlan folded;
      Marked none;
      fold_plan({3, 1}, plan, forward, {}, {12, kShift, f.pages()}, 4, none, folded);
      EXPECT_EQ(folded.chunks, std::vector<std::uint32_t>{0});
    }
    Where v;
    v.leaf = leaf;
    v.branches = {same};
    v.taken = {static_cast<std::uint16_t>(forward ? 0 : 3)};
    Pages source(bytes.bytes(), {});
    Plan plan;
    plan_walk(v.place(forward ? 0 : 2, forward, true), source, {kAll, 512, 16}, kShift, plan);
    EXPECT_TRUE(plan.complete) << "it is bounded by the tree";
    for (const PageRun& need :
         {PageRun{3, 1}, PageRun{~std::uint64_t{0}, 8}, PageRun{~std::uint64_t{0} - 2, 1}}) {
      FoldedPlan folded;
      Marked none;
      fold_plan(need, plan, forward, {}, {12, kShift, f.pages()}, 4, none, folded);
      for (const std::uint32_t c : folded.chunks) EXPECT_EQ(c, 0u);
      for (const PageRun& r : folded.alone) EXPECT_LE(r.first + r.pages, f.pages());
    }
  }
}

// --- fold_plan --------------------------------------------------------------------------------------------

/// 32 pages a chunk: needs within 8 pages follow one another, stretches of 2 are dense.
constexpr std::uint64_t kFilePages = 20 * 32 - 5;
constexpr ChunkGeometry kGeometry{17, 12, kFilePages};
using Chunks = std::vector<std::uint32_t>;
constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

FoldedPlan fold(PageRun need, const std::vector<PageRun>& runs, bool forward, std::size_t horizon,
                bool complete = false, WalkHistory history = {}, ChunkGeometry geometry = kGeometry,
                std::set<std::uint32_t> exact = {}, std::set<std::uint32_t> here = {},
                std::uint64_t leaf_pages = 0) {
  Plan plan;
  plan.leaf_pages = leaf_pages;
  plan.runs = runs;
  plan.complete = complete;
  FoldedPlan out;
  Marked marked(std::move(exact), std::move(here));
  fold_plan(need, plan, forward, history, geometry, horizon, marked, out);
  return out;
}

TEST(FoldPlan, DenseNeedsAreChunksAheadOfWhatIsKnown) {
  EXPECT_EQ(fold({100, 10}, {}, true, 4).chunks, (Chunks{3, 4, 5, 6}));
  EXPECT_EQ(fold({100, 10}, {}, false, 4).chunks, (Chunks{3, 2, 1, 0}));
  EXPECT_EQ(fold({40, 10}, {}, false, 8).chunks, (Chunks{1, 0})) << "to the start of the file";
  EXPECT_EQ(fold({kFilePages - 10, 10}, {}, true, 8).chunks, (Chunks{19})) << "to its end";
  EXPECT_EQ(fold({100, 10}, {{110, 50}}, true, 2).chunks, (Chunks{3, 4}));
  EXPECT_EQ(fold({100, 10}, {{400, 20}}, true, 4).chunks, (Chunks{3, 12, 13, 14})) << "on from the last need";
  EXPECT_EQ(fold({100, 10}, {{300, 20}}, false, 4).chunks, (Chunks{3, 9, 8, 7}));
}

TEST(FoldPlan, ALargeNeedHasTheHorizonToItself) {
  EXPECT_EQ(fold({64, 320}, {{384, 32}}, true, 3).chunks, (Chunks{2, 3, 4}));
  EXPECT_EQ(fold({64, 320}, {{32, 32}}, false, 3).chunks, (Chunks{11, 10, 9}));
  EXPECT_EQ(fold({64, 320}, {}, true, 10).chunks.size(), 10u);
}

TEST(FoldPlan, ScatteredNeedsAreReadByThemselves) {
  const FoldedPlan f = fold({100, 1}, {{300, 1}, {50, 1}, {600, 1}}, true, 8);
  EXPECT_FALSE(f.in_chunks_now);
  EXPECT_TRUE(f.chunks.empty());
  EXPECT_EQ(f.alone, (std::vector<PageRun>{{100, 1}, {300, 1}, {50, 1}, {600, 1}}));
  const FoldedPlan g = fold({100, 8}, {{300, 1}, {108, 8}, {110, 1}}, true, 1);
  EXPECT_TRUE(g.in_chunks_now);
  EXPECT_EQ(g.chunks, (Chunks{3}));
  const FoldedPlan small = fold({1, 1}, {{40, 1}}, true, 8, false, {}, {17, 12, 64});
  EXPECT_TRUE(small.in_chunks_now) << "a file of two chunks is read as it is";
  EXPECT_EQ(small.chunks, (Chunks{0, 1}));
}

TEST(FoldPlan, HistoryMakesANeedDense) {
  WalkHistory h{100, 200, kNowhere, 0};
  FoldedPlan f = fold({104, 1}, {}, true, 2, false, h);
  EXPECT_TRUE(f.in_chunks_now);
  EXPECT_EQ(f.history.end_page, 105u);
  EXPECT_EQ(f.history.run_pages, 201u);
  f = fold({90, 1}, {}, false, 2, false, {92, 200, kNowhere, 0});
  EXPECT_TRUE(f.in_chunks_now);
  EXPECT_EQ(f.history.end_page, 90u);
  f = fold({300, 1}, {}, true, 2, false, h);
  EXPECT_FALSE(f.in_chunks_now) << "far from it";
  EXPECT_EQ(f.history.end_page, 100u) << "and forgotten only by the next stretch";
}

TEST(FoldPlan, ShortStretchesSayNothingOfTheRestOfAChunk) {
  // Three pages here, three there: each would be much in a row.
  std::vector<PageRun> runs;
  for (std::uint64_t i = 0; i < 16; ++i) runs.push_back({40 + i * 7 % 16 * 36, 3});
  for (const bool forward : {true, false}) {
    const FoldedPlan f = fold({10, 3}, runs, forward, 8);
    EXPECT_FALSE(f.in_chunks_now);
    EXPECT_TRUE(f.chunks.empty()) << f.chunks.front();
    EXPECT_EQ(f.alone.size(), 17u);
  }
  runs.resize(4);
  EXPECT_TRUE(fold({10, 3}, runs, true, 8).in_chunks_now) << "little is known";
  runs.push_back({128, 64});
  EXPECT_TRUE(fold({10, 3}, runs, true, 8).in_chunks_now) << "most of it in one stretch";
}

TEST(FoldPlan, AScatteredWalkNeedsMoreInARow) {
  WalkHistory h;
  EXPECT_TRUE(fold({100, 10}, {}, true, 4, false, h).in_chunks_now);
  h.scattered = 3;
  const FoldedPlan f = fold({100, 10}, {}, true, 4, false, h);
  EXPECT_FALSE(f.in_chunks_now);
  EXPECT_EQ(f.alone, (std::vector<PageRun>{{100, 10}}));
  EXPECT_TRUE(fold({100, 10}, {{110, 10}}, true, 4, false, h).in_chunks_now);
}

TEST(FoldPlan, ExactChunksAreNotReadAsAWhole) {
  FoldedPlan f = fold({100, 10}, {{110, 50}}, true, 4, false, {}, kGeometry, {4, 5});
  EXPECT_TRUE(f.in_chunks_now);
  EXPECT_EQ(f.chunks, (Chunks{3, 6, 7, 8})) << "on behind them";
  EXPECT_EQ(f.alone, (std::vector<PageRun>{{128, 32}}));
  f = fold({100, 10}, {{110, 50}}, true, 2, false, {}, kGeometry, {3});
  EXPECT_FALSE(f.in_chunks_now);
  EXPECT_EQ(f.chunks, (Chunks{4, 5}));
  EXPECT_EQ(f.alone, (std::vector<PageRun>{{100, 10}, {110, 18}}));
  WalkHistory h{600, 100, 70, 1, 0};
  EXPECT_EQ(fold({600, 20}, {}, true, 5, true, h, kGeometry, {2, 3}).chunks, (Chunks{18, 19, 2, 3, 4}))
      << "another turn";
}

TEST(FoldPlan, WhatIsHereIsNotReadAgain) {
  const std::vector<PageRun> runs{{300, 1}, {50, 1}, {310, 20}, {600, 1}};
  FoldedPlan f = fold({100, 1}, runs, true, 2, false, {}, kGeometry, {}, {1, 9, 18});
  EXPECT_FALSE(f.in_chunks_now);
  EXPECT_EQ(f.chunks, (Chunks{9, 1, 10, 18})) << "chunk 10 is read, the others are kept";
  EXPECT_EQ(f.alone, (std::vector<PageRun>{{100, 1}}));
  f = fold({100, 1}, runs, true, 2, false, {}, kGeometry, {}, {3});
  EXPECT_TRUE(f.in_chunks_now) << "one page of a chunk that is here";
  EXPECT_EQ(f.chunks.front(), 3u);
  EXPECT_EQ(f.history.run_pages, 0u) << "and still a short need";
  f = fold({126, 4}, {{254, 4}}, true, 2, false, {100, 0, kNowhere, 0, 3}, kGeometry, {}, {4, 7});
  EXPECT_FALSE(f.in_chunks_now) << "only a part of it is here";
  EXPECT_EQ(f.chunks, (Chunks{4, 7}));
  EXPECT_EQ(f.alone, (std::vector<PageRun>{{126, 2}, {256, 2}}));
}

// Leaves of which only the place is known, among values that are not known: here and there one lies
// elsewhere.
TEST(FoldPlan, LeavesThatLieApart) {
  const std::vector<PageRun> runs{{115, 1}, {120, 1}, {40, 1}, {130, 1}, {60, 1}};
  const auto folded = [&runs](std::uint64_t leaf_pages) {
    return fold({100, 10}, runs, true, 4, false, {}, kGeometry, {}, {}, leaf_pages);
  };
  FoldedPlan f = folded(4);
  EXPECT_EQ(f.chunks, (Chunks{3, 4, 5, 6})) << "130 goes on where 120 was, and the walk behind it";
  EXPECT_EQ(f.alone, (std::vector<PageRun>{{40, 1}, {60, 1}}));
  f = folded(0);
  EXPECT_EQ(f.chunks, (Chunks{3})) << "no values between leaves";
  EXPECT_EQ(f.alone, (std::vector<PageRun>{{40, 1}, {130, 1}, {60, 1}}));
}

// Values of one page, each leaf page before its values: downwards the leaf is needed first, and lies last.
// What a leaf leads to is more than 8 pages and less than half a chunk, or just as much.
TEST(FoldPlan, DownwardsALeafLiesBehindItsValues) {
  for (const std::uint64_t span : {16u, 13u, 10u}) {
    std::vector<PageRun> runs;
    for (std::uint64_t leaf = 304; leaf >= 224; leaf -= span) {
      if (leaf != 304) runs.push_back({leaf, 1});
      for (std::uint64_t page = leaf + span - 1; page > leaf; --page) runs.push_back({page, 1});
    }
    for (const PageRun need : {PageRun{304, 1}, PageRun{304 + span - 1, 1}}) {
      const FoldedPlan out = fold(need, runs, false, 4);
      EXPECT_TRUE(out.in_chunks_now) << span;
      EXPECT_EQ(out.chunks, (Chunks{9, 8, 7, 6})) << span;
      EXPECT_TRUE(out.alone.empty()) << span;
    }
  }
}

TEST(FoldPlan, TheEndOfATreeLeadsToItsStart) {
  const PageRun need{600, 20};
  EXPECT_EQ(fold(need, {}, true, 6, true).chunks, (Chunks{18, 19})) << "not known to have one";
  WalkHistory h{600, 100, 70, 0};
  EXPECT_EQ(fold(need, {}, true, 6, true, h).chunks, (Chunks{18, 19, 2})) << "one the first time";
  h.epochs = 1;
  EXPECT_EQ(fold(need, {}, true, 6, true, h).chunks, (Chunks{18, 19, 2, 3, 4, 5}));
  EXPECT_EQ(fold(need, {}, true, 3, true, h).chunks, (Chunks{18, 19, 2}));
  h = {60, 100, 630, 3};
  EXPECT_EQ(fold({40, 20}, {}, false, 6, true, h).chunks, (Chunks{1, 19, 18, 17, 16, 15}));
  EXPECT_EQ(fold({40, 20}, {}, false, 6, false, h).chunks, (Chunks{1, 0})) << "it has not ended";
}

TEST(FoldPlan, WhatAlwaysHolds) {
  test::Rng rng(20261);
  const auto page = [&rng] { return rng.percent(3) ? rng.next() : rng.below(kFilePages + 40); };
  for (int round = 0; round < 40'000; ++round) {
    SCOPED_TRACE(round);
    const bool forward = rng.percent(50);
    const PageRun need{rng.below(kFilePages - 40), 1 + rng.below(rng.percent(20) ? 40 : 3)};
    std::vector<PageRun> runs(rng.below(12));
    std::uint64_t at = need.first;
    for (PageRun& r : runs) {
      at = rng.percent(60) ? (forward ? at + rng.below(12) : at - std::min<std::uint64_t>(at, rng.below(12)))
                           : page();
      r = {at, 1 + rng.below(rng.percent(10) ? 100 : 6)};
    }
    const WalkHistory history{page(), rng.below(100), rng.percent(50) ? kNowhere : rng.below(kFilePages),
                              static_cast<unsigned>(rng.below(2)),
                              static_cast<unsigned>(rng.below(WalkHistory::kMostScattered + 1))};
    std::set<std::uint32_t> exact;
    for (std::uint64_t n = rng.percent(30) ? rng.below(20) : 0; n > 0; --n)
      exact.insert(static_cast<std::uint32_t>(rng.below(20)));
    std::set<std::uint32_t> here;
    for (std::uint64_t n = rng.percent(30) ? rng.below(20) : 0; n > 0; --n)
      if (const auto c = static_cast<std::uint32_t>(rng.below(20)); exact.count(c) == 0) here.insert(c);
    const std::size_t horizon = 1 + rng.below(9);
    const FoldedPlan f = fold(need, runs, forward, horizon, rng.percent(40), history, kGeometry, exact, here);
    const auto to_read = static_cast<std::size_t>(std::count_if(
        f.chunks.begin(), f.chunks.end(), [&here](std::uint32_t c) { return here.count(c) == 0; }));
    ASSERT_LE(to_read, horizon);
    std::set<std::uint32_t> unique(f.chunks.begin(), f.chunks.end());
    ASSERT_EQ(unique.size(), f.chunks.size());
    for (const std::uint32_t c : f.chunks) ASSERT_LT(c, 20u);
    for (const PageRun& r : f.alone) {
      ASSERT_LT(r.first, kFilePages);
      ASSERT_LE(r.first + r.pages, kFilePages);
      ASSERT_GT(r.pages, 0u);
    }
    const auto covered = [&](std::uint64_t p) {
      return unique.count(kGeometry.chunk_of(p)) != 0 ||
             std::any_of(f.alone.begin(), f.alone.end(),
                         [p](const PageRun& r) { return p - r.first < r.pages; });
    };
    if (f.in_chunks_now) {
      const std::uint64_t first = forward ? need.first : need.first + need.pages - 1;
      ASSERT_FALSE(f.chunks.empty());
      ASSERT_EQ(f.chunks[0], kGeometry.chunk_of(first));
      if (here.count(kGeometry.chunk_of(need.first)) == 0) {
        ASSERT_EQ(f.history.end_page, forward ? need.first + need.pages : need.first);
        ASSERT_GE(f.history.run_pages, need.pages);
      }
    } else {
      const bool goes_on = f.history.run_pages != history.run_pages;  // too short to be read whole, so far
      ASSERT_EQ(f.history.run_pages, history.run_pages + (goes_on ? need.pages : 0));
      ASSERT_EQ(f.history.end_page, !goes_on  ? history.end_page
                                    : forward ? need.first + need.pages
                                              : need.first);
      ASSERT_TRUE(covered(need.first) && covered(need.first + need.pages - 1));
    }
    ASSERT_EQ(f.history.first_page, history.first_page);
    if (f.chunks.size() < horizon) {
      for (const PageRun& r : runs)
        for (std::uint64_t p = r.first; p - r.first < r.pages && p < kFilePages; ++p)
          ASSERT_TRUE(covered(p)) << p;
    }
  }
}

TEST(NextHorizon, DoublesWhereAWalkWaits) {
  EXPECT_EQ(next_horizon(2, false, 64), 2u);
  EXPECT_EQ(next_horizon(2, true, 64), 4u);
  EXPECT_EQ(next_horizon(40, true, 64), 64u);
  EXPECT_EQ(next_horizon(64, true, 64), 64u);
  EXPECT_EQ(next_horizon(64, false, 16), 16u) << "there is less now";
  EXPECT_EQ(next_horizon(1, false, 64), 2u) << "at least double buffering";
  EXPECT_EQ(next_horizon(1, false, 1), 1u);
  EXPECT_EQ(next_horizon(8, true, 1), 1u);
}

}  // namespace
}  // namespace lmdbio::ahead
