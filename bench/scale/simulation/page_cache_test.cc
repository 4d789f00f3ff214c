#include "bench/scale/simulation/page_cache.h"

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

/// A page cache whose requests end when the test calls answer(), in the order in which they were made.
struct Node {
  explicit Node(Page pages, unsigned read_ahead = 32, Page room = ~Page{0}, Kernel kernel = {})
      : cache(
            pages, read_ahead,
            [this](Page first, Page count) {
              requests.emplace_back(first, count);
              open.emplace_back(first, count);
            },
            room, kernel) {}
  void answer() {
    while (!open.empty()) {
      const auto [first, count] = open.front();
      open.pop_front();
      cache.arrived(first, count);
    }
  }
  Page pages_read() const {
    Page n = 0;
    for (const auto& [first, count] : requests) n += count;
    return n;
  }
  Requests requests;
  std::deque<std::pair<Page, Page>> open;
  PageCache cache;
};

/// Touches a page, and ends requests until the page is resident.
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

// The mark is on the page at which a quarter of the window is left.  After it, one window is always read
// ahead.
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
  std::vector<int> woken;
  node.cache.when_woken(20, [&] { woken.push_back(1); });
  node.cache.when_woken(30, [&] { woken.push_back(2); });
  node.cache.when_woken(20, [&] { woken.push_back(3); });
  node.answer();
  EXPECT_EQ(woken, (std::vector<int>{1, 3, 2}));
  EXPECT_EQ(node.cache.requests(), 1u);
  EXPECT_TRUE(file.touch(20));
  EXPECT_TRUE(other.touch(30));
}

TEST(PageCache, WithoutFaultAroundEachPageFaults) {
  Node node(64, 32, ~Page{0}, {0, 1});
  MappedFile file(node.cache), other(node.cache);
  touch(node, file, 16);  // pages 0 to 31
  for (Page p = 0; p < 24; ++p) touch(node, other, p);
  EXPECT_EQ(other.faults(), 24u);
  EXPECT_EQ(node.requests.size(), 1u);
}

// Process 2 waits for a page of another request.  With one wait queue, the kernel wakes it for nothing.
TEST(PageCache, WaitQueues) {
  struct Row {
    unsigned queues;
    std::vector<int> woken;
  };
  for (const Row& row :
       std::vector<Row>{{0, {1, 3}}, {1, {1, 2, 3}}, {7, {1, 3, 2}}, {64, {1, 3}}, {400, {1, 2, 3}}}) {
    Node node(1000, 32, ~Page{0}, {row.queues, 16});
    MappedFile file(node.cache), other(node.cache);
    EXPECT_FALSE(file.touch(100));
    EXPECT_FALSE(other.touch(500));
    std::vector<int> woken;
    node.cache.when_woken(100, [&] { woken.push_back(1); });
    node.cache.when_woken(500, [&] { woken.push_back(2); });
    node.cache.when_woken(100, [&] { woken.push_back(3); });
    const auto [first, count] = node.open.front();
    node.cache.arrived(first, count);
    EXPECT_EQ(woken, row.woken) << row.queues << " queues";
    EXPECT_FALSE(other.touch(500)) << "it waits again";
    EXPECT_EQ(node.requests.size(), 2u);
  }
}

// Each miss reads around its page, except for pages that were read before.
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

// A file that is larger than the memory is read again in each epoch.  A smaller file is read once.
TEST(PageCache, EpochsOfAWalk) {
  for (const Page room : {Page{900}, Page{1100}}) {
    Node node(1000, 32, room);
    MappedFile file(node.cache), other(node.cache);
    for (int epoch = 0; epoch < 3; ++epoch)
      for (Page p = 0; p < 1000; ++p) {
        touch(node, file, p);
        touch(node, other, p);
      }
    EXPECT_LE(node.cache.pages_there(), room);
    if (room == 1100) {
      EXPECT_EQ(node.pages_read(), 1000u);
    } else {
      EXPECT_GT(node.pages_read(), 2500u);
    }
  }
}

// Pages that are used all the time mostly stay resident, whatever else is read.  Evicted pages fault again.
TEST(PageCache, WhatIsUsedStays) {
  Node node(10000, 4, 200);
  MappedFile file(node.cache);
  std::uint64_t faults = 0;
  for (Page p = 0; p < 10000; ++p) {
    touch(node, file, p);
    const std::uint64_t before = file.faults();
    for (Page used = 0; used < 16; ++used) touch(node, file, used);
    if (p >= 16) faults += file.faults() - before;
  }
  EXPECT_LT(faults, 50u) << "by age alone, each of them would go every 200 pages: 800 faults";
  EXPECT_FALSE(file.use_mapped(5000));
  EXPECT_FALSE(node.cache.is_there(5000));
  touch(node, file, 5000);
  EXPECT_TRUE(file.use_mapped(5000));
}

// The page is evicted before the process touches it again.
TEST(PageCache, GoneBeforeItIsTouched) {
  Node node(100, 1, 4);
  MappedFile file(node.cache), other(node.cache);
  EXPECT_FALSE(file.touch(50));
  node.answer();
  for (Page p = 70; p < 80; ++p) touch(node, other, p);
  EXPECT_FALSE(node.cache.is_there(50));
  EXPECT_FALSE(file.touch(50));
  EXPECT_TRUE(node.cache.is_being_read(50));
  node.answer();
  EXPECT_TRUE(file.touch(50));
}

// Random touches with random delays of answers.  With room for all pages, no page is read twice.  With less
// room, the number of resident pages stays within the limit, and each touched page arrives.
TEST(PageCache, WhateverProcessesDo) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const bool all = seed % 2 == 0;
    Node node(1 + random() % 3000, 1 + static_cast<unsigned>(random() % 64), all ? 4000 : 1 + random() % 300);
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
      for (Page p = first; p < first + count; ++p) ASSERT_TRUE(read[p]++ == 0 || !all) << seed;
    }
    for (std::size_t f = 0; f < files.size(); ++f) {
      ASSERT_LE(node.cache.pages_there(), all ? 4000u : 300u);
      int tries = 0;
      for (; !files[f].touch(at[f]); ++tries) node.answer();
      ASSERT_LE(tries, 3) << seed;
    }
  }
}

}  // namespace
}  // namespace lmdbio::bench
