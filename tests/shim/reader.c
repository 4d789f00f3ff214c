// Readers, batches and streams of lmdbio.h, from C.
//   reader DIR     DIR exists and is empty
// Prints "without" where the library is not there (the program asks for it weakly), else "ok".
#define LMDBIO_WEAK
#include <errno.h>
#include <lmdbio/lmdbio.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transcript.h"

enum { kRecords = 3000, kPairs = 500, kBig = 20000 };

static char bytes[kBig];

// Of record i: most are small, some are on pages of their own.
static size_t value_size(uint64_t i) { return i % 50 == 7 ? kBig : i % 3 == 0 ? 3000 : 40; }
static void fill(uint64_t i) {
  for (size_t k = 0; k < value_size(i); ++k) bytes[k] = (char)(i * 131 + k * 7 + (k >> 8));
}
static void key_of(uint64_t i, char* out) { snprintf(out, 16, "%010llu", (unsigned long long)i); }

static int right(const lmdbio_record* r) {
  char key[16];
  if (r->ordinal >= kRecords) return 0;
  key_of(r->ordinal, key);
  fill(r->ordinal);
  return r->key.mv_size == 10 && memcmp(r->key.mv_data, key, 10) == 0 &&
         r->value.mv_size == value_size(r->ordinal) && memcmp(r->value.mv_data, bytes, r->value.mv_size) == 0;
}

static void write_records(MDB_env* env, uint64_t first, uint64_t last) {
  MDB_txn* txn;
  MDB_dbi dbi;
  char name[16];
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  for (uint64_t i = first; i < last; ++i) {
    key_of(i, name);
    fill(i);
    MDB_val key = {10, name}, value = {value_size(i), bytes};
    MUST(mdb_put(txn, dbi, &key, &value, 0));
  }
  MUST(mdb_txn_commit(txn));
}

static MDB_env* open_writable(const char* dir) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 1 << 28));
  MUST(mdb_env_set_maxdbs(env, 4));
  MUST(mdb_env_open(env, dir, MDB_NOSYNC, 0644));
  return env;
}

static void make(const char* dir, const char* pairs_dir) {
  MDB_txn* txn;
  MDB_dbi dbi;
  char name[16], item[16];
  MDB_env* env = open_writable(dir);
  write_records(env, 0, kRecords);
  mdb_env_close(env);
  MUST(mkdir(pairs_dir, 0755));
  env = open_writable(pairs_dir);
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, "pairs", MDB_CREATE | MDB_DUPSORT, &dbi));
  for (unsigned i = 0; i < kPairs; ++i) {
    key_of(i / 5, name);
    key_of(i, item);
    MDB_val key = {10, name}, value = {10, item};
    MUST(mdb_put(txn, dbi, &key, &value, 0));
  }
  MUST(mdb_txn_commit(txn));
  mdb_env_close(env);
}

static lmdbio_order order(lmdbio_order_kind kind, uint64_t batch) {
  lmdbio_order o = {0};
  o.size = sizeof o;
  o.kind = kind;
  o.batch = batch;
  o.seed = 42;
  o.window = 100;
  return o;
}

static uint64_t count_of(const lmdbio_reader* reader) {
  uint64_t count = 0;
  MUST(lmdbio_reader_count(reader, &count));
  return count;
}

// The data file of a directory stands for the directory: readers and writers share its lock file.
static void a_file_for_a_directory(const char* dir) {
  char file[4096], lock[4096];
  snprintf(file, sizeof file, "%s/data.mdb", dir);
  snprintf(lock, sizeof lock, "%s/data.mdb-lock", dir);
  lmdbio_reader* reader = NULL;
  MUST(lmdbio_reader_open(file, NULL, &reader));
  CHECK(count_of(reader) == kRecords);
  lmdbio_reader_close(reader);
  CHECK(access(lock, F_OK) != 0);
  // A database that is a file by itself.
  char alone[4096], alone_lock[4096];
  snprintf(alone, sizeof alone, "%s/alone.mdb", dir);
  snprintf(alone_lock, sizeof alone_lock, "%s/alone.mdb-lock", dir);
  CHECK(link(file, alone) == 0);
  MUST(lmdbio_reader_open(alone, NULL, &reader));
  CHECK(count_of(reader) == kRecords);
  lmdbio_reader_close(reader);
  CHECK(unlink(alone) == 0 && unlink(alone_lock) == 0);
}

static void wrong_arguments(const char* dir) {
  char missing[4096];
  lmdbio_reader* reader = NULL;
  lmdbio_stream* stream = NULL;
  const lmdbio_batch* batch = NULL;
  CHECK(strcmp(lmdbio_error(), "") == 0);
  snprintf(missing, sizeof missing, "%s/none", dir);
  CHECK(lmdbio_reader_open(missing, NULL, &reader) == ENOENT && reader == NULL);
  CHECK(strstr(lmdbio_error(), missing) != NULL);
  lmdbio_reader_options options = {0};
  CHECK(lmdbio_reader_open(dir, &options, &reader) == EINVAL);  // no size
  options.size = sizeof options;
  options.flags = MDB_RDONLY;
  CHECK(lmdbio_reader_open(dir, &options, &reader) == EINVAL);
  options.flags = 0;
  options.database = "none";
  CHECK(lmdbio_reader_open(dir, &options, &reader) == MDB_NOTFOUND && strstr(lmdbio_error(), "none") != NULL);
  CHECK(lmdbio_reader_open(NULL, NULL, &reader) == EINVAL && lmdbio_reader_open(dir, NULL, NULL) == EINVAL);
  CHECK(lmdbio_reader_attach(NULL, 1, NULL, &reader) == EINVAL && reader == NULL);
  lmdbio_reader_close(NULL);
  lmdbio_stream_close(NULL);
  lmdbio_stream_cancel(NULL);
  lmdbio_batch_release(NULL);
  uint64_t count = 77;
  CHECK(lmdbio_reader_count(NULL, &count) == EINVAL && count == 77);
  CHECK(strstr(lmdbio_error(), "lmdbio_reader_count") != NULL);
  MUST(lmdbio_reader_open(dir, NULL, &reader));
  CHECK(lmdbio_reader_count(reader, NULL) == EINVAL);
  const uint64_t beyond = kRecords, none = UINT64_MAX;
  CHECK(lmdbio_reader_read(reader, &beyond, 1, &batch) == EINVAL && batch == NULL);
  CHECK(strstr(lmdbio_error(), dir) != NULL && strstr(lmdbio_error(), "3000") != NULL);
  CHECK(lmdbio_reader_read(reader, &none, 1, &batch) == EINVAL);
  CHECK(lmdbio_reader_read(reader, NULL, 1, &batch) == EINVAL);
  MDB_val empty = {0, NULL};
  CHECK(lmdbio_reader_read_keys(reader, &empty, 1, &batch) == MDB_BAD_VALSIZE);
  lmdbio_order o = order(LMDBIO_ORDER_SEQUENTIAL, 1);
  o.size = 3;
  CHECK(lmdbio_stream_open(reader, &o, &stream) == EINVAL && stream == NULL);
  o.size = sizeof o;
  o.step = 2;
  o.offset = 2;
  CHECK(lmdbio_stream_open(reader, &o, &stream) == EINVAL && stream == NULL);
  CHECK(strstr(lmdbio_error(), dir) != NULL && strstr(lmdbio_error(), "offset") != NULL);
  // From a newer header: what is not known must be zero.
  struct {
    lmdbio_order o;
    uint64_t more;
  } newer = {order(LMDBIO_ORDER_SEQUENTIAL, 1), 1};
  newer.o.size = sizeof newer;
  CHECK(lmdbio_stream_open(reader, &newer.o, &stream) == EINVAL);
  newer.more = 0;
  MUST(lmdbio_stream_open(reader, &newer.o, &stream));
  lmdbio_stream_close(stream);
  // From an older header: what it lacks is zero, so that one epoch is read.
  o = order(LMDBIO_ORDER_SEQUENTIAL, kRecords);
  o.size = offsetof(lmdbio_order, list);
  MUST(lmdbio_stream_open(reader, &o, &stream));
  MUST(lmdbio_stream_next(stream, &batch));
  CHECK(batch->epoch == 0 && batch->count == kRecords);
  lmdbio_batch_release(batch);
  CHECK(lmdbio_stream_next(stream, &batch) == MDB_NOTFOUND);
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
}

static uint64_t drain(lmdbio_reader* reader, const lmdbio_order* o) {
  lmdbio_stream* stream;
  const lmdbio_batch* batch;
  uint64_t n = 0, epoch, position;
  MUST(lmdbio_stream_open(reader, o, &stream));
  for (;;) {
    lmdbio_stream_position(stream, &epoch, &position);
    const int rc = lmdbio_stream_next(stream, &batch);
    if (rc == MDB_NOTFOUND) break;
    CHECK(rc == 0 && batch->epoch == epoch && batch->position == position && batch->padding == 0);
    for (size_t i = 0; i < batch->count; ++i) {
      CHECK(right(&batch->records[i]));
      if (o->kind == LMDBIO_ORDER_SHUFFLE)
        CHECK(batch->records[i].ordinal == lmdbio_shuffle(42, epoch, kRecords, position + i));
      else if (o->kind == LMDBIO_ORDER_SEQUENTIAL)
        CHECK(batch->records[i].ordinal == position + i);
    }
    n += batch->count;
    lmdbio_batch_release(batch);
  }
  CHECK(lmdbio_stream_next(stream, &batch) == MDB_NOTFOUND);
  lmdbio_stream_close(stream);
  return n;
}

static void reading(const char* dir) {
  lmdbio_reader* reader;
  lmdbio_stream* stream;
  const lmdbio_batch *batch, *kept;
  MUST(lmdbio_reader_open(dir, NULL, &reader));
  CHECK(count_of(reader) == kRecords);
  const uint64_t some[] = {7, 2999, 0, 7, 1500};
  MUST(lmdbio_reader_read(reader, some, 5, &batch));
  CHECK(batch->count == 5 && batch->epoch == 0 && batch->position == 0);
  for (unsigned i = 0; i < 5; ++i) CHECK(batch->records[i].ordinal == some[i] && right(&batch->records[i]));
  lmdbio_batch_release(batch);
  MUST(lmdbio_reader_read(reader, NULL, 0, &batch));
  CHECK(batch->count == 0);
  lmdbio_batch_release(batch);
  char name[16];
  key_of(1234, name);
  MDB_val keys[2] = {{10, name}, {4, "none"}};
  MUST(lmdbio_reader_read_keys(reader, keys, 2, &batch));
  CHECK(batch->count == 2 && batch->records[0].ordinal == 1234 && right(&batch->records[0]));
  CHECK(batch->records[1].ordinal == UINT64_MAX && batch->records[1].value.mv_size == 0);
  lmdbio_batch_release(batch);

  const lmdbio_order_kind kinds[] = {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SHUFFLE,
                                     LMDBIO_ORDER_WINDOW_SHUFFLE};
  for (unsigned k = 0; k < 3; ++k)
    for (uint64_t batch_size = 1; batch_size < 5000; batch_size = batch_size * 7 + 1) {
      lmdbio_order o = order(kinds[k], batch_size);
      o.end_epoch = 2;
      CHECK(drain(reader, &o) == 2 * kRecords);
    }
  lmdbio_order o = order(LMDBIO_ORDER_KEYS, 2);
  o.keys = keys;
  o.length = 2;
  MUST(lmdbio_stream_open(reader, &o, &stream));
  memset(name, 'x', 10);  // keys were copied
  MUST(lmdbio_stream_next(stream, &batch));
  CHECK(batch->records[0].ordinal == 1234 && batch->records[1].ordinal == UINT64_MAX);
  lmdbio_batch_release(batch);
  CHECK(lmdbio_stream_next(stream, &batch) == MDB_NOTFOUND);
  lmdbio_stream_close(stream);

  // Batches are the program's until it gives them back.
  o = order(LMDBIO_ORDER_SHUFFLE, 10);
  MUST(lmdbio_stream_open(reader, &o, &stream));
  MUST(lmdbio_stream_next(stream, &kept));
  MUST(lmdbio_stream_next(stream, &batch));
  lmdbio_batch_release(batch);
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
  for (unsigned i = 0; i < 10; ++i) CHECK(right(&kept->records[i]));
  lmdbio_batch_release(kept);
}

static int stops_at_once(void* context, const char* what, uint64_t done, uint64_t total) {
  CHECK(strcmp(what, "index") == 0 && done <= total);
  ++*(unsigned*)context;
  return 1;
}
static int goes_on(void* context, const char* what, uint64_t done, uint64_t total) {
  (void)what, (void)done, (void)total;
  ++*(unsigned*)context;
  return 0;
}

// The end is an epoch: a resumed stream has the same end as the first one.
static void ends(const char* dir) {
  lmdbio_reader* reader;
  lmdbio_stream* stream;
  const lmdbio_batch* batch;
  uint64_t epoch, position;
  MUST(lmdbio_reader_open(dir, NULL, &reader));
  lmdbio_order o = order(LMDBIO_ORDER_SHUFFLE, 64);
  o.epoch = 7;
  CHECK(drain(reader, &o) == kRecords);  // one epoch, whichever it is
  o.end_epoch = 10;
  CHECK(drain(reader, &o) == 3 * kRecords);
  o.epoch = 3;
  o.position = 1000;
  CHECK(drain(reader, &o) == 7 * kRecords - 1000);
  MUST(lmdbio_stream_open(reader, &o, &stream));
  for (unsigned n = 0; n < 50; ++n) {
    MUST(lmdbio_stream_next(stream, &batch));
    lmdbio_batch_release(batch);
  }
  lmdbio_stream_position(stream, &epoch, &position);
  lmdbio_stream_close(stream);
  CHECK(epoch == 4);
  o.epoch = epoch;
  o.position = position;
  CHECK(drain(reader, &o) == 6 * kRecords - position);
  o.end_epoch = 0;
  CHECK(drain(reader, &o) == kRecords - position);
  // Nothing is left: an empty stream.
  o.position = 0;
  for (o.epoch = 10; o.epoch < 13; ++o.epoch)
    for (o.across_epochs = 0; o.across_epochs < 2; ++o.across_epochs) {
      o.end_epoch = 10;
      CHECK(drain(reader, &o) == 0);
    }
  o.across_epochs = 0;
  o.epoch = UINT64_MAX;
  o.end_epoch = 0;
  CHECK(drain(reader, &o) == 0);
  o.end_epoch = 1;
  o.epoch = 1;
  o.position = kRecords + 1;  // is still wrong
  CHECK(lmdbio_stream_open(reader, &o, &stream) == EINVAL);
  o.position = 0;
  o.end_epoch = LMDBIO_ENDLESS;
  MUST(lmdbio_stream_open(reader, &o, &stream));
  for (uint64_t n = 0; n < 20 * kRecords; n += batch->count, lmdbio_batch_release(batch))
    MUST(lmdbio_stream_next(stream, &batch));
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
}

static void options_and_attached(const char* dir, const char* pairs_dir) {
  lmdbio_reader* reader = NULL;
  const lmdbio_batch* batch;
  lmdbio_reader_options options = {0};
  unsigned calls = 0;
  options.size = sizeof options;
  options.no_index_file = 1;
  options.memory = 8 << 20;
  options.progress = stops_at_once;
  options.progress_context = &calls;
  int rc = lmdbio_reader_open(dir, &options, &reader);
  if (calls != 0) CHECK(rc == ECANCELED && reader == NULL);
  if (rc == 0) lmdbio_reader_close(reader);
  options.progress = goes_on;
  MUST(lmdbio_reader_open(dir, &options, &reader));
  lmdbio_order o = order(LMDBIO_ORDER_SHUFFLE, 100);
  CHECK(drain(reader, &o) == kRecords);
  lmdbio_reader_close(reader);

  options.progress = NULL;
  options.database = "pairs";
  MUST(lmdbio_reader_open(pairs_dir, &options, &reader));
  CHECK(count_of(reader) == kPairs);
  char name[16], item[16];
  key_of(3, name);
  key_of(15, item);
  MDB_val key = {10, name};
  MUST(lmdbio_reader_read_keys(reader, &key, 1, &batch));
  CHECK(batch->records[0].ordinal == 15 && memcmp(batch->records[0].value.mv_data, item, 10) == 0);
  lmdbio_batch_release(batch);
  const uint64_t last = kPairs - 1;
  MUST(lmdbio_reader_read(reader, &last, 1, &batch));
  key_of(last, item);
  CHECK(batch->records[0].value.mv_size == 10 && memcmp(batch->records[0].value.mv_data, item, 10) == 0);
  lmdbio_batch_release(batch);
  lmdbio_reader_close(reader);

  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, dir, MDB_RDONLY, 0644));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  CHECK(lmdbio_reader_attach(txn, 77, NULL, &reader) == EINVAL);
  MUST(lmdbio_reader_attach(txn, dbi, NULL, &reader));
  o = order(LMDBIO_ORDER_SEQUENTIAL, 64);
  CHECK(drain(reader, &o) == kRecords);
  lmdbio_reader_close(reader);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  env = open_writable(dir);
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  CHECK(lmdbio_reader_attach(txn, dbi, NULL, &reader) == ENOTSUP &&
        strstr(lmdbio_error(), "writable") != NULL);
  mdb_txn_abort(txn);
  mdb_env_close(env);
}

static void* cancels(void* stream) {
  lmdbio_stream_cancel(stream);
  return NULL;
}

static void cancelled(const char* dir) {
  lmdbio_reader* reader;
  lmdbio_stream* stream;
  const lmdbio_batch* batch;
  pthread_t thread;
  MUST(lmdbio_reader_open(dir, NULL, &reader));
  lmdbio_order o = order(LMDBIO_ORDER_SHUFFLE, 10);
  o.end_epoch = LMDBIO_ENDLESS;
  MUST(lmdbio_stream_open(reader, &o, &stream));
  MUST(pthread_create(&thread, NULL, cancels, stream));
  int rc;
  while ((rc = lmdbio_stream_next(stream, &batch)) == 0) lmdbio_batch_release(batch);
  CHECK(rc == ECANCELED && lmdbio_stream_next(stream, &batch) == ECANCELED);
  pthread_join(thread, NULL);
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
}

// A child has no use of its parent's reader, and does it no harm.
static void forked(const char* dir) {
  lmdbio_reader *reader, *own;
  lmdbio_stream* stream;
  const lmdbio_batch *batch, *kept;
  int status;
  MUST(lmdbio_reader_open(dir, NULL, &reader));
  lmdbio_order o = order(LMDBIO_ORDER_SHUFFLE, 10);
  o.end_epoch = 5;
  MUST(lmdbio_stream_open(reader, &o, &stream));
  MUST(lmdbio_stream_next(stream, &kept));
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t zero = 0;
    CHECK(lmdbio_stream_next(stream, &batch) == EINVAL && strstr(lmdbio_error(), "child") != NULL);
    CHECK(lmdbio_reader_read(reader, &zero, 1, &batch) == EINVAL);
    uint64_t count = 77;
    CHECK(lmdbio_reader_count(reader, &count) == EINVAL && count == 77);
    for (unsigned i = 0; i < 10; ++i) CHECK(right(&kept->records[i]));
    lmdbio_batch_release(kept);
    lmdbio_stream_close(stream);
    lmdbio_reader_close(reader);
    MUST(lmdbio_reader_open(dir, NULL, &own));
    o.end_epoch = 1;
    CHECK(drain(own, &o) == kRecords);
    lmdbio_reader_close(own);
    _exit(0);
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (unsigned i = 0; i < 10; ++i) CHECK(right(&kept->records[i]));
  lmdbio_batch_release(kept);
  uint64_t n = 10;
  for (; lmdbio_stream_next(stream, &batch) == 0; n += batch->count, lmdbio_batch_release(batch))
    for (size_t i = 0; i < batch->count; ++i) CHECK(right(&batch->records[i]));
  CHECK(n == 5 * kRecords);
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
}

// A reader shows what was committed when it was opened, whatever is written meanwhile.
static void snapshot(const char* dir) {
  int ask[2], answer[2], status;
  char byte = 0;
  MUST(pipe(ask) | pipe(answer));
  fflush(stdout);
  const pid_t writer = fork();
  if (writer == 0) {
    for (unsigned round = 0; read(ask[0], &byte, 1) == 1 && byte != 'q'; ++round) {
      MDB_env* env = open_writable(dir);
      for (unsigned i = 0; i < 5; ++i) write_records(env, kRecords + i, kRecords + i + 1);
      MDB_txn* txn;
      MDB_dbi dbi;
      char name[16];
      MUST(mdb_txn_begin(env, NULL, 0, &txn));
      MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
      for (uint64_t i = 0; i < 500; ++i) {  // pages become free
        key_of(i + round * 500, name);
        MDB_val key = {10, name};
        MUST(mdb_del(txn, dbi, &key, NULL));
      }
      MUST(mdb_txn_commit(txn));
      write_records(env, kRecords + 5, kRecords + 400);  // and are used
      mdb_env_close(env);
      CHECK(write(answer[1], &byte, 1) == 1);
    }
    _exit(0);
  }
  lmdbio_reader* reader;
  MUST(lmdbio_reader_open(dir, NULL, &reader));
  lmdbio_order o = order(LMDBIO_ORDER_SHUFFLE, 10);
  CHECK(drain(reader, &o) == kRecords);
  for (unsigned round = 0; round < 2; ++round) {
    CHECK(write(ask[1], "w", 1) == 1 && read(answer[0], &byte, 1) == 1);
    CHECK(drain(reader, &o) == kRecords);
  }
  CHECK(write(ask[1], "q", 1) == 1 && waitpid(writer, &status, 0) == writer && status == 0);
  lmdbio_reader_close(reader);
  MUST(lmdbio_reader_open(dir, NULL, &reader));
  CHECK(count_of(reader) == kRecords - 1000 + 400);
  lmdbio_reader_close(reader);
}

int main(int argc, char** argv) {
  char pairs_dir[4096];
  if (argc != 2) return 2;
  if (!lmdbio_reader_open) {
    say("without");
    return 0;
  }
  snprintf(pairs_dir, sizeof pairs_dir, "%s/pairs", argv[1]);
  make(argv[1], pairs_dir);
  wrong_arguments(argv[1]);
  a_file_for_a_directory(argv[1]);
  reading(argv[1]);
  ends(argv[1]);
  options_and_attached(argv[1], pairs_dir);
  cancelled(argv[1]);
#ifndef __SANITIZE_ADDRESS__  /* its allocator's locks are not taken care of over a fork beside threads that allocate */
  forked(argv[1]);
#else
  (void)forked;
#endif
  snapshot(argv[1]);
  say("ok");
  return 0;
}
