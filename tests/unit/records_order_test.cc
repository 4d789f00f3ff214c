#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "lmdbio/records/order.h"

namespace lmdbio::records {
namespace {

lmdbio_order plain(lmdbio_order_kind kind) {
  lmdbio_order o{};
  o.size = sizeof o;
  o.kind = kind;
  return o;
}

std::vector<std::uint64_t> sequence(const Order& o, std::uint64_t epoch = 0) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 0; i < o.length(); ++i) all.push_back(o.at(epoch, i));
  return all;
}

Order make(const lmdbio_order& o, std::uint64_t records) {
  Result<Order> made = Order::make(o, records);
  EXPECT_TRUE(made.has_value());
  return std::move(made).value();
}

TEST(Shuffle, IsAPermutationOfEachSize) {
  for (std::uint64_t n = 0; n < 1100; ++n) {
    std::vector<bool> seen(n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t x = shuffle(7, n % 3, n, i);
      ASSERT_LT(x, n);
      ASSERT_EQ(unshuffle(7, n % 3, n, x), i);
      ASSERT_FALSE(seen[x]) << n << ' ' << i;
      seen[x] = true;
    }
  }
}

// Jobs of other versions and machines resume by these numbers: they never change.
TEST(Shuffle, IsFrozen) {
  std::vector<std::uint64_t> ten, large;
  for (std::uint64_t i = 0; i < 10; ++i) ten.push_back(shuffle(1, 0, 10, i));
  for (std::uint64_t i = 0; i < 4; ++i) large.push_back(shuffle(42, 3, 1'281'167, i));
  EXPECT_EQ(ten, (std::vector<std::uint64_t>{2, 3, 0, 6, 4, 9, 7, 1, 8, 5}));
  EXPECT_EQ(large, (std::vector<std::uint64_t>{464617, 135789, 343695, 137304}));
  EXPECT_EQ(shuffle(1, 2, std::uint64_t{1} << 63, 3), 3206221324778299318u);
}

TEST(Shuffle, SeedsAndEpochsDiffer) {
  constexpr std::uint64_t kRecords = 1000;
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (std::uint64_t epoch = 0; epoch < 8; ++epoch) {
      std::vector<std::uint64_t> all;
      for (std::uint64_t i = 0; i < kRecords; ++i) all.push_back(shuffle(seed, epoch, kRecords, i));
      orders.insert(all);
    }
  EXPECT_EQ(orders.size(), 64u);
}

// Over many seeds each record gets each position equally often, and neighbours are torn apart.
TEST(Shuffle, SpreadsEvenly) {
  for (const std::uint64_t n : {2u, 3u, 5u, 12u, 100u, 256u, 300u}) {
    constexpr unsigned kSeeds = 4000;
    std::vector<unsigned> at(n * n);
    unsigned followed = 0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      std::uint64_t before = n;
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t x = shuffle(seed, 0, n, i);
        ++at[i * n + x];
        followed += x == before + 1;
        before = x;
      }
    }
    const double expected = static_cast<double>(kSeeds) / static_cast<double>(n);
    for (const unsigned count : at) EXPECT_NEAR(count, expected, 6 * std::sqrt(expected)) << n;
    // Of n - 1 neighbours one in n is followed by the next record.
    const double pairs = static_cast<double>(kSeeds) * static_cast<double>(n - 1) / static_cast<double>(n);
    EXPECT_NEAR(followed, pairs, 0.05 * pairs) << n;
  }
}

std::uint64_t twice(void*, std::uint64_t epoch, std::uint64_t i) { return 2 * i + epoch; }

TEST(Order, FunctionsGetEpochAndElement) {
  lmdbio_order o = plain(LMDBIO_ORDER_FUNCTION);
  o.length = 4;
  o.function = [](void* context, std::uint64_t epoch, std::uint64_t i) -> std::uint64_t {
    return *static_cast<std::uint64_t*>(context) * (epoch + 1) + i;
  };
  std::uint64_t ten = 10;
  o.function_context = &ten;
  EXPECT_EQ(sequence(make(o, 100), 1), (std::vector<std::uint64_t>{20, 21, 22, 23}));
  o.offset = 1, o.step = 3, o.across_epochs = 1;  // elements 1, 4, 7, 10 of 10 11 12 13 20 21 22 23 30 31 ..
  const Order share = make(o, 100);
  EXPECT_EQ(share.at(0, 0), 11u);
  EXPECT_EQ(share.at(0, 1), 20u);
  EXPECT_EQ(share.at(1, 1), 23u);
  EXPECT_EQ(share.element(0, 1), (Position{1, 0}));
  // What is no record does not become the mark of an absent key.
  o.function = [](void*, std::uint64_t, std::uint64_t) -> std::uint64_t { return UINT64_MAX; };
  EXPECT_EQ(make(o, 100).at(0, 0), UINT64_MAX - 1);
  o.function = nullptr;
  const char* wrong = "";
  EXPECT_EQ(Order::make(o, 100, &wrong).error().raw(), EINVAL);
  EXPECT_STREQ(wrong, "function: must not be NULL");
}

TEST(Order, Sequential) {
  EXPECT_EQ(sequence(make(plain(LMDBIO_ORDER_SEQUENTIAL), 5)), (std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(make(plain(LMDBIO_ORDER_SEQUENTIAL), 0).length(), 0u);
}

TEST(Order, SharesOfAllRanksAreTheWhole) {
  const std::uint64_t list[] = {4, 4, 0, 9};
  for (const lmdbio_order_kind kind :
       {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE, LMDBIO_ORDER_WINDOW_SHUFFLE, LMDBIO_ORDER_LIST,
        LMDBIO_ORDER_KEYS, LMDBIO_ORDER_FUNCTION}) {
    for (std::uint64_t ranks = 1; ranks < 14; ++ranks) {
      lmdbio_order o = plain(kind);
      const MDB_val keys[4]{};
      o.window = 3;
      o.seed = 5;
      o.function = twice;
      if (kind == LMDBIO_ORDER_LIST || kind == LMDBIO_ORDER_KEYS || kind == LMDBIO_ORDER_FUNCTION) {
        o.list = list;
        o.keys = keys;
        o.length = 4;
      }
      const std::vector<std::uint64_t> whole = sequence(make(o, 10), 2);
      std::vector<std::uint64_t> parts(whole.size());
      for (o.offset = 0, o.step = ranks; o.offset < ranks; ++o.offset) {
        const std::vector<std::uint64_t> part = sequence(make(o, 10), 2);
        for (std::size_t i = 0; i < part.size(); ++i) parts.at(o.offset + i * ranks) = part[i];
      }
      EXPECT_EQ(parts, whole) << kind << ' ' << ranks;
    }
  }
}

// Against the definition: all epochs' elements in one row.
TEST(Order, SharesAcrossEpochs) {
  const std::uint64_t list[] = {4, 4, 0, 9, 1};
  const MDB_val keys[5]{};
  constexpr std::uint64_t kEpochs = 40;
  for (const lmdbio_order_kind kind :
       {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE, LMDBIO_ORDER_WINDOW_SHUFFLE, LMDBIO_ORDER_LIST,
        LMDBIO_ORDER_KEYS, LMDBIO_ORDER_FUNCTION}) {
    for (const std::uint64_t records : {1u, 2u, 3u, 10u, 13u}) {
      lmdbio_order o = plain(kind);
      o.window = 4;
      o.seed = 5;
      o.list = kind == LMDBIO_ORDER_LIST && records < 10 ? nullptr : list;
      o.keys = keys;
      o.function = twice;
      o.length = o.list == nullptr ? 0 : 5;
      const Order whole = make(o, records);
      std::vector<std::uint64_t> row, epoch_of;
      for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch)
        for (std::uint64_t i = 0; i < whole.length(); ++i)
          row.push_back(whole.at(epoch, i)), epoch_of.push_back(epoch);
      o.across_epochs = 1;
      for (o.step = 1; o.step < 20; ++o.step) {
        for (o.offset = 0; o.offset < o.step; ++o.offset) {
          const Order share = make(o, records);
          EXPECT_EQ(share.empty(), row.empty());
          std::uint64_t at = o.offset, position = 0;
          for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch, position = 0) {
            ASSERT_EQ(share.left({epoch, 0}, kEpochs - 1),
                      (row.size() + o.step - 1 - at) / o.step * (at < row.size()));
            for (; at < row.size() && epoch_of[at] == epoch; at += o.step, ++position) {
              ASSERT_EQ(share.at(epoch, position), row[at]);
              ASSERT_EQ(share.at(0, at / o.step), row[at]) << "counted from the start";
              ASSERT_EQ(share.normal({0, at / o.step}), (Position{epoch, position}));
            }
            ASSERT_EQ(share.length(epoch), position);
          }
        }
      }
    }
  }
}

// Who has a record finds where each share has it: the opposite of at().
TEST(Order, PlacesOfRecords) {
  for (const lmdbio_order_kind kind :
       {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE, LMDBIO_ORDER_WINDOW_SHUFFLE}) {
    for (const std::uint64_t records : {1u, 2u, 9u, 300u}) {
      for (const std::uint64_t ranks : {1u, 2u, 7u, 400u}) {
        for (const std::uint64_t block : {1u, 5u}) {
          for (const int across : {0, 1}) {
            lmdbio_order o = plain(kind);
            o.window = 8;
            o.seed = 3;
            o.step = ranks;
            o.block = block;
            o.across_epochs = across;
            std::vector<std::optional<Position>> positions(3 * records);
            for (o.offset = 0; o.offset < ranks; ++o.offset) {
              const Order share = make(o, records);
              for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
                std::uint64_t found = 0;
                for (std::uint64_t x = 0; x < records; ++x) {
                  const auto at = share.position_of(epoch, share.element_of(epoch, x).value());
                  if (!at) continue;
                  ++found;
                  ASSERT_EQ(at->epoch, epoch);
                  ASSERT_EQ(share.at(epoch, at->position), x);
                  ASSERT_FALSE(positions[epoch * records + x]) << "two shares have it";
                  positions[epoch * records + x] = at;
                }
                ASSERT_EQ(found, share.length(epoch));
              }
            }
            for (const auto& position : positions) ASSERT_TRUE(position) << "no share has it";
          }
        }
      }
    }
  }
  const std::uint64_t list[] = {1, 1};
  lmdbio_order o = plain(LMDBIO_ORDER_LIST);
  o.list = list, o.length = 2;
  EXPECT_FALSE(make(o, 3).element_of(0, 1));
}

// Blocks: of each n blocks the one with the number of the rank, whether epochs are one sequence or not.
TEST(Order, SharesOfBlocks) {
  constexpr std::uint64_t kEpochs = 12;
  for (const std::uint64_t records : {1u, 7u, 12u, 50u}) {
    for (std::uint64_t block = 1; block < 9; ++block) {
      for (std::uint64_t ranks = 1; ranks < 6; ++ranks) {
        for (const int across : {0, 1}) {
          std::vector<std::vector<std::uint64_t>> expected(ranks), got(ranks);
          lmdbio_order o = plain(LMDBIO_ORDER_SHUFFLE);
          const Order whole = make(o, records);
          for (std::uint64_t epoch = 0, i = 0; epoch < kEpochs; ++epoch) {
            if (across == 0) i = 0;
            for (std::uint64_t k = 0; k < records; ++k, ++i)
              expected[i / block % ranks].push_back(epoch << 32 | whole.at(epoch, k));
          }
          o.step = ranks;
          o.block = block;
          o.across_epochs = across;
          for (o.offset = 0; o.offset < ranks; ++o.offset) {
            const Order share = make(o, records);
            for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch)
              for (std::uint64_t k = 0; k < share.length(epoch); ++k)
                got[o.offset].push_back(epoch << 32 | share.at(epoch, k));
          }
          ASSERT_EQ(got, expected) << records << ' ' << block << ' ' << ranks << ' ' << across;
        }
      }
    }
  }
}

// Epochs and records as large as there are numbers.
TEST(Order, AcrossEpochsNothingOverflows) {
  lmdbio_order o = plain(LMDBIO_ORDER_SEQUENTIAL);
  o.across_epochs = 1;
  o.step = 3, o.offset = 2;
  constexpr std::uint64_t kRecords = (std::uint64_t{1} << 63) + 1, kEpoch = std::uint64_t{1} << 62;
  const Order share = make(o, kRecords);
  const std::uint64_t length = share.length(kEpoch);
  EXPECT_GE(length, kRecords / 3);
  EXPECT_EQ(share.normal({kEpoch, length}), (Position{kEpoch + 1, 0}));
  EXPECT_LT(share.at(kEpoch, 0), 3u);
  EXPECT_GE(share.at(kEpoch, length - 1), kRecords - 3);
  EXPECT_EQ(share.at(kEpoch, 1) - share.at(kEpoch, 0), 3u);
  EXPECT_EQ(share.left({kEpoch, 1}, kEpoch), length - 1);
  EXPECT_EQ(share.left({0, 0}, UINT64_MAX), UINT64_MAX) << "more than can be said";
}

TEST(Order, WindowsKeepTheirPositions) {
  lmdbio_order o = plain(LMDBIO_ORDER_WINDOW_SHUFFLE);
  o.window = 16;
  const Order made = make(o, 100);
  std::set<std::vector<std::uint64_t>> kinds;
  for (std::uint64_t first = 0; first < 100; first += 16) {
    std::set<std::uint64_t> records;
    std::vector<std::uint64_t> relative;
    for (std::uint64_t i = first; i < std::min<std::uint64_t>(first + 16, 100); ++i) {
      records.insert(made.at(1, i));
      relative.push_back(made.at(1, i) - first);
    }
    EXPECT_EQ(*records.begin(), first);
    EXPECT_EQ(records.size(), std::min<std::uint64_t>(16, 100 - first));
    kinds.insert(relative);
  }
  EXPECT_EQ(kinds.size(), 7u);  // no two alike
}

TEST(Order, NamesTheFieldThatIsWrong) {
  const auto wrong = [](const lmdbio_order& o) {
    const char* field = "";
    EXPECT_FALSE(Order::make(o, 10, &field));
    return std::string(field);
  };
  const std::uint64_t list[] = {3, 10};
  lmdbio_order o = plain(LMDBIO_ORDER_SEQUENTIAL);
  o.offset = 2, o.step = 2;
  EXPECT_EQ(wrong(o), "offset: must be less than step");
  o = plain(LMDBIO_ORDER_SEQUENTIAL);
  o.position = 11;
  EXPECT_EQ(wrong(o), "position: beyond the end of the epoch");
  o = plain(LMDBIO_ORDER_SEQUENTIAL);
  o.across_epochs = 2;
  EXPECT_EQ(wrong(o), "across_epochs: must be 0 or 1");
  o.across_epochs = 1, o.step = 4, o.position = 4;  // of the first epoch: 0, 4, 8
  EXPECT_EQ(wrong(o), "position: beyond the end of the epoch");
  o = plain(LMDBIO_ORDER_WINDOW_SHUFFLE);
  EXPECT_EQ(wrong(o), "window: must be at least 1");
  o = plain(LMDBIO_ORDER_LIST);
  o.list = list, o.length = 2;
  EXPECT_EQ(wrong(o), "list: each ordinal must be less than the number of records");
  o.list = nullptr;
  EXPECT_EQ(wrong(o), "list: must not be NULL");
  o = plain(LMDBIO_ORDER_KEYS);
  o.length = 1;
  EXPECT_EQ(wrong(o), "keys: must not be NULL");
  const int none = 77;
  o = plain(LMDBIO_ORDER_SEQUENTIAL);
  std::memcpy(&o.kind, &none, sizeof none);
  EXPECT_EQ(wrong(o), "kind: unknown order");
  o = plain(LMDBIO_ORDER_SEQUENTIAL);
  std::memcpy(&o.last, &none, sizeof none);
  EXPECT_EQ(wrong(o), "last: unknown value");
}

// --- mixed orders -----------------------------------------------------------------------------------------

lmdbio_order mixed(const std::vector<double>& weights, std::size_t length = 0) {
  lmdbio_order o = plain(LMDBIO_ORDER_MIXED);
  o.weights = weights.data();
  o.weights_count = weights.size();
  o.length = length;
  o.seed = 7;
  return o;
}

Order make_mixed(const lmdbio_order& o, const std::vector<std::uint64_t>& firsts) {
  const char* wrong = "";
  Result<Order> made = Order::make(o, firsts.back(), &wrong, nullptr, firsts);
  EXPECT_TRUE(made.has_value()) << wrong;
  return std::move(made).value();
}

TEST(MixedOrder, BlocksHaveTheirShares) {
  const std::vector<std::uint64_t> firsts{0, 10, 10, 4010, 4017};
  const std::vector<double> weights{1, 0, 2, 0.5};
  const Order o = make_mixed(mixed(weights, 3 * 4096), firsts);
  EXPECT_EQ(o.length(), 3u * 4096);
  const std::uint64_t slots[] = {1170, 0, 2341, 585};  // largest remainder of 4096: 1170.3, 2340.6, 585.1
  for (std::uint64_t block = 0; block < 3; ++block) {
    std::vector<std::uint64_t> counts(4);
    for (std::uint64_t i = 0; i < 4096; ++i) {
      const std::uint64_t r = o.at(0, block * 4096 + i);
      ASSERT_LT(r, firsts.back());
      ++counts[static_cast<std::size_t>(std::upper_bound(firsts.begin(), firsts.end(), r) - firsts.begin()) -
               1];
    }
    for (std::size_t d = 0; d < 4; ++d) EXPECT_EQ(counts[d], slots[d]) << block << ' ' << d;
  }
}

// Over all epochs, each pass over a database has each of its records once, in an order of its own.
TEST(MixedOrder, DatabasesAreReadInWholePasses) {
  const std::vector<std::uint64_t> firsts{0, 100, 5100};
  const std::vector<double> weights{1, 1};
  const Order o = make_mixed(mixed(weights, 1000), firsts);
  // The order inside a block is that of the slots, so collect by element number of the database: whole
  // blocks.
  std::vector<unsigned> seen(5100);
  constexpr std::uint64_t kBlocks = 125;  // 1024 records of each database per block: 1280 and 25.6 passes
  for (std::uint64_t e = 0; e < kBlocks * 2048 / 1000; ++e)
    for (std::uint64_t i = 0; i < 1000; ++i) ++seen[o.at(e, i)];
  for (std::uint64_t r = 0; r < 5100; ++r) {
    const double passes = static_cast<double>(seen[r]);
    if (r < 100) {
      EXPECT_NEAR(passes, 1280, 2) << r;
    } else {
      EXPECT_NEAR(passes, 25.6, 1.1) << r;
    }
  }
}

TEST(MixedOrder, IsFrozen) {
  const std::vector<std::uint64_t> firsts{0, 1000, 1500, 9999};
  const std::vector<double> weights{0.2, 0.3, 0.5};
  const Order o = make_mixed(mixed(weights), firsts);
  std::vector<std::uint64_t> some;
  for (std::uint64_t i = 0; i < 6; ++i) some.push_back(o.at(3, i * 1111));
  EXPECT_EQ(some, (std::vector<std::uint64_t>{1472, 1936, 4217, 9795, 5234, 7844}));
}

TEST(MixedOrder, SharesAndPositionsAreThoseOfOtherOrders) {
  const std::vector<std::uint64_t> firsts{0, 30, 100};
  const std::vector<double> weights{3, 1};
  lmdbio_order whole = mixed(weights);
  const Order all = make_mixed(whole, firsts);
  EXPECT_EQ(all.length(), 100u);
  whole.step = 3, whole.offset = 1, whole.block = 4;
  const Order share = make_mixed(whole, firsts);
  std::vector<std::uint64_t> wanted;
  for (std::uint64_t i = 0; i < 100; ++i)
    if (i / 4 % 3 == 1) wanted.push_back(all.at(2, i));
  EXPECT_EQ(sequence(share, 2), wanted);
  EXPECT_NE(sequence(share, 1), wanted);
  EXPECT_FALSE(share.repeats());
  EXPECT_FALSE(all.element_of(0, 5).has_value());
}

TEST(MixedOrder, NamesWhatIsWrongWithTheWeights) {
  const std::vector<std::uint64_t> firsts{0, 30, 30, 100};
  const auto wrong = [&](const std::vector<double>& weights) {
    const char* text = "";
    EXPECT_FALSE(Order::make(mixed(weights), 100, &text, nullptr, firsts));
    return std::string(text);
  };
  const std::string count = "weights: there must be one for each database";
  EXPECT_EQ(wrong({}), count);
  EXPECT_EQ(wrong({1, 1}), count);
  EXPECT_EQ(wrong({1, 1, 1}), "weights: must be 0 for a database without records");
  EXPECT_EQ(wrong({1, 0, -1}), "weights: must be finite and at least 0");
  EXPECT_EQ(wrong({1, 0, NAN}), "weights: must be finite and at least 0");
  EXPECT_EQ(wrong({1, 0, INFINITY}), "weights: must be finite and at least 0");
  EXPECT_EQ(wrong({0, 0, 0}), "weights: their sum must be finite and more than 0");
  EXPECT_EQ(wrong({1e308, 0, 1e308}), "weights: their sum must be finite and more than 0");
  EXPECT_EQ(wrong({1, 0, 1e-9}), "weights: one is too small, compared with their sum");
}

TEST(Order, EndsBeforeAnEpoch) {
  lmdbio_order o = plain(LMDBIO_ORDER_SEQUENTIAL);
  EXPECT_EQ(end_epoch(o), 1u);
  EXPECT_EQ(epochs_to_read(o), 1u);
  o.epoch = 7;
  EXPECT_EQ(end_epoch(o), 8u);
  o.end_epoch = 10;
  EXPECT_EQ(end_epoch(o), 10u);
  EXPECT_EQ(epochs_to_read(o), 3u);
  o.end_epoch = 7;
  EXPECT_EQ(epochs_to_read(o), 0u);
  o.end_epoch = 2;
  EXPECT_EQ(epochs_to_read(o), 0u);
  o.end_epoch = LMDBIO_ENDLESS;
  EXPECT_EQ(end_epoch(o), UINT64_MAX);
  EXPECT_GT(epochs_to_read(o), UINT64_MAX / 2);
  o.epoch = UINT64_MAX;
  o.end_epoch = 0;
  EXPECT_EQ(end_epoch(o), UINT64_MAX);
  EXPECT_EQ(epochs_to_read(o), 0u);
}

TEST(Order, RefusesWhatItCannotBe) {
  const auto refused = [](const lmdbio_order& o) {
    const Result<Order> made = Order::make(o, 10);
    return !made && made.error().raw() == EINVAL;
  };
  lmdbio_order o = plain(LMDBIO_ORDER_SEQUENTIAL);
  o.offset = 1;
  EXPECT_TRUE(refused(o));
  o.step = 1;
  EXPECT_TRUE(refused(o));
  o.step = 2;
  EXPECT_FALSE(refused(o));
  o.position = 5;
  EXPECT_FALSE(refused(o));
  o.position = 6;
  EXPECT_TRUE(refused(o));
  EXPECT_TRUE(refused(plain(LMDBIO_ORDER_WINDOW_SHUFFLE)));
  EXPECT_TRUE(refused(plain(static_cast<lmdbio_order_kind>(7))));
  lmdbio_order l = plain(LMDBIO_ORDER_LIST);
  EXPECT_FALSE(refused(l));
  l.length = 2;
  EXPECT_TRUE(refused(l));
  const std::uint64_t list[] = {9, 10};
  l.list = list;
  EXPECT_TRUE(refused(l));
  l.length = 1;
  EXPECT_FALSE(refused(l));
}

}  // namespace
}  // namespace lmdbio::records
