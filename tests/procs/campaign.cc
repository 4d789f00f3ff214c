// A process of the campaign: threads that read databases of known contents in random ways and check every
// byte.
//   campaign name=value ..
//     db=DIR:SIZES:RECORDS:TURNS   a database (campaign_model.h); may be given several times
//     seed=N seconds=N threads=N   what it does, how long, by how many threads
//     actors=A,B,..                what it may do; `campaign actors` lists them
//     progress=FILE                counters for who watches it (struct Board); they outlive the process
//     scratch=DIR                  where files are put that must not change
//     fault=ERRNO                  reads of the databases may fail with it; so may calls, and a page fault is
//     SIGBUS notls=0|1                    MDB_NOTLS
// The shim comes by preload or by linking; with the real LMDB alone only the actors that LMDB permits run.
// Exit status: 0; 75 a page fault that could not be served, where fault= says that this may happen.  Whatever
// is wrong is a line that starts with "FAULT", and an abort.
#define LMDBIO_WEAK
#include <dirent.h>
#include <fcntl.h>
#include <lmdb.h>
#include <lmdbio/lmdbio.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/procs/campaign_model.h"
#include "tests/support/orders.h"
#include "tests/support/rng.h"

namespace lmdbio::campaign {
namespace {

using test::Rng;
using u64 = std::uint64_t;
using ull = unsigned long long;

// ---- what it may do ----

enum Actor : unsigned {
  kIdle,
  kWalk,        // forward, with or without reading values
  kBack,        // backward
  kStride,      // each n-th record, by steps or by seeks
  kSeek,        // seeks with short walks both ways
  kGet,         // mdb_get in random order
  kPrefetch,    // lmdbio_prefetch, then mdb_get
  kDups,        // sorted duplicates
  kRenew,       // transactions and cursors reset and renewed
  kOld,         // a snapshot that is kept while newer ones are read
  kReopen,      // the environment closed and opened
  kStream,      // a reader attached to the transaction, with streams
  kCancel,      // streams cancelled by another thread, index builds cancelled
  kReaderOpen,  // lmdbio_reader_open, in place of the environment
  kNomem,       // ENOMEM from a stream that has room for its next batch is a fault
  kFork,        // children that go on reading
  kCloseChild,  // children that close all descriptors and open others at these numbers
  kCloseSelf,   // the same in the process itself
  kCloseEnv,    // and then mdb_env_close
  kSignalFork,  // fork in a signal handler that interrupts a walk
  kActors
};
constexpr const char* kNames[kActors] = {"idle",   "walk",       "back",      "stride",     "seek",
                                         "get",    "prefetch",   "dups",      "renew",      "old",
                                         "reopen", "stream",     "cancel",    "readeropen", "nomem",
                                         "fork",   "closechild", "closeself", "closeenv",   "signalfork"};

// ---- what others see of it ----

constexpr std::size_t kSlots = 48;

/// A file's contents, 64-bit words throughout; campaign_test.py reads it.
struct Board {
  struct Slot {
    std::atomic<u64> steps, actor, thread;
  };
  std::atomic<u64> values, bytes, errors, refusals, done[32];
  Slot slots[kSlots];
};

struct Settings {
  u64 seed = 1;
  unsigned seconds = 5, threads = 4;
  bool actors[kActors] = {};
  int fault_errno = 0;
  bool notls = true;
  std::string scratch = "/tmp";
  std::vector<std::string> databases;
} settings;

Board* board;
std::atomic<bool> stopping{false};
/// All descriptors were closed: what has to open files may fail from then on.
std::atomic<bool> descriptors_closed{false};
bool with_lmdbio;

thread_local unsigned slot_number = kSlots - 1;
thread_local Actor acting = kIdle;
thread_local unsigned generation_of_process = 0;

[[noreturn]] __attribute__((format(printf, 2, 3))) void fault(const char* kind, const char* format, ...) {
  char text[1200];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  dprintf(STDERR_FILENO, "FAULT %s: %s [actor %s, thread %u, process %d, forks deep %u, descriptors %s]\n",
          kind, text, kNames[acting], slot_number, static_cast<int>(getpid()), generation_of_process,
          descriptors_closed ? "closed" : "open");
  std::abort();
}

void step() { board->slots[slot_number].steps.fetch_add(1, std::memory_order_relaxed); }

class Acting {
 public:
  explicit Acting(Actor a) : before_(acting) {
    acting = a;
    board->slots[slot_number].actor = a;
    step();
  }
  ~Acting() {
    board->done[acting].fetch_add(1, std::memory_order_relaxed);
    acting = before_;
    board->slots[slot_number].actor = before_;
    step();
  }
  Acting(const Acting&) = delete;
  Acting& operator=(const Acting&) = delete;

 private:
  const Actor before_;
};

bool may(Actor a) { return settings.actors[a]; }

/// Reads fail here.  The real LMDB's answer for a file that cannot be mapped, ENODEV, stands where it cannot
/// be read either.
bool is_of_faults(int rc) {
  return settings.fault_errno != 0 && (rc == settings.fault_errno || rc == ENODEV);
}

/// True: the call succeeded.  False: reads fail here, and this one has.
bool ok(int rc, const char* call) {
  if (rc == 0) return true;
  if (is_of_faults(rc)) {
    board->errors.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  // With its descriptors the process has given up its locks: who opens the database next, a child perhaps,
  // starts the table of readers anew, with the real LMDB too.
  if (rc == MDB_BAD_RSLOT && descriptors_closed) {
    board->refusals.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  fault("error", "%s: %s (%d)", call, mdb_strerror(rc), rc);
}
/// The same for readers, which may need to open files.
/// LMDBIO_MEMORY is a number of MiB: readers of several threads may come to have all of it in batches.
bool memory_is_short() {
  const char* const memory = std::getenv("LMDBIO_MEMORY");
  return memory != nullptr && std::strchr(memory, 'M') != nullptr;
}

bool reader_ok(int rc, const char* call) {
  if (rc != 0 && descriptors_closed) {
    board->refusals.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (rc == ENOMEM && memory_is_short()) {
    if (std::strstr(lmdbio_error(), "LMDBIO_MEMORY") == nullptr)
      fault("error", "%s: the reason does not name the setting: %s", call, lmdbio_error());
    board->refusals.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (rc != 0 && !is_of_faults(rc))
    fault("error", "%s: %s (%d): %s", call, mdb_strerror(rc), rc, lmdbio_error());
  return ok(rc, call);
}

// ---- databases ----

/// Many may use what one may have alone; who wants it alone need not wait for newcomers.
class Gate {
 public:
  void enter() {
    const std::lock_guard turn(turn_);
    users_.lock_shared();
  }
  void leave() { users_.unlock_shared(); }
  void enter_alone() {
    turn_.lock();
    users_.lock();
  }
  void leave_alone() {
    users_.unlock();
    turn_.unlock();
  }

 private:
  std::mutex turn_;
  std::shared_mutex users_;
};

class Alone {
 public:
  explicit Alone(Gate& gate) : gate_(gate) { gate_.enter_alone(); }
  ~Alone() { gate_.leave_alone(); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  Gate& gate_;
};

struct Database {
  explicit Database(const std::string& text)
      : dir(text.substr(0, text.find(':'))), model(text.substr(text.find(':') + 1)) {}
  std::string dir;
  Model model;
  Gate gate;
  MDB_env* env = nullptr;
  MDB_dbi records = 0, dups = 0;
  std::atomic<u64> newest{0};  // no later snapshot may be older
};

bool open(Database& d) {
  MDB_txn* txn;
  if (!ok(mdb_env_create(&d.env), "mdb_env_create")) return false;
  if (ok(mdb_env_set_maxdbs(d.env, 4), "mdb_env_set_maxdbs") &&
      ok(mdb_env_set_maxreaders(d.env, 500), "mdb_env_set_maxreaders") &&
      ok(mdb_env_open(d.env, d.dir.c_str(), MDB_RDONLY | (settings.notls ? unsigned{MDB_NOTLS} : 0), 0),
         "mdb_env_open") &&
      ok(mdb_txn_begin(d.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin")) {
    if (ok(mdb_dbi_open(txn, "m", 0, &d.records), "mdb_dbi_open") &&
        ok(mdb_dbi_open(txn, "d", 0, &d.dups), "mdb_dbi_open")) {
      if (ok(mdb_txn_commit(txn), "mdb_txn_commit")) return true;
    } else {
      mdb_txn_abort(txn);
    }
  }
  mdb_env_close(d.env);
  d.env = nullptr;
  return false;
}

void pause_ms(long ms) {
  const timespec moment{0, ms * 1000000};
  nanosleep(&moment, nullptr);
}

/// An open that meets a fault is tried again.
void open_surely(Database& d) {
  for (int tries = 0; !open(d); ++tries) {
    step();
    pause_ms(10);
    if (tries > 2000) fault("error", "%s cannot be opened", d.dir.c_str());
  }
}

// ---- values ----

struct Name {
  unsigned char bytes[8];
};

u64 checked(const Database& d, u64 t, u64 number, const MDB_val& value) {
  if (!d.model.right(number, t, value))
    fault("wrong bytes", "%s: %s", d.dir.c_str(), d.model.explain(number, t, value).c_str());
  board->values.fetch_add(1, std::memory_order_relaxed);
  board->bytes.fetch_add(value.mv_size, std::memory_order_relaxed);
  step();
  return number;
}

/// Whoever starts the table of readers anew writes 0 for the newest transaction first; without locks, which
/// go with the descriptors, that is seen (mdb_env_setup_locks, mdb_txn_renew0).
bool has_snapshot(MDB_txn* txn) {
  if (mdb_txn_id(txn) != 0 || !descriptors_closed) return true;
  board->refusals.fetch_add(1, std::memory_order_relaxed);
  return false;
}

/// One transaction, and the values that it has given.
class Snapshot {
 public:
  Snapshot(Database& d, Rng& rng) : d_(d), rng_(rng) { begin(); }
  ~Snapshot() {
    if (txn_ == nullptr) return;
    recheck();
    close_cursor();
    mdb_txn_abort(txn_);
  }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  bool good() const { return txn_ != nullptr; }
  Database& database() { return d_; }
  const Model& model() const { return d_.model; }
  u64 state() const { return t_; }
  MDB_txn* txn() { return txn_; }
  u64 random_number() { return rng_.below(model().records()); }

  /// The transaction and its cursor begin anew, on what is newest.
  void renew() {
    recheck();
    mdb_txn_reset(txn_);
    const u64 before = d_.newest;
    if (!ok(mdb_txn_renew(txn_), "mdb_txn_renew") || !has_snapshot(txn_)) {
      close_cursor();
      mdb_txn_abort(txn_);
      txn_ = nullptr;
      return;
    }
    begun(before);
    if (cursor_ != nullptr && !ok(mdb_cursor_renew(txn_, cursor_), "mdb_cursor_renew")) close_cursor();
  }

  MDB_cursor* cursor() {
    if (cursor_ == nullptr && !ok(mdb_cursor_open(txn_, d_.records, &cursor_), "mdb_cursor_open"))
      cursor_ = nullptr;
    return cursor_;
  }
  void close_cursor() {
    if (cursor_ != nullptr) mdb_cursor_close(cursor_);
    cursor_ = nullptr;
  }

  void given(u64 number, const MDB_val& value) {
    checked(d_, t_, number, value);
    if (held_bytes_ > kHeldBytes) return;
    held_bytes_ += value.mv_size + 64;
    held_.push_back({number, value});
  }
  /// All values that were given are as they were.
  void recheck() {
    for (const Held& h : held_) checked(d_, t_, h.number, h.value);
    held_.clear();
    held_bytes_ = 0;
  }
  void look_at_held() const {
    for (const Held& h : held_) checked(d_, t_, h.number, h.value);
  }

  /// A step of the cursor that must come to record `expected`; records(): to none.  False: an expected error.
  bool move(MDB_cursor_op op, MDB_val key, u64 expected, bool read = true) {
    MDB_val value{};
    const int rc = mdb_cursor_get(cursor_, &key, &value, op);
    if (expected == model().records()) {
      if (rc == MDB_NOTFOUND) return true;
      if (ok(rc, "mdb_cursor_get"))
        fault("wrong record", "%s: cursor operation %d gives record %llu after the last, state %llu",
              d_.dir.c_str(), op, ull{number_of(&key)}, ull{t_});
      return false;
    }
    if (rc == MDB_NOTFOUND)
      fault("wrong record", "%s: cursor operation %d: MDB_NOTFOUND in place of record %llu, state %llu",
            d_.dir.c_str(), op, ull{expected}, ull{t_});
    if (!ok(rc, "mdb_cursor_get")) return false;
    if (number_of(&key) != expected)
      fault("wrong record",
            "%s: cursor operation %d gives key %llx (%zu bytes) in place of record %llu, state %llu",
            d_.dir.c_str(), op, ull{number_of(&key)}, key.mv_size, ull{expected}, ull{t_});
    if (read) given(expected, value);
    step();
    return true;
  }
  bool seek(u64 number, u64* found) {
    unsigned char name[8];
    *found = model().next(number, t_);
    return move(MDB_SET_RANGE, known_key(number, &name), *found);
  }

  bool get(u64 number) {
    unsigned char name[8];
    MDB_val key = known_key(number, &name), value{};
    const int rc = mdb_get(txn_, d_.records, &key, &value);
    step();
    if (!model().present(number, t_)) {
      if (rc == MDB_NOTFOUND) return true;
      if (ok(rc, "mdb_get"))
        fault("wrong record", "%s: mdb_get finds record %llu, which state %llu has not", d_.dir.c_str(),
              ull{number}, ull{t_});
      return false;
    }
    if (rc == MDB_NOTFOUND)
      fault("wrong record", "%s: mdb_get does not find record %llu of state %llu", d_.dir.c_str(),
            ull{number}, ull{t_});
    if (!ok(rc, "mdb_get")) return false;
    given(number, value);
    return true;
  }

 private:
  struct Held {
    u64 number;
    MDB_val value;
  };
  static constexpr std::size_t kHeldBytes = 24 << 20;

  void begin() {
    const u64 before = d_.newest;
    if (!ok(mdb_txn_begin(d_.env, nullptr, MDB_RDONLY, &txn_), "mdb_txn_begin")) {
      txn_ = nullptr;
      return;
    }
    if (!has_snapshot(txn_)) {
      mdb_txn_abort(std::exchange(txn_, nullptr));
      return;
    }
    begun(before);
  }
  void begun(u64 before) {
    t_ = mdb_txn_id(txn_) - 1;
    if (t_ < before)
      fault("old snapshot", "%s: state %llu after %llu was seen", d_.dir.c_str(), ull{t_}, ull{before});
    for (u64 seen = d_.newest; seen < t_ && !d_.newest.compare_exchange_weak(seen, t_);) {
    }
    held_.reserve(1024);
    get(0);
  }

  Database& d_;
  Rng& rng_;
  MDB_txn* txn_ = nullptr;
  MDB_cursor* cursor_ = nullptr;
  u64 t_ = 0;
  std::vector<Held> held_;
  std::size_t held_bytes_ = 0;
};

// ---- ways to read ----

/// Records from `from` in either direction, `most` at most; `each`: values of each so many are read.
void walk(Snapshot& s, u64 from, bool forward, u64 most, unsigned each) {
  MDB_cursor* const c = s.cursor();
  const u64 end = s.model().records(), t = s.state();
  u64 at = 0;
  if (c == nullptr) return;
  if (from == 0 && forward) {
    if (!s.move(MDB_FIRST, MDB_val{}, 0)) return;
  } else if (from >= end) {
    at = s.model().previous(end - 1, t);
    if (!s.move(MDB_LAST, MDB_val{}, at)) return;
  } else if (!s.seek(from, &at)) {
    return;
  }
  for (u64 n = 1; n < most && at != end && !stopping; ++n) {
    if (forward) {
      at = s.model().next(at + 1, t);
    } else {
      if (at == 0) {  // record 0 is the first
        s.move(MDB_PREV, MDB_val{}, end);
        return;
      }
      at = s.model().previous(at - 1, t);
    }
    if (!s.move(forward ? MDB_NEXT : MDB_PREV, MDB_val{}, at, each != 0 && n % each == 0)) return;
  }
}

void walk(Snapshot& s, Rng& rng, bool forward) {
  const Acting a(forward ? kWalk : kBack);
  const u64 n = s.model().records();
  const u64 most = rng.percent(30) ? n : 1 + rng.below(n / 2);
  const u64 from = most == n ? (forward ? 0 : n) : s.random_number();
  walk(s, from, forward, most, rng.percent(80) ? 1 : rng.below(9));
}

void stride(Snapshot& s, Rng& rng) {
  const Acting a(kStride);
  const u64 n = s.model().records();
  const unsigned by = rng.between(2, 16);
  if (rng.percent(50)) {
    walk(s, s.random_number(), rng.percent(60), n / 2, by);
    return;
  }
  if (s.cursor() == nullptr) return;
  u64 at = 0;
  for (u64 i = rng.below(by); i < n && !stopping; i += by)
    if (!s.seek(i, &at)) return;
}

void seek(Snapshot& s, Rng& rng) {
  const Acting a(kSeek);
  for (unsigned k = rng.between(1, 20); k > 0 && !stopping; --k)
    walk(s, s.random_number(), rng.percent(50), 1 + rng.below(rng.percent(20) ? 200 : 12), 1);
}

void get(Snapshot& s, Rng& rng) {
  const Acting a(kGet);
  for (unsigned k = rng.between(1, 150); k > 0 && !stopping; --k)
    if (!s.get(s.random_number())) return;
}

void prefetch(Snapshot& s, Rng& rng) {
  if (!with_lmdbio) return;
  const Acting a(kPrefetch);
  for (unsigned piece = rng.between(1, 4); piece > 0 && !stopping; --piece) {
    const std::size_t n = rng.between(1, 200);
    const u64 from = s.random_number();
    const bool near = rng.percent(25);
    std::vector<u64> numbers(n);
    std::vector<Name> names(n);
    std::vector<MDB_val> keys(n);
    for (std::size_t i = 0; i < n; ++i) {
      numbers[i] = near ? (from + i) % s.model().records() : s.random_number();
      keys[i] = known_key(numbers[i], &names[i].bytes);
    }
    if (!ok(lmdbio_prefetch(s.txn(), s.database().records, keys.data(), n), "lmdbio_prefetch")) return;
    if (rng.percent(15)) continue;  // told, and never looked up
    if (rng.percent(25)) std::reverse(numbers.begin(), numbers.end());
    for (std::size_t i = 0; i < n && !stopping; ++i)
      if (!s.get(numbers[i])) return;
  }
}

void dups(Snapshot& s, Rng& rng) {
  const Acting a(kDups);
  MDB_cursor* c;
  if (!ok(mdb_cursor_open(s.txn(), s.database().dups, &c), "mdb_cursor_open")) return;
  const bool forward = rng.percent(60);
  bool first = true;  // LMDB's first MDB_PREV in duplicates gives no key
  MDB_val key{}, value{};
  int rc = 0;
  for (u64 k = 0; k < Model::kDupKeys && rc == 0; ++k)
    for (u64 d = 0; d < Model::kDups && rc == 0; ++d) {
      const u64 kk = forward ? k : Model::kDupKeys - 1 - k, dd = forward ? d : Model::kDups - 1 - d;
      if (!s.model().dup_present(kk, dd, s.state())) continue;
      unsigned char bytes[Model::kDupBytes];
      Model::fill_dup(kk, dd, bytes);
      rc = mdb_cursor_get(c, &key, &value,
                          first     ? (forward ? MDB_FIRST : MDB_LAST)
                          : forward ? MDB_NEXT
                                    : MDB_PREV);
      first = false;
      if (rc == 0 && (number_of(&key) != kk || value.mv_size != sizeof bytes ||
                      std::memcmp(value.mv_data, bytes, sizeof bytes) != 0))
        fault("wrong bytes", "%s: duplicate %llu of key %llu in state %llu: got key %llu",
              s.database().dir.c_str(), ull{dd}, ull{kk}, ull{s.state()}, ull{number_of(&key)});
      step();
    }
  if (ok(rc, "mdb_cursor_get")) {
    rc = mdb_cursor_get(c, &key, &value, forward ? MDB_NEXT : MDB_PREV);
    if (rc != MDB_NOTFOUND && ok(rc, "mdb_cursor_get"))
      fault("wrong record", "%s: duplicates without end", s.database().dir.c_str());
  }
  mdb_cursor_close(c);
}

// ---- readers and streams ----

struct Attached {
  lmdbio_reader* reader = nullptr;
  const Database* database = nullptr;
  u64 state = 0;
  std::size_t memory = 0;
  std::vector<u64> numbers;  // by ordinal

  void all_of(const Database& d, u64 t) {
    database = &d;
    state = t;
    for (u64 i = 0; i < d.model.records(); ++i)
      if (d.model.present(i, t)) numbers.push_back(i);
  }
  void check(const lmdbio_batch* b) const {
    for (std::size_t i = 0; i < b->count; ++i) {
      const lmdbio_record& r = b->records[i];
      if (r.ordinal == ~u64{0}) {
        if (r.key.mv_size != 0 || r.value.mv_size != 0)
          fault("wrong record", "a key that does not exist has bytes");
        continue;
      }
      if (r.ordinal >= numbers.size() || number_of(&r.key) != numbers[r.ordinal])
        fault("wrong record", "%s: ordinal %llu of state %llu: key %llx", database->dir.c_str(),
              ull{r.ordinal}, ull{state}, ull{number_of(&r.key)});
      checked(*database, state, numbers[r.ordinal], r.value);
    }
  }
  /// Bytes that a batch may take at most.
  std::size_t most(u64 batch) const {
    std::size_t value = 0;
    for (const u64 i : numbers)
      value = std::max(value, database->model.size(i, database->model.version(i, state)));
    return (value + 8192) * batch;
  }
};

/// An order, and what it must give.
struct Plan {
  lmdbio_order order{};
  std::vector<u64> list, key_numbers;
  std::vector<Name> names;
  std::vector<MDB_val> keys;

  Plan(const Attached& a, u64 most_batch, Rng& rng) {
    const u64 count = a.numbers.size();
    order.size = sizeof order;
    order.kind = static_cast<lmdbio_order_kind>(rng.below(6));
    order.last = static_cast<lmdbio_last>(rng.below(3));
    order.batch = 1 + rng.below(most_batch);
    order.step = rng.percent(60) ? 1 : rng.between(1, 8);
    order.offset = rng.below(order.step);
    order.seed = rng.next();
    order.window = rng.between(1, 500);
    const u64 epochs = rng.between(1, 2);
    order.epoch = rng.below(3);
    order.end_epoch = order.epoch + epochs;
    if (order.kind == LMDBIO_ORDER_LIST)
      for (unsigned n = rng.between(1, 400); n > 0; --n) list.push_back(rng.below(count));
    if (order.kind == LMDBIO_ORDER_KEYS)
      for (unsigned n = rng.between(1, 200); n > 0; --n)
        key_numbers.push_back(rng.below(a.database->model.records()));
    names.resize(key_numbers.size());
    for (std::size_t i = 0; i < key_numbers.size(); ++i)
      keys.push_back(known_key(key_numbers[i], &names[i].bytes));
    order.list = list.data();
    order.keys = keys.data();
    order.length = list.size() + keys.size();
    order.function = lmdbio::test::any_ordinal;
    order.function_context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(count));
    if (order.kind == LMDBIO_ORDER_FUNCTION) order.length = rng.between(1, 400);
  }
  u64 base(const Attached& a) const { return order.length != 0 ? order.length : a.numbers.size(); }
  /// Whether `ordinal` may stand at `position` of `epoch`.
  bool expects(const Attached& a, u64 epoch, u64 position, u64 ordinal) const {
    const u64 at = order.offset + position * order.step, count = a.numbers.size();
    switch (order.kind) {
      case LMDBIO_ORDER_SEQUENTIAL:
        return ordinal == at;
      case LMDBIO_ORDER_SHUFFLE:
        return ordinal == lmdbio_shuffle(order.seed, epoch, count, at);
      case LMDBIO_ORDER_WINDOW_SHUFFLE:
        return ordinal / order.window == at / order.window;
      case LMDBIO_ORDER_LIST:
        return ordinal == list[at];
      case LMDBIO_ORDER_KEYS: {
        const u64 number = key_numbers[at];
        return a.database->model.present(number, a.state) ? a.numbers[ordinal] == number : ordinal == ~u64{0};
      }
      case LMDBIO_ORDER_FUNCTION:
        return ordinal == order.function(order.function_context, epoch, at);
      case LMDBIO_ORDER_MIXED:  // needs a reader of several databases
        break;
    }
    return false;
  }
};

/// One stream to its end, or not.  `room`: its next batch has memory, whatever the others hold.
void stream(const Attached& a, u64 most_batch, u64 seed, bool room, bool forks) {
  Rng rng(seed);
  const Plan plan(a, most_batch, rng);
  lmdbio_stream* s = nullptr;
  if (!reader_ok(lmdbio_stream_open(a.reader, &plan.order, &s), "lmdbio_stream_open")) return;
  const u64 base = plan.base(a),
            share = base > plan.order.offset
                        ? (base - plan.order.offset + plan.order.step - 1) / plan.order.step
                        : 0;
  const u64 whole = plan.order.last == LMDBIO_LAST_DROP ? share / plan.order.batch * plan.order.batch : share;
  const bool early = rng.percent(30);
  const u64 most = early ? rng.below(40) : ~u64{0};
  const bool cancelled = may(kCancel) && rng.percent(25);
  const u64 cancel_at = cancelled ? rng.below(30) : ~u64{0};
  const std::size_t keep = room ? 0 : rng.below(4);
  std::vector<const lmdbio_batch*> kept;
  std::set<u64> seen;  // of a window shuffle's epoch
  u64 position = 0, epoch = plan.order.epoch;
  std::thread canceller;
  for (u64 n = 0; n < most && !stopping; ++n) {
    if (n == cancel_at) canceller = std::thread([s] { lmdbio_stream_cancel(s); });
    const lmdbio_batch* b = nullptr;
    const int rc = lmdbio_stream_next(s, &b);
    step();
    if (rc == ECANCELED && canceller.joinable()) break;
    if (rc == MDB_NOTFOUND) {
      if (whole != 0 && (epoch + 1 < plan.order.end_epoch || position < whole))
        fault("wrong record", "a stream ends at epoch %llu, position %llu of %llu", ull{epoch}, ull{position},
              ull{whole});
      break;
    }
    if (rc == ENOMEM && (!room || !may(kNomem))) {
      board->refusals.fetch_add(1, std::memory_order_relaxed);
      for (const lmdbio_batch* k : kept) lmdbio_batch_release(k);
      kept.clear();
      if (rng.percent(10)) break;
      continue;
    }
    if (rc == ENOMEM) fault("nomem", "%s; this thread holds no batch", lmdbio_error());
    if (!reader_ok(rc, "lmdbio_stream_next")) {
      if (rng.percent(20)) break;
      continue;
    }
    if (b->epoch != epoch) {
      if (b->epoch != epoch + 1 || position != whole)
        fault("wrong record", "epoch %llu begins at position %llu of %llu of epoch %llu", ull{b->epoch},
              ull{position}, ull{whole}, ull{epoch});
      position = 0, epoch = b->epoch, seen.clear();
    }
    if (b->position != position)
      fault("wrong record", "a batch at position %llu in place of %llu", ull{b->position}, ull{position});
    if (b->count == 0 || b->count > plan.order.batch || b->padding >= b->count)
      fault("wrong record", "a batch of %zu records, %zu of padding", b->count, b->padding);
    a.check(b);
    for (std::size_t i = 0; i < b->count - b->padding; ++i) {
      const u64 ordinal = b->records[i].ordinal;
      if (!plan.expects(a, epoch, position + i, ordinal) ||
          (plan.order.kind == LMDBIO_ORDER_WINDOW_SHUFFLE && !seen.insert(ordinal).second))
        fault("wrong record", "kind %d: ordinal %llu at epoch %llu, position %llu", plan.order.kind,
              ull{ordinal}, ull{epoch}, ull{position + i});
    }
    position += b->count - b->padding;
    if (forks && may(kFork) && rng.percent(1)) {
      const pid_t child = fork();
      if (child == 0) {
        generation_of_process = 1;
        a.check(b);
        const lmdbio_batch* none = nullptr;
        if (lmdbio_stream_next(s, &none) != EINVAL) fault("error", "an inherited stream is of use");
        lmdbio_batch_release(b);
        lmdbio_stream_close(s);
        _exit(0);
      }
      int status = 0;
      if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        fault("child", "a stream's child ends with status %x", status);
    }
    kept.push_back(b);
    if (kept.size() <= keep) continue;
    a.check(kept.front());
    lmdbio_batch_release(kept.front());
    kept.erase(kept.begin());
  }
  if (canceller.joinable()) {
    canceller.join();
    const lmdbio_batch* b = nullptr;
    const int rc = lmdbio_stream_next(s, &b);
    if (rc != ECANCELED) fault("error", "a cancelled stream gives %d", rc);
  }
  lmdbio_stream_close(s);
  for (const lmdbio_batch* b : kept) {
    a.check(b);
    lmdbio_batch_release(b);
  }
}

void read_some(const Attached& a, Rng& rng) {
  std::vector<u64> ordinals;
  for (unsigned n = rng.between(1, 12); n > 0; --n) ordinals.push_back(rng.below(a.numbers.size()));
  const lmdbio_batch* b = nullptr;
  const int rc = lmdbio_reader_read(a.reader, ordinals.data(), ordinals.size(), &b);
  if (rc == ENOMEM && a.memory < (8u << 20)) return;
  if (!reader_ok(rc, "lmdbio_reader_read")) return;
  a.check(b);
  for (std::size_t i = 0; i < ordinals.size(); ++i)
    if (b->count != ordinals.size() || b->records[i].ordinal != ordinals[i])
      fault("wrong record", "lmdbio_reader_read gives others");
  lmdbio_batch_release(b);
}

void use_reader(const Attached& a, Rng& rng, bool forks) {
  u64 count = 0;
  if (!reader_ok(lmdbio_reader_count(a.reader, &count), "lmdbio_reader_count")) return;
  if (count != a.numbers.size() && settings.fault_errno == 0 && !descriptors_closed)
    fault("wrong record", "%s: a reader of state %llu counts %llu records, not %zu", a.database->dir.c_str(),
          ull{a.state}, ull{count}, a.numbers.size());
  read_some(a, rng);
  const unsigned streams = rng.percent(25) ? rng.between(4, 8) : rng.between(1, 3);
  constexpr u64 kBatches[] = {1, 4, 16, 64};
  const u64 batch = kBatches[rng.below(std::size(kBatches))];
  // Where all next batches fit, with some to spare, streams that hold no batch never lack memory.
  const bool room = !memory_is_short() && a.memory / 16 * 15 >= streams * 2 * a.most(batch);
  std::vector<std::thread> others;
  for (unsigned i = 1; i < streams; ++i)
    others.emplace_back([&a, batch, seed = rng.next(), room, slot = slot_number] {
      slot_number = slot;
      acting = kStream;
      stream(a, batch, seed, room, false);
    });
  stream(a, batch, rng.next(), room, forks && streams == 1);
  for (std::thread& t : others) t.join();
}

lmdbio_reader_options random_options(Rng& rng) {
  constexpr std::size_t kMemory[] = {1, 4, 16, 64, 256};
  lmdbio_reader_options o{};
  o.size = sizeof o;
  o.memory = kMemory[rng.below(std::size(kMemory))] << 20;
  o.no_index_file = rng.percent(30);
  return o;
}

void attach(Snapshot& s, Rng& rng, bool forks) {
  if (!with_lmdbio) return;
  const Acting acting_now(kStream);
  Attached a;
  a.all_of(s.database(), s.state());
  lmdbio_reader_options o = random_options(rng);
  a.memory = o.memory;
  // A progress function that ends the making of the index, sooner or later.
  int left = static_cast<int>(rng.below(30));
  const bool ends = may(kCancel) && rng.percent(20);
  if (ends) {
    o.progress = [](void* context, const char*, u64, u64) {
      return --*static_cast<int*>(context) <= 0 ? 1 : 0;
    };
    o.progress_context = &left;
  }
  const int rc = lmdbio_reader_attach(s.txn(), s.database().records, &o, &a.reader);
  if (ends && rc == ECANCELED) return;
  if (!reader_ok(rc, "lmdbio_reader_attach")) return;
  use_reader(a, rng, forks);
  lmdbio_reader_close(a.reader);
}

/// The environment is closed meanwhile: a process has a database open once.
void reader_open(Database& d, Rng& rng) {
  const Acting acting_now(kReaderOpen);
  const Alone alone(d.gate);
  if (descriptors_closed) return;
  const u64 before = d.newest;
  mdb_env_close(d.env);
  d.env = nullptr;
  lmdbio_reader_options o = random_options(rng);
  o.database = "m";
  Attached a;
  a.memory = o.memory;
  if (reader_ok(lmdbio_reader_open(d.dir.c_str(), &o, &a.reader), "lmdbio_reader_open")) {
    const u64 first = 0;
    const lmdbio_batch* b = nullptr;
    if (reader_ok(lmdbio_reader_read(a.reader, &first, 1, &b), "lmdbio_reader_read")) {
      Head h{};
      if (b->count != 1 || b->records[0].value.mv_size != sizeof h)
        fault("wrong bytes", "%s: record 0 of a reader", d.dir.c_str());
      std::memcpy(&h, b->records[0].value.mv_data, sizeof h);
      lmdbio_batch_release(b);
      if (h.version < before)
        fault("old snapshot", "%s: a reader of state %llu after %llu was seen", d.dir.c_str(), ull{h.version},
              ull{before});
      a.all_of(d, h.version);
      use_reader(a, rng, true);
    }
    lmdbio_reader_close(a.reader);
  }
  open_surely(d);
}

// ---- descriptors that are others' ----

/// Files opened at numbers that may have been the library's.  Nobody but their owner may write or close them.
class Victims {
 public:
  void open_many() {
    for (unsigned i = 0; i < kMany; ++i) {
      char path[4096];
      std::snprintf(path, sizeof path, "%s/victim-%d-%u", settings.scratch.c_str(),
                    static_cast<int>(getpid()), i);
      const int fd = ::open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
      if (fd < 0) fault("error", "%s: %s", path, std::strerror(errno));
      unsigned char block[4096];
      fill_known(i, 1, block, sizeof block);
      struct stat st;
      if (pwrite(fd, block, sizeof block, 0) != sizeof block || ftruncate(fd, kBytes) != 0 ||
          fstat(fd, &st) != 0)
        fault("error", "%s: %s", path, std::strerror(errno));
      unlink(path);
      victims_.push_back({fd, st});
    }
  }
  void check() const {
    for (std::size_t i = 0; i < victims_.size(); ++i) {
      const int fd = victims_[i].fd;
      const struct stat& was = victims_[i].was;
      struct stat st;
      unsigned char block[4096];
      if (fstat(fd, &st) != 0 || st.st_ino != was.st_ino || st.st_dev != was.st_dev)
        fault("victim closed", "descriptor %d is no longer the program's file", fd);
      if (st.st_size != was.st_size || st.st_blocks != was.st_blocks ||
          st.st_mtim.tv_sec != was.st_mtim.tv_sec || st.st_mtim.tv_nsec != was.st_mtim.tv_nsec ||
          pread(fd, block, sizeof block, 0) != sizeof block || is_known(i, 1, block, sizeof block) == 0)
        fault("victim changed",
              "the file at descriptor %d was written to: %ld bytes, %ld blocks, starts "
              "%02x%02x%02x%02x%02x%02x%02x%02x",
              fd, static_cast<long>(st.st_size), static_cast<long>(st.st_blocks), block[0], block[1],
              block[2], block[3], block[4], block[5], block[6], block[7]);
      if (lseek(fd, 0, SEEK_CUR) != 0)
        fault("victim changed", "somebody has read or written at descriptor %d", fd);
    }
  }

 private:
  static constexpr unsigned kMany = 60;
  static constexpr off_t kBytes = off_t{1} << 30;  // sparse: what is read or mapped there by mistake exists
  struct Victim {
    int fd;
    struct stat was;
  };
  std::vector<Victim> victims_;
};
/// Set once the process has closed its descriptors.
std::atomic<const Victims*> process_victims{nullptr};

void close_all() {
  if (close_range(3, ~0u, 0) != 0) fault("error", "close_range: %s", std::strerror(errno));
}

// ---- actions ----

void read_somehow(Snapshot& s, Rng& rng) {
  constexpr Actor kWays[] = {kWalk, kBack, kStride, kSeek, kGet, kPrefetch, kDups};
  const Actor way = kWays[rng.below(std::size(kWays))];
  if (!may(way)) return;
  switch (way) {
    case kWalk:
      return walk(s, rng, true);
    case kBack:
      return walk(s, rng, false);
    case kStride:
      return stride(s, rng);
    case kSeek:
      return seek(s, rng);
    case kGet:
      return get(s, rng);
    case kPrefetch:
      return prefetch(s, rng);
    default:
      return dups(s, rng);
  }
}

/// `parents`: the parent's files, where all of them were open before the fork; otherwise nullptr.
[[noreturn]] void child(Snapshot& s, Rng rng, Actor how, const Victims* parents) {
  ++generation_of_process;
  Victims victims;
  if (how == kCloseChild) {
    // Often with descriptors of the child's own, which are the library's by then.
    for (unsigned n = rng.below(3); n > 0; --n) read_somehow(s, rng);
    close_all();
    victims.open_many();
    descriptors_closed = true;
  }
  s.look_at_held();
  for (unsigned n = rng.between(1, 3); n > 0; --n) read_somehow(s, rng);
  victims.check();
  if (parents != nullptr && how != kCloseChild) parents->check();
  if (with_lmdbio && rng.percent(70)) {  // the real LMDB's reader slot is still the parent's
    s.close_cursor();
    s.recheck();
    mdb_txn_abort(s.txn());
    Snapshot own(s.database(), rng);
    for (unsigned n = rng.between(1, 3); n > 0 && own.good(); --n) read_somehow(own, rng);
    if (own.good() && may(kStream) && rng.percent(40)) attach(own, rng, false);
    if (own.good()) own.recheck();
    victims.check();
  }
  _exit(0);
}

void fork_child(Snapshot& s, Rng& rng, Actor how) {
  const Acting a(how);
  const Rng seed(rng.next());
  std::fflush(nullptr);
  // Read before the fork.  The kernel copies the descriptors first and the memory later: a child may see in
  // memory what another thread opened in between, and not have it.
  const Victims* const victims = process_victims;
  const pid_t pid = fork();
  if (pid < 0) fault("error", "fork: %s", std::strerror(errno));
  if (pid == 0) child(s, seed, how, victims);
  if (rng.percent(50)) read_somehow(s, rng);
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) fault("error", "waitpid: %s", std::strerror(errno));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 75 && settings.fault_errno != 0) return;
  if (status != 0)
    fault("child", "process %d ends with status %x", static_cast<int>(pid), static_cast<unsigned>(status));
}

void reopen(Database& d) {
  const Acting a(kReopen);
  const Alone alone(d.gate);
  if (descriptors_closed) return;
  mdb_env_close(d.env);
  d.env = nullptr;
  open_surely(d);
}

/// What a thread does between two transactions.
void act(Database& d, Rng& rng) {
  if (!descriptors_closed) {  // the environment of the real LMDB cannot be closed and opened after that
    if (may(kReopen) && rng.percent(3)) return reopen(d);
    if (may(kReaderOpen) && with_lmdbio && rng.percent(2)) return reader_open(d, rng);
  }
  d.gate.enter();
  {
    Snapshot s(d, rng);
    for (unsigned n = rng.between(1, 5); n > 0 && s.good() && !stopping; --n) {
      const unsigned dice = rng.below(100);
      if (dice < 8 && may(kFork)) {
        fork_child(s, rng, kFork);
      } else if (dice < 12 && may(kCloseChild)) {
        fork_child(s, rng, kCloseChild);
      } else if (dice < 22 && may(kRenew)) {
        const Acting a(kRenew);
        s.renew();
      } else if (dice < 30 && may(kStream)) {
        attach(s, rng, true);
      } else if (dice < 36 && may(kOld) && settings.notls) {
        const Acting a(kOld);
        for (unsigned k = rng.between(1, 3); k > 0 && !stopping; --k) {
          Snapshot newer(d, rng);
          if (newer.good()) read_somehow(newer, rng);
          s.look_at_held();
        }
      } else {
        read_somehow(s, rng);
      }
    }
  }
  d.gate.leave();
  if (const Victims* const v = process_victims; v != nullptr) v->check();
}

// ---- fork in a signal handler ----

constexpr int kForkSignal = SIGURG;

void fork_now(int) {
  const int saved = errno;
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  if (pid > 0) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    board->done[kSignalFork].fetch_add(1, std::memory_order_relaxed);
    step();
  }
  errno = saved;
}

/// Walks, and is interrupted by the signal only where it does nothing but read: not where it allocates.
void walk_with_signals(std::vector<std::unique_ptr<Database>>& all, Rng& rng) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, kForkSignal);
  timer_t timer;
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = kForkSignal;
  event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
  const itimerspec every{{0, 3000000}, {0, 3000000}};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &every, nullptr) != 0)
    fault("error", "timer_create: %s", std::strerror(errno));
  acting = kSignalFork;
  while (!stopping) {
    Database& d = *all[rng.below(all.size())];
    d.gate.enter();
    MDB_txn* txn;
    MDB_cursor* c = nullptr;
    if (ok(mdb_txn_begin(d.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin")) {
      const u64 t = mdb_txn_id(txn) - 1;
      if (has_snapshot(txn) && ok(mdb_cursor_open(txn, d.records, &c), "mdb_cursor_open")) {
        MDB_val key{}, value{};
        pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
        for (u64 n = rng.between(1, 3000), at = 0; n > 0 && !stopping; --n) {
          const int rc = mdb_cursor_get(c, &key, &value, MDB_NEXT);
          if (rc != 0 && rc != MDB_NOTFOUND) ok(rc, "mdb_cursor_get");
          if (rc != 0) break;
          at = d.model.next(at, t);
          if (number_of(&key) != at)
            fault("wrong record", "key %llu in place of %llu", ull{number_of(&key)}, ull{at});
          checked(d, t, at, value);
          ++at;
        }
        pthread_sigmask(SIG_BLOCK, &set, nullptr);
        mdb_cursor_close(c);
      }
      mdb_txn_abort(txn);
    }
    d.gate.leave();
  }
  timer_delete(timer);
}

// ---- the process ----

void bus_error(int) { _exit(75); }

u64 seconds_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<u64>(t.tv_sec);
}

void parse(int argc, char** argv) {
  std::string progress;
  for (int k = 1; k < argc; ++k) {
    const std::string text = argv[k], name = text.substr(0, text.find('=')),
                      value = text.substr(std::min(text.size(), name.size() + 1));
    const u64 number = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "db") {
      settings.databases.push_back(value);
    } else if (name == "seed") {
      settings.seed = number;
    } else if (name == "seconds") {
      settings.seconds = static_cast<unsigned>(number);
    } else if (name == "threads") {
      settings.threads = static_cast<unsigned>(std::min<u64>(number, kSlots - 2));
    } else if (name == "notls") {
      settings.notls = number != 0;
    } else if (name == "fault") {
      settings.fault_errno = static_cast<int>(number);
    } else if (name == "scratch") {
      settings.scratch = value;
    } else if (name == "progress") {
      progress = value;
    } else if (name == "actors") {
      for (std::size_t at = 0; at <= value.size();) {
        const std::string one = value.substr(at, value.find(',', at) - at);
        bool found = one.empty();
        for (unsigned a = 0; a < kActors; ++a)
          if (one == kNames[a]) settings.actors[a] = found = true;
        if (!found) std::fprintf(stderr, "campaign: no such actor: %s\n", one.c_str()), std::exit(2);
        at += one.size() + 1;
      }
    } else {
      std::fprintf(stderr, "campaign: what is %s?\n", text.c_str());
      std::exit(2);
    }
  }
  const int fd = ::open(progress.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* at = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, sizeof(Board)) == 0)
    at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED || settings.databases.empty() || settings.threads == 0) {
    std::fprintf(stderr, "campaign: db=, threads= and progress= are needed\n");
    std::exit(2);
  }
  ::close(fd);
  board = static_cast<Board*>(at);
}

void work(std::vector<std::unique_ptr<Database>>& all, unsigned slot, u64 seed) {
  slot_number = slot;
  board->slots[slot].thread = static_cast<u64>(syscall(SYS_gettid));
  Rng rng(seed);
  if (slot == 0 && may(kSignalFork)) {
    walk_with_signals(all, rng);
  } else {
    while (!stopping) act(*all[rng.below(all.size())], rng);
  }
  board->slots[slot].thread = 0;
}

int run() {
  with_lmdbio = lmdbio_version != nullptr;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, kForkSignal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  struct sigaction action {};
  action.sa_handler = fork_now;
  action.sa_flags = SA_RESTART;
  sigaction(kForkSignal, &action, nullptr);
  if (settings.fault_errno != 0) {
    action.sa_handler = bus_error;
    sigaction(SIGBUS, &action, nullptr);
  }
  std::vector<std::unique_ptr<Database>> all;
  for (const std::string& text : settings.databases) {
    all.push_back(std::make_unique<Database>(text));
    open_surely(*all.back());
  }
  Rng rng(settings.seed);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < settings.threads; ++i) threads.emplace_back(work, std::ref(all), i, rng.next());
  const u64 begun = seconds_now();
  // All descriptors go once a fifth of the values that fit in the time were read; time alone would do as
  // well.
  Victims victims;
  while (seconds_now() - begun < settings.seconds) {
    pause_ms(20);
    if (!may(kCloseSelf) || descriptors_closed || (seconds_now() - begun) * 5 < settings.seconds ||
        board->values < 200)
      continue;
    for (auto& d : all) d->gate.enter_alone();
    descriptors_closed = true;  // nobody is opening an environment
    for (auto& d : all) d->gate.leave_alone();
    const Acting a(kCloseSelf);
    close_all();
    victims.open_many();
    process_victims = &victims;
  }
  stopping = true;
  for (std::thread& t : threads) t.join();
  victims.check();
  // The real LMDB closes its descriptors by number, whosever they are by now.
  if (!descriptors_closed || (with_lmdbio && may(kCloseEnv)))
    for (auto& d : all) mdb_env_close(d->env);
  victims.check();
  return 0;
}

}  // namespace
}  // namespace lmdbio::campaign

int main(int argc, char** argv) {
  using namespace lmdbio::campaign;
  if (argc == 2 && std::strcmp(argv[1], "actors") == 0) {
    for (unsigned a = 1; a < kActors; ++a) std::puts(kNames[a]);
    return 0;
  }
  parse(argc, argv);
  return run();
}
