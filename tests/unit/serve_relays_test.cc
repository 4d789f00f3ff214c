// Many servers want the same bytes at the same time: the home sends them to a few, and the others get them
// from these.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "lmdbio/serve/server.h"
#include "tests/support/fake_servers.h"

namespace lmdbio::serve {
namespace {

constexpr unsigned kNodes = 40;
constexpr std::uint64_t kMemory = std::uint64_t{1} << 30;

std::uint64_t most_to_nodes(const Nodes& nodes) {
  std::uint64_t most = 0;
  for (const auto& n : nodes.all) most = std::max(most, n->server.counts().to_nodes);
  return most;
}

/// All nodes read the first `bytes` of the chunk `chunk`.
void read_everywhere(Nodes& nodes, std::uint64_t chunk, std::size_t bytes,
                     const std::set<unsigned>& stopped = {}) {
  for (unsigned i = 0; i < nodes.all.size(); ++i)
    if (!stopped.contains(i)) {
      EXPECT_TRUE(nodes[i].programs.read(chunk * kChunkBytes, bytes));
    }
  nodes.run(stopped);
}

TEST(ServeRelays, AHomeSendsLargeAnswersToFew) {
  Nodes nodes(kNodes, kBytes, kMemory, 1);
  nodes.open_everywhere();
  read_everywhere(nodes, 3, node::kServiceBytes);
  EXPECT_EQ(nodes.read(), kChunkBytes);
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_EQ(most_to_nodes(nodes), 4 * node::kServiceBytes);
  std::uint64_t sent = 0, alone = 0;
  for (const auto& n : nodes.all) sent += n->server.counts().to_nodes, alone += n->server.counts().alone;
  EXPECT_EQ(sent, (kNodes - 1) * node::kServiceBytes) << "each node gets the bytes once";
  EXPECT_EQ(alone, 0u);
}

TEST(ServeRelays, AHomeSendsSmallAnswersItself) {
  Nodes nodes(kNodes, kBytes, kMemory, 2);
  nodes.open_everywhere();
  constexpr std::size_t kSmall = 100'000;
  read_everywhere(nodes, 3, kSmall);
  EXPECT_EQ(most_to_nodes(nodes), (kNodes - 1) * kSmall);
}

TEST(ServeRelays, FewNodesGetEverythingFromTheHome) {
  Nodes nodes(8, kBytes, kMemory, 3);
  nodes.open_everywhere();
  read_everywhere(nodes, 3, node::kServiceBytes);
  EXPECT_EQ(most_to_nodes(nodes), 7 * node::kServiceBytes);
}

TEST(ServeRelays, TheEndOfTheFile) {
  Nodes nodes(kNodes, kChunkBytes + 600'000, kMemory, 4);
  nodes.open_everywhere();
  read_everywhere(nodes, 1, node::kServiceBytes);
  EXPECT_EQ(nodes.wrong(), 0u);
  for (const auto& n : nodes.all)
    EXPECT_EQ((n->programs.results[{kChunkBytes, node::kServiceBytes}]), 600'000);
  EXPECT_EQ(most_to_nodes(nodes), 4u * 600'000);
}

// All nodes read the whole file, some of them after the others.
TEST(ServeRelays, WalksOfManyNodes) {
  Nodes nodes(kNodes, kBytes, kMemory, 5);
  nodes.open_everywhere();
  for (const unsigned late : {0u, 1u}) {
    for (std::uint64_t at = 0; at < kBytes; at += node::kServiceBytes)
      for (unsigned i = late; i < kNodes; i += 2)
        while (!nodes[i].programs.read(at, node::kServiceBytes)) nodes.run();
    nodes.run();
  }
  EXPECT_EQ(nodes.read(), kBytes);
  EXPECT_EQ(nodes.wrong(), 0u);
  for (const auto& n : nodes.all) EXPECT_EQ(n->server.counts().to_programs, kBytes);
}

// Servers to which a home has sent bytes keep them for a short time only, and then send the others back to
// the home.
TEST(ServeRelays, HoldersThatHaveDroppedTheBytes) {
  Nodes nodes(kNodes, kBytes, std::uint64_t{64} << 20, 6);  // 8 MiB for others
  nodes.open_everywhere();
  const auto read = [&](unsigned from, std::uint64_t chunk) {
    for (unsigned i = from; i < kNodes; i += 2)
      EXPECT_TRUE(nodes[i].programs.read(chunk * kChunkBytes, node::kServiceBytes));
    nodes.run();
  };
  read(0, 0);
  for (std::uint64_t c = 1; c < kChunks; ++c) read(0, c);
  read(1, 0);
  EXPECT_EQ(nodes.wrong(), 0u);
  std::uint64_t alone = 0;
  for (const auto& n : nodes.all) alone += n->server.counts().alone;
  EXPECT_EQ(alone, 0u);
}

// A server that has stopped is named to others, who then ask the home again.
TEST(ServeRelays, AHolderThatStops) {
  Nodes nodes(kNodes, kBytes, kMemory, 7);
  nodes.open_everywhere();
  constexpr std::uint64_t kChunk = 5;
  const std::uint32_t home = home_of(kState, kChunk, kNodes);
  const unsigned first = (home + 1) % kNodes;
  EXPECT_TRUE(nodes[first].programs.read(kChunk * kChunkBytes, node::kServiceBytes));
  nodes.run();
  const std::int64_t begun = clock_ns;
  read_everywhere(nodes, kChunk, node::kServiceBytes, {first});
  EXPECT_EQ(nodes.wrong(), 0u);
  EXPECT_GT(clock_ns - begun, 200'000'000) << "nobody was sent to it";
  EXPECT_LT(clock_ns - begun, 700'000'000);
  std::uint64_t alone = 0;
  for (const auto& n : nodes.all) alone += n->server.counts().alone;
  EXPECT_EQ(alone, 0u);
  EXPECT_EQ(nodes.read(), kChunkBytes);
}

// A file that changes is not given to others either.
TEST(ServeRelays, AFileThatChanges) {
  Nodes nodes(kNodes, kBytes, kMemory, 8);
  nodes.open_everywhere();
  for (unsigned i = 0; i < kNodes; i += 2)
    EXPECT_TRUE(nodes[i].programs.read(5 * kChunkBytes, node::kServiceBytes));
  nodes.run();
  for (auto& n : nodes.all) n->files.is_outdated = true;
  clock_ns += 1'000'000'000;
  for (unsigned turn = 0; turn < 100; ++turn)
    for (auto& n : nodes.all) (void)n->server.step();
  for (unsigned i = 1; i < kNodes; i += 2)
    EXPECT_TRUE(nodes[i].programs.read(5 * kChunkBytes, node::kServiceBytes));
  nodes.run();
  for (unsigned i = 1; i < kNodes; i += 2)
    EXPECT_EQ((nodes[i].programs.results[{5 * kChunkBytes, node::kServiceBytes}]), -EIO) << i;
}

// Any message may be lost, or refused: programs get the right bytes all the same.
TEST(ServeRelays, WithoutTheNetwork) {
  for (std::uint64_t n = 5; n < 120; n += 19) {
    Nodes nodes(12, kBytes, kMemory, n);
    nodes.network.loses_at = n;
    nodes.open_everywhere();
    for (std::uint64_t c = 0; c < 4; ++c) read_everywhere(nodes, c, node::kServiceBytes);
    EXPECT_EQ(nodes.wrong(), 0u);
    for (const auto& node : nodes.all) EXPECT_EQ(node->server.counts().to_programs, 4 * node::kServiceBytes);
  }
}

}  // namespace
}  // namespace lmdbio::serve
