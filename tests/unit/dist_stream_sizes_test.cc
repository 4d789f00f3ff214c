// Sizes of rounds, and what a rank may keep of its share.
#include <gtest/gtest.h>

#include "lmdbio/dist/stream_sizes.h"

namespace lmdbio::dist {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = kMiB << 10;

/// One of 8 ranks of 4 nodes, with plenty of memory; 128 MiB of records for each rank.
StreamFacts plenty() {
  StreamFacts f;
  f.share.size = sizeof f.share;
  f.share.step = 8;
  f.records = 8 * 128 * 1024;
  f.record_bytes = 1024;
  f.nodes = f.readers = 4;
  f.ranks_here = 2;
  f.offer = kGiB;
  f.for_messages = kGiB / 2;
  f.memory = kGiB;
  f.available = 8 * kGiB;
  f.caches = true;
  return f;
}

TEST(StreamSizes, PartsAreLargeAsFarAsMemoryAllows) {
  EXPECT_EQ(part_bytes(kGiB), 4 * kMiB);
  EXPECT_EQ(part_bytes(15 * kMiB), kMiB);
  EXPECT_EQ(part_bytes(0), 64u * 1024);
  EXPECT_EQ(round_records(kGiB, 1024, 3), 3u * 4096);
  EXPECT_EQ(round_records(kGiB, 100 * kMiB, 3), 3u) << "one record for each reader at least";
  EXPECT_EQ(scattered_bytes(200), 4096u);
  EXPECT_EQ(scattered_bytes(5000), 5000u);
}

TEST(StreamSizes, SharesAreKeptWhereThereIsMemory) {
  const std::uint64_t share = 128 * kMiB, kept = bytes_to_keep(plenty(), 0);
  EXPECT_GT(kept, share + share / 8);
  EXPECT_LT(kept, share + share / 4);
  StreamFacts f = plenty();
  f.for_messages = kept + 32 * kMiB - 1;  // eight parts are on their way
  EXPECT_EQ(bytes_to_keep(f, 0), 0u);
  f.for_messages = kept + 32 * kMiB;
  EXPECT_EQ(bytes_to_keep(f, 0), kept);
  EXPECT_EQ(bytes_to_keep(f, 1), 0u) << "another stream has set it aside";
  f = plenty(), f.memory = 2 * kept - 2;
  EXPECT_EQ(bytes_to_keep(f, 0), 0u);
  f = plenty(), f.available = 4 * kept - 4;  // two ranks, half of it
  EXPECT_EQ(bytes_to_keep(f, 0), 0u);
  f = plenty();
  EXPECT_EQ(bytes_to_keep(f, UINT64_MAX), 0u);
}

TEST(StreamSizes, OnlySharesThatComeAgainAreKept) {
  StreamFacts f = plenty();
  f.share.epochs = 1;
  EXPECT_EQ(bytes_to_keep(f, 0), 0u);
  f.share.epochs = 2;
  EXPECT_GT(bytes_to_keep(f, 0), 0u);
  f.share.across_epochs = 1;
  EXPECT_GT(bytes_to_keep(f, 0), 0u) << "8 divides the number of records";
  f.records += 1;
  EXPECT_EQ(bytes_to_keep(f, 0), 0u);
  f = plenty();
  f.share.kind = LMDBIO_ORDER_SHUFFLE;
  EXPECT_EQ(bytes_to_keep(f, 0), 0u);
}

TEST(StreamSizes, ARankVotesForWhatCostsLess) {
  StreamFacts f = plenty();
  f.share.kind = LMDBIO_ORDER_SHUFFLE;
  f.records = 1'000'000, f.record_bytes = 100'000;
  f.available = 60 * kGiB;  // for a part of the file, not for all of it
  EXPECT_TRUE(votes_to_deal(f));
  f.caches = false;
  EXPECT_FALSE(votes_to_deal(f));
}

}  // namespace
}  // namespace lmdbio::dist
