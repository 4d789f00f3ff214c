// The numbers of files that the kernel knows, against a map; and what they cost.
#include <gtest/gtest.h>
#include <malloc.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "lmdbio/fuse/naming.h"
#include "lmdbio/fuse/node_table.h"

namespace lmdbio::fuse {
namespace {

using namespace std::string_literals;

TEST(NodeTable, Model) {
  struct Known {
    std::uint64_t parent;
    std::string name, path;
    std::uint64_t uses;
    bool directory;
  };
  std::mt19937 random(1);
  NodeTable table;
  std::map<std::uint64_t, Known> model{{NodeTable::kRoot, {1, "", "", 1, true}}};
  const auto held = [&](std::uint64_t number) {  // by the kernel, or by a child
    return model.at(number).uses > 0 || std::any_of(model.begin(), model.end(), [&](const auto& m) {
             return m.first != NodeTable::kRoot && m.second.parent == number;
           });
  };
  for (int i = 0; i < 20000; ++i) {
    auto at = std::next(model.begin(), static_cast<std::ptrdiff_t>(random() % model.size()));
    if (random() % 5 < 3 && model.size() < 300) {
      if (!at->second.directory) continue;
      const std::string name(1 + random() % (i % 50 == 0 ? 255 : 3), static_cast<char>('a' + random() % 4));
      const bool directory = name[0] == 'a';
      const std::uint64_t number =
          table.use(at->first, name, directory, static_cast<std::uint32_t>(name.size()));
      const std::string path = at->second.path.empty() ? name : at->second.path + "/" + name;
      const auto [known, is_new] = model.try_emplace(number, Known{at->first, name, path, 0, directory});
      ASSERT_EQ(known->second.path, path);
      ++known->second.uses;
    } else if (at->first != NodeTable::kRoot && at->second.uses > 0) {
      const std::uint64_t n = 1 + random() % at->second.uses;
      table.forget(at->first, n);
      at->second.uses -= n;
      for (std::uint64_t number = at->first; number != NodeTable::kRoot && !held(number);) {
        const std::uint64_t parent = model.at(number).parent;
        model.erase(number);
        number = parent;
      }
    }
    ASSERT_EQ(table.count(), model.size());
  }
  for (const auto& [number, known] : model) {
    const NodeTable::Entry entry = table.get(number);
    EXPECT_EQ(entry.path, known.path);
    EXPECT_EQ(entry.is_directory, known.directory);
    EXPECT_EQ(table.parent(number), known.parent);
    EXPECT_EQ(entry.size, number == NodeTable::kRoot ? 0 : known.name.size());
  }
}

TEST(NodeTable, MemoryOfNames) {
  const auto used = [] { return ::mallinfo2().uordblks + ::mallinfo2().hblkhd; };
  const std::size_t before = used();
  if (before == 0) GTEST_SKIP() << "memory of a sanitizer's allocator is not known";
  NodeTable table;
  constexpr std::size_t kNames = 200'000;
  std::vector<std::uint64_t> numbers;
  numbers.reserve(kNames);
  for (std::size_t i = 0; i < kNames; ++i)
    numbers.push_back(table.use(NodeTable::kRoot, "image_" + std::to_string(1'000'000 + i), false, 1));
  EXPECT_LT((used() - before - kNames * sizeof numbers[0]) / kNames, 56);
  // What was forgotten is used again.
  for (const std::uint64_t n : numbers) table.forget(n, 1);
  EXPECT_EQ(table.count(), 1);
  const std::size_t full = used();
  for (std::size_t i = 0; i < kNames; ++i)
    (void)table.use(NodeTable::kRoot, "other_" + std::to_string(1'000'000 + i), false, 1);
  EXPECT_EQ(used(), full);
}

TEST(Naming, Table) {
  const auto number = [](auto n) { return std::string(reinterpret_cast<const char*>(&n), sizeof n); };
  const struct {
    Names names;
    std::string key, path;
  } kTable[] = {
      {Names::text, "a/b", "a/b.jpg"},
      {Names::text, "../a", "%2E%2E/a.jpg"},
      {Names::hex, "a\0\xff"s, "6100ff.jpg"},
      {Names::number, number(std::uint64_t{0}), "0.jpg"},
      {Names::number, number(~std::uint64_t{0}), "18446744073709551615.jpg"},
  };
  for (const auto& row : kTable) {
    const Naming naming(row.names, ".jpg", row.names == Names::number);
    EXPECT_EQ(naming.path_of(row.key), row.path);
    EXPECT_EQ(naming.key_of(row.path, number(std::uint64_t{7})), row.key);
  }
  const Naming small(Names::number, "", true);
  EXPECT_EQ(small.path_of(number(std::uint32_t{300})), "300");
  EXPECT_EQ(small.key_of("300", number(std::uint32_t{7})), number(std::uint32_t{300}));
  EXPECT_FALSE(small.key_of("4294967296", number(std::uint32_t{7})));
  EXPECT_FALSE(small.path_of("abc"));
  EXPECT_FALSE(Naming(Names::hex, "", false).path_of(std::string(128, 'x')));
}

TEST(Naming, OtherPathsAreNoNames) {
  const auto refused = [](Names names, std::string_view path) {
    return !Naming(names, "", names == Names::number).key_of(path, std::string(8, 'x'));
  };
  for (const char* const path : {"a%2Fb", "%2Ex", "x%00%2541", "%2561", ""})
    EXPECT_TRUE(refused(Names::text, path)) << path;
  for (const char* const path : {"61f", "6G", "AB", " 1", "+1", "0x"})
    EXPECT_TRUE(refused(Names::hex, path)) << path;
  for (const char* const path : {"01", "-1", "+1", " 1", "1 ", "1x", "", "18446744073709551616"})
    EXPECT_TRUE(refused(Names::number, path)) << path;
  const Naming integers(Names::hex, "", true);
  for (const char* const path : {"61", "61626364", "616263646566676869"})
    EXPECT_FALSE(integers.key_of(path, std::string(8, 'x'))) << path;
  EXPECT_TRUE(integers.key_of("6162636465666768", std::string(8, 'x')));
  EXPECT_FALSE(integers.key_of("6162636465666768", ""));
  EXPECT_FALSE(Naming(Names::text, ".jpg", false).key_of("a.png", ""));
}

}  // namespace
}  // namespace lmdbio::fuse
