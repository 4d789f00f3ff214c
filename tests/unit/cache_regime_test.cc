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
  if (!fits) return Way::direct;
  return f.local && f.readahead >= 2 * kMiB ? Way::mapping : Way::buffered;
}

TEST(Regime, AllCombinations) {
  unsigned n = 0;
  for (const IoMode mode : kModes)
    for (const bool local : {false, true})
      for (const bool direct : {false, true})
        for (const bool can_map : {false, true})
          for (const std::uint64_t readahead :
               {std::uint64_t{0}, 128 * kMiB / 1024, 2 * kMiB - 1, 2 * kMiB, 4 * kMiB})
            for (const std::uint64_t limit : {std::uint64_t{0}, 16 * kMiB})
              for (const std::uint64_t bytes :
                   {std::uint64_t{0}, 300 * kMiB, 300 * kMiB + 1, ~std::uint64_t{0}}) {
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
  EXPECT_STREQ(choose_way(f).why, "fits the page cache");
  f.readahead = 4 * kMiB;
  EXPECT_STREQ(choose_way(f).why, "local file system, the kernel reads ahead far enough");
  f.local = false;
  EXPECT_STREQ(choose_way(f).why, "fits the page cache");
  f.file_bytes = 500 * kMiB;
  EXPECT_STREQ(choose_way(f).why, "larger than the memory that is free");
  f.direct = false;
  EXPECT_STREQ(choose_way(f).why, "no direct reads here");
  f.limit = 0;
  EXPECT_STREQ(choose_way(f).why, "LMDBIO_MEMORY=0");
  f.setting = IoMode::direct;
  EXPECT_STREQ(choose_way(f).why, "LMDBIO_IO=direct, but LMDBIO_MEMORY=0");
  f.can_map = false;
  EXPECT_STREQ(choose_way(f).why, "the file cannot be mapped");
}

// One row a case of issue 11: a file on a far file system, and what is free.
TEST(Regime, WhatFitsGoesThroughThePageCacheOnAnyFileSystem) {
  struct Row {
    std::uint64_t file, available;
    IoMode mode;
    Way way;
  };
  constexpr std::uint64_t kGiB = kMiB << 10;
  constexpr Row kRows[] = {
      {kGiB / 2, 16 * kGiB, IoMode::automatic, Way::buffered},
      {4 * kGiB, 16 * kGiB, IoMode::automatic, Way::buffered},
      {12 * kGiB, 16 * kGiB, IoMode::automatic, Way::buffered},    // three quarters
      {12 * kGiB + 1, 16 * kGiB, IoMode::automatic, Way::direct},  // more
      {2 * kGiB, kGiB, IoMode::automatic, Way::direct},            // twice a group's limit
      {kGiB / 2, 16 * kGiB, IoMode::direct, Way::direct},          // explicit settings win
      {32 * kGiB, 16 * kGiB, IoMode::buffered, Way::buffered},
      {kGiB / 2, 16 * kGiB, IoMode::mmap, Way::mapping},
  };
  for (const Row& r : kRows) {
    RegimeFacts f;
    f.setting = r.mode;
    f.local = false;
    f.direct = true;
    f.readahead = 128 << 10;
    f.limit = 4 * kGiB;
    f.file_bytes = r.file;
    f.available = r.available;
    EXPECT_EQ(choose_way(f).way, r.way) << r.file << " of " << r.available << ": " << choose_way(f).why;
  }
}

TEST(Regime, WhatWasFoundToFitMayTakeALittleMore) {
  EXPECT_TRUE(fits_comfortably(300 * kMiB, 400 * kMiB));
  EXPECT_FALSE(fits_comfortably(300 * kMiB + 1, 400 * kMiB));
  EXPECT_TRUE(still_fits(350 * kMiB, 400 * kMiB));
  EXPECT_FALSE(still_fits(350 * kMiB + 1, 400 * kMiB));
  EXPECT_FALSE(fits_comfortably(~std::uint64_t{0}, ~std::uint64_t{0}));
  EXPECT_TRUE(fits_comfortably(0, 0));
}

TEST(Regime, WhatVanishesTooOften) {
  EXPECT_FALSE(too_much_vanished(0, 0));
  EXPECT_FALSE(too_much_vanished(24 * kMiB, 24 * kMiB)) << "once: another process has opened the file";
  EXPECT_FALSE(too_much_vanished(4 * kMiB, 400 * kMiB)) << "long ago";
  EXPECT_FALSE(too_much_vanished(16 * kMiB - 1, 32 * kMiB));
  EXPECT_FALSE(too_much_vanished(32 * kMiB - 1, 32 * kMiB - 1));
  EXPECT_TRUE(too_much_vanished(16 * kMiB, 32 * kMiB));
}

static_assert(choose_way({}).way == Way::buffered, "nothing known: no private memory");

}  // namespace
}  // namespace lmdbio::cache
