// Names of keys: each key has one name, which is a path below the current directory.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "lmdbio/files/names.h"

namespace lmdbio::files {
namespace {

using namespace std::string_literals;

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> out(1);
  for (const char c : path)
    if (c == '/')
      out.emplace_back();
    else
      out.back() += c;
  return out;
}

void expect_path(const std::string& name) {
  EXPECT_EQ(name.find('\0'), std::string::npos);
  for (const std::string& part : parts_of(name)) {
    EXPECT_FALSE(part.empty() || part == "." || part == "..") << name;
    EXPECT_LE(part.size(), kMostPartBytes) << name;
  }
}

TEST(Names, Table) {
  const struct {
    std::string key, name;
  } kTable[] = {
      {"a", "a"},
      {"train/n01/x.jpg", "train/n01/x.jpg"},
      {"a\nb\xff", "a\nb\xff"},
      {"a\0b"s, "a%00b"},
      {"/", "%2F"},
      {"//", "%2F%2F"},
      {"/etc/passwd", "%2Fetc/passwd"},
      {"a/", "a%2F"},
      {"a//b", "a/%2Fb"},
      {"../x", "%2E%2E/x"},
      {".", "%2E"},
      {"a/./b", "a/%2E/b"},
      {"...", "..."},
      {".x", ".x"},
      {"100%", "100%"},
      {"50%/x", "50%/x"},
      {"a%20b", "a%20b"},
      {"a%2Fb", "a%252Fb"},
      {"a%2fb", "a%2fb"},
      {"%25", "%2525"},
      {"%+", "%25+"},
      {"%\0"s, "%%00"},
      {std::string(255, 'x'), std::string(255, 'x')},
      {std::string(256, 'x'), std::string(253, 'x') + "%+/xxx"},
      {std::string(300, 'x') + "/y", std::string(253, 'x') + "%+/" + std::string(47, 'x') + "/y"},
      {std::string(252, 'x') + "\0yz"s, std::string(252, 'x') + "%+/%00yz"},
  };
  for (const auto& row : kTable) {
    EXPECT_EQ(name_of(row.key), row.name);
    EXPECT_EQ(key_of(row.name), row.key);
    expect_path(row.name);
  }
}

TEST(Names, Suffix) {
  EXPECT_EQ(name_of("a/b", ".jpg"), "a/b.jpg");
  EXPECT_EQ(name_of(".", ".jpg"), "%2E.jpg");
  const std::string long_name = name_of(std::string(254, 'x'), ".jpg");
  EXPECT_EQ(long_name, std::string(249, 'x') + "%+/xxxxx.jpg");
  expect_path(long_name);
}

TEST(Names, AnyKey) {
  std::mt19937 random(std::random_device{}());
  const unsigned seed = static_cast<unsigned>(random());
  SCOPED_TRACE(seed);
  random.seed(seed);
  const std::string special = "/%.+025EF\0ab"s;
  const std::string suffix = ".jpg";
  std::set<std::string> keys, names;
  for (int i = 0; i < 100000; ++i) {
    std::string key(1 + random() % (i % 10 == 0 ? 511 : 12), '\0');
    for (char& c : key) c = i % 3 == 0 ? static_cast<char>(random()) : special[random() % special.size()];
    if (!keys.insert(key).second) continue;
    const std::string name = name_of(key);
    expect_path(name);
    ASSERT_EQ(key_of(name), key) << name;
    ASSERT_TRUE(names.insert(name).second) << name;
    ASSERT_EQ(key_for_file(name), key) << name;
    const std::string with_suffix = name_of(key, suffix);
    expect_path(with_suffix);
    ASSERT_TRUE(with_suffix.ends_with(suffix));
    ASSERT_EQ(key_of(with_suffix.substr(0, with_suffix.size() - suffix.size())), key);
  }
}

// A directory's name with a slash gives the bytes with which all keys in the directory begin.
TEST(Names, PrefixOfDirectory) {
  for (const std::string& key : {"a/b/c"s, "/a/b"s, "a//b"s, "%25/x"s, std::string(600, 'x'), "a\0/b"s}) {
    const std::string name = name_of(key);
    for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
      EXPECT_TRUE(key.starts_with(key_of(name.substr(0, slash + 1)))) << name;
  }
}

TEST(Names, NamesOfFilesAreKept) {
  for (const std::string name : {"a.jpg", "a%20b.jpg", "100%/x", "x%2fy", "%", "%%", "a%3A%3Fb"}) {
    EXPECT_EQ(key_for_file(name), name);
    EXPECT_EQ(name_of(name), name);
  }
  // Such a name is that of no key.  The file is stored under it all the same.
  EXPECT_EQ(key_for_file("a%2Fb"), "a%2Fb");
}

}  // namespace
}  // namespace lmdbio::files
