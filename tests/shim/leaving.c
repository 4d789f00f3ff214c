// A module that leaves everything open when it is closed: an environment, a walk that has been read ahead, a
// stream that reads ahead, a batch, a reader whose index is being made.
#include <lmdbio/lmdbio.h>

#include "tests/procs/known.h"

enum { kPart = 300, kBatch = 20 };

int leaving_make(const char* dir);
int leaving_open(const char* dir, int what);

int leaving_make(const char* dir) {
  const struct Known known = {40000, 24000, 64};  // an index of many leaf pages
  make_known(dir, &known);
  return 0;
}

static int walk_a_part(MDB_txn* txn, MDB_dbi dbi) {
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  for (int k = 0; k < kPart; ++k) MUST(mdb_cursor_get(cursor, &key, &data, k == 0 ? MDB_FIRST : MDB_NEXT));
  return 0;
}

static int prefetch(MDB_txn* txn, MDB_dbi dbi) {
  static unsigned char names[kPart][8];
  MDB_val keys[kPart], data;
  for (unsigned k = 0; k < kPart; ++k) keys[k] = known_key(k * 97, &names[k]);
  MUST(lmdbio_prefetch(txn, dbi, keys, kPart));
  MUST(mdb_get(txn, dbi, &keys[0], &data));
  return 0;
}

static int open_reader(MDB_txn* txn, MDB_dbi dbi, int with_stream) {
  lmdbio_reader* reader;
  lmdbio_stream* stream;
  const lmdbio_batch* batch;
  const lmdbio_reader_options options = {.size = sizeof options, .memory = 8u << 20, .no_index_file = 1};
  const lmdbio_order order = {
      .size = sizeof order, .kind = LMDBIO_ORDER_SHUFFLE, .batch = kBatch, .end_epoch = LMDBIO_ENDLESS};
  MUST(lmdbio_reader_attach(txn, dbi, &options, &reader));
  if (!with_stream) return 0;  // its index is being made
  MUST(lmdbio_stream_open(reader, &order, &stream));
  MUST(lmdbio_stream_next(stream, &batch));
  return 0;
}

/// what: letters of what is left open: w a walk, t prefetched keys, s a stream and its batch, i a reader
/// alone.
int leaving_open(const char* dir, int what) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  evict(dir);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 256u << 20));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | MDB_NOTLS, 0644));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  switch (what) {
    case 'w':
      return walk_a_part(txn, dbi);
    case 't':
      return prefetch(txn, dbi);
    case 's':
      return open_reader(txn, dbi, 1);
    case 'i':
      return open_reader(txn, dbi, 0);
    default:
      return 1;
  }
}
