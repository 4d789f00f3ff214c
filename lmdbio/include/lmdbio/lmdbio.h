/* LMDBIO beyond LMDB's own interface, which is lmdb.h's.  C and C++; reader.h beside this file is the same
 * for C++20.
 *
 * Two ways to tell LMDBIO what will be read:
 *
 *   lmdbio_prefetch     a program that reads by mdb_get says which keys come next;
 *   lmdbio_reader       records by ordinal or key, in batches, in an order known ahead.  Values lie in
 *                       buffers that are used again, so reading takes a fixed amount of memory.
 *
 * Functions return 0, an errno or an MDB_ code (mdb_strerror tells both).  lmdbio_error() says more. */
#ifndef LMDBIO_LMDBIO_H
#define LMDBIO_LMDBIO_H

#include <lmdb.h>
#include <stddef.h>
#include <stdint.h>

/* A program that is to run without the library too defines LMDBIO_WEAK before it includes this, and tests
 * the address of what it calls: if (lmdbio_prefetch) ... */
#ifdef LMDBIO_WEAK
#define LMDBIO_API __attribute__((weak))
#else
#define LMDBIO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, "major.minor.patch"; a constant string.  Any thread. */
LMDBIO_API const char* lmdbio_version(void);

/* What was wrong with the last lmdbio_ call of this thread that failed, one line that names the file; "" if
 * none has.  Valid until the thread's next such call. */
LMDBIO_API const char* lmdbio_error(void);

/* ---- prefetching, for mdb_get -------------------------------------------------------------------------- */

/* The program will soon look up these keys by mdb_get in this transaction: LMDBIO begins to read their
 * values now, many at a time.  mdb_get then gives them without a page fault, or waits for what is on its
 * way.  Keys are copied.  Keys that do not exist, or are never looked up, cost only their reading; a key may
 * be given again.  Keys given in pieces as the program goes along, some hundreds ahead, work best.
 *
 * Only a hint: nothing that mdb_get returns changes, and what cannot be read ahead (data in memory already,
 * memory short, an environment that LMDBIO does not serve) is left to mdb_get.  Values stay valid until the
 * transaction ends, as always; those that were read for it take private memory until then, within
 * LMDBIO_MEMORY.  It may wait for pages of the tree (a few round trips), not for values.
 *
 * The transaction's rules of threads hold.  Returns 0; EINVAL: no such transaction or database, keys null;
 * MDB_BAD_TXN; MDB_BAD_VALSIZE: an empty key. */
LMDBIO_API int lmdbio_prefetch(MDB_txn* txn, MDB_dbi dbi, const MDB_val* keys, size_t n);

/* For language bindings, which keep their MDB_txn* in an object of their own: the transaction of an
 * environment that LMDBIO serves whose handle lies, aligned, among the `bytes` at `object`; NULL: there is
 * none.  Whatever else lies there is compared and not followed.  Any thread. */
LMDBIO_API MDB_txn* lmdbio_txn_in(const void* object, size_t bytes);

/* ---- readers ------------------------------------------------------------------------------------------- */

/* One snapshot of one database: what was committed when it was opened.  Any number of threads may use one. In
 * a forked child its calls and those of its streams give EINVAL; closing them waits for nothing there.
 * docs/reader.md tells more. */
typedef struct lmdbio_reader lmdbio_reader;
/* An order of records, being read ahead.  One thread at a time. */
typedef struct lmdbio_stream lmdbio_stream;

/* Called from the thread that called the library.  done and total are of `what` ("index": pages, total 0 as
 * long as it is not known).  Not 0:
 * the call ends with ECANCELED. */
typedef int lmdbio_progress_func(void* context, const char* what, uint64_t done, uint64_t total);

/* All zero bytes: the defaults.  A program sets `size` to sizeof(lmdbio_reader_options), as for
 * lmdbio_order. */
typedef struct lmdbio_reader_options {
  size_t size;
  const char* database; /* a named database; NULL: the main one */
  size_t memory;        /* most bytes for all its streams together, 1 MiB at least; 0: LMDBIO_MEMORY.  All
                           readers of a process together stay within LMDBIO_MEMORY; if that is 0, each reader
                           needs a limit here */
  unsigned flags;       /* of mdb_env_open: MDB_NOLOCK; MDB_NOSUBDIR, which a path to a file other than
                           data.mdb does not need; others are EINVAL */
  int no_sidecar;       /* 1: index files are not looked for */
  lmdbio_progress_func* progress; /* of making the index, or NULL */
  void* progress_context;
} lmdbio_reader_options;

/* Opens the environment at `path`, a directory with data.mdb in it or the data file, read-only, and a reader of
 * its newest snapshot.  `options` may be NULL.  As with mdb_env_open, not on an environment that this process has
 * open: lmdbio_reader_attach is for that.  A file is opened as with MDB_NOSUBDIR, but for DIR/data.mdb without a
 * DIR/data.mdb-lock beside it: there DIR is, so that readers and writers use one lock file.  Errors as of mdb_env_open, mdb_txn_begin and mdb_dbi_open; ENOTSUP: an
 * environment that LMDBIO does not serve.  *reader is set on success alone.
 *
 * Where records are tells the index, which is read from an index file or made from the database's branch and
 * leaf pages.  Without a progress function a large one may still be being made when this returns, by a thread
 * of the library: what is wrong with the database is then the answer of the first call that needs it. */
LMDBIO_API int lmdbio_reader_open(const char* path, const lmdbio_reader_options* options,
                                  lmdbio_reader** reader);
/* The same for a transaction that the program has; the reader uses its snapshot, and is closed before it
 * ends.  Of the options database and flags are not looked at. */
LMDBIO_API int lmdbio_reader_attach(MDB_txn* txn, MDB_dbi dbi, const lmdbio_reader_options* options,
                                    lmdbio_reader** reader);
/* After its streams were closed.  Batches stay valid.  NULL: nothing. */
LMDBIO_API void lmdbio_reader_close(lmdbio_reader* reader);
/* Records: keys, or with MDB_DUPSORT pairs of key and value. */
LMDBIO_API uint64_t lmdbio_reader_count(const lmdbio_reader* reader);

/* ---- batches ------------------------------------------------------------------------------------------- */

typedef struct lmdbio_record {
  uint64_t ordinal; /* from 0, in the order of keys; UINT64_MAX: no such record (a key that does not exist) */
  MDB_val key, value; /* at no particular alignment; of no such record: empty */
} lmdbio_record;

/* Records and their bytes: valid until lmdbio_batch_release, which may be called from any thread, also after
 * the stream or the reader was closed.  A program that keeps its batches keeps its memory: once they take all
 * of it, the next one is ENOMEM.  Small batches share a buffer. */
typedef struct lmdbio_batch {
  size_t count;
  const lmdbio_record* records;
  uint64_t epoch;    /* of the first record; 0 outside streams */
  uint64_t position; /* of the first record in its epoch's sequence, from 0; 0 outside streams */
  size_t padding;    /* the last `padding` records only fill it up (LMDBIO_LAST_PAD) */
} lmdbio_batch;

/* Batches of `n` records in the given order.  An ordinal that is not below the count: EINVAL.  Waits until
 * all are read. */
LMDBIO_API int lmdbio_reader_read(lmdbio_reader* reader, const uint64_t* ordinals, size_t n,
                                  const lmdbio_batch** batch);
/* By key; with MDB_DUPSORT the key's first value.  ENOTSUP: keys in an order of the program's own. */
LMDBIO_API int lmdbio_reader_read_keys(lmdbio_reader* reader, const MDB_val* keys, size_t n,
                                       const lmdbio_batch** batch);
/* NULL: nothing. */
LMDBIO_API void lmdbio_batch_release(const lmdbio_batch* batch);

/* ---- streams ------------------------------------------------------------------------------------------- */

typedef enum lmdbio_order_kind {
  LMDBIO_ORDER_SEQUENTIAL = 0,     /* 0, 1, 2, ... */
  LMDBIO_ORDER_SHUFFLE = 1,        /* all records in the order of lmdbio_shuffle(seed, epoch, count, i) */
  LMDBIO_ORDER_WINDOW_SHUFFLE = 2, /* in order, but shuffled within each `window` records */
  LMDBIO_ORDER_LIST = 3,           /* list[0], list[1], ...: `length` ordinals */
  LMDBIO_ORDER_KEYS = 4            /* keys[0], keys[1], ...: `length` keys */
} lmdbio_order_kind;

typedef enum lmdbio_last {
  LMDBIO_LAST_KEEP = 0, /* a last batch with fewer records */
  LMDBIO_LAST_DROP = 1, /* none */
  LMDBIO_LAST_PAD = 2   /* filled up with records from the start of the epoch's sequence */
} lmdbio_last;

/* An epoch's sequence is what `kind` says, and of that the elements offset, offset + step, offset + 2 step,
 * ...: of each order, so that rank r of n reads its share with offset r, step n.  With a block of b the
 * elements are taken b at a time: offset and step count blocks.  It depends on nothing but
 * these fields and the number of records: a job goes on where another stopped, on any machine, by epoch and
 * position. */
typedef struct lmdbio_order {
  size_t size; /* sizeof(lmdbio_order) */
  lmdbio_order_kind kind;
  lmdbio_last last;     /* of each epoch */
  uint64_t batch;       /* records in a batch; 0: 1 */
  uint64_t offset;      /* below step */
  uint64_t step;        /* 0: 1 */
  uint64_t seed;        /* LMDBIO_ORDER_SHUFFLE, LMDBIO_ORDER_WINDOW_SHUFFLE */
  uint64_t window;      /* records, at least 1: LMDBIO_ORDER_WINDOW_SHUFFLE */
  const uint64_t* list; /* copied */
  const MDB_val* keys;  /* copied, bytes too */
  size_t length;        /* of list or keys */
  uint64_t epoch;       /* the first to read */
  uint64_t position;    /* in that one's sequence, from 0: the first to read */
  uint64_t epochs;      /* to read, the first included; 0: without end */
  int across_epochs;    /* 1: the epochs' orders follow each other in one sequence, of which offset and step
                           choose: with N records, element i = offset + k * step is element i % N of epoch
                           i / N.  Shares differ from epoch to epoch; batches reach from one epoch into the
                           next; `position` counts the share's records in the epoch.  `last` is of the last
                           batch of all, which LMDBIO_LAST_PAD fills up with what follows. */
  uint64_t block;       /* elements in a block of which offset and step choose; 0: 1.  With block = batch, rank
                           r of n reads a contiguous share of each n batches. */
} lmdbio_order;

/* EINVAL: a field out of its range.  With keys as lmdbio_reader_read_keys, which then waits for pages of the
 * tree. */
LMDBIO_API int lmdbio_stream_open(lmdbio_reader* reader, const lmdbio_order* order, lmdbio_stream** stream);
/* The next batch.  Batches do not reach from one epoch into the next, unless across_epochs is 1.  MDB_NOTFOUND: the end.  ECANCELED:
 * lmdbio_stream_cancel.  Another error: the batch was not read; the next call tries the same one again. */
LMDBIO_API int lmdbio_stream_next(lmdbio_stream* stream, const lmdbio_batch** batch);
/* Of the first record that lmdbio_stream_next will give next: an order with this epoch and position goes on
 * there. */
LMDBIO_API void lmdbio_stream_position(const lmdbio_stream* stream, uint64_t* epoch, uint64_t* position);
/* A lmdbio_stream_next that waits, and all later ones, give ECANCELED.  Any thread, while the stream is open.
 */
LMDBIO_API void lmdbio_stream_cancel(lmdbio_stream* stream);
/* NULL: nothing. */
LMDBIO_API void lmdbio_stream_close(lmdbio_stream* stream);

/* The permutation of LMDBIO_ORDER_SHUFFLE: element i of a permutation of 0 to count - 1, another one for each
 * seed and epoch, the same on every machine and in every version (docs/format.md).  i is below count. */
LMDBIO_API uint64_t lmdbio_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t i);

#ifdef __cplusplus
}
#endif

#endif
