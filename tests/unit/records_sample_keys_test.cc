// Keys of samples by number.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/records/order.h"
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
    keys.for_each([&](std::uint64_t n, const KeyList::Entry& e) {
      ASSERT_EQ(n, it->first);
      ASSERT_EQ(text(e.key.key), it->second.first);
      ASSERT_EQ(text(e.key.value), it->second.second);
      ASSERT_EQ(e.place.page(), n % 7 == 0 ? 0 : n << 20);
      ASSERT_TRUE(keys.get(n).key == e.key);
      ASSERT_TRUE(keys.knows(n));
      ASSERT_FALSE(keys.knows(n + 1) && !want.contains(n + 1));
      ++it;
    });
  };
  for (unsigned round = 0; round < 30; ++round) {
    for (unsigned i = rng.below(50); i > 0; --i) {
      number += 1 + rng.below(3);
      const std::string key(1 + rng.below(511), static_cast<char>(rng.below(256)));
      const std::string value(rng.below(3) * rng.below(200), static_cast<char>(rng.below(256)));
      keys.add(number, {bytes(key), bytes(value)},
               number % 7 == 0 ? SamplePlace() : SamplePlace(number << 20, 4095, SamplePlace::kMostSnapshot));
      want[number] = {key, value};
    }
    check();
    if (round % 3 == 0) {  // a list of keys in another order, short or long
      const std::size_t n = rng.percent(50) ? 30 : 2000;
      const std::uint64_t epoch = rng.below(3);
      KeyList list;
      for (std::size_t i = 0; i < n; ++i) {
        const std::string key = std::to_string(i) + "of" + std::to_string(round);
        const std::uint64_t of = number + 1 + (epoch == 0 ? i : unshuffle(5, epoch, n, i));
        list.add({bytes(key), {}}, of % 7 == 0 ? SamplePlace() : SamplePlace(of << 20, 7, 9));
        want[of] = {key, {}};
      }
      keys.add(number + 1, std::move(list), 5, epoch);
      number += n;
      check();
    }
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

TEST(SampleKeys, FindsNumbersByKey) {
  test::Rng rng(2);
  SampleKeys keys;
  std::map<std::string, std::uint64_t> want;  // key and value -> number
  std::uint64_t number = 0;
  const auto take = [&](const std::string& k) { return keys.take({bytes(k).first(2), bytes(k).subspan(2)}); };
  for (unsigned round = 0; round < 200; ++round) {
    for (unsigned i = rng.below(100); i > 0; --i) {
      std::string k = std::to_string(10 + rng.below(500)) + std::string(rng.below(2), 'x');
      if (!want.emplace(k, number).second) continue;
      keys.add(number, {bytes(k).first(2), bytes(k).subspan(2)});
      number += 1 + rng.below(2);
    }
    for (unsigned i = rng.below(60); i > 0; --i) {
      const std::string k = std::to_string(10 + rng.below(500)) + std::string(rng.below(2), 'x');
      const auto it = want.find(k);
      const std::optional<std::uint64_t> got = take(k);
      ASSERT_EQ(got.has_value(), it != want.end()) << k;
      if (it == want.end()) continue;
      ASSERT_EQ(*got, it->second);
      want.erase(it);
    }
    if (round % 20 != 0) continue;
    std::vector<std::uint64_t> live;
    for (const auto& [k, n] : want) live.push_back(n);
    std::sort(live.begin(), live.end());
    keys.keep(live);
  }
  KeyList list;
  for (unsigned i = 0; i < 3000; ++i) list.add({bytes("of the list " + std::to_string(i)), {}}, {});
  keys.add(number, std::move(list), 1, 1);
  for (unsigned i = 0; i < 3000; ++i)
    ASSERT_EQ(keys.take({bytes("of the list " + std::to_string(i)), {}}), number + unshuffle(1, 1, 3000, i));
}

// The bytes of a key are 10.  A list takes 20 more, and a table that finds numbers at most 48.
TEST(SampleKeys, TakesLittleMemory) {
  constexpr std::uint64_t kKeys = 100'000, kKey = 10;
  SampleKeys one_by_one, as_list;
  KeyList list;
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::string key = std::to_string(1'000'000'000 + i);
    one_by_one.add(i, {bytes(key), {}});
    list.add({bytes(key), {}}, {});
  }
  as_list.add(0, std::move(list), 1, 1);
  EXPECT_LT(as_list.memory_bytes(), kKeys * (kKey + 21));
  EXPECT_LT(one_by_one.memory_bytes(), kKeys * (kKey + 29));
  EXPECT_FALSE(as_list.take({bytes("unknown"), {}}));
  EXPECT_LT(as_list.memory_bytes(), kKeys * (kKey + 21 + 48));
}

TEST(SampleKeys, PlacesThatAreTooLargeAreUnknown) {
  EXPECT_FALSE(SamplePlace().known());
  EXPECT_TRUE(SamplePlace((std::uint64_t{1} << 36) - 1, 4095, 0).known());
  EXPECT_FALSE(SamplePlace(std::uint64_t{1} << 36, 0, 0).known());
  EXPECT_FALSE(SamplePlace(2, 4096, 0).known());
  const SamplePlace p((std::uint64_t{1} << 36) - 1, 4094, 0xfffe);
  EXPECT_EQ(p.page(), (std::uint64_t{1} << 36) - 1);
  EXPECT_EQ(p.index(), 4094u);
  EXPECT_EQ(p.snapshot(), 0xfffeu);
}

TEST(SampleKeys, KeysAndValuesAreDistinct) {
  const std::string a = "ab", b = "c", c = "a", d = "bc", none;
  EXPECT_FALSE((SampleKey{bytes(a), bytes(b)} == SampleKey{bytes(c), bytes(d)}));
  EXPECT_TRUE((SampleKey{bytes(a), bytes(none)} == SampleKey{bytes(a), {}}));
}

}  // namespace
}  // namespace lmdbio::records
