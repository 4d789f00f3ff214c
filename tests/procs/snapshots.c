// A writer and readers in separate processes.  Every commit keeps what readers check: all databases hold the
// same counter, the sum over the accounts is constant, and each account's long text repeats its number.  A
// reader that mixes pages of two snapshots sees that broken.
//   snapshots make DIR
//   snapshots write DIR        commits until its standard input ends; says at the end how often
//   snapshots read DIR NOTLS SNAPSHOTS ROUNDS
//                              reads at least ROUNDS times, and until it has met SNAPSHOTS different ones
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include "tests/shim/transcript.h"

enum { kDatabases = 4, kAccounts = 300, kEach = 1000, kText = 6000, kOld = 3, kOldRounds = 20 };
static const char* const kNames[kDatabases] = {NULL, "first", "second", "third"};

struct Db {
  MDB_env* env;
  MDB_dbi dbi[kDatabases], dups;
};

static struct Db open_db(const char* dir, unsigned flags, unsigned create) {
  struct Db db;
  MDB_txn* txn;
  MUST(mdb_env_create(&db.env));
  MUST(mdb_env_set_mapsize(db.env, (size_t)1 << 30));
  MUST(mdb_env_set_maxdbs(db.env, 8));
  MUST(mdb_env_open(db.env, dir, flags, 0644));
  MUST(mdb_txn_begin(db.env, NULL, flags & MDB_RDONLY, &txn));
  for (int i = 0; i < kDatabases; ++i) MUST(mdb_dbi_open(txn, kNames[i], i ? create : 0, &db.dbi[i]));
  MUST(
      mdb_dbi_open(txn, "dups", create ? create | MDB_DUPSORT | MDB_DUPFIXED | MDB_INTEGERDUP : 0, &db.dups));
  MUST(mdb_txn_commit(txn));
  return db;
}

static char text_byte(int64_t amount, size_t at) { return (char)((uint64_t)amount * 31 + at % 251); }

static int put_account(MDB_txn* txn, MDB_dbi dbi, unsigned account, int64_t amount) {
  static char value[sizeof amount + kText];
  char name[24];
  snprintf(name, sizeof name, "account-%04u", account);
  // Short and long by turns: values move between leaf pages and overflow pages.
  const size_t n = (uint64_t)(amount + account) % 3 ? 20 : kText;
  memcpy(value, &amount, sizeof amount);
  for (size_t i = 0; i < n; ++i) value[sizeof amount + i] = text_byte(amount, i);
  MDB_val key = text(name), data = {sizeof amount + n, value};
  return mdb_put(txn, dbi, &key, &data, 0);
}

static int get_account(MDB_txn* txn, MDB_dbi dbi, unsigned account, int64_t* amount) {
  char name[24];
  snprintf(name, sizeof name, "account-%04u", account);
  MDB_val key = text(name), data;
  const int rc = mdb_get(txn, dbi, &key, &data);
  if (rc == 0) memcpy(amount, data.mv_data, sizeof *amount);
  return rc;
}

static int put_counter(MDB_txn* txn, const struct Db* db, uint64_t counter) {
  for (int i = 0; i < kDatabases; ++i) {
    MDB_val key = text("counter"), data = {sizeof counter, &counter};
    const int rc = mdb_put(txn, db->dbi[i], &key, &data, 0);
    if (rc != 0) return rc;
  }
  // As many duplicates as counter % 1000, which takes them through every form that duplicates have.
  MDB_val key = text("counter"), data;
  const uint64_t turn = counter % 1000;
  if (turn == 0) {
    const int rc = mdb_del(txn, db->dups, &key, NULL);
    return rc == MDB_NOTFOUND ? 0 : rc;
  }
  data.mv_data = (void*)(uintptr_t)&turn, data.mv_size = sizeof turn;
  return mdb_put(txn, db->dups, &key, &data, 0);
}

static void make(const char* dir) {
  const struct Db db = open_db(dir, MDB_NOSYNC, MDB_CREATE);
  MDB_txn* txn;
  MUST(mdb_txn_begin(db.env, NULL, 0, &txn));
  for (int i = 0; i < kDatabases; ++i)
    for (unsigned a = 0; a < kAccounts; ++a) MUST(put_account(txn, db.dbi[i], a, kEach));
  MUST(put_counter(txn, &db, 0));
  MUST(mdb_txn_commit(txn));
  mdb_env_close(db.env);
}

// Moves money between accounts and databases; gives up (code) when the map is full of what old readers still
// need.
static int one_commit(const struct Db* db, uint64_t counter, unsigned* seed) {
  MDB_txn* txn;
  int rc = mdb_txn_begin(db->env, NULL, 0, &txn);
  if (rc != 0) return rc;
  for (int transfer = 0; transfer < 6 && rc == 0; ++transfer) {
    unsigned pick[5];
    for (int i = 0; i < 5; ++i) pick[i] = (*seed = *seed * 1664525u + 1013904223u) >> 12;
    const MDB_dbi from = db->dbi[pick[0] % kDatabases], to = db->dbi[pick[1] % kDatabases];
    const unsigned giver = pick[2] % kAccounts, taker = pick[3] % kAccounts;
    const int64_t sum = pick[4] % 100;
    int64_t amount = 0;
    if ((rc = get_account(txn, from, giver, &amount)) != 0 ||
        (rc = put_account(txn, from, giver, amount - sum)) != 0)
      break;
    if ((rc = get_account(txn, to, taker, &amount)) == 0) rc = put_account(txn, to, taker, amount + sum);
  }
  if (rc == 0) rc = put_counter(txn, db, counter);
  if (rc == 0) return mdb_txn_commit(txn);
  mdb_txn_abort(txn);
  return rc;
}

static int input_ended(void) {
  struct pollfd p = {0, POLLIN, 0};
  char c;
  return poll(&p, 1, 0) > 0 && read(0, &c, 1) <= 0;
}

static void write_until_told(const char* dir) {
  const struct Db db = open_db(dir, MDB_NOSYNC, 0);
  unsigned seed = 1;
  uint64_t commits = 0, full = 0;
  say("ready");
  fflush(stdout);
  while (!input_ended()) {
    const int rc = one_commit(&db, commits + 1, &seed);
    if (rc == MDB_MAP_FULL) {
      ++full;
      sched_yield();
      continue;
    }
    MUST(rc);
    ++commits;
  }
  mdb_env_close(db.env);
  say("commits %llu full %llu", (unsigned long long)commits, (unsigned long long)full);
}

// -- readers

struct Snapshot {
  MDB_txn* txn;
  uint64_t counter, hash;
  unsigned rounds;
};

// Reads all there is in a transaction and checks it; gives the counter and a hash of everything.
static void verify(const struct Db* db, MDB_txn* txn, uint64_t* counter, uint64_t* hash) {
  int64_t sum = 0;
  uint64_t h = 0, first = 0;
  MDB_val key, data;
  for (int i = 0; i < kDatabases; ++i) {
    MDB_cursor* cursor;
    unsigned accounts = 0;
    int rc;
    MUST(mdb_cursor_open(txn, db->dbi[i], &cursor));
    while ((rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT)) == 0) {
      if (key.mv_size == 12 && memcmp(key.mv_data, "account-", 8) == 0) {
        int64_t amount;
        CHECK(data.mv_size > sizeof amount);
        memcpy(&amount, data.mv_data, sizeof amount);
        const char* const rest = (const char*)data.mv_data + sizeof amount;
        for (size_t k = 0; k < data.mv_size - sizeof amount; ++k) CHECK(rest[k] == text_byte(amount, k));
        sum += amount;
        ++accounts;
        h = h * 31 + (uint64_t)amount + data.mv_size;
      }
    }
    CHECK(rc == MDB_NOTFOUND);
    CHECK(accounts == kAccounts);
    mdb_cursor_close(cursor);
    key = text("counter");
    MUST(mdb_get(txn, db->dbi[i], &key, &data));
    uint64_t c;
    CHECK(data.mv_size == sizeof c);
    memcpy(&c, data.mv_data, sizeof c);
    if (i == 0) first = c;
    CHECK(c == first);
  }
  CHECK(sum == (int64_t)kDatabases * kAccounts * kEach);
  MDB_cursor* cursor;
  MUST(mdb_cursor_open(txn, db->dups, &cursor));
  key = text("counter");
  uint64_t dups = 0;
  int rc = mdb_cursor_get(cursor, &key, &data, MDB_SET);
  while (rc == 0) {
    uint64_t value;
    memcpy(&value, data.mv_data, sizeof value);
    CHECK(value == ++dups);
    rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT_DUP);
  }
  CHECK(rc == MDB_NOTFOUND && dups == first % 1000);
  mdb_cursor_close(cursor);
  *counter = first;
  *hash = h;
}

static void read_rounds(const char* dir, int notls, unsigned snapshots, unsigned rounds) {
  const struct Db db = open_db(dir, MDB_RDONLY | (notls ? MDB_NOTLS : 0), 0);
  struct Snapshot old[kOld] = {{0}};
  MDB_txn* txn = NULL;
  unsigned met = 0, done = 0, old_checks = 0;
  uint64_t last = 0;
  while (done < rounds || met < snapshots) {
    CHECK(done < 1000 * (rounds + snapshots));  // the writer has stopped
    if (txn)
      MUST(mdb_txn_renew(txn));
    else
      MUST(mdb_txn_begin(db.env, NULL, MDB_RDONLY, &txn));
    uint64_t counter, hash;
    verify(&db, txn, &counter, &hash);
    CHECK(counter >= last);                 // never back in time
    CHECK(counter + 2 == mdb_txn_id(txn));  // "make" committed twice, then one each
    if (counter > last || met == 0) ++met;
    last = counter;
    ++done;
    if (!notls) {
      // A thread has one transaction: begun anew at times, renewed else.
      mdb_txn_reset(txn);
      if (done % 3 == 0) mdb_txn_abort(txn), txn = NULL;
      continue;
    }
    struct Snapshot* const keep = &old[done % kOld];
    if (keep->txn) {
      uint64_t again_counter, again_hash;
      verify(&db, keep->txn, &again_counter, &again_hash);
      CHECK(again_counter == keep->counter && again_hash == keep->hash);
      ++old_checks;
      if (++keep->rounds == kOldRounds) mdb_txn_abort(keep->txn), keep->txn = NULL;
      mdb_txn_reset(txn);
    } else {
      keep->txn = txn, keep->counter = counter, keep->hash = hash, keep->rounds = 0;
      txn = NULL;
    }
  }
  for (int i = 0; i < kOld; ++i)
    if (old[i].txn) mdb_txn_abort(old[i].txn);
  if (txn) mdb_txn_abort(txn);
  mdb_env_close(db.env);
  say("rounds %u snapshots %u old %u", done, met, old_checks);
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "make") == 0)
    make(argv[2]);
  else if (argc == 3 && strcmp(argv[1], "write") == 0)
    write_until_told(argv[2]);
  else if (argc == 6 && strcmp(argv[1], "read") == 0)
    read_rounds(argv[2], atoi(argv[3]), (unsigned)atoi(argv[4]), (unsigned)atoi(argv[5]));
  else
    return 2;
  return 0;
}
