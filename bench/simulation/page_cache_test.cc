#include "bench/simulation/page_cache.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace lmdbio::bench {
namespace {

using Page = PageCache::Page;
using Requests = std::vector<std::pair<Page, Page>>;

/// Answers requests in the order in which they were made, when it is told to.
struct Node {
  explicit Node(Page pages, unsigned read_ahead = 32)
      : cache(pages, read_ahead, [this](Page first, Page count) {
          requests.emplace_back(first, count);
          open.emplace_back(first, count);
        }) {}
  void answer() {
    while (!open.empty()) {
      const auto [first, count] = open.front();
      open.pop_front();
      cache.arrived(first, count);
    }
  }
  Requests requests;
  std::deque<std::pair<Page, Page>> open;
  PageCache cache;
};

/// As a process does; nothing that it reads is slow.
void touch(Node& node, MappedFile& file, Page page) {
  while (!file.touch(page)) node.answer();
}

TEST(PageCache, AFaultReadsAround) {
  Node node(1000);
  MappedFile file(node.cache);
  EXPECT_FALSE(file.touch(100));
  EXPECT_EQ(node.requests, (Requests{{84, 32}}));
  node.answer();
  EXPECT_TRUE(file.touch(100));
  EXPECT_EQ(file.faults(), 1u);
  EXPECT_EQ(file.major_faults(), 1u);
}

TEST(PageCache, AtBothEndsOfTheFile) {
  Node node(40);
  MappedFile file(node.cache);
  touch(node, file, 3);
  touch(node, file, 39);
  EXPECT_EQ(node.requests, (Requests{{0, 32}, {32, 8}}));
}

// The mark is on the page from which a quarter of the window is left; from there on a window is always ahead.
TEST(PageCache, AWalkIsReadAhead) {
  Node node(200);
  MappedFile file(node.cache);
  for (Page p = 0; p < 200; ++p) {
    touch(node, file, p);
    if (p < 24) {
      EXPECT_EQ(node.requests.size(), 1u) << p;
    }
  }
  EXPECT_EQ(node.requests, (Requests{{0, 32}, {32, 32}, {64, 32}, {96, 32}, {128, 32}, {160, 32}, {192, 8}}));
  EXPECT_EQ(file.major_faults(), 4u) << "each answers for all that is being read";
}

TEST(PageCache, FaultsMapWhatIsThere) {
  Node node(64);
  MappedFile file(node.cache), other(node.cache);
  touch(node, file, 16);  // pages 0 to 31
  for (Page p = 0; p < 24; ++p) touch(node, other, p);
  EXPECT_EQ(other.faults(), 2u);
  EXPECT_EQ(other.major_faults(), 0u);
  EXPECT_EQ(node.requests.size(), 1u);
}

TEST(PageCache, OneReadsAndAnotherWaits) {
  Node node(64);
  MappedFile file(node.cache), other(node.cache);
  EXPECT_FALSE(file.touch(20));
  EXPECT_FALSE(other.touch(30));
  EXPECT_EQ(node.requests.size(), 1u);
  std::vector<std::pair<int, std::size_t>> told;
  node.cache.when_there(20, [&](std::size_t earlier) { told.emplace_back(1, earlier); });
  node.cache.when_there(30, [&](std::size_t earlier) { told.emplace_back(2, earlier); });
  node.cache.when_there(20, [&](std::size_t earlier) { told.emplace_back(3, earlier); });
  node.answer();
  EXPECT_EQ(told, (std::vector<std::pair<int, std::size_t>>{{1, 0}, {3, 1}, {2, 0}}));
  EXPECT_TRUE(file.touch(20));
  EXPECT_TRUE(other.touch(30));
}

// Each reads around; the next window begins where nobody has read.
TEST(PageCache, FarFromEachOther) {
  Node node(1000);
  MappedFile file(node.cache);
  for (const Page p : std::vector<Page>{100, 500, 124, 532}) touch(node, file, p);
  EXPECT_EQ(node.requests, (Requests{{84, 32}, {484, 32}, {116, 24}, {516, 32}}));
}

TEST(PageCache, TheOpenOfAnEnvironment) {
  Node node(1000);
  MappedFile file(node.cache);
  for (const Page meta : {Page{0}, Page{1}})
    while (!file.read(meta)) node.answer();
  EXPECT_EQ(node.requests, (Requests{{0, 4}, {4, 8}}));
  MappedFile other(node.cache);
  EXPECT_TRUE(other.read(0));
  EXPECT_TRUE(other.read(1));
  EXPECT_EQ(node.requests.size(), 2u);
}

// Whatever processes do, and whenever answers come: nothing is read twice, and what is touched comes.
TEST(PageCache, EachPageOnce) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Node node(1 + random() % 3000, 1 + static_cast<unsigned>(random() % 64));
    std::deque<MappedFile> files;
    for (auto n = 1 + random() % 5; n != 0; --n) files.emplace_back(node.cache);
    std::vector<Page> at(files.size());
    for (int step = 0; step < 5000; ++step) {
      const std::size_t f = random() % files.size();
      if (!node.open.empty() && random() % 3 == 0) {
        const auto [first, count] = node.open.front();
        node.open.pop_front();
        node.cache.arrived(first, count);
      }
      if (!files[f].touch(at[f])) continue;
      at[f] = random() % 8 == 0 ? random() % node.cache.pages() : (at[f] + 1) % node.cache.pages();
    }
    std::map<Page, int> read;
    for (const auto& [first, count] : node.requests) {
      ASSERT_LE(first + count, node.cache.pages());
      for (Page p = first; p < first + count; ++p) ASSERT_EQ(read[p]++, 0) << seed;
    }
    for (std::size_t f = 0; f < files.size(); ++f) {
      (void)files[f].touch(at[f]);
      node.answer();
      ASSERT_TRUE(files[f].touch(at[f])) << seed;
    }
  }
}

}  // namespace
}  // namespace lmdbio::bench
