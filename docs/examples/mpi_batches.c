/* Each rank of an MPI job prints what it gets of a database that all ranks read together, in two epochs.
 *
 *   cc mpi_batches.c $(pkg-config --cflags --libs lmdbio-mpi) -llmdb -o mpi_batches        (or mpicc)
 *   mpirun -n 4 ./mpi_batches train_lmdb 64 */
#include <lmdbio/mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  lmdbio_mpi* mpi = NULL;
  lmdbio_reader* reader = NULL;
  lmdbio_stream* stream = NULL;
  const lmdbio_batch* batch;
  unsigned long long records = 0, bytes = 0;
  int rank, ranks, level, rc;

  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3) {
    if (rank == 0) fprintf(stderr, "usage: mpi_batches DATABASE BATCH\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  lmdbio_order order = {.size = sizeof order, .batch = strtoull(argv[2], NULL, 10), .end_epoch = 2};
  order.offset = (uint64_t)rank; /* records rank, rank + ranks, rank + 2 ranks, ... */
  order.step = (uint64_t)ranks;

  rc = lmdbio_mpi_init(MPI_COMM_WORLD, NULL, &mpi);
  if (rc == 0) rc = lmdbio_mpi_reader_open(mpi, argv[1], NULL, &reader);
  if (rc == 0) rc = lmdbio_stream_open(reader, &order, &stream);
  while (rc == 0 && (rc = lmdbio_stream_next(stream, &batch)) == 0) {
    for (size_t i = 0; i < batch->count; ++i, ++records) bytes += batch->records[i].value.mv_size;
    lmdbio_batch_release(batch);
  }
  if (rc != MDB_NOTFOUND) { /* the end */
    fprintf(stderr, "rank %d: %s\n", rank, lmdbio_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  printf("rank %d: %llu records, %llu bytes\n", rank, records, bytes);
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
  lmdbio_mpi_finalize(mpi);
  MPI_Finalize();
  return 0;
}
