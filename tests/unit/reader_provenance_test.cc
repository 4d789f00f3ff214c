// Guessed places of records against what stock LMDB really wrote.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lmdbio/format/layout.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/reader/provenance.h"
#include "tests/support/lmdb_api.h"

namespace lmdbio::reader {
namespace {

namespace fs = std::filesystem;
constexpr unsigned kShift = 12;
constexpr std::size_t kPage = std::size_t{1} << kShift;

struct Written {
  std::vector<std::uint64_t> leaves, branches;
  std::vector<LeafSample> samples;  ///< of all leaves
  std::vector<RecordPlace> places;
};

struct Wishes {
  unsigned records = 6000, commit = 1000;
  std::size_t value_bytes = 5000;
  bool append = false, backwards = false;
  unsigned odd_every = 0;  ///< each so many values is larger; 0: none
};

class Walk {
 public:
  explicit Walk(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    bytes_.resize(fs::file_size(file));
    in.read(reinterpret_cast<char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
    const std::byte* const metas[] = {bytes_.data(), bytes_.data() + kPage};
    const auto txnid = [&](int i) { return load<std::uint64_t>(metas[i] + 144); };
    down(load<std::uint64_t>(metas[txnid(1) > txnid(0)] + 88 + 40));
  }
  Written take() { return std::move(out_); }

 private:
  void down(std::uint64_t p) {
    format::PageView page;
    ASSERT_TRUE(format::PageView::open(bytes_.data() + p * kPage, kPage, format::Pgno{p}, page));
    if (page.is_branch() && !is_branch(child(page, 0))) out_.branches.push_back(out_.leaves.size());
    LeafSample leaf;
    leaf.page = p;
    for (unsigned i = 0; i < page.count(); ++i) {
      format::Node n;
      ASSERT_TRUE(page.node(i, n));
      if (page.is_branch()) {
        down(format::raw(n.child()));
        continue;
      }
      RecordPlace place;
      place.leaf = p;
      place.slot = i;
      if ((n.flags() & format::kBigData) != 0) {
        place.overflow = format::raw(n.overflow());
        place.value_bytes = n.data_size();
        leaf.values.push_back({place.overflow, format::overflow_pages(n.data_size(), kShift), true});
      } else {
        leaf.values.push_back({0, 0, n.flags() == 0});
      }
      out_.places.push_back(place);
    }
    if (page.is_branch()) return;
    out_.leaves.push_back(p);
    out_.samples.push_back(std::move(leaf));
  }

  static format::Pgno child(const format::PageView& page, unsigned i) {
    format::Node n;
    EXPECT_TRUE(page.node(i, n));
    return n.child();
  }
  bool is_branch(format::Pgno p) const {
    return (load<std::uint16_t>(bytes_.data() + format::raw(p) * kPage + format::kAtFlags) &
            format::kBranch) != 0;
  }

  std::vector<std::byte> bytes_;
  Written out_;
};

Written written(const Wishes& w) {
  static const test::LmdbApi lmdb = test::load_lmdb("liblmdb.so.0");
  std::string file = ::testing::TempDir() + "lmdbio_provenance_XXXXXX";
  EXPECT_NE(::mkdtemp(file.data()), nullptr);
  const std::string folder = file;
  file += "/db";
  MDB_env* env = nullptr;
  EXPECT_EQ(lmdb.env_create(&env), 0);
  EXPECT_EQ(lmdb.env_set_mapsize(env, std::size_t{1} << 30), 0);
  EXPECT_EQ(lmdb.env_open(env, file.c_str(), MDB_NOSUBDIR | MDB_NOSYNC | MDB_NOLOCK, 0600), 0);
  std::string value(w.value_bytes + kPage, 'v');
  for (unsigned i = 0; i < w.records;) {
    MDB_txn* txn = nullptr;
    MDB_dbi dbi = 0;
    EXPECT_EQ(lmdb.txn_begin(env, nullptr, 0, &txn), 0);
    EXPECT_EQ(lmdb.dbi_open(txn, nullptr, 0, &dbi), 0);
    for (unsigned k = 0; k < w.commit && i < w.records; ++k, ++i) {
      char text[16];
      std::snprintf(text, sizeof text, "%08u", w.backwards ? w.records - i : i);
      const bool odd = w.odd_every != 0 && i % w.odd_every == w.odd_every - 1;
      MDB_val key{8, text}, data{w.value_bytes + (odd ? kPage : 0), value.data()};
      EXPECT_EQ(lmdb.put(txn, dbi, &key, &data, w.append ? MDB_APPEND : 0), 0);
    }
    EXPECT_EQ(lmdb.txn_commit(txn), 0);
  }
  lmdb.env_close(env);
  Written all = Walk(file).take();
  fs::remove_all(folder);
  EXPECT_EQ(all.places.size(), w.records);
  return all;
}

std::optional<Provenance> learnt(const Written& w) {
  const std::size_t n = std::min(Provenance::kSamples, w.samples.size());
  return Provenance::learn(w.leaves, w.branches, std::span(w.samples).first(n), w.places.size());
}

struct Outcome {
  std::size_t guessed = 0, right = 0;
};
Outcome all_guesses(Provenance p, const Written& w) {
  Outcome o;
  for (std::uint64_t i = 0; i < w.places.size(); ++i) {
    const std::optional<Provenance::Guess> g = p.guess(i);
    if (!g) continue;
    ++o.guessed;
    o.right += p.check(*g, w.places[i], kShift);
  }
  EXPECT_EQ(p.counters().guessed, o.guessed);
  EXPECT_EQ(p.counters().right, o.right);
  EXPECT_EQ(p.counters().wrong, o.guessed - o.right);
  return o;
}

TEST(Provenance, LargeValuesWrittenInOrder) {
  for (const Wishes& wishes : {Wishes{.records = 12'000, .value_bytes = 3000},
                               Wishes{.records = 12'000, .value_bytes = 3000, .append = true},
                               Wishes{.value_bytes = 5000}, Wishes{.value_bytes = 9000, .append = true}}) {
    const Written w = written(wishes);
    std::optional<Provenance> p = learnt(w);
    ASSERT_TRUE(p.has_value()) << wishes.value_bytes;
    EXPECT_EQ(p->commit_interval(), wishes.commit) << wishes.value_bytes;
    const Outcome o = all_guesses(*p, w);
    EXPECT_EQ(o.right, o.guessed) << wishes.value_bytes;
    EXPECT_GT(o.guessed, w.places.size() / 2) << wishes.value_bytes;  // the rest: near commits
  }
}

TEST(Provenance, OneCommit) {
  Wishes wishes;
  wishes.commit = wishes.records;
  const Written w = written(wishes);
  std::optional<Provenance> p = learnt(w);
  ASSERT_TRUE(p.has_value());
  EXPECT_EQ(p->commit_interval(), 0u);
  const Outcome o = all_guesses(*p, w);
  EXPECT_EQ(o.right, o.guessed);
  EXPECT_GT(o.guessed, w.places.size() - 400);
}

TEST(Provenance, SmallValuesWrittenInOrder) {
  Wishes wishes;
  wishes.records = 20'000;
  wishes.value_bytes = 200;
  const Written w = written(wishes);
  std::optional<Provenance> p = learnt(w);
  ASSERT_TRUE(p.has_value());
  const Outcome o = all_guesses(*p, w);
  EXPECT_EQ(o.right, w.places.size());
}

TEST(Provenance, NothingIsSeenWhereThereIsNoRule) {
  Wishes wishes;
  wishes.records = 4000;
  wishes.odd_every = 7;
  EXPECT_FALSE(learnt(written(wishes)).has_value());
  Written w = written({.records = 4000});
  EXPECT_FALSE(Provenance::learn(w.leaves, w.branches, std::span(w.samples).first(2), 4000).has_value());
  EXPECT_FALSE(Provenance::learn(w.leaves, w.branches, {}, 4000).has_value());
  w.samples[1].values[3].plain = false;
  EXPECT_FALSE(learnt(w).has_value());
}

TEST(Provenance, TheFirstContradictionEndsIt) {
  Wishes wishes;
  wishes.commit = wishes.records;
  wishes.records = 8000;
  wishes.odd_every = 7919;  // behind the samples
  const Written w = written(wishes);
  std::optional<Provenance> p = learnt(w);
  ASSERT_TRUE(p.has_value());
  for (std::uint64_t i = 7000; i < w.places.size(); ++i) {
    const std::optional<Provenance::Guess> g = p->guess(i);
    if (!g) break;
    (void)p->check(*g, w.places[i], kShift);
  }
  EXPECT_EQ(p->counters().wrong, 1u);
  EXPECT_FALSE(p->guess(1000).has_value());
}

// Any page number and count may stand in a sample: nothing but a guess comes of it.
TEST(Provenance, HostileSamples) {
  std::vector<std::uint64_t> leaves;
  std::vector<LeafSample> samples;
  for (std::uint64_t j = 0; j < 40; ++j) {
    leaves.push_back(j % 3 == 0 ? ~std::uint64_t{0} - j : j);
    LeafSample s;
    s.page = leaves.back();
    for (std::uint64_t i = 0; i < 5; ++i)
      s.values.push_back({j * i * 0x1111111111111111u, ~std::uint64_t{0}, true});
    samples.push_back(s);
  }
  std::optional<Provenance> p = Provenance::learn(leaves, {0, 1u << 31}, std::span(samples).first(32), 200);
  for (std::uint64_t i = 0; p && i < 300; ++i) (void)p->guess(i);
}

}  // namespace
}  // namespace lmdbio::reader
