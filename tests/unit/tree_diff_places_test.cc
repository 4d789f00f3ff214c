// Comparisons of two snapshots: in which leaf entries they find records, and which leaf pages they report as
// dropped.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "lmdbio/tree/diff.h"
#include "lmdbio/tree/env.h"
#include "tests/support/held_database.h"
#include "tests/support/rng.h"

namespace lmdbio::tree {
namespace {

using testing::Held;
using testing::IndexedFile;
using testing::key_of;
using testing::text;

void add_leaves(const IndexedFile& file, format::Pgno page, std::set<std::uint64_t>& out) {
  if (page == format::kNoPage) return;
  format::PageView view;
  ASSERT_TRUE(format::PageView::open(format::Version::v09, file.page(format::raw(page)), 4096, page, view));
  if (view.is_leaf()) {
    out.insert(format::raw(page));
    return;
  }
  for (unsigned i = 0; i < view.count(); ++i) {
    format::Node n;
    ASSERT_TRUE(view.node(i, n));
    add_leaves(file, n.child(), out);
  }
}

// A place that was found in any snapshot is valid until its page is dropped.
TEST(DiffPlaces, AreValidUntilTheirPageIsDropped) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    test::Rng rng(seed);
    Held db;
    std::map<std::string, std::string> records;
    std::map<std::string, std::pair<std::uint64_t, unsigned>> known;
    std::set<std::uint64_t> before;
    std::size_t checked = 0;
    db.write([](Held&) {});
    for (unsigned round = 0; round < 20; ++round) {
      db.hold();
      db.write([&](Held& d) {
        const bool many = round == 0 || rng.percent(10);
        for (unsigned i = many ? 3'000 : 1 + rng.below(30); i > 0; --i) {
          const std::string key = key_of(rng.below(10'000));
          if (rng.percent(25) && records.erase(key) == 1) {
            d.del(key);
          } else {
            records[key] =
                std::string(rng.percent(5) ? 3'000 : rng.below(200), static_cast<char>(rng.below(256)));
            d.put(key, records[key]);
          }
        }
      });
      db.lines.dropped.clear();
      db.lines.places.clear();
      ASSERT_TRUE(db.diff().ok());
      std::erase_if(known, [&](const auto& k) { return db.lines.dropped.contains(k.second.first); });
      for (const auto& [key, place] : db.lines.places) known[key] = place;
      const IndexedFile file = db.file();
      std::set<std::uint64_t> now, dropped;
      add_leaves(file, db.newer.dbs[kMainDbi].root, now);
      for (const std::uint64_t page : before)
        if (!now.contains(page)) dropped.insert(page);
      ASSERT_EQ(db.lines.dropped, dropped);
      before = now;
      for (const auto& [key, place] : known) {
        if (!records.contains(key)) continue;  // deleted; a Follow forgets it
        ASSERT_TRUE(now.contains(place.first));
        format::PageView leaf;
        format::Node n;
        ASSERT_TRUE(format::PageView::open(format::Version::v09, file.page(place.first), 4096,
                                           format::Pgno{place.first}, leaf));
        ASSERT_LT(place.second, leaf.count());
        ASSERT_TRUE(leaf.node(place.second, n));
        ASSERT_EQ(text({n.key(), n.key_size()}), key);
        ASSERT_EQ(n.data_size(), records[key].size());
        ++checked;
      }
    }
    EXPECT_GT(checked, 10'000u);
  }
}

TEST(DiffPlaces, DuplicatesHaveNone) {
  Held db(MDB_DUPSORT);
  db.write([](Held& d) { d.put("a", "1"); });
  db.hold();
  db.write([](Held& d) {
    d.put("a", "2");
    d.put("b", "1");
  });
  ASSERT_TRUE(db.diff().ok());
  EXPECT_EQ(db.lines.lines.size(), 2u);
  EXPECT_TRUE(db.lines.places.empty());
}

}  // namespace
}  // namespace lmdbio::tree
