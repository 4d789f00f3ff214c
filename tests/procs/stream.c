// A database far larger than the memory that may be used for it, read from one end to the other.
//   stream make DIR RECORDS BYTES
//   stream read DIR          every byte is checked; says what the process had at most
#include "known.h"

static void read_once(const char* dir) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, dir, MDB_RDONLY, 0644));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  const size_t areas = vmas_now();
  size_t n = 0, bytes = 0, most_vmas = 0, most_anonymous = 0;
  uint64_t sum = 0, want = 0;
  int rc;
  for (rc = mdb_cursor_get(cursor, &key, &data, MDB_FIRST); rc == 0;
       rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT)) {
    CHECK(number_of(&key) == n && is_known(n, 0, data.mv_data, data.mv_size));
    for (size_t at = 0; at + 8 <= data.mv_size; at += 8) {
      uint64_t word;
      memcpy(&word, (const char*)data.mv_data + at, 8);
      sum += word;
    }
    const uint64_t seed = mixed(n * 2 + 1), words = data.mv_size / 8;
    want += words * seed + words * (words - 1) / 2 * 0x9E3779B97F4A7C15u;
    bytes += data.mv_size;
    if (++n % (1 << 16) != 0) continue;
    const size_t now = vmas_now(), anonymous = number_in("/proc/self/status", "RssAnon");
    most_vmas = now > most_vmas ? now : most_vmas;
    most_anonymous = anonymous > most_anonymous ? anonymous : most_anonymous;
  }
  CHECK(rc == MDB_NOTFOUND && sum == want);
  MDB_stat stat;
  MUST(mdb_stat(txn, dbi, &stat));
  CHECK(stat.ms_entries == n);
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  say("records %zu bytes %zu vmas_before %zu areas %zu anonymous_kib %zu", n, bytes, areas, most_vmas,
      most_anonymous);
}

int main(int argc, char** argv) {
  if (argc == 5 && strcmp(argv[1], "make") == 0) {
    const struct Known k = {strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0), 0};
    make_known(argv[2], &k);
    return 0;
  }
  if (argc == 3 && strcmp(argv[1], "read") == 0) {
    read_once(argv[2]);
    return 0;
  }
  fprintf(stderr, "usage: stream make DIR RECORDS BYTES | read DIR\n");
  return 2;
}
