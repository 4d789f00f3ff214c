/* LMDBIO's own functions, beyond LMDB's interface (lmdb.h).  For C and C++; reader.h in this directory is the
 * interface for C++20.
 *
 * A program can tell LMDBIO in advance what it will read, in two ways:
 *
 *   lmdbio_prefetch     for programs that call mdb_get: names the keys that will be looked up soon;
 *   lmdbio_reader       returns records by ordinal or key, in batches, in an order that is known in advance.
 *                       Values are read into buffers that are reused, so that memory use is bounded.
 *
 * Functions return 0, an errno or an MDB_ code (mdb_strerror knows both).  lmdbio_error() gives details. */
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

/* Returns the library's version, "major.minor.patch"; a constant string.  Any thread. */
LMDBIO_API const char* lmdbio_version(void);

/* Returns 1 if LMDBIO_DISABLE is set, so that all calls of LMDB go to the real library; else 0.  Any thread. */
LMDBIO_API int lmdbio_disabled(void);

/* Returns 1 if a module of this process contains an LMDB 0.9 that LMDBIO does not serve, because of how the
 * module was linked, and copies the module's path, with a null byte, into the `bytes` at `path`.  Returns 0
 * if there is none.  Modules that hide the functions of their LMDB are not found.  Any thread. */
LMDBIO_API int lmdbio_unreached(char* path, size_t bytes);

/* Describes the last failed lmdbio_ call of this thread in one line that names the file.  Returns "" if no
 * call has failed.  Valid until the thread's next lmdbio_ call that fails. */
LMDBIO_API const char* lmdbio_error(void);

/* ---- prefetching, for mdb_get -------------------------------------------------------------------------- */

/* Announces that the program will soon look up these keys by mdb_get in this transaction.  LMDBIO starts to
 * read their values, many at a time; mdb_get then returns them without a page fault, or waits for the
 * pending read.  The keys are copied.  Keys that do not exist or are never looked up cost only their reads.
 * A key may be given more than once.  It works best to announce keys as the program proceeds, some hundreds
 * ahead.
 *
 * This is only a hint: the results of mdb_get do not change.  LMDBIO reads nothing ahead if the data is in
 * memory already, if there is not enough memory, or if it does not serve the environment.  Values stay valid
 * until the transaction ends, as always.  Prefetched values take private memory until then, within
 * LMDBIO_MEMORY.  The call may wait for tree pages (a few round trips), but not for values.
 *
 * LMDB's thread rules for the transaction apply.  Returns 0; EINVAL: no such transaction or database, or
 * keys is NULL; MDB_BAD_TXN; MDB_BAD_VALSIZE: an empty key. */
LMDBIO_API int lmdbio_prefetch(MDB_txn* txn, MDB_dbi dbi, const MDB_val* keys, size_t n);

/* For language bindings, which keep their MDB_txn* inside an object of their own.  Searches the `bytes` at
 * `object` for an aligned handle of a transaction that LMDBIO serves.  Returns it, or NULL if there is none.
 * Other content of the object is compared, but never dereferenced.  Any thread. */
LMDBIO_API MDB_txn* lmdbio_txn_in(const void* object, size_t bytes);

/* For language bindings, whose signal handlers run only in the interpreter.  While a call of this thread on a
 * reader or a stream waits, it calls `function` about every 0.1 s.  If that does not return 0, the call fails
 * with ECANCELED; the next call goes on where this one would have.  The function may call the library, but
 * not for the same stream.  NULL, the default: nothing is called.  Waits for other ranks (lmdbio/mpi.h) do
 * not call it. */
typedef int lmdbio_interrupt_func(void* context);
LMDBIO_API void lmdbio_set_interrupt(lmdbio_interrupt_func* function, void* context);
/* What was set last for this thread, so that a caller of lmdbio_set_interrupt can set it again. */
LMDBIO_API void lmdbio_get_interrupt(lmdbio_interrupt_func** function, void** context);

/* ---- readers ------------------------------------------------------------------------------------------- */

/* One snapshot of one database: what was committed when the reader was opened.  Any number of threads may
 * use a reader.  In a forked child, calls on an inherited reader and its streams return EINVAL; closing them
 * returns without waiting.  See docs/reader.md. */
typedef struct lmdbio_reader lmdbio_reader;
/* Records in a given order, read ahead.  One thread at a time. */
typedef struct lmdbio_stream lmdbio_stream;

/* Reports progress, from the thread that called the library.  `what` is "index"; `done` and `total` count
 * pages, and `total` is 0 as long as it is unknown.  If the function does not return 0, the call in progress
 * fails with ECANCELED. */
typedef int lmdbio_progress_func(void* context, const char* what, uint64_t done, uint64_t total);

/* Zero in a field means its default.  The program sets `size` to sizeof(lmdbio_reader_options), as with
 * lmdbio_order. */
typedef struct lmdbio_reader_options {
  size_t size;
  const char* database; /* a named database; NULL: the main database */
  size_t memory;        /* upper limit in bytes for all streams of this reader together, at least 1 MiB;
                           0: LMDBIO_MEMORY.  All readers of a process together stay within LMDBIO_MEMORY; if
                           that is 0, each reader needs a limit here */
  unsigned flags;       /* for mdb_env_open: MDB_NOLOCK and MDB_NOSUBDIR are allowed, others give EINVAL.
                           MDB_NOSUBDIR is needed only for a data file with the name data.mdb */
  int no_sidecar;       /* 1: do not look for an index file */
  lmdbio_progress_func* progress; /* reports on building the index; may be NULL */
  void* progress_context;
} lmdbio_reader_options;

/* Opens the environment at `path` read-only, and a reader of its newest snapshot.  `path` is a directory
 * that contains data.mdb, or a data file.  `options` may be NULL.  As with mdb_env_open, this process must
 * not have the environment open already; use lmdbio_reader_attach in that case.
 *
 * A file is opened as with MDB_NOSUBDIR.  Exception: for DIR/data.mdb without DIR/data.mdb-lock, DIR is
 * opened, so that readers and writers use the same lock file.
 *
 * Returns errors of mdb_env_open, mdb_txn_begin and mdb_dbi_open; ENOTSUP: LMDBIO does not serve the
 * environment.  Sets *reader only on success.
 *
 * The index, which maps ordinals to file locations, is read from an index file or built from the database's
 * branch and leaf pages.  Without a progress function, a thread of the library may still be building a large
 * index when this function returns.  Errors in the database are then reported by the first call that needs
 * the index. */
LMDBIO_API int lmdbio_reader_open(const char* path, const lmdbio_reader_options* options,
                                  lmdbio_reader** reader);
/* Opens a reader of the snapshot of the program's transaction `txn`.  The reader must be closed before the
 * transaction ends.  Ignores the options `database` and `flags`. */
LMDBIO_API int lmdbio_reader_attach(MDB_txn* txn, MDB_dbi dbi, const lmdbio_reader_options* options,
                                    lmdbio_reader** reader);
/* Closes a reader, whose streams must have been closed before.  Its batches stay valid.  NULL: no effect. */
LMDBIO_API void lmdbio_reader_close(lmdbio_reader* reader);
/* Returns the number of records: keys, or with MDB_DUPSORT pairs of key and value. */
LMDBIO_API uint64_t lmdbio_reader_count(const lmdbio_reader* reader);

/* ---- batches ------------------------------------------------------------------------------------------- */

typedef struct lmdbio_record {
  uint64_t ordinal;   /* from 0, in key order; UINT64_MAX: the key does not exist */
  MDB_val key, value; /* without particular alignment; empty if the key does not exist */
} lmdbio_record;

/* Records and their bytes.  Valid until lmdbio_batch_release, which any thread may call, even after the
 * stream or the reader has been closed (but see lmdbio_order, zero_copy).  Batches that a program keeps also
 * keep their memory: once they take all of it, the next batch fails with ENOMEM.  Small batches share a
 * buffer. */
typedef struct lmdbio_batch {
  size_t count;
  const lmdbio_record* records;
  uint64_t epoch;    /* of the first record; 0 outside streams */
  uint64_t position; /* of the first record, from 0, in the stream's share of the epoch; 0 outside streams */
  size_t padding;    /* number of records at the end that only fill up the batch (LMDBIO_LAST_PAD) */
} lmdbio_batch;

/* Returns a batch of `n` records in the given order; waits until all have been read.  EINVAL: an ordinal is
 * not less than lmdbio_reader_count. */
LMDBIO_API int lmdbio_reader_read(lmdbio_reader* reader, const uint64_t* ordinals, size_t n,
                                  const lmdbio_batch** batch);
/* Sets ordinals[i] to the ordinal of the record with keys[i], without reading values; with MDB_DUPSORT, of
 * the first value of the key.  UINT64_MAX: the key does not exist.  Errors as lmdbio_reader_read_keys. */
LMDBIO_API int lmdbio_reader_find(lmdbio_reader* reader, const MDB_val* keys, size_t n, uint64_t* ordinals);
/* Returns a batch of the records with these keys; with MDB_DUPSORT, the first value of each key.  ENOTSUP:
 * the program set its own key order (mdb_set_compare). */
LMDBIO_API int lmdbio_reader_read_keys(lmdbio_reader* reader, const MDB_val* keys, size_t n,
                                       const lmdbio_batch** batch);
/* Releases a batch.  NULL: no effect. */
LMDBIO_API void lmdbio_batch_release(const lmdbio_batch* batch);

/* ---- streams ------------------------------------------------------------------------------------------- */

typedef enum lmdbio_order_kind {
  LMDBIO_ORDER_SEQUENTIAL = 0,     /* 0, 1, 2, ... */
  LMDBIO_ORDER_SHUFFLE = 1,        /* all records in the order of lmdbio_shuffle(seed, epoch, count, i) */
  LMDBIO_ORDER_WINDOW_SHUFFLE = 2, /* in order, but shuffled within each `window` records */
  LMDBIO_ORDER_LIST = 3,           /* list[0], list[1], ...: `length` ordinals */
  LMDBIO_ORDER_KEYS = 4,           /* keys[0], keys[1], ...: `length` keys */
  LMDBIO_ORDER_FUNCTION = 5        /* function(context, epoch, i) for i from 0 to `length` - 1 */
} lmdbio_order_kind;

/* Returns the ordinal of element `i` of an epoch, less than lmdbio_reader_count.  Must always return the same
 * ordinal for the same arguments, also in other threads, and with lmdbio/mpi.h on other ranks.  While the
 * stream is open, any thread of the library may call it, and several may call it at a time.  `epoch` may be
 * any epoch from the first one on, and may be larger than the last one.  Must not throw exceptions, call the
 * library, or wait for a thread that is in a call of the library. */
typedef uint64_t lmdbio_ordinal_func(void* context, uint64_t epoch, uint64_t i);

/* What happens if the last batch of an epoch is incomplete. */
typedef enum lmdbio_last {
  LMDBIO_LAST_KEEP = 0, /* it has fewer records */
  LMDBIO_LAST_DROP = 1, /* it is omitted */
  LMDBIO_LAST_PAD = 2   /* it is filled up with the first records of the stream's share of the epoch */
} lmdbio_last;

/* `kind` defines the elements of an epoch.  A stream reads the elements offset, offset + step, offset + 2
 * step, ...: its share.  Rank r of n sets offset to r and step to n.  With a block of b elements, offset and
 * step count blocks instead.
 *
 * The share depends only on these fields and on the number of records.  A job can therefore resume where
 * another one stopped, on any machine, from an epoch and a position. */
typedef struct lmdbio_order {
  size_t size; /* sizeof(lmdbio_order) */
  lmdbio_order_kind kind;
  lmdbio_last last;     /* of each epoch */
  uint64_t batch;       /* records per batch; 0: 1 */
  uint64_t offset;      /* less than step */
  uint64_t step;        /* 0: 1 */
  uint64_t seed;        /* for LMDBIO_ORDER_SHUFFLE and LMDBIO_ORDER_WINDOW_SHUFFLE */
  uint64_t window;      /* for LMDBIO_ORDER_WINDOW_SHUFFLE: records, at least 1 */
  const uint64_t* list; /* copied */
  const MDB_val* keys;  /* copied, with their bytes */
  size_t length;        /* of list or keys; with LMDBIO_ORDER_FUNCTION the number of elements per epoch */
  uint64_t epoch;       /* the first epoch to read */
  uint64_t position;    /* where to start: so many records of the share are skipped in the first epoch */
  uint64_t epochs;      /* number of epochs to read, including the first; 0: unlimited */
  int across_epochs;    /* 1: the sequences of all epochs form one sequence, and offset and step apply to it.
                           With N elements per epoch and a block of 1, the share's elements are those with
                           number i = offset + k * step: element i % N of epoch i / N.  Shares differ from
                           epoch to epoch, unless N is a multiple of step times block.  A batch may contain
                           records of two epochs.
                           `position` counts the share's records in the epoch.  `last` applies to the last
                           batch of the stream; LMDBIO_LAST_PAD fills it up with the elements that follow. */
  uint64_t block;       /* elements per block; offset and step count blocks; 0: 1.  With block = batch, rank r
                           of n reads the batches r, r + n, r + 2 n, ... of the whole order. */
  lmdbio_ordinal_func* function; /* for LMDBIO_ORDER_FUNCTION */
  void* function_context;
  int zero_copy; /* 1: records that are in the page cache are not copied to a buffer; their keys and values
                    then point into a mapping of the file.  A batch, even one that was copied, is valid only
                    until its reader is closed.  As with LMDB, a file that is truncated meanwhile may end the
                    program by SIGBUS.  Batches that ranks read together (lmdbio/mpi.h) are copied all the
                    same. */
} lmdbio_order;

/* Opens a stream.  EINVAL: a field is out of range.  With LMDBIO_ORDER_KEYS, waits for
 * tree pages, and returns errors of lmdbio_reader_read_keys. */
LMDBIO_API int lmdbio_stream_open(lmdbio_reader* reader, const lmdbio_order* order, lmdbio_stream** stream);
/* Returns the next batch.  All records of a batch belong to one epoch, unless across_epochs is 1.
 * MDB_NOTFOUND: the end of the stream.  ECANCELED: lmdbio_stream_cancel was called.  Any other error: the
 * batch was not read; the next call tries to read it again.  EINVAL: the order's function returned an ordinal
 * that is not less than lmdbio_reader_count.  With lmdbio/mpi.h, errors of opening and of messages are
 * permanent: all later calls return them. */
LMDBIO_API int lmdbio_stream_next(lmdbio_stream* stream, const lmdbio_batch** batch);
/* Stores the epoch and position of the first record of the next batch.  An order with these values resumes
 * there. */
LMDBIO_API void lmdbio_stream_position(const lmdbio_stream* stream, uint64_t* epoch, uint64_t* position);
/* Makes a waiting lmdbio_stream_next and all later ones return ECANCELED.  Any thread, while the stream is
 * open. */
LMDBIO_API void lmdbio_stream_cancel(lmdbio_stream* stream);
/* Closes a stream.  NULL: no effect. */
LMDBIO_API void lmdbio_stream_close(lmdbio_stream* stream);

/* Returns element i of the permutation of 0 to count - 1 that LMDBIO_ORDER_SHUFFLE uses; i is less than
 * count.  It differs for each seed and epoch, and is the same on every machine and in every version
 * (docs/format.md). */
LMDBIO_API uint64_t lmdbio_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t i);

#ifdef __cplusplus
}
#endif

#endif
