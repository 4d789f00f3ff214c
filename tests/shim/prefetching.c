/* A program that tells LMDBIO what it will look up, where there is one: prefetching MODE PATH.
 *
 * make      writes the database: values of 1 to 20,000 bytes, a named one and one with duplicates beside it
 * read      looks everything up in random orders, prefetched, and prints what it finds; also what
 * lmdbio_prefetch answers to what is wrong write     the same calls in a write transaction */
#define LMDBIO_WEAK
#include <errno.h>
#include <fcntl.h>
#include <lmdbio/lmdbio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(ok)                                      \
  do {                                                 \
    if (!(ok)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #ok); \
      exit(1);                                         \
    }                                                  \
  } while (0)

enum { kRecords = 1200, kAhead = 200, kPiece = 50 };

static unsigned mix(unsigned x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
static size_t size_of(unsigned i) { return 1 + mix(i) % (i % 3 == 0 ? 20000u : 3000u); }

static MDB_val key_of(unsigned i, char* text) {
  const MDB_val v = {(size_t)snprintf(text, 16, "%06u", i), text};
  return v;
}

static int tell(MDB_txn* txn, MDB_dbi dbi, const MDB_val* keys, size_t n) {
  return lmdbio_prefetch != NULL ? lmdbio_prefetch(txn, dbi, keys, n) : 0;
}
/* What it answers where it is there. */
static void expect(int got, int wanted) { CHECK(got == (lmdbio_prefetch != NULL ? wanted : 0)); }

static unsigned hash(const MDB_val* v) {
  unsigned h = 1;
  for (size_t i = 0; i < v->mv_size; ++i) h = h * 31 + ((const unsigned char*)v->mv_data)[i];
  return h;
}

static void make(MDB_env* env) {
  static char value[20001];
  MDB_txn* txn;
  CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0);
  MDB_dbi main_db, named, dups;
  CHECK(mdb_dbi_open(txn, NULL, 0, &main_db) == 0 && mdb_dbi_open(txn, "named", MDB_CREATE, &named) == 0 &&
        mdb_dbi_open(txn, "dups", MDB_CREATE | MDB_DUPSORT, &dups) == 0);
  for (unsigned i = 0; i < kRecords; ++i) {
    char text[16];
    MDB_val k = key_of(i, text), v = {size_of(i), value};
    memset(value, (int)i, sizeof value);
    CHECK(mdb_put(txn, main_db, &k, &v, 0) == 0);
    if (i % 4 == 0) CHECK(mdb_put(txn, named, &k, &v, 0) == 0);
    if (i % 4 != 1) continue;
    for (unsigned d = 0; d < i % 7 + 1; ++d) {
      MDB_val item = {5 + d, value};
      CHECK(mdb_put(txn, dups, &k, &item, 0) == 0);
    }
  }
  CHECK(mdb_txn_commit(txn) == 0);
}

/* Random lookups, also of keys that are not there, prefetched. */
static void look_up(MDB_txn* txn, MDB_dbi dbi, unsigned seed, const char* name) {
  static char texts[kAhead + kPiece][16];
  static MDB_val keys[kAhead + kPiece], held[kRecords];
  static unsigned hashes[kRecords];
  unsigned asked = 0, sum = 0, found = 0, n = 0;
  for (unsigned i = 0; i < kRecords; ++i) {
    if (asked < kRecords && asked + kPiece <= i + kAhead) {
      unsigned count = 0;
      for (; asked < i + kAhead && asked < kRecords; ++asked, ++count)
        keys[count] = key_of(mix(seed * kRecords + asked) % (kRecords + 300), texts[count]);
      CHECK(tell(txn, dbi, keys, count) == 0);
    }
    char text[16];
    MDB_val k = key_of(mix(seed * kRecords + i) % (kRecords + 300), text), v;
    errno = 77;
    const int rc = mdb_get(txn, dbi, &k, &v);
    CHECK(errno == 77);
    CHECK(rc == 0 || rc == MDB_NOTFOUND);
    if (rc != 0) continue;
    ++found;
    sum = sum * 31 + hash(&v);
    held[n] = v;
    hashes[n++] = hash(&v);
  }
  for (unsigned i = 0; i < n; ++i) CHECK(hash(&held[i]) == hashes[i]); /* still what they were */
  printf("%s seed %u: %u found, %08x\n", name, seed, found, sum);
}

static void misuse(MDB_env* env, MDB_txn* txn) {
  char text[16];
  MDB_val k = key_of(1, text), none = {0, text}, v;
  expect(tell(NULL, 1, &k, 1), EINVAL);
  expect(tell(txn, 1, NULL, 1), EINVAL);
  expect(tell(txn, 1, NULL, 0), 0);
  expect(tell(txn, 99, &k, 1), EINVAL);
  expect(tell(txn, 1, &none, 1), MDB_BAD_VALSIZE);
  CHECK(mdb_get(txn, 1, &k, &v) == 0);
  if (lmdbio_txn_in != NULL) {
    void* words[3] = {env, NULL, txn};
    MDB_txn* const in = lmdbio_txn_in(words, sizeof words);
    CHECK(in == NULL || in == txn);
    CHECK(lmdbio_txn_in(words, 2 * sizeof words[0]) == NULL && lmdbio_txn_in(NULL, 0) == NULL);
  }
}

static void read_all(MDB_env* env, const char* path) {
  MDB_txn* txn;
  MDB_dbi main_db, named, dups;
  CHECK(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0);
  CHECK(mdb_dbi_open(txn, NULL, 0, &main_db) == 0 && mdb_dbi_open(txn, "named", 0, &named) == 0 &&
        mdb_dbi_open(txn, "dups", 0, &dups) == 0);
  misuse(env, txn);
  CHECK(mdb_txn_commit(txn) == 0);
  for (unsigned seed = 1; seed < 4; ++seed) {
    const int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && close(fd) == 0);
    CHECK(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0);
    look_up(txn, named, seed, "named"); /* handles of an earlier transaction: looked up by name */
    look_up(txn, main_db, seed, "main");
    look_up(txn, dups, seed, "dups");
    if (seed == 2) {
      mdb_txn_reset(txn);
      char text[16];
      MDB_val k = key_of(1, text), v;
      const int rc = mdb_get(txn, main_db, &k, &v);
      CHECK(rc != 0);
      expect(tell(txn, main_db, &k, 1), rc);
      CHECK(mdb_txn_renew(txn) == 0);
      look_up(txn, main_db, seed + 7, "renewed");
    }
    if (seed == 3) {
      fflush(stdout);
      const pid_t pid = fork();
      if (pid == 0) {
        look_up(txn, main_db, 9, "child");
        mdb_txn_abort(txn);
        mdb_env_close(env);
        fflush(stdout);
        _exit(0);
      }
      int status = 0;
      CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
      look_up(txn, main_db, 9, "parent");
    }
    mdb_txn_abort(txn);
  }
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  MDB_env* env;
  CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 4) == 0 &&
        mdb_env_set_mapsize(env, (size_t)256 << 20) == 0);
  const int reads = strcmp(argv[1], "read") == 0;
  CHECK(mdb_env_open(env, argv[2], MDB_NOSUBDIR | (reads ? MDB_RDONLY : 0), 0644) == 0);
  if (strcmp(argv[1], "make") == 0) make(env);
  if (reads) read_all(env, argv[2]);
  if (strcmp(argv[1], "write") == 0) {
    MDB_txn* txn;
    MDB_dbi dbi;
    CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0 && mdb_dbi_open(txn, NULL, 0, &dbi) == 0);
    misuse(env, txn);
    look_up(txn, dbi, 5, "write");
    mdb_txn_abort(txn);
  }
  mdb_env_close(env);
  return 0;
}
