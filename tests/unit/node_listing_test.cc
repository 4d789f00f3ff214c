// The listing of node tables: what is told of processes that live, and of tables that are dead or damaged.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <random>

#include "lmdbio/base/futex.h"
#include "lmdbio/node/listing.h"
#include "tests/support/node_processes.h"

namespace lmdbio::node {
namespace {

constexpr std::uint32_t kTag = 5;

/// The table of that file, if it is listed.
std::optional<ListedTable> listed(const TableIdentity& file) {
  for (const ListedTable& t : list_tables())
    if (t.file && t.file->hash() == file.hash()) return t;
  return {};
}

const ListedProcess* process(const ListedTable& t, pid_t pid) {
  for (const ListedProcess& p : t.processes)
    if (p.pid == static_cast<std::uint32_t>(pid)) return &p;
  return nullptr;
}

/// Of the table that has this number now.
std::optional<SegmentFacts> facts_of(int id) {
  for (const SegmentFacts& s : own_segments())
    if (s.id == id) return s;
  return {};
}

TEST(NodeListing, ProcessesAndWhatTheyHaveDone) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  ASSERT_NE(table, nullptr);
  Other other(file, [](Table& t) {
    ClaimValue value;
    for (std::uint32_t c = 0; c < 3; ++c) {
      ASSERT_TRUE(t.claim(c, kTag, value));
      t.release(c, value, true, 1);
    }
    ASSERT_TRUE(t.claim(3, kTag, value));
    t.found(3, value);
    ASSERT_TRUE(t.claim(4, kTag, value));
    t.release(4, value, false, 1);
    t.note_walk(7, 250);
  });
  ASSERT_TRUE(other.ready());
  const auto t = listed(file);
  ASSERT_TRUE(t);
  EXPECT_EQ(t->file->dev, file.dev);
  EXPECT_EQ(t->file->ino, file.ino);
  EXPECT_EQ(t->file->chunk_bytes, kChunk);
  EXPECT_EQ(t->segment.attached, 2u);
  EXPECT_FALSE(t->dead);
  EXPECT_GE(t->chunks, kLeastChunks);
  ASSERT_EQ(t->processes.size(), 2u);
  const ListedProcess *mine = process(*t, ::getpid()), *theirs = process(*t, other.pid());
  ASSERT_TRUE(mine != nullptr && theirs != nullptr);
  EXPECT_EQ(mine->brought + mine->found + mine->waits + mine->taken_over, 0u);
  EXPECT_EQ(mine->walk.share, 0u);
  EXPECT_EQ(theirs->brought, 3u) << "a failed read brings nothing";
  EXPECT_EQ(theirs->found, 1u);
  EXPECT_EQ(theirs->waits, 0u);
  EXPECT_EQ(theirs->walk.chunk, 7u);
  EXPECT_EQ(theirs->walk.share, 250u);
  EXPECT_LE(theirs->walk_ns, now_ns());
  EXPECT_GE(theirs->walk_ns, now_ns() - 100'000'000'000);
  EXPECT_NE(theirs->life_segment, mine->life_segment);
  EXPECT_EQ(other.end(), 0);
  EXPECT_EQ(listed(file)->processes.size(), 1u) << "it has left";
}

TEST(NodeListing, AKilledProcessIsNotListed) {
  const TableIdentity file = some_file();
  auto table = join(file);
  Other other(file, [](Table&) {}), third(file, [](Table&) {});
  ASSERT_TRUE(table != nullptr && other.ready() && third.ready());
  const pid_t killed = other.pid();
  EXPECT_EQ(listed(file)->processes.size(), 3u);
  (void)other.kill();
  const auto t = listed(file);
  ASSERT_TRUE(t);
  EXPECT_EQ(t->processes.size(), 2u);
  EXPECT_EQ(process(*t, killed), nullptr);
  EXPECT_FALSE(t->dead);
}

TEST(NodeListing, TablesOfKilledProcessesAreListedUntilTheyAreRemoved) {
  const TableIdentity file = some_file();
  const auto living = join(some_file());  // before: a table that is made removes dead ones
  ASSERT_NE(living, nullptr);
  Other other(file, [](Table&) {});
  ASSERT_TRUE(other.ready());
  (void)other.kill();
  for (int i = 0; i < 2; ++i) {
    const auto t = listed(file);
    ASSERT_TRUE(t) << "listing removes nothing";
    EXPECT_TRUE(t->dead);
    EXPECT_EQ(t->segment.attached, 0u) << "listing leaves nothing attached";
    EXPECT_TRUE(t->processes.empty());
  }
  const std::size_t before = tables().size();
  const std::size_t removed = remove_dead_tables();
  EXPECT_GE(removed, 1u);
  EXPECT_EQ(tables().size(), before - removed);
  EXPECT_FALSE(listed(file));
  EXPECT_EQ(remove_dead_tables(), 0u);
}

// Its maker is about to attach it.
TEST(NodeListing, ATableThatIsBeingMadeIsLeftAlone) {
  std::random_device random;
  const auto key = static_cast<key_t>(kKeys | (random() & ~kKeyMask));
  const int id = ::shmget(key, table_bytes(kLeastChunks), IPC_CREAT | IPC_EXCL | 0600);
  ASSERT_GE(id, 0);
  bool seen = false;
  for (const ListedTable& t : list_tables())
    if (t.segment.id == id) {
      seen = true;
      EXPECT_FALSE(t.dead || t.file || !t.processes.empty());
    }
  EXPECT_TRUE(seen);
  (void)remove_dead_tables();
  const auto facts = facts_of(id);
  ASSERT_TRUE(facts) << "not removed";
  EXPECT_FALSE(facts->was_attached);
  ::shmctl(id, IPC_RMID, nullptr);
}

TEST(NodeListing, NothingInATableIsChanged) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  ASSERT_NE(table, nullptr);
  const auto t = listed(file);
  ASSERT_TRUE(t);
  Result<Segment> segment = Segment::open(t->segment.key);
  ASSERT_TRUE(segment);
  const std::vector<std::byte> before(segment.value().data(), segment.value().data() + kClaimsAt);
  (void)list_tables();
  EXPECT_EQ(std::memcmp(before.data(), segment.value().data(), before.size()), 0);
}

TEST(NodeListing, ReadOnlyMeansReadOnly) {
  const TableIdentity file = some_file();
  const auto table = join(file);
  ASSERT_NE(table, nullptr);
  Result<Segment> segment = Segment::open_read_only(listed(file)->segment.id);
  ASSERT_TRUE(segment);
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  EXPECT_EQ(::write(fds[1], "x", 1), 1);
  EXPECT_EQ(::read(fds[0], segment.value().data(), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  ::close(fds[0]);
  ::close(fds[1]);
}

// Whatever is in it, all segments of a table's key and size included: listed, and never believed blindly.
TEST(NodeListing, OverwrittenWithAnything) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20; ++round) {
    const TableIdentity file = some_file();
    const auto table = join(file);
    ASSERT_NE(table, nullptr);
    const auto before = listed(file);
    ASSERT_TRUE(before);
    Result<Segment> segment = Segment::open(before->segment.key);
    ASSERT_TRUE(segment);
    // Odd rounds: the processes stay, with numbers of any kind.
    const std::uint64_t life = reinterpret_cast<const Row*>(segment.value().data() + kRowsAt)->life.load();
    for (std::size_t at = 0; at < kClaimsAt; at += 8) {
      const bool is_life = at >= kRowsAt && (at - kRowsAt) % sizeof(Row) == 0;
      const std::uint64_t bits = is_life && round % 2 != 0 ? life : random();
      std::memcpy(segment.value().data() + at, &bits, 8);
    }
    bool seen = false;
    for (const ListedTable& t : list_tables()) {
      if (t.segment.id != before->segment.id) continue;
      seen = true;
      EXPECT_FALSE(t.file) << "its numbers do not fit each other";
      EXPECT_FALSE(t.dead);
      EXPECT_EQ(t.processes.size(), round % 2 != 0 ? kRows : 0u);
      for (const ListedProcess& p : t.processes) EXPECT_LE(p.walk.share, 1000u);
    }
    EXPECT_TRUE(seen);
    segment.value().remove();
  }
}

}  // namespace
}  // namespace lmdbio::node
