// Searches of one page against the plainest reference: look at each entry in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "lmdbio/format/search.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"
#include "tests/support/rng.h"

namespace lmdbio::format {
namespace {

using format::PageView;
using test::Rng;
using testing::ExactBytes;
using testing::FileImage;

constexpr std::uint64_t kSeed = 41;

MDB_val as_val(const std::string& s) { return {s.size(), const_cast<char*>(s.data())}; }

// --- References, written without looking at what is tested -------------------------------------------------
int sign(int x) { return (x > 0) - (x < 0); }
int by_bytes(const std::string& a, const std::string& b) {
  return sign(a.compare(b));
}  // char_traits compares unsigned
int from_the_end(const std::string& a, const std::string& b) {
  return by_bytes(std::string(a.rbegin(), a.rend()), std::string(b.rbegin(), b.rend()));
}
int as_numbers(const std::string& a, const std::string& b) {  // little-endian, of one size
  return by_bytes(std::string(a.rbegin(), a.rend()), std::string(b.rbegin(), b.rend()));
}
int shorter_first(const MDB_val* a, const MDB_val* b) {
  if (a->mv_size != b->mv_size) return a->mv_size < b->mv_size ? -1 : 1;
  return -std::memcmp(a->mv_data, b->mv_data, a->mv_size);
}
int shorter_first_text(const std::string& a, const std::string& b) {
  const MDB_val x = as_val(a), y = as_val(b);
  return sign(shorter_first(&x, &y));
}
using Compare = std::function<int(const std::string&, const std::string&)>;

Place reference(const std::vector<std::string>& keys, unsigned first, const std::string& key,
                const Compare& cmp) {
  for (unsigned i = first; i < keys.size(); ++i) {
    const int c = cmp(key, keys[i]);
    if (c <= 0) return {i, c == 0};
  }
  return {static_cast<unsigned>(keys.size()), false};
}

// --- Pages ------------------------------------------------------------------------------------------------
/// Keys over few letters tie often; over all bytes they show signedness.
std::string text(Rng& rng, std::size_t n) {
  const unsigned kind = rng.below(3);
  std::string s(n, '\0');
  for (char& c : s)
    c = static_cast<char>(kind == 0 ? 'a' + rng.below(2) : kind == 1 ? rng.below(256) : 0xfe + rng.below(2));
  return s;
}

std::vector<std::string> sorted(std::vector<std::string> keys, const Compare& cmp) {
  std::sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) { return cmp(a, b) < 0; });
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

/// As many of `keys` as fit.
std::vector<std::string> fitting(const std::vector<std::string>& keys, std::size_t page, std::size_t most) {
  std::size_t room = page - testing::kPageHeader;
  std::vector<std::string> out;
  for (const std::string& k : keys) {
    const std::size_t need = 2 + format::kNodeHeader + k.size() + (k.size() & 1);
    if (need > room || out.size() == most) break;
    room -= need;
    out.push_back(k);
  }
  return out;
}

/// A page alone in memory.
struct OnePage {
  OnePage(const std::vector<std::string>& keys, std::size_t size, bool leaf) : bytes(make(keys, size, leaf)) {
    EXPECT_TRUE(PageView::open(testing::version(), bytes.data(), size, format::Pgno{2}, view));
  }
  static ExactBytes make(const std::vector<std::string>& keys, std::size_t size, bool leaf) {
    FileImage f(size);
    if (leaf) {
      std::vector<testing::LeafEntry> entries;
      for (const std::string& k : keys) entries.push_back({k, ""});
      f.leaf(entries);
    } else {
      std::vector<testing::BranchEntry> entries;
      for (const std::string& k : keys) entries.push_back({k, 7});
      f.branch(entries);
    }
    return ExactBytes(Bytes(f.page(2), size));
  }
  ExactBytes bytes;
  PageView view;
};

std::string near(Rng& rng, const std::vector<std::string>& keys, std::size_t keep) {
  std::string k = keys[rng.below(keys.size())];
  if (k.size() > keep) {
    const std::size_t at = keep + rng.below(k.size() - keep);
    switch (rng.below(5)) {
      case 0:
        k[at] = static_cast<char>(k[at] + 1);
        break;
      case 1:
        k[at] = static_cast<char>(k[at] - 1);
        break;
      case 2:
        k.resize(std::max<std::size_t>(at, 1));
        break;
      default:
        break;
    }
  }
  if (rng.percent(25) && k.size() < 511) k += text(rng, 1);
  return k;
}

void expect_same(const Place& got, const Place& want, const std::string& what) {
  EXPECT_EQ(got.index, want.index) << what;
  EXPECT_EQ(got.exact, want.exact) << what;
}

class Search : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Search, InByteOrderIsTheFirstEntryNotLess) {
  const std::size_t page = GetParam();
  std::cout << "seed " << kSeed << '\n';
  Rng rng(kSeed + page);
  const unsigned rounds = page <= 4096 ? 60 : 8;
  for (unsigned round = 0; round < rounds; ++round) {
    const std::string prefix = rng.percent(60) ? text(rng, rng.below(page == 512 ? 40 : 480)) : "";
    const std::size_t longest =
        std::min<std::size_t>(page == 512 ? 78 : 511, prefix.size() + 1 + rng.below(60)) - prefix.size();
    std::vector<std::string> keys;
    for (unsigned i = 0; i < 40 + page / 16; ++i) {
      std::string k =
          prefix + text(rng, rng.between(prefix.empty() ? 1 : 0, static_cast<std::uint32_t>(longest)));
      if (rng.percent(50) && !keys.empty()) k = near(rng, keys, prefix.size());  // ties and neighbours
      k.resize(std::min<std::size_t>(k.size(), 511));
      if (!k.empty()) keys.push_back(k);
    }
    keys = sorted(keys, by_bytes);
    const std::size_t start = rng.percent(50) ? rng.below(keys.size()) : 0;
    keys = fitting({keys.begin() + static_cast<std::ptrdiff_t>(start), keys.end()}, page,
                   rng.percent(50) ? rng.between(1, 20) : 10'000);
    ASSERT_FALSE(keys.empty());
    const std::size_t skip = rng.percent(30)   ? 0
                             : rng.percent(50) ? prefix.size()
                                               : rng.below(prefix.size() + 1);
    for (const bool leaf : {true, false}) {
      if (!leaf && keys.size() < 2) continue;  // no branch page has one entry
      std::vector<std::string> entries = keys;
      if (!leaf && rng.percent(50)) entries[0] = "";  // as stock writes it
      const OnePage p(entries, page, leaf);
      ASSERT_EQ(p.view.count(), entries.size());
      for (unsigned n = 0; n < 40; ++n) {
        std::string key = rng.percent(70) ? near(rng, keys, skip)
                                          : keys[0].substr(0, std::min(skip, keys[0].size())) +
                                                text(rng, 1 + rng.below(20));
        key = key.substr(0, 511);
        // The caller's promise: the key and every entry that is compared start with the same `skip` bytes.
        if (key.size() < skip || key.compare(0, skip, prefix, 0, skip) != 0) continue;
        const ExactBytes block(std::as_bytes(std::span(key)));
        const Place want = reference(entries, leaf ? 0 : 1, key, by_bytes);
        Place got{9999, true};
        ASSERT_TRUE(leaf ? search_memn<true>(p.view, block.data(), key.size(), skip, got)
                         : search_memn<false>(p.view, block.data(), key.size(), skip, got));
        expect_same(got, want, "memn");
        ASSERT_TRUE(search_page(p.view, {Order::memn}, as_val(key), 0, got));
        expect_same(got, want, "page");
        ASSERT_FALSE(HasFailure()) << "round " << round << " leaf " << leaf << " entries " << entries.size()
                                   << " skip " << skip;
      }
    }
  }
}

struct OrderCase {
  Comparator order;
  Compare reference;
  std::size_t size;  // of keys; 0: any
};

TEST_P(Search, InEachOrder) {
  const std::size_t page = GetParam();
  Rng rng(kSeed * 3 + page);
  const OrderCase cases[] = {
      {{Order::memnr}, from_the_end, 0}, {Comparator::of_user(shorter_first), shorter_first_text, 0},
      {{Order::cint}, as_numbers, 4},    {{Order::cint}, as_numbers, 8},
      {{Order::uint}, as_numbers, 4},    {{Order::word}, as_numbers, 8},
      {{Order::cint}, as_numbers, 6},    {{Order::memn}, by_bytes, 9},
      {{Order::memnr}, from_the_end, 5}, {Comparator::of_user(shorter_first), shorter_first_text, 7},
  };
  for (const OrderCase& c : cases) {
    for (unsigned round = 0; round < 4; ++round) {
      std::vector<std::string> keys;
      for (unsigned i = 0; i < 60 + page / 24; ++i)
        keys.push_back(text(rng, c.size != 0 ? c.size : 1 + rng.below(20)));
      keys = fitting(sorted(keys, c.reference), page, rng.percent(50) ? rng.between(2, 12) : 10'000);
      for (unsigned kind = 0; kind < 3; ++kind) {  // leaf, branch, items of one size
        if (kind == 2 && c.size == 0) continue;
        if (kind == 1 && c.order.order == Order::cint && c.size == 6)
          continue;  // stock has no such branch keys
        FileImage f(page);
        if (kind == 2) f.leaf2(c.size, keys);
        const ExactBytes two(Bytes(f.page(kind == 2 ? 2 : 0), page));
        const OnePage slots(keys, page, kind != 1);
        PageView view = slots.view;
        if (kind == 2) {
          ASSERT_TRUE(PageView::open(testing::version(), two.data(), page, format::Pgno{2}, view));
        }
        for (unsigned n = 0; n < 20; ++n) {
          const std::string key = rng.percent(60) ? keys[rng.below(keys.size())]
                                                  : text(rng, c.size != 0 ? c.size : 1 + rng.below(20));
          Place got{9999, true};
          ASSERT_TRUE(search_page(view, c.order, as_val(key), c.size, got));
          expect_same(got, reference(keys, kind == 1 ? 1 : 0, key, c.reference),
                      "order " + std::to_string(static_cast<int>(c.order.order)));
          ASSERT_FALSE(HasFailure()) << "kind " << kind << " size " << c.size << " entries " << keys.size();
        }
      }
    }
  }
}

std::vector<std::size_t> page_sizes() {
  std::vector<std::size_t> sizes;
  for (std::size_t n = format::kMinPageSize; n <= format::max_page_size(testing::version()); n *= 2)
    sizes.push_back(n);
  return sizes;
}
INSTANTIATE_TEST_SUITE_P(PageSizes, Search, ::testing::ValuesIn(page_sizes()));

TEST(SearchPage, EmptyPage) {
  const OnePage leaf({}, 512, true);
  Place got{7, true};
  ASSERT_TRUE(search_page(leaf.view, {Order::memn}, as_val("k"), 0, got));
  expect_same(got, {0, false}, "page");
  ASSERT_TRUE(search_memn<true>(leaf.view, reinterpret_cast<const std::byte*>("k"), 1, 0, got));
  expect_same(got, {0, false}, "memn");
}

// Integer keys of a wrong size are compared as far as they and the entries reach.
TEST(SearchPage, IntegersOfAnotherSizeStayInsideThePage) {
  const OnePage p({"ab", "cd"}, 512, true);
  for (const Order order : {Order::cint, Order::uint, Order::word}) {
    for (std::size_t n = 1; n < 20; ++n) {
      Place got;
      EXPECT_TRUE(search_page(p.view, {order}, as_val(std::string(n, 'b')), 0, got));
    }
  }
}

TEST(Compare, Signs) {
  const auto order = [](Comparator c, const std::string& a, const std::string& b) {
    const ExactBytes x(std::as_bytes(std::span(a))), y(std::as_bytes(std::span(b)));
    return sign(compare(c, {a.size(), x.data()}, {b.size(), y.data()}, y.data() + b.size()));
  };
  EXPECT_EQ(order({Order::memn}, "a", "b"), -1);
  EXPECT_EQ(order({Order::memn}, "ab", "a"), 1);
  EXPECT_EQ(order({Order::memn}, "\xff", "\x01"), 1);
  EXPECT_EQ(order({Order::memn}, "12345678a", "12345678b"), -1);
  EXPECT_EQ(order({Order::memn}, "1234567", "12345678"), -1);
  EXPECT_EQ(order({Order::memn}, "same", "same"), 0);
  EXPECT_EQ(order({Order::memnr}, "az", "ba"), 1);
  EXPECT_EQ(order({Order::memnr}, "a", "ba"), -1);
  EXPECT_EQ(order({Order::memnr}, "ba", "a"), 1);
  EXPECT_EQ(order({Order::cint}, testing::number_bytes(256, 4), testing::number_bytes(1, 4)), 1);
  EXPECT_EQ(order({Order::cint}, testing::number_bytes(256, 8), testing::number_bytes(257, 8)), -1);
  EXPECT_EQ(order({Order::cint}, testing::number_bytes(0x10002, 4), testing::number_bytes(0x20001, 4)), -1);
  EXPECT_EQ(order({Order::cint}, testing::number_bytes(256, 3), testing::number_bytes(1, 3)), 1);
  EXPECT_EQ(order({Order::uint}, testing::number_bytes(1u << 31, 4), testing::number_bytes(1, 4)), 1);
  EXPECT_EQ(order({Order::word}, testing::number_bytes(std::uint64_t{1} << 63), testing::number_bytes(1)), 1);
  EXPECT_EQ(order({Order::word}, testing::number_bytes(5), testing::number_bytes(5)), 0);
}

TEST(Compare, DefaultsOfFlags) {
  EXPECT_EQ(default_key_order(0).order, Order::memn);
  EXPECT_EQ(default_key_order(MDB_REVERSEKEY).order, Order::memnr);
  EXPECT_EQ(default_key_order(MDB_INTEGERKEY).order, Order::cint);
  EXPECT_EQ(default_key_order(MDB_INTEGERKEY | MDB_REVERSEKEY).order, Order::memnr);
  EXPECT_EQ(default_dup_order(MDB_DUPSORT).order, Order::memn);
  EXPECT_EQ(default_dup_order(MDB_DUPSORT | MDB_DUPFIXED).order, Order::memn);
  EXPECT_EQ(default_dup_order(MDB_DUPSORT | MDB_INTEGERDUP).order, Order::cint);
  EXPECT_EQ(default_dup_order(MDB_DUPSORT | MDB_INTEGERDUP | MDB_DUPFIXED).order, Order::uint);
  EXPECT_EQ(default_dup_order(MDB_DUPSORT | MDB_INTEGERDUP | MDB_REVERSEDUP).order, Order::cint);
  EXPECT_EQ(default_dup_order(MDB_DUPSORT | MDB_REVERSEDUP).order, Order::memnr);
}

TEST(CommonPrefix, OfEachLength) {
  Rng rng(kSeed);
  for (unsigned i = 0; i < 3000; ++i) {
    std::string a = text(rng, rng.below(40)), b = rng.percent(70) ? a : text(rng, rng.below(40));
    if (!b.empty() && rng.percent(70)) b[rng.below(b.size())] ^= 1;
    if (rng.percent(30)) b += "x";
    const ExactBytes x(std::as_bytes(std::span(a))), y(std::as_bytes(std::span(b)));
    std::size_t want = 0;
    while (want < a.size() && want < b.size() && a[want] == b[want]) ++want;
    EXPECT_EQ(common_prefix(x.data(), a.size(), y.data(), b.size()), want);
  }
}

}  // namespace
}  // namespace lmdbio::format
