// What is told of a process whose board was found: sums, which counters belong to which environment, and
// boards that hold anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "lmdbio/records/shared.h"
#include "lmdbio/stats/report.h"
#include "tests/support/rng.h"

namespace lmdbio::stats {
namespace {

using node::CellKind;
using node::ShownBoard;

template <class T>
ShownBoard::Shown cell(std::uint32_t number, node::CellFacts facts, const T& value) {
  const auto* const from = reinterpret_cast<const std::byte*>(&value);
  return {number, facts, std::vector<std::byte>(from, from + sizeof value)};
}

/// No counter is forgotten when two are added.
template <class T>
void adds_all(T one) {
  std::uint64_t numbers[sizeof one / sizeof(std::uint64_t)];
  for (std::uint64_t& n : numbers) n = static_cast<std::uint64_t>(&n - numbers) + 1;
  static_assert(sizeof numbers == sizeof one);
  std::memcpy(static_cast<void*>(&one), numbers, sizeof one);
  T sum{};
  sum.add(one);
  EXPECT_EQ(std::memcmp(&sum, &one, sizeof one), 0);
}

TEST(Counters, AllAreAdded) {
  adds_all(window::FileStats{});
  adds_all(tree::PrefetchCounters{});
}

EnvironmentText text(const char* path, bool ours) {
  EnvironmentText t;
  std::strncpy(t.path, path, sizeof t.path - 1);
  std::strncpy(t.reason, ours ? "" : "because", sizeof t.reason - 1);
  t.ours = ours;
  return t;
}

tree::Counters gets(std::uint64_t n, std::uint64_t bytes) {
  tree::Counters c;
  c.get = n;
  c.bytes = bytes;
  c.begun = 1;
  return c;
}

/// Two environments: the first with two transactions, a file and a reader, the second passed through.
ShownBoard board() {
  ShownBoard b;
  b.pid = 77;
  b.topic = "/x/%p";
  EnvironmentCounters first, second;
  first.ended = gets(1, 10);
  second.forwarded.get = 5;
  window::FileCounters file;
  file.stats.read = 4096;
  file.stats.stalls = 2;
  file.stats.exact_reads = 3;
  file.path = ReadPath::direct;
  std::strncpy(file.reason, "why", sizeof file.reason - 1);
  records::Counters reader;
  reader.batches = 6;
  b.cells.push_back(cell(1, {CellKind::environment, 0, 8, 9}, first));
  b.cells.push_back(cell(2, {CellKind::text, 1}, text("/a\"b", true)));
  b.cells.push_back(cell(3, {CellKind::calls, 1}, gets(20, 100)));
  b.cells.push_back(cell(4, {CellKind::calls, 1}, gets(300, 1000)));
  b.cells.push_back(cell(5, {CellKind::environment}, second));
  b.cells.push_back(cell(6, {CellKind::text, 5}, text("/b", false)));
  b.cells.push_back(cell(7, {CellKind::file, 0, 8, 9}, file));
  b.cells.push_back(cell(8, {CellKind::file, 0, 8, 9}, file));
  b.cells.push_back(cell(9, {CellKind::file, 0, 8, 10}, file));
  b.cells.push_back(cell(10, {CellKind::reader, 0, 8, 9}, reader));
  return b;
}

TEST(BoardReport, WhatBelongsToAnEnvironment) {
  const auto found = environments_on(board());
  ASSERT_EQ(found.size(), 2u);
  const EnvironmentReport& a = found[0];
  EXPECT_EQ(a.path, "/a\"b");
  EXPECT_TRUE(a.ours);
  EXPECT_EQ(a.calls.get, 321u);
  EXPECT_EQ(a.calls.bytes, 1110u);
  EXPECT_EQ(a.calls.begun, 3u);
  ASSERT_TRUE(a.io);
  EXPECT_EQ(a.io->read_path, "direct");
  EXPECT_EQ(a.io->reason, "why");
  EXPECT_EQ(a.io->stats.read, 8192u) << "two windows on the file";
  EXPECT_EQ(a.io->stats.exact_reads, 6u);
  EXPECT_EQ(a.readers.readers, 1u);
  EXPECT_EQ(a.readers.counters.batches, 6u);
  EXPECT_FALSE(found[1].ours);
  EXPECT_EQ(found[1].reason, "because");
  EXPECT_EQ(found[1].forward_get, 5u);
  EXPECT_FALSE(found[1].io);
}

TEST(BoardReport, IsTheLineThatTheProcessWouldHaveWritten) {
  ShownBoard b = board();
  const auto ended = nlohmann::json::parse(line_of(b));
  EXPECT_EQ(ended["pid"], 77);
  EXPECT_EQ(ended["state"], "ended");
  EXPECT_EQ(ended["environments"][0]["path"], "/a\"b");
  EXPECT_EQ(ended["environments"][0]["calls"]["get"], 321);
  EXPECT_EQ(ended["environments"][0]["io"]["stalls"], 4);
  EXPECT_EQ(ended["environments"][1]["forwarded"]["get"], 5);
  b.lives = true;
  EXPECT_EQ(nlohmann::json::parse(line_of(b))["state"], "running");
}

TEST(BoardReport, WhatWasNotUsedIsNotTold) {
  ShownBoard b;
  EXPECT_EQ(line_of(b), "");
  b.cells.push_back(cell(1, {CellKind::environment}, EnvironmentCounters()));
  b.cells.push_back(cell(2, {CellKind::text, 1}, text("/a", true)));
  EXPECT_EQ(line_of(b), "");
}

// Whatever a board holds: one JSON object, or nothing.
TEST(BoardReport, AnyBytes) {
  test::Rng rng(5);
  unsigned told = 0;
  for (int round = 0; round < 2000; ++round) {
    ShownBoard b = board();
    for (ShownBoard::Shown& c : b.cells) {
      if (rng.percent(30)) c.bytes.resize(rng.below(2000));
      if (rng.percent(30)) c.facts.kind = static_cast<CellKind>(rng.below(9));
      if (rng.percent(30)) c.facts.owner = static_cast<std::uint32_t>(rng.below(12));
      for (std::uint64_t n = rng.below(4); n > 0 && !c.bytes.empty(); --n)
        for (std::uint64_t i = rng.below(c.bytes.size()), end = i + rng.below(40);
             i < end && i < c.bytes.size(); ++i)
          c.bytes[i] = static_cast<std::byte>(rng.below(256));
    }
    const std::string line = line_of(b);
    if (line.empty()) continue;
    ++told;
    ASSERT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
    ASSERT_FALSE(nlohmann::json::parse(line.begin(), line.end(), nullptr, false, true).is_null());
  }
  EXPECT_GT(told, 1000u);
}

TEST(StatsFile, NamesOfProcesses) {
  EXPECT_EQ(expand("/a/%p.%%p", 12), "/a/12.%p");
  EXPECT_EQ(topic_of("/a/%p"), "/a/%p");
  EXPECT_THAT(topic_of("b.%p"), ::testing::EndsWith("/b.%p"));
  EXPECT_THAT(topic_of("b.%p"), ::testing::StartsWith("/"));
}

}  // namespace
}  // namespace lmdbio::stats
