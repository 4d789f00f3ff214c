// The node table between real processes: who claims, who waits, and what becomes of both when one is stopped,
// killed, or finds in the table what nobody wrote there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/node/life.h"
#include "lmdbio/node/listing.h"
#include "lmdbio/node/table.h"
#include "tests/support/node_processes.h"

namespace lmdbio::node {
namespace {

constexpr std::uint32_t kTag = 5;
constexpr std::int64_t kSecond = 1'000'000'000;

TEST(NodeTable, WalksNearTheEndReachTheBeginning) {
  constexpr std::uint64_t kChunks = 33;
  const auto reached = [](std::uint32_t first, std::uint32_t last) {
    std::vector<std::uint32_t> chunks;
    for (std::uint32_t c = 0; c < kChunks; ++c)
      if (reaches(first, last, c, kChunks)) chunks.push_back(c);
    return chunks;
  };
  EXPECT_EQ(reached(1, 0), std::vector<std::uint32_t>()) << "no walk";
  EXPECT_EQ(reached(3, 5), (std::vector<std::uint32_t>{3, 4, 5}));
  EXPECT_EQ(reached(31, 32), (std::vector<std::uint32_t>{31, 32}));
  EXPECT_EQ(reached(31, 31 + kNear), (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 31, 32}));
  EXPECT_EQ(reached(25, 25 + kNear).front(), 0u);
  EXPECT_EQ(reached(24, 24 + kNear).front(), 24u) << "not near the end yet";
  EXPECT_EQ(reached(32, UINT32_MAX).size(), kChunks);
}

TEST(NodeTable, OneForAProcessAndAFile) {
  const TableIdentity file = some_file();
  const auto a = join(file), b = join(file), c = join(some_file());
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(NodeTable, TheLastProcessRemovesIt) {
  const std::size_t before = tables().size();
  const TableIdentity file = some_file();
  auto table = join(file);
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(tables().size(), before + 1);
  Other other(file, [](Table&) {});
  ASSERT_TRUE(other.ready());
  EXPECT_EQ(tables().size(), before + 1);
  table.reset();
  EXPECT_EQ(tables().size(), before + 1) << "another process has it";
  EXPECT_EQ(other.end(), 0);
  EXPECT_EQ(tables().size(), before);
}

TEST(NodeTable, TheLastProcessRemovesItThoughAnotherIsAboutToEnd) {
  const std::size_t before = tables().size();
  const TableIdentity file = some_file();
  auto table = join(file);
  ASSERT_NE(table, nullptr);
  Other other(file, [](Table&) { Table::leave_all(); });  // and has it attached still
  ASSERT_TRUE(other.ready());
  EXPECT_EQ(tables().size(), before + 1);
  table.reset();
  EXPECT_EQ(tables().size(), before);
}

TEST(NodeTable, WhatKilledProcessesLeaveGoesWithTheNextTable) {
  const std::size_t before = tables().size();
  Other other(some_file(), [](Table&) {});
  ASSERT_TRUE(other.ready());
  (void)other.kill();
  EXPECT_EQ(tables().size(), before + 1);
  const auto table = join(some_file());
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(tables().size(), before + 1) << "the new one alone";
}

// Chunk files of a process that has left: others find them, and count them, for a while.
TEST(NodeTable, WhatAProcessLeavesBehindIsFound) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  ASSERT_NE(table, nullptr);
  Other other(file, [](Table& t) {
    ClaimValue value;
    ASSERT_EQ(t.claim_file(5, kTag, value), Look::mine);
    t.release(5, value, true, 1);
    t.note_walk(5, 1000);
    t.note_memory(1000, 3);
  });
  ASSERT_TRUE(other.ready());
  Table::Others others = table->others(false);
  EXPECT_EQ(others.processes, 1u);
  EXPECT_EQ(others.files, 3u);
  EXPECT_EQ(others.least_limit, 1000u);
  EXPECT_EQ(table->use_of_others(5), 1000u);

  table->note_walk(0, 1000);
  EXPECT_EQ(other.end(), 0);
  others = table->others(false);
  EXPECT_EQ(others.processes, 0u);
  EXPECT_EQ(others.files, 3u);
  EXPECT_EQ(others.least_limit, ~std::uint64_t{}) << "its limit was its own";
  EXPECT_LT(others.last, others.first);
  EXPECT_EQ(table->use_of_others(5), 0u);
  ClaimValue value;
  ASSERT_EQ(table->claim_file(5, kTag, value), Look::filled);
  EXPECT_NE(table->claimer_life(value), 0u);

  EXPECT_TRUE(comes_true([&] { return table->others(true).files == 0; })) << "memory is short";
  ASSERT_EQ(table->claim_file(5, kTag, value), Look::filled);
  EXPECT_EQ(table->claimer_life(value), 0u);
}

TEST(NodeTable, WhatWasLeftBehindGoesInTime) {
  const TableIdentity file = some_file();
  Other other(file, [](Table& t) { t.note_walk(0, 1000); });
  ASSERT_TRUE(other.ready());
  auto table = join(file);
  table->note_memory(1000, 1);
  table.reset();  // this process lives on
  EXPECT_FALSE(Table::has_nobodys_files());
  table = join(file);
  EXPECT_EQ(table->others(false).processes, 1u);
  EXPECT_EQ(table->others(false).files, 1u);
  EXPECT_TRUE(comes_true([&] { return table->others(false).files == 0; }));
}

TEST(NodeTable, NothingIsLeftToThoseWhoDoNotWalk) {
  const TableIdentity file = some_file();
  Other other(file, [](Table&) {});
  ASSERT_TRUE(other.ready());
  auto table = join(file);
  table->note_memory(1000, 1);
  table.reset();
  EXPECT_TRUE(Table::has_nobodys_files());
  Table::remove_nobodys_files();
  table = join(file);
  EXPECT_EQ(table->others(false).files, 0u);
}

TEST(NodeTable, TheLastProcessRemovesWhatOthersHaveLeft) {
  const TableIdentity file = some_file();
  auto table = join(file);
  ASSERT_NE(table, nullptr);
  table->note_walk(0, 1000);
  for (const std::uint32_t files : {1u, 0u}) {
    Other other(file, [&](Table& t) { t.note_memory(1000, files); });
    ASSERT_TRUE(other.ready());
    EXPECT_EQ(other.end(), 0);
  }
  EXPECT_EQ(table->others(false).files, 1u);
  table.reset();
  EXPECT_TRUE(Table::has_nobodys_files());
  Table::remove_nobodys_files();
  EXPECT_FALSE(Table::has_nobodys_files());
  table = join(file);
  EXPECT_EQ(table->others(false).files, 0u);
  table.reset();
  EXPECT_FALSE(Table::has_nobodys_files()) << "nothing was left";
}

// A process that is killed while it joins its first table has not marked yet as to be removed what tells that
// it lives.
TEST(NodeTable, WhatTellsThatAKilledProcessLivedGoesToo) {
  const auto exists = [](int id) {
    for (const SegmentFacts& s : own_segments())
      if (s.id == id) return true;
    return false;
  };
  const int id = ::shmget(IPC_PRIVATE, kLifeBytes, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  const int foreign = ::shmget(IPC_PRIVATE, kLifeBytes + 1, IPC_CREAT | 0600);
  ASSERT_GE(foreign, 0);
  (void)remove_dead_tables();
  EXPECT_TRUE(exists(id)) << "it may be about to be attached";
  for (const int at : {id, foreign}) {
    void* const memory = ::shmat(at, nullptr, 0);
    ASSERT_NE(memory, reinterpret_cast<void*>(-1));
    (void)remove_dead_tables();
    EXPECT_TRUE(exists(at));
    EXPECT_EQ(::shmdt(memory), 0);
  }
  const auto table = join(some_file());
  ASSERT_NE(table, nullptr);
  EXPECT_FALSE(exists(id));
  EXPECT_TRUE(exists(foreign)) << "somebody else's";
  EXPECT_EQ(::shmctl(foreign, IPC_RMID, nullptr), 0);
}

TEST(NodeTable, OneBringsAndAnotherWaits) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  ASSERT_NE(table, nullptr);
  ClaimValue theirs;
  Other other(
      file, [&](Table& t) { ASSERT_TRUE(t.claim(3, kTag, theirs)); },
      [&](Table& t) {
        ASSERT_TRUE(comes_true([] { return is_asleep(::getppid()); }));
        t.release(3, theirs, true, 1);
      });
  ASSERT_TRUE(other.ready());
  ClaimValue value;
  EXPECT_FALSE(table->claim(3, kTag, value));
  EXPECT_TRUE(table->claim(4, kTag, value));
  table->release(4, value, true, 1);
  other.go_on();
  EXPECT_EQ(table->wait(3, kTag), Ended::brought);
  EXPECT_EQ(table->wait(3, kTag), Ended::brought) << "at once";
  EXPECT_EQ(other.end(), 0);
  EXPECT_TRUE(table->claim(3, kTag, value)) << "it may have gone since";
}

TEST(NodeTable, AReadThatFailsIsForTheWaiter) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  ClaimValue theirs, value;
  Other other(
      file, [&](Table& t) { ASSERT_TRUE(t.claim(0, kTag, theirs)); },
      [&](Table& t) { t.release(0, theirs, false, 1); });
  ASSERT_TRUE(other.ready());
  EXPECT_FALSE(table->claim(0, kTag, value));
  other.go_on();
  EXPECT_EQ(table->wait(0, kTag), Ended::given_up);
  EXPECT_TRUE(table->claim(0, kTag, value));
}

TEST(NodeTable, ClaimsOfADeadProcessAreVoid) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  const auto claims_two = [](Table& t) {
    ClaimValue value;
    ASSERT_TRUE(t.claim(0, kTag, value));
    ASSERT_TRUE(t.claim(1, kTag, value));
  };
  Other other(file, claims_two);
  ASSERT_TRUE(other.ready());
  ClaimValue value;
  EXPECT_FALSE(table->claim(0, kTag, value));
  (void)other.kill();
  EXPECT_EQ(table->wait(0, kTag), Ended::given_up);
  EXPECT_TRUE(table->claim(0, kTag, value));
  // Another process gets its row, and is not taken for it.
  Other third(file, [](Table&) {});
  ASSERT_TRUE(third.ready());
  EXPECT_TRUE(table->claim(1, kTag, value));
}

// A child has the memory of its parent's claims, and none of the table.
TEST(NodeTable, AClaimEndsWithItsProcessThoughAChildLives) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  Other other(file, [&](Table& t) {
    ClaimValue value;
    ASSERT_TRUE(t.claim(0, kTag, value));
    if (::fork() == 0) {  // lives on until the test has ended
      char c;
      ::close(pipe_fds[1]);
      (void)!::read(pipe_fds[0], &c, 1);
      ::_exit(0);
    }
  });
  ASSERT_TRUE(other.ready());
  (void)other.kill();
  ClaimValue value;
  EXPECT_TRUE(table->claim(0, kTag, value));
  ::close(pipe_fds[1]);
  ::close(pipe_fds[0]);
}

TEST(NodeTable, AStoppedProcessKeepsNobodyForLong) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  Other other(file, [](Table& t) {
    ClaimValue value;
    for (std::uint32_t c = 0; c < 8; ++c) ASSERT_TRUE(t.claim(c, kTag, value));
  });
  ASSERT_TRUE(other.ready());
  other.signal(SIGSTOP);
  const std::int64_t start = now_ns();
  EXPECT_EQ(table->wait(0, kTag), Ended::given_up);
  EXPECT_LT(now_ns() - start, 30 * kSecond) << "ever";
  ClaimValue value;
  for (std::uint32_t c = 0; c < 8; ++c) EXPECT_TRUE(table->claim(c, kTag, value)) << "no further wait: " << c;
  other.signal(SIGCONT);
  EXPECT_EQ(other.end(), 0);
}

TEST(NodeTable, WhoNeverReleasesIsWaitedForOnceThoughHeGoesOn) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  Other other(
      file,
      [](Table& t) {
        ClaimValue value;
        ASSERT_TRUE(t.claim(0, kTag, value));
      },
      [](Table& t) {  // claims and releases others, for longer than anybody waits
        for (int i = 0; i < 3000; ++i) {
          ClaimValue value;
          if (t.claim(1, kTag, value)) t.release(1, value, true, 1);
          ::usleep(1000);
        }
      });
  ASSERT_TRUE(other.ready());
  other.go_on();
  EXPECT_EQ(table->wait(0, kTag), Ended::given_up);
  ClaimValue value;
  EXPECT_TRUE(table->claim(0, kTag, value));
  (void)other.kill();
}

TEST(NodeTable, WhatWalksOfOthersUse) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  Other near(file, [](Table&t) { t.note_walk(100, 250); }), too(file, [](Table&t) { t.note_walk(90, 125); }),
      far(file, [](Table&t) { t.note_walk(5000, 1000); });
  ASSERT_TRUE(near.ready() && too.ready() && far.ready());
  table->note_walk(100, 1000);
  EXPECT_EQ(table->use_of_others(110), 375u) << "its own is not another's";
  EXPECT_EQ(table->use_of_others(5001), 1000u);
  EXPECT_EQ(table->use_of_others(2000), 0u);
  EXPECT_EQ(near.end(), 0);
  EXPECT_EQ(table->use_of_others(110), 125u);
}

TEST(NodeTable, ChunksBeyondItAreEverybodys) {
  const auto table = join(some_file());
  ClaimValue value;
  EXPECT_TRUE(table->claim(~0u, kTag, value));
  table->release(~0u, value, true, 1);
  EXPECT_EQ(table->wait(~0u, kTag), Ended::given_up);
}

// Whatever is in it: no call hangs or fails otherwise.
TEST(NodeTable, OverwrittenWithAnything) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    const TableIdentity file = some_file();
    const auto table = join(file);
    ASSERT_NE(table, nullptr);
    const std::vector<SegmentFacts> all = tables();
    for (const SegmentFacts& s : all) {
      if (s.attached == 0) continue;
      Result<Segment> segment = Segment::open(s.key);
      ASSERT_TRUE(segment);
      for (std::size_t at = 0; at + 8 <= segment.value().size() && at < kClaimsAt + 4096; at += 8) {
        std::uint64_t bits = random();
        if (at >= kClaimsAt && round % 2 != 0)
          bits = std::uint64_t{kTag} << 32 | (bits & 0xffff'fffc) | 1;  // claimed
        std::memcpy(segment.value().data() + at, &bits, 8);
      }
    }
    for (std::uint32_t c = 0; c < 64; ++c) {
      ClaimValue value;
      const std::uint32_t tag = c % 2 != 0 ? kTag : 0;
      if (!table->claim(c, tag, value)) (void)table->wait(c, tag);
      table->release(c, value, true, 1);
      table->note_walk(c, 100);
      (void)table->use_of_others(c);
    }
    (void)join(file);
  }
}

TEST(NodeTable, AKeyThatIsInUseForSomethingElse) {
  const TableIdentity file = some_file();
  auto table = join(file);
  ASSERT_NE(table, nullptr);
  const std::vector<SegmentFacts> all = tables();
  key_t key = 0;
  for (const SegmentFacts& s : all)
    if (s.attached == 1) key = s.key;
  table.reset();
  Result<Segment> squatter = Segment::make(key, 100);
  ASSERT_TRUE(squatter);
  const auto elsewhere = join(file);
  ASSERT_NE(elsewhere, nullptr);
  Other other(file, [](Table& t) {
    ClaimValue value;
    ASSERT_TRUE(t.claim(0, kTag, value));
  });
  ASSERT_TRUE(other.ready());
  ClaimValue value;
  EXPECT_FALSE(elsewhere->claim(0, kTag, value)) << "both found the same one";
  squatter.value().remove();
}

// Another user has made it, for everybody.
TEST(NodeTable, AKeyThatAnotherUserHasTaken) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const TableIdentity file = some_file();
  auto table = join(file);
  ASSERT_NE(table, nullptr);
  key_t key = 0;
  for (const SegmentFacts& s : tables())
    if (s.attached == 1) key = s.key;
  table.reset();
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::seteuid(kNobody), 0);
  const int id = ::shmget(key, table_bytes(kLeastChunks), IPC_CREAT | IPC_EXCL | 0666);
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_GE(id, 0);
  EXPECT_EQ(Segment::open(key).error().raw(), EACCES);
  table = join(file);
  EXPECT_NE(table, nullptr) << "under another key";
  ::shmctl(id, IPC_RMID, nullptr);
}

}  // namespace
}  // namespace lmdbio::node
