// What each call answers for files with one named damage each, through LMDB's C functions with LMDBIO in
// front: the files of tests/fuzz/corpus/shim, which make_shim_corpus.cc defines.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <lmdb.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fuzz/call_sequence.h"
#include "tests/support/child.h"

namespace lmdbio::testing {
namespace {

constexpr int kNone = 1000;  // the step was not reached
constexpr int kEnd = MDB_NOTFOUND, kBad = MDB_CORRUPTED, kNoPage = MDB_PAGE_NOTFOUND;

/// The code of each step; a scan's is the one that ended it.
struct Steps {
  int open = kNone, copy = kNone, compact = kNone, forward = kNone, backward = kNone, get_a = kNone,
      open_sub = kNone, scan_sub = kNone, duplicates = kNone;
  bool operator==(const Steps&) const = default;
};

const char* name_of_code(int rc) {
  switch (rc) {
    case 0:
      return "0";
    case kNone:
      return "-";
    case MDB_NOTFOUND:
      return "NOTFOUND";
    case MDB_CORRUPTED:
      return "CORRUPTED";
    case MDB_PAGE_NOTFOUND:
      return "PAGE_NOTFOUND";
    case MDB_INVALID:
      return "INVALID";
    case MDB_VERSION_MISMATCH:
      return "VERSION_MISMATCH";
    case MDB_INCOMPATIBLE:
      return "INCOMPATIBLE";
    case MDB_CURSOR_FULL:
      return "CURSOR_FULL";
    case MDB_BAD_TXN:
      return "BAD_TXN";
    case MDB_MAP_RESIZED:
      return "MAP_RESIZED";
    case ENOMEM:
      return "ENOMEM";
    default:
      return nullptr;
  }
}
void PrintTo(const Steps& s, std::ostream* out) {
  const std::pair<const char*, int> all[] = {
      {"open", s.open},         {"copy", s.copy},         {"compact", s.compact},
      {"forward", s.forward},   {"backward", s.backward}, {"get_a", s.get_a},
      {"open_sub", s.open_sub}, {"scan_sub", s.scan_sub}, {"duplicates", s.duplicates}};
  for (const auto& [step, rc] : all) {
    *out << ' ' << step << ": ";
    if (const char* const name = name_of_code(rc); name != nullptr)
      *out << name;
    else
      *out << rc;
  }
}

MDB_val text(const char* s) { return {std::strlen(s), const_cast<char*>(s)}; }

int scan(MDB_txn* txn, MDB_dbi dbi, MDB_cursor_op first, MDB_cursor_op next) {
  MDB_cursor* cursor = nullptr;
  if (const int rc = mdb_cursor_open(txn, dbi, &cursor); rc != 0) return rc;
  MDB_val k{}, v{};
  int rc = mdb_cursor_get(cursor, &k, &v, first);
  volatile unsigned char sum = 0;
  for (int i = 0; rc == 0 && i < 5000; ++i) {
    for (const MDB_val& read : {k, v})
      for (std::size_t b = 0; b < read.mv_size; ++b)
        sum = sum ^ static_cast<const unsigned char*>(read.mv_data)[b];
    rc = mdb_cursor_get(cursor, &k, &v, next);
  }
  mdb_cursor_close(cursor);
  return rc;
}

/// Each step in a transaction of its own: damage ends one.
template <class Body>
int in_txn(MDB_env* env, Body body) {
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  int rc = mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn);
  if (rc != 0) return rc;
  rc = mdb_dbi_open(txn, nullptr, 0, &dbi);
  if (rc == 0) rc = body(txn, dbi);
  mdb_txn_abort(txn);
  return rc;
}

void take_steps(const char* path, Steps& s) {
  test::limit_copies();
  MDB_env* env = nullptr;
  if (mdb_env_create(&env) != 0 || mdb_env_set_maxdbs(env, 4) != 0) return;
  s.open = mdb_env_open(env, path, MDB_RDONLY | MDB_NOSUBDIR, 0600);
  if (s.open == 0) {
    const int copy = ::memfd_create("copy", MFD_CLOEXEC);
    s.forward = in_txn(env, [](MDB_txn* t, MDB_dbi d) { return scan(t, d, MDB_FIRST, MDB_NEXT); });
    s.backward = in_txn(env, [](MDB_txn* t, MDB_dbi d) { return scan(t, d, MDB_LAST, MDB_PREV); });
    s.get_a = in_txn(env, [](MDB_txn* t, MDB_dbi d) {
      MDB_val k = text("a"), v{};
      return mdb_get(t, d, &k, &v);
    });
    s.open_sub = in_txn(env, [](MDB_txn* t, MDB_dbi) {
      MDB_dbi sub = 0;
      return mdb_dbi_open(t, "sub", 0, &sub);
    });
    if (s.open_sub == 0)
      s.scan_sub = in_txn(env, [](MDB_txn* t, MDB_dbi) {
        MDB_dbi sub = 0;
        const int rc = mdb_dbi_open(t, "sub", 0, &sub);
        return rc != 0 ? rc : scan(t, sub, MDB_FIRST, MDB_NEXT);
      });
    unsigned flags = 0;
    (void)in_txn(env, [&](MDB_txn* t, MDB_dbi d) { return mdb_dbi_flags(t, d, &flags); });
    if ((flags & MDB_DUPFIXED) != 0)
      s.duplicates =
          in_txn(env, [](MDB_txn* t, MDB_dbi d) { return scan(t, d, MDB_FIRST, MDB_NEXT_MULTIPLE); });
    s.copy = mdb_env_copyfd2(env, copy, 0);
    s.compact = mdb_env_copyfd2(env, copy, MDB_CP_COMPACT);
    ::close(copy);
  }
  mdb_env_close(env);
}

/// Steps that lie in memory shared with a child.
class SharedSteps {
 public:
  SharedSteps()
      : at_(::mmap(nullptr, sizeof(Steps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (at_ == MAP_FAILED) throw std::bad_alloc();
    new (at_) Steps;
  }
  SharedSteps(const SharedSteps&) = delete;
  SharedSteps& operator=(const SharedSteps&) = delete;
  ~SharedSteps() { ::munmap(at_, sizeof(Steps)); }
  Steps& operator*() const { return *static_cast<Steps*>(at_); }

 private:
  void* const at_;
};

class DamagedFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string dir = ::testing::TempDir() + "lmdbio_damaged_XXXXXX";
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    dir_ = dir;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  /// In a process of its own, on a copy (its lock file is written beside it).
  ChildResult read(const std::filesystem::path& seed, Steps& steps) const {
    const std::filesystem::path copy = dir_ / seed.filename();
    std::filesystem::copy_file(seed, copy, std::filesystem::copy_options::overwrite_existing);
    const SharedSteps shared;
    ChildResult r = in_child([&] {
      ::alarm(60);
      take_steps(copy.c_str(), *shared);
      return 0;
    });
    steps = *shared;
    return r;
  }
  std::filesystem::path dir_;
};

const std::filesystem::path kCorpus = LMDBIO_SHIM_CORPUS;

TEST_F(DamagedFiles, HealthyOnesAreRead) {
  unsigned files = 0;
  for (const auto& e : std::filesystem::directory_iterator(kCorpus)) {
    if (!e.path().filename().string().starts_with("healthy-")) continue;
    ++files;
    SCOPED_TRACE(e.path().filename());
    Steps s;
    const ChildResult r = read(e.path(), s);
    EXPECT_EQ(r.exit_code, 0);
    EXPECT_EQ(r.err, "");
    EXPECT_EQ(s.open, 0);
    EXPECT_EQ(s.forward, kEnd);
    EXPECT_EQ(s.backward, kEnd);
    EXPECT_EQ(s.copy, 0);
    EXPECT_EQ(s.compact, 0);
  }
  EXPECT_GT(files, 10u);
}

TEST_F(DamagedFiles, EachStepHasItsCode) {
  std::set<std::string> left;
  for (const auto& e : std::filesystem::directory_iterator(kCorpus))
    if (const std::string name = e.path().filename(); !name.starts_with("healthy-")) left.insert(name);
  const std::map<std::string, Steps> expected = {
      {"branch-with-one-key", {0, 0, MDB_INCOMPATIBLE, kEnd, kEnd, kBad, kBad}},
      {"branch-without-keys", {0, 0, kBad, kBad, kBad, kBad, kBad}},
      {"child-beyond-file", {0, 0, kBad, kBad, kBad, 0, kBad}},
      {"child-beyond-last-page", {0, 0, kNoPage, kNoPage, kNoPage, 0, kNoPage}},
      {"cve-2019-16224-free-db-flags-0x18", {0, 0, 0, kEnd, kEnd, 0, kEnd}},
      {"cve-2019-16225-leaf-flags-0x12-dirty", {0, 0, 0, kEnd, kEnd, 0, kEnd}},
      {"cve-2019-16226-node-hi-0x8001", {0, 0, 0, kBad, kBad, kBad, kEnd}},
      {"cve-2019-16227-node-flags-0x0f", {0, 0, kBad, kBad, kBad, 0, kEnd}},
      {"cve-2019-16228-page-size-0", {MDB_INVALID}},
      {"cycle-branch-to-itself", {0, 0, kBad, kBad, kBad, 0, kBad}},
      {"cycle-duplicates-root-is-main-root", {0, 0, kBad, kEnd, kEnd, 0, kEnd, kNone, kEnd}},
      {"cycle-named-root-is-main-root", {0, 0, kBad, kEnd, kEnd, kEnd, 0, kEnd}},
      {"cycle-of-two-branches", {0, 0, kBad, kBad, kBad, 0, kBad}},
      {"depth-33", {0, 0, MDB_CURSOR_FULL, kBad, kBad, kBad, kEnd}},
      {"depth-65535-in-record", {0, 0, 0, kEnd, kEnd, 0, kEnd}},
      {"dupfixed-item-size-0", {0, 0, 0, kBad, kBad, kBad, kEnd, kNone, kBad}},
      {"dupfixed-item-size-0x8000", {0, 0, 0, kBad, kBad, kBad, kEnd, kNone, kBad}},
      {"dupfixed-sub-page-item-size-0", {0, 0, 0, kBad, kBad, 0, kEnd, kNone, kBad}},
      {"dupfixed-sub-page-item-size-0xffff", {0, 0, 0, kBad, kBad, kBad, kEnd, kNone, kBad}},
      {"duplicates-record-short", {0, 0, kBad, kBad, kBad, kBad, kEnd}},
      {"free-db-root-beyond-last-page", {0, 0, kNoPage, kEnd, kEnd, 0, kEnd}},
      {"free-list-count-2-to-60", {0, 0, MDB_INCOMPATIBLE, kEnd, kEnd, 0, kEnd}},
      {"meta-last-page-0", {kBad}},
      {"meta-last-page-2-to-63", {kBad}},
      {"meta-map-size-0-last-page-2-to-55", {kBad}},
      {"meta-map-size-2-to-63", {ENOMEM}},
      {"meta-second-page-size-differs", {MDB_INVALID}},
      {"meta-txnid-all-ones-over-a-cycle", {kBad}},
      {"meta-version-2", {MDB_VERSION_MISMATCH}},
      {"named-record-short", {0, 0, kBad, kEnd, kEnd, kEnd, kBad}},
      {"overflow-page-beyond-last-page", {0, 0, kNoPage, kNoPage, kNoPage, kNoPage, kEnd}},
      {"overflow-pages-0xffffffff", {0, 0, kBad, kEnd, kEnd, 0, kEnd}},
      {"overflow-run-beyond-file", {0, 0, kBad, kBad, kBad, kBad, kEnd}},
      {"page-number-differs", {0, 0, 0, kBad, kBad, kBad, kEnd}},
      {"page-upper-beyond-page", {0, 0, kBad, kBad, kBad, kBad, kEnd}},
      {"root-is-a-meta", {0, 0, kBad, kBad, kBad, kBad, kBad}},
      {"shared-subtrees", {0, 0, kBad, kBad, kBad, 0, kEnd}},
      {"slot-beyond-page", {0, 0, kBad, kBad, kBad, kBad, kEnd}},
      {"sub-page-lower-beyond-node", {0, 0, 0, kBad, kBad, kBad, kEnd}},
      {"sub-page-shorter-than-header", {0, 0, 0, kBad, kBad, kBad, kEnd}},
      {"sub-page-slot-beyond-node", {0, 0, 0, kBad, kBad, 0, kEnd}},
      {"truncated-after-first-meta-of-page-size-0", {MDB_INVALID}},
      {"truncated-after-metas", {0, 0, kBad, kBad, kBad, kBad, kBad}},
      {"truncated-after-second-meta", {MDB_INVALID}},
      {"truncated-in-root", {0, 0, kBad, kBad, kBad, kBad, kBad}},
      {"truncated-in-second-meta", {MDB_INVALID}},
  };
  for (const auto& [name, want] : expected) {
    SCOPED_TRACE(name);
    if (left.erase(name) == 0) {
      ADD_FAILURE() << "no such file";
      continue;
    }
    Steps got;
    const ChildResult r = read(kCorpus / name, got);
    EXPECT_EQ(r.exit_code, 0) << "a signal, or a sanitizer's report";
    EXPECT_EQ(got, want) << r.err;
    // Whoever refuses a page says so, and where.
    const bool page_refused = [&] {
      for (const int rc :
           {got.copy, got.compact, got.forward, got.backward, got.get_a, got.open_sub, got.scan_sub})
        if (rc == kBad || rc == kNoPage) return true;
      return false;
    }();
    const std::string path = (dir_ / name).string();
    if (page_refused) {
      EXPECT_NE(r.err.find("lmdbio: " + path + ": page "), std::string::npos) << r.err;
    }
    std::istringstream lines(r.err);
    for (std::string line; std::getline(lines, line);) EXPECT_TRUE(line.starts_with("lmdbio: ")) << line;
  }
  EXPECT_TRUE(left.empty()) << *left.begin() << ": no expectation";
}

}  // namespace
}  // namespace lmdbio::testing
