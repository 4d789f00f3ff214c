/** @file
 * Readers that the ranks of an MPI job share.  Normally one rank reads each record from the file system, in
 * large requests, and sends it by MPI to the rank that uses it.  For C and C++; link with -llmdbio_mpi and
 * -llmdbio.  See docs/mpi.md.
 *
 * A program that reads by lmdbio.h changes only how it opens its reader:
 *
 *   lmdbio_mpi* mpi;
 *   lmdbio_mpi_init(MPI_COMM_WORLD, NULL, &mpi);                  instead of nothing
 *   lmdbio_mpi_reader_open(mpi, "train_lmdb", NULL, &reader);     instead of lmdbio_reader_open
 *   ...                                                           streams and batches as in lmdbio.h
 *   lmdbio_mpi_finalize(mpi);                                     before MPI_Finalize
 *
 * Functions return 0, an errno or an MDB_ code; lmdbio_error() describes the failure. */
#ifndef LMDBIO_MPI_H
#define LMDBIO_MPI_H

#include <lmdbio/lmdbio.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The ranks of a communicator that read together.
 *
 * Threads: if MPI was initialized with MPI_THREAD_MULTIPLE, any thread may call, and a thread of the library
 * reads, sends and receives ahead while the program computes.  With MPI_THREAD_SERIALIZED any thread may
 * call, but not while another thread is inside MPI; with MPI_THREAD_FUNNELED and MPI_THREAD_SINGLE only
 * the main thread may call.  Progress is then made inside the calls of this library. */
typedef struct lmdbio_mpi lmdbio_mpi;

/** Options.  Zero in a field means its default.  `readers_per_node`, `stagger_group` and `stagger_reads` must
 * be the same on all ranks; otherwise opening a reader fails with EINVAL on all of them.
 *
 * Staggering: the ranks that read form groups of `stagger_group`, in the order of their ranks.  In each group
 * at most `stagger_reads` parts of rounds (about 4 MiB each) are read at a time, and the ranks of the group
 * take turns.  By default no rank waits for a turn. */
typedef struct lmdbio_mpi_options {
  size_t size;               /**< sizeof(lmdbio_mpi_options) */
  unsigned readers_per_node; /**< number of ranks of each node that read the file; 0: 1 */
  unsigned timeout;       /**< seconds to wait for all ranks, in lmdbio_mpi_init and until they have opened a
                               reader or a stream; 0: 60 */
  int no_thread;          /**< 1: no progress thread, even with MPI_THREAD_MULTIPLE */
  unsigned stagger_group; /**< number of reading ranks that take turns; 0: no turns */
  unsigned stagger_reads; /**< number of parts that a group reads at a time; 0: 1 */
} lmdbio_mpi_options;

/** Creates the state for all ranks of a communicator.  Collective.
 * @param comm     an intracommunicator, which is duplicated
 * @param options  may be NULL
 * @param mpi      receives the state, which lmdbio_mpi_finalize or MPI_Finalize ends
 * @return 0; EINVAL: MPI is not initialized, `comm` is an intercommunicator, or a field of the options is
 * unknown; ENOTSUP: liblmdbio.so has another version; EIO: a call of MPI failed; ETIMEDOUT: not all ranks
 * called within `timeout`; do not use `comm` for collective calls after that. */
int lmdbio_mpi_init(MPI_Comm comm, const lmdbio_mpi_options* options, lmdbio_mpi** mpi);

/** Returns the state for all ranks of MPI_COMM_WORLD that all callers of this process share.  For plug-ins of
 * programs that may or may not use MPI, such as the backend for Caffe.
 *
 * The first call creates it, and waits until all ranks of MPI_COMM_WORLD have called.  It does not interfere
 * with collective calls of other threads on MPI_COMM_WORLD.  Any thread.
 * @param mpi    receives the state.  MPI_Finalize ends it; it must not be given to lmdbio_mpi_finalize
 * @param rank   receives the rank of this process
 * @param ranks  receives the number of ranks
 * @return 0; ENOTSUP: LMDBIO_MPI is not 1, MPI is not initialized, or not with MPI_THREAD_MULTIPLE; EINVAL:
 * in a forked child. */
int lmdbio_mpi_world(lmdbio_mpi** mpi, int* rank, int* ranks);

/** Returns the number of nodes that the ranks run on.  With one node, processes that read by LMDB's calls
 * share what they read without MPI (docs/operations.md).  Any thread.
 * @param mpi  the state, or NULL
 * @return the number of nodes; 0 for NULL. */
unsigned lmdbio_mpi_nodes(const lmdbio_mpi* mpi);

/** Opens a reader as lmdbio_reader_open does, together with the other ranks.  All ranks open the same
 * database: the same path, the same `database` of the options, and a file with the same size, modification
 * time and meta pages.  All ranks then read the same snapshot.
 *
 * Returns after this rank has opened the file, without waiting for others: opens are matched by path and
 * database, so that threads may open several databases in any order.  The first call that needs records or
 * their number, or lmdbio_mpi_wait, waits for the others.  The ranks also build the record index together,
 * unless all of them find an index file.  In a job of several ranks, options->progress is not called.
 *
 * Streams of the reader are opened by all ranks together if the order is this rank's share (`step` is the
 * number of ranks, `offset` the rank, `block` 0, 1 or equal to `batch`), and its kind is not
 * LMDBIO_ORDER_KEYS.  All ranks must open such streams in the same sequence and with the same order.  Only
 * `offset`, `epoch` and `position` may differ, and all ranks must have the same end: the same nonzero
 * `end_epoch`, or an `end_epoch` of 0 and the same `epoch`.  A rank that has read all its records opens the
 * stream, too, and gets an empty one.
 *
 * With LMDBIO_ORDER_SEQUENTIAL, and with LMDBIO_ORDER_WINDOW_SHUFFLE unless the window is large, the ranks
 * read for each other.  With all other kinds and with large windows they do so only if an estimate says that
 * this costs less (docs/mpi.md).  A stream returns the same batches as that of a reader of one process.  A
 * rank may close its stream at any time; the others then read for themselves what it would have sent them.
 *
 * Streams of any other order are opened, and their records read, by each rank alone.
 *
 * @param mpi      the state of the ranks
 * @param path     as for lmdbio_reader_open; the same text on all ranks
 * @param options  may be NULL
 * @param reader   receives the reader, which the program must close
 * @return 0, or the error of this rank, at once.  If another rank cannot open the file, has another file, or
 * does not open it in time (ETIMEDOUT), the call that waits returns an error, the same on all ranks.
 * lmdbio_error() then names the rank, its host and the reason. */
int lmdbio_mpi_reader_open(lmdbio_mpi* mpi, const char* path, const lmdbio_reader_options* options,
                           lmdbio_reader** reader);

/** Waits until all ranks have opened the database of this reader and its record index is complete.
 * @param reader  the reader.  Returns 0 at once for one that was not opened by lmdbio_mpi_reader_open
 * @return 0, or the error of opening, the same on all ranks. */
int lmdbio_mpi_wait(lmdbio_reader* reader);

/** Makes progress, without waiting, if the library has no thread of its own.  A program that computes for
 * long may call it now and then.
 * @param mpi  the state of the ranks
 * @return 0; EINVAL: wrong thread, forked child, or after lmdbio_mpi_finalize. */
int lmdbio_mpi_poll(lmdbio_mpi* mpi);

/** Ends the state, and waits for all ranks.  Collective.  Close streams and readers first; those that are
 * still open afterwards can be closed, but not used.  MPI_Finalize does the same for each lmdbio_mpi that was
 * not finalized.  In a forked child, it has no effect.
 * @param mpi  the state of the ranks; NULL: no effect
 * @return 0; EIO: messages between the ranks had failed. */
int lmdbio_mpi_finalize(lmdbio_mpi* mpi);

#ifdef __cplusplus
}
#endif

#endif
