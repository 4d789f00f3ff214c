/** @file
 * LMDBIO's own functions, beyond LMDB's interface (lmdb.h).  For C and C++; reader.h in this directory is the
 * interface for C++20.
 *
 * A program can tell LMDBIO in advance what it will read, in two ways:
 *
 *   lmdbio_prefetch     for programs that call mdb_get: names the keys that will be looked up soon;
 *   lmdbio_reader       returns records by ordinal or key, in batches, in an order that is known in advance.
 *                       Values are read into buffers that are reused, so that memory use is bounded.
 *
 * Unless noted otherwise, functions return 0, an errno or an MDB_ code (mdb_strerror knows both), and
 * lmdbio_error() describes the failure.  A failed call stores nothing through its pointer arguments.  These
 * functions return EINVAL if an argument is NULL that may not be NULL, and ENOMEM if memory is short. */
#ifndef LMDBIO_LMDBIO_H
#define LMDBIO_LMDBIO_H

#include <lmdb.h>
#include <stddef.h>
#include <stdint.h>

/* A program that must also run without the library defines LMDBIO_WEAK before it includes this header, and
 * tests the address of a function before calling it: if (lmdbio_prefetch) ... */
#ifdef LMDBIO_WEAK
#define LMDBIO_API __attribute__((weak))
#else
#define LMDBIO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Returns the version of the library.  Any thread.
 * @return "major.minor.patch"; a constant string. */
LMDBIO_API const char* lmdbio_version(void);

/** Tells whether LMDBIO is switched off.  Any thread.
 * @return 1 if LMDBIO_DISABLE is set, so that all calls of LMDB go to the real library; otherwise 0. */
LMDBIO_API int lmdbio_disabled(void);

/** Looks for a module of this process that contains an LMDB 0.9 that LMDBIO does not serve, because of how
 * the module was linked.  Modules that hide the functions of their LMDB are not found.  Any thread.
 * @param path   receives the path of the module, with a null byte
 * @param bytes  size of the array at `path`; a longer path is cut off
 * @return 1 if there is such a module; otherwise 0. */
LMDBIO_API int lmdbio_unreached(char* path, size_t bytes);

/** Describes the last failed lmdbio_ call of this thread.
 * @return one line that names the file and the reason, or "" if no call has failed.  The text is valid until
 * the thread's next lmdbio_ call that fails. */
LMDBIO_API const char* lmdbio_error(void);

/* ---- prefetching, for mdb_get -------------------------------------------------------------------------- */

/** Announces that the program will soon look up these keys by mdb_get in this transaction.
 *
 * LMDBIO starts to read their values, many at a time.  mdb_get then returns them without a page fault, or
 * waits for the pending read.  It works best to announce some hundreds of keys ahead, as the program
 * proceeds.
 *
 * This is only a hint: the results of mdb_get do not change.  LMDBIO reads nothing ahead if the data is in
 * memory already, if there is not enough memory, or if it does not serve the environment.  Values stay valid
 * until the transaction ends, as always.  Prefetched values take private memory until then, within
 * LMDBIO_MEMORY.  The call may wait for tree pages (a few round trips), but not for values.  LMDB's thread
 * rules for the transaction apply.
 *
 * @param txn   a read transaction
 * @param dbi   a database of its environment
 * @param keys  `n` keys, which are copied.  Keys that do not exist or are never looked up cost only their
 *              reads.  A key may occur more than once.  May be NULL if `n` is 0
 * @param n     number of keys
 * @return 0; EINVAL: there is no such transaction or database, or `keys` is NULL; MDB_BAD_TXN;
 * MDB_BAD_VALSIZE: a key is empty. */
LMDBIO_API int lmdbio_prefetch(MDB_txn* txn, MDB_dbi dbi, const MDB_val* keys, size_t n);

/** Finds a transaction inside an object of another library.  For language bindings, which keep their MDB_txn*
 * inside an object of their own.  Compares all aligned pointers in the object with the transactions that
 * LMDBIO serves, and never dereferences anything else.  Any thread.
 * @param object  the object
 * @param bytes   its size
 * @return the transaction, or NULL if there is none. */
LMDBIO_API MDB_txn* lmdbio_txn_in(const void* object, size_t bytes);

/** A function that is called while a call waits; see lmdbio_set_interrupt.  It may call the library, but not
 * for the same stream.
 * @param context  the argument of lmdbio_set_interrupt
 * @return 0 to continue.  Otherwise the call that waits fails with ECANCELED, and the next call continues
 * where this one was. */
typedef int lmdbio_interrupt_func(void* context);
/** Sets the function that is called about every 0.1 s while a call of this thread on a reader or a stream
 * waits.  For language bindings, whose signal handlers run only in the interpreter.  Waits for other ranks
 * (lmdbio/mpi.h) do not call it.
 * @param function  the function, for this thread only; NULL, the default: none
 * @param context   passed to the function; may be NULL */
LMDBIO_API void lmdbio_set_interrupt(lmdbio_interrupt_func* function, void* context);
/** Returns what was set last for this thread, so that a caller of lmdbio_set_interrupt can restore it.
 * @param function  receives the function; NULL: none is set
 * @param context   receives its argument */
LMDBIO_API void lmdbio_get_interrupt(lmdbio_interrupt_func** function, void** context);

/* ---- readers ------------------------------------------------------------------------------------------- */

/** One snapshot of one database: what was committed when the reader was opened.  Any number of threads may
 * use a reader.  In a forked child, calls on an inherited reader and its streams return EINVAL; closing them
 * returns without waiting.  See docs/reader.md. */
typedef struct lmdbio_reader lmdbio_reader;
/** Records in a given order, read ahead.  One thread at a time, except for lmdbio_stream_cancel. */
typedef struct lmdbio_stream lmdbio_stream;

/** Reports progress, from the thread that called the library.
 * @param context  lmdbio_reader_options::progress_context
 * @param what     "index"
 * @param done     number of pages that were read
 * @param total    number of pages to read; 0 as long as it is unknown
 * @return 0 to continue.  Otherwise the call in progress fails with ECANCELED. */
typedef int lmdbio_progress_func(void* context, const char* what, uint64_t done, uint64_t total);

/** Options of a reader.  Zero in a field means its default. */
typedef struct lmdbio_reader_options {
  size_t size;          /**< sizeof(lmdbio_reader_options) */
  const char* database; /**< name of a named database; NULL: the main database */
  size_t memory;        /**< upper limit in bytes for all streams of this reader together, at least 1 MiB;
                             0: LMDBIO_MEMORY.  All readers of a process together stay within LMDBIO_MEMORY;
                             if that is 0, each reader needs a limit here */
  unsigned flags;       /**< for mdb_env_open: MDB_NOLOCK and MDB_NOSUBDIR; other flags give EINVAL.
                             MDB_NOSUBDIR is needed only for a data file with the name data.mdb */
  int no_index_file;    /**< 1: do not look for an index file */
  lmdbio_progress_func* progress; /**< reports on building the index; may be NULL */
  void* progress_context;         /**< passed to `progress` */
} lmdbio_reader_options;

/** Opens the environment at `path` read-only, and a reader of its newest snapshot.
 *
 * As with mdb_env_open, this process must not have the environment open already; use lmdbio_reader_attach in
 * that case.  A data file is opened as with MDB_NOSUBDIR.  Exception: for DIR/data.mdb without
 * DIR/data.mdb-lock, DIR is opened, so that readers and writers use the same lock file.
 *
 * The index, which maps ordinals to file locations, is read from an index file or built from the database's
 * branch and leaf pages.  Without a progress function, a thread of the library may still be building a large
 * index when this function returns.  Errors in the database are then reported by the first call that needs
 * the index.
 *
 * @param path     a directory that contains data.mdb, or a data file
 * @param options  may be NULL
 * @param reader   receives the reader, which the program must close
 * @return 0; errors of mdb_env_open, mdb_txn_begin and mdb_dbi_open; ENOTSUP: LMDBIO does not serve the
 * environment; ENOMEM: LMDBIO_MEMORY has no room for a reader or its index. */
LMDBIO_API int lmdbio_reader_open(const char* path, const lmdbio_reader_options* options,
                                  lmdbio_reader** reader);
/** Opens a reader of the snapshot of a transaction of the program.
 * @param txn      a read transaction, which must not end before the reader is closed
 * @param dbi      a database of its environment
 * @param options  may be NULL; `database` and `flags` are ignored
 * @param reader   receives the reader, which the program must close
 * @return as lmdbio_reader_open. */
LMDBIO_API int lmdbio_reader_attach(MDB_txn* txn, MDB_dbi dbi, const lmdbio_reader_options* options,
                                    lmdbio_reader** reader);
/** Closes a reader.  Its batches stay valid.
 * @param reader  the reader, whose streams must have been closed before; NULL: no effect */
LMDBIO_API void lmdbio_reader_close(lmdbio_reader* reader);
/** Returns the number of records: keys, or with MDB_DUPSORT pairs of key and value.  Does not wait for the
 * index.  A reader of lmdbio/mpi.h waits until all ranks have opened it.
 * @param reader  the reader
 * @param count   receives the number of records
 * @return 0; EINVAL: an argument is NULL, or the reader was inherited by a forked child; with lmdbio/mpi.h,
 * the error of opening, the same on all ranks. */
LMDBIO_API int lmdbio_reader_count(const lmdbio_reader* reader, uint64_t* count);

/* ---- batches ------------------------------------------------------------------------------------------- */

/** A record of a batch. */
typedef struct lmdbio_record {
  uint64_t ordinal;   /**< from 0, in key order; UINT64_MAX: the key does not exist */
  MDB_val key, value; /**< without particular alignment; empty if the key does not exist */
} lmdbio_record;

/** Records and their bytes.  Valid until lmdbio_batch_release, which any thread may call, even after the
 * stream or the reader has been closed (but see lmdbio_order::zero_copy).  The program must not write to the
 * bytes.  Batches that a program keeps also keep their memory: once they take all of it, the next batch fails
 * with ENOMEM.  Small batches share a buffer. */
typedef struct lmdbio_batch {
  size_t count; /**< number of records */
  const lmdbio_record* records;
  uint64_t epoch;    /**< epoch of the first record; 0 outside streams */
  uint64_t position; /**< position of the first record in the stream's share of the epoch, from 0; 0 outside
                          streams */
  size_t padding;    /**< number of records at the end that only fill up the batch (LMDBIO_LAST_PAD) */
} lmdbio_batch;

/** Reads records by ordinal, and waits until all have been read.  Any thread.
 * @param reader    the reader
 * @param ordinals  `n` ordinals in any order; may be NULL if `n` is 0
 * @param n         number of ordinals
 * @param batch     receives a batch of `n` records in the given order, which the program must release
 * @return 0; EINVAL: an ordinal is not less than the number of records; ENOMEM: the batch does not fit beside
 * those that the program holds; MDB_CORRUPTED; or the error of a read. */
LMDBIO_API int lmdbio_reader_read(lmdbio_reader* reader, const uint64_t* ordinals, size_t n,
                                  const lmdbio_batch** batch);
/** Finds the ordinals of keys, without reading values.  Any thread.
 * @param reader    the reader
 * @param keys      `n` keys; may be NULL if `n` is 0
 * @param n         number of keys
 * @param ordinals  receives `n` ordinals; UINT64_MAX: the key does not exist.  With MDB_DUPSORT, that of the
 *                  first value of the key
 * @return as lmdbio_reader_read_keys. */
LMDBIO_API int lmdbio_reader_find(lmdbio_reader* reader, const MDB_val* keys, size_t n, uint64_t* ordinals);
/** Reads records by key, and waits until all have been read.  Any thread.
 * @param reader  the reader
 * @param keys    `n` keys in any order; may be NULL if `n` is 0
 * @param n       number of keys
 * @param batch   receives a batch of `n` records in the given order, which the program must release.  With
 *                MDB_DUPSORT, the first value of each key
 * @return as lmdbio_reader_read; MDB_BAD_VALSIZE: a key is empty; ENOTSUP: the program set its own key order
 * (mdb_set_compare). */
LMDBIO_API int lmdbio_reader_read_keys(lmdbio_reader* reader, const MDB_val* keys, size_t n,
                                       const lmdbio_batch** batch);
/** Releases a batch.  Any thread.
 * @param batch  the batch; NULL: no effect */
LMDBIO_API void lmdbio_batch_release(const lmdbio_batch* batch);

/* ---- streams ------------------------------------------------------------------------------------------- */

/** The elements of an epoch. */
typedef enum lmdbio_order_kind {
  LMDBIO_ORDER_SEQUENTIAL = 0,     /**< 0, 1, 2, ... */
  LMDBIO_ORDER_SHUFFLE = 1,        /**< all records in the order of lmdbio_shuffle(seed, epoch, count, i) */
  LMDBIO_ORDER_WINDOW_SHUFFLE = 2, /**< in order, but shuffled within each `window` records */
  LMDBIO_ORDER_LIST = 3,           /**< list[0], list[1], ...: `length` ordinals */
  LMDBIO_ORDER_KEYS = 4,           /**< keys[0], keys[1], ...: `length` keys */
  LMDBIO_ORDER_FUNCTION = 5        /**< function(context, epoch, i) for i from 0 to `length` - 1 */
} lmdbio_order_kind;

/** Returns the ordinal of element `i` of an epoch.
 *
 * Must always return the same ordinal for the same arguments, also in other threads, and with lmdbio/mpi.h on
 * other ranks.  While the stream is open, any thread of the library may call it, and several may call it at a
 * time.  Must not throw exceptions, call the library, or wait for a thread that is in a call of the library.
 * @param context  lmdbio_order::function_context
 * @param epoch    any epoch from the first one on, which may be after the last one
 * @param i        less than lmdbio_order::length
 * @return an ordinal less than the number of records. */
typedef uint64_t lmdbio_ordinal_func(void* context, uint64_t epoch, uint64_t i);

/** What happens if the last batch of an epoch is incomplete. */
typedef enum lmdbio_last {
  LMDBIO_LAST_KEEP = 0, /**< it has fewer records */
  LMDBIO_LAST_DROP = 1, /**< it is omitted */
  LMDBIO_LAST_PAD = 2   /**< it is filled up with the first records of the stream's share of the epoch */
} lmdbio_last;

/** Value of lmdbio_order::end_epoch for a stream that never ends. */
#define LMDBIO_ENDLESS UINT64_MAX

/** An order of records.  Zero in a field means its default, so that a zeroed order with a `size` reads all
 * records once, in key order, one record per batch.
 *
 * `kind` defines the elements of an epoch.  A stream reads the elements offset, offset + step,
 * offset + 2 step, ...: its share.  Rank r of n sets offset to r and step to n.  With a block of b elements,
 * offset and step count blocks instead.
 *
 * The share depends only on these fields and on the number of records.  A job can therefore resume where
 * another one stopped, on any machine, from an epoch and a position.  `end_epoch` stays the same then: an
 * order with end_epoch = 10 that resumes with epoch = 3 ends after epoch 9. */
typedef struct lmdbio_order {
  size_t size; /**< sizeof(lmdbio_order) */
  lmdbio_order_kind kind;
  lmdbio_last last;     /**< of each epoch */
  uint64_t batch;       /**< records per batch; 0: 1 */
  uint64_t offset;      /**< less than step */
  uint64_t step;        /**< 0: 1 */
  uint64_t seed;        /**< for LMDBIO_ORDER_SHUFFLE and LMDBIO_ORDER_WINDOW_SHUFFLE */
  uint64_t window;      /**< for LMDBIO_ORDER_WINDOW_SHUFFLE: records, at least 1 */
  const uint64_t* list; /**< copied */
  const MDB_val* keys;  /**< copied, with their bytes */
  size_t length;        /**< of list or keys; with LMDBIO_ORDER_FUNCTION the number of elements per epoch */
  uint64_t epoch;       /**< the first epoch to read, less than UINT64_MAX */
  uint64_t position;    /**< where to start: so many records of the share are skipped in the first epoch; at
                             most the length of the share */
  uint64_t end_epoch;   /**< the stream ends before this epoch.  0: one epoch after `epoch`, so that only this
                             epoch is read.  LMDBIO_ENDLESS: it never ends.  If `epoch` is not less than a
                             nonzero end, the stream is empty: the first lmdbio_stream_next returns
                             MDB_NOTFOUND */
  int across_epochs;    /**< 1: the sequences of all epochs form one sequence, and offset and step select
                             from it.  With N elements per epoch and a block of 1, the share's elements are
                             those with number i = offset + k * step: element i % N of epoch i / N.  Shares
                             differ from epoch to epoch, unless N is a multiple of step times block.  A batch
                             may contain records of two epochs.  `position` counts the share's records in the
                             epoch.  `last` applies to the last batch of the stream; LMDBIO_LAST_PAD fills it
                             up with the elements that follow */
  uint64_t block;       /**< elements per block; offset and step count blocks; 0: 1.  With block = batch, rank
                             r of n reads the batches r, r + n, r + 2 n, ... of the whole order */
  lmdbio_ordinal_func* function; /**< for LMDBIO_ORDER_FUNCTION */
  void* function_context;        /**< passed to `function` */
  int zero_copy; /**< 1: records that are in the page cache are not copied to a buffer; their keys and values
                      then point into a mapping of the file.  A batch, even one that was copied, is valid only
                      until its reader is closed.  As with LMDB, a file that is truncated meanwhile may end
                      the program by SIGBUS.  Batches that ranks read together (lmdbio/mpi.h) are always
                      copied */
} lmdbio_order;

/** Opens a stream.  Any thread.  With LMDBIO_ORDER_KEYS, looks up all keys, and waits for tree pages.
 * @param reader  the reader, which must be closed after the stream
 * @param order   the order, which is copied
 * @param stream  receives the stream, which the program must close
 * @return 0; EINVAL: a field is out of range; with LMDBIO_ORDER_KEYS, errors of lmdbio_reader_read_keys. */
LMDBIO_API int lmdbio_stream_open(lmdbio_reader* reader, const lmdbio_order* order, lmdbio_stream** stream);
/** Returns the next batch, and waits until it has been read.  All records of a batch belong to one epoch,
 * unless across_epochs is 1.
 * @param stream  the stream
 * @param batch   receives the batch, which the program must release
 * @return 0; MDB_NOTFOUND: the end of the stream; ECANCELED: lmdbio_stream_cancel was called, or the
 * interrupt function returned nonzero.  Any other error: the batch was not read, and the next call tries to
 * read it again.  EINVAL: the order's function returned an ordinal that is not less than the number of
 * records.  With lmdbio/mpi.h, errors of opening and of messages are permanent: all later calls return
 * them. */
LMDBIO_API int lmdbio_stream_next(lmdbio_stream* stream, const lmdbio_batch** batch);
/** Returns the epoch and position of the first record of the next batch.  An order with these two values, and
 * otherwise the same fields, resumes there.  An order whose end_epoch is 0 would read on to the end of that
 * epoch; set end_epoch to resume.
 * @param stream    the stream
 * @param epoch     receives the epoch; may be NULL
 * @param position  receives the position; may be NULL */
LMDBIO_API void lmdbio_stream_position(const lmdbio_stream* stream, uint64_t* epoch, uint64_t* position);
/** Makes a waiting lmdbio_stream_next and all later ones return ECANCELED.  Any thread.
 * @param stream  the stream, which must stay open during the call; NULL: no effect */
LMDBIO_API void lmdbio_stream_cancel(lmdbio_stream* stream);
/** Closes a stream, and waits for its reads in flight.  Its batches stay valid.
 * @param stream  the stream, which no other thread may use; NULL: no effect */
LMDBIO_API void lmdbio_stream_close(lmdbio_stream* stream);

/** Returns an element of the permutation that LMDBIO_ORDER_SHUFFLE uses.  It differs for each seed and epoch,
 * and is the same on every machine and in every version (docs/format.md).  Any thread.
 * @param seed   any number
 * @param epoch  any number
 * @param count  number of elements
 * @param i      number of the element, less than `count`
 * @return element `i`, a number less than `count`. */
LMDBIO_API uint64_t lmdbio_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t i);

#ifdef __cplusplus
}
#endif

#endif
