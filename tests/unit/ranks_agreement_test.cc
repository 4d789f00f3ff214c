// Ranks that open databases in any order agree on one state of each, or all have the same error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/ranks/agreement.h"
#include "tests/support/fake_ranks.h"

namespace lmdbio::ranks {
namespace {

using Verdict = Agreement::Verdict;

constexpr std::int64_t kSecond = 1'000'000'000;

FileState state(std::uint64_t size, std::uint64_t txnid = 1) {
  FileState s;
  s.size = size;
  s.txnid = txnid;
  s.mtime_ns = 5 + txnid;
  s.metas[0] = size ^ txnid;
  return s;
}

class Ranks {
 public:
  explicit Ranks(std::uint32_t n, std::uint64_t seed = 1) : network(n, seed) {
    for (std::uint32_t r = 0; r < n; ++r)
      all.push_back(std::make_unique<Agreement>(network.rank(r), "host" + std::to_string(r / 2)));
  }
  std::uint64_t claim(std::uint32_t r, const std::string& path, const FileState& s,
                      const std::string& why = "", const std::string& name = "") {
    return all[r]->claim(path, name, s, why);
  }
  void progress(unsigned rounds = 100) {
    for (unsigned i = 0; i < rounds; ++i)
      for (std::uint32_t r = 0; r < all.size(); ++r) {
        (void)network.rank(r).poll();
        ASSERT_TRUE(all[r]->progress(now).ok());
      }
  }
  /// Time in which the ranks call.
  void pass(std::int64_t seconds) {
    for (; seconds > 0; --seconds) {
      now += kSecond;
      progress(3);
    }
  }
  void close() {
    for (unsigned i = 0; i < 100; ++i) {
      bool closed = true;
      for (auto& a : all) closed = a->close() && closed;
      if (closed) {
        EXPECT_EQ(network.open(), 0u);
        return;
      }
      (void)network.rank(0).poll();
    }
    FAIL() << "something is under way";
  }
  test::FakeNetwork network;
  std::vector<std::unique_ptr<Agreement>> all;
  std::int64_t now = 0;
};

TEST(Agreement, OpensAreMatchedByPathAndName) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    test::Rng rng(seed);
    const std::uint32_t n = rng.between(1, 9);
    Ranks ranks(n, seed);
    struct Open {
      std::string path, name;
      std::uint64_t size;
    };
    // The second of one path and name is another open than the first.
    const std::vector<Open> opens = {
        {"/a", "", 10}, {"/b", "", 20}, {"/a", "x", 10}, {"/a", "", 11}, {"/c", "", 30}};
    std::vector<std::vector<std::uint64_t>> claims(n, std::vector<std::uint64_t>(opens.size()));
    std::vector<std::vector<std::size_t>> order(n);
    for (std::uint32_t r = 0; r < n; ++r) {
      order[r] = {0, 1, 2, 3, 4};
      std::shuffle(order[r].begin(), order[r].end(), std::minstd_rand(static_cast<unsigned>(seed * 10 + r)));
      // But those of one path and name are in order.
      const auto first = std::find(order[r].begin(), order[r].end(), 0u),
                 second = std::find(order[r].begin(), order[r].end(), 3u);
      if (second < first) std::iter_swap(first, second);
    }
    for (std::size_t i = 0; i < opens.size(); ++i)
      for (std::uint32_t r = 0; r < n; ++r) {
        const Open& o = opens[order[r][i]];
        claims[r][order[r][i]] = ranks.claim(r, o.path, state(o.size), "", o.name);
        ranks.progress(rng.below(3));
      }
    ranks.progress();
    std::vector<std::uint32_t> numbers;
    for (std::size_t i = 0; i < opens.size(); ++i) {
      for (std::uint32_t r = 0; r < n; ++r) {
        const Agreement::Answer a = ranks.all[r]->answer(claims[r][i]);
        ASSERT_EQ(a.verdict, Verdict::agreed) << a.why;
        ASSERT_EQ(a.number, ranks.all[0]->answer(claims[0][i]).number);
      }
      numbers.push_back(ranks.all[0]->answer(claims[0][i]).number);
    }
    std::sort(numbers.begin(), numbers.end());
    ASSERT_EQ(numbers, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
    ranks.close();
  }
}

TEST(Agreement, NumbersInUseAreNotGivenAgain) {
  Ranks ranks(3);
  ranks.all[0]->avoid_numbers([](std::uint32_t number) { return number % 4 != 1; });
  for (std::uint32_t n = 0; n < 3; ++n) {
    std::vector<std::uint64_t> claims;
    for (std::uint32_t r = 0; r < 3; ++r) claims.push_back(ranks.claim(r, "/a", state(10)));
    ranks.progress();
    for (std::uint32_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.all[r]->answer(claims[r]).number, 4 * n + 1);
  }
  ranks.close();
}

TEST(Agreement, OneErrorForAll) {
  Ranks ranks(5);
  std::vector<std::uint64_t> claims;
  for (std::uint32_t r = 0; r < 5; ++r)
    claims.push_back(
        ranks.claim(r, "/a", r < 3 ? state(10) : FileState(), r < 3 ? "" : "/a: No such file or directory"));
  ranks.progress();
  for (std::uint32_t r = 0; r < 5; ++r) {
    const Agreement::Answer a = ranks.all[r]->answer(claims[r]);
    EXPECT_EQ(a.verdict, Verdict::failed);
    EXPECT_EQ(a.why, "rank 3 (host1): /a: No such file or directory (and 1 other ranks)");
  }
  ranks.close();
}

TEST(Agreement, FilesThatDiffer) {
  const struct {
    FileState there;
    const char* why;
  } kCases[] = {
      {state(11),
       "/a: not the same file on all ranks: rank 2 (host1) has a size of 11, but 10 on rank 0 (host0)"},
      {state(10, 7),
       "/a: not the same file on all ranks: rank 2 (host1) has transaction 7, but 1 on rank 0 (host0)"},
      {[] {
         FileState s = state(10);
         s.mtime_ns = 99;
         return s;
       }(),
       "/a: not the same file on all ranks: rank 2 (host1) has a modification time of 99, but 6 on rank 0 "
       "(host0)"},
      {[] {
         FileState s = state(10);
         s.metas[3] = 1;
         return s;
       }(),
       "/a: not the same file on all ranks: rank 2 (host1) has other meta pages than rank 0 (host0)"}};
  for (const auto& c : kCases) {
    Ranks ranks(3);
    std::vector<std::uint64_t> claims;
    for (std::uint32_t r = 0; r < 3; ++r)
      claims.push_back(ranks.claim(r, "/a", r == 2 ? c.there : state(10)));
    ranks.progress();
    for (std::uint32_t r = 0; r < 3; ++r) {
      ASSERT_EQ(ranks.all[r]->answer(claims[r]).verdict, Verdict::renew) << "it may be a writer";
      ranks.all[r]->claim_again(claims[r], r == 2 ? c.there : state(10), "");
    }
    ranks.progress();
    for (std::uint32_t r = 0; r < 3; ++r) {
      const Agreement::Answer a = ranks.all[r]->answer(claims[r]);
      EXPECT_EQ(a.verdict, Verdict::failed) << "nothing has changed: it is no writer";
      EXPECT_EQ(a.why, c.why);
    }
    ranks.close();
  }
}

TEST(Agreement, AWriterCommitsMeanwhile) {
  for (const unsigned commits : {1u, 3u, 30u}) {
    Ranks ranks(4);
    std::vector<std::uint64_t> claims;
    for (std::uint32_t r = 0; r < 4; ++r) claims.push_back(ranks.claim(r, "/a", state(10, r == 1 ? 2 : 1)));
    unsigned renewals = 0;
    for (;; ++renewals) {
      ranks.progress();
      const Verdict v = ranks.all[0]->answer(claims[0]).verdict;
      for (std::uint32_t r = 1; r < 4; ++r) ASSERT_EQ(ranks.all[r]->answer(claims[r]).verdict, v);
      if (v != Verdict::renew) break;
      for (std::uint32_t r = 0; r < 4; ++r)
        ranks.all[r]->claim_again(claims[r], state(10, 2 + renewals + (renewals + 1 < commits && r == 1)),
                                  "");
    }
    if (commits < Agreement::kMostRenewals) {
      EXPECT_EQ(ranks.all[0]->answer(claims[0]).verdict, Verdict::agreed);
      EXPECT_EQ(renewals, commits);
    } else {
      EXPECT_EQ(renewals, Agreement::kMostRenewals);
      EXPECT_EQ(ranks.all[3]->answer(claims[3]).why.substr(0, 42),
                "/a: changes too often to be opened: rank 1");
    }
    ranks.close();
  }
}

TEST(Agreement, ARankThatNeverOpens) {
  Ranks ranks(6);
  std::vector<std::uint64_t> claims(6);
  for (const std::uint32_t r : {0u, 1u, 3u, 5u}) claims[r] = ranks.claim(r, "/a", state(1));
  ranks.progress();
  ranks.now += 1000 * kSecond;  // in which nobody calls
  ranks.pass(58);
  EXPECT_EQ(ranks.all[3]->answer(claims[3]).verdict, Verdict::pending);
  ranks.pass(3);
  for (const std::uint32_t r : {0u, 1u, 3u, 5u}) {
    EXPECT_EQ(ranks.all[r]->answer(claims[r]).verdict, Verdict::failed);
    EXPECT_EQ(ranks.all[r]->answer(claims[r]).why, "/a: rank 2, 4 did not open it within 60 s");
  }
  // Who comes too late has the same error, at once.
  claims[2] = ranks.claim(2, "/a", state(1));
  ranks.progress();
  EXPECT_EQ(ranks.all[2]->answer(claims[2]).why, "/a: rank 2, 4 did not open it within 60 s");
  ranks.close();
}

TEST(Agreement, Rank0NeverAnswers) {
  Ranks ranks(2);
  const std::uint64_t claim = ranks.claim(1, "/a", state(1));
  for (std::int64_t s = 1; s < 75; ++s) {
    ranks.now = s * kSecond;
    (void)ranks.network.rank(1).poll();
    ASSERT_TRUE(ranks.all[1]->progress(ranks.now).ok());
    EXPECT_EQ(ranks.all[1]->answer(claim).late, s > 70) << s;
  }
  EXPECT_EQ(ranks.all[1]->answer(claim).code, ETIMEDOUT);
  EXPECT_EQ(ranks.all[1]->answer(claim).why.substr(0, 39), "/a: rank 0 did not answer within 70 s: ");
  // It comes in the end: then they agree, and rank 1 has to do its part.
  const std::uint64_t other = ranks.claim(0, "/a", state(1));
  ranks.progress();
  EXPECT_EQ(ranks.all[0]->answer(other).verdict, Verdict::agreed);
  EXPECT_EQ(ranks.all[1]->answer(claim).verdict, Verdict::agreed);
  EXPECT_FALSE(ranks.all[1]->answer(claim).late);
  ranks.close();
}

TEST(Agreement, OptionsThatDiffer) {
  Ranks ranks(3);
  std::vector<std::uint64_t> claims;
  for (std::uint32_t r = 0; r < 3; ++r) {
    Terms terms;
    terms.options = r == 2 ? 1 : 0;
    claims.push_back(ranks.all[r]->claim("/a", "", state(1), "", terms));
  }
  ranks.progress();
  for (std::uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks.all[r]->answer(claims[r]).code, EINVAL);
    EXPECT_EQ(ranks.all[r]->answer(claims[r]).why,
              "/a: rank 2 (host1) has other lmdbio_mpi_options than rank 0 (host0)");
  }
  ranks.close();
}

TEST(Agreement, StreamsAndFollowedDatabasesThatDiffer) {
  for (const auto& [kind, text] :
       {std::pair(Terms::Kind::stream, "opened a stream with another order than rank 0"),
        std::pair(Terms::Kind::follow, "follows it with other options or another state than rank 0")}) {
    Ranks ranks(3);
    Terms terms;
    terms.kind = kind;
    std::vector<std::uint64_t> claims;
    for (std::uint32_t r = 0; r < 3; ++r)
      claims.push_back(ranks.all[r]->claim("/a", "", state(r == 1 ? 2 : 1), "", terms));
    ranks.progress();
    for (std::uint32_t r = 0; r < 3; ++r) {
      EXPECT_EQ(ranks.all[r]->answer(claims[r]).verdict, Verdict::failed) << "it must not be renewed";
      EXPECT_EQ(ranks.all[r]->answer(claims[r]).code, EINVAL);
      EXPECT_EQ(ranks.all[r]->answer(claims[r]).why, "/a: rank 1 (host0) " + std::string(text) + " (host0)");
    }
    ranks.close();
  }
}

}  // namespace
}  // namespace lmdbio::ranks
