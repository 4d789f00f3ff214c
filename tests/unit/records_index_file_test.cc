// The record index: packed columns, lookups by leaf page, and the file that it is kept in, on any bytes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <lmdb.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "lmdbio/records/index_file.h"
#include "lmdbio/records/index_path.h"
#include "lmdbio/records/leaf_lookup.h"
#include "tests/support/file_image.h"
#include "tests/support/indexed.h"
#include "tests/support/rng.h"
#include "tests/support/temp_file.h"

namespace lmdbio::records {
namespace {

namespace fs = std::filesystem;
using format::DbRecord;
using testing::FileImage;
using ::testing::HasSubstr;
using testing::IndexedFile;
using testing::TempFile;

/// A data file of ours.
struct stat mode_of(::mode_t mode) {
  struct stat s {};
  s.st_mode = mode;
  s.st_gid = ::getegid();
  return s;
}

void holds(const std::vector<std::uint64_t>& values) {
  PackedColumn c;
  for (const std::uint64_t v : values) c.append(v);
  c.finish();
  ASSERT_EQ(c.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(c[i], values[i]) << i;
  PackedColumn again;
  ASSERT_TRUE(again.adopt(c.size(), c.frame_bytes(), c.distance_bytes()));
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(again[i], values[i]) << i;
  EXPECT_FALSE(PackedColumn().adopt(c.size() + PackedColumn::kFrame, c.frame_bytes(), c.distance_bytes()));
  if (c.distance_bytes().size() > PackedColumn::kSlack) {
    EXPECT_FALSE(PackedColumn().adopt(c.size(), c.frame_bytes(),
                                      c.distance_bytes().first(c.distance_bytes().size() - 1)));
  }
}

TEST(PackedColumn, HoldsAnyValues) {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << PackedColumn::kBits) - 1;
  holds({});
  holds({7});
  holds({kMost, 0, kMost, kMost, 0});
  for (const std::size_t n : {1u, 2u, 127u, 128u, 129u, 255u, 256u, 257u, 1000u}) {
    test::Rng rng(n);
    for (const unsigned bits : {1u, 7u, 8u, 9u, 31u, 32u, 55u, 56u}) {
      std::vector<std::uint64_t> any, line, down;
      for (std::size_t i = 0; i < n; ++i) {
        any.push_back(rng.next() >> (64 - bits));
        line.push_back((any[0] / 2 + i * 3 + rng.below(2)) & kMost);
        down.push_back((kMost >> (56 - bits)) / 4 * 3 / (i + 1));
      }
      holds(any);
      holds(line);
      holds(down);
    }
  }
}

TEST(PackedColumn, WhatIsEvenTakesNoBits) {
  PackedColumn c;
  for (std::uint64_t i = 0; i < 1280; ++i) c.append(1000 + 27 * i);
  c.finish();
  EXPECT_EQ(c.frame_bytes().size(), 10 * sizeof(PackedColumn::Frame));
  EXPECT_EQ(c.distance_bytes().size(), PackedColumn::kSlack);
}

/// A small tree of every kind of block, in a file.
class SmallTree : public ::testing::Test {
 protected:
  SmallTree() {
    FileImage f(512);
    const std::uint64_t run = f.overflow(std::string(1200, 'v')), run2 = f.overflow(std::string(400, 'w'));
    const std::uint64_t dup_leaf[] = {f.leaf({{"d1", ""}, {"d2", ""}}), f.leaf({{"d5", ""}, {"d6", ""}})};
    const std::uint64_t dup_branch = f.branch({{"", dup_leaf[0]}, {"d5", dup_leaf[1]}});
    const DbRecord tree = FileImage::record(0, 2, dup_branch, 4);
    // Leaf pages not in the order of their keys.
    const std::uint64_t last = f.leaf({{"n", "1"}, {"o", "2"}, FileImage::big("p", run2, 400)});
    const std::uint64_t first = f.leaf({{"a", "value"}, FileImage::big("b", run, 1200), {"c", ""}});
    const std::uint64_t middle =
        f.leaf({{"k0", "x"},
                {"k1", FileImage::sub_page({"s1", "s2", "s3"}), format::kDupData},
                {"k2", "y"},
                {"k3", FileImage::as_data(tree), format::kSubData | format::kDupData},
                {"k4", FileImage::sub_page({"t1", "t2"}), format::kDupData},
                {"k5", "z"}});
    leaves = {first, middle, last};
    root = f.branch({{"", first}, {"k", middle}, {"n", last}});
    record = FileImage::record(MDB_DUPSORT, 2, root, 3 + 12 + 3);
    f.metas(record, 6);
    file.append(f.bytes());
    open = std::make_unique<IndexedFile>(file.path());
    index = testing::built_index(open->request(record));
    tag.txnid = 6;
    tag.page_size = 512;
    tag.version = testing::version();
    tag.file_pages = open->pages();
    tag.record = record;
    tag.identity = open->file().buffered().identity().value();
    path = std::string(file.path()) + ".lmdbio-index";
  }
  ~SmallTree() override { fs::remove(path); }

  std::string saved() {
    std::uint64_t bytes = 0;
    EXPECT_EQ(save_index(index, tag, path, mode_of(0644), &bytes).raw(), 0);
    EXPECT_EQ(bytes, fs::file_size(path));
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
  int load(const IndexTag& t) {
    why[0] = '\0';
    return load_index(path, t, loaded, why).raw();
  }

  TempFile file;
  std::uint64_t root = 0;
  std::vector<std::uint64_t> leaves;
  DbRecord record{};
  std::unique_ptr<IndexedFile> open;
  RecordIndex index, loaded;
  IndexTag tag;
  std::string path;
  char why[128] = "";
};

TEST_F(SmallTree, EveryRecord) {
  const std::pair<const char*, std::string> want[] = {{"a", "value"}, {"b", std::string(1200, 'v')},
                                                      {"c", ""},      {"k0", "x"},
                                                      {"k1", "s1"},   {"k1", "s2"},
                                                      {"k1", "s3"},   {"k2", "y"},
                                                      {"k3", "d1"},   {"k3", "d2"},
                                                      {"k3", "d5"},   {"k3", "d6"},
                                                      {"k4", "t1"},   {"k4", "t2"},
                                                      {"k5", "z"},    {"n", "1"},
                                                      {"o", "2"},     {"p", std::string(400, 'w')}};
  ASSERT_EQ(index.records(), std::size(want));
  for (std::size_t i = 0; i < std::size(want); ++i) {
    const auto got = open->record(index.location(i));
    ASSERT_TRUE(got) << i;
    EXPECT_EQ(got->first, want[i].first) << i;
    EXPECT_EQ(got->second, want[i].second) << i;
  }
  EXPECT_EQ(index.leaf_pages(), 5u);
  EXPECT_EQ(index.totals().branch_pages, 2u);
  EXPECT_EQ(index.values_in_overflow(), 2u);
  EXPECT_EQ(index.totals().overflow_bytes, 1600u);
  EXPECT_EQ(index.totals().largest_overflow, 1200u);
}

TEST_F(SmallTree, OrdinalOfALeafsEntry) {
  const LeafLookup lookup = LeafLookup::make(index).value();
  const std::vector<std::vector<std::uint64_t>> want = {{0, 1, 2}, {3, 4, 7, 8, 12, 14}, {15, 16, 17}};
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    format::PageView page;
    ASSERT_TRUE(format::PageView::open(testing::version(), open->page(leaves[l]), 512,
                                       format::Pgno{leaves[l]}, page));
    for (unsigned s = 0; s < want[l].size(); ++s)
      EXPECT_EQ(lookup.ordinal_of(leaves[l], page, s), want[l][s]) << l << " " << s;
    EXPECT_FALSE(lookup.ordinal_of(root, page, 0));
    EXPECT_FALSE(lookup.ordinal_of(0, page, 0));
    EXPECT_FALSE(lookup.ordinal_of(leaves[l], page, page.count()));
  }
}

// What is asked for is checked against the page.
TEST_F(SmallTree, PlacesThatDoNotFitAreRefused) {
  for (std::uint64_t i = 0; i < index.records(); ++i) {
    const RecordLocation good = index.location(i);
    const std::function<void(RecordLocation&)> wrong[] = {
        [](RecordLocation& p) { p.slot = 7; },
        [](RecordLocation& p) { p.nth += 100; },
        [](RecordLocation& p) { p.overflow = p.overflow == 0 ? 3 : 0; },
        [](RecordLocation& p) { p.overflow != 0 ? ++p.value_bytes : ++p.slot += 9; },
        [&](RecordLocation& p) { p.dup_leaf == 0 ? void(p.dup_leaf = leaves[2]) : void(p.dup_item = 2); },
        [&](RecordLocation& p) { p.leaf = root; },
    };
    for (std::size_t w = 0; w < std::size(wrong); ++w) {
      RecordLocation p = good;
      wrong[w](p);
      EXPECT_FALSE(open->record(p)) << i << " " << w;
    }
  }
}

/// Temporary files of the index file `path`.
std::vector<std::string> temporaries(const std::string& path) {
  std::vector<std::string> found;
  for (const auto& e : fs::directory_iterator(fs::path(path).parent_path()))
    if (e.path().string().starts_with(path + ".")) found.push_back(e.path().string());
  return found;
}

TEST_F(SmallTree, RoundTrip) {
  EXPECT_EQ(load(tag), ENOENT);
  const std::string first = saved();
  ASSERT_EQ(load(tag), 0) << why;
  EXPECT_EQ(loaded.totals(), index.totals());
  for (std::uint64_t i = 0; i < index.records(); ++i) EXPECT_EQ(loaded.location(i), index.location(i)) << i;
  EXPECT_EQ(saved(), first);
  struct stat st;
  for (const mode_t mode : {0644u, 0600u, 0640u, 0666u}) {
    ASSERT_EQ(save_index(index, tag, path, mode_of(mode)).raw(), 0);
    ASSERT_EQ(::stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u | (mode & 0044));
  }
  EXPECT_TRUE(temporaries(path).empty());
  IndexTag named = tag;
  named.database = "a name";
  ASSERT_EQ(save_index(index, named, path, mode_of(0644)).raw(), 0);
  EXPECT_EQ(load(named), 0) << why;
  EXPECT_EQ(load(tag), ESTALE);
  named.database = "b name";
  EXPECT_EQ(load(named), ESTALE);
}

TEST_F(SmallTree, StaleOnesAreRefused) {
  (void)saved();
  const std::function<void(IndexTag&)> changes[] = {
      [](IndexTag& t) { t.txnid += 2; },
      [](IndexTag& t) { ++t.identity.mtime_ns; },
      [](IndexTag& t) { t.identity.size += 512; },
      [](IndexTag& t) { ++t.record.entries; },
      [](IndexTag& t) { t.record.root = format::Pgno{3}; },
      [](IndexTag& t) { t.record.flags = 0; },
      [](IndexTag& t) { t.page_size = 1024; },
      [](IndexTag& t) { ++t.record.depth; },
  };
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    IndexTag t = tag;
    changes[i](t);
    EXPECT_EQ(load(t), ESTALE) << i;
    EXPECT_STRNE(why, "") << i;
  }
  IndexTag other_node = tag;  // another machine's number of the same device
  ++other_node.identity.dev;
  EXPECT_EQ(load(other_node), 0) << why;
}

TEST_F(SmallTree, CopiesThatKeepTheModificationTime) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  for (const std::int64_t time : {7 * kSecond, 7 * kSecond + 1}) {
    tag.identity.mtime_ns = time;
    (void)saved();
    IndexTag copy = tag;
    ++copy.identity.ino;
    // Archives set whole seconds, and the same ones for several files.
    EXPECT_EQ(load(copy), time % kSecond == 0 ? ESTALE : 0) << why;
    ++copy.identity.mtime_ns;
    EXPECT_EQ(load(copy), ESTALE);
    EXPECT_THAT(why, HasSubstr("copied or changed"));
    copy.identity.mtime_ns = time;
    ++copy.txnid;
    EXPECT_EQ(load(copy), ESTALE);
  }
}

TEST_F(SmallTree, FilesOfOtherUsersAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  (void)saved();
  constexpr ::uid_t kOther = 12345;
  ASSERT_EQ(::chown(path.c_str(), kOther, static_cast<::gid_t>(-1)), 0);
  EXPECT_EQ(load(tag), EPERM);
  EXPECT_THAT(why, HasSubstr("user 12345"));
  tag.owner = kOther;
  EXPECT_EQ(load(tag), 0) << why;
}

/// In a child, `body` runs without what the kernel refuses: fsync(2) kills it, and O_TMPFILE is not
/// supported.
template <class Body>
int killed_at_fsync(bool unnamed, Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, unnamed ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(program), program};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
      ::_exit(77);
    body();
    ::_exit(1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_F(SmallTree, KilledBuildsLeaveNothingForLong) {
  const auto write = [&] { (void)save_index(index, tag, path, mode_of(0644)); };
  const int killed = killed_at_fsync(true, write);
  if (killed == 77) GTEST_SKIP() << "no seccomp";
  ASSERT_EQ(killed, -SIGSYS);
  EXPECT_TRUE(temporaries(path).empty());
  EXPECT_FALSE(fs::exists(path));
  // Where all files have a name, the next build removes it, unless it may be that of a build that runs.
  ASSERT_EQ(killed_at_fsync(false, write), -SIGSYS);
  (void)saved();
  const std::vector<std::string> left = temporaries(path);
  ASSERT_EQ(left.size(), 1u);
  const std::string others = path + ".abcdefg", index_of_another = path + ".ab-def";
  for (const std::string& f : {left[0], others, index_of_another}) {
    std::ofstream(f, std::ios::app) << "x";
    fs::last_write_time(f, fs::last_write_time(f) - std::chrono::hours(2));
  }
  (void)saved();
  EXPECT_THAT(temporaries(path), ::testing::UnorderedElementsAre(others, index_of_another));
  fs::remove(others);
  fs::remove(index_of_another);
}

TEST_F(SmallTree, AFileSizeLimitIsAnError) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{100, 100};
    (void)::setrlimit(RLIMIT_FSIZE, &limit);
    const int rc = save_index(index, tag, path, mode_of(0644)).raw();
    sigset_t pending;
    (void)::sigpending(&pending);
    ::_exit(rc == EFBIG && ::sigismember(&pending, SIGXFSZ) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(temporaries(path).empty());
}

TEST_F(SmallTree, EveryFlippedByteAndEveryLengthIsRefused) {
  const std::string good = saved();
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const auto write_at = [&](std::size_t at, char c) {
    ASSERT_EQ(::pwrite(fd.get(), &c, 1, static_cast<off_t>(at)), 1);
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    write_at(i, static_cast<char>(good[i] ^ (1 << i % 8)));
    const int rc = load(tag);
    write_at(i, good[i]);
    ASSERT_TRUE(rc == MDB_CORRUPTED || rc == ESTALE || rc == MDB_VERSION_MISMATCH) << i << ": " << rc;
    ASSERT_STRNE(why, "");
  }
  EXPECT_EQ(load(tag), 0) << why;
  for (std::size_t n = good.size(); n-- > 0;) {
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(n)), 0);
    ASSERT_EQ(load(tag), MDB_CORRUPTED) << n;
  }
  put(good + std::string(8, '\0'));
  EXPECT_EQ(load(tag), MDB_CORRUPTED);
  put(good);
  EXPECT_EQ(load(tag), 0) << why;
}

TEST_F(SmallTree, OtherFilesAreRefused) {
  put("");
  EXPECT_EQ(load(tag), MDB_CORRUPTED);
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_EQ(load(tag), MDB_CORRUPTED);
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(load(tag), MDB_CORRUPTED);
}

// A wrong number under a right checksum, as whoever writes such a file by intent can have it.
TEST_F(SmallTree, ColumnsThatDoNotFitAreRefused) {
  ASSERT_TRUE(index.consistent(tag.file_pages, 512));
  const auto made =
      [&](const std::function<void(std::vector<std::vector<std::uint64_t>>&, IndexTotals&)>& change) {
        const IndexColumns& c = index.columns();
        std::vector<std::vector<std::uint64_t>> all;
        for (const PackedColumn* p : {&c.leaf, &c.first, &c.start, &c.where, &c.run_page, &c.run_bytes}) {
          all.emplace_back();
          for (std::uint64_t i = 0; i < p->size(); ++i) all.back().push_back((*p)[i]);
        }
        IndexTotals totals = index.totals();
        change(all, totals);
        IndexColumns out;
        PackedColumn* const to[] = {&out.leaf,  &out.first,    &out.start,
                                    &out.where, &out.run_page, &out.run_bytes};
        for (std::size_t i = 0; i < all.size(); ++i) {
          for (const std::uint64_t v : all[i]) to[i]->append(v);
          to[i]->finish();
        }
        return RecordIndex(std::move(out), totals);
      };
  using All = std::vector<std::vector<std::uint64_t>>;
  EXPECT_TRUE(made([](All&, IndexTotals&) {}).consistent(tag.file_pages, 512));
  const std::function<void(All&, IndexTotals&)> changes[] = {
      [](All& a, IndexTotals&) { a[0][0] = 1; },
      [&](All& a, IndexTotals&) { a[0][1] = tag.file_pages; },
      [](All& a, IndexTotals&) { a[1][0] = 1; },
      [](All& a, IndexTotals&) { a[1][2] = a[1][1]; },
      [](All& a, IndexTotals&) { a[1].back() = 1000; },
      [](All& a, IndexTotals&) { a[2][0] = 512 << 2; },
      [](All& a, IndexTotals&) { a[2][0] = 0; },  // a runs block called plain
      [](All& a, IndexTotals&) { a[2].back() = 2; },
      [](All& a, IndexTotals&) { ++a[3][0]; },
      [](All& a, IndexTotals&) { a[4][1] = 0; },
      [&](All& a, IndexTotals&) { a[4][1] = tag.file_pages - 2; },
      [](All& a, IndexTotals&) { a[5][1] = std::uint64_t{1} << 40; },
      [](All& a, IndexTotals&) { a[5][1] = 5; },
      [](All& a, IndexTotals&) {
        a[5].pop_back();
        a[4].pop_back();
      },
      [](All& a, IndexTotals&) { a[4].pop_back(); },
      [](All& a, IndexTotals&) { a[3].pop_back(); },
      [](All&, IndexTotals& t) { t.records = 0; },
      [](All&, IndexTotals& t) { --t.records; },  // the last block would have a run without a record
      [](All&, IndexTotals& t) { ++t.largest_overflow; },
      [](All&, IndexTotals& t) { ++t.overflow_values; },
      [](All&, IndexTotals& t) { ++t.overflow_bytes; },
  };
  for (std::size_t i = 0; i < std::size(changes); ++i)
    EXPECT_FALSE(made(changes[i]).consistent(tag.file_pages, 512)) << i;
  // And through the file.
  const RecordIndex bad = made([](All& a, IndexTotals&) { a[0][0] = 1; });
  ASSERT_EQ(save_index(bad, tag, path, mode_of(0644)).raw(), 0);
  EXPECT_EQ(load(tag), MDB_CORRUPTED);
  EXPECT_THAT(why, HasSubstr("inconsistent columns"));
}

/// Whatever the bytes, under a right checksum: an answer, and no location outside of the file.
class HostileIndexFile : public SmallTree {
 protected:
  static constexpr std::size_t kHeader = 280, kFileBytes = 16, kColumns = 136, kColumn = 24;

  HostileIndexFile() : good(saved()) {}
  template <class T>
  static void set(std::string& bytes, std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  /// The answer to these bytes.
  int answer(std::string bytes) {
    const std::size_t body = bytes.size() - sizeof(std::uint64_t);
    set(bytes, body, std::uint64_t{XXH3_64bits(bytes.data(), body)});
    if (!file_) file_.reset(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_EQ(::pwrite(file_.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(::ftruncate(file_.get(), static_cast<off_t>(bytes.size())), 0);
    const int rc = load(tag);
    EXPECT_TRUE(rc == 0 || rc == MDB_CORRUPTED || rc == ESTALE || rc == MDB_VERSION_MISMATCH)
        << rc << ' ' << why;
    if (rc != 0) {
      EXPECT_STRNE(why, "");
      return rc;
    }
    EXPECT_TRUE(loaded.consistent(tag.file_pages, {tag.page_size, tag.version}));
    EXPECT_EQ(loaded.records(), index.records());
    for (std::uint64_t i = 0; i < loaded.records(); ++i) {
      const RecordLocation at = loaded.location(i);
      EXPECT_LT(at.leaf, tag.file_pages);
      EXPECT_LT(at.dup_leaf, tag.file_pages);
      EXPECT_LE(at.overflow + format::overflow_pages(testing::version(), at.value_bytes, 9),
                tag.file_pages + 1);
      if (const auto got = open->record(at)) bytes_seen += got->first.size() + got->second.size();
    }
    return rc;
  }

  const std::string good;
  std::size_t bytes_seen = 0;

 private:
  UniqueFd file_;
};

TEST_F(HostileIndexFile, EachNumberOfTheHeader) {
  ASSERT_EQ(answer(good), 0) << why;
  const auto each = [&]<class T>(T) {
    for (std::size_t at = 0; at + sizeof(T) <= kHeader; at += sizeof(T)) {
      T was;
      std::memcpy(&was, good.data() + at, sizeof was);
      constexpr T kMost = static_cast<T>(~T{0}), kHigh = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
      const T some[] = {0,
                        1,
                        127,
                        128,
                        kMost,
                        static_cast<T>(kMost - 7),
                        kHigh,
                        static_cast<T>(kHigh - 1),
                        static_cast<T>(was + 1),
                        static_cast<T>(was - 1),
                        static_cast<T>(was + 8),
                        static_cast<T>(was - 8),
                        static_cast<T>(was * 2),
                        static_cast<T>(was / 2),
                        static_cast<T>(was | kHigh)};
      for (const T value : some) {
        std::string bad = good;
        set(bad, at, value);
        // What it takes is what it was: the numbers of pages are for people, distances end in padding.
        if (answer(std::move(bad)) != 0) continue;
        for (std::uint64_t n = 0; n < index.records(); ++n)
          ASSERT_EQ(loaded.location(n), index.location(n)) << at << ": " << value;
      }
    }
  };
  each(std::uint64_t{});
  each(std::uint32_t{});
}

TEST_F(HostileIndexFile, EachByteOfTheColumns) {
  for (std::size_t at = kHeader; at < good.size() - sizeof(std::uint64_t); ++at) {
    for (const int flip : {1 << at % 8, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      (void)answer(std::move(bad));
    }
  }
  EXPECT_GT(bytes_seen, 0u);
}

TEST_F(HostileIndexFile, EachNumberOfTheColumns) {
  for (std::size_t at = kHeader; at + 16 <= good.size(); at += 8) {
    for (const std::uint64_t value :
         {std::uint64_t{0}, std::uint64_t{57}, std::uint64_t{58}, std::uint64_t{63}, ~std::uint64_t{0},
          ~std::uint64_t{63}, std::uint64_t{1} << 63, (std::uint64_t{good.size()} * 8) << 6 | 57}) {
      std::string bad = good;
      set(bad, at, value);
      (void)answer(std::move(bad));
    }
  }
}

TEST_F(HostileIndexFile, ShortenedWithAHeaderThatSaysSo) {
  for (std::size_t n = kHeader + sizeof(std::uint64_t); n < good.size(); n += 8) {
    std::string bad = good.substr(0, n);
    set(bad, kFileBytes, std::uint64_t{n});
    EXPECT_NE(answer(std::move(bad)), 0) << n;
  }
}

// Sizes that fit the file by their sum alone, which is one of 64 bits.
TEST_F(HostileIndexFile, ColumnsWhoseSizesWrapAround) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0}, kFrames = (std::uint64_t{1} << 57) - 2, kFrame = 24;
  tag.record.entries = kMost;  // the database says so, too
  std::string bad = good;
  set(bad, 48, kMost);
  set(bad, 88, kMost);
  // What six columns of these have in all is 2^64 and as much as the file has; distances of nothing.
  const std::uint64_t rest = std::uint64_t{0} - 4 * kFrames * kFrame - 6 * PackedColumn::kSlack;
  std::size_t size = kHeader + sizeof(std::uint64_t);
  while ((rest + size - kHeader - sizeof(std::uint64_t)) % kFrame != 0) size += 8;
  const std::uint64_t frames = (rest + size - kHeader - sizeof(std::uint64_t)) / kFrame;
  for (std::size_t i = 0; i < 6; ++i) {
    const std::uint64_t n = i < 4 ? kFrames : i == 4 ? frames / 2 : frames - frames / 2;
    ASSERT_LE(n, kFrames);
    set(bad, kColumns + i * kColumn, n * PackedColumn::kFrame - (PackedColumn::kFrame - 1));
    set(bad, kColumns + i * kColumn + 8, n * kFrame);
    set(bad, kColumns + i * kColumn + 16, std::uint64_t{PackedColumn::kSlack});
  }
  bad.resize(kHeader);
  bad.resize(size);
  set(bad, kFileBytes, std::uint64_t{size});
  EXPECT_EQ(answer(std::move(bad)), MDB_CORRUPTED);
}

TEST_F(SmallTree, NamesTellDatabasesApart) {
  const std::string data = file.path();
  const auto name = [&](const std::string& db, const std::string& dir = "", std::uint64_t ino = 1) {
    return index_path(data, db, ino, dir).value();
  };
  EXPECT_EQ(name(""), data + ".lmdbio-index");
  EXPECT_EQ(name("train"), data + ".train.lmdbio-index");
  EXPECT_EQ(name("a/b.\n\xff"), data + ".a%2Fb%2E%0A%FF.lmdbio-index");
  const std::string long_name(511, '/'), other = long_name.substr(0, 510) + "x";
  EXPECT_LT(fs::path(name(long_name, "/d")).filename().string().size(), 256u + 0u);
  EXPECT_NE(name(long_name), name(other));
  EXPECT_EQ(fs::path(name("", "/d")).parent_path(), "/d");
  EXPECT_NE(name("", "/d", 1), name("", "/d", 2));
  const TempFile elsewhere;
  EXPECT_NE(index_path(elsewhere.path(), "", 1, "/d").value(), name("", "/d"));
  EXPECT_EQ(index_path("/nowhere/data.mdb", "", 1, "/d").error().raw(), ENOENT);
}

TEST_F(SmallTree, FailedWritesLeaveNothing) {
  EXPECT_EQ(save_index(index, tag, "/nowhere/x", mode_of(0644)).raw(), ENOENT);
  fs::create_directory(path);  // rename fails
  EXPECT_EQ(save_index(index, tag, path, mode_of(0644)).raw(), EISDIR);
  EXPECT_TRUE(temporaries(path).empty());
  fs::remove(path);
}

TEST_F(SmallTree, FoundBesideTheDatabase) {
  EXPECT_FALSE(find_index(file.path(), tag, loaded));
  (void)saved();
  EXPECT_TRUE(find_index(file.path(), tag, loaded));
  EXPECT_EQ(loaded.records(), index.records());
  ::testing::internal::CaptureStderr();
  IndexTag stale = tag;
  ++stale.txnid;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(find_index(file.path(), stale, loaded));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("record index ignored: built from transaction 6; the database is at 7; to "
                              "rebuild it, run lmdbio index"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

}  // namespace
}  // namespace lmdbio::records
