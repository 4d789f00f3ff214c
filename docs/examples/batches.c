/* Reads a database in order, in batches, and then some records by key.
 *
 *   batches DATABASE [KEY ...] */
#include <inttypes.h>
#include <lmdbio/lmdbio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char* what) {
  fprintf(stderr, "batches: %s: %s\n", what, lmdbio_error());
  return 1;
}

static int read_all(lmdbio_reader* reader) {
  lmdbio_order order = {.size = sizeof order, .kind = LMDBIO_ORDER_SEQUENTIAL, .batch = 64};
  lmdbio_stream* stream;
  const lmdbio_batch* batch;
  uint64_t records = 0, bytes = 0;
  int rc;
  if (lmdbio_stream_open(reader, &order, &stream) != 0) return failed("stream");
  while ((rc = lmdbio_stream_next(stream, &batch)) == 0) {
    for (size_t i = 0; i < batch->count; ++i) bytes += batch->records[i].value.mv_size;
    records += batch->count;
    lmdbio_batch_release(batch); /* its memory is used for a later one */
  }
  lmdbio_stream_close(stream);
  if (rc != MDB_NOTFOUND) return failed("next");
  printf("%" PRIu64 " records, %" PRIu64 " bytes\n", records, bytes);
  return 0;
}

static int read_some(lmdbio_reader* reader, char** keys, size_t n) {
  MDB_val* wanted = calloc(n + 1, sizeof *wanted);
  const lmdbio_batch* batch;
  if (wanted == NULL) return failed("memory");
  for (size_t i = 0; i < n; ++i) wanted[i] = (MDB_val){strlen(keys[i]), keys[i]};
  if (lmdbio_reader_read_keys(reader, wanted, n, &batch) != 0) { /* all of them at once */
    free(wanted);
    return failed("keys");
  }
  for (size_t i = 0; i < n; ++i) {
    const lmdbio_record* r = &batch->records[i];
    if (r->ordinal == UINT64_MAX)
      printf("%s: no such record\n", keys[i]);
    else
      printf("%s: record %" PRIu64 ", %zu bytes\n", keys[i], r->ordinal, r->value.mv_size);
  }
  lmdbio_batch_release(batch);
  free(wanted);
  return 0;
}

int main(int argc, char** argv) {
  lmdbio_reader* reader;
  int status;
  if (argc < 2) {
    fprintf(stderr, "usage: batches DATABASE [KEY ...]\n");
    return 2;
  }
  if (lmdbio_reader_open(argv[1], NULL, &reader) != 0) return failed("open");
  status = read_all(reader);
  if (status == 0 && argc > 2) status = read_some(reader, argv + 2, (size_t)argc - 2);
  lmdbio_reader_close(reader);
  return status;
}
