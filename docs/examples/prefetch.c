/* Looks up the keys that it reads from standard input, one on each line.  Passes them to LMDBIO in advance.
 * Runs without the library too: then it is a plain LMDB program.
 *
 *   prefetch DATABASE < KEYS */
#define LMDBIO_WEAK
#include <lmdb.h>
#include <lmdbio/lmdbio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kAhead = 256, kPiece = 64 };

int main(int argc, char** argv) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_val* keys = NULL;
  char line[512];
  size_t n = 0, room = 0, told = 0, found = 0, bytes = 0;
  if (argc != 2) {
    fprintf(stderr, "usage: prefetch DATABASE < KEYS\n");
    return 2;
  }
  while (fgets(line, sizeof line, stdin) != NULL) {
    const size_t size = strcspn(line, "\n");
    if (n == room) {
      room = room * 2 + 1024;
      keys = realloc(keys, room * sizeof *keys);
      if (keys == NULL) return 1;
    }
    if (size == 0) continue; /* LMDB has no empty keys */
    line[size] = '\0';
    keys[n].mv_size = size;
    keys[n++].mv_data = strdup(line);
  }
  if (mdb_env_create(&env) != 0 || mdb_env_open(env, argv[1], MDB_RDONLY, 0) != 0 ||
      mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) != 0 || mdb_dbi_open(txn, NULL, 0, &dbi) != 0) {
    fprintf(stderr, "prefetch: cannot open %s\n", argv[1]);
    return 1;
  }
  for (size_t i = 0; i < n; ++i) {
    MDB_val value;
    if (lmdbio_prefetch && told < n && told < i + kAhead) { /* some hundreds ahead, in pieces */
      const size_t piece = n - told < kPiece ? n - told : kPiece;
      (void)lmdbio_prefetch(txn, dbi, keys + told, piece);
      told += piece;
    }
    if (mdb_get(txn, dbi, &keys[i], &value) != 0) continue;
    ++found;
    bytes += value.mv_size;
  }
  printf("%zu of %zu keys, %zu bytes%s\n", found, n, bytes, lmdbio_prefetch ? ", prefetched" : "");
  mdb_txn_abort(txn);
  mdb_env_close(env);
  for (size_t i = 0; i < n; ++i) free(keys[i].mv_data);
  free(keys);
  return 0;
}
