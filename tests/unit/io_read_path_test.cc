// How each access reads a file: a table of cases, one row a rule, and all combinations against the rules in
// other words.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "lmdbio/io/read_path.h"

namespace lmdbio {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = kMiB << 10;
constexpr IoMode kAuto = IoMode::automatic, kMmap = IoMode::mmap, kBuffered = IoMode::buffered,
                 kDirect = IoMode::direct;

/// A file of 2 GiB on a file system far away, 16 GiB free: O_DIRECT works.
constexpr ReadFacts far_away(IoMode setting = kAuto) {
  ReadFacts f;
  f.setting = setting;
  f.local = false;
  f.direct_works = true;
  f.kernel_readahead = 128 << 10;
  f.memory_limit = 4 * kGiB;
  f.file_bytes = 2 * kGiB;
  f.available = 16 * kGiB;
  f.walks = ReadPath::direct;
  f.room_for_all = true;
  return f;
}

enum Change : unsigned {
  kAsIs = 0,
  kLarge = 1,        // does not fit
  kLocal = 2,        // its kernel reads 4 MiB ahead
  kNoMemory = 4,     // LMDBIO_MEMORY=0
  kNoDirect = 8,     // O_DIRECT is refused
  kUnmappable = 16,  //
  kDropsCache = 32,  // each open drops the page cache
  kSmall = 64,       // below 1 MiB
  kNoRoom = 128,     // no private memory, or no VMAs, for all chunks
  kNothingTells = 256,
  kWalksMapped = 512,  // walks do not read directly
};

constexpr ReadFacts facts(IoMode setting, unsigned changes) {
  ReadFacts f = far_away(setting);
  if ((changes & kLarge) != 0) f.file_bytes = 12 * kGiB + 1;
  if ((changes & kLocal) != 0) f.local = true, f.kernel_readahead = 4 * kMiB;
  if ((changes & kNoMemory) != 0) f.memory_limit = 0;
  if ((changes & kNoDirect) != 0) f.direct_works = false;
  if ((changes & kUnmappable) != 0) f.can_map = false;
  if ((changes & kDropsCache) != 0) f.opens_drop_cache = true;
  if ((changes & kSmall) != 0) f.file_bytes = kMiB - 1;
  if ((changes & kNoRoom) != 0) f.room_for_all = false;
  if ((changes & kNothingTells) != 0) f.residency_is_known = false;
  if ((changes & kWalksMapped) != 0) f.walks = ReadPath::page_faults;
  return f;
}

struct Row {
  Access access;
  IoMode setting;
  unsigned changes;
  ReadPath path;
};

using enum ReadPath;
constexpr Row kRows[] = {
    // Walks.
    {Access::walk, kAuto, kAsIs, page_cache},
    {Access::walk, kAuto, kLarge, direct},
    {Access::walk, kAuto, kLocal, page_faults},
    {Access::walk, kAuto, kLocal | kLarge, direct},
    {Access::walk, kAuto, kLarge | kNoDirect, page_cache},
    {Access::walk, kAuto, kLarge | kNoMemory, page_cache},
    {Access::walk, kMmap, kLarge, page_faults},
    {Access::walk, kMmap, kUnmappable, direct},
    {Access::walk, kBuffered, kLarge, page_cache},
    {Access::walk, kDirect, kAsIs, direct},
    {Access::walk, kDirect, kNoDirect, direct},
    {Access::walk, kDirect, kNoMemory, page_cache},
    {Access::walk, kAuto, kUnmappable | kNoMemory | kNoDirect, direct},
    // Strides.
    {Access::stride, kAuto, kAsIs, page_cache},
    {Access::stride, kAuto, kLarge | kLocal | kNoDirect, page_cache},
    {Access::stride, kAuto, kNoMemory, none},
    {Access::stride, kAuto, kUnmappable, none},
    {Access::stride, kAuto, kNothingTells, none},
    {Access::stride, kDirect, kAsIs, none},
    {Access::stride, kBuffered, kAsIs, none},
    // Lookups.
    {Access::lookup, kAuto, kAsIs, page_cache},
    {Access::lookup, kAuto, kLocal, page_cache},
    {Access::lookup, kAuto, kSmall, page_faults},
    {Access::lookup, kMmap, kLarge, page_faults},
    {Access::lookup, kMmap, kUnmappable, direct},
    {Access::lookup, kDirect, kSmall, page_cache},
    {Access::lookup, kBuffered, kSmall, page_cache},
    // The load of a whole file.
    {Access::load, kAuto, kAsIs, page_cache},
    {Access::load, kAuto, kWalksMapped, page_cache},
    {Access::load, kAuto, kLarge, direct},
    {Access::load, kAuto, kLarge | kNoRoom, none},
    {Access::load, kAuto, kLarge | kWalksMapped, none},
    {Access::load, kDirect, kAsIs, direct},
    {Access::load, kDirect, kNoRoom, page_cache},
    {Access::load, kDirect, kNoRoom | kLarge, none},
    // lmdbio_prefetch.
    {Access::prefetch, kAuto, kAsIs, page_cache},
    {Access::prefetch, kAuto, kLarge, direct},
    {Access::prefetch, kAuto, kLocal, direct_once},
    {Access::prefetch, kAuto, kLocal | kLarge, direct},
    {Access::prefetch, kAuto, kDropsCache, direct},
    {Access::prefetch, kAuto, kLarge | kNoDirect, page_cache},
    {Access::prefetch, kAuto, kLarge | kNoMemory, page_cache},
    {Access::prefetch, kDirect, kAsIs, direct},
    {Access::prefetch, kDirect, kNoMemory, page_cache},
    {Access::prefetch, kBuffered, kLarge, page_cache},
    {Access::prefetch, kMmap, kLarge, page_faults},
    // Readers and the build of an index.
    {Access::reader, kAuto, kAsIs, page_cache},
    {Access::reader, kAuto, kLarge, direct},
    {Access::reader, kDirect, kAsIs, direct},
    {Access::reader, kBuffered, kLarge, page_cache},
    {Access::reader, kMmap, kLarge, page_cache},
    {Access::reader, kAuto, kLarge | kNoDirect, page_cache},
    {Access::reader, kDirect, kNoDirect, page_cache},
    {Access::index, kAuto, kAsIs, page_cache},
    {Access::index, kAuto, kLarge, direct},
    {Access::index, kDirect, kAsIs, direct},
    {Access::index, kMmap, kLarge, page_cache},
};

TEST(ReadPath, Table) {
  for (const Row& r : kRows) {
    const ReadDecision d = choose_read_path(r.access, facts(r.setting, r.changes));
    EXPECT_EQ(d.path, r.path) << "row " << &r - kRows << ": " << d.reason;
    EXPECT_GT(std::strlen(d.reason), 0u) << "row " << &r - kRows;
  }
}

// What is in the page cache is used where it is, unless the program said how it wants to read.
TEST(ReadPath, WhatIsResident) {
  for (const Access a : {Access::reader, Access::index}) {
    EXPECT_TRUE(choose_read_path(a, far_away(kAuto)).uses_resident);
    EXPECT_TRUE(choose_read_path(a, facts(kAuto, kLarge)).uses_resident);
    EXPECT_TRUE(choose_read_path(a, far_away(kBuffered)).uses_resident);
    EXPECT_FALSE(choose_read_path(a, far_away(kDirect)).uses_resident);
  }
  EXPECT_TRUE(choose_read_path(Access::walk, facts(kAuto, kLarge)).uses_resident);
  EXPECT_FALSE(choose_read_path(Access::walk, facts(kAuto, kUnmappable)).uses_resident);
  EXPECT_FALSE(choose_read_path(Access::walk, far_away(kBuffered)).uses_resident);
  EXPECT_FALSE(choose_read_path(Access::walk, far_away(kDirect)).uses_resident);
}

// Only who chose the page cache though the file does not fit it takes out what it has left.
TEST(ReadPath, WhatIsDroppedBehind) {
  for (const IoMode setting : {kAuto, kMmap, kBuffered, kDirect})
    for (unsigned changes = 0; changes < 32; ++changes) {
      const ReadDecision d = choose_read_path(Access::walk, facts(setting, changes));
      EXPECT_EQ(d.drops_behind, setting == kAuto && (changes & kLarge) != 0 && d.path == page_cache)
          << changes;
    }
}

// Walks: the rule in other words, the reasons in the order of their weight.
ReadPath expected(const ReadFacts& f) {  // LMDBIO_NODE=auto
  const bool fits = f.file_bytes <= f.available / 4 * 3;
  if (!f.can_map) return direct;
  if (f.setting == kMmap) return page_faults;
  if (f.setting == kBuffered || f.memory_limit == 0) return page_cache;
  if (f.setting == kDirect) return direct;
  if (!f.direct_works) return page_cache;
  if (!fits) return direct;
  return f.local && f.kernel_readahead >= 2 * kMiB ? page_faults : page_cache;
}

TEST(ReadPath, AllCombinationsOfWalks) {
  unsigned n = 0;
  for (const IoMode mode : {kAuto, kMmap, kDirect, kBuffered})
    for (unsigned bits = 0; bits < 16; ++bits)
      for (const std::uint64_t readahead : {std::uint64_t{0}, kMiB / 8, 2 * kMiB - 1, 2 * kMiB, 4 * kMiB})
        for (const std::uint64_t bytes : {std::uint64_t{0}, 300 * kMiB, 300 * kMiB + 1, ~std::uint64_t{0}}) {
          ReadFacts f;
          f.setting = mode;
          f.local = (bits & 1) != 0;
          f.direct_works = (bits & 2) != 0;
          f.can_map = (bits & 4) != 0;
          f.memory_limit = (bits & 8) != 0 ? 16 * kMiB : 0;
          f.kernel_readahead = readahead;
          f.file_bytes = bytes;
          f.available = 400 * kMiB;
          EXPECT_EQ(choose_read_path(Access::walk, f).path, expected(f));
          ++n;
        }
  EXPECT_EQ(n, 4u * 16 * 5 * 4);
}

TEST(ReadPath, ReasonsAreTold) {
  const auto why = [](const ReadFacts& f) { return std::string(choose_read_path(Access::walk, f).reason); };
  EXPECT_EQ(why(facts(kAuto, kAsIs)), "fits into the page cache");
  EXPECT_EQ(why(facts(kAuto, kLocal)), "local file system, the kernel's read-ahead suffices");
  EXPECT_EQ(why(facts(kAuto, kLarge)), "does not fit into free memory");
  EXPECT_EQ(why(facts(kAuto, kNoDirect)), "direct I/O is not available");
  EXPECT_EQ(why(facts(kAuto, kNoMemory)), "LMDBIO_MEMORY=0");
  EXPECT_EQ(why(facts(kDirect, kNoMemory)), "LMDBIO_IO=direct, but LMDBIO_MEMORY=0");
  EXPECT_EQ(why(facts(kAuto, kUnmappable)), "the file cannot be mapped");
}

TEST(ReadPath, WhatWasFoundToFitMayTakeALittleMore) {
  EXPECT_TRUE(fits_page_cache(300 * kMiB, 400 * kMiB));
  EXPECT_FALSE(fits_page_cache(300 * kMiB + 1, 400 * kMiB));
  EXPECT_TRUE(still_fits_page_cache(350 * kMiB, 400 * kMiB));
  EXPECT_FALSE(still_fits_page_cache(350 * kMiB + 1, 400 * kMiB));
  EXPECT_FALSE(fits_page_cache(~std::uint64_t{0}, ~std::uint64_t{0}));
  EXPECT_TRUE(fits_page_cache(0, 0));
}

TEST(ReadPath, WhatVanishesTooOften) {
  EXPECT_FALSE(page_cache_loses(0, 0));
  EXPECT_FALSE(page_cache_loses(24 * kMiB, 24 * kMiB)) << "once: another process has opened the file";
  EXPECT_FALSE(page_cache_loses(4 * kMiB, 400 * kMiB)) << "long ago";
  EXPECT_FALSE(page_cache_loses(16 * kMiB - 1, 32 * kMiB));
  EXPECT_FALSE(page_cache_loses(32 * kMiB - 1, 32 * kMiB - 1));
  EXPECT_TRUE(page_cache_loses(16 * kMiB, 32 * kMiB));
}

// Chunks are for all processes of the node: the file is read as if it did not fit.
TEST(ReadPath, ChunksForAll) {
  const auto with = [](IoMode setting, unsigned changes, NodeMode node) {
    ReadFacts f = facts(setting, changes);
    f.node = node;
    return f;
  };
  const auto walk = [&](IoMode setting, unsigned changes, NodeMode node) {
    return choose_read_path(Access::walk, with(setting, changes, node)).path;
  };
  for (const NodeMode node : {NodeMode::automatic, NodeMode::cache, NodeMode::off}) {
    EXPECT_EQ(walk(kAuto, kAsIs, node), page_cache);
    EXPECT_EQ(walk(kAuto, kLocal, node), page_faults);
  }
  for (const unsigned changes : {kAsIs, kLarge, kLocal})
    EXPECT_EQ(walk(kAuto, changes, NodeMode::chunks), direct);
  for (const unsigned changes : {kNoMemory, kNoDirect})
    EXPECT_EQ(walk(kAuto, changes, NodeMode::chunks), page_cache);
  EXPECT_EQ(walk(kMmap, kAsIs, NodeMode::chunks), page_faults);
  EXPECT_EQ(walk(kBuffered, kAsIs, NodeMode::chunks), page_cache);

  const auto shares = [&](unsigned changes, NodeMode node) {
    return shares_chunk_files(with(kAuto, changes, node));
  };
  for (const NodeMode node : {NodeMode::automatic, NodeMode::chunks}) {
    EXPECT_TRUE(shares(kLarge, node));
    for (const unsigned changes : {kNoMemory, kNoDirect, kUnmappable})
      EXPECT_FALSE(shares(kLarge | changes, node));
  }
  EXPECT_FALSE(shares(kLarge | kLocal, NodeMode::automatic));
  EXPECT_TRUE(shares(kLocal, NodeMode::chunks));
  for (const NodeMode node : {NodeMode::cache, NodeMode::off}) EXPECT_FALSE(shares(kLarge, node));
}

TEST(ReadPath, WhenDirectReadsAreOfUse) {
  EXPECT_TRUE(may_read_directly(kAuto, 1));
  EXPECT_TRUE(may_read_directly(kDirect, 1));
  EXPECT_FALSE(may_read_directly(kMmap, 1));
  EXPECT_FALSE(may_read_directly(kBuffered, 1));
  EXPECT_FALSE(may_read_directly(kAuto, 0));
}

static_assert(choose_read_path(Access::walk, {}).path == page_cache, "nothing known: no private memory");

}  // namespace
}  // namespace lmdbio
