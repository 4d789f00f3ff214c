// Files in the format of LMDB 1.0: all sizes of records, and writers that continue where another has ended.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "lmdbio/files/append_writer_10.h"
#include "lmdbio/files/database.h"
#include "lmdbio/files/pack_plan.h"
#include "tests/support/rng.h"

namespace lmdbio::files {
namespace {

namespace fs = std::filesystem;

class AppendWriter10Test : public ::testing::Test {
 protected:
  AppendWriter10Test() : directory_(::testing::TempDir() + "lmdbio_XXXXXX") {
    EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  ~AppendWriter10Test() override { fs::remove_all(directory_); }

  std::map<std::string, std::string> contents() const {
    const Database database(directory_, "");
    std::map<std::string, std::string> out;
    Cursor at(database);
    for (bool more = at.seek(""); more; more = at.next())
      out.emplace(bytes_of(at.key()), bytes_of(at.value()));
    return out;
  }
  MDB_stat stat() const { return Database(directory_, "").stat(); }
  std::string file() const { return directory_ + "/data.mdb"; }
  std::string bytes() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  std::string directory_;
};

std::string key(std::size_t i, std::size_t bytes = 8) {
  const std::string digits = std::to_string(i);
  return std::string(8 - digits.size(), '0') + digits + std::string(bytes - 8, 'k');
}

TEST_F(AppendWriter10Test, EachSizeOfAValue) {
  std::map<std::string, std::string> expected;
  AppendWriter10 writer(directory_);
  std::size_t i = 0;
  const auto add = [&](std::size_t value_bytes, std::size_t key_bytes) {
    const auto [at, made] = expected.emplace(key(i, key_bytes), std::string(value_bytes, 'v'));
    at->second += std::to_string(i++);
    writer.append(at->first, at->second);
  };
  for (std::size_t n = 0; n < 300; ++n) add(n, 8 + n % 3);
  for (std::size_t n = 1990; n < 2050; ++n) add(n, 8 + n % 2);  // from where a value is in overflow pages
  for (std::size_t n = 4040; n < 4100; ++n) add(n, 9);
  for (const std::size_t n : {8150u, 8168u, 8169u, 100'000u, 9'000'000u}) add(n, 100);
  writer.finish();
  EXPECT_EQ(contents(), expected);
  EXPECT_EQ(fs::file_size(file()) % 4096, 0u);
}

// Branch pages of all levels are full at some moment, also with keys of the largest size.
TEST_F(AppendWriter10Test, TreesOfEachDepth) {
  for (const std::size_t key_bytes : {8u, 511u}) {
    std::size_t depth = 0;
    for (const std::size_t n : {0u, 1u, 7u, 8u, 49u, 50u, 57u, 400u, 3000u, 20'000u}) {
      fs::remove(file());
      AppendWriter10 writer(directory_);
      for (std::size_t i = 0; i < n; ++i) writer.append(key(i, key_bytes), key(i * 3));
      writer.finish();
      const std::map<std::string, std::string> found = contents();
      ASSERT_EQ(found.size(), n);
      std::size_t i = 0;
      for (const auto& [k, v] : found) {
        ASSERT_EQ(k, key(i, key_bytes));
        ASSERT_EQ(v, key(i++ * 3));
      }
      const MDB_stat s = stat();
      EXPECT_EQ(s.ms_entries, n);
      EXPECT_GE(s.ms_depth, depth);
      EXPECT_EQ(2 + s.ms_branch_pages + s.ms_leaf_pages + s.ms_overflow_pages, fs::file_size(file()) / 4096);
      depth = s.ms_depth;
      const Database database(directory_, "");
      MDB_val value;
      for (i = 0; i < n; i += 13) {
        const std::string k = key(i, key_bytes);
        MDB_val wanted = value_of(k);
        ASSERT_EQ(mdb_get(database.txn(), database.dbi(), &wanted, &value), 0);
        ASSERT_EQ(bytes_of(value), key(i * 3));
      }
    }
    EXPECT_GE(depth, key_bytes == 8 ? 2u : 5u);
  }
}

// Writers end at any moment, with and without a commit.  The file is then the same as that of one writer.
TEST_F(AppendWriter10Test, ContinuesAfterTheLastCommit) {
  test::Rng rng(5);
  for (int round = 0; round < 12; ++round) {
    const std::size_t n = 20 + rng.below(3000), key_bytes = rng.percent(50) ? 8 : 300;
    std::vector<std::string> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i].assign(rng.percent(5) ? 9000 : rng.below(60), 'v');
    const auto write = [&](AppendWriter10& writer, std::size_t from, std::size_t end) {
      for (std::size_t i = from; i < end; ++i) writer.append(key(i, key_bytes), values[i]);
    };
    fs::remove(file());
    {
      AppendWriter10 writer(directory_);
      write(writer, 0, n);
      writer.finish();
    }
    const std::string whole = bytes();
    fs::remove(file());
    std::uint64_t committed = 0;
    for (std::size_t at = 0; at < n; at += 1 + rng.below(n / 4)) {
      AppendWriter10 writer(directory_);
      ASSERT_EQ(writer.committed(), committed);
      ASSERT_EQ(writer.last_key(), committed == 0 ? "" : key(committed - 1, key_bytes));
      if (committed < at) write(writer, committed, at);
      if (rng.percent(70)) writer.commit();
      ASSERT_LE(writer.committed(), std::max<std::uint64_t>(at, committed));
      committed = writer.committed();
      if (rng.percent(50) && committed < at) {
        const std::size_t more = std::min(n, at + rng.below(200));
        write(writer, std::max<std::size_t>(at, committed), more);
      }
    }
    {
      AppendWriter10 writer(directory_);
      write(writer, writer.committed(), n);
      writer.finish();
    }
    ASSERT_TRUE(bytes() == whole) << round;
    // Nothing is left to do.
    AppendWriter10 again(directory_);
    EXPECT_EQ(again.committed(), n);
    EXPECT_EQ(again.last_key(), key(n - 1, key_bytes));
    again.finish();
    ASSERT_TRUE(bytes() == whole) << round;
  }
}

TEST_F(AppendWriter10Test, AFileThatIsNotFinishedIsNoDatabase) {
  AppendWriter10 writer(directory_);
  for (std::size_t i = 0; i < 1000; ++i) writer.append(key(i), "value");
  writer.commit();
  EXPECT_GT(writer.committed(), 500u);
  EXPECT_THROW(contents(), Error);
}

TEST_F(AppendWriter10Test, AnotherFileIsNotContinued) {
  {
    AppendWriter10 writer(directory_);
    for (std::size_t i = 0; i < 3000; ++i) writer.append(key(i), std::string(i % 500 == 0 ? 5000 : 20, 'v'));
    writer.finish();
  }
  const std::string good = bytes();
  for (std::size_t at : {8192u, 8192u + 18, 8192u + 20, 4 * 4096u, 4 * 4096u + 18}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x55);
    std::ofstream(file(), std::ios::binary) << bad;
    EXPECT_THROW(AppendWriter10 w(directory_), Error) << at;
  }
  std::ofstream(file(), std::ios::binary) << good.substr(0, good.size() / 2);
  EXPECT_THROW(AppendWriter10 w(directory_), Error);
  std::ofstream(file(), std::ios::binary) << "too short for a page";
  EXPECT_EQ(AppendWriter10(directory_).committed(), 0u);
}

TEST_F(AppendWriter10Test, WrongRecordsAreRefused) {
  AppendWriter10 writer(directory_);
  writer.append("b", "1");
  EXPECT_THROW(writer.append("a", "2"), Error);
  EXPECT_THROW(writer.append("b", "2"), Error);
  EXPECT_THROW(writer.append("", "2"), Error);
  EXPECT_THROW(writer.append(std::string(3000, 'c'), "2"), Error);
  writer.append("c", "3");
  writer.finish();
  EXPECT_EQ(contents(), (std::map<std::string, std::string>{{"b", "1"}, {"c", "3"}}));
  EXPECT_THROW(AppendWriter10("/no/such"), Error);
}

// The limit that plans use holds, and is not far from the size of the file.
TEST_F(AppendWriter10Test, SizeIsKnownBefore) {
  for (const std::size_t value_bytes :
       {0u, 1u, 50u, 700u, 1500u, 2001u, 2020u, 4071u, 4072u, 4073u, 100'000u})
    for (const std::size_t key_bytes : {8u, 101u, 511u}) {
      fs::remove(file());
      AppendedSize size({4096, format::Version::v10});
      AppendWriter10 writer(directory_);
      for (std::size_t i = 0, n = 3'000'000 / (value_bytes + key_bytes + 100); i < n; ++i) {
        size.add({key_bytes, value_bytes});
        writer.append(key(i, key_bytes), std::string(value_bytes, 'v'));
      }
      writer.finish();
      EXPECT_LE(fs::file_size(file()), size.bytes()) << value_bytes << ' ' << key_bytes;
      EXPECT_GE(static_cast<double>(fs::file_size(file())) * 1.35 + (1 << 20),
                static_cast<double>(size.bytes()))
          << value_bytes << ' ' << key_bytes;
    }
}

}  // namespace
}  // namespace lmdbio::files
