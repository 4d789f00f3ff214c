// What else happens in a thread while it is inside LMDB: signal handlers, cancellation, a comparator that
// does not return.  Any wrong answer ends the program with 1.
//   signals DIR SCENARIO     DIR exists and is empty
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "records.h"

enum { kTicks = 400, kErrno = 12345 };

static const char* dir;

static const char* file(const char* name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

// A call that succeeds and leaves errno alone.
#define KEEPS(call)                                                                  \
  do {                                                                               \
    errno = kErrno;                                                                  \
    MUST(call);                                                                      \
    if (errno != kErrno) say("line %d: %s leaves errno %d", __LINE__, #call, errno); \
    CHECK(errno == kErrno);                                                          \
  } while (0)
#define KEEPS_VOID(call)    \
  do {                      \
    errno = kErrno;         \
    call;                   \
    CHECK(errno == kErrno); \
  } while (0)

// -- signal handlers

static atomic_int* ticks;  // shared with children

static void tick(int signal) {
  (void)signal;
  atomic_fetch_add(ticks, 1);
}

static void start_ticks(int restart) {
  struct sigaction action = {.sa_handler = tick, .sa_flags = restart ? SA_RESTART : 0};
  const struct itimerval every = {{0, 1000}, {0, 1000}};
  CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
}

static void stop_ticks(void) {
  const struct itimerval never = {{0, 0}, {0, 0}};
  CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void read_and_keep_errno(unsigned flags) {
  struct Reader r;
  MDB_val key, data;
  MDB_dbi dups;
  MDB_stat stat;
  MDB_envinfo info;
  int dead;
  KEEPS(mdb_env_create(&r.env));
  KEEPS(mdb_env_set_maxdbs(r.env, 4));
  MUST(mdb_env_open(r.env, dir, MDB_RDONLY | flags, 0644));
  KEEPS(mdb_txn_begin(r.env, NULL, MDB_RDONLY, &r.txn));
  KEEPS(mdb_dbi_open(r.txn, NULL, 0, &r.dbi));
  KEEPS(mdb_dbi_open(r.txn, "zdups", 0, &dups));
  KEEPS(mdb_cursor_open(r.txn, r.dbi, &r.cursor));
  for (unsigned i = 0; i < kRecords; ++i) {
    KEEPS(mdb_cursor_get(r.cursor, &key, &data, MDB_NEXT));
    CHECK(right(i, &data));
  }
  for (unsigned n = 0; n < 300; ++n) {
    char name[16];
    snprintf(name, sizeof name, "k%05u", n * 7919 % kRecords);
    key = text(name);
    KEEPS(mdb_get(r.txn, r.dbi, &key, &data));
    CHECK(right(n * 7919 % kRecords, &data));
  }
  key = text("absent");
  errno = kErrno;
  CHECK(mdb_get(r.txn, r.dbi, &key, &data) == MDB_NOTFOUND && errno == kErrno);
  KEEPS(mdb_stat(r.txn, dups, &stat));
  KEEPS(mdb_env_info(r.env, &info));
  KEEPS(mdb_env_stat(r.env, &stat));
  KEEPS_VOID(mdb_txn_reset(r.txn));
  KEEPS(mdb_txn_renew(r.txn));
  KEEPS(mdb_cursor_renew(r.txn, r.cursor));
  CHECK(walk_on(r.cursor, 0, 100));
  MUST(mdb_reader_check(r.env, &dead));
  KEEPS_VOID(mdb_cursor_close(r.cursor));
  KEEPS_VOID(mdb_txn_abort(r.txn));
  KEEPS_VOID(mdb_env_close(r.env));
}

static void storm(int restart) {
  int opens = 0;
  start_ticks(restart);
  for (unsigned flags = 0; opens < 20 || atomic_load(ticks) < kTicks; ++opens, flags ^= MDB_NOTLS)
    read_and_keep_errno(flags);
  stop_ticks();
}

static int one_slot(const char* line, void* out) {
  int pid;
  *(int*)out += sscanf(line, "%d", &pid) == 1 && pid == getpid();
  return 0;
}

// Another process keeps the lock file locked until the handler has run often: mdb_env_open waits, and locks.
static void wait_for_lock(int restart) {
  int locked[2];
  char c;
  CHECK(pipe(locked) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const struct flock first = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    const int fd = open(file("lock.mdb"), O_RDWR);
    if (fd < 0 || fcntl(fd, F_SETLK, &first) != 0 || write(locked[1], "", 1) != 1) _exit(1);
    while (atomic_load(ticks) < 50) usleep(100);
    _exit(0);
  }
  CHECK(read(locked[0], &c, 1) == 1);
  start_ticks(restart);
  struct Reader r;
  int rc;
  do {
    MUST(mdb_env_create(&r.env));
    rc = mdb_env_open(r.env, dir, MDB_RDONLY, 0644);
    if (rc != 0) mdb_env_close(r.env);
  } while (rc == EINTR && !restart);
  stop_ticks();
  MUST(rc);
  begin_reader(&r);
  int slots = 0, status = -1;
  CHECK(mdb_reader_list(r.env, one_slot, &slots) >= 0 && slots == 1);
  CHECK(atomic_load(ticks) >= 50 && walk_on(r.cursor, 0, kRecords));
  close_reader(&r);
  while (waitpid(child, &status, 0) != child) CHECK(errno == EINTR);
  CHECK(status == 0);
}

// -- cancellation

static struct Reader shared;
static atomic_int scans, stop;

static void* scan_always(void* deferred) {
  struct Reader r = {.env = shared.env};
  int before;
  if (!deferred) {
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before) == 0);
  }
  // Without locals that change: the thread may end in any call.
  while (!atomic_load(&stop)) {
    begin_reader(&r);
    CHECK(walk_on(r.cursor, 0, 500) && get_some(r.txn, r.dbi));
    end_reader(&r);
    atomic_fetch_add(&scans, 1);
    if (deferred) pthread_testcancel();
  }
  return NULL;
}

static void await_scans(int n) {
  for (const int until = atomic_load(&scans) + n; atomic_load(&scans) < until;) sched_yield();
}

static void cancel_scans(int deferred) {
  enum { kVictims = 4, kRounds = 15 };
  shared = open_reader(dir, MDB_NOTLS);
  pthread_t other, victim[kVictims];
  void* result;
  for (int round = 0; round < kRounds; ++round) {
    atomic_store(&stop, 0);
    CHECK(pthread_create(&other, NULL, scan_always, NULL) == 0);
    for (int v = 0; v < kVictims; ++v)
      CHECK(pthread_create(&victim[v], NULL, scan_always, deferred ? &shared : NULL) == 0);
    await_scans(2 * kVictims);
    for (int v = 0; v < kVictims; ++v) CHECK(pthread_cancel(victim[v]) == 0);
    for (int v = 0; v < kVictims && deferred; ++v)
      CHECK(pthread_join(victim[v], &result) == 0 && result == PTHREAD_CANCELED);
    await_scans(2 * kVictims);
    atomic_store(&stop, 1);
    CHECK(pthread_join(other, &result) == 0 && result == NULL);
    for (int v = 0; v < kVictims && !deferred; ++v)  // were not to be disturbed
      CHECK(pthread_join(victim[v], &result) == 0 && result == NULL);
  }
  CHECK(walk_on(shared.cursor, 0, kRecords));
  close_reader(&shared);
}

// A thread whose cancellation is pending makes one call.  It ends there or after it, and nothing else does.
static const char* const kCalls[] = {"env_create",   "env_open",    "txn_begin",      "dbi_open",
                                     "get",          "scan",        "reset",          "env_stat",
                                     "env_info",     "reader_list", "reader_check",   "env_copy",
                                     "refused open", "env_close",   "open of nothing"};
enum { kCallCount = sizeof kCalls / sizeof kCalls[0] };

static int ignore_line(const char* line, void* context) {
  (void)line, (void)context;
  return 0;
}

static void* cancelled_in(void* argument) {
  const char* const call = argument;
  struct Reader r;
  int rc = 0, before;
  CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
  MUST(mdb_env_create(&r.env));
  MUST(mdb_env_set_maxdbs(r.env, 4));
  const int opens = strstr(call, "open") && !strstr(call, "dbi");
  if (!opens) MUST(mdb_env_open(r.env, file("other"), MDB_RDONLY | MDB_NOTLS, 0644));
  if (!opens && strncmp(call, "env_", 4) != 0) begin_reader(&r);
  CHECK(pthread_cancel(pthread_self()) == 0);
  CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before) == 0);
  MDB_stat s;
  MDB_envinfo info;
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  if (strcmp(call, "env_create") == 0)
    rc = mdb_env_create(&env);
  else if (strcmp(call, "env_open") == 0)
    rc = mdb_env_open(r.env, file("other"), MDB_RDONLY | MDB_NOTLS, 0644);
  else if (strcmp(call, "refused open") == 0)
    rc = mdb_env_open(r.env, file("refused"), MDB_RDONLY, 0644);
  else if (strcmp(call, "open of nothing") == 0)
    rc = mdb_env_open(r.env, file("bad"), MDB_RDONLY, 0644) == MDB_INVALID ? 0 : 1;
  else if (strcmp(call, "txn_begin") == 0)
    rc = mdb_txn_begin(r.env, NULL, MDB_RDONLY, &txn);
  else if (strcmp(call, "dbi_open") == 0)
    rc = mdb_dbi_open(r.txn, "zdups", 0, &dbi);
  else if (strcmp(call, "get") == 0)
    rc = !get_some(r.txn, r.dbi);
  else if (strcmp(call, "scan") == 0)
    rc = !walk_on(r.cursor, 0, kRecords);
  else if (strcmp(call, "reset") == 0)
    mdb_txn_reset(r.txn), rc = mdb_txn_renew(r.txn);
  else if (strcmp(call, "env_stat") == 0)
    rc = mdb_env_stat(r.env, &s);
  else if (strcmp(call, "env_info") == 0)
    rc = mdb_env_info(r.env, &info);
  else if (strcmp(call, "reader_list") == 0)
    rc = mdb_reader_list(r.env, ignore_line, NULL) < 0;
  else if (strcmp(call, "reader_check") == 0)
    rc = mdb_reader_check(r.env, NULL);
  else if (strcmp(call, "env_copy") == 0)
    rc = mdb_env_copy(r.env, file("copy"));
  else if (strcmp(call, "env_close") == 0)
    mdb_env_close(r.env);
  CHECK(rc == 0);
  pthread_testcancel();
  return NULL;
}

static void cancel_calls(const char* only) {
  CHECK(mkdir(file("other"), 0755) == 0);
  make(file("other"));
  CHECK(mkdir(file("refused"), 0755) == 0);
  make(file("refused"));
  CHECK(unlink(file("refused/lock.mdb")) == 0 && mkdir(file("refused/lock.mdb"), 0755) == 0);
  CHECK(mkdir(file("copy"), 0755) == 0 && mkdir(file("bad"), 0755) == 0);
  const int fd = open(file("bad/data.mdb"), O_WRONLY | O_CREAT, 0644);
  char zeros[8192] = {0};
  CHECK(fd >= 0 && write(fd, zeros, sizeof zeros) == (ssize_t)sizeof zeros && close(fd) == 0);
  shared = open_reader(dir, MDB_NOTLS);
  pthread_t other, victim;
  void* result;
  CHECK(pthread_create(&other, NULL, scan_always, NULL) == 0);
  for (int i = 0; i < kCallCount; ++i) {
    if (only && strcmp(only, kCalls[i]) != 0) continue;
    CHECK(pthread_create(&victim, NULL, cancelled_in, (void*)(uintptr_t)kCalls[i]) == 0);
    CHECK(pthread_join(victim, &result) == 0);
    say("%s: %s", kCalls[i], result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
    fflush(stdout);
    await_scans(3);
    struct Reader fresh = open_reader(file("other"), 0);
    CHECK(walk_on(fresh.cursor, 0, kRecords));
    close_reader(&fresh);
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(other, &result) == 0);
  CHECK(walk_on(shared.cursor, 0, kRecords));
  close_reader(&shared);
}

// -- comparators that jump out

static jmp_buf out;
static int calls_left;

static int jumping(const MDB_val* a, const MDB_val* b) {
  if (calls_left > 0 && --calls_left == 0) longjmp(out, 1);
  const size_t n = a->mv_size < b->mv_size ? a->mv_size : b->mv_size;
  const int d = memcmp(a->mv_data, b->mv_data, n);
  return d ? d : (a->mv_size > b->mv_size) - (a->mv_size < b->mv_size);
}

static void jump(void) {
  struct Reader r = open_reader(dir, MDB_NOTLS);
  static MDB_dbi dups;
  MUST(mdb_dbi_open(r.txn, "zdups", 0, &dups));
  MUST(mdb_set_dupsort(r.txn, dups, jumping));
  mdb_cursor_close(r.cursor);
  MUST(mdb_txn_commit(r.txn));  // for other transactions to see it
  begin_reader(&r);
  static int jumps[4], which, nth;
  static struct Reader now;
  for (which = 0; which < 4; ++which) {
    // Out of the first comparison, the second, and so on until there are no more: the call then ends by
    // itself.
    for (nth = 1;; ++nth) {
      now.env = r.env;
      begin_reader(&now);
      MUST(mdb_set_compare(now.txn, now.dbi, jumping));  // dbi_open has reset it
      if (which == 3) {
        mdb_cursor_close(now.cursor);
        MUST(mdb_cursor_open(now.txn, dups, &now.cursor));
      }
      MDB_val key = text("k02500"), data = text("d01500");
      MDB_dbi dbi;
      calls_left = nth;
      if (setjmp(out) == 0) {
        if (which == 0)
          MUST(mdb_get(now.txn, now.dbi, &key, &data));
        else if (which == 1)
          MUST(mdb_cursor_get(now.cursor, &key, &data, MDB_SET_RANGE));
        else if (which == 2)
          CHECK(mdb_dbi_open(now.txn, "zempty", 0, &dbi) == 0);
        else {
          key = text("key");
          MUST(mdb_cursor_get(now.cursor, &key, &data, MDB_GET_BOTH_RANGE));
        }
      } else {
        ++jumps[which];
      }
      const int done = calls_left > 0;
      calls_left = 0;
      key = text("k00099");
      MUST(mdb_get(now.txn, now.dbi, &key, &data));
      CHECK(right(99, &data));
      end_reader(&now);
      if (done) break;
    }
    if (jumps[which] != nth - 1 || nth <= 3) say("call %d: %d jumps, %d", which, jumps[which], nth);
    CHECK(jumps[which] == nth - 1 && nth > 3);
  }
  int slots = 0;
  CHECK(mdb_reader_list(r.env, one_slot, &slots) >= 0 && slots == 1);
  CHECK(walk_on(r.cursor, 0, kRecords));
  close_reader(&r);
  say("jumps out of get %d, cursor %d, dbi_open %d, duplicates %d", jumps[0] > 3, jumps[1] > 3, jumps[2] > 3,
      jumps[3] > 3);
}

// -- threads of the process

static int threads(void) {
  DIR* const d = opendir("/proc/self/task");
  int n = 0;
  CHECK(d != NULL);
  for (struct dirent* e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

static void count_threads(void) {
  struct Reader r = open_reader(dir, 0);
  const int open = threads();
  CHECK(walk_on(r.cursor, 0, kRecords));
  const int used = threads();
  close_reader(&r);
  say("threads %d %d %d", open, used, threads());
}

// Opens `path` of another file system; says when it has, and ends when its standard input does.
static void open_slowly(const char* path) {
  struct Reader r = open_reader(path, 0);
  CHECK(walk_on(r.cursor, 0, kRecords));
  say("open");
  fflush(stdout);
  char c;
  CHECK(read(0, &c, 1) == 0);
  close_reader(&r);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  dir = argv[1];
  const char* const what = argv[2];
  if (strcmp(what, "open-slowly") == 0) {
    open_slowly(dir);
    return 0;
  }
  if (strcmp(what, "threads-after-exec") == 0) {
    count_threads();
    return 0;
  }
  make(dir);
  if (strcmp(what, "make") == 0) return 0;
  ticks = mmap(NULL, sizeof *ticks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(ticks != MAP_FAILED);
  if (strncmp(what, "storm-", 6) == 0)
    storm(strcmp(what + 6, "restart") == 0);
  else if (strncmp(what, "lock-", 5) == 0)
    wait_for_lock(strcmp(what + 5, "restart") == 0);
  else if (strncmp(what, "cancel-scan-", 12) == 0)
    cancel_scans(strcmp(what + 12, "deferred") == 0);
  else if (strcmp(what, "cancel-calls") == 0)
    cancel_calls(NULL);
  else if (strncmp(what, "cancel-call:", 12) == 0)
    cancel_calls(what + 12);
  else if (strcmp(what, "jump") == 0)
    jump();
  else if (strcmp(what, "threads") == 0)
    count_threads();
  else if (strcmp(what, "exec") == 0) {
    struct Reader r = open_reader(dir, 0);
    (void)r;
    execl(argv[0], argv[0], dir, "threads-after-exec", (char*)NULL);
    return 9;
  } else
    return 2;
  return 0;
}
