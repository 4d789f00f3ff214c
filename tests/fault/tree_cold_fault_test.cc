// Walks over a database that is read ahead, while each single read fails in turn.  What a call needs is then
// read by itself; if that fails too, the call gives the errno once, and the next one goes on with the very
// record.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "lmdbio/window/io_worker.h"
#include "lmdbio/window/prefetcher.h"
#include "tests/support/file_image.h"
#include "tests/support/forbid.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/temp_file.h"

// Forking beside threads.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace {

/// After each read of an engine that failed, the next read of a need fails, too.
std::atomic<bool> needs_fail{false};
std::atomic<unsigned> failures_seen{0};

}  // namespace

// How needs are read comes here: the product is linked into this program.
extern "C" ssize_t preadv(int fd, const iovec* to, int pieces, off_t offset) {
  if (const unsigned failed = lmdbio::testing::engine_script().failed;
      failures_seen.exchange(failed) < failed && needs_fail) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_preadv, fd, to, pieces, static_cast<unsigned long>(offset), 0UL);
}

// Nothing is in the page cache, so that needs are read.
extern "C" int mincore(void* /*address*/, std::size_t bytes, unsigned char* present) {
  std::fill_n(present, (bytes + 4095) / 4096, static_cast<unsigned char>(0));
  return 0;
}

namespace lmdbio::tree {
namespace {

using testing::engine_script;
using testing::FileImage;
using testing::need_script;

const bool set = [] {
  ::setenv("LMDBIO_STALL_SECONDS", "1", 1);
  return testing::script_all_reads("8M");
}();

#if defined(__SANITIZE_THREAD__)
constexpr unsigned kStep = 5;  // slow: not each read
#else
constexpr unsigned kStep = 1;
#endif
constexpr std::size_t kPage = 4096;

std::string key_of(unsigned i) {
  char text[16];
  (void)std::snprintf(text, sizeof text, "%07u", i);
  return text;
}

/// Sizes as databases of training data have them; each value tells its record.
struct Records {
  const char* name;
  unsigned count;
  std::size_t bytes;
};
constexpr Records kRecords[] = {{"small", 48'000, 200}, {"medium", 2'600, 3'000}, {"large", 90, 110'000}};

/// The database of `r`, written in the order of keys: leaves, then their values, then the next.
FileImage database(const Records& r) {
  FileImage f(kPage);
  std::vector<testing::BranchEntry> level;
  const bool big = r.bytes > kPage / 2 - 64;
  const unsigned a_leaf = big ? 60 : static_cast<unsigned>((kPage - 16) / (8 + 7 + r.bytes + 4));
  for (unsigned i = 0; i < r.count;) {
    std::vector<testing::LeafEntry> entries;
    for (const unsigned end = std::min(r.count, i + a_leaf); i < end; ++i) {
      std::string value(r.bytes, static_cast<char>(i));
      value.replace(0, 7, key_of(i));
      value.replace(r.bytes - 7, 7, key_of(i));
      if (big)
        entries.push_back(FileImage::big(key_of(i), f.overflow(value), static_cast<std::uint32_t>(r.bytes)));
      else
        entries.push_back({key_of(i), value});
    }
    level.push_back({entries.front().key, f.leaf(entries)});
  }
  unsigned depth = 1;
  for (; level.size() > 1; ++depth) {
    std::vector<testing::BranchEntry> above;
    for (std::size_t i = 0; i < level.size();) {
      const std::size_t n = std::min<std::size_t>(level.size() - i, 150);
      const std::vector<testing::BranchEntry> some(level.begin() + static_cast<std::ptrdiff_t>(i),
                                                   level.begin() + static_cast<std::ptrdiff_t>(i + n));
      above.push_back({some.front().key, f.branch(some)});
      i += n;
    }
    level = std::move(above);
  }
  format::DbRecord main = FileImage::record(0, depth, level.front().child, r.count);
  main.overflow_pages = big ? 1 : 0;
  f.metas(main, 7);
  return f;
}

/// An environment over a file, opened anew for each walk.
class Cold {
 public:
  explicit Cold(const testing::TempFile& file, std::uint64_t bytes)
      : env_(std::move(
            Env::open(file.fd(),
                      {testing::pages_of(kPage), bytes, 1, false, {}, ~std::uint64_t{0} - 1, "cold.mdb"})
                .value())),
        txn_(*env_) {
    const MetaSource source(env_->metas().records);
    std::uint64_t txnid = 0;
    EXPECT_TRUE(source.renew(txnid).ok());
    EXPECT_TRUE(txn_.begin(txnid, source).ok());
  }
  Env& env() { return *env_; }
  Txn& txn() { return txn_; }

 private:
  std::unique_ptr<Env> env_;
  Txn txn_;
};

bool is_record(const MDB_val& k, const MDB_val& v, unsigned i, const Records& r) {
  const std::string key = key_of(i);
  const auto* const value = static_cast<const char*>(v.mv_data);
  return k.mv_size == 7 && std::memcmp(k.mv_data, key.data(), 7) == 0 && v.mv_size == r.bytes &&
         std::memcmp(value, key.data(), 7) == 0 && std::memcmp(value + r.bytes - 7, key.data(), 7) == 0 &&
         value[7] == static_cast<char>(i) && std::memcmp(value + 7, value + 8, r.bytes - 15) == 0;
}

class DbCold : public ::testing::TestWithParam<Records> {
 protected:
  DbCold() : data_(data_of(GetParam())), image_(data_.image), file_(data_.file) { reset(false); }
  static void TearDownTestSuite() { all_data().clear(); }
  const Records& records() const { return GetParam(); }

  /// From one end to the other, an errno answered by the same call again.  The errnos.
  std::vector<int> walk(MDB_cursor_op first, MDB_cursor_op step, unsigned rounds = 1) {
    std::vector<int> errors;
    Cold cold(file_, image_.bytes().size());
    Cursor c(cold.txn(), kMainDbi);
    const bool forward = step == MDB_NEXT;
    for (unsigned round = 0; round < rounds; ++round) {
      unsigned at = 0;
      for (MDB_cursor_op op = first;; op = step) {
        MDB_val k{}, v{};
        Status st = c.get(&k, &v, op);
        if (st.raw() > 0) {
          errors.push_back(st.raw());
          st = c.get(&k, &v, op);
        }
        if (st.raw() == MDB_NOTFOUND) break;
        if (!st.ok()) {
          ADD_FAILURE() << "again: " << st.raw() << " at record " << at;
          return errors;
        }
        if (!is_record(k, v, forward ? at : records().count - 1 - at, records())) {
          ADD_FAILURE() << "not record " << at;
          return errors;
        }
        ++at;
      }
      EXPECT_EQ(at, records().count);
    }
    return errors;
  }

  static void reset(bool for_needs) {
    engine_script().reset();
    need_script().reset();
    needs_fail = for_needs;
    failures_seen = 0;
  }

  /// Reads of the engine, and those of needs after them, fail from now on, or no more.  Reads that the engine
  /// has on their way may still fail then; needs do not.
  static void all_reads_fail(bool fail) {
    needs_fail = fail;
    engine_script().fail_nth = fail ? 1 : 0;
  }

  void each_read(MDB_cursor_op first, MDB_cursor_op step) {
    unsigned k = 1, seen = 0;
    const unsigned every = records().count < 100 ? 1 : kStep;  // few reads: each is tried
    for (;; k += every) {
      ASSERT_LT(k, 200u);
      reset(true);
      engine_script().error = EIO;
      engine_script().fail_nth = k;
      const std::vector<int> errors = walk(first, step);
      if (engine_script().failed == 0) {
        EXPECT_TRUE(errors.empty());
        break;
      }
      EXPECT_LE(errors.size(), 1u) << "read " << k;
      for (const int e : errors) EXPECT_EQ(e, EIO);
      seen += static_cast<unsigned>(errors.size());
    }
    EXPECT_GT(k, 4u) << "it was read by the engine";
    EXPECT_GT(seen, 0u);
  }

  /// Forty records by their keys, all over the file.
  void look_up(Cold& cold) const {
    for (unsigned n = 0, at = 0; n < 40; ++n, at = (at + records().count / 3 + 37) % records().count) {
      const std::string key = key_of(at);
      const MDB_val k{key.size(), const_cast<char*>(key.data())};
      MDB_val v{};
      ASSERT_TRUE(cold.txn().get(kMainDbi, k, v).ok()) << "record " << at;
      ASSERT_TRUE(is_record(k, v, at, records())) << "not record " << at;
    }
  }

  /// For lookups, which ask at each page: nothing is in the page cache there, as mincore() above says.
  template <class Body>
  static void in_child_without_cachestat(Body&& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      constexpr long kSysCachestat = 451;
      if (!testing::forbid(kSysCachestat, ENOSYS)) ::_exit(kNoFilter);
      body();
      ::_exit(HasFailure() ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilter) GTEST_SKIP() << "no seccomp filters";
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  static constexpr int kNoFilter = 77;

  /// What standard error gets until a line is there, while `body` runs in another thread and `script` holds
  /// its reads.
  template <class Body>
  static std::string told_of_a_hang(testing::EngineScript& script, Body&& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return "no pipe";
    const UniqueFd out(ends[0]);
    const UniqueFd was(::dup(STDERR_FILENO));
    EXPECT_GE(::dup2(ends[1], STDERR_FILENO), 0);
    UniqueFd(ends[1]).reset();
    script.hold();
    std::thread waits(body);
    pollfd line{out.get(), POLLIN, 0};
    const int told = ::poll(&line, 1, 20'000);
    script.release();
    waits.join();
    EXPECT_GE(::dup2(was.get(), STDERR_FILENO), 0);
    EXPECT_EQ(told, 1);
    char said[4096];
    const ssize_t n = ::read(out.get(), said, sizeof said);
    return std::string(said, n > 0 ? static_cast<std::size_t>(n) : 0);
  }

  struct Data {
    explicit Data(const Records& r) : image(database(r)), file(image.bytes()) { ::fsync(file.fd()); }
    const FileImage image;
    const testing::TempFile file;
  };
  static std::map<std::string, std::unique_ptr<Data>>& all_data() {
    static std::map<std::string, std::unique_ptr<Data>> all;
    return all;
  }
  /// Written once.
  static const Data& data_of(const Records& r) {
    std::unique_ptr<Data>& d = all_data()[r.name];
    if (d == nullptr) d = std::make_unique<Data>(r);
    return *d;
  }

  const Data& data_;
  const FileImage& image_;
  const testing::TempFile& file_;
};

TEST_P(DbCold, NothingFails) {
  ASSERT_TRUE(set);
  EXPECT_TRUE(walk(MDB_FIRST, MDB_NEXT, 2).empty());
  EXPECT_TRUE(walk(MDB_LAST, MDB_PREV, 2).empty());
  EXPECT_TRUE(walk(MDB_NEXT, MDB_NEXT).empty()) << "NEXT of a new cursor is FIRST";
  EXPECT_TRUE(walk(MDB_PREV, MDB_PREV).empty());
  EXPECT_EQ(window::Prefetcher::existing()->memory().used(), 0u);
}

TEST_P(DbCold, EachReadForward) { each_read(MDB_FIRST, MDB_NEXT); }
TEST_P(DbCold, EachReadBackward) { each_read(MDB_LAST, MDB_PREV); }
TEST_P(DbCold, EachReadOfNextFromNowhere) { each_read(MDB_NEXT, MDB_NEXT); }
TEST_P(DbCold, EachReadOfPrevFromNowhere) { each_read(MDB_PREV, MDB_PREV); }

// The failed read was one of much more than was needed, or began before that.
TEST_P(DbCold, NeedsAreReadByThemselves) {
  for (unsigned k = 1;; k += kStep) {
    ASSERT_LT(k, 200u);
    reset(false);
    engine_script().error = EIO;
    engine_script().fail_nth = k;
    EXPECT_TRUE(walk(MDB_FIRST, MDB_NEXT).empty()) << "read " << k;
    if (engine_script().failed == 0) break;
  }
}

// A chunk that cannot be read costs some reads that fail, not one for each of its records.
TEST_P(DbCold, NoReadSucceeds) {
  engine_script().error = EIO;
  engine_script().fail_times = ~0u;
  engine_script().fail_nth = 1;
  const std::uint64_t chunks = image_.bytes().size() / (std::uint64_t{2} << 20) + 1;
  EXPECT_TRUE(walk(MDB_FIRST, MDB_NEXT).empty());
  EXPECT_GT(engine_script().failed, 0u);
  constexpr unsigned kReadsAChunk = 128;  // under load half of it was seen
  EXPECT_LE(engine_script().failed, kReadsAChunk * chunks) << "of " << records().count << " records";
  EXPECT_TRUE(walk(MDB_LAST, MDB_PREV).empty());
}

// While all reads fail, calls that need one say so or find the bytes by the mapping, and the cursor stays
// where it is.
TEST_P(DbCold, AllReadsFailForAWhile) {
  Cold cold(file_, image_.bytes().size());
  Cursor c(cold.txn(), kMainDbi);
  const unsigned last = records().count - 1;
  MDB_val k{}, v{};
  engine_script().error = EIO;
  engine_script().fail_times = ~0u;
  all_reads_fail(true);
  for (int i = 0; i < 3; ++i) {
    for (const bool forward : {true, false}) {
      const Status st = c.get(&k, &v, forward ? MDB_FIRST : MDB_LAST);
      if (st.ok()) {
        EXPECT_TRUE(is_record(k, v, forward ? 0 : last, records()));
      } else {
        EXPECT_EQ(st.raw(), EIO);
      }
    }
  }
  for (const bool forward : {true, false}) {
    all_reads_fail(false);
    ASSERT_TRUE(c.get(&k, &v, forward ? MDB_FIRST : MDB_LAST).ok());
    EXPECT_TRUE(is_record(k, v, forward ? 0 : last, records()));
    unsigned failed = 0;
    for (unsigned at = 1; at <= last; ++at) {
      all_reads_fail(true);
      Status st;
      for (int tries = 0; tries < 4; ++tries) {
        st = c.get(&k, &v, forward ? MDB_NEXT : MDB_PREV);
        if (st.raw() != EIO) break;
        ++failed;
        if (tries == 2) all_reads_fail(false);
      }
      ASSERT_TRUE(st.ok()) << st.raw() << " at " << at;
      ASSERT_TRUE(is_record(k, v, forward ? at : last - at, records())) << at;
      ASSERT_TRUE(c.get(&k, &v, MDB_GET_CURRENT).ok());
      ASSERT_TRUE(is_record(k, v, forward ? at : last - at, records())) << at;
    }
    EXPECT_GT(failed, 0u);
  }
}

// A read that hangs is told of, once.
TEST_P(DbCold, AHangIsTold) {
  if (records().bytes != 200) return;  // once is enough: it takes its second
  Cold cold(file_, image_.bytes().size());
  Cursor c(cold.txn(), kMainDbi);
  MDB_val k{}, v{};
  const std::string text =
      told_of_a_hang(engine_script(), [&] { EXPECT_TRUE(c.get(&k, &v, MDB_FIRST).ok()); });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  for (const char* const part : {"cold.mdb", "offset 0 ", "1 s;"})
    EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
  EXPECT_TRUE(is_record(k, v, 0, records()));
}

// The same for the read that a lookup's own thread makes.
TEST_P(DbCold, AHangOfALookupIsTold) {
  if (records().bytes != 3'000) return;  // once is enough
  in_child_without_cachestat([&] {
    Cold cold(file_, image_.bytes().size());
    const std::string key = key_of(7);
    const MDB_val k{key.size(), const_cast<char*>(key.data())};
    MDB_val v{};
    const std::string text =
        told_of_a_hang(need_script(), [&] { EXPECT_TRUE(cold.txn().get(kMainDbi, k, v).ok()); });
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    for (const char* const part : {"cold.mdb: a read at offset ", "1 s;"})
      EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
    EXPECT_TRUE(is_record(k, v, 7, records()));
  });
}

// What could not be read for a lookup is left to its page faults.
TEST_P(DbCold, EachReadOfLookups) {
  in_child_without_cachestat([&] {
    unsigned k = 1;
    for (;; k += kStep) {
      ASSERT_LT(k, 400u);
      reset(false);
      need_script().error = EIO;
      need_script().fail_nth = k;
      Cold cold(file_, image_.bytes().size());
      look_up(cold);
      if (need_script().failed == 0) break;
    }
    EXPECT_GT(k, 1u) << "lookups read by themselves: how often, the kernel's read-ahead decides";
  });
}

TEST_P(DbCold, ReadsOfLookupsThatAreShortOrRefused) {
  in_child_without_cachestat([&] {
    for (const int error : {0, EINTR, EAGAIN}) {
      reset(false);
      need_script().error = error;
      need_script().fail_times = 3;
      need_script().fail_nth = 1;
      Cold cold(file_, image_.bytes().size());
      look_up(cold);
      EXPECT_EQ(need_script().failed, 3u);
      const std::shared_ptr<window::WindowFile> file = cold.env().file().existing_window_file();
      ASSERT_NE(file, nullptr);
      EXPECT_FALSE(file->read_failed) << "each was read in the end";
      const window::FileStats stats = cold.env().file().stats(*file);
      EXPECT_EQ(stats.short_reads, error == 0 ? 3u : 0u);
      EXPECT_EQ(stats.retries, error == 0 ? 0u : 3u);
      EXPECT_GT(stats.read, 0u);
      std::uint64_t requests = 0;
      for (const std::uint64_t n : stats.requests) requests += n;
      EXPECT_GT(requests, 0u) << "reads of lookups are counted";
    }
  });
}

// Nothing can be read ahead, and one of the reads of needs fails: at most one call tells, and the next goes
// on.
TEST_P(DbCold, ReadsOfNeeds) {
  unsigned failed = 0, seen = 0;
  for (const unsigned k : {1u, 2u, 3u, 5u, 8u, 13u, 21u, 34u}) {
    reset(false);
    engine_script().error = EIO;
    engine_script().fail_times = ~0u;
    engine_script().fail_nth = 1;
    need_script().error = EIO;
    need_script().fail_nth = k;
    const std::vector<int> errors = walk(MDB_FIRST, MDB_NEXT);
    EXPECT_LE(errors.size(), need_script().failed) << "read " << k;
    for (const int e : errors) EXPECT_EQ(e, EIO);
    failed += need_script().failed;
    seen += static_cast<unsigned>(errors.size());
  }
  EXPECT_GT(failed, 4u);
  EXPECT_GT(seen, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, DbCold, ::testing::ValuesIn(kRecords),
                         [](const auto& i) { return std::string(i.param.name); });

}  // namespace
}  // namespace lmdbio::tree
