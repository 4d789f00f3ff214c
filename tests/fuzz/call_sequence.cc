#include "tests/fuzz/call_sequence.h"

#include <lmdb.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

namespace lmdbio::test {

namespace {

using C = Call;

constexpr const char* kNames[] = {"mdb_env_open",
                                  "mdb_env_stat",
                                  "mdb_env_info",
                                  "mdb_env_close",
                                  "mdb_env_copyfd2",
                                  "mdb_env_copyfd2 compact",
                                  "mdb_txn_begin",
                                  "mdb_txn_reset",
                                  "mdb_txn_renew",
                                  "mdb_txn_abort",
                                  "mdb_dbi_open main",
                                  "mdb_dbi_open named",
                                  "mdb_dbi_open absent",
                                  "mdb_stat",
                                  "mdb_dbi_flags",
                                  "mdb_get",
                                  "mdb_get absent",
                                  "mdb_cursor_open",
                                  "mdb_cursor_renew",
                                  "mdb_cursor_close",
                                  "mdb_cursor_count",
                                  "MDB_FIRST",
                                  "MDB_FIRST_DUP",
                                  "MDB_GET_BOTH",
                                  "MDB_GET_BOTH_RANGE",
                                  "MDB_GET_CURRENT",
                                  "MDB_GET_MULTIPLE",
                                  "MDB_LAST",
                                  "MDB_LAST_DUP",
                                  "MDB_NEXT",
                                  "MDB_NEXT_DUP",
                                  "MDB_NEXT_MULTIPLE",
                                  "MDB_NEXT_NODUP",
                                  "MDB_PREV",
                                  "MDB_PREV_DUP",
                                  "MDB_PREV_NODUP",
                                  "MDB_PREV_MULTIPLE",
                                  "MDB_SET",
                                  "MDB_SET_KEY",
                                  "MDB_SET_RANGE",
                                  "touch"};
static_assert(std::size(kNames) == kCalls);

constexpr Call of(MDB_cursor_op op) noexcept {
  switch (op) {
    case MDB_FIRST:
      return C::kFirst;
    case MDB_FIRST_DUP:
      return C::kFirstDup;
    case MDB_GET_BOTH:
      return C::kGetBoth;
    case MDB_GET_BOTH_RANGE:
      return C::kGetBothRange;
    case MDB_GET_CURRENT:
      return C::kGetCurrent;
    case MDB_GET_MULTIPLE:
      return C::kGetMultiple;
    case MDB_LAST:
      return C::kLast;
    case MDB_LAST_DUP:
      return C::kLastDup;
    case MDB_NEXT:
      return C::kNext;
    case MDB_NEXT_DUP:
      return C::kNextDup;
    case MDB_NEXT_MULTIPLE:
      return C::kNextMultiple;
    case MDB_NEXT_NODUP:
      return C::kNextNodup;
    case MDB_PREV:
      return C::kPrev;
    case MDB_PREV_DUP:
      return C::kPrevDup;
    case MDB_PREV_NODUP:
      return C::kPrevNodup;
    case MDB_PREV_MULTIPLE:
      return C::kPrevMultiple;
    case MDB_SET:
      return C::kSet;
    case MDB_SET_KEY:
      return C::kSetKey;
    case MDB_SET_RANGE:
      return C::kSetRange;
  }
  return C::kTouch;
}

constexpr std::size_t kMostNames = 12, kMostKeys = 24, kMostSteps = 64, kMostKeyBytes = 600;
constexpr std::uint64_t kMostCopyBytes = 64 << 20, kTouchedWhole = 16 << 20;
// The last page of memory that the file takes is copied whole.
constexpr std::size_t kLongestPage = 64 << 10;
volatile std::uint64_t sink;

struct Record {
  std::string key, value;
};

MDB_val as_val(const std::string& s) { return {s.size(), const_cast<char*>(s.data())}; }
std::string as_string(const MDB_val& v) {
  return {static_cast<const char*>(v.mv_data), std::min(v.mv_size, kMostKeyBytes)};
}

class Sequence {
 public:
  Sequence(std::size_t file_bytes, Variant variant, int copy_fd, Observer& observer)
      // A healthy record has at least one byte of its own on disk.
      : file_bytes_(file_bytes),
        most_records_(file_bytes + 1000),
        variant_(variant),
        copy_fd_(copy_fd),
        observer_(observer) {}

  Outcome run(const char* path) {
    const unsigned v = variant_.bits;
    if (mdb_env_create(&env_) != 0) return out_;
    (void)mdb_env_set_maxdbs(env_, kMostNames);
    if ((v & Variant::kSetMapSize) != 0) (void)mdb_env_set_mapsize(env_, file_bytes_ + (1 << 20));
    const unsigned flags = MDB_RDONLY | MDB_NOSUBDIR | ((v & Variant::kNoLock) != 0 ? MDB_NOLOCK : 0u) |
                           ((v & Variant::kNoReadAhead) != 0 ? MDB_NORDAHEAD : 0u) |
                           ((v & Variant::kNoTls) != 0 ? MDB_NOTLS : 0u);
    if (call(C::kEnvOpen, [&] { return mdb_env_open(env_, path, flags, 0600); }) == 0) {
      MDB_stat stat{};
      MDB_envinfo info{};
      call(C::kEnvStat, [&] { return mdb_env_stat(env_, &stat); });
      digest(&stat, sizeof stat);
      call(C::kEnvInfo, [&] { return mdb_env_info(env_, &info); });
      if ((v & Variant::kCopiesFirst) != 0) copies();
      read_all();
      if ((v & Variant::kCopiesFirst) == 0) copies();
    }
    call(C::kEnvClose, [&] { return mdb_env_close(env_), 0; });
    return out_;
  }

 private:
  template <class Body>
  int call(Call which, Body body) {
    observer_.before(which);
    const int rc = body();
    observer_.after(which, rc);
    ++out_.calls;
    // What LMDB calls a page leak, found by a compacting copy.
    if (is_damage(rc) || (which == C::kCompact && rc == MDB_INCOMPATIBLE)) ++out_.damage;
    digest(&rc, sizeof rc);
    return rc;
  }
  void digest(const void* p, std::size_t n) {  // FNV-1a
    for (std::size_t i = 0; i < n; ++i)
      out_.digest = (out_.digest ^ static_cast<const std::uint8_t*>(p)[i]) * 0x100000001b3u;
  }
  void unbounded(const char* what) {
    ++out_.unbounded;
    observer_.unbounded(what);
  }

  // Every byte; of many megabytes in one file, one in each 256.
  void touch(const MDB_val& v) {
    observer_.before(C::kTouch);
    if (v.mv_size > file_bytes_) unbounded("a value is longer than the file");
    const auto* const p = static_cast<const std::uint8_t*>(v.mv_data);
    const std::size_t step = touched_ < kTouchedWhole ? 1 : 256;
    touched_ += v.mv_size / step;
    std::uint64_t sum = v.mv_size;
    for (std::size_t i = 0; i < v.mv_size; i += step) sum = sum * 31 + p[i];
    if (v.mv_size != 0) sum += p[v.mv_size - 1];
    sink = sum;
    digest(&sum, sizeof sum);
    observer_.after(C::kTouch, 0);
  }

  void copies() {
    if ((variant_.bits & Variant::kNoCopies) != 0) return;
    for (const auto& [which, flags] :
         {std::pair{C::kCopy, 0u}, std::pair{C::kCompact, unsigned{MDB_CP_COMPACT}}}) {
      (void)::lseek(copy_fd_, 0, SEEK_SET);
      const int rc = call(which, [&, f = flags] { return mdb_env_copyfd2(env_, copy_fd_, f); });
      struct stat copy {};
      (void)::fstat(copy_fd_, &copy);
      if (rc == EFBIG)
        unbounded("a copy does not end");
      else if (static_cast<std::size_t>(copy.st_size) >= file_bytes_ + kLongestPage)
        unbounded("a copy is longer than the file");  // by what else lies in memory
      if (::ftruncate(copy_fd_, 0) != 0) return;
    }
  }

  // A database in a transaction of its own, as often as `body` is one; damage ends no more than that.
  template <class Body>
  int with_database(const std::string* name, bool free_db, Body body) {
    MDB_txn* txn = nullptr;
    if (const int rc = call(C::kTxnBegin, [&] { return mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn); });
        rc != 0)
      return rc;
    MDB_dbi dbi = 0;
    constexpr unsigned kMain[] = {0, MDB_DUPSORT, MDB_REVERSEKEY, MDB_INTEGERKEY};
    int rc = call(C::kDbiOpenMain, [&] {
      return mdb_dbi_open(txn, nullptr, kMain[(variant_.bits & Variant::kMainFlags) >> 4], &dbi);
    });
    if (free_db) dbi = 0;
    if (rc == 0 && name != nullptr)
      rc = call(C::kDbiOpenNamed, [&] { return mdb_dbi_open(txn, name->c_str(), named_flags_, &dbi); });
    if (rc == 0) body(txn, dbi);
    call(C::kTxnAbort, [&] { return mdb_txn_abort(txn), 0; });
    return rc;
  }
  template <class Body>
  void with_cursor(MDB_txn* txn, MDB_dbi dbi, Body body) {
    MDB_cursor* cursor = nullptr;
    if (call(C::kCursorOpen, [&] { return mdb_cursor_open(txn, dbi, &cursor); }) != 0) return;
    body(cursor);
    call(C::kCursorClose, [&] { return mdb_cursor_close(cursor), 0; });
  }
  int step(MDB_cursor* cursor, MDB_cursor_op op, MDB_val& k, MDB_val& v) {
    const void *const key_in = k.mv_data, *const value_in = v.mv_data;
    const int rc = call(of(op), [&] { return mdb_cursor_get(cursor, &k, &v, op); });
    if (rc == 0) {
      if (k.mv_data != key_in) touch(k);
      if (v.mv_data != value_in) touch(v);
    }
    return rc;
  }

  void read_all() {
    std::vector<Record> of_main;
    read_database(nullptr, false, of_main);
    std::vector<Record> unused;
    read_database(nullptr, true, unused);
    std::vector<std::string> names;
    for (const Record& r : of_main)
      if (names.size() < kMostNames && !r.key.empty() && r.key.find('\0') == std::string::npos)
        names.push_back(r.key);
    for (const std::string& name : names) {
      constexpr unsigned kOther[] = {MDB_DUPSORT, MDB_REVERSEKEY, MDB_DUPSORT | MDB_DUPFIXED, MDB_CREATE};
      named_flags_ = (variant_.bits & Variant::kOtherDbiFlags) != 0 ? kOther[(&name - names.data()) % 4] : 0;
      std::vector<Record> records;
      read_database(&name, false, records);
    }
    named_flags_ = 0;
    with_database(nullptr, false, [&](MDB_txn* txn, MDB_dbi) {
      MDB_dbi dbi = 0;
      call(C::kDbiOpenAbsent, [&] { return mdb_dbi_open(txn, "\x01 absent", 0, &dbi); });
    });
  }

  void read_database(const std::string* name, bool free_db, std::vector<Record>& records) {
    unsigned flags = free_db ? MDB_INTEGERKEY : 0;  // dbi_flags refuses the free database
    const int rc = with_database(name, free_db, [&](MDB_txn* txn, MDB_dbi dbi) {
      MDB_stat stat{};
      if (call(C::kStat, [&] { return mdb_stat(txn, dbi, &stat); }) == 0) digest(&stat, sizeof stat);
      call(C::kDbiFlags, [&] { return mdb_dbi_flags(txn, dbi, &flags); });
    });
    if (rc != 0) return;
    scan(name, free_db, MDB_FIRST, MDB_NEXT, most_records_, &records);
    scan(name, free_db, MDB_LAST, MDB_PREV, most_records_, &records);
    scan(name, free_db, MDB_FIRST, MDB_NEXT_NODUP, kMostSteps, nullptr);
    scan(name, free_db, MDB_LAST, MDB_PREV_NODUP, kMostSteps, nullptr);
    scan(name, free_db, MDB_FIRST, MDB_GET_CURRENT, 2, nullptr);
    if ((flags & MDB_DUPSORT) != 0) {
      duplicates(name, false);
      duplicates(name, true);
    }
    if ((flags & MDB_DUPFIXED) != 0 && (flags & MDB_DUPSORT) != 0) multiples(name);
    lookups(name, free_db, flags, records);
    renewed(name, free_db);
  }

  void scan(const std::string* name, bool free_db, MDB_cursor_op first, MDB_cursor_op next, std::size_t most,
            std::vector<Record>* records) {
    with_database(name, free_db, [&](MDB_txn* txn, MDB_dbi dbi) {
      with_cursor(txn, dbi, [&](MDB_cursor* cursor) {
        MDB_cursor_op op = first;
        for (std::size_t i = 0; i < most; ++i, op = next) {
          MDB_val k{}, v{};
          if (step(cursor, op, k, v) != 0) return;
          if (i < 4) {
            std::size_t n = 0;
            call(C::kCount, [&] { return mdb_cursor_count(cursor, &n); });
          }
          // The first records, then some from everywhere.
          if (records != nullptr &&
              (records->size() < kMostKeys / 2 || (records->size() < kMostKeys && i % 16 == 0)))
            records->push_back({as_string(k), as_string(v)});
        }
        if (most == most_records_) unbounded("a scan does not end");
      });
    });
  }

  // The duplicates of the first entries, from both ends.
  void duplicates(const std::string* name, bool backward) {
    with_database(name, false, [&](MDB_txn* txn, MDB_dbi dbi) {
      with_cursor(txn, dbi, [&](MDB_cursor* cursor) {
        MDB_val k{}, v{};
        int rc = step(cursor, backward ? MDB_LAST : MDB_FIRST, k, v);
        for (std::size_t entries = 0; rc == 0 && entries < 8; ++entries) {
          rc = step(cursor, backward ? MDB_LAST_DUP : MDB_FIRST_DUP, k, v);
          for (std::size_t i = 0; rc == 0 && i < kMostSteps; ++i)
            rc = step(cursor, backward ? MDB_PREV_DUP : MDB_NEXT_DUP, k, v);
          if (rc != 0 && rc != MDB_NOTFOUND) return;
          if (backward && step(cursor, MDB_GET_CURRENT, k, v) != 0) return;
          rc = step(cursor, backward ? MDB_PREV_NODUP : MDB_NEXT_NODUP, k, v);
        }
      });
    });
  }
  void multiples(const std::string* name) {
    with_database(name, false, [&](MDB_txn* txn, MDB_dbi dbi) {
      with_cursor(txn, dbi, [&](MDB_cursor* cursor) {
        MDB_val k{}, v{};
        int rc = step(cursor, MDB_FIRST, k, v);
        for (std::size_t entries = 0; rc == 0 && entries < 8; ++entries) {
          rc = step(cursor, MDB_GET_MULTIPLE, k, v);
          for (std::size_t i = 0; rc == 0 && i < kMostSteps; ++i) rc = step(cursor, MDB_NEXT_MULTIPLE, k, v);
          if (rc != 0 && rc != MDB_NOTFOUND) return;
          rc = step(cursor, MDB_NEXT_NODUP, k, v);
        }
      });
    });
    scan(name, false, MDB_LAST, MDB_PREV_MULTIPLE, kMostSteps, nullptr);
  }

  void lookups(const std::string* name, bool free_db, unsigned flags, const std::vector<Record>& records) {
    std::vector<Record> wanted(records);
    if ((flags & MDB_INTEGERKEY) == 0) {
      for (std::size_t i = 0; i < records.size(); i += 5) {
        Record r = records[i];
        r.key += '\x01';
        wanted.push_back(r);
      }
      wanted.push_back({"\x01", "x"});
      wanted.push_back({std::string(200, '\xff'), "x"});
    } else {
      const std::size_t size = records.empty() ? 8 : records[0].key.size();
      wanted.push_back({std::string(size, '\0'), "x"});
      wanted.push_back({std::string(size, '\xff'), "x"});
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Record& r = wanted[i];
      if (r.key.empty()) continue;
      const bool present = i < records.size();
      with_database(name, free_db, [&](MDB_txn* txn, MDB_dbi dbi) {
        MDB_val k = as_val(r.key), v{};
        if (call(present ? C::kGet : C::kGetAbsent, [&] { return mdb_get(txn, dbi, &k, &v); }) == 0) touch(v);
        with_cursor(txn, dbi, [&](MDB_cursor* cursor) {
          constexpr MDB_cursor_op kOps[] = {MDB_SET_RANGE, MDB_SET, MDB_SET_KEY, MDB_GET_BOTH,
                                            MDB_GET_BOTH_RANGE};
          for (const MDB_cursor_op op : kOps) {
            const bool both = op == MDB_GET_BOTH || op == MDB_GET_BOTH_RANGE;
            if (both && ((flags & MDB_DUPSORT) == 0 || r.value.empty())) continue;
            MDB_val key = as_val(r.key), value = both ? as_val(r.value) : MDB_val{};
            if (step(cursor, op, key, value) != 0) continue;
            (void)step(cursor, MDB_GET_CURRENT, key, value);
            if (step(cursor, MDB_NEXT, key, value) == 0) (void)step(cursor, MDB_PREV, key, value);
          }
        });
      });
    }
  }

  void renewed(const std::string* name, bool free_db) {
    with_database(name, free_db, [&](MDB_txn* txn, MDB_dbi dbi) {
      MDB_cursor* cursor = nullptr;
      if (call(C::kCursorOpen, [&] { return mdb_cursor_open(txn, dbi, &cursor); }) != 0) return;
      MDB_val k{}, v{};
      (void)step(cursor, MDB_FIRST, k, v);
      call(C::kTxnReset, [&] { return mdb_txn_reset(txn), 0; });
      if (call(C::kTxnRenew, [&] { return mdb_txn_renew(txn); }) == 0) {
        // A handle opened in a transaction that was reset is closed.
        MDB_dbi again = dbi;
        const int rc = name == nullptr ? 0 : call(C::kDbiOpenNamed, [&] {
          return mdb_dbi_open(txn, name->c_str(), 0, &again);
        });
        if (rc == 0 && again == dbi &&
            call(C::kCursorRenew, [&] { return mdb_cursor_renew(txn, cursor); }) == 0)
          for (const MDB_cursor_op op : {MDB_FIRST, MDB_NEXT, MDB_LAST, MDB_PREV})
            if (step(cursor, op, k, v) != 0) break;
      }
      call(C::kCursorClose, [&] { return mdb_cursor_close(cursor), 0; });
    });
  }

  const std::size_t file_bytes_, most_records_;
  const Variant variant_;
  const int copy_fd_;
  Observer& observer_;
  Outcome out_;
  MDB_env* env_ = nullptr;
  unsigned named_flags_ = 0;
  std::uint64_t touched_ = 0;
};

}  // namespace

const char* name_of(Call call) noexcept { return kNames[static_cast<std::size_t>(call)]; }

Variant variant_of(const std::uint8_t* file, std::size_t size) noexcept {
  return size < 10 ? Variant{} : Variant{file[8] | unsigned{file[9]} << 8};
}

bool is_damage(int rc) noexcept {
  return rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND || rc == MDB_INVALID || rc == MDB_VERSION_MISMATCH ||
         rc == MDB_BAD_TXN || rc == MDB_PANIC || rc == MDB_CURSOR_FULL || rc == MDB_MAP_RESIZED ||
         rc == EFAULT;
}

Outcome call_everything(const char* path, std::size_t file_bytes, Variant variant, int copy_fd,
                        Observer& observer) {
  return Sequence(file_bytes, variant, copy_fd, observer).run(path);
}

void limit_copies() noexcept {
  rlimit limit{};
  (void)::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kMostCopyBytes);
  (void)::setrlimit(RLIMIT_FSIZE, &limit);
  (void)std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace lmdbio::test
