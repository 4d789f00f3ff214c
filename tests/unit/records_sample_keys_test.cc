// Keys of samples by number.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/records/sample_keys.h"
#include "tests/support/rng.h"

namespace lmdbio::records {
namespace {

Bytes bytes(const std::string& s) { return std::as_bytes(std::span(s)); }
std::string text(Bytes b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

TEST(SampleKeys, KeepsWhatWasAdded) {
  test::Rng rng(1);
  SampleKeys keys;
  std::map<std::uint64_t, std::pair<std::string, std::string>> want;
  std::uint64_t number = 0;
  const auto check = [&] {
    ASSERT_EQ(keys.size(), want.size());
    auto it = want.begin();
    keys.for_each([&](std::uint64_t n, const SampleKey& k) {
      ASSERT_EQ(n, it->first);
      ASSERT_EQ(text(k.key), it->second.first);
      ASSERT_EQ(text(k.value), it->second.second);
      ASSERT_TRUE(keys.get(n) == k);
      ASSERT_TRUE(keys.knows(n));
      ++it;
    });
  };
  for (unsigned round = 0; round < 30; ++round) {
    for (unsigned i = rng.below(50); i > 0; --i) {
      number += 1 + rng.below(3);
      const std::string key(1 + rng.below(511), static_cast<char>(rng.below(256)));
      const std::string value(rng.below(3) * rng.below(200), static_cast<char>(rng.below(256)));
      keys.add(number, {bytes(key), bytes(value)});
      want[number] = {key, value};
    }
    check();
    std::vector<std::uint64_t> live{number + 1000};
    for (auto it = want.begin(); it != want.end();) {
      if (rng.percent(60)) {
        live.push_back(it->first);
        ++it;
      } else {
        it = want.erase(it);
      }
    }
    std::sort(live.begin(), live.end());
    keys.keep(live);
    check();
    EXPECT_FALSE(keys.knows(number + 1000));
  }
  const std::uint64_t before = keys.memory_bytes();
  keys.keep({});
  EXPECT_EQ(keys.size(), 0u);
  EXPECT_LT(keys.memory_bytes(), before);
}

TEST(SampleKeys, KeysAndValuesAreDistinct) {
  const std::string a = "ab", b = "c", c = "a", d = "bc", none;
  EXPECT_FALSE((SampleKey{bytes(a), bytes(b)} == SampleKey{bytes(c), bytes(d)}));
  EXPECT_TRUE((SampleKey{bytes(a), bytes(none)} == SampleKey{bytes(a), {}}));
}

}  // namespace
}  // namespace lmdbio::records
