// Databases whose every byte is known, as large as one likes: written once, checked by whoever reads them.
#ifndef LMDBIO_TESTS_PROCS_KNOWN_H_
#define LMDBIO_TESTS_PROCS_KNOWN_H_

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/procs/known_bytes.h"
#include "tests/shim/transcript.h"

struct Known {
  size_t records;
  size_t bytes;        ///< of a value, at most
  size_t large_every;  ///< 0: all values have `bytes`; else only one in so many, the others are small
};

__attribute__((unused)) static size_t known_size(const struct Known* k, uint64_t i) {
  if (k->large_every == 0) return k->bytes;
  return i % k->large_every == 0 ? k->bytes - i % 100 : 40 + i % 300;
}

__attribute__((unused)) static int right_record(const struct Known* k, uint64_t i, const MDB_val* key,
                                                const MDB_val* data) {
  return number_of(key) == i && data->mv_size == known_size(k, i) &&
         is_known(i, 0, data->mv_data, data->mv_size);
}

// Pages of a file leave the page cache, once they are on disk.
__attribute__((unused)) static void evict(const char* dir) {
  char path[4096];
  snprintf(path, sizeof path, "%s/data.mdb", dir);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0 && fdatasync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
  close(fd);
}

// `version`: others have other bytes.
__attribute__((unused)) static void make_known_version(const char* dir, const struct Known* k,
                                                       uint64_t version) {
  enum { kBatch = 64 << 20 };
  MDB_env* env;
  MDB_txn* txn = NULL;
  MDB_dbi dbi;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, ((k->bytes + 200) * k->records * 2 + (64u << 20)) & ~(size_t)4095));
  MUST(mdb_env_open(env, dir, MDB_NOSYNC | MDB_NOMETASYNC, 0644));
  char* const value = malloc(k->bytes + 8);
  CHECK(value != NULL);
  size_t pending = 0;
  for (size_t i = 0; i < k->records; ++i) {
    if (txn == NULL) {
      MUST(mdb_txn_begin(env, NULL, 0, &txn));
      MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
    }
    unsigned char name[8];
    MDB_val key = known_key(i, &name), data = {known_size(k, i), value};
    fill_known(i, version, value, data.mv_size);
    MUST(mdb_put(txn, dbi, &key, &data, MDB_APPEND));
    if ((pending += data.mv_size + 16) < kBatch) continue;
    MUST(mdb_txn_commit(txn));
    txn = NULL;
    pending = 0;
  }
  if (txn != NULL) MUST(mdb_txn_commit(txn));
  free(value);
  mdb_env_close(env);
  evict(dir);
}

__attribute__((unused)) static void make_known(const char* dir, const struct Known* k) {
  make_known_version(dir, k, 0);
}

// A number in a file like /proc/self/status: "Name:   123 kB" or "name 123"; 0: not there.
__attribute__((unused)) static size_t number_in(const char* path, const char* name) {
  FILE* const f = fopen(path, "re");
  if (f == NULL) return 0;
  char line[256];
  const size_t n = strlen(name);
  size_t value = 0;
  while (fgets(line, sizeof line, f) != NULL)
    if (strncmp(line, name, n) == 0 && (line[n] == ':' || line[n] == ' '))
      value = strtoull(line + n + 1, NULL, 10);
  fclose(f);
  return value;
}

__attribute__((unused)) static size_t vmas_now(void) {
  FILE* const f = fopen("/proc/self/maps", "re");
  if (f == NULL) return 0;
  size_t n = 0;
  for (int c; (c = getc_unlocked(f)) != EOF;) n += c == '\n';
  fclose(f);
  return n;
}

#endif
