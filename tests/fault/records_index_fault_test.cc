// Building the record index of damaged trees, with failing reads, failing allocations, cancelled: an answer
// each time, and the next build is as good as ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lmdb.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "lmdbio/io/engine_memory.h"
#include "lmdbio/io/engine_pread.h"
#include "tests/support/faulty_engine.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"
#include "tests/support/indexed.h"
#include "tests/support/rng.h"
#include "tests/support/temp_file.h"

namespace {
// The allocation that fails, counted from 1; 0: none.  Of all threads.
std::atomic<long> fail_allocation{0}, allocations{0};

void* allocate(std::size_t size) {
  const long n = ++allocations, nth = fail_allocation;
  void* const p = n == nth ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size, const std::nothrow_t& tag) noexcept { return operator new(size, tag); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace lmdbio::records {
namespace {

using format::DbRecord;
using testing::FaultyEngine;
using testing::FileImage;
using ::testing::HasSubstr;
using testing::IndexedFile;
using testing::put;
using testing::TempFile;

/// What the next engines are to do.
testing::FaultPlan plan;
std::atomic<unsigned> engines{0}, engines_refused{0};
std::atomic<unsigned> refuse_engines_from{0};  ///< counted from 1; 0: none is refused

Result<std::unique_ptr<IoEngine>> faulty(const File& file, unsigned, EngineKind, const char**) noexcept {
  const unsigned n = ++engines, from = refuse_engines_from;
  if (from != 0 && n >= from) {
    ++engines_refused;
    return Status::from_errno(EMFILE);
  }
  try {
    if (plan.nth == 0)
      return std::unique_ptr<IoEngine>(new PreadEngine(file));  // the double allocates as it reads
    return std::unique_ptr<IoEngine>(
        new FaultyEngine(std::unique_ptr<IoEngine>(new PreadEngine(file)), plan));
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

/// Three levels, overflow values, sub-pages, trees of duplicates with and without branch pages, in 512 B
/// pages.
class Tree {
 public:
  explicit Tree(unsigned leaves) : f(512) {
    std::vector<testing::BranchEntry> level;
    std::uint64_t entries = 0;
    for (unsigned i = 0; i < leaves; ++i) {
      const std::string key = testing::number_bytes(__builtin_bswap32(i), 4);
      if (i % 4 == 0) {
        const std::uint64_t run = f.overflow(std::string(700 + i % 300, 'v'));
        level.push_back({key, f.leaf({{key + "a", "x"}, FileImage::big(key + "b", run, 700 + i % 300)})});
        entries += 2;
      } else if (i % 4 == 1) {
        level.push_back(
            {key, f.leaf({{key, FileImage::sub_page({"1", "2", "3"}), format::kDupData}, {key + "z", ""}})});
        entries += 4;
      } else if (i % 4 == 2) {
        const std::uint64_t one = f.leaf({{"d1", ""}, {"d2", ""}}), two = f.leaf({{"d3", ""}});
        const DbRecord dups = FileImage::record(0, 2, f.branch({{"", one}, {"d3", two}}), 3);
        const DbRecord flat = FileImage::record(0, 1, f.leaf({{"e", ""}, {"f", ""}}), 2);
        level.push_back(
            {key, f.leaf({{key, FileImage::as_data(dups), format::kSubData | format::kDupData},
                          {key + "f", FileImage::as_data(flat), format::kSubData | format::kDupData}})});
        entries += 5;
      } else {
        level.push_back({key, f.leaf({{key, "value"}})});
        ++entries;
      }
    }
    unsigned depth = 1;
    for (; level.size() > 1; ++depth) {
      std::vector<testing::BranchEntry> above;
      for (std::size_t i = 0; i < level.size(); i += 12) {
        std::vector<testing::BranchEntry> some(
            level.begin() + static_cast<std::ptrdiff_t>(i),
            level.begin() + static_cast<std::ptrdiff_t>(std::min(i + 12, level.size())));
        const std::string key = some[0].key;
        above.push_back({key, f.branch(some)});
      }
      level = above;
    }
    record = FileImage::record(MDB_DUPSORT, depth, level[0].child, entries);
    f.metas(record, 4);
  }
  FileImage f;
  DbRecord record;
};

class IndexFaults : public ::testing::Test {
 protected:
  IndexFaults() : tree(60), file(tree.f.bytes()), open(file.path()) {}
  ~IndexFaults() override {
    plan = {};
    fail_allocation = 0;
    refuse_engines_from = 0;
  }
  Status build(RecordIndex& out) {
    IndexRequest r = open.request(tree.record);
    r.make_engine = faulty;
    r.threads = threads;
    return build_index(r, out, problem);
  }
  void whole(const RecordIndex& index) {
    ASSERT_EQ(index.records(), tree.record.entries);
    for (std::uint64_t i = 0; i < index.records(); ++i) ASSERT_TRUE(open.record(index.location(i))) << i;
  }

  Tree tree;
  TempFile file;
  IndexedFile open;
  IndexProblem problem;
  unsigned threads = 0;
};

TEST_F(IndexFaults, EachReadFailsOnce) {
  for (const int error : {EIO, ESTALE, ENOMEM, EINTR, EAGAIN}) {
    const bool hidden = error == EINTR || error == EAGAIN;
    unsigned failed = 0;
    for (unsigned k = 1;; ++k) {
      plan = testing::fail_nth(k, error);
      RecordIndex index;
      const Status st = build(index);
      if (st.ok()) {
        whole(index);
        if (!hidden || k > 200) break;
        continue;
      }
      ASSERT_EQ(st.raw(), error) << k;
      EXPECT_EQ(index.records(), 0u);
      ++failed;
    }
    EXPECT_EQ(failed > 3, !hidden) << error;
  }
}

TEST_F(IndexFaults, ShortReadsAndEndsOfTheFile) {
  for (unsigned k = 1; k < 40; ++k) {
    plan = testing::short_nth(k);
    RecordIndex index;
    ASSERT_TRUE(build(index).ok()) << k;
    whole(index);
    plan = testing::zero_nth(k);
    RecordIndex none;
    const Status st = build(none);
    ASSERT_TRUE(st.ok() || st.raw() == EIO) << k;
  }
}

TEST_F(IndexFaults, EachAllocationFailsOnce) {
  // What is made before the build is made without failures.
  RecordIndex index;
  allocations = 0;
  ASSERT_TRUE(build(index).ok());
  const long all = allocations;
  ASSERT_GT(all, 10);
  for (long k = 1; k <= all + 1; ++k) {
    RecordIndex out;
    allocations = 0;
    fail_allocation = k;
    const Status st = build(out);
    fail_allocation = 0;
    if (st.ok()) {
      whole(out);
      continue;
    }
    ASSERT_EQ(st.raw(), ENOMEM) << k;
    EXPECT_EQ(out.records(), 0u);
  }
  RecordIndex again;
  ASSERT_TRUE(build(again).ok());
  whole(again);
}

struct Progress {
  std::uint64_t calls = 0, stop_at = ~std::uint64_t{0}, last = 0, total = 0;
  static bool call(void* self, std::uint64_t done, std::uint64_t total) noexcept {
    auto& p = *static_cast<Progress*>(self);
    EXPECT_LE(p.last, done);
    EXPECT_LE(done, total);
    p.last = done;
    p.total = total;
    return ++p.calls < p.stop_at;
  }
};

TEST_F(IndexFaults, CancelledAtEachCall) {
  for (std::uint64_t k = 1;; ++k) {
    Progress p;
    p.stop_at = k;
    IndexRequest r = open.request(tree.record);
    r.progress = Progress::call;
    r.context = &p;
    RecordIndex index;
    const Status st = build_index(r, index, problem);
    if (st.ok()) {
      whole(index);
      EXPECT_EQ(p.total, 60u);
      EXPECT_GT(k, 4u);
      break;
    }
    ASSERT_EQ(st.raw(), ECANCELED) << k;
    EXPECT_EQ(p.calls, k);
    EXPECT_EQ(index.records(), 0u);
  }
}

// As many leaf pages as make chunks for several threads.
class ManyChunks : public IndexFaults {
 protected:
  ManyChunks() : large(5000), large_file(large.f.bytes()), large_open(large_file.path()) { threads = 4; }
  Status build_large(RecordIndex& out, IndexReads* reads = nullptr) {
    IndexRequest r = large_open.request(large.record);
    r.make_engine = faulty;
    r.chunk_pages = 300;
    r.threads = threads;
    return build_index(r, out, problem, reads);
  }
  Tree large;
  TempFile large_file;
  IndexedFile large_open;
};

TEST_F(ManyChunks, AreTheSameByAnyNumberOfThreads) {
  RecordIndex one;
  threads = 1;
  ASSERT_TRUE(build_large(one).ok());
  ASSERT_EQ(one.records(), large.record.entries);
  for (const unsigned n : {2u, 4u, 16u}) {
    threads = n;
    RecordIndex index;
    IndexReads reads;
    ASSERT_TRUE(build_large(index, &reads).ok());
    EXPECT_GT(reads.threads, 1u);
    ASSERT_EQ(index.totals(), one.totals());
    for (std::uint64_t i = 0; i < one.records(); ++i) ASSERT_EQ(index.location(i), one.location(i)) << i;
  }
}

TEST_F(ManyChunks, HelpersThatCannotReadAreDoneWithout) {
  refuse_engines_from = engines + 2;  // the caller's is the first
  RecordIndex index;
  ASSERT_TRUE(build_large(index).ok());
  EXPECT_EQ(index.records(), large.record.entries);
  EXPECT_GT(engines_refused, 0u);
}

TEST_F(ManyChunks, FailuresOfAnyThread) {
  for (unsigned k = 1; k < 400; k += 23) {
    plan = testing::fail_nth(k, EIO);
    RecordIndex index;
    const Status st = build_large(index);
    ASSERT_TRUE(st.ok() || st.raw() == EIO) << k;
    if (st.ok()) {
      ASSERT_EQ(index.records(), large.record.entries);
    }
  }
  plan = {};
  for (long k = 1; k < 3000; k += 211) {
    RecordIndex out;
    allocations = 0;
    fail_allocation = k;
    const Status st = build_large(out);
    fail_allocation = 0;
    ASSERT_TRUE(st.ok() || st.raw() == ENOMEM) << k;
    if (st.ok()) {
      ASSERT_EQ(out.records(), large.record.entries);
    }
  }
}

// --- damage ---

struct Damage {
  const char* name;
  std::function<void(FileImage&, DbRecord&, std::uint64_t root, std::uint64_t leaf)> change;
  const char* reason;
};

TEST(IndexOfDamage, EachKindIsNamed) {
  const auto header = [](FileImage& f, std::uint64_t p, std::size_t at, std::uint16_t v) {
    put(f.page(p) + at, v);
  };
  const Damage all[] = {
      {"root beyond the file",
       [](FileImage& f, DbRecord& r, auto, auto) { r.root = format::Pgno{f.pages()}; },
       "root is not in the file"},
      {"root is a meta", [](FileImage&, DbRecord& r, auto, auto) { r.root = format::Pgno{1}; },
       "root is not in the file"},
      {"no depth", [](FileImage&, DbRecord& r, auto, auto) { r.depth = 0; }, "depth of 0"},
      {"too deep", [](FileImage&, DbRecord& r, auto, auto) { r.depth = 33; }, "depth of 33"},
      {"a level more", [](FileImage&, DbRecord& r, auto, auto) { ++r.depth; }, "a leaf page at a depth"},
      {"a level less", [](FileImage&, DbRecord& r, auto, auto) { --r.depth; }, "a branch page at a depth"},
      {"an entry more", [](FileImage&, DbRecord& r, auto, auto) { ++r.entries; }, "number of entries: "},
      {"an entry less", [](FileImage&, DbRecord& r, auto, auto) { --r.entries; }, "number of entries: "},
      {"entries without a tree", [](FileImage&, DbRecord& r, auto, auto) { r.root = format::kNoPage; },
       "but no tree"},
      {"page number",
       [](FileImage& f, DbRecord&, auto, std::uint64_t l) { put(f.page(l), std::uint64_t{2}); },
       "page number is 2"},
      {"flags", [&](FileImage& f, DbRecord&, auto, std::uint64_t l) { header(f, l, testing::kAtFlags, 3); },
       "flags are 0x3"},
      {"lower",
       [&](FileImage& f, DbRecord&, auto, std::uint64_t l) {
         header(f, l, testing::kAtLower, testing::is_10() ? 0xfff0 : 8);
       },
       "lower bound"},
      {"empty",
       [&](FileImage& f, DbRecord&, auto, std::uint64_t l) {
         header(f, l, testing::kAtLower, testing::is_10() ? 0 : 16);
       },
       "no entries"},
      {"slot",
       [&](FileImage& f, DbRecord&, auto, std::uint64_t l) {
         header(f, l, testing::kPageHeader, static_cast<std::uint16_t>(511 - testing::kSlotBase));
       },
       "slot 0"},
      {"leaf2",
       [&](FileImage& f, DbRecord&, auto, std::uint64_t l) { header(f, l, testing::kAtFlags, 0x22); },
       "outside a tree of duplicates"},
      {"cycle",
       [](FileImage& f, DbRecord&, std::uint64_t root, auto) {
         format::PageView v;
         format::Node n;
         ASSERT_TRUE(format::PageView::open(testing::version(), f.page(root), 512, format::Pgno{root}, v) &&
                     v.node(0, n));
         put(f.page(root) + (n.at - f.page(root)), static_cast<std::uint32_t>(root));
       },
       "a branch page at a depth"},
      {"child beyond the file",
       [](FileImage& f, DbRecord&, std::uint64_t root, auto) {
         format::PageView v;
         format::Node n;
         ASSERT_TRUE(format::PageView::open(testing::version(), f.page(root), 512, format::Pgno{root}, v) &&
                     v.node(0, n));
         put(f.page(root) + (n.at - f.page(root)), static_cast<std::uint32_t>(f.pages()));
       },
       "refers to page"},
      {"duplicates where none can be", [](FileImage&, DbRecord& r, auto, auto) { r.flags = 0; },
       "has duplicates, which"},
  };
  for (const Damage& d : all) {
    SCOPED_TRACE(d.name);
    Tree t(60);
    const std::uint64_t root = format::raw(t.record.root);
    std::uint64_t plain = 0;  // the first leaf page
    for (std::uint64_t p = 2; p < t.f.pages() && plain == 0; ++p)
      if (load<std::uint64_t>(t.f.page(p)) == p &&
          load<std::uint16_t>(t.f.page(p) + testing::kAtFlags) == format::kLeaf)
        plain = p;
    ASSERT_NE(plain, 0u);
    d.change(t.f, t.record, root, plain);
    const TempFile file(t.f.bytes());
    const IndexedFile open(file.path());
    RecordIndex index;
    IndexProblem problem;
    EXPECT_EQ(build_index(open.request(t.record), index, problem).raw(), MDB_CORRUPTED);
    EXPECT_THAT(problem.reason, HasSubstr(d.reason)) << problem.page;
  }
}

// All entries of all branch pages lead to one page: bounded by the file's size, not by the product.
TEST(IndexOfDamage, WideCyclesEnd) {
  FileImage f(512);
  const std::uint64_t leaf = f.leaf({{"k", "v"}});
  std::uint64_t below = leaf;
  for (int level = 0; level < 12; ++level) {
    std::vector<testing::BranchEntry> entries;
    for (int i = 0; i < 20; ++i) entries.push_back({std::string(1, static_cast<char>('a' + i)), below});
    below = f.branch(entries);
  }
  const DbRecord r = FileImage::record(0, 13, below, 1);
  f.metas(r, 4);
  const TempFile file(f.bytes());
  const IndexedFile open(file.path());
  RecordIndex index;
  IndexProblem problem;
  EXPECT_EQ(build_index(open.request(r), index, problem).raw(), MDB_CORRUPTED);
  EXPECT_THAT(problem.reason, HasSubstr("more pages than the file"));
}

// Any bytes: an answer, and what is called a record lies in the file.
TEST(IndexOfDamage, RandomDamage) {
  test::Rng rng(5);
  unsigned refused = 0;
  for (int round = 0; round < 3000; ++round) {
    Tree t(20);
    for (unsigned n = rng.between(1, 3); n > 0; --n) {
      std::byte* const page = t.f.page(rng.between(2, static_cast<std::uint32_t>(t.f.pages() - 1)));
      std::byte* at = page + rng.below(504);
      if (rng.percent(40)) at = page + rng.below(24);
      if (rng.percent(50)) at = page + 400 + rng.below(100);
      put(at, static_cast<std::uint16_t>(rng.percent(50) ? rng.next() : rng.below(600)));
    }
    const TempFile file(t.f.bytes());
    const IndexedFile open(file.path());
    RecordIndex index;
    IndexProblem problem;
    const Status st = build_index(open.request(t.record), index, problem);
    ASSERT_TRUE(st.ok() || st.raw() == MDB_CORRUPTED);
    if (!st.ok()) {
      ++refused;
      ASSERT_STRNE(problem.reason, "");
      continue;
    }
    ASSERT_TRUE(index.consistent(open.pages(), 512));
    for (std::uint64_t i = 0; i < index.records(); ++i)
      ASSERT_TRUE(open.record(index.location(i))) << round << " " << i;
  }
  EXPECT_GT(refused, 300u);
}

}  // namespace
}  // namespace lmdbio::records
