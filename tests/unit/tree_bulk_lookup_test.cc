// Lookups of many keys at once against single ones, on every kind of database that LMDB writes and on
// damaged pages; what is kept, what is read, and reads that fail.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/io/engine_memory.h"
#include "lmdbio/tree/bulk_lookup.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "tests/support/damaged.h"
#include "tests/support/dbgen.h"
#include "tests/support/file_image.h"
#include "tests/support/rng.h"

namespace lmdbio::tree {
namespace {

namespace fs = std::filesystem;
using Outcome = KeyPlace::Outcome;
using testing::as_val;
using testing::FileImage;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 1;  // slow
#else
constexpr std::uint64_t kSeeds = 3;
#endif

std::string new_directory() {
  std::string path = ::testing::TempDir() + "lmdbio_bulk_XXXXXX";
  EXPECT_NE(::mkdtemp(path.data()), nullptr);
  return path;
}

/// A file's bytes and a transaction over them.
struct Open {
  explicit Open(std::vector<std::byte> b, format::PageFormat pages, unsigned max_dbs = 20)
      : bytes(std::move(b)),
        env(std::move(Env::over(bytes, {pages, bytes.size(), max_dbs, false}).value())),
        txn(*env) {
    const MetaSource source(env->metas().records);
    std::uint64_t txnid = 0;
    EXPECT_TRUE(source.renew(txnid).ok());
    EXPECT_TRUE(txn.begin(txnid, source).ok());
  }
  std::uint64_t page_of(const std::byte* at) const {
    return static_cast<std::uint64_t>(at - txn.view().base()) >> txn.view().shift();
  }
  std::vector<std::byte> bytes;
  std::unique_ptr<Env> env;
  Txn txn;
};

std::vector<std::byte> contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  std::vector<std::byte> out(text.size());
  std::transform(text.begin(), text.end(), out.begin(), [](char c) { return static_cast<std::byte>(c); });
  return out;
}

/// Each key's answer is what a walker of its own finds: the same entry of the same page.
void compare(Open& db, MDB_dbi dbi, const std::vector<std::string>& keys, PageStore& store, unsigned& found) {
  std::vector<MDB_val> vals;
  for (const std::string& k : keys) vals.push_back(as_val(k));
  std::vector<unsigned> told(keys.size());
  const Status st = find_keys(
      store, db.txn.record_now(dbi), db.env->dbx(dbi).key_order, vals, [&](std::size_t i, const KeyPlace& p) {
        ++told[i];
        Walker walker;
        walker.attach(db.txn, dbi, nullptr);
        format::Node node;
        const Status one = walker.find_node(vals[i], node);
        ASSERT_NE(p.outcome, Outcome::unknown) << keys[i];
        ASSERT_EQ(p.outcome == Outcome::found, one.ok()) << keys[i];
        if (!one.ok()) return;
        ++found;
        EXPECT_EQ(p.leaf, db.page_of(node.at));
        EXPECT_EQ(p.node.at - p.page.bytes(), node.at - db.txn.view().at(format::Pgno{p.leaf}));
        EXPECT_EQ(std::memcmp(p.page.bytes(), db.txn.view().at(format::Pgno{p.leaf}), store.page_size()), 0);
        format::Node again;
        ASSERT_TRUE(p.page.node(p.slot, again));
        EXPECT_EQ(again.at, p.node.at);
      });
  EXPECT_TRUE(st.ok()) << st.raw();
  EXPECT_EQ(std::count(told.begin(), told.end(), 1u), static_cast<std::ptrdiff_t>(keys.size()));
}

TEST(BulkLookup, FindsWhatSingleLookupsFindInEveryKindOfDatabase) {
  const test::LmdbApi lmdb = test::load_lmdb("liblmdb.so.0");
  unsigned trees = 0, found = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const test::EnvSpec& spec : test::catalogue(seed)) {
      const std::string d = new_directory();
      test::generate(lmdb, spec, d);
      if (fs::exists(d + "/data.mdb") && fs::file_size(d + "/data.mdb") >= 2 * spec.page_size) {
        Open db(contents(d + "/data.mdb"), spec.page_size);
        for (const test::DbSpec& s : spec.dbs) {
          MDB_dbi dbi = 0;
          if (!db.txn.open_dbi(s.name.empty() ? nullptr : s.name.c_str(), s.flags, dbi).ok()) continue;
          test::Rng rng(seed);
          std::vector<std::string> keys;
          for (unsigned i = 0; i < 700; ++i) keys.push_back(test::random_key(s, rng));
          // Of sizes that integer keys do not have, too.
          for (const std::size_t n : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 16u, 300u})
            for (unsigned i = 0; i < 4; ++i) {
              std::string k(n, '\0');
              for (char& c : k) c = static_cast<char>(rng.below(256));
              keys.push_back(k);
            }
          std::erase_if(keys, [](const std::string& k) { return k.empty(); });
          if (s.key_comparator >= 0) {
            db.env->dbx(dbi).key_order = format::Comparator::of_user(test::comparator(s.key_comparator));
            ReadQueue queue(memory_engine(db.bytes), db.bytes.size());
            PageStore store(queue, db.env->page_shift(), db.txn.view().pages(), 1 << 20);
            EXPECT_EQ(find_keys(store, db.txn.record_now(dbi), db.env->dbx(dbi).key_order, {},
                                [](std::size_t, const KeyPlace&) { FAIL(); })
                          .raw(),
                      ENOTSUP);
            ++refused;
            continue;
          }
          // Little room, and plenty; any alignment, and a direct engine's.
          for (const std::size_t most :
               {std::size_t{0}, std::size_t{32} * spec.page_size, std::size_t{64} << 20})
            for (const std::size_t align : {1u, 4096u}) {
              std::vector<std::byte> padded = db.bytes;
              padded.resize((padded.size() + 4095) / 4096 * 4096);
              ReadQueue queue(memory_engine(padded, {align, 32, align != 1}), padded.size());
              PageStore store(queue, db.env->page_shift(), db.txn.view().pages(), most);
              SCOPED_TRACE(spec.name + "/" + s.name);
              compare(db, dbi, keys, store, found);
            }
          ++trees;
        }
      }
      fs::remove_all(d);
    }
  }
  EXPECT_GT(trees, 20u * kSeeds);
  EXPECT_GT(found, 5'000u * kSeeds);
  EXPECT_GT(refused, 0u);
}

/// Two levels: branch 2, leaves from 3 on, each with one key of four digits and, if big, its value in a run.
FileImage two_levels(unsigned leaves) {
  FileImage f(512);
  std::vector<testing::BranchEntry> below;
  std::vector<std::uint64_t> at;
  const std::uint64_t root = f.leaf({{"room", ""}});
  for (unsigned i = 0; i < leaves; ++i) {
    char key[16];
    (void)std::snprintf(key, sizeof key, "%04u", i);
    below.push_back({i == 0 ? "" : key, f.leaf({{key, "v"}})});
  }
  const std::uint64_t made = f.branch(below);
  std::memcpy(f.page(root), f.page(made), 512);
  testing::put(f.page(root), root);
  f.metas(FileImage::record(0, 2, root, leaves), 7);
  return f;
}

std::vector<std::string> digits(unsigned from, unsigned to) {
  std::vector<std::string> keys;
  for (unsigned i = from; i < to; ++i) {
    char key[16];
    (void)std::snprintf(key, sizeof key, "%04u", i);
    keys.push_back(key);
  }
  return keys;
}

struct Counted {
  unsigned found = 0, absent = 0, unknown = 0;
  friend bool operator==(const Counted&, const Counted&) = default;
};
Counted count(PageStore& store, const format::DbRecord& db, const std::vector<std::string>& keys,
              Status& st) {
  std::vector<MDB_val> vals;
  for (const std::string& k : keys) vals.push_back(as_val(k));
  Counted n;
  st = find_keys(store, db, {}, vals, [&](std::size_t, const KeyPlace& p) {
    ++(p.outcome == Outcome::found ? n.found : p.outcome == Outcome::absent ? n.absent : n.unknown);
  });
  return n;
}

TEST(BulkLookup, NeighboursAreReadTogetherAndPagesKept) {
  const FileImage f = two_levels(24);
  ReadQueue queue(memory_engine(f.bytes()), f.bytes().size());
  PageStore store(queue, 9, f.pages(), 1 << 20, nullptr, 0, testing::version());
  const format::DbRecord db = FileImage::record(0, 2, 2, 24);
  Status st;
  EXPECT_EQ(count(store, db, digits(0, 24), st), (Counted{24, 0, 0}));
  EXPECT_TRUE(st.ok());
  EXPECT_EQ(queue.counters().requests, 2u);  // the root, all leaves
  EXPECT_EQ(count(store, db, digits(3, 30), st), (Counted{21, 6, 0}));
  EXPECT_EQ(queue.counters().requests, 2u);
  EXPECT_EQ(store.pages_read(), 25u);
  store.clear(f.pages());
  EXPECT_EQ(store.find(3), nullptr);
  EXPECT_EQ(count(store, db, digits(5, 6), st), (Counted{1, 0, 0}));
  EXPECT_EQ(queue.counters().requests, 4u);
}

TEST(BulkLookup, LittleRoomKeepsWhatIsAskedForMost) {
  const FileImage f = two_levels(24);
  ReadQueue queue(memory_engine(f.bytes()), f.bytes().size());
  PageStore store(queue, 9, f.pages(), 8 * 512, nullptr, 0, testing::version());
  const format::DbRecord db = FileImage::record(0, 2, 2, 24);
  Status st;
  for (unsigned round = 0; round < 20; ++round)
    for (unsigned i = 0; i < 24; ++i) EXPECT_EQ(count(store, db, digits(i, i + 1), st), (Counted{1, 0, 0}));
  EXPECT_NE(store.find(2), nullptr);
  EXPECT_EQ(queue.counters().requests, 1 + 20u * 24u);  // the root once
}

TEST(BulkLookup, EachReadThatFailsMakesKeysUnknownAndTheNextTimeFindsThem) {
  const FileImage f = two_levels(24);
  const format::DbRecord db = FileImage::record(0, 2, 2, 24);
  // Nothing from the middle of the file on.
  for (const std::size_t pages : {0u, 2u, 3u, 10u, 20u}) {
    const std::vector<std::byte> cut(f.bytes().begin(),
                                     f.bytes().begin() + static_cast<std::ptrdiff_t>(pages * 512));
    ReadQueue queue(memory_engine(cut), f.bytes().size());
    PageStore store(queue, 9, f.pages(), 1 << 20, nullptr, 0, testing::version());
    Status st;
    const Counted n = count(store, db, digits(0, 24), st);
    EXPECT_EQ(n, (Counted{0, 0, 24})) << pages;
    EXPECT_EQ(st.raw(), EIO);
    // One by one, those whose pages are there.
    unsigned found = 0;
    for (unsigned i = 0; i < 24; ++i) found += count(store, db, digits(i, i + 1), st).found;
    EXPECT_EQ(found, pages > 3 ? pages - 3 : 0u);
  }
}

TEST(BulkLookup, DamageMakesKeysUnknown) {
  test::Rng rng(5);
  const FileImage good = two_levels(24);
  const format::DbRecord db = FileImage::record(0, 2, 2, 24);
  unsigned unknown = 0;
  for (unsigned round = 0; round < 5'000; ++round) {
    std::vector<std::byte> bytes(good.bytes().begin(), good.bytes().end());
    for (unsigned n = rng.between(1, 4); n > 0; --n) {
      const std::size_t page = 2 + rng.below(3), at = page * 512 + rng.below(rng.percent(60) ? 60 : 512);
      bytes[at] = static_cast<std::byte>(rng.below(256));
    }
    const testing::ExactBytes exact(bytes);
    ReadQueue queue(memory_engine(exact.bytes()), bytes.size());
    PageStore store(queue, 9, good.pages(), 1 << 20, nullptr, 0, testing::version());
    Status st;
    const Counted n = count(store, db, digits(0, 24), st);
    EXPECT_EQ(n.found + n.absent + n.unknown, 24u);
    EXPECT_TRUE(st.ok());
    unknown += n.unknown;
  }
  EXPECT_GT(unknown, 300u);
  // A branch that is its own child, and children beyond the end.
  for (const std::uint64_t child : {std::uint64_t{2}, std::uint64_t{0}, std::uint64_t{1} << 40}) {
    FileImage f(512);
    f.branch({{"", child}, {"a", child}});
    ReadQueue queue(memory_engine(f.bytes()), f.bytes().size());
    PageStore store(queue, 9, f.pages(), 1 << 20, nullptr, 0, testing::version());
    Status st;
    EXPECT_EQ(count(store, db, {"a", "b"}, st), (Counted{0, 0, 2}));
  }
}

TEST(BulkLookup, ATreeWithoutPagesHasNoKeys) {
  const FileImage f = two_levels(4);
  ReadQueue queue(memory_engine(f.bytes()), f.bytes().size());
  PageStore store(queue, 9, f.pages(), 1 << 20, nullptr, 0, testing::version());
  Status st;
  EXPECT_EQ(count(store, FileImage::record(0, 0, format::raw(format::kNoPage), 0), digits(0, 3), st),
            (Counted{0, 3, 0}));
  EXPECT_EQ(queue.counters().requests, 0u);
}

}  // namespace
}  // namespace lmdbio::tree
