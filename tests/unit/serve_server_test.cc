// The servers of several nodes in one thread: what their programs get, how often the file system is read, and
// what happens when a server is silent, sees another file, or fails.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/serve/server.h"
#include "tests/support/fake_ranks.h"
#include "tests/support/rng.h"

namespace lmdbio::serve {
namespace {

using node::ServiceRequests;
using test::Rng;

constexpr node::ServedState kState{{11, 12}, 13, 4096, 0};
constexpr const char* kPath = "/shared/data.mdb";

std::int64_t clock_ns = 0;

constexpr std::uint64_t kChunks = 13;
constexpr std::uint64_t kBytes = kChunks * kChunkBytes + 12345;

const std::vector<std::byte>& contents() {
  static const std::vector<std::byte> all = [] {
    std::vector<std::byte> made(kBytes);
    for (std::uint64_t i = 0; i < kBytes; ++i) made[i] = static_cast<std::byte>(i * 40503 >> 7);
    return made;
  }();
  return all;
}

/// A file system with one file, whose reads take as long as chance has it.
class FakeFiles final : public HomeFiles {
 public:
  FakeFiles(std::uint64_t bytes, std::uint64_t seed) : bytes_(bytes), rng_(seed) {}
  std::unique_ptr<HomeFile> open(const std::string& path, const node::ServedState& state) override {
    const bool is_it = path == kPath && state == kState && !is_another;
    ++opens;
    return std::make_unique<File>(*this, is_it ? Status() : Status::from_errno(ESTALE));
  }
  std::uint64_t read = 0, reads = 0, opens = 0;
  bool is_another = false, fails = false, is_outdated = false;
  unsigned slow_turns = 0;  ///< that each read takes; 0: as chance has it
  unsigned ended = 0;       ///< requests of others that have ended

 private:
  struct FakeBlock final : Block {
    FakeBlock(std::uint64_t offset, std::size_t n, unsigned d, bool bad)
        : Block(offset), data(n), delay(d), fails(bad) {
      std::memcpy(data.data(), contents().data() + offset, n);
    }
    bool is_done() const noexcept override { return delay == 0; }
    Status status() const noexcept override { return fails ? Status::from_errno(EIO) : Status(); }
    Bytes bytes() const noexcept override { return data; }
    std::vector<std::byte> data;
    unsigned delay;
    bool fails;
  };
  class File final : public HomeFile {
   public:
    File(FakeFiles& files, Status opened) : files_(files), opened_(opened), turns_(files.rng_.below(9)) {}
    std::optional<Status> opened() noexcept override {
      if (turns_ == 0) return opened_;
      --turns_;
      return {};
    }
    std::uint64_t size() const noexcept override { return files_.bytes_; }
    Result<std::shared_ptr<Block>> read(std::uint64_t offset, std::size_t bytes) noexcept override {
      EXPECT_LE(offset + bytes, files_.bytes_);
      files_.read += bytes;
      ++files_.reads;
      // A slow file system does one read after the other.
      const unsigned turns = files_.slow_turns != 0
                                 ? files_.slow_turns * (1 + static_cast<unsigned>(blocks_.size()))
                                 : 1 + files_.rng_.below(9);
      blocks_.push_back(std::make_shared<FakeBlock>(offset, bytes, turns, files_.fails));
      return std::shared_ptr<Block>(blocks_.back());
    }
    bool start_check() noexcept override {
      is_current_ = !files_.is_outdated;
      return true;
    }
    bool is_busy() const noexcept override { return !blocks_.empty(); }
    bool is_current() noexcept override { return is_current_; }
    bool poll() noexcept override {
      for (const std::shared_ptr<FakeBlock>& b : blocks_)
        if (b->delay != 0) --b->delay;
      return std::erase_if(blocks_, [](const std::shared_ptr<FakeBlock>& b) { return b->is_done(); }) != 0 ||
             std::exchange(files_.ended, 0u) != 0;
    }

   private:
    FakeFiles& files_;
    const Status opened_;
    std::uint64_t turns_;
    bool is_current_ = true;
    std::vector<std::shared_ptr<FakeBlock>> blocks_;
  };
  const std::uint64_t bytes_;
  Rng rng_;
};

/// The programs of a node.
class FakePrograms final : public ServiceRequests {
 public:
  FakePrograms() : paths_(node::kServiceSlots) {}
  /// Asks; the answer is in results() later.  Returns false if all slots are in use.
  bool open(const std::string& path = kPath, const node::ServedState& state = kState) {
    const unsigned slot = free_slot();
    if (slot == node::kServiceSlots) return false;
    paths_[slot] = path;
    asked_.push_back({slot, Kind::open, 0, 0, path.size(), state});
    return true;
  }
  bool read(std::uint64_t offset, std::size_t bytes, std::uint32_t file = 0) {
    const unsigned slot = free_slot();
    if (slot == node::kServiceSlots) return false;
    asked_.push_back({slot, Kind::read, file, offset, bytes, kState});
    return true;
  }
  void show_work() noexcept override { ++shown; }
  std::optional<Request> next() noexcept override {
    if (asked_.empty()) return std::nullopt;
    const Request r = asked_.front();
    asked_.pop_front();
    return r;
  }
  std::string path(const Request& r) const override { return paths_[r.slot]; }
  void finish(const Request& r, std::int64_t result, Bytes got) noexcept override {
    EXPECT_TRUE(used_.contains(r.slot)) << "a request is finished twice";
    used_.erase(r.slot);
    if (r.kind == Kind::read && result > 0 &&
        (got.size() != static_cast<std::size_t>(result) ||
         std::memcmp(got.data(), contents().data() + r.offset, got.size()) != 0))
      ++wrong;
    results[{r.offset, r.bytes}] = result;
    ++finished;
  }
  std::size_t open_requests() const { return used_.size(); }
  std::map<std::pair<std::uint64_t, std::size_t>, std::int64_t> results;
  unsigned wrong = 0, finished = 0, shown = 0;

 private:
  unsigned free_slot() {
    for (unsigned s = 0; s < node::kServiceSlots; ++s)
      if (used_.insert(s).second) return s;
    return node::kServiceSlots;
  }
  std::vector<std::string> paths_;
  std::deque<Request> asked_;
  std::set<unsigned> used_;
};

struct Node {
  Node(ranks::Transport& transport, std::uint64_t bytes, std::uint64_t memory, std::uint64_t seed)
      : files(bytes, seed),
        server(programs, transport, files, {memory, 700'000'000, []() noexcept { return clock_ns; }}) {
    EXPECT_TRUE(server.start().ok());
  }
  FakePrograms programs;
  FakeFiles files;
  Server server;
};

struct Nodes {
  Nodes(unsigned n, std::uint64_t bytes, std::uint64_t memory, std::uint64_t seed) : network(n, seed) {
    for (unsigned i = 0; i < n; ++i)
      all.push_back(std::make_unique<Node>(network.rank(i), bytes, memory, seed + i));
  }
  Node& operator[](unsigned i) { return *all[i]; }
  /// Steps all servers but those that are stopped, until no program waits.
  void run(const std::set<unsigned>& stopped = {}) {
    for (unsigned turns = 0; turns < 60'000; ++turns) {
      bool waits = false;
      for (unsigned i = 0; i < all.size(); ++i) {
        if (!stopped.contains(i)) (void)all[i]->server.step();
        waits = waits || (all[i]->programs.open_requests() != 0 && !stopped.contains(i));
      }
      clock_ns += 100'000;
      if (!waits) return;
    }
    FAIL() << "programs wait for ever";
  }
  void open_everywhere() {
    for (auto& n : all) EXPECT_TRUE(n->programs.open());
    run();
  }
  std::uint64_t read() const {
    std::uint64_t sum = 0;
    for (const auto& n : all) sum += n->files.read;
    return sum;
  }
  unsigned wrong() const {
    unsigned sum = 0;
    for (const auto& n : all) sum += n->programs.wrong;
    return sum;
  }

  test::FakeNetwork network;
  std::vector<std::unique_ptr<Node>> all;
};

/// The program of a node reads the file in pieces, in order.
void read_all(Nodes& nodes, unsigned node, const std::set<unsigned>& stopped = {}) {
  for (std::uint64_t at = 0; at < kBytes; at += node::kServiceBytes) {
    while (!nodes[node].programs.read(at, node::kServiceBytes)) nodes.run(stopped);
  }
  nodes.run(stopped);
}

TEST(ServeHome, IsBalancedAndTheSameEverywhere) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 8u, 4096u}) {
    std::vector<unsigned> chunks(ranks);
    for (std::uint64_t c = 0; c < 5ull * ranks; ++c) ++chunks.at(home_of(kState, c, ranks));
    for (const unsigned n : chunks) EXPECT_EQ(n, 5u);
  }
}

TEST(ServeServer, EachByteIsReadOnce) {
  for (const unsigned n : {2u, 3u, 5u}) {
    Nodes nodes(n, kBytes, std::uint64_t{1} << 30, n);
    nodes.open_everywhere();
    for (unsigned epoch = 0; epoch < 2; ++epoch) {
      for (unsigned i = 0; i < n; ++i)
        for (std::uint64_t at = 0; at < kBytes; at += node::kServiceBytes)
          while (!nodes[i].programs.read(at, node::kServiceBytes)) nodes.run();
      nodes.run();
      EXPECT_EQ(nodes.read(), kBytes);
      EXPECT_EQ(nodes.wrong(), 0u);
    }
    for (unsigned i = 0; i < n; ++i) {
      const node::ServiceCounts& c = nodes[i].server.counts();
      EXPECT_EQ(c.to_programs, 2 * kBytes);
      EXPECT_EQ(c.alone, 0u);
      EXPECT_LE(c.read, kBytes / n + kChunkBytes);
      const std::size_t tail = kBytes % node::kServiceBytes;
      EXPECT_EQ((nodes[i].programs.results[{kBytes - tail, node::kServiceBytes}]),
                static_cast<std::int64_t>(tail));
    }
  }
}

TEST(ServeServer, HomesReadAheadOfWalks) {
  const auto read_of = [](const std::vector<std::uint64_t>& chunks, std::uint64_t memory) {
    Nodes nodes(2, kBytes, memory, 11);
    nodes.open_everywhere();
    for (const std::uint64_t c : chunks) {
      EXPECT_TRUE(nodes[0].programs.read(c * kChunkBytes, 4096));
      nodes.run();
    }
    EXPECT_EQ(nodes.wrong(), 0u);
    return nodes.read() / kChunkBytes;
  };
  std::vector<std::uint64_t> walk(8);
  std::iota(walk.begin(), walk.end(), 0);
  EXPECT_EQ(read_of(walk, std::uint64_t{1} << 30), walk.size() + 4) << "two chunks of each home";
  EXPECT_EQ(read_of(walk, 4 * kChunkBytes), walk.size()) << "homes have no more memory";
  walk.insert(walk.begin(), kChunks);  // the rest of a chunk at the end, before the walk begins
  EXPECT_EQ(read_of(walk, std::uint64_t{1} << 30), 8u + 4) << "an earlier request changes nothing";
  EXPECT_EQ(read_of({1, 11, 3, 8, 0, 5}, std::uint64_t{1} << 30), 6u) << "in no order";
}

TEST(ServeServer, ExtentsInAnyOrder) {
  Nodes nodes(4, kBytes, std::uint64_t{1} << 30, 7);
  nodes.open_everywhere();
  Rng rng(8);
  for (unsigned i = 0; i < 3000; ++i) {
    const std::uint64_t chunk = rng.below(kChunks), at = rng.below(kChunkBytes - 3000);
    while (!nodes[rng.below(4)].programs.read(chunk * kChunkBytes + at, 1 + rng.below(3000))) nodes.run();
  }
  nodes.run();
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_LE(nodes.read(), kBytes);
}

// Without memory for chunks, homes read only what they are asked for.
TEST(ServeServer, SmallRequestsShareMessages) {
  Nodes nodes(2, kBytes, std::uint64_t{1} << 30, 18);
  nodes.open_everywhere();
  std::uint64_t theirs = 0;  // a chunk whose home is node 1
  while (home_of(kState, theirs, 2) != 1) ++theirs;
  const auto read = [&](std::size_t bytes) {
    const std::uint64_t before = nodes.network.messages;
    for (unsigned i = 0; i < 32; ++i)
      EXPECT_TRUE(nodes[0].programs.read(theirs * kChunkBytes + i * bytes, bytes));
    nodes.run();
    return nodes.network.messages - before;
  };
  (void)read(4096);
  EXPECT_EQ(read(64), 2u);                  // 32 questions, 32 answers with their bytes
  EXPECT_EQ(read(kInlineBytes), 12u);       // three of these answers have room in a message
  EXPECT_EQ(read(64u << 10), 2u + 2 + 32);  // at most 1 MiB in a message; bytes in messages of their own
  EXPECT_EQ(nodes.wrong(), 0u);
}

// What a server holds does not grow with the number of nodes, except some bytes for each.
TEST(ServeServer, ManyNodes) {
  constexpr unsigned kNodes = 128;
  Nodes nodes(kNodes, kBytes, std::uint64_t{1} << 30, 19);
  nodes.open_everywhere();
  for (unsigned i = 0; i < kNodes; ++i)
    for (std::uint64_t c = 0; c <= kChunks; ++c)
      EXPECT_TRUE(nodes[i].programs.read((c + i) % (kChunks + 1) * kChunkBytes, 4096));
  nodes.run();
  EXPECT_EQ(nodes.read(), kBytes) << "each chunk once";
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_LE(nodes.network.most_receives, 32u);
  // A question and an answer at most for each pair of a node and a chunk.
  EXPECT_LE(nodes.network.messages, 2 * kNodes * (kChunks + 1));
}

TEST(ServeServer, WithoutMemory) {
  Nodes nodes(3, kBytes, 2 * kChunkBytes, 9);
  nodes.open_everywhere();
  read_all(nodes, 0);
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_LE(nodes.read(), kBytes + 6 * kChunkBytes);
  for (unsigned i = 0; i < 3; ++i) EXPECT_LE(nodes[i].server.counts().kept, 2 * kChunkBytes);
}

TEST(ServeServer, RefusesWhatIsNotThere) {
  Nodes nodes(2, kBytes, std::uint64_t{1} << 30, 10);
  EXPECT_TRUE(nodes[0].programs.read(0, 100));  // of no file
  nodes.run();
  EXPECT_EQ((nodes[0].programs.results[{0, 100}]), -EINVAL);
  nodes[0].programs.results.clear();
  EXPECT_TRUE(nodes[0].programs.open("/another"));
  nodes.run();
  EXPECT_EQ(nodes[0].programs.results.begin()->second, -ENOTSUP);
  nodes.open_everywhere();
  EXPECT_TRUE(nodes[0].programs.read(kBytes + 5 * kChunkBytes, 100));
  EXPECT_TRUE(nodes[0].programs.read(kChunkBytes - 50, 100));
  EXPECT_TRUE(nodes[0].programs.read(5, 0));
  nodes.run();
  EXPECT_EQ((nodes[0].programs.results[{kBytes + 5 * kChunkBytes, 100}]), -EIO);
  EXPECT_EQ((nodes[0].programs.results[{kChunkBytes - 50, 100}]), -EINVAL) << "two chunks";
  EXPECT_EQ((nodes[0].programs.results[{5, 0}]), -EINVAL);
}

TEST(ServeServer, ANodeWithAnotherFileTakesNoPart) {
  Nodes nodes(3, kBytes, std::uint64_t{1} << 30, 11);
  nodes[2].files.is_another = true;
  EXPECT_TRUE(nodes[0].programs.open());
  nodes.run();
  const std::int64_t begun = clock_ns;
  read_all(nodes, 0);
  EXPECT_LT(clock_ns - begun, 700'000'000) << "it says so";
  EXPECT_EQ(nodes[2].files.opens, 1u);
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_EQ(nodes[2].files.read, 0u);
  EXPECT_GE(nodes[0].server.counts().alone, node::kServiceBytes) << "what was asked before the refusal";
  EXPECT_EQ(nodes.read(), kBytes);
  EXPECT_TRUE(nodes[2].programs.open());
  nodes.run();
  EXPECT_EQ(nodes[2].programs.results.begin()->second, -ENOTSUP);
}

TEST(ServeServer, AServerThatStopsCostsOnlyTime) {
  Nodes nodes(3, kBytes, std::uint64_t{1} << 30, 12);
  nodes.open_everywhere();
  const std::int64_t begun = clock_ns;
  read_all(nodes, 0, {2});
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_LT(clock_ns - begun, 2'000'000'000) << "it was asked again and again";
  EXPECT_GT(nodes[0].server.counts().alone, 0u);
  // It wakes up, and answers questions whose slots are used for others by now.
  read_all(nodes, 0);
  clock_ns += 100'000'000'000;
  read_all(nodes, 0);
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_GT(nodes[2].server.counts().to_nodes, 0u);
}

/// Asks the home 0 for the first bytes of its chunks: node 1 for all but the last one, then node 2 for that.
void ask_slow_home(Nodes& nodes) {
  std::vector<std::uint64_t> chunks;
  for (std::uint64_t c = 0; c < kChunks; ++c)
    if (home_of(kState, c, 3) == 0) chunks.push_back(c);
  ASSERT_GE(chunks.size(), 4u);
  for (const std::uint64_t c : chunks) {
    if (c == chunks.back()) {
      for (unsigned turns = 0; turns < 1000; ++turns)
        for (auto& n : nodes.all) (void)n->server.step();
    }
    EXPECT_TRUE(nodes[c == chunks.back() ? 2 : 1].programs.read(c * kChunkBytes, 4096));
  }
  nodes.run();
}

// A home whose file system is slow says that it works, also to those whose reads come last.
TEST(ServeServer, ASlowHomeIsWaitedFor) {
  Nodes nodes(3, kBytes, std::uint64_t{1} << 30, 15);
  nodes.open_everywhere();
  nodes[0].files.slow_turns = 4000;  // 0.4 s
  const std::int64_t begun = clock_ns;
  ask_slow_home(nodes);
  EXPECT_GT(clock_ns - begun, 1'500'000'000);
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_EQ(nodes[1].server.counts().alone + nodes[2].server.counts().alone, 0u);
  EXPECT_GT(nodes[2].programs.shown, 0u);
}

// A home that lives, but whose reads do not end, is not.
TEST(ServeServer, AHomeThatHangsIsNotWaitedFor) {
  Nodes nodes(3, kBytes, std::uint64_t{1} << 30, 16);
  nodes.open_everywhere();
  nodes[0].files.slow_turns = 1'000'000;
  ask_slow_home(nodes);
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_GT(nodes[1].server.counts().alone, 0u);
  EXPECT_GT(nodes[2].server.counts().alone, 0u);
}

// A home that works for others, but does not bring this file, is not asked again each time it says that it
// works.
TEST(ServeServer, AHomeThatHangsForOneFileOnly) {
  Nodes nodes(2, kBytes, std::uint64_t{1} << 30, 17);
  nodes.open_everywhere();
  std::uint64_t theirs = 0;  // a chunk whose home is node 1
  while (home_of(kState, theirs, 2) != 1) ++theirs;
  nodes[1].files.slow_turns = 1'000'000;
  EXPECT_TRUE(nodes[0].programs.read(theirs * kChunkBytes, 4096));
  for (unsigned i = 0; i < 110'000 && nodes[0].programs.open_requests() != 0; ++i) {
    for (auto& n : nodes.all) (void)n->server.step();
    nodes[1].files.ended = 1;  // a read of another file
    clock_ns += 100'000;
  }
  EXPECT_EQ(nodes[0].programs.open_requests(), 0u) << "it waited for more than 11 s";
  nodes.run();
  const std::int64_t begun = clock_ns;
  for (unsigned i = 0; i < 10'000; ++i) {  // it works again and again
    nodes[1].files.ended = 1;
    for (auto& n : nodes.all) (void)n->server.step();
    clock_ns += 100'000;
  }
  EXPECT_TRUE(nodes[0].programs.read(theirs * kChunkBytes + 4096, 4096));
  nodes.run();
  EXPECT_LT(clock_ns - begun, 2'000'000'000);
}

// A server looks once a second whether the files that it serves have changed.
TEST(ServeServer, AFileThatChangesIsNotServed) {
  Nodes nodes(2, kBytes, std::uint64_t{1} << 30, 13);
  nodes.open_everywhere();
  read_all(nodes, 0);
  nodes[0].files.is_outdated = nodes[1].files.is_outdated = true;
  clock_ns += 1'000'000'000;
  EXPECT_TRUE(nodes[0].programs.read(0, 4096));
  nodes.run();
  for (std::uint64_t c = 0; c < 8; ++c) EXPECT_TRUE(nodes[0].programs.read(c * kChunkBytes, 4096));
  nodes.run();
  for (std::uint64_t c = 0; c < 8; ++c) EXPECT_EQ((nodes[0].programs.results[{c * kChunkBytes, 4096}]), -EIO);
  EXPECT_EQ(nodes[0].server.counts().kept, 0u);
}

TEST(ServeServer, AReadThatFailsIsAnError) {
  Nodes nodes(2, kBytes, std::uint64_t{1} << 30, 14);
  nodes.open_everywhere();
  nodes[0].files.fails = nodes[1].files.fails = true;
  for (std::uint64_t c = 0; c < 8; ++c) EXPECT_TRUE(nodes[0].programs.read(c * kChunkBytes, 4096));
  nodes.run();
  for (std::uint64_t c = 0; c < 8; ++c) EXPECT_EQ((nodes[0].programs.results[{c * kChunkBytes, 4096}]), -EIO);
  nodes[0].files.fails = nodes[1].files.fails = false;
  read_all(nodes, 1);
  EXPECT_EQ(nodes.wrong(), 0u);
}

// The network fails at each of its calls: programs are served from their own node's file system.
TEST(ServeServer, WithoutTheNetwork) {
  const auto expect_right_bytes = [](Nodes& nodes) {
    nodes.open_everywhere();
    read_all(nodes, 0);
    read_all(nodes, 1);
    EXPECT_EQ(nodes.wrong(), 0u);
  };
  for (std::uint64_t n = 65; n < 132; n += 11) {  // 64 receives are made at the start
    Nodes nodes(2, kBytes, std::uint64_t{1} << 30, n);
    nodes.network.refuses_at = n;
    expect_right_bytes(nodes);
  }
  for (std::uint64_t n = 1; n < 60; n += 7) {
    Nodes nodes(2, kBytes, std::uint64_t{1} << 30, n);
    nodes.network.loses_at = n;
    expect_right_bytes(nodes);
  }
}

}  // namespace
}  // namespace lmdbio::serve
