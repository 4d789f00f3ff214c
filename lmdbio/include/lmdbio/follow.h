/** @file
 * Follows a database while another program writes to it: returns batches of new records, in the order in
 * which they were committed, mixed with old ones ("rehearsal").  For C and C++; follower.h in this directory
 * is the interface for C++20.  docs/follow.md explains the use, docs/format.md defines the order.
 *
 * Return codes and errors as in lmdbio.h. */
#ifndef LMDBIO_FOLLOW_H
#define LMDBIO_FOLLOW_H

#include <lmdbio/lmdbio.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Batches of a database that grows.  One thread at a time, except for lmdbio_follow_cancel.  In a forked
 * child, calls on an inherited object return EINVAL, and lmdbio_follow_close does nothing. */
typedef struct lmdbio_follow lmdbio_follow;

/** The records from which old samples are drawn. */
typedef enum lmdbio_buffer {
  LMDBIO_BUFFER_RESERVOIR = 0, /**< `capacity` records, each with the same probability (Algorithm R) */
  LMDBIO_BUFFER_CLASS = 1, /**< one reservoir of `capacity` records for each label; batches take the labels
                                in turn */
  LMDBIO_BUFFER_RING = 2,  /**< the last `capacity` records */
  LMDBIO_BUFFER_ALL = 3    /**< all records */
} lmdbio_buffer;

/** What lmdbio_follow_next does if there are fewer new records than a batch needs. */
typedef enum lmdbio_on_empty {
  LMDBIO_EMPTY_WAIT = 0,     /**< waits for a whole batch */
  LMDBIO_EMPTY_REHEARSE = 1, /**< returns a batch with fewer new records, or with old ones only; waits if
                                there are no old ones either */
  LMDBIO_EMPTY_STOP = 2      /**< returns the rest, then MDB_NOTFOUND */
} lmdbio_on_empty;

/** Returns the label of a record, for LMDBIO_BUFFER_CLASS.  Must always return the same label for the same
 * record.  Called in lmdbio_follow_open and lmdbio_follow_next, once for each new record.  Must not throw
 * exceptions or call the library.  Without locks, it may also be called with bytes that a writer has
 * overwritten; the label is then not used.
 * @param context  lmdbio_follow_options::label_context
 * @param key      the key of the record
 * @param value    its value; bytes that are not in memory are read by page faults when they are used
 * @return any number. */
typedef uint64_t lmdbio_label_func(void* context, const MDB_val* key, const MDB_val* value);

/** Options.  Zero in a field means its default. */
typedef struct lmdbio_follow_options {
  size_t size;          /**< sizeof(lmdbio_follow_options) */
  const char* database; /**< name of a named database; NULL: the main database */
  unsigned flags; /**< flags for mdb_env_open: MDB_NOLOCK and MDB_NOSUBDIR; all others give EINVAL.  Without
                       locks, nothing protects a snapshot: ESTALE if there was more than one commit since
                       it was renewed.  With append_only, the snapshot is then just renewed */
  uint64_t seed;
  uint64_t fresh; /**< new records in a batch.  0: batches have only records that existed at the start, and
                     never end; this needs existing_are_old */
  uint64_t old;   /**< old records in a batch, or fewer if the buffer has fewer */
  uint64_t lag;   /**< old records are drawn from the buffer as it was this many batches earlier, so that they
                       can be read ahead; at most 65536; 0: 4 */
  lmdbio_buffer buffer;
  uint64_t capacity;        /**< see lmdbio_buffer; 0: 10000 */
  lmdbio_label_func* label; /**< labels for LMDBIO_BUFFER_CLASS; NULL: label_offset and label_bytes */
  void* label_context;      /**< passed to `label` */
  uint64_t label_offset;    /**< the label is the little-endian number in these bytes of the value; bytes
                                 beyond its end count as zeros */
  uint64_t label_bytes;     /**< 1 to 8; needed for LMDBIO_BUFFER_CLASS without `label` */
  int existing_are_old;     /**< 0: records that exist when the object is opened are the first new ones.  1:
                                 they are old ones */
  int append_only;          /**< 1: the writer only adds records, behind the last key.  Only the end of the
                                 tree is then read for a new snapshot, and other changes are not noticed */
  const MDB_val* finished_key; /**< a key that is no sample.  If it exists, the writer adds no more records;
                                  copied; NULL: none */
  lmdbio_on_empty on_empty;
  double timeout;         /**< longest time in seconds that a call waits for new records; 0: no limit */
  uint64_t renew_batches; /**< the snapshot is renewed after so many batches at the latest; 0: 16 */
  double renew_seconds;   /**< the same in seconds; 0: 1 */
  const void* state;      /**< a state of lmdbio_follow_state, to continue from there; NULL: a new start */
  size_t state_bytes;
} lmdbio_follow_options;

/** Opens the environment at `path` read-only, and begins to follow a database of it.  As with
 * lmdbio_reader_open, this process must not have the environment open already.
 *
 * A transaction is open all the time, and is renewed often.  So the records of a new snapshot are those that
 * differ from the previous one, whatever the writer does: inserted records are new, deleted ones are not
 * returned any more, and replaced ones are both.  With MDB_DUPSORT, each pair of key and value is a record.
 *
 * The keys of records that may still be returned are kept in memory, and count against LMDBIO_MEMORY: those
 * of all new records that were not returned yet, and those in the buffer.
 *
 * @param path     a directory that contains data.mdb, or a data file
 * @param options  options, which are copied
 * @param follow   receives the object, which the program must close
 * @return 0; errors of mdb_env_open, mdb_txn_begin and mdb_dbi_open; ENOTSUP: LMDBIO does not serve the
 * environment, or the file cannot be mapped; MDB_INCOMPATIBLE: the keys are not in the default order; EINVAL:
 * an option is out of range, or `state` is damaged or has other options; ESTALE: `state` is of another
 * database, or the database was changed after it was saved and append_only is 0. */
LMDBIO_API int lmdbio_follow_open(const char* path, const lmdbio_follow_options* options,
                                  lmdbio_follow** follow);
/** Returns the next batch: new records, followed by old ones.  lmdbio_record::ordinal is the number of the
 * sample: samples are numbered in the order in which they become known.  lmdbio_batch::position is the number
 * of the batch, from 0.
 * @param follow  the object
 * @param batch   receives the batch, which the program must release
 * @param fresh   receives the number of new records; may be NULL
 * @return 0; MDB_NOTFOUND: the end (finished_key, LMDBIO_EMPTY_STOP); ETIMEDOUT: `timeout` has passed;
 * ECANCELED: lmdbio_follow_cancel was called, or the interrupt function returned nonzero; ESTALE: the file
 * was replaced by another one, or a writer without locks has overwritten the snapshot: open the database
 * again; ENOMEM; MDB_CORRUPTED; or the error of a read.  After ETIMEDOUT, ECANCELED by the interrupt
 * function, and ENOMEM, the next call continues; other errors are permanent. */
LMDBIO_API int lmdbio_follow_next(lmdbio_follow* follow, const lmdbio_batch** batch, size_t* fresh);
/** Waits as lmdbio_follow_next does, and decides which records the next batch has, without returning it. Then
 * lmdbio_follow_next waits no more, and lmdbio_follow_ahead(follow, 0, ...) returns the same batch.  The two
 * calls count as one call of lmdbio_follow_next for the other ranks of an MPI job.
 * @param follow  the object
 * @return as lmdbio_follow_next. */
LMDBIO_API int lmdbio_follow_wait(lmdbio_follow* follow);
/** Returns a batch that lmdbio_follow_next has not returned yet, for programs that prepare batches in
 * advance. Does not wait for new records, nor change what lmdbio_follow_next and lmdbio_follow_state return.
 *
 * Batch 0 is the next one, and certain if lmdbio_follow_wait was called.  Other batches are those that
 * lmdbio_follow_next will return if a new snapshot brings nothing that belongs into them: compare the
 * ordinals.  The same ordinal means the same key and value.  lmdbio_follow_next returns a batch that was read
 * in this way without reading it again; until then, its bytes count against LMDBIO_MEMORY, as if the program
 * held the batch.
 * @param follow  the object
 * @param i       the number of batches before it
 * @param batch   receives the batch, which the program must release
 * @param fresh   receives the number of new records; may be NULL
 * @return 0; MDB_NOTFOUND: the batch is not known yet, for example because there are not enough new records;
 * at most `lag` batches are known that are not certain.  ENOMEM; or another error of the read.  For a
 * batch that is not certain, no error is permanent: lmdbio_follow_next reads it again. */
LMDBIO_API int lmdbio_follow_ahead(lmdbio_follow* follow, uint64_t i, const lmdbio_batch** batch,
                                   size_t* fresh);
/** Returns the state between two batches.  A new object with this state and otherwise the same options
 * returns the same batches as this one.  After ENOMEM, the state includes the batch for which there was no
 * room, and after lmdbio_follow_wait the batch that was decided.  The size depends on the number of records
 * whose keys are kept.
 * @param follow  the object
 * @param state   receives the state, valid until the next call for this object
 * @param bytes   receives its size
 * @return 0; EINVAL; ENOMEM. */
LMDBIO_API int lmdbio_follow_state(lmdbio_follow* follow, const void** state, size_t* bytes);
/** Tells which commit the last batch belongs to.
 * @param follow       the object
 * @param transaction  receives the transaction of the snapshot; may be NULL
 * @param pending      receives the number of new records that were not returned yet; may be NULL */
LMDBIO_API void lmdbio_follow_position(const lmdbio_follow* follow, uint64_t* transaction, uint64_t* pending);
/** Makes a waiting lmdbio_follow_next and all later calls return ECANCELED.  Any thread.
 * @param follow  the object, which must stay open during the call; NULL: no effect */
LMDBIO_API void lmdbio_follow_cancel(lmdbio_follow* follow);
/** Closes the object and its environment.  Its batches stay valid.
 * @param follow  the object, which no other thread may use; NULL: no effect */
LMDBIO_API void lmdbio_follow_close(lmdbio_follow* follow);

#ifdef __cplusplus
}
#endif

#endif
