// The program of the modes test: writes databases, reads them back through a read-only environment, makes
// mistakes, and prints what each call gave.  Its output must not depend on who serves the calls.
//   program DIR                DIR exists and is empty
//   program DIR write          only writes
//   program DIR read SCRATCH   only reads what that wrote; copies go to SCRATCH
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transcript.h"

enum { kDbs = 7 };
static const struct {
  const char* name;
  unsigned flags;
} kDb[kDbs] = {{"plain", 0},
               {"dups", MDB_DUPSORT},
               {"fixed", MDB_DUPSORT | MDB_DUPFIXED | MDB_INTEGERDUP},
               {"integers", MDB_INTEGERKEY},
               {"reverse", MDB_REVERSEKEY},
               {"reversedup", MDB_DUPSORT | MDB_REVERSEDUP},
               {"empty", 0}};

// Bytes of key i of database db: stable until the next call.
static MDB_val key_of(int db, unsigned i) {
  static char buffer[2][32];
  static int turn;
  static uint64_t number[2];
  turn = !turn;
  MDB_val v;
  if (kDb[db].flags & MDB_INTEGERKEY) {
    number[turn] = i * 3u;
    v.mv_data = &number[turn];
    v.mv_size = sizeof number[turn];
  } else {
    v.mv_size = (size_t)snprintf(buffer[turn], sizeof buffer[turn], "key-%05u", i * 3u);
    v.mv_data = buffer[turn];
  }
  return v;
}

static MDB_val data_of(int db, unsigned i, unsigned dup) {
  static char buffer[20000];
  static uint64_t number;
  MDB_val v;
  if (kDb[db].flags & MDB_DUPFIXED) {
    number = (uint64_t)i * 1000 + dup;
    v.mv_data = &number;
    v.mv_size = sizeof number;
    return v;
  }
  v.mv_size = (size_t)snprintf(buffer, sizeof buffer, "value-%05u-%03u", i, dup);
  if (!(kDb[db].flags & MDB_DUPSORT)) {
    const size_t want = i % 17 == 0 ? 15000 : i % 5 * 40;  // some in overflow pages
    for (; v.mv_size < want; ++v.mv_size) buffer[v.mv_size] = (char)('a' + (i + v.mv_size) % 26);
  }
  v.mv_data = buffer;
  return v;
}

static unsigned dups_of(int db, unsigned i) {
  if (!(kDb[db].flags & MDB_DUPSORT)) return 1;
  return i % 11 == 0 ? 700 : i % 3 + 1;  // sub-databases, sub-pages and single values
}

static unsigned keys_of(int db) {
  return strcmp(kDb[db].name, "empty") == 0 ? 0 : kDb[db].flags & MDB_DUPSORT ? 60 : 400;
}

static void fill(MDB_env* env, MDB_dbi* dbi) {
  for (int db = 0; db < kDbs; ++db) {
    MDB_txn* txn;
    MUST(mdb_txn_begin(env, NULL, 0, &txn));
    reported(kDb[db].name, mdb_dbi_open(txn, kDb[db].name, kDb[db].flags | MDB_CREATE, &dbi[db]));
    for (unsigned i = 0; i < keys_of(db); ++i)
      for (unsigned dup = 0; dup < dups_of(db, i); ++dup) {
        MDB_val key = key_of(db, i), data = data_of(db, i, dup);
        MUST(mdb_put(txn, dbi[db], &key, &data, 0));
      }
    MUST(mdb_txn_commit(txn));
  }
}

static void write_calls(MDB_env* env, MDB_dbi* dbi) {
  MDB_txn *txn, *child;
  MDB_cursor* cursor;
  MDB_val key, data;
  say("-- writes");
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  say("id %zu", mdb_txn_id(txn));
  CHECK(mdb_txn_env(txn) == env);
  key = text("key-00003"), data = text("other");
  CALL(mdb_put(txn, dbi[0], &key, &data, MDB_NOOVERWRITE));
  show("existing", &data), putchar('\n');
  key = text("reserved"), data.mv_size = 50, data.mv_data = NULL;
  CALL(mdb_put(txn, dbi[0], &key, &data, MDB_RESERVE));
  memset(data.mv_data, 'r', 50);
  key = text(""), data = text("x");
  CALL(mdb_put(txn, dbi[0], &key, &data, 0));
  key = text("absent"), data = untouched();
  CALL(mdb_get(txn, dbi[0], &key, &data));
  show("absent", &data), putchar('\n');
  CALL(mdb_del(txn, dbi[0], &key, NULL));
  key = text("key-00006");
  CALL(mdb_del(txn, dbi[0], &key, NULL));
  key = text("key-00000"), data = text("value-00000-005");
  CALL(mdb_del(txn, dbi[1], &key, &data));
  CALL(mdb_del(txn, dbi[1], &key, &data));
  CALL(mdb_put(txn, dbi[1], &key, &data, MDB_NODUPDATA));
  CALL(mdb_put(txn, dbi[1], &key, &data, MDB_NODUPDATA));
  CALL(mdb_put(txn, 99, &key, &data, 0));

  CALL(mdb_txn_begin(env, txn, 0, &child));
  key = text("in-child"), data = text("kept");
  CALL(mdb_put(child, dbi[0], &key, &data, 0));
  CALL(mdb_txn_commit(child));
  CALL(mdb_txn_begin(env, txn, 0, &child));
  key = text("in-child-2"), data = text("dropped");
  CALL(mdb_put(child, dbi[0], &key, &data, 0));
  mdb_txn_abort(child);

  CALL(mdb_cursor_open(txn, dbi[2], &cursor));
  CHECK(mdb_cursor_txn(cursor) == txn);
  CHECK(mdb_cursor_dbi(cursor) == dbi[2]);
  uint64_t numbers[5] = {1, 2, 3, 4, 5};
  MDB_val many[2] = {{sizeof numbers[0], numbers}, {5, NULL}};
  key = text("multiple");
  CALL(mdb_cursor_put(cursor, &key, many, MDB_MULTIPLE));
  say("written %zu", many[1].mv_size);
  size_t count = 0;
  CALL(mdb_cursor_count(cursor, &count));
  say("count %zu", count);
  key = text("multiple"), data = untouched();
  step(cursor, MDB_SET_KEY, &key, &data);
  CALL(mdb_cursor_del(cursor, 0));
  step(cursor, MDB_GET_CURRENT, &key, &data);
  step(cursor, MDB_NEXT, &key, &data);
  CALL(mdb_cursor_del(cursor, MDB_NODUPDATA));
  step(cursor, MDB_GET_CURRENT, &key, &data);
  mdb_cursor_close(cursor);

  CALL(mdb_cursor_open(txn, dbi[0], &cursor));
  key = text("zzz-appended"), data = text("last");
  CALL(mdb_cursor_put(cursor, &key, &data, MDB_APPEND));
  key = text("aaa"), data = text("not last");
  CALL(mdb_cursor_put(cursor, &key, &data, MDB_APPEND));
  key = text("key-00009"), data = text("current");
  step(cursor, MDB_SET, &key, &data);
  data = text("changed");
  CALL(mdb_cursor_put(cursor, &key, &data, MDB_CURRENT));
  step(cursor, MDB_GET_CURRENT, &key, &data);
  mdb_cursor_close(cursor);
  CALL(mdb_txn_commit(txn));

  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  key = text("aborted"), data = text("never seen");
  CALL(mdb_put(txn, dbi[0], &key, &data, 0));
  mdb_txn_abort(txn);

  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MDB_dbi scratch = 99;
  CALL(mdb_dbi_open(txn, "scratch", MDB_CREATE, &scratch));
  key = text("k"), data = text("v");
  CALL(mdb_put(txn, scratch, &key, &data, 0));
  CALL(mdb_drop(txn, scratch, 0));
  MDB_stat stat;
  CALL(mdb_stat(txn, scratch, &stat));
  show_stat("dropped", &stat);
  CALL(mdb_drop(txn, scratch, 1));
  CALL(mdb_dbi_open(txn, "scratch", 0, &scratch));
  MDB_dbi too_many = 99;
  for (int i = 0; i < 4; ++i) {
    char name[16];
    snprintf(name, sizeof name, "more-%d", i);
    CALL(mdb_dbi_open(txn, name, MDB_CREATE, &too_many));
  }
  mdb_txn_abort(txn);

  // A map that is too small: the transaction is lost, the environment is not.
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  char* big = calloc(1, 60u << 20);
  CHECK(big != NULL);
  key = text("big"), data.mv_size = 60u << 20, data.mv_data = big;
  CALL(mdb_put(txn, dbi[0], &key, &data, 0));
  free(big);
  key = text("after"), data = text("full");
  CALL(mdb_put(txn, dbi[0], &key, &data, 0));
  CALL(mdb_txn_commit(txn));
  CALL(mdb_env_sync(env, 1));
}

static void show_environment(MDB_env* env) {
  MDB_stat stat;
  MDB_envinfo info;
  unsigned flags = 0, readers = 0;
  const char* path = NULL;
  CALL(mdb_env_stat(env, &stat));
  show_stat("env", &stat);
  CALL(mdb_env_info(env, &info));
  say("info: mapsize %zu last_pgno %zu txnid %zu maxreaders %u numreaders %u", info.me_mapsize,
      info.me_last_pgno, info.me_last_txnid, info.me_maxreaders, info.me_numreaders);
  CALL(mdb_env_get_flags(env, &flags));
  say("flags %x", flags);
  CALL(mdb_env_get_path(env, &path));
  say("path ends in %s", path && strrchr(path, '/') ? strrchr(path, '/') : "?");
  CALL(mdb_env_get_maxreaders(env, &readers));
  say("maxreaders %u maxkeysize %d", readers, mdb_env_get_maxkeysize(env));
  mdb_filehandle_t fd = -1;
  CALL(mdb_env_get_fd(env, &fd));
  struct stat st;
  CHECK(fstat(fd, &st) == 0);
  say("fd is a file: %d, size %lld", S_ISREG(st.st_mode), (long long)st.st_size);
}

static MDB_val shown_start(int db, unsigned i) { return key_of(db, i); }

// Every operation from a fresh cursor and from three positions; then what a walk on finds.
static void every_operation(MDB_txn* txn, MDB_dbi dbi, int db) {
  MDB_val key, data;
  for (int start = 0; start < 4; ++start)
    for (size_t i = 0; i < kOpCount; ++i) {
      // Stock reads what was never written when these come first.
      if (start == 0 &&
          (kOps[i].op == MDB_PREV_DUP || kOps[i].op == MDB_NEXT_MULTIPLE || kOps[i].op == MDB_PREV_MULTIPLE ||
           kOps[i].op == MDB_FIRST_DUP || kOps[i].op == MDB_LAST_DUP || kOps[i].op == MDB_GET_MULTIPLE ||
           kOps[i].op == MDB_GET_CURRENT))
        continue;
      MDB_cursor* cursor;
      MUST(mdb_cursor_open(txn, dbi, &cursor));
      printf("%s start %d\n", kDb[db].name, start);
      key = untouched(), data = untouched();
      if (start == 1) step(cursor, MDB_FIRST, &key, &data);
      if (start == 2) step(cursor, MDB_LAST, &key, &data);
      if (start == 3) {
        key = shown_start(db, 11);
        step(cursor, MDB_SET_RANGE, &key, &data);
      }
      const MDB_cursor_op op = kOps[i].op;
      if (op == MDB_SET || op == MDB_SET_KEY || op == MDB_SET_RANGE || op == MDB_GET_BOTH ||
          op == MDB_GET_BOTH_RANGE) {
        key = key_of(db, 22);
        data = data_of(db, 22, 3);
      } else {
        key = untouched(), data = untouched();
      }
      step(cursor, op, &key, &data);
      for (int more = 0; more < 3; ++more) {
        key = untouched(), data = untouched();
        if (step(cursor, more < 2 ? MDB_NEXT : MDB_PREV, &key, &data) != 0) break;
      }
      size_t count = 4711;
      if (kDb[db].flags & MDB_DUPSORT) {
        key = shown_start(db, 22);
        data = untouched();
        if (step(cursor, MDB_SET_KEY, &key, &data) == 0) {
          CALL(mdb_cursor_count(cursor, &count));
          say("count %zu", count);
        }
      } else {
        CALL(mdb_cursor_count(cursor, &count));
      }
      mdb_cursor_close(cursor);
    }
}

static void walk(MDB_txn* txn, MDB_dbi dbi, const char* name) {
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  for (int backward = 0; backward < 2; ++backward) {
    size_t n = 0;
    uint64_t sum = 0;
    int rc;
    while ((rc = mdb_cursor_get(cursor, &key, &data, backward ? MDB_PREV : MDB_NEXT)) == 0) {
      ++n;
      sum = sum * 31 + hash_bytes(key.mv_data, key.mv_size) + hash_bytes(data.mv_data, data.mv_size);
    }
    say("walk %s %s: %zu records, sum %016llx, ended by %d", name, backward ? "back" : "on", n,
        (unsigned long long)sum, rc);
    // As data readers do: from the start again after the end.
    key = untouched(), data = untouched();
    step(cursor, backward ? MDB_LAST : MDB_FIRST, &key, &data);
    mdb_cursor_close(cursor);
    MUST(mdb_cursor_open(txn, dbi, &cursor));
  }
  mdb_cursor_close(cursor);
}

static int cmp_backward(const MDB_val* a, const MDB_val* b) {
  const size_t n = a->mv_size < b->mv_size ? a->mv_size : b->mv_size;
  const int d = memcmp(b->mv_data, a->mv_data, n);
  return d != 0 ? d : (a->mv_size < b->mv_size) - (a->mv_size > b->mv_size);
}

static uint64_t file_hash(const char* path, long long* size) {
  FILE* f = fopen(path, "rb");
  *size = -1;
  if (!f) return 0;
  static unsigned char buffer[1 << 16];
  uint64_t h = 0;
  size_t n;
  *size = 0;
  while ((n = fread(buffer, 1, sizeof buffer, f)) > 0)
    h = h * 131 + hash_bytes(buffer, n), *size += (long long)n;
  fclose(f);
  return h;
}

static int count_message(const char* message, void* context) {
  ++*(int*)context;
  return message == NULL;
}

static void copies(MDB_env* env, const char* dir) {
  char path[4200], file[4300];
  long long size;
  for (int compact = 0; compact < 2; ++compact) {
    snprintf(path, sizeof path, "%s/copy-%d", dir, compact);
    MUST(mkdir(path, 0755));
    CALL(mdb_env_copy2(env, path, compact ? MDB_CP_COMPACT : 0));
    snprintf(file, sizeof file, "%s/data.mdb", path);
    const uint64_t h = file_hash(file, &size);
    say("copy %d: %lld bytes %016llx", compact, size, (unsigned long long)h);
    CALL(mdb_env_copy(env, path));  // it exists already
    snprintf(file, sizeof file, "%s/fd-%d", dir, compact);
    const int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    CALL(compact ? mdb_env_copyfd2(env, fd, MDB_CP_COMPACT) : mdb_env_copyfd(env, fd));
    close(fd);
    say("copyfd %d: %d", compact, file_hash(file, &size) == h);
  }
}

static void read_calls(const char* dir, const char* scratch, unsigned extra) {
  MDB_env* env;
  MDB_txn *txn, *other = NULL;
  MDB_dbi dbi[kDbs], main_dbi = 99, none = 99;
  MDB_cursor *cursor, *second;
  MDB_val key, data;
  say("-- reads, flags %x", extra);
  MUST(mdb_env_create(&env));
  CALL(mdb_env_set_maxdbs(env, 9));
  CALL(mdb_env_set_maxreaders(env, 7));
  int context = 0;
  CALL(mdb_env_set_userctx(env, &context));
  CHECK(mdb_env_get_userctx(env) == &context);
  CALL(mdb_env_set_assert(env, NULL));
  CALL(mdb_env_open(env, "/nonexistent/lmdb", MDB_RDONLY, 0644));
  mdb_env_close(env);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_maxdbs(env, 9));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | extra, 0644));
  show_environment(env);
  CALL(mdb_env_open(env, dir, MDB_RDONLY | extra, 0644));
  CALL(mdb_env_set_maxdbs(env, 20));
  CALL(mdb_env_set_maxreaders(env, 20));
  CALL(mdb_env_set_flags(env, MDB_NOSYNC, 1));
  CALL(mdb_env_set_flags(env, MDB_RDONLY, 0));
  CALL(mdb_env_sync(env, 1));
  CALL(mdb_txn_begin(env, NULL, 0, &txn));
  CALL(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  CHECK(mdb_txn_env(txn) == env);
  say("id %zu", mdb_txn_id(txn));
  CALL(mdb_dbi_open(txn, NULL, 0, &main_dbi));
  CALL(mdb_dbi_open(txn, "no such", 0, &none));
  CALL(mdb_dbi_open(txn, "no such", MDB_CREATE, &none));
  for (int db = 0; db < kDbs; ++db) {
    unsigned flags = 0;
    MDB_stat stat;
    MUST(mdb_dbi_open(txn, kDb[db].name, 0, &dbi[db]));
    CALL(mdb_dbi_flags(txn, dbi[db], &flags));
    CALL(mdb_stat(txn, dbi[db], &stat));
    show_stat(kDb[db].name, &stat);
    say("dbi %u flags %x", dbi[db], flags);
  }
  // Handles outlive only a transaction that commits.
  CALL(mdb_txn_commit(txn));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  walk(txn, main_dbi, "main");
  for (int db = 0; db < kDbs; ++db) {
    walk(txn, dbi[db], kDb[db].name);
    every_operation(txn, dbi[db], db);
    for (unsigned i = 0; i < 60; ++i) {
      key = key_of(db, i * 7 % 73), data = untouched();
      printf("get %u = %d", i, mdb_get(txn, dbi[db], &key, &data));
      show("data", &data);
      putchar('\n');
    }
    MDB_val a = key_of(db, 1), b = key_of(db, 2);
    say("cmp %d %d %d", mdb_cmp(txn, dbi[db], &a, &b) < 0, mdb_cmp(txn, dbi[db], &a, &a) == 0,
        mdb_cmp(txn, dbi[db], &b, &a) > 0);
    if (kDb[db].flags & MDB_DUPSORT) {
      a = data_of(db, 1, 1);
      say("dcmp %d", mdb_dcmp(txn, dbi[db], &a, &a));
    }
  }

  say("-- what may not be");
  key = text("k"), data = text("v");
  CALL(mdb_put(txn, dbi[0], &key, &data, 0));
  CALL(mdb_del(txn, dbi[0], &key, NULL));
  CALL(mdb_drop(txn, dbi[0], 0));
  CALL(mdb_get(txn, 99, &key, &data));
  CALL(mdb_get(txn, 0, &key, &data));
  CALL(mdb_cursor_open(txn, 99, &cursor));
  CALL(mdb_cursor_open(txn, dbi[0], NULL));
  CALL(mdb_cursor_open(NULL, dbi[0], &cursor));
  CALL(mdb_cursor_open(txn, dbi[0], &cursor));
  CHECK(mdb_cursor_txn(cursor) == txn);
  CHECK(mdb_cursor_dbi(cursor) == dbi[0]);
  key = text("key-00003");
  step(cursor, MDB_SET, &key, &data);
  CALL(mdb_cursor_put(cursor, &key, &data, 0));
  CALL(mdb_cursor_del(cursor, 0));
  CALL(mdb_cursor_get(cursor, &key, &data, (MDB_cursor_op)30));
  CALL(mdb_cursor_get(cursor, NULL, &data, MDB_SET));
  size_t count = 4711;
  CALL(mdb_cursor_count(cursor, &count));
  CALL(mdb_cursor_count(cursor, NULL));
  key = text(""), data = untouched();
  step(cursor, MDB_SET, &key, &data);
  step(cursor, MDB_SET_RANGE, &key, &data);
  static char long_key[600];
  memset(long_key, 'k', sizeof long_key);
  key.mv_data = long_key, key.mv_size = sizeof long_key;
  CALL(mdb_get(txn, dbi[0], &key, &data));
  step(cursor, MDB_SET_RANGE, &key, &data);

  say("-- renew and reset");
  MUST(mdb_cursor_open(txn, dbi[0], &second));
  key = untouched(), data = untouched();
  step(second, MDB_LAST, &key, &data);
  mdb_txn_reset(txn);
  CALL(mdb_get(txn, dbi[0], &key, &data));
  CALL(mdb_cursor_get(second, &key, &data, MDB_NEXT));
  CALL(mdb_txn_renew(txn));
  CALL(mdb_txn_renew(txn));
  CALL(mdb_cursor_renew(txn, second));
  key = untouched(), data = untouched();
  step(second, MDB_NEXT, &key, &data);
  mdb_cursor_close(second);
  mdb_txn_reset(txn);
  mdb_cursor_close(cursor);
  CALL(mdb_txn_renew(txn));

  say("-- a second transaction of this thread");
  if (CALL(mdb_txn_begin(env, NULL, MDB_RDONLY, &other)) == 0) {
    say("id %zu", mdb_txn_id(other));
    CALL(mdb_cursor_open(other, dbi[1], &cursor));
    key = untouched(), data = untouched();
    step(cursor, MDB_FIRST, &key, &data);
    CALL(mdb_txn_commit(other));
    CALL(mdb_cursor_renew(txn, cursor));
    key = untouched(), data = untouched();
    step(cursor, MDB_LAST, &key, &data);
    mdb_cursor_close(cursor);
  }

  say("-- other orders");
  CALL(mdb_set_compare(txn, dbi[6], cmp_backward));
  CALL(mdb_set_dupsort(txn, dbi[1], cmp_backward));
  CALL(mdb_set_dupsort(txn, dbi[0], cmp_backward));
  CALL(mdb_set_compare(txn, 99, cmp_backward));
  CALL(mdb_set_relfunc(txn, dbi[0], NULL));
  CALL(mdb_set_relctx(txn, dbi[0], NULL));
  CALL(mdb_set_relctx(txn, 99, NULL));
  MDB_val a = text("a"), b = text("b");
  say("cmp %d, dcmp %d", mdb_cmp(txn, dbi[6], &a, &b) > 0, mdb_dcmp(txn, dbi[1], &a, &b) > 0);

  CALL(mdb_txn_commit(txn));
  mdb_dbi_close(env, dbi[6]);
  mdb_dbi_close(env, 99);
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MDB_stat stat;
  CALL(mdb_stat(txn, dbi[6], &stat));
  CALL(mdb_dbi_open(txn, kDb[6].name, 0, &none));
  say("reused %d", none == dbi[6]);
  mdb_txn_abort(txn);

  int lines = 0, dead = 99;
  CALL(mdb_reader_list(env, count_message, &lines) >= 0);
  say("reader list: %d lines", lines);
  CALL(mdb_reader_check(env, &dead));
  say("dead %d", dead);
  copies(env, scratch);
  mdb_env_close(env);
  char path[4200];
  for (int compact = 0; compact < 2; ++compact) {
    snprintf(path, sizeof path, "%s/copy-%d/data.mdb", scratch, compact), unlink(path);
    snprintf(path, sizeof path, "%s/copy-%d", scratch, compact), rmdir(path);
    snprintf(path, sizeof path, "%s/fd-%d", scratch, compact), unlink(path);
  }
}

static void errors(const char* dir) {
  static const int kCodes[] = {0,
                               MDB_KEYEXIST,
                               MDB_NOTFOUND,
                               MDB_PAGE_NOTFOUND,
                               MDB_CORRUPTED,
                               MDB_PANIC,
                               MDB_VERSION_MISMATCH,
                               MDB_INVALID,
                               MDB_MAP_FULL,
                               MDB_DBS_FULL,
                               MDB_READERS_FULL,
                               MDB_TLS_FULL,
                               MDB_TXN_FULL,
                               MDB_CURSOR_FULL,
                               MDB_PAGE_FULL,
                               MDB_MAP_RESIZED,
                               MDB_INCOMPATIBLE,
                               MDB_BAD_RSLOT,
                               MDB_BAD_TXN,
                               MDB_BAD_VALSIZE,
                               MDB_BAD_DBI,
                               ENOENT,
                               EACCES,
                               -1,
                               -30500};
  int major = 0, minor = 0, patch = 0;
  say("-- errors");
  say("%s", mdb_version(&major, &minor, &patch));
  say("%d.%d.%d %d", major, minor, patch, mdb_version(NULL, NULL, NULL) != NULL);
  for (size_t i = 0; i < sizeof kCodes / sizeof kCodes[0]; ++i)
    say("%d: %s", kCodes[i], mdb_strerror(kCodes[i]));
  char path[4200];
  snprintf(path, sizeof path, "%s/garbage", dir);
  FILE* f = fopen(path, "wb");
  CHECK(f != NULL);
  for (int i = 0; i < 20000; ++i) putc(i % 251, f);
  fclose(f);
  MDB_env* env;
  MUST(mdb_env_create(&env));
  CALL(mdb_env_open(env, path, MDB_RDONLY | MDB_NOSUBDIR, 0644));
  mdb_env_close(env);
  MUST(mdb_env_create(&env));
  CALL(mdb_env_open(env, path, MDB_NOSUBDIR, 0644));
  mdb_env_close(env);
  unlink(path);
  strcat(path, "-lock"), unlink(path);
  snprintf(path, sizeof path, "%s/none", dir);
  MUST(mdb_env_create(&env));
  CALL(mdb_env_open(env, path, MDB_RDONLY | MDB_NOSUBDIR, 0644));
  mdb_env_close(env);
  strcat(path, "-lock"), unlink(path);
  MUST(mdb_env_create(&env));
  CALL(mdb_env_open(env, dir, MDB_RDONLY | 0x800000, 0644));
  mdb_env_close(env);
  MUST(mdb_env_create(&env));
  CALL(mdb_env_set_mapsize(env, 1 << 20));
  CALL(mdb_reader_check(NULL, NULL));
  CALL(mdb_env_get_flags(NULL, NULL));
  CALL(mdb_env_stat(NULL, NULL));
  CALL(mdb_env_get_path(env, NULL));
  CALL(mdb_txn_renew(NULL));
  CALL(mdb_txn_commit(NULL));
  mdb_txn_abort(NULL);
  mdb_txn_reset(NULL);
  mdb_cursor_close(NULL);
  mdb_env_close(NULL);
  mdb_env_close(env);
}

static void write_all(const char* dir) {
  MDB_env* env;
  MDB_dbi dbi[kDbs];
  MUST(mdb_env_create(&env));
  CALL(mdb_env_set_mapsize(env, 32u << 20));
  CALL(mdb_env_set_maxdbs(env, 10));
  MUST(mdb_env_open(env, dir, MDB_NOSYNC, 0644));
  fill(env, dbi);
  write_calls(env, dbi);
  show_environment(env);
  mdb_env_close(env);
}

static void read_all(const char* dir, const char* scratch) {
  read_calls(dir, scratch, 0);
  read_calls(dir, scratch, MDB_NOTLS);
  read_calls(dir, scratch, MDB_NOLOCK | MDB_NORDAHEAD);
  errors(scratch);
}

int main(int argc, char** argv) {
  const int writes = argc == 2 || (argc == 3 && strcmp(argv[2], "write") == 0);
  const int reads = argc == 2 || (argc == 4 && strcmp(argv[2], "read") == 0);
  if (!writes && !reads) return 2;
  if (writes) write_all(argv[1]);
  if (reads) read_all(argv[1], argc == 4 ? argv[3] : argv[1]);
  return 0;
}
