#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "lmdbio/ahead/lookup_sequence.h"

namespace lmdbio::ahead {
namespace {

/// A tree of three levels: each branch page has kBranch children, each leaf page kLeaf entries.
constexpr std::uint64_t kRoot = 3;
constexpr unsigned kBranch = 5, kLeaf = 7, kRecords = kBranch * kBranch * kLeaf;

void get(LookupSequence& s, std::uint64_t record) {
  const std::uint64_t leaf = record / kLeaf;
  const std::vector<std::uint16_t> taken{static_cast<std::uint16_t>(leaf / kBranch),
                                         static_cast<std::uint16_t>(leaf % kBranch)};
  s.came_to(kRoot, taken, static_cast<unsigned>(record % kLeaf), kLeaf);
}

TEST(LookupSequence, OneAfterTheOther) {
  LookupSequence s;
  for (unsigned i = 0; i < kRecords; ++i) {
    get(s, i);
    EXPECT_EQ(s.is_walk(), i >= LookupSequence::kWalk) << i;
  }
  EXPECT_EQ(s.step(), 1);
  EXPECT_EQ(s.left_in_run(), 0u) << "no end in sight";
}

// From the first entry of one branch page to the last of another the step is not known: the walk goes on all
// the same.
TEST(LookupSequence, Down) {
  LookupSequence s;
  for (unsigned i = 0; i < kRecords; ++i) {
    get(s, kRecords - 1 - i);
    EXPECT_TRUE(i < 5 || s.is_walk()) << i;
  }
  EXPECT_EQ(s.step(), -1);
}

TEST(LookupSequence, EachThird) {
  LookupSequence s;
  unsigned walks = 0;
  for (unsigned i = 0; i < kRecords; i += 3) {
    get(s, i);
    walks += s.is_walk();
  }
  EXPECT_GT(walks, kRecords / 3 - 8);
  EXPECT_EQ(s.step(), 3);
}

TEST(LookupSequence, AtRandomItIsNone) {
  std::mt19937 random(1);
  LookupSequence s;
  unsigned walks = 0;
  for (unsigned i = 0; i < 100000; ++i) {
    get(s, random() % kRecords);
    walks += s.is_walk();
  }
  EXPECT_LT(walks, 100u);
}

TEST(LookupSequence, TheSameAgainAndAgainIsNone) {
  LookupSequence s;
  for (unsigned i = 0; i < 100; ++i) {
    get(s, 17);
    EXPECT_FALSE(s.is_walk());
  }
}

TEST(LookupSequence, ItEndsWhenLookupsGoElsewhere) {
  LookupSequence s;
  for (unsigned i = 0; i < 10; ++i) get(s, i);
  ASSERT_TRUE(s.is_walk());
  for (unsigned i = 1; i <= LookupSequence::kMostStrays; ++i) {
    EXPECT_TRUE(s.is_walk()) << i;
    get(s, i % 2 != 0 ? 100 : 150);
  }
  EXPECT_FALSE(s.is_walk());
}

TEST(LookupSequence, StraysDoNotMoveIt) {
  LookupSequence s;
  for (unsigned i = 0; i < 10; ++i) get(s, i);
  for (unsigned i = 10; i < kRecords - kLeaf; ++i) {
    if (i % 7 == 0) get(s, kRecords - 1);
    get(s, i);
    EXPECT_TRUE(s.is_walk()) << i;
    EXPECT_EQ(s.step(), 1);
  }
  EXPECT_EQ(s.left_in_run(), 0u);
}

TEST(LookupSequence, NearIsWhereItGoesOn) {
  LookupSequence s;
  for (std::uint64_t i = 0; i < 10; ++i) get(s, i);
  const auto near = [&s](std::uint16_t a, std::uint16_t b) {
    const std::uint16_t taken[] = {a, b};
    return s.is_near(kRoot, taken);
  };
  EXPECT_TRUE(near(0, 1) && near(0, 2) && near(0, 0));
  EXPECT_FALSE(near(0, 3) || near(2, 1) || near(4, 4));
}

// A caller that skips as many lookups as are likely to be even meets each jump, but for the first.
TEST(LookupSequence, EvenStepsEndAtAJump) {
  constexpr unsigned kRun = 6, kJump = 4;
  LookupSequence s;
  std::uint64_t skip = 0, skipped = 0;
  for (unsigned run = 0; (run + 1) * (kRun + kJump) < kRecords; ++run) {
    for (unsigned i = 0; i < kRun; ++i) {
      if (skip != 0) {
        --skip;
        ++skipped;
        EXPECT_TRUE(run < 2 || i != 0) << run;
        continue;
      }
      get(s, run * (kRun + kJump) + i);
      skip = s.is_walk() ? s.even_steps_left() : 0;
      s.skip(static_cast<unsigned>(skip));
    }
  }
  EXPECT_GT(skipped, 20u);
}

TEST(LookupSequence, WithoutJumpsMoreAndMoreStepsAreEven) {
  LookupSequence s;
  for (unsigned i = 0; i <= 32; ++i) get(s, i);
  EXPECT_GE(s.even_steps_left(), 8u);
  LookupSequence with_one;
  for (unsigned i = 0; i <= 80; ++i)
    if (i != 6) get(with_one, i);
  EXPECT_GE(with_one.even_steps_left(), 16u) << "a jump at the start is forgotten";
}

TEST(LookupSequence, RunsWithJumps) {
  LookupSequence s;
  constexpr unsigned kRun = 14;
  std::uint64_t at = 0;
  for (unsigned run = 0; run < 20; ++run, at = (at + 90) % (kRecords - kRun)) {
    for (unsigned i = 0; i < kRun; ++i) {
      get(s, at + i);
      EXPECT_TRUE(run == 0 || s.is_walk()) << run << " " << i;
      EXPECT_TRUE(run < 2 || s.left_in_run() <= kRun) << run << " " << i;
      EXPECT_TRUE(run < 5 || i != 2 || s.left_in_run() >= kRun / 2) << run;
    }
  }
}

TEST(LookupSequence, LookupsThatAreNotToldOf) {
  LookupSequence s;
  std::uint64_t at = 0;
  for (unsigned i = 0; i < 6; ++i) get(s, at++);
  for (unsigned i = 0; i < 20; ++i) {
    s.skip(4);
    at += 4;
    get(s, at++);
    EXPECT_TRUE(s.is_walk());
    EXPECT_EQ(s.step(), 1);
  }
}

// In memory few lookups ask: they are many leaf pages apart.
TEST(LookupSequence, FarApart) {
  for (const int by : {1, -1}) {
    LookupSequence s;
    std::int64_t at = by > 0 ? 0 : kRecords - 1;
    for (unsigned i = 0; i < 6; ++i, at += by) get(s, static_cast<std::uint64_t>(at));
    ASSERT_TRUE(s.is_walk());
    for (unsigned i = 0; i < 5; ++i, at += by) {
      s.skip(3 * kLeaf);
      at += by * 3 * static_cast<std::int64_t>(kLeaf);
      get(s, static_cast<std::uint64_t>(at));
      EXPECT_TRUE(s.is_walk());
      EXPECT_EQ(s.step(), by);
    }
    EXPECT_EQ(s.left_in_run(), 0u) << "no jump was seen";
  }
}

TEST(LookupSequence, TheStepOfLookupsThatDoNotAllAsk) {
  LookupSequence s;
  for (std::uint64_t i = 0; i < 12; i += 4) {
    get(s, i);
    s.skip(1);
  }
  EXPECT_EQ(s.step(), 2);
}

TEST(LookupSequence, EachKeyTwice) {
  LookupSequence s;
  for (unsigned i = 0; i < 20; ++i) {
    get(s, i);
    get(s, i);
  }
  EXPECT_TRUE(s.is_walk());
  EXPECT_EQ(s.step(), 1);
}

TEST(LookupSequence, AnotherTreeIsElsewhere) {
  LookupSequence s;
  const std::uint16_t taken[] = {0, 0};
  for (unsigned i = 0; i < 10; ++i) {
    s.came_to(1, taken, i, 100);
    s.came_to(2, taken, i, 100);
  }
  EXPECT_FALSE(s.is_walk());
}

TEST(LookupSequence, ItTurnsRound) {
  LookupSequence s;
  for (unsigned i = 0; i < 60; ++i) get(s, i);
  unsigned walks = 0;
  for (unsigned i = 60; i-- > 0;) {
    get(s, i);
    walks += s.is_walk() && s.step() == -1;
  }
  EXPECT_GT(walks, 40u);
}

TEST(LookupSequence, ATreeOfAnotherDepth) {
  LookupSequence s;
  for (unsigned i = 0; i < 10; ++i) get(s, i);
  s.came_to(kRoot, {}, 3, 10);
  s.came_to(kRoot, {}, 4, 10);
  s.came_to(kRoot, std::vector<std::uint16_t>(64, 1), 4, 10);
  s.forget();
  EXPECT_FALSE(s.is_walk());
}

}  // namespace
}  // namespace lmdbio::ahead
