// Appending records: the map grows, transactions are repeated, and a writer continues where another has
// ended.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/files/append_writer.h"
#include "lmdbio/files/database.h"
#include "lmdbio/files/pack_plan.h"

namespace lmdbio::files {
namespace {

class AppendWriterTest : public ::testing::Test {
 protected:
  AppendWriterTest() : directory_(::testing::TempDir() + "lmdbio_XXXXXX") {
    EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  ~AppendWriterTest() override { std::filesystem::remove_all(directory_); }

  std::map<std::string, std::string> contents() const {
    const Database database(directory_, "");
    std::map<std::string, std::string> out;
    Cursor at(database);
    for (bool more = at.seek(""); more; more = at.next())
      out.emplace(bytes_of(at.key()), bytes_of(at.value()));
    return out;
  }
  std::uint64_t file_bytes() const { return std::filesystem::file_size(directory_ + "/data.mdb"); }

  std::string directory_;
};

std::string key(std::size_t i) {
  std::string digits = std::to_string(i);
  return std::string(8 - digits.size(), '0') + digits;
}

TEST_F(AppendWriterTest, MapGrowsWhereverItIsFull) {
  // The map is full in a record, in a commit, and more than once in a transaction.
  for (const std::size_t value_bytes : std::vector<std::size_t>{10, 1000, 5000, 300'000}) {
    std::filesystem::remove(directory_ + "/data.mdb");
    std::map<std::string, std::string> expected;
    {
      AppendWriter writer(directory_, 1);
      for (std::size_t i = 0; i < 20'000'000 / (value_bytes + 200); ++i) {
        const std::string value(value_bytes, static_cast<char>(i));
        writer.append(key(i), value);
        expected.emplace(key(i), value);
      }
      writer.commit();
      writer.sync();
      EXPECT_EQ(writer.committed(), expected.size());
      EXPECT_EQ(writer.last_key(), expected.rbegin()->first);
    }
    EXPECT_EQ(contents(), expected) << value_bytes;
  }
}

TEST_F(AppendWriterTest, ContinuesAfterTheLastCommit) {
  std::map<std::string, std::string> expected;
  for (std::size_t round = 0; round < 5; ++round) {
    AppendWriter writer(directory_, 1 << 20);
    ASSERT_EQ(writer.committed(), expected.size());
    ASSERT_EQ(writer.last_key(), expected.empty() ? "" : expected.rbegin()->first);
    for (std::size_t i = 0; i < 100; ++i) {
      writer.append(key(100 * round + i), "value");
      expected.emplace(key(100 * round + i), "value");
    }
    writer.commit();
    writer.append("zzz", "not committed");
  }
  EXPECT_EQ(contents(), expected);
}

TEST_F(AppendWriterTest, KeysOutOfOrderAreRefused) {
  AppendWriter writer(directory_, 1 << 20);
  writer.append("b", "1");
  EXPECT_THROW(writer.append("a", "2"), Error);
}

TEST_F(AppendWriterTest, DirectoryThatDoesNotExist) { EXPECT_THROW(AppendWriter("/no/such", 1), Error); }

// The limit that plans use holds, and is not far from the size of the file.
TEST_F(AppendWriterTest, SizeIsKnownBefore) {
  for (const std::size_t value_bytes :
       std::vector<std::size_t>{0, 1, 50, 700, 1500, 2020, 2021, 2022, 2030, 4079, 4080, 4081, 100'000})
    for (const std::size_t key_bytes : std::vector<std::size_t>{8, 100, 511}) {
      std::filesystem::remove(directory_ + "/data.mdb");
      AppendedSize size(4096);
      AppendWriter writer(directory_, 1 << 30);
      const std::size_t n = 6'000'000 / (value_bytes + key_bytes + 100);
      for (std::size_t i = 0; i < n; ++i) {
        std::string k = key(i);
        k.resize(key_bytes, 'k');
        size.add({k.size(), value_bytes});
        writer.append(k, std::string(value_bytes, 'v'));
        if (i % 1000 == 999) writer.commit();
      }
      writer.commit();
      EXPECT_LE(file_bytes(), size.bytes()) << value_bytes << ' ' << key_bytes;
      EXPECT_GE(static_cast<double>(file_bytes()) * 1.35 + (1 << 20), static_cast<double>(size.bytes()))
          << value_bytes << ' ' << key_bytes;
    }
}

TEST(PlanShards, Table) {
  const auto items = [](std::initializer_list<std::uint64_t> sizes) {
    std::vector<PackItem> out(sizes.size());
    std::size_t i = 0;
    for (const std::uint64_t s : sizes) {
      out[i].key = key(i);
      out[i++].size = s;
    }
    return out;
  };
  const std::uint64_t mib = 1 << 20;
  const auto ends = [](const std::vector<Shard>& shards) {
    std::vector<std::size_t> out;
    std::size_t first = 0;
    for (const Shard& s : shards) {
      EXPECT_EQ(s.first, first);
      first = s.end;
      out.push_back(s.end);
    }
    return out;
  };
  using Ends = std::vector<std::size_t>;
  EXPECT_EQ(ends(plan_shards(items({}), 4096, mib)), (Ends{0}));
  EXPECT_EQ(ends(plan_shards(items({1, 2, 3}), 4096, 0)), (Ends{3}));
  EXPECT_EQ(ends(plan_shards(items({mib, mib, mib}), 4096, 0)), (Ends{3}));
  EXPECT_EQ(ends(plan_shards(items({mib, mib, mib}), 4096, 3 * mib)), (Ends{2, 3}));
  EXPECT_EQ(ends(plan_shards(items({1, 9 * mib, 1, 9 * mib}), 4096, 2 * mib)), (Ends{1, 2, 3, 4}));
  for (const Shard& s : plan_shards(items({mib, mib, mib, mib}), 4096, 3 * mib)) EXPECT_LE(s.bytes, 3 * mib);
}

}  // namespace
}  // namespace lmdbio::files
