// The end of a stream, with ranks that come to it in any sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "lmdbio/ranks/departure.h"
#include "tests/support/fake_ranks.h"

namespace lmdbio::ranks {
namespace {

using test::FakeNetwork;

struct Ranks {
  Ranks(std::uint32_t n, std::uint64_t seed) : network(n, seed), ready(n) {
    for (std::uint32_t r = 0; r < n; ++r) all.push_back(std::make_unique<Departure>(r, n));
  }
  /// Polls so often that everything ends that can end.
  void run() {
    for (unsigned i = 0; i < 200; ++i)
      for (std::uint32_t r = 0; r < all.size(); ++r) {
        if (ready[r])
          if (const Status st = all[r]->progress(network.rank(r)); !st.ok() && status.ok()) status = st;
        (void)network.rank(r).poll();
      }
  }
  template <class What>
  std::size_t count(What&& what) const {
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& one) { return what(*one); }));
  }
  FakeNetwork network;
  std::vector<bool> ready;
  std::vector<std::unique_ptr<Departure>> all;
  Status status;
};

TEST(Departure, NobodyLeavesBeforeAllAreReady) {
  for (std::uint32_t n = 1; n <= 17; ++n) {
    SCOPED_TRACE(n);
    for (std::uint32_t last = 0; last < n; ++last) {
      Ranks ranks(n, n * 31 + last);
      for (std::uint32_t r = 0; r < n; ++r) ranks.ready[r] = r != last;
      ranks.run();
      EXPECT_EQ(ranks.count([](const Departure& d) { return d.all_ready(); }), 0u);
      ranks.ready[last] = true;
      ranks.run();
      EXPECT_TRUE(ranks.status.ok());
      EXPECT_EQ(ranks.count([](const Departure& d) { return d.all_ready() && d.closed(); }), n);
      EXPECT_EQ(ranks.network.messages, 2 * (n - 1));
      EXPECT_EQ(ranks.network.open(), 0u);
      EXPECT_LE(ranks.network.most_waiting, 1u);
    }
  }
}

TEST(Departure, AMessageThatIsLostIsAnError) {
  for (std::uint64_t n = 1; n <= 8; ++n)
    for (const bool lost : {false, true}) {
      SCOPED_TRACE(n);
      Ranks ranks(5, n);
      (lost ? ranks.network.loses_at : ranks.network.refuses_at) = n;
      ranks.ready.assign(5, true);
      ranks.run();
      EXPECT_EQ(ranks.status.raw(), EIO) << lost;
    }
}

}  // namespace
}  // namespace lmdbio::ranks
