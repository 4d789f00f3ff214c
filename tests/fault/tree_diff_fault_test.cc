// Comparisons of two snapshots that end early, of damaged pages, and with reads that fail.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <vector>

#include "lmdbio/gather/queues.h"
#include "lmdbio/tree/diff.h"
#include "tests/support/held_database.h"
#include "tests/support/rng.h"

namespace lmdbio::tree {
namespace {

using testing::Held;
using testing::IndexedFile;
using testing::key_of;
using testing::Lines;
using Strings = std::vector<std::string>;

TEST(DiffFault, EndsEarly) {
  Held db;
  db.write([](Held& d) { d.put("a", "1"); });
  db.hold();
  db.write([](Held& d) {
    for (unsigned i = 0; i < 1'000; ++i) d.put(key_of(i), "v");
  });
  db.lines.most = 5;
  EXPECT_EQ(db.diff().raw(), ECANCELED);
  EXPECT_EQ(db.lines.lines.size(), 5u);
  db.lines.most = SIZE_MAX;
  const std::atomic<bool> cancelled{true};
  DiffOptions options;
  options.cancelled = &cancelled;
  EXPECT_EQ(db.diff(true, options).raw(), ECANCELED);
  EXPECT_EQ(db.lines.lines, Strings{});
  db.lines.throws = true;
  EXPECT_THROW((void)db.diff(), std::runtime_error);
}

// Every page of a database with all kinds of nodes, damaged at random: an error or some result, and no access
// outside the file.
TEST(DiffFault, DamagedPages) {
  for (const unsigned flags : {0u, unsigned{MDB_DUPSORT}, unsigned{MDB_DUPSORT | MDB_DUPFIXED}}) {
    Held db(flags);
    const auto fill = [&](Held& d) {
      for (unsigned i = 0; i < 300; ++i) d.put(key_of(i % 40), key_of(i * 31));
      if (flags == 0) d.put("big", std::string(20'000, 'x'));
      for (unsigned i = 0; i < 2'000 && flags != 0; ++i) d.put("many", key_of(i));
    };
    if (flags == 0) db.write(fill, "named");
    db.write(fill);
    db.hold();
    db.write([&](Held& d) {
      for (unsigned i = 0; i < 40; i += 3) d.put(key_of(i), "00changed"), d.put("x" + key_of(i), "00000000");
    });
    const IndexedFile file = db.file();
    const std::size_t size = file.pages() * file.page_size();
    const std::vector<std::byte> good(file.page(0), file.page(0) + size);
    test::Rng rng(flags + 1);
    unsigned failed = 0;
    for (unsigned round = 0; round < 3'000; ++round) {
      std::vector<std::byte> bytes = good;
      for (unsigned n = 1 + rng.below(3); n > 0; --n) {
        // Mostly headers and slots.
        const std::size_t page = (2 + rng.below(file.pages() - 2)) * 4096;
        const std::size_t at = page + (rng.percent(70) ? rng.below(64) : rng.below(4096));
        bytes[at] = static_cast<std::byte>(rng.next());
      }
      const window::WindowView view(bytes.data(), 12, file.pages(), testing::version());
      DiffOptions options;
      options.older_is_held = rng.percent(50);
      Lines lines;
      DiffCounters counters;
      DiffProblem problem;
      const Status st = diff_snapshots({view, db.older, nullptr}, {view, file.snapshot(), nullptr}, options,
                                       lines, counters, problem);
      if (st.ok()) continue;
      ASSERT_TRUE(st.raw() == MDB_CORRUPTED || st.raw() == MDB_INCOMPATIBLE) << st.raw();
      ASSERT_STRNE(problem.reason, "");
      ++failed;
    }
    EXPECT_GT(failed, 300u);
  }
}

// Reads that fail are only advice that was lost: page faults read the pages.
TEST(DiffFault, FailedReadsChangeNothing) {
  Held db;
  db.write([](Held& d) {
    for (unsigned i = 0; i < 60'000; ++i) d.put(key_of(i), "v");
  });
  db.hold();
  db.write([](Held& d) {
    for (unsigned i = 0; i < 60'000; i += 500) d.put(key_of(i), "w");
  });
  ASSERT_TRUE(db.diff().ok());
  const Strings want = db.lines.lines;
  EXPECT_EQ(want.size(), 120u);
  const gather::EngineFactory before = gather::engine_factory();
  static unsigned failures;
  failures = 0;
  gather::engine_factory() = [](const File&, unsigned, EngineKind,
                                const char**) noexcept -> Result<std::unique_ptr<IoEngine>> {
    ++failures;
    return Status::from_errno(ENOMEM);
  };
  for (const bool held : {true, false}) {
    const std::string path = db.dir + "/data.mdb";
    const IndexedFile cold(path);
    (void)::fdatasync(cold.file().buffered().fd());
    (void)::posix_fadvise(cold.file().buffered().fd(), 0, 0, POSIX_FADV_DONTNEED);
    EXPECT_TRUE(db.diff(held).ok());
    EXPECT_EQ(db.lines.lines, want);
  }
  gather::engine_factory() = before;
  EXPECT_GE(failures, 1u);
}

}  // namespace
}  // namespace lmdbio::tree
