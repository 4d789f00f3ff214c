// The servers of several nodes in one thread: what their programs get, how often the file system is read, and
// what happens when a server is silent, sees another file, or fails.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lmdbio/serve/server.h"
#include "tests/support/fake_servers.h"
#include "tests/support/rng.h"

namespace lmdbio::serve {
namespace {

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

// What a program of the node has got is in the memory of its server.
TEST(ServeServer, CopiesOfWhatOtherHomesHaveSent) {
  const auto messages_of = [](std::uint64_t memory, std::uint64_t copies, std::vector<std::size_t> sizes) {
    Nodes nodes(2, kBytes, memory, 20, copies);
    nodes.open_everywhere();
    read_all(nodes, 0);
    const std::uint64_t before = nodes.network.messages;
    for (const std::size_t bytes : sizes)
      for (std::uint64_t at = 0; at < kBytes; at += bytes)
        while (!nodes[0].programs.read(at, bytes)) nodes.run();
    nodes.run();
    EXPECT_EQ(nodes.wrong(), 0u);
    EXPECT_EQ(nodes.read(), kBytes);
    EXPECT_EQ(nodes[0].server.counts().to_programs, (1 + sizes.size()) * kBytes);
    return nodes.network.messages - before;
  };
  constexpr std::uint64_t kMemory = std::uint64_t{1} << 30;
  EXPECT_EQ(messages_of(kMemory, kBytes, {node::kServiceBytes, 256u << 10, 4096}), 0u);
  EXPECT_GT(messages_of(kMemory, kBytes - 1, {node::kServiceBytes}), 0u) << "the file has no room";
  EXPECT_GT(messages_of(kMemory, 0, {node::kServiceBytes}), 0u);
}

TEST(ServeServer, ChunksOfAHomeReplaceCopies) {
  constexpr std::uint64_t kMemory = 8 * kChunkBytes;  // a home has seven chunks at most
  Nodes nodes(2, kBytes, kMemory, 21, kBytes);
  nodes.open_everywhere();
  for (unsigned epoch = 0; epoch < 2; ++epoch) {
    read_all(nodes, 0);
    EXPECT_EQ(nodes.read(), kBytes) << "the chunks of a home stay";
    clock_ns += 1'000'000'000;
    (void)nodes[0].server.step();
    EXPECT_LE(nodes[0].programs.counts.kept, kMemory);
    EXPECT_GE(nodes[0].programs.counts.kept, kMemory - kChunkBytes);
  }
  EXPECT_EQ(nodes.wrong(), 0u);
}

TEST(ServeServer, CopiesOfAFileThatChangesAreDropped) {
  Nodes nodes(2, kBytes, std::uint64_t{1} << 30, 22, kBytes);
  nodes.open_everywhere();
  read_all(nodes, 0);
  for (unsigned i = 0; i < 2; ++i) nodes[i].files.is_outdated = true;
  clock_ns += 2'000'000'000;
  for (unsigned turn = 0; turn < 20; ++turn)
    for (unsigned i = 0; i < 2; ++i) (void)nodes[i].server.step();
  nodes[0].programs.results.clear();
  for (std::uint64_t at = 0; at < kBytes; at += node::kServiceBytes)
    while (!nodes[0].programs.read(at, node::kServiceBytes)) nodes.run();
  nodes.run();
  for (const auto& [request, result] : nodes[0].programs.results) EXPECT_LT(result, 0) << request.first;
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
