#include <gtest/gtest.h>

#include "lmdbio/window/lookup_history.h"

namespace lmdbio::window {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

TEST(MissRecord, AllOver) {
  MissRecord r;
  for (unsigned i = 0; i < MissRecord::kMisses; ++i) {
    EXPECT_FALSE(r.all_over()) << i;
    r.note(1, i * kGiB / 16, kGiB);
  }
  EXPECT_TRUE(r.all_over());
  EXPECT_EQ(r.misses(), MissRecord::kMisses);
}

TEST(MissRecord, InOnePart) {
  MissRecord r;
  for (unsigned i = 0; i < 1000; ++i) r.note(1, kGiB / 2 + i * 4096, kGiB);
  EXPECT_FALSE(r.all_over());
  EXPECT_EQ(r.misses(), 1000u);
}

TEST(MissRecord, InTooFewParts) {
  MissRecord r;
  for (unsigned i = 0; i < 1000; ++i) r.note(1, i % (MissRecord::kParts - 1) * (kGiB / 64) + 4096, kGiB);
  EXPECT_FALSE(r.all_over());
  r.note(1, kGiB - 1, kGiB);
  EXPECT_TRUE(r.all_over());
}

TEST(MissRecord, ANewSnapshotStartsAnew) {
  MissRecord r;
  for (unsigned i = 0; i < 16; ++i) r.note(1, i * kGiB / 16, kGiB);
  r.note(2, 0, kGiB);
  EXPECT_FALSE(r.all_over());
  EXPECT_EQ(r.misses(), 1u);
}

TEST(MissRecord, TinyAndOddSizes) {
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{4096}, ~std::uint64_t{0}}) {
    MissRecord r;
    for (unsigned i = 0; i < 64; ++i) r.note(1, bytes / 64 * i, bytes);
    r.note(1, bytes, bytes);  // beyond its end, as a file that has shrunk
    r.note(1, ~std::uint64_t{0}, bytes);
    EXPECT_EQ(r.misses(), 66u);
  }
}

TEST(LoadIsDue, OnceLookupsHavePaid) {
  EXPECT_TRUE(load_is_due(false, kGiB, 0));
  EXPECT_FALSE(load_is_due(true, kGiB, 0));
  EXPECT_FALSE(load_is_due(true, kGiB, kGiB / 3 - 1));
  EXPECT_TRUE(load_is_due(true, kGiB, kGiB / 3));
}

TEST(AllLeaves, WorthIt) {
  EXPECT_TRUE(worth_all_leaves(1, 64, 64 << 12, kGiB));
  EXPECT_FALSE(worth_all_leaves(1, 65, 65 << 12, kGiB));
  EXPECT_TRUE(worth_all_leaves(100, 6400, kGiB / 16, kGiB));
  EXPECT_FALSE(worth_all_leaves(100, 6400, kGiB / 16 + 1, kGiB));
}

}  // namespace
}  // namespace lmdbio::window
