/* Readers that the ranks of an MPI job share: each byte of a database is read from the file system once, in
 * large requests, and reaches the ranks that use it by MPI.  For C and C++; link with -llmdbio_mpi -llmdbio.
 * See docs/mpi.md.
 *
 * A program that reads by lmdbio.h changes only how it opens its reader:
 *
 *   lmdbio_mpi* mpi;
 *   lmdbio_mpi_init(MPI_COMM_WORLD, NULL, &mpi);                  instead of nothing
 *   lmdbio_mpi_reader_open(mpi, "train_lmdb", NULL, &reader);     instead of lmdbio_reader_open
 *   ...                                                           streams and batches as in lmdbio.h
 *   lmdbio_mpi_finalize(mpi);                                     before MPI_Finalize
 *
 * Functions return 0, an errno or an MDB_ code; lmdbio_error() gives details. */
#ifndef LMDBIO_MPI_H
#define LMDBIO_MPI_H

#include <lmdbio/lmdbio.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ranks of a communicator that read together.
 *
 * Threads: if MPI was initialized with MPI_THREAD_MULTIPLE, any thread may call, and a thread of the library
 * reads, sends and receives ahead while the program computes.  With MPI_THREAD_SERIALIZED any thread may
 * call, but not while another thread is inside of MPI; with MPI_THREAD_FUNNELED and MPI_THREAD_SINGLE only
 * the main thread may call.  Progress is then made inside the calls of this library. */
typedef struct lmdbio_mpi lmdbio_mpi;

/* Zero in a field means its default.  `size` is sizeof(lmdbio_mpi_options).  All ranks pass the same options;
 * otherwise opening a reader fails with EINVAL on all of them.
 *
 * Staggering: readers are in groups of `stagger_group`, in the order of their ranks.  In each group at most
 * `stagger_reads` parts of rounds (up to 4 MiB each) are read at a time; the readers of the group take turns.
 * By default nobody waits for a turn. */
typedef struct lmdbio_mpi_options {
  size_t size;
  unsigned readers_per_node; /* ranks of each node that read the file; default: 1 */
  unsigned timeout;          /* seconds that ranks wait for others to open the same; default: 60 */
  int no_thread;             /* 1: no thread of the library, also with MPI_THREAD_MULTIPLE */
  unsigned stagger_group;    /* readers that take turns; default: no turns */
  unsigned stagger_reads;    /* parts that are read at a time in a group; default: 1 */
} lmdbio_mpi_options;

/* Collective over `comm`, which is duplicated.  `options` may be NULL.  EINVAL: MPI is not initialized, or
 * `comm` is an intercommunicator. */
int lmdbio_mpi_init(MPI_Comm comm, const lmdbio_mpi_options* options, lmdbio_mpi** mpi);

/* Opens a reader as lmdbio_reader_open does.  All ranks open the same database: the same path, the same
 * `database` of the options, and a file with the same size, modification time and meta pages.  All ranks then
 * read the same snapshot.
 *
 * Returns after this rank has opened the file, without waiting for others: opens are matched by path and
 * database, so that threads may open several databases in any order.  The first call that needs records, or
 * lmdbio_mpi_wait, waits for the others.  The ranks also build the record index together, unless all of them
 * find an index file; options->progress is not called.  If a rank cannot open the file, or has another file, or does not
 * open it in time (ETIMEDOUT), that call returns the same error on all ranks, and lmdbio_error() names the
 * rank, its host and the reason.
 *
 * Streams of the reader are opened by all ranks together if the order is this rank's share (`step` is the
 * number of ranks, `offset` the rank, `block` 0, 1 or equal to `batch`), and its kind is not
 * LMDBIO_ORDER_KEYS.  All ranks must open such streams in the same sequence, with the same order but for
 * `offset`, `epoch` and `position`.  With LMDBIO_ORDER_SEQUENTIAL and LMDBIO_ORDER_WINDOW_SHUFFLE the ranks
 * read for each other; with shuffles of all records, lists and functions they do so where an estimate says
 * that this costs less than if each rank reads its records itself.  The batches are those that
 * lmdbio_stream_open of a reader of this rank alone would give.  A rank may close its stream at any time; the
 * others then read for themselves what it would have sent them.
 *
 * Streams of any other order are opened, and their records read, by each rank alone. */
int lmdbio_mpi_reader_open(lmdbio_mpi* mpi, const char* path, const lmdbio_reader_options* options,
                           lmdbio_reader** reader);

/* Waits until all ranks have opened the same database, and its index is there.  Returns 0 at once for a
 * reader of this process alone. */
int lmdbio_mpi_wait(lmdbio_reader* reader);

/* Makes progress, without waiting, if the library has no thread of its own: a program that computes for long
 * may call it now and then. */
int lmdbio_mpi_poll(lmdbio_mpi* mpi);

/* Collective.  Waits for all ranks.  Close streams and readers before; those that are still open can only be
 * closed.  MPI_Finalize does the same for each lmdbio_mpi that was not finalized.  No effect: for NULL, and
 * in a forked child. */
int lmdbio_mpi_finalize(lmdbio_mpi* mpi);

#ifdef __cplusplus
}
#endif

#endif
