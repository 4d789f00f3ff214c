// The resident chunks of the process: memory for them, what is evicted for whom, failures, forked children.
// Nothing is read and no thread runs: the test brings the chunks.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lmdbio/window/chunk_cache.h"
#include "tests/support/ahead_file.h"
#include "tests/support/child.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/scripted_source.h"

namespace lmdbio::window {
namespace {

using testing::AheadFile;
using testing::kAheadChunk;
using testing::ScriptedSource;
using testing::SourceScript;

/// Four chunks of 2 MiB.
constexpr std::uint64_t kLimit = std::uint64_t{8} << 20;
constexpr std::size_t kChunks = 5;
/// A resident chunk has the file's bytes with this one flipped in, so that both can be told apart.
constexpr std::byte kMark{0x55};
const bool set = testing::script_all_reads("8M");

/// The plans of walks, as the test wants them.
class FixedPlans final : public ChunkPlans {
 public:
  struct Planned {
    bool awaited = false;
    std::uint64_t position = 0;
  };
  std::map<std::uint32_t, Planned> planned;
  std::uint64_t now = 0;
  std::vector<std::uint32_t> went;

  bool is_planned(const WindowFile&, ChunkIndex chunk) const noexcept override {
    return planned.count(raw(chunk)) != 0;
  }
  void look_up(const WindowFile&, ChunkIndex chunk, EvictionFacts& out) const noexcept override {
    const auto at = planned.find(raw(chunk));
    out.planned = at != planned.end();
    if (!out.planned) return;
    out.awaited = at->second.awaited;
    out.position = at->second.position;
  }
  std::uint64_t clock() const noexcept override { return now; }
  void chunk_went(WindowFile&, ChunkIndex chunk) noexcept override { went.push_back(raw(chunk)); }
};

class ChunkCacheTest : public ::testing::Test {
 protected:
  explicit ChunkCacheTest(bool anonymous = false)
      : file_(kChunks * kAheadChunk, anonymous), calls_(window_calls()) {
    window_file().source = std::make_unique<ScriptedSource>(script_);
    chunks_.files().push_back(&window_file());
  }
  ~ChunkCacheTest() override {
    window_calls() = calls_;
    EXPECT_TRUE(chunks_.give_all_back(window_file()));
  }
  void SetUp() override {
    ASSERT_TRUE(set);
    ASSERT_EQ(chunks_.chunk_bytes(), kAheadChunk);
    ASSERT_EQ(budget().limit(), kLimit);
  }

  WindowFile& window_file() { return *file_.window_file(); }
  gather::MemoryBudget& budget() { return chunks_.budget(); }
  std::uint64_t used() { return budget().used(gather::MemoryUse::chunks); }
  static ChunkIndex at(std::uint32_t chunk) { return ChunkIndex{chunk}; }

  Staging staged(std::uint32_t chunk) {
    Staging s = std::move(Staging::make(kAheadChunk).value());
    fill(s, chunk);
    return s;
  }
  void fill(Staging& s, std::uint32_t chunk) {
    ASSERT_EQ(::pread(file_.fd(), s.data(), kAheadChunk, static_cast<off_t>(chunk * kAheadChunk)),
              static_cast<ssize_t>(kAheadChunk));
    s.data()[0] ^= kMark;
  }
  bool finish(std::uint32_t chunk, bool good = true, bool named = false) {
    Staging s = staged(chunk);
    std::optional<node::ChunkName> name;
    if (named) name = node::ChunkName{1, {2, 3}, chunk};
    return chunks_.finish(window_file(), at(chunk), window_file().table.start(at(chunk)), good, s, name);
  }
  /// One tick later than the chunk before.
  bool bring(std::uint32_t chunk, bool urgent = false, bool named = false) {
    ++plans_.now;
    return chunks_.take_memory(window_file(), urgent) && finish(chunk, true, named);
  }
  void bring_four() {
    for (std::uint32_t c = 0; c < 4; ++c) ASSERT_TRUE(bring(c));
    ASSERT_EQ(used(), kLimit);
  }
  void plan_all() {
    for (std::uint32_t c = 0; c < 4; ++c) plans_.planned[c] = {c == 0, c};
  }
  /// The window has the chunk that was published, not the file's bytes.
  bool is_published(std::uint32_t chunk) {
    const std::byte here = file_.window()->base()[chunk * kAheadChunk];
    EXPECT_EQ(std::memcmp(file_.window()->base() + chunk * kAheadChunk + 1,
                          testing::pattern(4095, chunk * kAheadChunk + 1).data(), 4095),
              0);
    return here == (testing::byte_at(chunk * kAheadChunk) ^ kMark);
  }
  std::set<std::uint32_t> residents() {
    std::set<std::uint32_t> out;
    for (std::uint32_t c = 0; c < kChunks; ++c) {
      if (window_file().resident_now(at(c))) out.insert(c);
      EXPECT_EQ(window_file().residents.find(at(c)) != nullptr, window_file().resident_now(at(c))) << c;
      EXPECT_EQ(is_published(c), window_file().resident_now(at(c))) << c;
    }
    return out;
  }
  using Chunks = std::set<std::uint32_t>;
  static void* fails(void*, std::size_t, void*) noexcept { return errno = ENOMEM, MAP_FAILED; }

  SourceScript script_;
  FixedPlans plans_;
  ChunkCache chunks_{plans_};
  AheadFile file_;
  const WindowCalls calls_;
};

TEST_F(ChunkCacheTest, APublishedChunkIsThereAndCounted) {
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  EXPECT_EQ(used(), kAheadChunk);
  EXPECT_TRUE(budget().has_users(gather::MemoryUse::chunks));
  const std::uint64_t vmas = budget().vmas();
  ASSERT_TRUE(finish(2));
  EXPECT_EQ(residents(), Chunks{2});
  EXPECT_EQ(used(), kAheadChunk) << "counted once";
  EXPECT_EQ(budget().vmas(), vmas + 2);
  EXPECT_EQ(window_file().stats.published, 1u);
  EXPECT_EQ(window_file().stats.most_resident, 1u);
  ASSERT_TRUE(chunks_.give_all_back(window_file()));
  EXPECT_EQ(residents(), Chunks{});
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(budget().vmas(), vmas);
  EXPECT_EQ(plans_.went, std::vector<std::uint32_t>{2});
  chunks_.walks_ended();
  EXPECT_FALSE(budget().has_users(gather::MemoryUse::chunks));
}

TEST_F(ChunkCacheTest, AFailedReadLeavesNothing) {
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  EXPECT_FALSE(finish(2, false, true));
  EXPECT_EQ(residents(), Chunks{});
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(script_.dropped, 1u) << "its name is not kept";
  EXPECT_TRUE(bring(2)) << "it may be read again";
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  chunks_.return_memory(window_file());
  EXPECT_EQ(used(), kAheadChunk);
}

TEST_F(ChunkCacheTest, AChunkOfAClosedFileIsNotPublished) {
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  const unsigned users = window_file().users.exchange(0);
  EXPECT_FALSE(finish(2));
  window_file().users = users;
  EXPECT_EQ(residents(), Chunks{});
  EXPECT_EQ(used(), 0u);
}

TEST_F(ChunkCacheTest, AWindowThatTakesNoMemoryLeavesNothing) {
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  window_calls().mremap = fails;
  EXPECT_FALSE(finish(2));
  EXPECT_EQ(residents(), Chunks{});
  EXPECT_EQ(used(), 0u);
}

TEST_F(ChunkCacheTest, WhenMemoryIsFullTheOldestUnusedChunkGoes) {
  bring_four();
  plans_.now = 100;
  chunks_.note_lookups(window_file(), at(0));
  ++plans_.now;
  ASSERT_TRUE(bring(4));
  EXPECT_EQ(residents(), (Chunks{0, 2, 3, 4})) << "lookups use chunk 0";
  EXPECT_EQ(plans_.went, std::vector<std::uint32_t>{1});
  EXPECT_EQ(window_file().stats.reclaimed, 1u);
  EXPECT_EQ(window_file().stats.wasted, kAheadChunk);
  EXPECT_EQ(window_file().stats.most_resident, 4u);
  EXPECT_EQ(used(), kLimit);
  chunks_.note_lookups(window_file(), at(2));
  chunks_.note_lookups(window_file(), at(3));
  chunks_.note_lookups(window_file(), at(4));
  plans_.now += 100;
  ASSERT_TRUE(bring(1));
  EXPECT_EQ(window_file().stats.wasted, kAheadChunk) << "the chunk that went was used";
}

TEST_F(ChunkCacheTest, PlannedChunksGoOnlyForAThreadThatWaits) {
  bring_four();
  plan_all();
  EXPECT_EQ(chunks_.take_shortage(), 0u);
  EXPECT_FALSE(chunks_.take_memory(window_file(), false));
  EXPECT_EQ(chunks_.take_shortage(), kAheadChunk);
  EXPECT_EQ(chunks_.take_shortage(), 0u) << "told once";
  EXPECT_EQ(residents().size(), 4u);
  ASSERT_TRUE(chunks_.take_memory(window_file(), true));
  EXPECT_EQ(residents(), (Chunks{0, 1, 2})) << "the last of the plan";
  EXPECT_EQ(window_file().stats.stole, 1u);
  plans_.planned = {{0, {false, 9}}, {1, {true, 8}}, {2, {false, 7}}};
  ASSERT_TRUE(chunks_.take_memory(window_file(), true));
  EXPECT_EQ(residents(), (Chunks{1, 2}));
  ASSERT_TRUE(chunks_.take_memory(window_file(), true));
  EXPECT_EQ(residents(), Chunks{1}) << "no walk waits for chunk 2";
  for (int i = 0; i < 3; ++i) chunks_.return_memory(window_file());
}

TEST_F(ChunkCacheTest, NoChunksWhileAReaderWaits) {
  ASSERT_TRUE(bring(0));
  budget().begin_wait();
  EXPECT_FALSE(chunks_.take_memory(window_file(), true));
  EXPECT_EQ(chunks_.take_shortage(), kAheadChunk);
  EXPECT_FALSE(chunks_.reserve(gather::MemoryUse::prefetch, 1)) << "nor other read-ahead";
  EXPECT_EQ(residents(), Chunks{0}) << "what is evicted is the reader's";
  budget().end_wait();
  EXPECT_TRUE(bring(1));
}

TEST_F(ChunkCacheTest, AChunkThatAWalkWaitedForIsUsed) {
  plans_.planned[2] = {true, 0};
  ASSERT_TRUE(bring(2));
  plans_.planned.clear();
  ASSERT_TRUE(chunks_.give_all_back(window_file()));
  EXPECT_EQ(window_file().stats.wasted, 0u);
}

TEST_F(ChunkCacheTest, ChunksThatCannotBeGivenBackStay) {
  bring_four();
  window_calls().duplicate = fails;
  EXPECT_FALSE(chunks_.take_memory(window_file(), true));
  EXPECT_FALSE(chunks_.give_all_back(window_file()));
  EXPECT_EQ(chunks_.advance(window_file(), 2).error().raw(), ENOMEM);
  EXPECT_EQ(residents().size(), 4u);
  EXPECT_EQ(used(), kLimit);
  window_calls() = calls_;
  EXPECT_EQ(chunks_.advance(window_file(), 2).value(), 4u);
  EXPECT_EQ(residents(), Chunks{});
}

TEST_F(ChunkCacheTest, ChunksOfALargeFileGoOnceTheyWerePassed) {
  window_file().used_bytes = std::uint64_t{128} << 20;
  ASSERT_TRUE(bring(0, false, true));
  ASSERT_TRUE(bring(1));
  plans_.now = window_file().residents.oldest()->left + kKeptBehind - 1;
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  EXPECT_EQ(residents(), (Chunks{0, 1})) << "passed a moment ago";
  ++plans_.now;
  plans_.planned[0] = {};
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  EXPECT_EQ(residents(), (Chunks{0, 1})) << "a walk comes to it";
  plans_.planned.clear();
  chunks_.return_memory(window_file());
  script_.to_come = 0;
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  EXPECT_EQ(residents(), (Chunks{0, 1})) << "a walk of another process comes to it";
  script_.to_come = UINT32_MAX;
  chunks_.return_memory(window_file());
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  EXPECT_EQ(residents(), Chunks{1}) << "though there is room";
  for (int i = 0; i < 2; ++i) chunks_.return_memory(window_file());
}

TEST_F(ChunkCacheTest, ANewSnapshotGivesAllChunksBack) {
  EXPECT_EQ(chunks_.advance(window_file(), 1).value(), 0u) << "not a new one";
  ASSERT_TRUE(bring(0));
  ASSERT_TRUE(bring(1, false, true));
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  const ChunkTable::Generation old = window_file().table.start(at(2));
  EXPECT_EQ(chunks_.advance(window_file(), 2).value(), 2u);
  EXPECT_EQ(residents(), Chunks{});
  EXPECT_EQ(used(), kAheadChunk) << "of the read that is under way";
  EXPECT_EQ(window_file().stats.reclaimed, 2u);
  EXPECT_EQ(script_.dropped, 1u);
  Staging s = staged(2);
  EXPECT_FALSE(chunks_.finish(window_file(), at(2), old, true, s)) << "its bytes may be too old";
  EXPECT_FALSE(s);
  EXPECT_EQ(residents(), Chunks{});
  EXPECT_EQ(used(), 0u);
}

TEST_F(ChunkCacheTest, OtherUsesEvictChunksAsUrgentlyAsTheySay) {
  bring_four();
  EXPECT_TRUE(chunks_.reserve(gather::MemoryUse::readers, kAheadChunk)) << "one chunk is in no plan";
  EXPECT_EQ(residents().size(), 3u);
  plan_all();
  EXPECT_FALSE(chunks_.reserve(gather::MemoryUse::readers, kAheadChunk));
  EXPECT_EQ(residents().size(), 3u);
  EXPECT_TRUE(chunks_.reserve(gather::MemoryUse::readers, 2 * kAheadChunk, gather::Urgency::needed));
  EXPECT_EQ(residents().size(), 1u);
  EXPECT_FALSE(chunks_.reserve(gather::MemoryUse::readers, kAheadChunk, gather::Urgency::needed))
      << "guaranteed to walks";
  EXPECT_EQ(residents().size(), 1u);
  EXPECT_TRUE(chunks_.reserve(gather::MemoryUse::readers, kAheadChunk, gather::Urgency::last));
  EXPECT_EQ(residents().size(), 0u);
  EXPECT_EQ(budget().used(gather::MemoryUse::readers), kLimit);
  EXPECT_FALSE(chunks_.reserve(gather::MemoryUse::readers, 1, gather::Urgency::last));
  chunks_.give_back(gather::MemoryUse::readers, kAheadChunk);
  chunks_.give_back(gather::MemoryUse::readers, 3 * kAheadChunk);
  EXPECT_EQ(budget().used(), 0u);
}

TEST_F(ChunkCacheTest, ARequestThatCannotSucceedEvictsNothing) {
  bring_four();
  EXPECT_FALSE(chunks_.reserve(gather::MemoryUse::readers, kLimit + 1, gather::Urgency::last));
  EXPECT_FALSE(chunks_.could_take(gather::MemoryUse::readers, kLimit + 1, 0));
  EXPECT_EQ(residents().size(), 4u);
  EXPECT_TRUE(chunks_.could_take(gather::MemoryUse::readers, kLimit, 0));
  EXPECT_EQ(chunks_.room_for_needs(), kLimit);
  ASSERT_TRUE(chunks_.reserve(gather::MemoryUse::readers, kAheadChunk));
  EXPECT_EQ(chunks_.room_for_needs(), kLimit - kAheadChunk);
  EXPECT_FALSE(chunks_.could_take(gather::MemoryUse::readers, kLimit, 0));
  EXPECT_TRUE(chunks_.could_take(gather::MemoryUse::readers, kLimit, kAheadChunk))
      << "readers give theirs back";
  chunks_.give_back(gather::MemoryUse::readers, kAheadChunk);
}

TEST_F(ChunkCacheTest, ReadAheadOfOtherUsesStaysWithinTheirShare) {
  EXPECT_FALSE(chunks_.reserve(gather::MemoryUse::index, kLimit / 4 + 1));
  EXPECT_TRUE(chunks_.reserve(gather::MemoryUse::index, kLimit / 4));
  EXPECT_FALSE(chunks_.reserve(gather::MemoryUse::index, 1));
  EXPECT_TRUE(chunks_.reserve(gather::MemoryUse::index, 1, gather::Urgency::needed));
  chunks_.give_back(gather::MemoryUse::index, kLimit / 4 + 1);
  EXPECT_EQ(budget().used(), 0u);
}

TEST_F(ChunkCacheTest, ItShrinksWhenTheProcessUsesTooMuch) {
  bring_four();
  EXPECT_FALSE(chunks_.shrink());
  EXPECT_EQ(residents().size(), 4u) << "there is no need to";
  budget().take(gather::MemoryUse::readers, kAheadChunk + 1, 0);
  EXPECT_FALSE(chunks_.shrink());
  EXPECT_EQ(residents().size(), 2u);
  plan_all();
  budget().take(gather::MemoryUse::readers, 3 * kAheadChunk, 0);
  EXPECT_FALSE(chunks_.shrink());
  EXPECT_EQ(residents().size(), 1u) << "the part that is guaranteed to walks stays";
  budget().give_back(gather::MemoryUse::readers, 4 * kAheadChunk + 1, 0);
}

TEST_F(ChunkCacheTest, ChunksInChunkFilesAreFound) {
  EXPECT_FALSE(chunks_.keeps_shared(false));
  ASSERT_TRUE(bring(0));
  EXPECT_FALSE(chunks_.keeps_shared(false));
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  Mapping shared = std::move(Mapping::reserve(kAheadChunk, kHugePage).value());
  ASSERT_NE(::mmap(shared.data(), kAheadChunk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED,
                   -1, 0),
            MAP_FAILED);
  Staging s = Staging::adopt(std::move(shared));
  fill(s, 3);
  plans_.planned[3] = {true, 0};
  ASSERT_TRUE(chunks_.finish(window_file(), at(3), window_file().table.start(at(3)), true, s));
  EXPECT_TRUE(chunks_.keeps_shared(false));
  EXPECT_FALSE(chunks_.keeps_shared(true)) << "also planned ones";
  EXPECT_EQ(residents(), Chunks{0});
}

// While the chunk files of the node are full, a process evicts of its own what no other process will reach.
TEST_F(ChunkCacheTest, ItMakesRoomForChunksOfOtherProcesses) {
  window_file().shares_chunks = true;
  ASSERT_TRUE(bring(0));
  ASSERT_TRUE(bring(1, false, true));
  ASSERT_TRUE(bring(2, false, true));
  script_.full = true;
  script_.to_come = 1;
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  EXPECT_EQ(residents(), (Chunks{0, 1})) << "chunk 0 is nobody else's, chunk 1 is to come";
  EXPECT_EQ(script_.dropped, 1u);
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  EXPECT_EQ(residents(), (Chunks{0, 1}));
  chunks_.return_memory(window_file());
  ASSERT_TRUE(chunks_.take_memory(window_file(), true));
  EXPECT_EQ(residents(), Chunks{0}) << "a thread waits";
  EXPECT_EQ(script_.dropped, 2u);
  for (int i = 0; i < 2; ++i) chunks_.return_memory(window_file());
}

TEST_F(ChunkCacheTest, AForkedChildHasTheFileAgainAndNoChunks) {
  ASSERT_TRUE(bring(0));
  ASSERT_TRUE(bring(1, false, true));
  ASSERT_TRUE(chunks_.take_memory(window_file(), false));
  const ChunkTable::Generation reading = window_file().table.start(at(2));
  Staging staging = staged(2);
  const testing::ChildResult child = testing::in_child([&] {
    staging.forget();
    chunks_.after_fork();
    if (!file_.all_right()) return 1;
    if (budget().used() != 0 || budget().vmas() != 0) return 2;
    if (!window_file().residents.empty()) return 3;
    if (window_file().table.state(at(2)) != ChunkState::file) return 4;
    if (script_.dropped != 0) return 5;  // the names are the parent's
    // It has chunks of its own.
    ++plans_.now;
    return bring(2) && is_published(2) && used() == kAheadChunk ? 0 : 6;
  });
  EXPECT_EQ(child.exit_code, 0) << child.err;
  EXPECT_EQ(residents(), (Chunks{0, 1})) << "nothing has changed here";
  EXPECT_TRUE(chunks_.finish(window_file(), at(2), reading, true, staging));
  EXPECT_EQ(residents(), (Chunks{0, 1, 2}));
}

/// A file that cannot be mapped.
class UnmappedChunksTest : public ChunkCacheTest {
 protected:
  UnmappedChunksTest() : ChunkCacheTest(true) {}
};

TEST_F(UnmappedChunksTest, ChunksStayEvenBeyondTheLimit) {
  for (std::uint32_t c = 0; c < kChunks; ++c) {
    ASSERT_TRUE(chunks_.take_memory(window_file(), false));
    EXPECT_EQ(budget().used(gather::MemoryUse::unmapped), c * kAheadChunk) << "counted when it is published";
    ASSERT_TRUE(finish(c));
  }
  EXPECT_EQ(budget().used(gather::MemoryUse::unmapped), kChunks * kAheadChunk);
  EXPECT_EQ(used(), 0u);
  EXPECT_TRUE(budget().over_limit());
  EXPECT_FALSE(chunks_.shrink());
  EXPECT_FALSE(chunks_.reserve(gather::MemoryUse::readers, kAheadChunk));
  EXPECT_EQ(residents().size(), kChunks);
  ASSERT_TRUE(chunks_.empty(window_file()));
  EXPECT_EQ(budget().used(), 0u);
  EXPECT_TRUE(window_file().residents.empty());
}

TEST_F(UnmappedChunksTest, AForkedChildKeepsThem) {
  ASSERT_TRUE(bring(0));
  ASSERT_TRUE(bring(3, false, true));
  const testing::ChildResult child = testing::in_child([&] {
    chunks_.after_fork();
    if (!is_published(0) || !is_published(3)) return 1;
    if (budget().used(gather::MemoryUse::unmapped) != 2 * kAheadChunk) return 2;
    return chunks_.empty(window_file()) && script_.dropped == 0 ? 0 : 3;  // the names are the parent's
  });
  EXPECT_EQ(child.exit_code, 0) << child.err;
}

}  // namespace
}  // namespace lmdbio::window
