/* An MPI program that knows nothing of LMDBIO.  Each rank walks over all records and takes every `ranks`-th of them.
 *
 *   serve_reader FILE
 *
 * Rank 0 prints a line of JSON: the number of records, and the exclusive or of the CRC-32 of their values. */
#include <lmdb.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>

static uint32_t crc_of(const unsigned char* bytes, size_t n) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < n; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
  if (argc != 2 || mdb_env_create(&env) != 0 || mdb_env_open(env, argv[1], MDB_RDONLY | MDB_NOSUBDIR | MDB_NOLOCK, 0) != 0 ||
      mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) != 0 || mdb_dbi_open(txn, NULL, 0, &dbi) != 0 ||
      mdb_cursor_open(txn, dbi, &cursor) != 0)
    MPI_Abort(MPI_COMM_WORLD, 1);
  uint64_t mine[2] = {0, 0}, all[2];
  MDB_val key, value;
  int at = 0;
  while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
    if (at++ % ranks != rank) continue;
    mine[0] ^= crc_of(value.mv_data, value.mv_size);
    ++mine[1];
  }
  MPI_Reduce(&mine[0], &all[0], 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
  MPI_Reduce(&mine[1], &all[1], 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("{\"sum\": %llu, \"records\": %llu}\n", (unsigned long long)all[0], (unsigned long long)all[1]);
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  MPI_Finalize();
  return 0;
}
