/** @file
 * LMDBIO's own functions, beyond LMDB's interface (lmdb.h).  For C and C++; reader.h in this directory is the
 * interface for C++20.
 *
 * There are two ways to tell LMDBIO in advance what the program will read:
 *
 *   lmdbio_prefetch     for programs that call mdb_get: names the keys that will be looked up soon;
 *   lmdbio_reader       returns records by ordinal or key, in batches, in an order that is known in advance.
 *                       Values are read into buffers that are reused, so that memory use is bounded.
 *
 * Unless noted otherwise, functions return 0, an errno or an MDB_ code.  mdb_strerror converts both kinds of
 * codes to text, and lmdbio_error() describes the failure.  A failed call stores nothing through its pointer
 * arguments.  Functions return EINVAL if an argument is NULL that must not be NULL, and ENOMEM if memory is
 * short. */
#ifndef LMDBIO_LMDBIO_H
#define LMDBIO_LMDBIO_H

#include <lmdb.h>
#include <stddef.h>
#include <stdint.h>

/* Define LMDBIO_WEAK before including this header if the program must also run without the library.  Test the
 * address of each function before the call: if (lmdbio_prefetch) ... */
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
 * @return 1 if LMDBIO_DISABLE is set; all LMDB calls then go to the original LMDB.  Otherwise 0. */
LMDBIO_API int lmdbio_disabled(void);

/** Looks for a module of this process that contains its own LMDB 0.9, which LMDBIO does not serve because of
 * how the module was linked.  Does not find modules that hide the functions of their LMDB.  Any thread.
 * @param path   receives the path of the module, terminated by a null byte
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
 * LMDBIO starts to read the values of these keys, many at a time.  mdb_get then returns a value without a
 * page fault, or waits for the pending read.  Best results: announce keys as the program proceeds, some
 * hundreds of keys ahead.
 *
 * This is only a hint: the results of mdb_get do not change.  LMDBIO prefetches nothing in three cases: the
 * data is already in memory, memory is short, or LMDBIO does not serve the environment.  Values stay valid
 * until the transaction ends, as always.  Until then, prefetched values take private memory, which counts
 * against LMDBIO_MEMORY.  The call may wait for tree pages (a few round trips), but not for values.  LMDB's
 * thread rules for the transaction apply.
 *
 * @param txn   a read transaction
 * @param dbi   a database of its environment
 * @param keys  `n` keys, which are copied.  A key may not exist, may never be looked up, and may occur more
 *              than once.  An unused key costs only its read.  May be NULL if `n` is 0
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

/** Decides whether a waiting call continues; see lmdbio_set_interrupt.  May call functions of the library,
 * but not for the stream of the waiting call.
 * @param context  the argument of lmdbio_set_interrupt
 * @return 0 to continue.  Otherwise the waiting call fails with ECANCELED, and the next call continues where
 * the waiting call stopped. */
typedef int lmdbio_interrupt_func(void* context);
/** Sets the interrupt function of this thread.  While a call of this thread on a reader or stream waits, the
 * library calls the interrupt function about every 0.1 s.  For language bindings, whose signal handlers run
 * only in the interpreter.  While a call waits for other ranks (lmdbio/mpi.h), the library does not call the
 * interrupt function.
 * @param function  the interrupt function; NULL, the default, if there is none
 * @param context   passed to the function; may be NULL */
LMDBIO_API void lmdbio_set_interrupt(lmdbio_interrupt_func* function, void* context);
/** Returns the interrupt function of this thread.  Callers of lmdbio_set_interrupt can restore it later.
 * @param function  receives the function, or NULL if none is set
 * @param context   receives its argument */
LMDBIO_API void lmdbio_get_interrupt(lmdbio_interrupt_func** function, void** context);

/* ---- readers ------------------------------------------------------------------------------------------- */

/** One snapshot of one database.  It contains what was committed when the reader was opened.  Any number of
 * threads may use a reader.  In a forked child, calls on an inherited reader and its streams return EINVAL.
 * lmdbio_reader_close and lmdbio_stream_close return without waiting.  See docs/reader.md. */
typedef struct lmdbio_reader lmdbio_reader;
/** Returns records in a given order, and reads them ahead.  One thread at a time, except for
 * lmdbio_stream_cancel. */
typedef struct lmdbio_stream lmdbio_stream;

/** Reports progress, from the thread that called the library.
 * @param context  lmdbio_reader_options::progress_context
 * @param what     "index"
 * @param done     number of pages that were read
 * @param total    number of pages to read; 0 while this number is unknown
 * @return 0 to continue.  Otherwise the call in progress fails with ECANCELED. */
typedef int lmdbio_progress_func(void* context, const char* what, uint64_t done, uint64_t total);

/** Options of a reader.  Zero in a field means its default. */
typedef struct lmdbio_reader_options {
  size_t size;          /**< sizeof(lmdbio_reader_options) */
  const char* database; /**< name of a named database; NULL: the main database */
  size_t memory;        /**< upper limit in bytes for all streams of this reader together, at least 1 MiB; 0:
                             LMDBIO_MEMORY.  All readers of a process together stay within LMDBIO_MEMORY.  If
                             LMDBIO_MEMORY is 0, each reader needs a limit here */
  unsigned flags;       /**< flags for mdb_env_open: MDB_NOLOCK and MDB_NOSUBDIR; all others give EINVAL.
                             MDB_NOSUBDIR is needed only for a data file with the name data.mdb */
  int no_index_file;    /**< 1: do not look for an index file */
  lmdbio_progress_func* progress; /**< reports on building the index; may be NULL */
  void* progress_context;         /**< passed to `progress` */
  const MDB_val* exclude; /**< keys of records that the reader leaves out.  Ordinals and the number of records
                               count only the other records, and a lookup does not find the key.  The keys
                               need not exist.  Copied.  With MDB_DUPSORT, all values of a key are left out.
                               Not available with lmdbio/mpi.h */
  size_t exclude_count;
  const MDB_val* exclude_prefixes; /**< as `exclude`, for all keys that begin with one of these bytes */
  size_t exclude_prefix_count;
} lmdbio_reader_options;

/** Opens the environment at `path` read-only, and opens a reader of its newest snapshot.
 *
 * As with mdb_env_open, this process must not have the environment open already.  If it has, use
 * lmdbio_reader_attach.  A data file is opened as with MDB_NOSUBDIR, with one exception: if `path` is
 * DIR/data.mdb and DIR/data.mdb-lock does not exist, DIR is opened.  Readers and writers then use the same
 * lock file.
 *
 * The index maps ordinals to file locations.  It is loaded from an index file, or built from the branch and
 * leaf pages of the database.  Without a progress function, a thread of the library may still be building a
 * large index when this function returns.  The first call that needs the index then reports errors in the
 * database.
 *
 * @param path     a directory that contains data.mdb, or a data file
 * @param options  may be NULL
 * @param reader   receives the reader, which the program must close
 * @return 0; errors of mdb_env_open, mdb_txn_begin and mdb_dbi_open; ENOTSUP: LMDBIO does not serve the
 * environment; ENOMEM: a reader or its index does not fit into LMDBIO_MEMORY. */
LMDBIO_API int lmdbio_reader_open(const char* path, const lmdbio_reader_options* options,
                                  lmdbio_reader** reader);
/** Opens one reader of several databases.  Its ordinals count the records of the first database first, then
 * those of the second, and so on.  A lookup of a key finds the first database that has the key.
 *
 * This function opens each environment, with MDB_NOLOCK, to count the records, and closes it again.  Files
 * are opened again when their records are read, and only some dozens stay open.  The reader holds no
 * snapshot: if a transaction was committed to a database since this function was called, reads of its
 * records fail with ESTALE.  A batch never contains records of two states of a database.  Records that were
 * read with lmdbio_order::zero_copy may change afterwards, as with MDB_NOLOCK.  This process may have the
 * environments open, and may open several readers of one database in this way.
 *
 * The indexes are built when records are read, several at a time.  With a progress function, this function
 * builds all of them.  All databases must have the same page size.
 *
 * @param paths    `count` paths, as for lmdbio_reader_open
 * @param count    number of paths, at least 1
 * @param options  may be NULL.  They apply to all databases together (`memory`), or to each
 * @param reader   receives the reader, which the program must close
 * @return as lmdbio_reader_open; ENOTSUP also if page sizes differ. */
LMDBIO_API int lmdbio_reader_open_many(const char* const* paths, size_t count,
                                       const lmdbio_reader_options* options, lmdbio_reader** reader);
/** Opens a reader of the snapshot that a transaction of the program uses.
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
/** Returns the number of records.  With MDB_DUPSORT, each pair of key and value is a record; otherwise, each
 * key is one.  Does not wait for the index.  With lmdbio/mpi.h, waits until all ranks have opened the reader.
 * @param reader  the reader
 * @param count   receives the number of records
 * @return 0; EINVAL: an argument is NULL, or this is a forked child that inherited the reader; with
 * lmdbio/mpi.h, the error of lmdbio_mpi_reader_open, the same on all ranks. */
LMDBIO_API int lmdbio_reader_count(const lmdbio_reader* reader, uint64_t* count);

/** Returns a number for the state of the reader's database: the number of its last transaction.  With several
 * databases, the number depends on the last transactions of all.  Processes that open the same files at
 * different times compare it, and the number of records, to make sure that they read the same records.
 * @param reader  the reader
 * @param state   receives the number
 * @return as lmdbio_reader_count. */
LMDBIO_API int lmdbio_reader_state(const lmdbio_reader* reader, uint64_t* state);

/* ---- batches ------------------------------------------------------------------------------------------- */

/** A record of a batch. */
typedef struct lmdbio_record {
  uint64_t ordinal;   /**< from 0, in key order; UINT64_MAX: the key does not exist */
  MDB_val key, value; /**< without particular alignment; empty if the key does not exist */
} lmdbio_record;

/** Records and their bytes.  A batch is valid until lmdbio_batch_release, even after its stream or reader has
 * been closed (but see lmdbio_order::zero_copy).  Any thread may release it.  The program must not write to
 * the bytes.  Batches that the program has not released keep their memory.  Once they take all memory, the
 * next batch fails with ENOMEM.  Small batches share a buffer. */
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
 * @return 0; EINVAL: an ordinal is not less than the number of records; ENOMEM: the batches that the program
 * holds leave too little memory for this one; MDB_CORRUPTED; or the error of a read. */
LMDBIO_API int lmdbio_reader_read(lmdbio_reader* reader, const uint64_t* ordinals, size_t n,
                                  const lmdbio_batch** batch);
/** Finds the ordinals of keys, without reading values.  Any thread.
 * @param reader    the reader
 * @param keys      `n` keys; may be NULL if `n` is 0
 * @param n         number of keys
 * @param ordinals  receives `n` ordinals; UINT64_MAX if the key does not exist.  With MDB_DUPSORT, the
 *                  ordinal is that of the key's first value
 * @return as lmdbio_reader_read_keys. */
LMDBIO_API int lmdbio_reader_find(lmdbio_reader* reader, const MDB_val* keys, size_t n, uint64_t* ordinals);
/** Reads records by key, and waits until all have been read.  Any thread.
 * @param reader  the reader
 * @param keys    `n` keys in any order; may be NULL if `n` is 0
 * @param n       number of keys
 * @param batch   receives a batch of `n` records in the given order, which the program must release.  With
 *                MDB_DUPSORT, each record has the first value of its key
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
  LMDBIO_ORDER_FUNCTION = 5,       /**< function(context, epoch, i) for i from 0 to `length` - 1 */
  LMDBIO_ORDER_MIXED = 6           /**< records of several databases, shuffled, in proportion to `weights` */
} lmdbio_order_kind;

/** Returns the ordinal of element `i` of an epoch.
 *
 * Must always return the same ordinal for the same arguments, in all threads, and with lmdbio/mpi.h on all
 * ranks.  While the stream is open, any thread of the library may call it, and several threads may call it at
 * a time.  Must not throw exceptions, call the library, or wait for a thread that is in a call of the
 * library.
 * @param context  lmdbio_order::function_context
 * @param epoch    any epoch from the first one on, even one after the last epoch
 * @param i        less than lmdbio_order::length
 * @return an ordinal less than the number of records. */
typedef uint64_t lmdbio_ordinal_func(void* context, uint64_t epoch, uint64_t i);

/** Says what happens to an incomplete last batch of an epoch. */
typedef enum lmdbio_last {
  LMDBIO_LAST_KEEP = 0, /**< it has fewer records */
  LMDBIO_LAST_DROP = 1, /**< it is omitted */
  LMDBIO_LAST_PAD = 2   /**< the first records of the stream's share of the epoch fill it up */
} lmdbio_last;

/** Value of lmdbio_order::end_epoch for a stream that never ends. */
#define LMDBIO_ENDLESS UINT64_MAX

/** An order of records.  Zero in a field means its default, so that a zeroed order with a `size` reads all
 * records once, in key order, one record per batch.
 *
 * `kind` defines the elements of an epoch.  A stream reads the elements offset, offset + step, offset + 2
 * step, ...  These elements are the stream's share.  Rank r of n sets offset to r and step to n.  If a block
 * has more than one element, offset and step count blocks.
 *
 * The share depends only on these fields and on the number of records.  A job can therefore resume on any
 * machine where another job stopped, from an epoch and a position.  Leave `end_epoch` unchanged: with
 * end_epoch = 10, an order that resumes with epoch = 3 ends after epoch 9. */
typedef struct lmdbio_order {
  size_t size; /**< sizeof(lmdbio_order) */
  lmdbio_order_kind kind;
  lmdbio_last last;     /**< incomplete last batch of an epoch */
  uint64_t batch;       /**< records per batch; 0 means 1 */
  uint64_t offset;      /**< less than step */
  uint64_t step;        /**< 0 means 1 */
  uint64_t seed;        /**< for LMDBIO_ORDER_SHUFFLE, LMDBIO_ORDER_WINDOW_SHUFFLE and LMDBIO_ORDER_MIXED */
  uint64_t window;      /**< records per window, for LMDBIO_ORDER_WINDOW_SHUFFLE; at least 1 */
  const uint64_t* list; /**< copied */
  const MDB_val* keys;  /**< copied, with their bytes */
  size_t length;        /**< number of elements of `list` or `keys`; with LMDBIO_ORDER_FUNCTION and
                             LMDBIO_ORDER_MIXED, of elements per epoch.  With LMDBIO_ORDER_MIXED, 0 means the
                             number of records */
  uint64_t epoch;       /**< the first epoch to read, less than UINT64_MAX */
  uint64_t position;    /**< number of records of the share that the stream skips in the first epoch; at most
                             the length of the share */
  uint64_t end_epoch;   /**< the stream ends before this epoch.  0: the stream reads only epoch `epoch`.
                             LMDBIO_ENDLESS: the stream never ends.  If `epoch` is not less than a nonzero
                             end, the stream is empty: the first lmdbio_stream_next returns MDB_NOTFOUND */
  int across_epochs;    /**< 1: the sequences of all epochs form one sequence, and offset and step select from
                             this sequence.  With N elements per epoch and a block of 1, the k-th element of
                             the share has the number i = offset + k * step.  This is element i % N of epoch i
                             / N.  Shares differ from epoch to epoch, unless N is a multiple of step times
                             block.  A batch may contain records of two epochs.  `position` counts the share's
                             records in the epoch.  `last` applies to the last batch of the stream; with
                             LMDBIO_LAST_PAD, the elements that follow fill it up */
  uint64_t block;       /**< elements per block; 0 means 1.  offset and step count blocks.  With block =
                             batch, rank r of n reads the batches r, r + n, r + 2 n, ... of the whole order */
  lmdbio_ordinal_func* function; /**< for LMDBIO_ORDER_FUNCTION */
  void* function_context;        /**< passed to `function` */
  int zero_copy; /**< 1: records in the page cache are not copied to a buffer; their keys and values point
                      into a mapping of the file.  All batches, even copied ones, are then valid only until
                      the reader is closed.  As with LMDB, SIGBUS may end the program if the file is truncated
                      meanwhile.  Batches that ranks read together (lmdbio/mpi.h) are always copied */
  const double* weights; /**< for LMDBIO_ORDER_MIXED: one weight for each database of lmdbio_reader_open_many,
                              at least 0; copied.  Each block of consecutive elements has records of the
                              databases in proportion to the weights (docs/format.md).  When all records of a
                              database have been read, they are read again in another shuffled order, even
                              within an epoch.  Not available with lmdbio/mpi.h */
  size_t weights_count;  /**< number of weights */
} lmdbio_order;

/** Opens a stream.  Any thread.  With LMDBIO_ORDER_KEYS, this function looks up all keys, and waits for tree
 * pages.
 * @param reader  the reader; close it after the stream
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
/** Returns the epoch and position of the first record of the next batch.  To resume there, open a stream with
 * these two values and otherwise the same fields.  Set end_epoch as well: with 0, the new stream reads to the
 * end of its first epoch.
 * @param stream    the stream
 * @param epoch     receives the epoch; may be NULL
 * @param position  receives the position; may be NULL */
LMDBIO_API void lmdbio_stream_position(const lmdbio_stream* stream, uint64_t* epoch, uint64_t* position);
/** Makes a waiting lmdbio_stream_next and all later calls return ECANCELED.  Any thread.
 * @param stream  the stream, which must stay open during the call; NULL: no effect */
LMDBIO_API void lmdbio_stream_cancel(lmdbio_stream* stream);
/** Closes a stream, and waits for its reads in flight.  Its batches stay valid.
 * @param stream  the stream, which no other thread may use; NULL: no effect */
LMDBIO_API void lmdbio_stream_close(lmdbio_stream* stream);

/** Returns an element of the permutation that LMDBIO_ORDER_SHUFFLE uses.  The permutation differs for each
 * seed and epoch, and is the same on every machine and in every version (docs/format.md).  Any thread.
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
