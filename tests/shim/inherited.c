// What a forked child may do with the read-only environment, transaction and cursor that it inherited.  Stock
// gives no such promise (lmdb.h), so this program is not compared with it, but for "calls": those print what
// the same calls in a process that did not fork print ("calls-here").  Any wrong answer ends the program with
// 1; a deadlock ends it by an alarm.
//   inherited DIR SCENARIO FLAGS     DIR exists and is empty
#include "inherited.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

// -- every call

static int backwards(const MDB_val* a, const MDB_val* b) {
  const size_t n = a->mv_size < b->mv_size ? a->mv_size : b->mv_size;
  const int d = memcmp(b->mv_data, a->mv_data, n);
  return d ? d : (int)b->mv_size - (int)a->mv_size;
}

static void show_env(MDB_env* env) {
  MDB_stat s;
  MDB_envinfo info;
  unsigned got = 0;
  const char* path = NULL;
  int fd = -1, dead = -1;
  struct stat by_fd, by_path;
  CALL(mdb_env_stat(env, &s));
  show_stat("environment", &s);
  CALL(mdb_env_info(env, &info));
  say("  mapsize %zu last_pgno %zu last_txnid %zu maxreaders %u", info.me_mapsize, info.me_last_pgno,
      info.me_last_txnid, info.me_maxreaders);
  CALL(mdb_env_get_flags(env, &got));
  say("  flags %x", got);
  CALL(mdb_env_get_path(env, &path));
  say("  path %s", strcmp(path, dir) == 0 ? "as opened" : path);
  CALL(mdb_env_get_fd(env, &fd));
  say("  the data file: %d", fstat(fd, &by_fd) == 0 && stat(file("data.mdb"), &by_path) == 0 &&
                                 by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev);
  got = 0;
  CALL(mdb_env_get_maxreaders(env, &got));
  say("  maxreaders %u", got);
  CALL(mdb_env_get_maxkeysize(env));
  CALL(mdb_reader_list(env, ignore_line, NULL) < 0);
  CALL(mdb_reader_check(env, &dead));
  say("  dead %d", dead);
  CALL(mdb_env_sync(env, 1));
  CALL(mdb_env_set_flags(env, MDB_NOSYNC, 1));
  CALL(mdb_env_set_flags(env, MDB_NOTLS, 1));
  CALL(mdb_env_set_maxdbs(env, 9));
  CALL(mdb_env_set_maxreaders(env, 9));
  CALL(mdb_env_set_userctx(env, env));
  CALL(mdb_env_get_userctx(env) == env);
}

static void show_copy(MDB_env* env, const char* name, unsigned copy_flags) {
  CHECK(mkdir(file(name), 0755) == 0);
  CALL(mdb_env_copy2(env, file(name), copy_flags));
  MDB_env* copy;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_stat s;
  MUST(mdb_env_create(&copy));
  MUST(mdb_env_open(copy, file(name), MDB_RDONLY, 0644));
  MUST(mdb_txn_begin(copy, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_stat(txn, dbi, &s));
  show_stat(name, &s);
  say("  %d", get_some(txn, dbi));
  mdb_txn_abort(txn);
  mdb_env_close(copy);
}

static void show_dbi(MDB_txn* txn, const char* name) {
  MDB_dbi dbi = 77;
  MDB_stat s;
  unsigned got = 0;
  const int rc = mdb_dbi_open(txn, name, 0, &dbi);
  say("open %s = %d, dbi %u", name ? name : "main", rc, dbi);
  if (rc != 0) return;
  CALL(mdb_dbi_flags(txn, dbi, &got));
  say("  flags %x", got);
  CALL(mdb_stat(txn, dbi, &s));
  show_stat("  stat", &s);
  MDB_cursor* cursor;
  if (CALL(mdb_cursor_open(txn, dbi, &cursor)) != 0) return;
  MDB_val key = untouched(), data = untouched();
  for (size_t op = 0; op < kOpCount; ++op) step(cursor, kOps[op].op, &key, &data);
  mdb_cursor_close(cursor);
}

// `r` was begun, and its cursor has stepped 100 times.
static void all_calls(struct Reader* r) {
  MDB_val key = text("k00007"), data = untouched();
  MDB_txn* more = NULL;
  show_env(r->env);
  say("inherited: %d %d", walk_on(r->cursor, 100, 400), get_some(r->txn, r->dbi));
  step(r->cursor, MDB_GET_CURRENT, &key, &data);
  say("id %zu, environment %d, cursor's %d %d", mdb_txn_id(r->txn), mdb_txn_env(r->txn) == r->env,
      mdb_cursor_txn(r->cursor) == r->txn, mdb_cursor_dbi(r->cursor) == r->dbi);
  show_dbi(r->txn, NULL);
  show_dbi(r->txn, "zdups");
  show_dbi(r->txn, "none");
  CALL(mdb_txn_renew(r->txn));
  CALL(mdb_put(r->txn, r->dbi, &key, &key, 0));
  CALL(mdb_cursor_put(r->cursor, &key, &key, 0));
  CALL(mdb_txn_begin(r->env, NULL, 0, &more));
  CALL(mdb_txn_begin(r->env, r->txn, MDB_RDONLY, &more));
  CALL(mdb_drop(r->txn, r->dbi, 0));
  mdb_txn_reset(r->txn);
  CALL(mdb_get(r->txn, r->dbi, &key, &data));
  CALL(mdb_cursor_get(r->cursor, &key, &data, MDB_NEXT));
  CALL(mdb_txn_renew(r->txn));
  CALL(mdb_cursor_renew(r->txn, r->cursor));
  say("renewed: %d %d", walk_on(r->cursor, 0, kRecords), get_some(r->txn, r->dbi));
  if (flags & MDB_NOTLS) {
    CALL(mdb_txn_begin(r->env, NULL, MDB_RDONLY, &more));
    show_dbi(more, "zempty");
    show_dbi(more, "zdups");
    CALL(mdb_txn_commit(more));
  }
  MDB_dbi dups;
  CALL(mdb_dbi_open(r->txn, "zdups", 0, &dups));
  CALL(mdb_set_dupsort(r->txn, dups, backwards));
  MDB_val a = text("a"), b = text("b");
  say("dcmp %d", mdb_dcmp(r->txn, dups, &a, &b) > 0);
  mdb_dbi_close(r->env, dups);
  MDB_stat s;
  CALL(mdb_stat(r->txn, dups, &s));
  show_dbi(r->txn, "zempty");
  CALL(mdb_set_compare(r->txn, r->dbi, backwards));
  say("cmp %d", mdb_cmp(r->txn, r->dbi, &a, &b) > 0);
  mdb_cursor_close(r->cursor);
  CALL(mdb_txn_commit(r->txn));
  show_copy(r->env, "copy", 0);
  show_copy(r->env, "compact", MDB_CP_COMPACT);
  CALL(mdb_env_set_mapsize(r->env, 32u << 20));
  MDB_envinfo info;
  CALL(mdb_env_info(r->env, &info));
  say("  mapsize %zu", info.me_mapsize);
  CALL(mdb_txn_begin(r->env, NULL, MDB_RDONLY, &more));
  show_dbi(more, NULL);
  mdb_txn_abort(more);
  mdb_env_close(r->env);
}

static void calls(int here) {
  struct Reader r = open_reader(dir, flags);
  CHECK(walk_on(r.cursor, 0, 100));
  if (here) {
    all_calls(&r);
    return;
  }
  const struct Slots before = slots_of(r.env);
  struct Turn turn;
  if (fork_turn(&turn)) {
    all_calls(&r);
    leave();
  }
  reap(&turn);
  same_slots(r.env, &before);
  CHECK(walk_on(r.cursor, 100, kRecords - 100) && get_some(r.txn, r.dbi));
  close_reader(&r);
}

// -- slots

// The child's transactions have slots of their own pid, and give them back; the parent's are never touched.
static void own_slots(void) {
  struct Reader r = open_reader(dir, flags);
  const struct Slots before = slots_of(r.env);
  CHECK(before.mine == 1);
  struct Turn turn;
  if (fork_turn(&turn)) {
    CHECK(slots_of(r.env).mine == 0 && slots_of(r.env).others == 1);
    CHECK(walk_on(r.cursor, 0, 10) && slots_of(r.env).mine == 0);
    end_reader(&r);
    CHECK(slots_of(r.env).mine == 0 && slots_of(r.env).others == 1);
    begin_reader(&r);
    CHECK(slots_of(r.env).mine == 1 && walk_on(r.cursor, 0, 10));
    hand(turn.to_parent[1]);
    await(turn.to_child[0]);
    if (flags & MDB_NOTLS) {
      end_reader(&r);
      CHECK(slots_of(r.env).mine == 0);
      begin_reader(&r);
    }
    close_reader(&r);
    hand(turn.to_parent[1]);
    await(turn.to_child[0]);
    leave();
  }
  await(turn.to_parent[0]);
  struct Slots now = slots_of(r.env);
  CHECK(strcmp(now.own, before.own) == 0 && now.others == 1);
  hand(turn.to_child[1]);
  await(turn.to_parent[0]);  // closed, and alive
  now = slots_of(r.env);
  CHECK(strcmp(now.own, before.own) == 0 && now.others == 0);
  hand(turn.to_child[1]);
  reap(&turn);
  same_slots(r.env, &before);
  close_reader(&r);
}

// A thread that forks, ends in the child: its reader slot's destructor runs there.
static void* fork_and_return(void* argument) {
  struct Turn* turn = argument;
  struct Reader r = open_reader(dir, flags);
  const struct Slots before = slots_of(r.env);
  if (fork_turn(turn)) {
    CHECK(walk_on(r.cursor, 0, 10));
    end_reader(&r);
    begin_reader(&r);
    close_reader(&r);
    return NULL;  // to pthread_exit: the last thread's is exit(0)
  }
  reap(turn);
  same_slots(r.env, &before);
  CHECK(walk_on(r.cursor, 0, kRecords));
  close_reader(&r);
  return NULL;
}

static void thread_exit(void) {
  struct Turn turn;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, fork_and_return, &turn) == 0);
  pthread_join(thread, NULL);
}

// Threads of the child begin at once: each gets a slot.
enum { kThreads = 8 };
static pthread_barrier_t together;

static void* begin_together(void* argument) {
  struct Reader r = {.env = argument};
  pthread_barrier_wait(&together);
  begin_reader(&r);
  pthread_barrier_wait(&together);
  pthread_barrier_wait(&together);
  CHECK(walk_on(r.cursor, 0, 200));
  end_reader(&r);
  return NULL;
}

static void threads(void) {
  enum { kRounds = 30 };
  struct Reader r = open_reader(dir, flags);
  const struct Slots before = slots_of(r.env);
  for (int round = 0; round < kRounds; ++round) {
    struct Turn turn;
    if (fork_turn(&turn)) {
      pthread_t thread[kThreads];
      CHECK(pthread_barrier_init(&together, NULL, kThreads + 1) == 0);
      for (int t = 0; t < kThreads; ++t) CHECK(pthread_create(&thread[t], NULL, begin_together, r.env) == 0);
      pthread_barrier_wait(&together);
      pthread_barrier_wait(&together);
      const struct Slots now = slots_of(r.env);
      if (now.mine != kThreads) say("round %d: %d threads read with %d slots", round, kThreads, now.mine);
      CHECK(now.mine == kThreads);
      pthread_barrier_wait(&together);
      for (int t = 0; t < kThreads; ++t) pthread_join(thread[t], NULL);
      close_reader(&r);
      leave();
    }
    reap(&turn);
  }
  same_slots(r.env, &before);
  close_reader(&r);
}

// -- the parent ends first

static void child_reads(struct Reader* r) {
  read_all(r);
  end_reader(r);
  begin_reader(r);
  CHECK(walk_on(r->cursor, 0, 100));
  read_all(r);
  close_reader(r);
}

static void parent_ends(const char* how) {
  struct Reader r = open_reader(dir, flags);
  CHECK(walk_on(r.cursor, 0, 100));
  struct Turn turn;
  if (fork_turn(&turn)) {
    await(turn.to_child[0]);
    child_reads(&r);
    leave();
  }
  if (strcmp(how, "closes") == 0)
    close_reader(&r);
  else
    end_reader(&r);
  hand(turn.to_child[1]);
  reap(&turn);
  if (strcmp(how, "closes") != 0) mdb_env_close(r.env);
}

// The one that opened the environment is gone when its child reads.
static void parent_exits(void) {
  struct Turn outer, inner;
  if (fork_turn(&outer)) {
    struct Reader r = open_reader(dir, flags);
    CHECK(walk_on(r.cursor, 0, 100));
    if (fork_turn(&inner)) {
      char c;
      CHECK(read(inner.to_child[0], &c, 1) == 0);
      child_reads(&r);
      hand(outer.to_parent[1]);
      leave();
    }
    leave();
  }
  int status = -1;
  CHECK(waitpid(outer.child, &status, 0) == outer.child && status == 0);
  await(outer.to_parent[0]);
}

static void rewrite(unsigned times) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, dir, MDB_NOSYNC, 0644));
  for (unsigned n = 0; n < times; ++n) {
    MUST(mdb_txn_begin(env, NULL, 0, &txn));
    MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
    put_records(txn, dbi);
    MUST(mdb_txn_commit(txn));
  }
  mdb_env_close(env);
}

// A writer overtakes the child's snapshot.  `held`: the parent holds it, so its records stay.  Else they may
// not: no crash, and one line when it ends.
static void overtaken(int held) {
  struct Turn writer, turn;
  if (fork_turn(&writer)) {
    await(writer.to_child[0]);
    rewrite(4);
    leave();
  }
  struct Reader r = open_reader(dir, flags);
  CHECK(walk_on(r.cursor, 0, 100));
  if (fork_turn(&turn)) {
    MDB_val key, data;
    close(writer.to_child[1]);
    await(turn.to_child[0]);
    if (held) read_all(&r);
    for (unsigned n = 0; n < kRecords + 10 && mdb_cursor_get(r.cursor, &key, &data, MDB_NEXT) == 0; ++n)
      (void)hash_bytes(data.mv_data, data.mv_size);
    end_reader(&r);
    begin_reader(&r);
    CHECK(walk_on(r.cursor, 0, kRecords) && get_some(r.txn, r.dbi));
    close_reader(&r);
    leave();
  }
  if (!held) end_reader(&r);
  hand(writer.to_child[1]);
  reap(&writer);
  hand(turn.to_child[1]);
  reap(&turn);
  if (held) {
    read_all(&r);
    end_reader(&r);
  }
  mdb_env_close(r.env);
}

// -- transactions that nobody ends, as py-lmdb 1.7 and later leave them in a child

static long heap(void) { return (long)mallinfo2().uordblks; }

// One of `n` transactions.  Every second one is reset, as by Python's with statement.
static MDB_txn* abandon(const struct Reader* r, unsigned n) {
  MDB_txn* txn;
  MUST(mdb_txn_begin(r->env, NULL, MDB_RDONLY, &txn));
  CHECK(get_one(txn, r->dbi, n));
  if (n % 2) mdb_txn_reset(txn);
  return txn;
}

// Calls with those that were abandoned long ago give what they gave at first.
static void use_again(const struct Reader* r, MDB_txn** kept, unsigned n) {
  MDB_val key = text("k00007"), data;
  for (unsigned i = 0; i < n; i += 397) {
    CHECK(mdb_txn_env(kept[i]) == r->env);
    if (i % 2) {
      CHECK(mdb_get(kept[i], r->dbi, &key, &data) != 0);
      MUST(mdb_txn_renew(kept[i]));
    }
    CHECK(mdb_txn_renew(kept[i]) == EINVAL && get_some(kept[i], r->dbi));
    MDB_cursor* cursor;
    MUST(mdb_cursor_open(kept[i], r->dbi, &cursor));
    CHECK(mdb_cursor_txn(cursor) == kept[i] && walk_on(cursor, 0, 50));
    mdb_cursor_close(cursor);
  }
}

static void abandoned(unsigned n) {
  struct Turn turn;
  struct Reader r = open_reader(dir, flags);
  const struct Slots before = slots_of(r.env);
  if (fork_turn(&turn)) {
    MDB_txn** const kept = calloc(n, sizeof *kept);
    MDB_txn* own;
    MDB_cursor* cursor;
    CHECK(walk_on(r.cursor, 0, 100));
    MUST(mdb_txn_begin(r.env, NULL, MDB_RDONLY, &own));
    MUST(mdb_cursor_open(own, r.dbi, &cursor));
    CHECK(walk_on(cursor, 0, 100));
    for (unsigned i = 0; i < n / 10; ++i) kept[i] = abandon(&r, i);
    const long a = heap();
    for (unsigned i = n / 10; i < n / 2; ++i) kept[i] = abandon(&r, i);
    const long b = heap();
    for (unsigned i = n / 2; i < n; ++i) kept[i] = abandon(&r, i);
    const long c = heap(), first = (b - a) / (n / 2 - n / 10), second = (c - b) / (n - n / 2);
    // Stock: 240 and more.
    if (first > 200 || second > 200) say("bytes each: %ld, then %ld", first, second);
    CHECK(first <= 200 && second <= 200);
    const int slots = slots_of(r.env).mine;
    if (slots > 20) say("%d slots", slots);
    CHECK(slots <= 20);
    CHECK(walk_on(cursor, 100, 200) && walk_on(r.cursor, 100, 200));  // those of older transactions
    use_again(&r, kept, n);
    for (unsigned i = 0; i < n; ++i) mdb_txn_abort(kept[i]);
    CHECK(heap() < b);
    mdb_cursor_close(cursor);
    mdb_txn_abort(own);
    end_reader(&r);
    CHECK(slots_of(r.env).mine <= 20);
    // Those that are left when the environment is closed have ended.
    for (unsigned i = 0; i < 100; ++i) kept[i] = abandon(&r, i);
    mdb_env_close(r.env);
    MDB_val key = text("k00007"), data;
    CHECK(mdb_get(kept[0], r.dbi, &key, &data) == EINVAL);
    mdb_txn_abort(kept[0]), mdb_txn_abort(kept[1]);
    leave();
  }
  reap(&turn);
  CHECK(strcmp(slots_of(r.env).own, before.own) == 0);
  close_reader(&r);
}

// The reader table has six slots: the newest transactions have them.
static void abandoned_full(void) {
  struct Turn turn;
  struct Reader r;
  char lock[4096];
  snprintf(lock, sizeof lock, "%s/lock.mdb", dir);
  CHECK(unlink(lock) == 0);  // a lock file keeps its number of slots
  MUST(mdb_env_create(&r.env));
  MUST(mdb_env_set_maxdbs(r.env, 4));
  MUST(mdb_env_set_maxreaders(r.env, 6));
  MUST(mdb_env_open(r.env, dir, MDB_RDONLY | flags, 0644));
  begin_reader(&r);
  end_reader(&r);
  if (fork_turn(&turn)) {
    enum { kKept = 40 };
    MDB_txn* kept[kKept];
    for (unsigned i = 0; i < kKept; ++i) kept[i] = abandon(&r, 2 * i);
    CHECK(slots_of(r.env).mine <= 6);
    for (unsigned i = 0; i < kKept; ++i) CHECK(get_some(kept[i], r.dbi));
    for (unsigned i = 0; i < kKept; ++i) mdb_txn_abort(kept[i]);
    mdb_env_close(r.env);
    leave();
  }
  reap(&turn);
  mdb_env_close(r.env);
}

enum { kHanded = 8 };

struct Handed {
  const struct Reader* reader;
  MDB_txn* txn;
  pthread_t thread;
};

static void* use_handed(void* arg) {
  const struct Handed* const h = arg;
  for (int i = 0; i < 20; ++i) CHECK(get_some(h->txn, h->reader->dbi));
  return NULL;
}

// Other threads use transactions while the thread that began them abandons more.
static void abandoned_handed(void) {
  struct Turn turn;
  struct Reader r = open_reader(dir, flags);
  end_reader(&r);
  if (fork_turn(&turn)) {
    for (int round = 0; round < 8; ++round) {
      struct Handed handed[kHanded];
      for (int i = 0; i < kHanded; ++i) {
        handed[i].reader = &r;
        MUST(mdb_txn_begin(r.env, NULL, MDB_RDONLY, &handed[i].txn));
        CHECK(pthread_create(&handed[i].thread, NULL, use_handed, &handed[i]) == 0);
      }
      for (unsigned n = 0; n < 100; ++n) (void)abandon(&r, n);
      for (int i = 0; i < kHanded; ++i) CHECK(pthread_join(handed[i].thread, NULL) == 0);
      for (int i = 0; i < kHanded; ++i) {
        CHECK(get_some(handed[i].txn, r.dbi));
        if (round % 2) mdb_txn_abort(handed[i].txn);
      }
    }
    mdb_env_close(r.env);
    leave();
  }
  reap(&turn);
  mdb_env_close(r.env);
}

// Forks a child that calls `in_child`, and another process that commits `commits` times while the child waits
// for its turn.
static void beside_writer(unsigned commits, void (*in_child)(struct Reader*, struct Turn*)) {
  struct Turn writer, turn;
  if (fork_turn(&writer)) {
    await(writer.to_child[0]);
    rewrite(commits);
    leave();
  }
  struct Reader r = open_reader(dir, flags);
  end_reader(&r);
  if (fork_turn(&turn)) {
    close(writer.to_child[1]);
    in_child(&r, &turn);
    leave();
  }
  await(turn.to_parent[0]);
  hand(writer.to_child[1]);
  reap(&writer);
  hand(turn.to_child[1]);
  reap(&turn);
  mdb_env_close(r.env);
}

static void wait_for_commits(const struct Turn* turn) {
  hand(turn->to_parent[1]);
  await(turn->to_child[0]);
}

// An old one is used after writers have changed its pages: an error, and no wrong record.
static void abandon_and_be_overtaken(struct Reader* r, struct Turn* turn) {
  enum { kKept = 22 };
  MDB_txn* kept[kKept];
  for (unsigned i = 0; i < kKept; ++i) {
    if (i == 16) mdb_txn_abort(kept[0]);  // the next one takes its place in memory, and is not old
    kept[i] = abandon(r, 2 * i);
  }
  for (unsigned i = kKept - 4; i < kKept; ++i) mdb_txn_abort(kept[i]);
  wait_for_commits(turn);
  MDB_val key = text("k00007"), data;
  mdb_txn_abort(kept[2]);  // which says nothing
  CHECK(get_some(kept[16], r->dbi) && get_some(kept[kKept - 5], r->dbi));
  CHECK(mdb_get(kept[1], r->dbi, &key, &data) == MDB_BAD_TXN);
  mdb_txn_reset(kept[1]);
  MUST(mdb_txn_renew(kept[1]));
  CHECK(get_some(kept[1], r->dbi));
  mdb_txn_abort(kept[1]);
  begin_reader(r);
  CHECK(walk_on(r->cursor, 0, kRecords));
  close_reader(r);
}

// An old one, whose snapshot a commit has replaced, continues on this snapshot.
static void abandon_and_go_on(struct Reader* r, struct Turn* turn) {
  MDB_txn* const old = abandon(r, 0);
  const size_t id = mdb_txn_id(old);
  wait_for_commits(turn);
  for (unsigned i = 1; i < 40; ++i) CHECK(mdb_txn_id(abandon(r, i)) == id + 1);
  CHECK(mdb_txn_id(old) == id && get_some(old, r->dbi));
  mdb_env_close(r->env);
}

// -- forks while other threads are inside calls

static atomic_int stop, rounds;

static void* open_always(void* argument) {
  (void)argument;
  // Of another path: one process opens a path once (lmdb.h), as closing drops the locks.
  char other[4096];
  snprintf(other, sizeof other, "%s/other", dir);
  while (!atomic_load(&stop)) {
    MDB_env* env;
    MDB_txn* txn;
    MDB_dbi dbi;
    MUST(mdb_env_create(&env));
    MUST(mdb_env_set_maxdbs(env, 4));
    MUST(mdb_env_open(env, other, MDB_RDONLY | flags, 0644));
    MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    MUST(mdb_dbi_open(txn, "zdups", 0, &dbi));
    mdb_txn_commit(txn);
    mdb_env_close(env);
    atomic_fetch_add(&rounds, 1);
  }
  return NULL;
}

static void* begin_always(void* argument) {
  struct Reader r = {.env = argument};
  while (!atomic_load(&stop)) {
    begin_reader(&r);
    CHECK(walk_on(r.cursor, 0, 20));
    end_reader(&r);
    atomic_fetch_add(&rounds, 1);
  }
  return NULL;
}

static void use(struct Reader* r) {
  CHECK(get_some(r->txn, r->dbi));
  end_reader(r);
  begin_reader(r);
  CHECK(walk_on(r->cursor, 0, 100));
}

static void use_other(void) {
  struct Reader fresh = open_reader(file("other"), flags);
  CHECK(walk_on(fresh.cursor, 0, 100));
  close_reader(&fresh);
}

static void busy(int forks) {
  CHECK(mkdir(file("other"), 0755) == 0);
  make(file("other"));
  struct Reader r = open_reader(dir, flags);
  // Once before: what a child allocates is then in this thread's own store.  AddressSanitizer's locks are not
  // its threads' at a fork: a child that needs a lock which another thread had would wait forever.
  use(&r);
  end_reader(&r);
  begin_reader(&r);
  use_other();
  pthread_t thread[4];
  CHECK(pthread_create(&thread[0], NULL, open_always, NULL) == 0);
  for (int t = 1; t < 4; ++t) CHECK(pthread_create(&thread[t], NULL, begin_always, r.env) == 0);
  for (int i = 0; i < forks; ++i) {
    const int seen = atomic_load(&rounds);
    while (atomic_load(&rounds) == seen) sched_yield();
    struct Turn turn;
    if (fork_turn(&turn)) {
      use(&r);
      if (i % 2) close_reader(&r);
      use_other();
      leave();
    }
    reap(&turn);
  }
  atomic_store(&stop, 1);
  for (int t = 0; t < 4; ++t) pthread_join(thread[t], NULL);
  CHECK(walk_on(r.cursor, 0, kRecords));
  close_reader(&r);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  dir = argv[1], flags = (unsigned)strtoul(argv[3], NULL, 0);
  const char* const what = argv[2];
  alarm(100);
  make(dir);
  const char* const of = strchr(what, ':') ? strchr(what, ':') + 1 : "";
  if (strcmp(what, "calls") == 0)
    calls(0);
  else if (strcmp(what, "calls-here") == 0)
    calls(1);
  else if (strcmp(what, "slots") == 0)
    own_slots();
  else if (strcmp(what, "thread-exit") == 0)
    thread_exit();
  else if (strcmp(what, "threads") == 0)
    threads();
  else if (strcmp(what, "parent:exits") == 0)
    parent_exits();
  else if (strncmp(what, "parent:", 7) == 0)
    parent_ends(of);
  else if (strcmp(what, "overtaken") == 0)
    overtaken(0);
  else if (strcmp(what, "overtaken-held") == 0)
    overtaken(1);
  else if (strncmp(what, "abandoned:", 10) == 0)
    abandoned((unsigned)atoi(of));
  else if (strcmp(what, "abandoned-full") == 0)
    abandoned_full();
  else if (strcmp(what, "abandoned-handed") == 0)
    abandoned_handed();
  else if (strcmp(what, "abandoned-overtaken") == 0)
    beside_writer(4, abandon_and_be_overtaken);
  else if (strcmp(what, "abandoned-older") == 0)
    beside_writer(1, abandon_and_go_on);
  else if (strncmp(what, "busy:", 5) == 0)
    busy(atoi(of));
  else
    return 2;
  return 0;
}
