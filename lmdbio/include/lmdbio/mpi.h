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

#include <lmdbio/follow.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The ranks of a communicator that read together.
 *
 * Threads: with MPI_THREAD_MULTIPLE, any thread may call this library.  A thread of the library then reads,
 * sends and receives ahead while the program computes.  With MPI_THREAD_SERIALIZED, any thread may call the
 * library, but not while another thread is inside MPI.  With MPI_THREAD_FUNNELED and MPI_THREAD_SINGLE, only
 * the main thread may call it.  Without MPI_THREAD_MULTIPLE, the library makes progress only inside its
 * calls. */
typedef struct lmdbio_mpi lmdbio_mpi;

/** Options.  Zero in a field means its default.  `readers_per_node`, `stagger_group` and `stagger_reads` must
 * be the same on all ranks; otherwise opening a reader fails with EINVAL on all ranks.
 *
 * Staggering: the ranks that read form groups of `stagger_group`, in the order of their ranks.  The ranks of
 * a group take turns, and read at most `stagger_reads` parts of rounds (about 4 MiB each) at a time.  By
 * default, no rank waits for a turn. */
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
 * @return 0; EINVAL: MPI is not initialized, `comm` is an intercommunicator, `size` is invalid, or an unknown
 * field of the options is not 0; ENOTSUP: liblmdbio.so has another version; EIO: a call of MPI failed;
 * ETIMEDOUT: not all ranks called within `timeout`; do not use `comm` for collective calls after that. */
int lmdbio_mpi_init(MPI_Comm comm, const lmdbio_mpi_options* options, lmdbio_mpi** mpi);

/** Returns the state for all ranks of MPI_COMM_WORLD.  All callers of this process share it.  For plug-ins of
 * programs that may or may not use MPI, for example the backend for Caffe.
 *
 * The first call creates the state, and waits until all ranks of MPI_COMM_WORLD have called this function.
 * The call does not interfere with collective calls of other threads on MPI_COMM_WORLD.  Any thread.
 * @param mpi    receives the state.  MPI_Finalize ends it; it must not be given to lmdbio_mpi_finalize
 * @param rank   receives the rank of this process
 * @param ranks  receives the number of ranks
 * @return 0; ENOTSUP: LMDBIO_MPI is not 1, or MPI was not initialized with MPI_THREAD_MULTIPLE; EINVAL: this
 * is a forked child. */
int lmdbio_mpi_world(lmdbio_mpi** mpi, int* rank, int* ranks);

/** Returns the number of nodes that the ranks run on.  On one node, processes that read by LMDB's calls share
 * their reads without MPI (docs/operations.md).  Any thread.
 * @param mpi  the state, or NULL
 * @return the number of nodes; 0 for NULL. */
unsigned lmdbio_mpi_nodes(const lmdbio_mpi* mpi);

/** Opens a reader as lmdbio_reader_open does, together with the other ranks.  All ranks open the same
 * database: the same path, the same `database` of the options, and a file with the same size, modification
 * time and meta pages.  All ranks then read the same snapshot.
 *
 * Returns after this rank has opened the file, and does not wait for other ranks.  The ranks match their
 * opens by path and database, so that threads may open several databases in any order.  The first call that
 * needs records or their number waits for the other ranks, and so does lmdbio_mpi_wait.  The ranks build the
 * record index together, unless all of them find an index file.  In a job of several ranks, options->progress
 * is not called.
 *
 * All ranks open a stream together if its order is the share of this rank, and if its kind is not
 * LMDBIO_ORDER_KEYS.  The order is the share of this rank if `step` is the number of ranks, `offset` is the
 * rank, and `block` is 0, 1 or equal to `batch`.  All ranks must open these streams in the same sequence and
 * with the same order.  Only `offset`, `epoch` and `position` may differ.  All ranks must have the same end:
 * the same nonzero `end_epoch`, or an `end_epoch` of 0 and the same `epoch`.  A rank that has read all its
 * records must open the stream, too, and gets an empty stream.
 *
 * The ranks read for each other with LMDBIO_ORDER_SEQUENTIAL, and with LMDBIO_ORDER_WINDOW_SHUFFLE unless the
 * window is large.  With all other kinds and with large windows, they read for each other only if an estimate
 * says that this costs less (docs/mpi.md).  A stream returns the same batches as a stream of a reader of one
 * process.  A rank may close its stream at any time.  The other ranks then read the records themselves that
 * this rank would have sent.
 *
 * With any other order, each rank opens its stream alone, and reads its records itself.
 *
 * @param mpi      the state of the ranks
 * @param path     as for lmdbio_reader_open; the same text on all ranks
 * @param options  may be NULL
 * @param reader   receives the reader, which the program must close
 * @return 0, or the error of this rank.  A later call that waits for the other ranks returns their errors:
 * another rank cannot open the file, has a different file, or does not open it in time (ETIMEDOUT).  All
 * ranks get the same error.  lmdbio_error() names the rank, its host and the reason. */
int lmdbio_mpi_reader_open(lmdbio_mpi* mpi, const char* path, const lmdbio_reader_options* options,
                           lmdbio_reader** reader);

/** Opens a database as lmdbio_follow_open does, together with the other ranks, and waits for them.  The
 * batches are those of one process, and each rank gets its share of each batch: element i of a batch (first
 * its new records, then its old ones) belongs to rank i modulo the number of ranks.  A share may be empty.
 * lmdbio_batch::position is the same on all ranks.
 *
 * Rank 0 renews the snapshot, and holds it until no rank uses it.  Each call of lmdbio_follow_next on rank 0
 * decides how the call with the same number ends on the other ranks: with a batch, with MDB_NOTFOUND, with
 * ETIMEDOUT, or with a permanent error of rank 0.  The others wait for it, without a time limit.  A rank that
 * cannot read its share, or a new snapshot, gets an error alone.  lmdbio_follow_cancel on rank 0 ends the
 * waits of all ranks.
 *
 * lmdbio_follow_state returns the same state on all ranks that have returned the same batches.  Any number of
 * ranks can continue from it.  All ranks must then be given the same state.
 *
 * lmdbio_follow_close on rank 0 waits, for at most `timeout` of lmdbio_mpi_options, until the other ranks
 * have read the batches that rank 0 has returned, or have closed their objects.  If they have not, or if
 * lmdbio_follow_cancel was called, the environment stays open until then, and the process must not open it
 * again.  After that, calls of the other ranks return ECANCELED.  If another rank closes its object, its
 * shares of later batches are not read.
 *
 * Thread rules are those of lmdbio_mpi.
 * @param mpi      the state of the ranks
 * @param path     as for lmdbio_follow_open; the same text on all ranks
 * @param options  the same on all ranks, with these exceptions: on_empty, timeout, renew_batches and
 *                 renew_seconds matter only on rank 0.  `label` must return the same labels on all ranks
 * @param follow   receives the object for the functions of follow.h, which the program must close before
 *                 lmdbio_mpi_finalize
 * @return 0; errors of lmdbio_follow_open; EINVAL: options or states differ, or this thread must not call
 * MPI; ESTALE: a rank sees another file; ETIMEDOUT: a rank did not call the function within `timeout`; EIO.
 * An error of rank 0 and an error of opening the file is the same on all ranks. */
int lmdbio_mpi_follow_open(lmdbio_mpi* mpi, const char* path, const lmdbio_follow_options* options,
                           lmdbio_follow** follow);

/** Waits until all ranks have opened the database of this reader and its record index is complete.
 * @param reader  the reader.  If lmdbio_mpi_reader_open did not open it, the function returns 0 at once
 * @return 0, or the error of lmdbio_mpi_reader_open, the same on all ranks. */
int lmdbio_mpi_wait(lmdbio_reader* reader);

/** Makes progress if the library has no thread of its own.  Does not wait.  A program may call it from time
 * to time during a long computation.
 * @param mpi  the state of the ranks
 * @return 0; EINVAL: this thread must not call MPI, this is a forked child, or lmdbio_mpi_finalize was
 * called. */
int lmdbio_mpi_poll(lmdbio_mpi* mpi);

/** Ends the state, and waits for all ranks.  Collective.  Close streams and readers first.  Streams and
 * readers that are still open can be closed afterwards, but not used.  MPI_Finalize does the same for each
 * lmdbio_mpi that was not finalized.  In a forked child, this function has no effect.
 * @param mpi  the state of the ranks; NULL: no effect
 * @return 0; EIO: messages between the ranks have failed. */
int lmdbio_mpi_finalize(lmdbio_mpi* mpi);

#ifdef __cplusplus
}
#endif

#endif
