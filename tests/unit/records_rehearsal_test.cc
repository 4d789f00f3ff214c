// Batches of new and old samples: what is drawn, and how far ahead.  tests/diff/rehearsal_test.py compares
// random logs with a reference, and rehearsal_draws_test.cc tests how evenly samples are drawn.
#define XXH_INLINE_ALL
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <new>
#include <set>
#include <vector>

#include "lmdbio/records/order.h"
#include "lmdbio/records/rehearsal.h"
#include "tests/support/rng.h"

namespace lmdbio::records {
namespace {

using Numbers = std::vector<std::uint64_t>;

Numbers sequence(std::uint64_t first, std::uint64_t n) {
  Numbers out(n);
  for (std::uint64_t i = 0; i < n; ++i) out[i] = first + i;
  return out;
}

TEST(Rehearsal, WithoutOldSamplesItIsAStream) {
  Rehearsal order({.seed = 3, .fresh = 4});
  std::uint64_t next = 0;
  for (const std::uint64_t n : {10u, 1u, 7u}) EXPECT_EQ(order.arrive(n, {}), std::exchange(next, next + n));
  Numbers all;
  while (order.pending() != 0) {
    const Rehearsal::Batch b = order.next();
    EXPECT_TRUE(b.old.empty());
    EXPECT_EQ(b.fresh.size(), std::min<std::uint64_t>(4, 18 - all.size()));
    all.insert(all.end(), b.fresh.begin(), b.fresh.end());
  }
  EXPECT_EQ(all, sequence(0, 18));
  EXPECT_TRUE(order.next().fresh.empty());
}

TEST(Rehearsal, RecordsOfACommitAreShuffled) {
  Rehearsal order({.seed = 3});
  std::set<Numbers> orders;
  for (unsigned commit = 0; commit < 20; ++commit) {
    (void)order.arrive(30, {});
    Numbers records;
    for (std::uint64_t i = 0; i < 30; ++i) records.push_back(order.record_of(30, i));
    orders.insert(records);
    std::sort(records.begin(), records.end());
    EXPECT_EQ(records, sequence(0, 30));
  }
  EXPECT_EQ(orders.size(), 20u);
}

TEST(Rehearsal, WithoutNewSamplesItIsAShuffle) {
  constexpr std::uint64_t kRecords = 1000, kBatch = 32, kSeed = 42;
  Rehearsal order({.seed = kSeed, .fresh = 0, .old = kBatch, .lag = 4, .kind = BufferKind::all});
  order.start(kRecords, {});
  for (std::uint64_t element = 0; element < 3 * kRecords;) {
    const Rehearsal::Batch b = order.next();
    EXPECT_TRUE(b.fresh.empty());
    ASSERT_EQ(b.old.size(), kBatch);
    for (const std::uint64_t n : b.old) {
      ASSERT_EQ(n, shuffle(kSeed, element / kRecords, kRecords, element % kRecords)) << element;
      ++element;
    }
  }
}

TEST(Rehearsal, DrawsAreMadeLagBatchesAhead) {
  for (const std::uint64_t lag : {0u, 1u, 4u}) {
    Rehearsal order({.seed = 1, .fresh = 10, .old = 100, .lag = lag, .kind = BufferKind::all});
    std::vector<std::size_t> delivered{0};
    for (std::size_t batch = 0; batch < 20; ++batch) {
      (void)order.arrive(10, {});
      ASSERT_EQ(order.upcoming().size(), lag + 1);
      const Numbers known = order.upcoming().front();
      const Rehearsal::Batch b = order.next();
      EXPECT_EQ(b.old, known);
      // All samples that were delivered before the batch `lag` earlier, at most 100.
      const std::size_t there = batch >= lag ? delivered[batch - lag] : 0;
      EXPECT_EQ(b.old.size(), std::min<std::size_t>(100, there)) << batch;
      for (const std::uint64_t n : b.old) EXPECT_LT(n, there);
      delivered.push_back(delivered.back() + b.fresh.size());
    }
  }
}

TEST(Rehearsal, ARingHasTheLastSamples) {
  Rehearsal order({.seed = 1, .fresh = 10, .old = 25, .lag = 0, .kind = BufferKind::ring, .capacity = 25});
  (void)order.arrive(100, {});
  for (std::uint64_t batch = 0; batch < 10; ++batch) {
    Numbers old = order.next().old;
    std::sort(old.begin(), old.end());
    EXPECT_EQ(old, sequence(batch * 10 < 25 ? 0 : batch * 10 - 25, std::min<std::uint64_t>(25, batch * 10)));
  }
}

TEST(Rehearsal, ClassesAreDrawnInTurn) {
  test::Rng rng(5);
  Rehearsal order(
      {.seed = 1, .fresh = 50, .old = 7, .lag = 2, .kind = BufferKind::per_class, .capacity = 20});
  Numbers labels;
  for (unsigned i = 0; i < 5'000; ++i) labels.push_back(i < 5 ? i : rng.below(rng.percent(90) ? 1 : 5));
  std::map<std::uint64_t, std::uint64_t> label_of;
  const std::uint64_t first = order.arrive(labels.size(), labels);
  for (std::uint64_t i = 0; i < labels.size(); ++i)
    label_of[first + i] = labels[order.record_of(labels.size(), i)];
  while (order.pending() != 0) (void)order.next();
  for (unsigned i = 0; i < 3; ++i) (void)order.next();
  std::vector<std::uint64_t> drawn;
  for (unsigned batch = 0; batch < 200; ++batch)
    for (const std::uint64_t n : order.next().old) drawn.push_back(label_of.at(n));
  // A turn has each of the five labels once.  One of the first five draws begins a turn.
  unsigned starts = 0;
  for (std::size_t start = 0; start < 5; ++start) {
    bool all = true;
    for (std::size_t d = start; d + 5 <= drawn.size(); d += 5)
      all = all && std::set<std::uint64_t>(&drawn[d], &drawn[d] + 5).size() == 5;
    starts += all ? 1 : 0;
  }
  EXPECT_EQ(starts, 1u);
}

// Each call must not walk through the whole buffer: that would be over 10^9 steps here.
TEST(Rehearsal, RemovesManySamplesOneAtATime) {
  constexpr std::uint64_t kSamples = 40'000;
  for (const BufferKind kind :
       {BufferKind::reservoir, BufferKind::per_class, BufferKind::ring, BufferKind::all}) {
    Rehearsal order({.seed = 1, .fresh = kSamples, .old = 5, .lag = 1, .kind = kind, .capacity = kSamples});
    (void)order.arrive(2 * kSamples, {});
    (void)order.next();
    Numbers left = sequence(0, 2 * kSamples);
    for (std::uint64_t n = 0; n < 2 * kSamples - 10; ++n) {
      // From both ends of the buffer, and from both ends of the pending samples.
      const std::uint64_t of = n % 4 < 2 ? n / 2 : 2 * kSamples - 1 - n / 2;
      left[of] = 2 * kSamples;
      const RemovedSample gone{of};
      order.remove({&gone, 1});
    }
    std::erase(left, 2 * kSamples);
    EXPECT_EQ(order.live(), left);
  }
}

TEST(Rehearsal, AStateReplacesWhatAnObjectHad) {
  const RehearsalTerms terms{
      .seed = 9, .fresh = 50, .old = 9, .lag = 1, .kind = BufferKind::reservoir, .capacity = 30};
  Rehearsal order(terms);
  (void)order.arrive(100, {});
  (void)order.next();
  const std::string state = order.save();
  const auto goes_on = [](Rehearsal& r) {
    for (std::uint64_t n = 0; n < 20; ++n) {
      const RemovedSample gone{n};
      r.remove({&gone, 1});
      (void)r.next();
    }
    return r.save();
  };
  Rehearsal fresh(terms);
  ASSERT_TRUE(fresh.load(std::as_bytes(std::span(state))));
  const std::string want = goes_on(order);
  EXPECT_EQ(goes_on(fresh), want);
  ASSERT_TRUE(order.load(std::as_bytes(std::span(state))));
  EXPECT_EQ(goes_on(order), want);
}

TEST(Rehearsal, AHugeLagIsRefused) {
  for (const std::uint64_t lag : {Rehearsal::kMostLag + 1, UINT64_MAX})
    EXPECT_THROW(Rehearsal({.seed = 1, .lag = lag}), std::bad_alloc);
  EXPECT_EQ(Rehearsal({.seed = 1, .lag = Rehearsal::kMostLag}).upcoming().size(), Rehearsal::kMostLag + 1);
}

// A run of numbers is two numbers in the state, however long it is.
TEST(Rehearsal, StatesThatNeedTooMuchMemoryAreRefused) {
  const RehearsalTerms terms{.seed = 9, .fresh = 5, .old = 3, .lag = 0, .kind = BufferKind::all};
  Rehearsal order(terms);
  order.start(1000, {});
  (void)order.arrive(1000, {});
  std::string state = order.save();
  EXPECT_TRUE(Rehearsal(terms).load(std::as_bytes(std::span(state)), 2003));
  EXPECT_FALSE(Rehearsal(terms).load(std::as_bytes(std::span(state)), 2002));
  // The same state, but with 2^60 samples in its runs and a valid checksum.
  const auto word = [&](std::size_t i) { return reinterpret_cast<std::uint64_t*>(state.data()) + i; };
  unsigned changed = 0;
  for (std::size_t i = 7; i + 1 < state.size() / 8; ++i) {
    if (*word(i) != 1000 && *word(i) != 2000) continue;
    *word(i) = std::uint64_t{1} << 60;
    ++changed;
  }
  ASSERT_GE(changed, 3u);
  *word(state.size() / 8 - 1) = XXH3_64bits(state.data(), state.size() - 8);
  EXPECT_FALSE(Rehearsal(terms).load(std::as_bytes(std::span(state))));
}

TEST(Rehearsal, DamagedStatesAreRefused) {
  const RehearsalTerms terms{
      .seed = 9, .fresh = 5, .old = 3, .lag = 2, .kind = BufferKind::per_class, .capacity = 8};
  Rehearsal order(terms);
  const Numbers labels{1, 2, 3, 1, 2, 3, 1, 1, 1, 7, 7, 7, 7};
  (void)order.arrive(labels.size(), labels);
  (void)order.next();
  const std::string state = order.save();
  const auto loads = [&](const std::string& s, const RehearsalTerms& of) {
    return Rehearsal(of).load(std::as_bytes(std::span(s)));
  };
  EXPECT_TRUE(loads(state, terms));
  for (std::size_t i = 0; i < state.size(); ++i) {
    std::string other = state;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(loads(other, terms)) << i;
    EXPECT_FALSE(loads(state.substr(0, i), terms)) << i;
  }
  RehearsalTerms others = terms;
  others.old = 4;
  EXPECT_FALSE(loads(state, others));
}

}  // namespace
}  // namespace lmdbio::records
