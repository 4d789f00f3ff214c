// All that LMDBIO takes memory for, in one process at the same time: a walk, transactions that prefetch,
// three readers with two streams each, and indexes that are made.
//   memory make DIR RECORDS BYTES
//   memory use DIR RECORDS BYTES ROUNDS MEMORY     every byte is checked; says what the process had at most
// MEMORY: of each reader, bytes; 0: LMDBIO_MEMORY.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "known.h"
#include "lmdbio/include/lmdbio/lmdbio.h"

enum { kReaders = 3, kStreams = 2, kHeld = 2 };

// The program is linked to the real LMDB alone.
static __typeof__(lmdbio_reader_open)* reader_open;
static __typeof__(lmdbio_reader_close)* reader_close;
static __typeof__(lmdbio_stream_open)* stream_open;
static __typeof__(lmdbio_stream_next)* stream_next;
static __typeof__(lmdbio_stream_close)* stream_close;
static __typeof__(lmdbio_batch_release)* batch_release;
static __typeof__(lmdbio_error)* error_text;
static __typeof__(lmdbio_prefetch)* prefetch;

static const char* dir;
static struct Known known;
static unsigned rounds;
static size_t reader_memory;
static atomic_int working;
static atomic_size_t batches, walked, looked_up, builds;

#define GOT(call)                                                                       \
  do {                                                                                  \
    const int rc_ = (call);                                                             \
    if (rc_ != 0) fprintf(stderr, "%s = %d: %s\n", #call, rc_, error_text()), _exit(1); \
  } while (0)

static lmdbio_reader_options options(void) {
  lmdbio_reader_options o = {0};
  o.size = sizeof o;
  o.memory = reader_memory;
  o.flags = MDB_NOLOCK;
  o.no_index_file = 1;
  return o;
}

struct Streamed {
  lmdbio_reader* reader;
  uint64_t seed;
};

static void* stream(void* argument) {
  const struct Streamed* const s = argument;
  lmdbio_order o = {0};
  o.size = sizeof o;
  o.kind = s->seed % 2 ? LMDBIO_ORDER_SHUFFLE : LMDBIO_ORDER_SEQUENTIAL;
  o.batch = 8;
  o.end_epoch = rounds;
  o.seed = s->seed;
  lmdbio_stream* st;
  GOT(stream_open(s->reader, &o, &st));
  const lmdbio_batch* held[kHeld] = {NULL};
  size_t n = 0;
  for (;; ++n) {
    if (held[n % kHeld] != NULL) batch_release(held[n % kHeld]);
    const int rc = stream_next(st, &held[n % kHeld]);
    if (rc == MDB_NOTFOUND) {
      held[n % kHeld] = NULL;
      break;
    }
    GOT(rc);
    const lmdbio_batch* const b = held[n % kHeld];
    for (size_t i = 0; i < b->count; ++i)
      CHECK(right_record(&known, b->records[i].ordinal, &b->records[i].key, &b->records[i].value));
  }
  for (size_t i = 0; i < kHeld; ++i)
    if (held[i] != NULL) batch_release(held[i]);
  stream_close(st);
  batches += n;
  --working;
  return NULL;
}

static void* walk(void* env) {
  for (unsigned round = 0; round < rounds; ++round) {
    MDB_txn* txn;
    MDB_cursor* cursor;
    MDB_val key, data;
    MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    MUST(mdb_cursor_open(txn, 1, &cursor));
    size_t n = 0;
    while (mdb_cursor_get(cursor, &key, &data, MDB_NEXT) == 0) CHECK(right_record(&known, n++, &key, &data));
    CHECK(n == known.records);
    walked += n;
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
  }
  --working;
  return NULL;
}

static void* look_up(void* env) {
  enum { kTold = 100 };
  for (size_t done = 0; done < rounds * known.records; done += kTold) {
    MDB_txn* txn;
    MDB_val keys[kTold], data;
    unsigned char names[kTold][8];
    uint64_t which[kTold];
    MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    for (size_t i = 0; i < kTold; ++i) {
      which[i] = mixed(done + i) % known.records;
      keys[i] = known_key(which[i], &names[i]);
    }
    MUST(prefetch(txn, 1, keys, kTold));
    for (size_t i = 0; i < kTold; ++i) {
      MUST(mdb_get(txn, 1, &keys[i], &data));
      CHECK(right_record(&known, which[i], &keys[i], &data));
    }
    mdb_txn_abort(txn);
    looked_up += kTold;
  }
  --working;
  return NULL;
}

// Readers that are opened, used once and closed: each makes an index.
static void* build(void* unused) {
  (void)unused;
  while (working > 1) {
    lmdbio_reader* r;
    const lmdbio_reader_options o = options();
    GOT(reader_open(dir, &o, &r));
    lmdbio_order order = {0};
    order.size = sizeof order;
    order.batch = 4;
    lmdbio_stream* st;
    const lmdbio_batch* b;
    GOT(stream_open(r, &order, &st));
    GOT(stream_next(st, &b));
    CHECK(right_record(&known, 0, &b->records[0].key, &b->records[0].value));
    batch_release(b);
    stream_close(st);
    reader_close(r);
    ++builds;
    evict(dir);
  }
  --working;
  return NULL;
}

static void use(void) {
  const struct {
    const char* name;
    void* to;
  } names[] = {{"lmdbio_reader_open", &reader_open},   {"lmdbio_reader_close", &reader_close},
               {"lmdbio_stream_open", &stream_open},   {"lmdbio_stream_next", &stream_next},
               {"lmdbio_stream_close", &stream_close}, {"lmdbio_batch_release", &batch_release},
               {"lmdbio_error", &error_text},          {"lmdbio_prefetch", &prefetch}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    void* const f = dlsym(RTLD_DEFAULT, names[i].name);
    CHECK(f != NULL);
    memcpy(names[i].to, &f, sizeof f);
  }
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  evict(dir);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | MDB_NOTLS | MDB_NOLOCK, 0644));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  CHECK(dbi == 1);
  const size_t before = number_in("/proc/self/status", "RssAnon");
  lmdbio_reader* readers[kReaders];
  struct Streamed streamed[kReaders * kStreams];
  pthread_t threads[kReaders * kStreams + 3];
  size_t n = 0;
  const lmdbio_reader_options o = options();
  working = kReaders * kStreams + 3;
  for (size_t i = 0; i < kReaders; ++i) GOT(reader_open(dir, &o, &readers[i]));
  for (size_t i = 0; i < kReaders * kStreams; ++i) {
    streamed[i] = (struct Streamed){readers[i % kReaders], i};
    CHECK(pthread_create(&threads[n++], NULL, stream, &streamed[i]) == 0);
  }
  CHECK(pthread_create(&threads[n++], NULL, walk, env) == 0);
  CHECK(pthread_create(&threads[n++], NULL, look_up, env) == 0);
  CHECK(pthread_create(&threads[n++], NULL, build, NULL) == 0);
  size_t most = 0;
  while (working != 0) {
    const size_t now = number_in("/proc/self/status", "RssAnon");
    most = now > most ? now : most;
    usleep(1000);
  }
  for (size_t i = 0; i < n; ++i) pthread_join(threads[i], NULL);
  for (size_t i = 0; i < kReaders; ++i) reader_close(readers[i]);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  say("before_kib %zu anonymous_kib %zu after_kib %zu batches %zu walked %zu looked_up %zu builds %zu",
      before, most, number_in("/proc/self/status", "RssAnon"), (size_t)batches, (size_t)walked,
      (size_t)looked_up, (size_t)builds);
}

int main(int argc, char** argv) {
  if (argc >= 5) known = (struct Known){strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0), 0};
  if (argc == 5 && strcmp(argv[1], "make") == 0) {
    make_known(argv[2], &known);
    return 0;
  }
  if (argc == 7 && strcmp(argv[1], "use") == 0) {
    dir = argv[2];
    rounds = (unsigned)strtoul(argv[5], NULL, 0);
    reader_memory = strtoull(argv[6], NULL, 0);
    use();
    return 0;
  }
  fprintf(stderr, "usage: memory make DIR RECORDS BYTES | use DIR RECORDS BYTES ROUNDS MEMORY\n");
  return 2;
}
