// How a file is read ahead: all combinations of what is known about it.
#include <gtest/gtest.h>

#include <cstring>

#include "lmdbio/cache/regime.h"

namespace lmdbio::cache {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr IoMode kModes[] = {IoMode::automatic, IoMode::mmap, IoMode::direct, IoMode::buffered};

// The rule in other words: the reasons in the order of their weight.
Way expected(const RegimeFacts& f) {
  const bool fits = f.file_bytes <= f.available / 4 * 3;
  if (!f.can_map) return Way::direct;
  if (f.setting == IoMode::mmap) return Way::mapping;
  if (f.setting == IoMode::buffered || f.limit == 0) return Way::buffered;
  if (f.setting == IoMode::direct) return Way::direct;
  if (!f.direct) return Way::buffered;
  if (!f.local || !fits) return Way::direct;
  return f.readahead >= 2 * kMiB ? Way::mapping : Way::buffered;
}

TEST(Regime, AllCombinations) {
  unsigned n = 0;
  for (const IoMode mode : kModes)
    for (const bool local : {false, true})
      for (const bool direct : {false, true})
        for (const bool can_map : {false, true})
          for (const std::uint64_t readahead : {std::uint64_t{0}, 128 * kMiB / 1024, 2 * kMiB - 1, 2 * kMiB, 4 * kMiB})
            for (const std::uint64_t limit : {std::uint64_t{0}, 16 * kMiB})
              for (const std::uint64_t bytes : {std::uint64_t{0}, 300 * kMiB, 300 * kMiB + 1, ~std::uint64_t{0}}) {
                const RegimeFacts f{mode, local, direct, can_map, readahead, limit, bytes, 400 * kMiB};
                const Regime r = choose_way(f);
                EXPECT_EQ(r.way, expected(f)) << r.why;
                EXPECT_GT(std::strlen(r.why), 0u);
                ++n;
              }
  EXPECT_EQ(n, 4u * 8 * 5 * 2 * 4);
}

TEST(Regime, ReasonsAreTold) {
  RegimeFacts f;
  f.limit = 16 * kMiB;
  f.direct = true;
  f.available = 400 * kMiB;
  f.file_bytes = 100 * kMiB;
  EXPECT_STREQ(choose_way(f).why, "local file system, fits the page cache");
  f.readahead = 4 * kMiB;
  EXPECT_STREQ(choose_way(f).why, "local file system, the kernel reads ahead far enough");
  f.file_bytes = 500 * kMiB;
  EXPECT_STREQ(choose_way(f).why, "larger than the memory that is free");
  f.local = false;
  EXPECT_STREQ(choose_way(f).why, "not a local file system");
  f.direct = false;
  EXPECT_STREQ(choose_way(f).why, "no direct reads here");
  f.limit = 0;
  EXPECT_STREQ(choose_way(f).why, "LMDBIO_MEMORY=0");
  f.setting = IoMode::direct;
  EXPECT_STREQ(choose_way(f).why, "LMDBIO_IO=direct, but LMDBIO_MEMORY=0");
  f.can_map = false;
  EXPECT_STREQ(choose_way(f).why, "the file cannot be mapped");
}

static_assert(choose_way({}).way == Way::buffered, "nothing known: no private memory");

}  // namespace
}  // namespace lmdbio::cache
