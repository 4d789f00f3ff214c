// Sizes of rounds, what a rank may keep of its share, and its votes.
#include <gtest/gtest.h>

#include <tuple>

#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/stream_sizes.h"
#include "lmdbio/ranks/stream_terms.h"

namespace lmdbio::ranks {
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
  f.share.end_epoch = LMDBIO_ENDLESS;
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

TEST(StreamSizes, SharesAreKeptAsFarAsThereIsMemory) {
  const std::uint64_t share = 128 * kMiB;
  const Keeping all = what_to_keep(plenty(), 0);
  EXPECT_EQ(all.parts, kKeptParts);
  EXPECT_GT(all.bytes, share + share / 8);
  EXPECT_LT(all.bytes, share + share / 4);
  EXPECT_EQ(all.of(kKeptParts), all.bytes);
  EXPECT_EQ(all.of(0), 0u);
  const auto parts = [](const StreamFacts& f, std::uint64_t set_aside) {
    const Keeping k = what_to_keep(f, set_aside);
    EXPECT_EQ(k.parts == 0, k.bytes == 0);
    return k.parts;
  };
  StreamFacts f = plenty();
  f.for_messages = all.bytes + 32 * kMiB;  // eight parts are on their way
  EXPECT_EQ(parts(f, 0), 8u);
  EXPECT_EQ(parts(f, 1), 7u) << "another stream has set it aside";
  EXPECT_EQ(parts(f, all.of(5)), 3u);
  EXPECT_EQ(parts(f, all.of(5) + 1), 2u);
  EXPECT_EQ(parts(f, UINT64_MAX), 0u);
  f.for_messages -= 1;
  EXPECT_EQ(parts(f, 0), 7u);
  f.for_messages = all.of(1) + 32 * kMiB - 1;
  EXPECT_EQ(parts(f, 0), 0u);
  f = plenty(), f.memory = 2 * all.of(6);
  EXPECT_EQ(parts(f, 0), 6u);
  f = plenty(), f.available = 4 * all.of(4);  // two ranks, half of it
  EXPECT_EQ(parts(f, 0), 4u);
}

TEST(StreamSizes, OnlySharesThatComeAgainAreKept) {
  StreamFacts f = plenty();
  f.share.end_epoch = 1;
  EXPECT_EQ(what_to_keep(f, 0).parts, 0u);
  f.share.end_epoch = 2;
  EXPECT_EQ(what_to_keep(f, 0).parts, kKeptParts);
  f.share.epoch = 1;
  EXPECT_EQ(what_to_keep(f, 0).parts, 0u) << "the last epoch";
  f.share.epoch = 2;
  EXPECT_EQ(what_to_keep(f, 0).parts, 0u) << "all has been read";
  f.share.epoch = 0;
  f.share.across_epochs = 1;
  EXPECT_EQ(what_to_keep(f, 0).parts, kKeptParts) << "8 divides the number of records";
  f.records += 1;
  EXPECT_EQ(what_to_keep(f, 0).parts, 0u);
  f = plenty();
  f.share.kind = LMDBIO_ORDER_SHUFFLE;
  EXPECT_EQ(what_to_keep(f, 0).parts, 0u);
}

TEST(StreamSizes, ARankVotesForWhatCostsLess) {
  StreamFacts f = plenty();
  f.share.kind = LMDBIO_ORDER_SHUFFLE;
  f.records = 1'000'000, f.record_bytes = 100'000;
  f.available = 60 * kGiB;  // for a part of the file, not for all of it
  EXPECT_TRUE(votes_to_exchange(f));
  f.caches = false;
  EXPECT_FALSE(votes_to_exchange(f));
}

TEST(StreamSizes, OnlySmallRecordsAreCopiedFromThePageCache) {
  for (const auto& [record_bytes, parts, in_place] : {std::tuple{200u, 8u, false},
                                                      {200u, 1u, false},
                                                      {200u, 0u, true},
                                                      {1023u, 8u, false},
                                                      {1024u, 8u, true},
                                                      {3200u, 8u, true},
                                                      {112640u, 8u, true},
                                                      {112640u, 0u, true}}) {
    StreamFacts f;
    f.record_bytes = record_bytes;
    EXPECT_EQ(reads_in_place(f, {parts, parts}), in_place) << record_bytes << ' ' << parts;
  }
}

TEST(StreamTerms, WhatNoRankIsAgainst) {
  const auto agreed = [](const Votes& a, const Votes& b) { return votes_in(votes_of(a) & votes_of(b)); };
  EXPECT_EQ(agreed({true, true, 8}, {true, true, 5}).kept_parts, 5u);
  EXPECT_EQ(agreed({true, true, 3}, {true, true, 5}).kept_parts, 3u);
  EXPECT_EQ(agreed({true, true, 3}, {true, true, 0}).kept_parts, 0u);
  EXPECT_TRUE(agreed({true, false, 3}, {true, true, 0}).exchanges_scattered);
  EXPECT_FALSE(agreed({true, false, 3}, {true, true, 0}).reads_alone);
  EXPECT_FALSE(agreed({true, true, 3}, {false, true, 0}).exchanges_scattered);
  EXPECT_TRUE(agreed({true, true, 3}, {false, true, 0}).reads_alone);
  const Votes none = votes_in(Terms{}.votes);  // of a rank that has left
  EXPECT_TRUE(none.exchanges_scattered && none.reads_alone && none.kept_parts == kKeptParts);
}

}  // namespace
}  // namespace lmdbio::ranks
