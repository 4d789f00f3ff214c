/* A program that closes all of its descriptors while it reads, as daemons do; other files then take the
 * numbers.
 *
 * closing make DIR                      writes the database
 * closing read DIR                      reads it all, and closes nothing
 * closing self|child DIR FILES [LEFT]   reads a part, closes all numbers from 3 on (a forked child does),
 * opens files in the directory FILES under them and reads on; no more than LEFT areas of memory can be mapped
 * then
 *
 * Each value tells its key.  "after the close: N open" is how many of the files mdb_env_close leaves open:
 * stock closes the two numbers that it had. */
#define LMDBIO_WEAK
#include <errno.h>
#include <lmdbio/lmdbio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/procs/known.h"

enum { kRecords = 6000, kAhead = 100, kBatch = 20, kFiles = 96, kFileBytes = 6000, kPatience = 60 };

static MDB_env* env;
static MDB_txn* txn;
static MDB_dbi dbi;
static lmdbio_reader* reader;
static lmdbio_stream* stream;
static const lmdbio_batch* kept;
static int few_vmas;

/* Many leaf pages, and values on pages of their own. */
static size_t size_of(uint64_t i) { return i % 8 == 0 ? 20000 - i % 100 : 1000 + i % 700; }
static int right(uint64_t i, const MDB_val* key, const MDB_val* data) {
  return number_of(key) == i && data->mv_size == size_of(i) && is_known(i, 0, data->mv_data, data->mv_size);
}

/* Readers may say so where hardly anything can be mapped, a thread's stack neither; LMDB's calls may not. */
static int lacks_memory(int rc) { return few_vmas && (rc == ENOMEM || rc == EAGAIN); }

static void fail(const char* what, uint64_t i, int rc) {
  say("%s, record %llu: %s", what, (unsigned long long)i, rc == 0 ? "wrong" : mdb_strerror(rc));
  if (lmdbio_error && lmdbio_error()[0] != '\0') say("  %s", lmdbio_error());
  fflush(stdout);
  _exit(1);
}

static void make(const char* dir) {
  static char value[20008];
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 64u << 20));
  MUST(mdb_env_open(env, dir, MDB_NOSYNC, 0644));
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  for (uint64_t i = 0; i < kRecords; ++i) {
    unsigned char name[8];
    MDB_val key = known_key(i, &name), data = {size_of(i), value};
    fill_known(i, 0, value, data.mv_size);
    MUST(mdb_put(txn, dbi, &key, &data, MDB_APPEND));
  }
  MUST(mdb_txn_commit(txn));
  mdb_env_close(env);
}

/* -- what it reads */

static void walk(const char* what, uint64_t n, int back) {
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  for (uint64_t k = 0; k < n; ++k) {
    const uint64_t i = back ? kRecords - 1 - k : k;
    const int rc = mdb_cursor_get(cursor, &key, &data,
                                  k > 0  ? (back ? MDB_PREV : MDB_NEXT)
                                  : back ? MDB_LAST
                                         : MDB_FIRST);
    if (rc != 0 || !right(i, &key, &data)) fail(what, i, rc);
  }
  if (n == kRecords && mdb_cursor_get(cursor, &key, &data, back ? MDB_PREV : MDB_NEXT) != MDB_NOTFOUND)
    fail(what, n, 0);
  mdb_cursor_close(cursor);
}

/* Lookups in a random order, `ahead` of them told at a time where the library is there. */
static void look_up(const char* what, unsigned n, unsigned ahead, unsigned seed) {
  static unsigned char names[kAhead][8];
  MDB_val keys[kAhead];
  for (unsigned done = 0; done < n; done += kAhead) {
    for (unsigned k = 0; k < kAhead; ++k)
      keys[k] = known_key(mixed(seed * 100000u + done + k) % kRecords, &names[k]);
    if (ahead && lmdbio_prefetch) {
      const int rc = lmdbio_prefetch(txn, dbi, keys, kAhead);
      if (rc != 0) fail("lmdbio_prefetch", done, rc);
    }
    for (unsigned k = 0; k < kAhead; ++k) {
      MDB_val data;
      const int rc = mdb_get(txn, dbi, &keys[k], &data);
      if (rc != 0 || !right(number_of(&keys[k]), &keys[k], &data)) fail(what, number_of(&keys[k]), rc);
    }
  }
}

static void check_batch(const char* what, const lmdbio_batch* batch) {
  for (size_t k = 0; k < batch->count; ++k)
    if (!right(batch->records[k].ordinal, &batch->records[k].key, &batch->records[k].value))
      fail(what, batch->records[k].ordinal, 0);
}

static void next_batches(const char* what, unsigned n) {
  for (unsigned k = 0; k < n; ++k) {
    const lmdbio_batch* batch;
    const int rc = lmdbio_stream_next(stream, &batch);
    if (lacks_memory(rc)) return;
    if (rc != 0) fail(what, k * kBatch, rc);
    check_batch(what, batch);
    lmdbio_batch_release(batch);
  }
}

static void read_ordinals(const char* what, unsigned n, unsigned seed) {
  uint64_t ordinals[kBatch];
  for (unsigned k = 0; k < n; ++k) {
    const lmdbio_batch* batch;
    for (unsigned j = 0; j < kBatch; ++j) ordinals[j] = mixed(seed * 100000u + k * kBatch + j) % kRecords;
    const int rc = lmdbio_reader_read(reader, ordinals, kBatch, &batch);
    if (lacks_memory(rc)) return;
    if (rc != 0) fail(what, ordinals[0], rc);
    check_batch(what, batch);
    lmdbio_batch_release(batch);
  }
}

/* The index of a reader is made on in the background. */
static void attach(void) {
  if (!lmdbio_reader_attach) return;
  lmdbio_reader_options options = {.size = sizeof options, .memory = 8u << 20, .no_index_file = 1};
  lmdbio_order order = {.size = sizeof order,
                        .kind = LMDBIO_ORDER_SHUFFLE,
                        .batch = kBatch,
                        .seed = 5,
                        .end_epoch = LMDBIO_ENDLESS};
  int rc = lmdbio_reader_attach(txn, dbi, &options, &reader);
  if (rc == 0) rc = lmdbio_stream_open(reader, &order, &stream);
  if (rc != 0 && !lacks_memory(rc)) fail(reader ? "lmdbio_stream_open" : "lmdbio_reader_attach", 0, rc);
  if (rc == 0) return;
  lmdbio_reader_close(reader);
  reader = NULL;
}

static void begin(void) {
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
}

static void read_on(void) {
  walk("walk", kRecords, 0);
  walk("walk back", kRecords, 1);
  look_up("lookup", 400, 0, 3);
  look_up("prefetched lookup", 600, 1, 4);
}

static void end_reader(void) {
  if (!reader) return;
  if (kept) lmdbio_batch_release(kept);
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
  kept = NULL;
  stream = NULL;
  reader = NULL;
}

static void read_on_by_reader(int forked) {
  if (!reader) return;
  if (forked) {
    const uint64_t one = 7;
    const lmdbio_batch* batch;
    if (lmdbio_reader_read(reader, &one, 1, &batch) != EINVAL || lmdbio_stream_next(stream, &batch) != EINVAL)
      fail("a child has the parent's reader", one, 0);
    return;
  }
  next_batches("stream", kRecords / kBatch + 3);
  read_ordinals("reader", 20, 6);
  check_batch("a batch that is kept", kept);
  end_reader();
  attach(); /* an index build without any of the numbers */
  if (!reader) return;
  next_batches("second stream", 10);
  read_ordinals("second reader", 5, 7);
}

/* -- the files that take the numbers */

static struct stat made[kFiles];
static int numbers[kFiles];
static char directory[4000];

static void file_bytes(unsigned i, char* to) { fill_known(1000000 + i, 1, to, kFileBytes); }

static void open_files(void) {
  char name[4200], bytes[kFileBytes];
  for (unsigned i = 0; i < kFiles; ++i) {
    snprintf(name, sizeof name, "%s/%u", directory, i);
    numbers[i] = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(numbers[i] == 3 + (int)i); /* every number that was free */
    file_bytes(i, bytes);
    CHECK(write(numbers[i], bytes, kFileBytes) == kFileBytes);
    CHECK(lseek(numbers[i], 100 + i, SEEK_SET) == 100 + (off_t)i && fstat(numbers[i], &made[i]) == 0);
  }
}

/* How many are open; those must be as they were, and so must be the bytes of the others. */
static unsigned check_files(void) {
  char name[4200], bytes[kFileBytes], found[kFileBytes + 1];
  unsigned open_ones = 0;
  for (unsigned i = 0; i < kFiles; ++i) {
    struct stat now;
    file_bytes(i, bytes);
    if (fstat(numbers[i], &now) == 0) {
      ++open_ones;
      if (now.st_dev != made[i].st_dev || now.st_ino != made[i].st_ino)
        say("number %d is another file", numbers[i]), exit(1);
      const off_t at = lseek(numbers[i], 0, SEEK_CUR);
      if (at != 100 + (off_t)i) say("number %d: offset %lld", numbers[i], (long long)at), exit(1);
    }
    snprintf(name, sizeof name, "%s/%u", directory, i);
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    const ssize_t n = pread(fd, found, sizeof found, 0);
    if (n != kFileBytes || memcmp(bytes, found, kFileBytes) != 0)
      say("number %d was written to: %zd bytes", numbers[i], n), exit(1);
    close(fd);
  }
  return open_ones;
}

static void take_vmas(size_t left) {
  size_t most = 65530;
  FILE* const f = fopen("/proc/sys/vm/max_map_count", "re");
  CHECK(f != NULL && fscanf(f, "%zu", &most) == 1);
  fclose(f);
  char* const taken =
      mmap(NULL, most * 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(taken != MAP_FAILED);
  size_t now = vmas_now();
  for (char* page = taken + 4096; now + left + 2 <= most; page += 8192, now += 2)
    if (mprotect(page, 4096, PROT_READ) != 0) break;
}

static void close_and_read_on(long left, int forked) {
  alarm(kPatience); /* a hang */
  few_vmas = left >= 0;
  if (few_vmas) take_vmas((size_t)left);
  CHECK(close_range(3, ~0u, 0) == 0);
  open_files();
  read_on();
  read_on_by_reader(forked);
  say("values right");
  mdb_txn_abort(txn);
  begin();
  read_on();
  say("files open: %u", check_files());
  end_reader();
  mdb_txn_abort(txn);
  say("files open: %u", check_files());
  mdb_env_close(env);
  say("after the close: %u open", check_files());
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const char* const how = argv[1];
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (strcmp(how, "make") == 0) {
    make(argv[2]);
    return 0;
  }
  evict(argv[2]);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 64u << 20));
  MUST(mdb_env_open(env, argv[2], MDB_RDONLY | MDB_NOTLS, 0644));
  begin();
  if (strcmp(how, "read") == 0) {
    alarm(kPatience);
    read_on();
    say("values right");
    attach();
    if (reader) next_batches("stream", 30), read_ordinals("reader", 10, 1);
    end_reader();
    mdb_txn_abort(txn);
    mdb_env_close(env);
    return 0;
  }
  if (argc < 4) return 2;
  snprintf(directory, sizeof directory, "%s", argv[3]);
  walk("walk before", 800, 0);
  look_up("lookup before", 100, 0, 1);
  look_up("prefetched lookup before", 100, 1, 2);
  attach();
  if (reader) {
    next_batches("stream before", 1);
    MUST(lmdbio_stream_next(stream, &kept));
  }
  const long left = argc > 4 ? strtol(argv[4], NULL, 10) : -1;
  if (strcmp(how, "self") == 0) {
    close_and_read_on(left, 0);
    return 0;
  }
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    close_and_read_on(left, 1);
    _exit(0);
  }
  int status;
  alarm(2 * kPatience);
  CHECK(waitpid(pid, &status, 0) == pid);
  if (status != 0) say("child: status %x", (unsigned)status), exit(1);
  read_on(); /* the parent has its descriptors */
  if (reader) next_batches("stream of the parent", 20);
  end_reader();
  mdb_txn_abort(txn);
  mdb_env_close(env);
  say("parent: values right");
  return 0;
}
