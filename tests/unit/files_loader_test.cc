// Loader: all items in order, whatever their sizes, errors where they belong, and a limit on what is ahead.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lmdbio/files/loader.h"

namespace lmdbio::files {
namespace {

/// Items of these sizes.  The contents of an item are its number.
struct Items {
  std::vector<std::uint64_t> sizes;
  std::size_t fails = SIZE_MAX;

  Loader loader(std::size_t first) const {
    return {first, sizes.size(), [this](std::size_t i) { return sizes[i]; },
            [this](std::size_t i, std::string& out) {
              if (i == fails) throw std::runtime_error("item " + std::to_string(i));
              out = std::to_string(i);
            }};
  }
};

Items some(unsigned seed, std::size_t n) {
  std::mt19937 random(seed);
  Items out;
  for (std::size_t i = 0; i < n; ++i) out.sizes.push_back(random() % (random() % 3 == 0 ? 1'000'000 : 3000));
  return out;
}

TEST(Loader, ReturnsAllInOrder) {
  for (const std::size_t n : std::vector<std::size_t>{0, 1, 2, 63, 64, 65, 1000, 20'000}) {
    const Items items = some(static_cast<unsigned>(n), n);
    for (const std::size_t first : {std::size_t{0}, n / 3, n}) {
      Loader loader = items.loader(first);
      for (std::size_t i = first; i < n; ++i) ASSERT_EQ(loader.next(), std::to_string(i));
    }
  }
}

TEST(Loader, ErrorsComeInTheirPlace) {
  Items items = some(1, 3000);
  for (items.fails = 0; items.fails < 3000; items.fails += 97) {
    Loader loader = items.loader(0);
    for (std::size_t i = 0; i < items.fails; ++i) ASSERT_EQ(loader.next(), std::to_string(i));
    EXPECT_THROW((void)loader.next(), std::runtime_error);
  }
}

TEST(Loader, CanBeLeftAtAnyTime) {
  const Items items = some(2, 5000);
  for (std::size_t n = 0; n < 3000; n += 211) {
    Loader loader = items.loader(0);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(loader.next(), std::to_string(i));
  }
}

TEST(Loader, ReadsAheadOnlySoFar) {
  constexpr std::size_t kItems = 30'000, kMiB = std::size_t{1} << 20;
  for (const std::uint64_t size : {std::uint64_t{100}, std::uint64_t{kMiB}}) {
    std::atomic<std::size_t> read = 0;
    std::size_t most = 0;
    Loader loader(
        0, kItems, [&](std::size_t) { return size; }, [&](std::size_t, std::string&) { ++read; });
    for (std::size_t i = 0; i < 5000; ++i) {
      (void)loader.next();
      most = std::max(most, read - i);
    }
    // Each thread may have taken a group when there was room for one item.
    const std::size_t group = size < Loader::kGroupBytes ? Loader::kGroupItems : 1;
    EXPECT_LE(most, std::min<std::size_t>(Loader::kAheadItems, Loader::kAheadBytes / size) + 2 * group);
  }
}

}  // namespace
}  // namespace lmdbio::files
