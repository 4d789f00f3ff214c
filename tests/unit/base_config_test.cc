#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/base/nearest.h"
#include "tests/support/child.h"

namespace lmdbio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::map<std::string, std::string> g_env;
std::vector<std::string> g_complaints;

Config parse(std::map<std::string, std::string> env) {
  g_env = std::move(env);
  g_complaints.clear();
  return parse_config(
      [](const char* name) -> const char* {
        const auto at = g_env.find(name);
        return at == g_env.end() ? nullptr : at->second.c_str();
      },
      [](const ConfigEntry& e, const char* value) {
        g_complaints.push_back(std::string(e.name) + "=" + value);
      });
}

void expect_same(const Config& a, const Config& b) {
  EXPECT_EQ(a.disable, b.disable);
  EXPECT_EQ(a.stock_lib, b.stock_lib);
  EXPECT_EQ(a.log_level, b.log_level);
  EXPECT_EQ(a.stats, b.stats);
  EXPECT_EQ(a.strict, b.strict);
  EXPECT_EQ(a.lock_seconds, b.lock_seconds);
}

TEST(Config, NothingSetGivesTheDefaults) {
  expect_same(parse({}), Config());
  expect_same(
      parse({{"LMDBIO_DISABLE", ""}, {"LMDBIO_LOG", ""}, {"LMDBIO_STATS", ""}, {"LMDBIO_STOCK_LIB", ""}}),
      Config());
  EXPECT_THAT(g_complaints, IsEmpty());
}

TEST(Config, DefaultsInTheTableAreTheDefaults) {
  for (const ConfigEntry& e : config_table()) {
    Config c;
    EXPECT_TRUE(*e.def == '\0' || e.parse(c, e.def)) << e.name;
    expect_same(c, Config());
  }
}

TEST(Config, TableIsWellFormed) {
  std::set<std::string> names;
  for (const ConfigEntry& e : config_table()) {
    EXPECT_THAT(e.name, ::testing::StartsWith("LMDBIO_"));
    EXPECT_TRUE(names.insert(e.name).second) << e.name << " is there twice";
    EXPECT_NE(*e.range, '\0') << e.name;
    EXPECT_NE(*e.meaning, '\0') << e.name;
  }
  EXPECT_THAT(names,
              ElementsAre("LMDBIO_CACHE_CODEC", "LMDBIO_CACHE_DIR", "LMDBIO_CACHE_SIZE", "LMDBIO_DISABLE",
                          "LMDBIO_ENGINE", "LMDBIO_INDEX_DIR", "LMDBIO_IO", "LMDBIO_LOCK_SECONDS",
                          "LMDBIO_LOG", "LMDBIO_MEMORY", "LMDBIO_MPI", "LMDBIO_NODE", "LMDBIO_STALL_SECONDS",
                          "LMDBIO_STATS", "LMDBIO_STOCK_LIB", "LMDBIO_STRICT"));
}

TEST(Config, ValidValues) {
  EXPECT_TRUE(parse({{"LMDBIO_DISABLE", "1"}}).disable);
  EXPECT_FALSE(parse({{"LMDBIO_DISABLE", "0"}}).disable);
  EXPECT_EQ(parse({{"LMDBIO_STOCK_LIB", "/a/liblmdb.so.0"}}).stock_lib, "/a/liblmdb.so.0");
  EXPECT_EQ(parse({{"LMDBIO_LOG", "error"}}).log_level, LogLevel::error);
  EXPECT_EQ(parse({{"LMDBIO_LOG", "warn"}}).log_level, LogLevel::warn);
  EXPECT_EQ(parse({{"LMDBIO_LOG", "info"}}).log_level, LogLevel::info);
  EXPECT_EQ(parse({{"LMDBIO_LOG", "debug"}}).log_level, LogLevel::debug);
  EXPECT_TRUE(parse({{"LMDBIO_STRICT", "1"}}).strict);
  EXPECT_FALSE(parse({{"LMDBIO_STRICT", "0"}}).strict);
  EXPECT_EQ(parse({{"LMDBIO_LOCK_SECONDS", "0"}}).lock_seconds, 0u);
  EXPECT_EQ(parse({{"LMDBIO_LOCK_SECONDS", "3600"}}).lock_seconds, 3600u);
  EXPECT_EQ(parse({{"LMDBIO_STALL_SECONDS", "7"}}).stall_seconds, 7u);
  EXPECT_EQ(parse({{"LMDBIO_NODE", "off"}}).node, NodeMode::off);
  EXPECT_EQ(parse({{"LMDBIO_NODE", "auto"}}).node, NodeMode::automatic);
  EXPECT_EQ(parse({{"LMDBIO_NODE", "cache"}}).node, NodeMode::cache);
  EXPECT_EQ(parse({{"LMDBIO_NODE", "chunks"}}).node, NodeMode::chunks);
  EXPECT_EQ(parse({{"LMDBIO_INDEX_DIR", "/scratch/indexes"}}).index_dir, "/scratch/indexes");
  EXPECT_EQ(parse({{"LMDBIO_IO", "auto"}}).io, IoMode::automatic);
  EXPECT_EQ(parse({{"LMDBIO_IO", "mmap"}}).io, IoMode::mmap);
  EXPECT_EQ(parse({{"LMDBIO_IO", "direct"}}).io, IoMode::direct);
  EXPECT_EQ(parse({{"LMDBIO_IO", "buffered"}}).io, IoMode::buffered);
  EXPECT_EQ(parse({{"LMDBIO_ENGINE", "threads"}}).engine, IoEngineChoice::threads);
  const auto memory = [](const char* value) {
    const Config c = parse({{"LMDBIO_MEMORY", value}});
    return std::pair(c.memory_bytes, c.memory_percent);
  };
  EXPECT_EQ(memory("0"), std::pair(std::uint64_t{0}, 0u));
  EXPECT_EQ(memory("8M"), std::pair(std::uint64_t{8} << 20, 0u));
  EXPECT_EQ(memory("8192K"), std::pair(std::uint64_t{8} << 20, 0u));
  EXPECT_EQ(memory("8388608"), std::pair(std::uint64_t{8} << 20, 0u));
  EXPECT_EQ(memory("3G"), std::pair(std::uint64_t{3} << 30, 0u));
  EXPECT_EQ(memory("1024T"), std::pair(std::uint64_t{1} << 50, 0u));
  EXPECT_EQ(memory("40%"), std::pair(std::uint64_t{0}, 40u));
  EXPECT_EQ(parse({{"LMDBIO_STATS", "0"}}).stats, "");
  EXPECT_EQ(parse({{"LMDBIO_STATS", "1"}}).stats, "1");
  EXPECT_EQ(parse({{"LMDBIO_STATS", "s-%h-%p-100%%"}}).stats, "s-%h-%p-100%%");
  EXPECT_THAT(g_complaints, IsEmpty());
}

TEST(Config, InvalidValuesAreToldAndTheDefaultStays) {
  const std::string long_path(5000, 'x');
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"LMDBIO_DISABLE", "yes"},
      {"LMDBIO_DISABLE", "01"},
      {"LMDBIO_DISABLE", " 1"},
      {"LMDBIO_LOG", "WARN"},
      {"LMDBIO_LOG", "2"},
      {"LMDBIO_STATS", "a%"},
      {"LMDBIO_STATS", "a%d"},
      {"LMDBIO_STATS", long_path},
      {"LMDBIO_STOCK_LIB", long_path},
      {"LMDBIO_STRICT", "no"},
      {"LMDBIO_LOCK_SECONDS", "3601"},
      {"LMDBIO_LOCK_SECONDS", "-1"},
      {"LMDBIO_MEMORY", "7M"},
      {"LMDBIO_MEMORY", "1"},
      {"LMDBIO_MEMORY", "1025T"},
      {"LMDBIO_MEMORY", "91%"},
      {"LMDBIO_MEMORY", "0%"},
      {"LMDBIO_MEMORY", "8m"},
      {"LMDBIO_MEMORY", "8MB"},
      {"LMDBIO_MEMORY", "-8M"},
      {"LMDBIO_MEMORY", "M"},
      {"LMDBIO_MEMORY", "99999999999999999999"},
      {"LMDBIO_MEMORY", "18446744073709551615K"},
      {"LMDBIO_IO", "fast"},
      {"LMDBIO_ENGINE", "aio"},
      {"LMDBIO_NODE", "on"},
      {"LMDBIO_STALL_SECONDS", "3601"},
      {"LMDBIO_LOCK_SECONDS", "5s"},
      {"LMDBIO_LOCK_SECONDS", "99999999999999999999"}};
  for (const auto& [name, value] : bad) {
    expect_same(parse({{name, value}}), Config());
    EXPECT_THAT(g_complaints, ElementsAre(name + "=" + value));
  }
}

TEST(Config, OneBadValueLeavesTheOthers) {
  const Config c = parse({{"LMDBIO_DISABLE", "1"}, {"LMDBIO_LOG", "loud"}, {"LMDBIO_STATS", "1"}});
  EXPECT_TRUE(c.disable);
  EXPECT_EQ(c.log_level, LogLevel::warn);
  EXPECT_EQ(c.stats, "1");
  EXPECT_THAT(g_complaints, ElementsAre("LMDBIO_LOG=loud"));
}

TEST(Config, NobodyNeedsToListen) {
  g_env = {{"LMDBIO_DISABLE", "x"}};
  expect_same(
      parse_config([](const char* n) { return g_env.count(n) ? g_env[n].c_str() : nullptr; }, nullptr),
      Config());
}

TEST(Config, OfTheProcess) {
  const auto child = testing::in_child([] {
    ::setenv("LMDBIO_LOG", "info", 1);
    ::setenv("LMDBIO_STATS", "/tmp/x.%p", 1);
    ::setenv("LMDBIO_DISABLE", "maybe", 1);
    std::vector<const Config*> seen(8);
    std::vector<std::thread> threads;
    for (auto& s : seen) threads.emplace_back([&s] { s = &config(); });
    for (auto& t : threads) t.join();
    for (const Config* s : seen)
      if (s != &config()) return 1;
    ::setenv("LMDBIO_LOG", "error", 1);
    if (config().log_level != LogLevel::info || !log_enabled(LogLevel::info) || log_enabled(LogLevel::debug))
      return 2;
    if (config().stats != "/tmp/x.%p" || config().disable) return 3;
    return 0;
  });
  EXPECT_EQ(child.exit_code, 0);
  EXPECT_EQ(child.err, "lmdbio: LMDBIO_DISABLE=maybe is not valid (allowed: 0, 1); using 0\n");
}

TEST(Config, ComplaintsAreSeenAtEveryLevelAndAreOneLine) {
  const auto child = testing::in_child([] {
    ::setenv("LMDBIO_LOG", "error", 1);
    ::setenv("LMDBIO_STATS", "two\nlines%", 1);
    (void)config();
    return log_enabled(LogLevel::warn) ? 1 : 0;
  });
  EXPECT_EQ(child.exit_code, 0);
  EXPECT_THAT(child.err, HasSubstr("LMDBIO_STATS=two?lines% is not valid"));
  EXPECT_EQ(std::count(child.err.begin(), child.err.end(), '\n'), 1);
}

TEST(Config, TheNearestSetting) {
  const auto nearest = [](const char* name) {
    const char* const found = nearest_setting(name);
    return std::string(found != nullptr ? found : "");
  };
  for (const ConfigEntry& e : config_table()) {
    EXPECT_EQ(nearest(e.name), e.name);
    EXPECT_EQ(nearest(e.name + std::strlen("LMDBIO_")), e.name);
  }
  EXPECT_EQ(nearest("LMDBIO_MEMROY"), "LMDBIO_MEMORY");
  EXPECT_EQ(nearest("LMDBIO_STAT"), "LMDBIO_STATS");
  EXPECT_EQ(nearest("LMDBIO_INDEXDIR"), "LMDBIO_INDEX_DIR");
  EXPECT_EQ(nearest("LMDBIO_FROBNICATE"), "");
  EXPECT_EQ(nearest("LMDBIO_"), "");
  EXPECT_EQ(nearest(("LMDBIO_" + std::string(100, 'M')).c_str()), "");
}

TEST(Nearest, Distances) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("check", "chekc"), 1u);
  EXPECT_EQ(edit_distance("ab", "ba"), 1u);
}

}  // namespace
}  // namespace lmdbio
