// Writable environments, whose handles are wrapped and forwarded: nested transactions with open cursors,
// cursors that end before, with and after their transaction, failing commits, two environments at once. Meant
// to be run under AddressSanitizer as well: every wrapper must be freed exactly when stock frees what it
// wraps.
//   passthrough DIR     DIR exists and is empty
#include <sys/stat.h>

#include "transcript.h"

static MDB_env* open_environment(const char* dir, const char* name, unsigned flags) {
  char path[4200];
  MDB_env* env;
  snprintf(path, sizeof path, "%s/%s", dir, name);
  mkdir(path, 0755);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 4u << 20));
  MUST(mdb_env_set_maxdbs(env, 4));
  MUST(mdb_env_open(env, path, flags, 0644));
  return env;
}

static int put_text(MDB_txn* txn, MDB_dbi dbi, const char* k, const char* v) {
  MDB_val key = text(k), data = text(v);
  return mdb_put(txn, dbi, &key, &data, 0);
}

static void get_text(MDB_txn* txn, MDB_dbi dbi, const char* k) {
  MDB_val key = text(k), data = untouched();
  printf("get %s = %d", k, mdb_get(txn, dbi, &key, &data));
  show("data", &data);
  putchar('\n');
}

static void move_to(MDB_cursor* cursor, MDB_cursor_op op) {
  MDB_val key = untouched(), data = untouched();
  step(cursor, op, &key, &data);
}

// Children that commit and abort, three deep, while cursors of every level are open.
static void nested(MDB_env* env, MDB_dbi dbi, MDB_dbi dups) {
  MDB_txn* level[4];
  MDB_cursor* cursor[4];
  MDB_cursor* dup_cursor;
  MDB_val key, data;
  for (int outcome = 0; outcome < 8; ++outcome) {
    say("-- nested %d", outcome);
    MUST(mdb_txn_begin(env, NULL, 0, &level[0]));
    MUST(mdb_cursor_open(level[0], dbi, &cursor[0]));
    MUST(mdb_cursor_open(level[0], dups, &dup_cursor));
    move_to(cursor[0], MDB_FIRST);
    move_to(dup_cursor, MDB_LAST);
    for (int depth = 1; depth < 4; ++depth) {
      char name[16];
      MUST(mdb_txn_begin(env, level[depth - 1], 0, &level[depth]));
      CHECK(mdb_txn_env(level[depth]) == env);
      MUST(mdb_cursor_open(level[depth], dbi, &cursor[depth]));
      CHECK(mdb_cursor_txn(cursor[depth]) == level[depth]);
      // The parents' cursors are shadowed: stock says that they belong to the innermost transaction.
      for (int below = 0; below < depth; ++below) {
        for (int owner = 0; owner <= depth; ++owner)
          if (mdb_cursor_txn(cursor[below]) == level[owner]) say("cursor of %d belongs to %d", below, owner);
        CHECK(mdb_cursor_dbi(cursor[below]) == dbi);
      }
      snprintf(name, sizeof name, "n%d-%d", outcome, depth);
      CALL(put_text(level[depth], dbi, name, "nested"));
      CALL(put_text(level[depth], dups, "many", name));
      key = text(name), data = untouched();
      step(cursor[depth], MDB_SET_KEY, &key, &data);
      move_to(cursor[depth], MDB_PREV);
      if (depth == 2) CALL(mdb_txn_begin(env, level[1], 0, &level[3]));  // has a child already
    }
    for (int depth = 3; depth >= 1; --depth) {
      const int commit = outcome >> (depth - 1) & 1;
      if (depth == 2) {
        mdb_cursor_close(cursor[depth]);  // before its transaction
        cursor[depth] = NULL;
      }
      if (commit)
        CALL(mdb_txn_commit(level[depth]));
      else
        mdb_txn_abort(level[depth]);
      // Cursors of a write transaction ended with it.
    }
    move_to(cursor[0], MDB_GET_CURRENT);
    move_to(cursor[0], MDB_NEXT);
    move_to(dup_cursor, MDB_GET_CURRENT);
    move_to(dup_cursor, MDB_PREV);
    for (int depth = 1; depth < 4; ++depth) {
      char name[16];
      snprintf(name, sizeof name, "n%d-%d", outcome, depth);
      get_text(level[0], dbi, name);
    }
    mdb_cursor_close(dup_cursor);
    if (outcome % 3 == 0) mdb_cursor_close(cursor[0]);
    if (outcome % 2)
      CALL(mdb_txn_commit(level[0]));
    else
      mdb_txn_abort(level[0]);
  }
  // Ending the outermost ends all.
  for (int commit = 0; commit < 2; ++commit) {
    MUST(mdb_txn_begin(env, NULL, 0, &level[0]));
    MUST(mdb_cursor_open(level[0], dbi, &cursor[0]));
    for (int depth = 1; depth < 4; ++depth) {
      MUST(mdb_txn_begin(env, level[depth - 1], 0, &level[depth]));
      MUST(mdb_cursor_open(level[depth], dbi, &cursor[depth]));
      move_to(cursor[depth], MDB_LAST);
      CALL(put_text(level[depth], dbi, "with-outermost", commit ? "c" : "a"));
    }
    if (commit)
      CALL(mdb_txn_commit(level[0]));
    else
      mdb_txn_abort(level[0]);
  }
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &level[0]));
  get_text(level[0], dbi, "with-outermost");
  mdb_txn_abort(level[0]);
}

// A parent's cursor closed while a child shadows it, and one opened in the parent and used in the child.
static void shadowed(MDB_env* env, MDB_dbi dbi) {
  MDB_txn *parent, *child;
  MDB_cursor *cursor, *other;
  for (int commit = 0; commit < 2; ++commit) {
    say("-- shadowed %d", commit);
    MUST(mdb_txn_begin(env, NULL, 0, &parent));
    MUST(mdb_cursor_open(parent, dbi, &cursor));
    MUST(mdb_cursor_open(parent, dbi, &other));
    move_to(cursor, MDB_FIRST);
    move_to(other, MDB_LAST);
    MUST(mdb_txn_begin(env, parent, 0, &child));
    CALL(put_text(child, dbi, "shadow", commit ? "kept" : "dropped"));
    move_to(other, MDB_PREV);
    if (commit)
      CALL(mdb_txn_commit(child));
    else
      mdb_txn_abort(child);
    CHECK(mdb_cursor_txn(cursor) == parent);
    CHECK(mdb_cursor_txn(other) == parent);
    move_to(cursor, MDB_NEXT);
    move_to(other, MDB_GET_CURRENT);
    mdb_cursor_close(other);
    get_text(parent, dbi, "shadow");
    mdb_txn_abort(parent);
  }
}

// Read-only transactions within a writable environment: their cursors outlive them and are renewed.
static void readers(MDB_env* env, MDB_dbi dbi) {
  MDB_txn *reader, *writer, *second = NULL;
  MDB_cursor *cursor, *spare;
  MDB_val key, data;
  say("-- readers of a writable environment");
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &reader));
  MUST(mdb_cursor_open(reader, dbi, &cursor));
  MUST(mdb_cursor_open(reader, dbi, &spare));
  CHECK(mdb_cursor_txn(cursor) == reader);
  move_to(cursor, MDB_FIRST);
  CALL(put_text(reader, dbi, "x", "y"));
  key = text("x"), data = text("y");
  CALL(mdb_cursor_put(cursor, &key, &data, 0));
  CALL(mdb_cursor_del(cursor, 0));
  mdb_txn_reset(reader);
  CALL(mdb_cursor_get(cursor, &key, &data, MDB_NEXT));
  MUST(mdb_txn_begin(env, NULL, 0, &writer));
  MUST(put_text(writer, dbi, "0-new-first", "1"));
  MUST(mdb_txn_commit(writer));
  CALL(mdb_txn_renew(reader));
  CALL(mdb_cursor_renew(reader, cursor));
  move_to(cursor, MDB_FIRST);
  say("id %zu", mdb_txn_id(reader));
  if (CALL(mdb_txn_begin(env, NULL, MDB_RDONLY, &second)) == 0) {
    mdb_txn_reset(second);
    CALL(mdb_txn_renew(second));
    mdb_txn_abort(second);
  }
  mdb_txn_abort(reader);  // the cursors stay
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &reader));
  CALL(mdb_cursor_renew(reader, cursor));
  CHECK(mdb_cursor_txn(cursor) == reader);
  move_to(cursor, MDB_LAST);
  CALL(mdb_txn_commit(reader));
  mdb_cursor_close(cursor);
  mdb_cursor_close(spare);  // never renewed
}

static void failures(MDB_env* env, MDB_dbi dbi) {
  MDB_txn *txn, *child;
  MDB_cursor* cursor;
  static char big[5u << 20];
  MDB_val key = text("big"), data = {sizeof big, big};
  say("-- failures");
  for (int inner = 0; inner < 2; ++inner) {
    MUST(mdb_txn_begin(env, NULL, 0, &txn));
    MUST(mdb_cursor_open(txn, dbi, &cursor));
    MDB_txn* failing = txn;
    if (inner) {
      MUST(mdb_txn_begin(env, txn, 0, &child));
      failing = child;
      MUST(mdb_cursor_open(child, dbi, &cursor));
    }
    move_to(cursor, MDB_FIRST);
    CALL(mdb_put(failing, dbi, &key, &data, 0));
    CALL(put_text(failing, dbi, "later", "no"));
    MDB_val k = untouched(), d = untouched();
    CALL(mdb_cursor_get(cursor, &k, &d, MDB_NEXT));
    CALL(mdb_txn_commit(failing));
    if (inner) {
      CALL(put_text(txn, dbi, "parent-goes-on", "yes"));
      CALL(mdb_txn_commit(txn));
    }
  }
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  get_text(txn, dbi, "later");
  get_text(txn, dbi, "parent-goes-on");
  CALL(mdb_txn_begin(env, txn, 0, &child));
  CALL(mdb_txn_begin(env, txn, MDB_RDONLY, &child));
  mdb_txn_abort(txn);
  // A handle that was opened in a transaction that aborts, one that is dropped, one that is closed.
  MDB_dbi temporary = 99;
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  CALL(mdb_dbi_open(txn, "temporary", MDB_CREATE, &temporary));
  MUST(mdb_cursor_open(txn, temporary, &cursor));
  CALL(put_text(txn, temporary, "a", "b"));
  move_to(cursor, MDB_FIRST);
  CALL(mdb_drop(txn, temporary, 0));
  move_to(cursor, MDB_FIRST);
  mdb_txn_abort(txn);
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  CALL(put_text(txn, temporary, "a", "b"));
  CALL(mdb_dbi_open(txn, "temporary", MDB_CREATE | MDB_DUPSORT, &temporary));
  CALL(put_text(txn, temporary, "a", "b"));
  MDB_val k = text("a"), v = text("b");
  CALL(mdb_del(txn, temporary, &k, &v));
  CALL(mdb_drop(txn, temporary, 1));
  CALL(mdb_txn_commit(txn));
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  MDB_txn* txn;
  MDB_dbi dbi[2], dups[2];
  static const unsigned kFlags[2] = {MDB_NOSYNC, MDB_NOSYNC | MDB_WRITEMAP | MDB_NOTLS};
  MDB_env* env[2];
  env[0] = open_environment(argv[1], "one", kFlags[0]);
  env[1] = open_environment(argv[1], "two", kFlags[1]);
  for (int e = 0; e < 2; ++e) {
    MUST(mdb_txn_begin(env[e], NULL, 0, &txn));
    CHECK(mdb_txn_env(txn) == env[e]);
    MUST(mdb_dbi_open(txn, "data", MDB_CREATE, &dbi[e]));
    MUST(mdb_dbi_open(txn, "dups", MDB_CREATE | MDB_DUPSORT, &dups[e]));
    for (int i = 0; i < 300; ++i) {
      char name[16];
      snprintf(name, sizeof name, "k%04d", i);
      MUST(put_text(txn, dbi[e], name, "value of a record"));
      MUST(put_text(txn, dups[e], "many", name));
    }
    MUST(mdb_txn_commit(txn));
  }
  // Two environments with a transaction each at the same time; their handles do not mix.
  MDB_txn* both[2];
  MUST(mdb_txn_begin(env[0], NULL, 0, &both[0]));
  MUST(mdb_txn_begin(env[1], NULL, 0, &both[1]));
  CHECK(mdb_txn_env(both[0]) == env[0] && mdb_txn_env(both[1]) == env[1]);
  CALL(put_text(both[0], dbi[0], "both", "first"));
  CALL(put_text(both[1], dbi[1], "both", "second"));
  MDB_cursor* cursor[2];
  MUST(mdb_cursor_open(both[0], dbi[0], &cursor[0]));
  MUST(mdb_cursor_open(both[1], dbi[1], &cursor[1]));
  CHECK(mdb_cursor_txn(cursor[0]) == both[0] && mdb_cursor_txn(cursor[1]) == both[1]);
  CALL(mdb_txn_commit(both[0]));
  mdb_txn_abort(both[1]);
  for (int e = 0; e < 2; ++e) {
    say("== environment %d", e);
    MUST(mdb_txn_begin(env[e], NULL, MDB_RDONLY, &txn));
    get_text(txn, dbi[e], "both");
    mdb_txn_abort(txn);
    // Stock has no nested transactions with MDB_WRITEMAP.
    if (e == 0) {
      nested(env[e], dbi[e], dups[e]);
      shadowed(env[e], dbi[e]);
      failures(env[e], dbi[e]);
    } else {
      MUST(mdb_txn_begin(env[e], NULL, 0, &txn));
      MDB_txn* child = NULL;
      CALL(mdb_txn_begin(env[e], txn, 0, &child));
      mdb_txn_abort(txn);
    }
    readers(env[e], dbi[e]);
  }
  mdb_env_close(env[0]);
  mdb_env_close(env[1]);
  return 0;
}
