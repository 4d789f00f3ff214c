// A comparator that throws: out of mdb_get, mdb_cursor_get and mdb_dbi_open of a name, at each comparison in
// turn.
//   throwing DIR     DIR exists and is empty
#include <lmdb.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace {

constexpr unsigned kRecords = 3000;

void must(int rc, const char* what) {
  if (rc == 0) return;
  std::printf("%s = %d, giving up\n", what, rc);
  std::exit(1);
}
#define MUST(call) must((call), #call)

struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

int left = 0;

int throwing(const MDB_val* a, const MDB_val* b) {
  if (left > 0 && --left == 0) throw Thrown(std::string(100, 'x'));
  const std::size_t n = a->mv_size < b->mv_size ? a->mv_size : b->mv_size;
  const int d = std::memcmp(a->mv_data, b->mv_data, n);
  return d != 0 ? d : (a->mv_size > b->mv_size) - (a->mv_size < b->mv_size);
}

MDB_val text(std::string& s) { return {s.size(), s.data()}; }

std::string name(unsigned i) {
  char s[16];
  std::snprintf(s, sizeof s, "k%05u", i);
  return s;
}

void make(const char* dir) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi, named;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_maxdbs(env, 2));
  MUST(mdb_env_set_mapsize(env, 16u << 20));
  MUST(mdb_env_open(env, dir, MDB_NOSYNC, 0644));
  MUST(mdb_txn_begin(env, nullptr, 0, &txn));
  MUST(mdb_dbi_open(txn, nullptr, 0, &dbi));
  MUST(mdb_dbi_open(txn, "named", MDB_CREATE, &named));
  for (unsigned i = 0; i < kRecords; ++i) {
    std::string k = name(i);
    MDB_val key = text(k), data = text(k);
    MUST(mdb_put(txn, dbi, &key, &data, 0));
  }
  MUST(mdb_txn_commit(txn));
  mdb_env_close(env);
}

enum Call { kGet, kCursor, kDbiOpen, kCalls };

int make_call(Call call, MDB_txn* txn, MDB_dbi dbi, MDB_cursor* cursor) {
  std::string k = name(1234);
  MDB_val key = text(k), data;
  MDB_dbi named;
  switch (call) {
    case kGet:
      return mdb_get(txn, dbi, &key, &data);
    case kCursor:
      return mdb_cursor_get(cursor, &key, &data, MDB_SET_RANGE);
    default:
      return mdb_dbi_open(txn, "named", 0, &named);
  }
}

/// At how many comparisons of `call` the comparator could throw.
int throws_of(Call call, MDB_env* env) {
  for (int nth = 1;; ++nth) {
    MDB_txn* txn;
    MDB_dbi dbi;
    MDB_cursor* cursor;
    MUST(mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn));
    MUST(mdb_dbi_open(txn, nullptr, 0, &dbi));
    MUST(mdb_set_compare(txn, dbi, throwing));
    MUST(mdb_cursor_open(txn, dbi, &cursor));
    bool thrown = false;
    left = nth;
    try {
      MUST(make_call(call, txn, dbi, cursor));
    } catch (const Thrown& e) {
      thrown = std::strlen(e.what()) == 100;
    }
    const bool reached = left == 0;
    left = 0;
    if (thrown != reached) must(-1, "what was thrown arrives");
    MUST(make_call(kGet, txn, dbi, cursor));
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    if (!reached) return nth - 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  make(argv[1]);
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_maxdbs(env, 2));
  MUST(mdb_env_open(env, argv[1], MDB_RDONLY, 0644));
  for (int call = 0; call < kCalls; ++call)
    std::printf("%d: %s\n", call, throws_of(static_cast<Call>(call), env) > 3 ? "thrown" : "hardly thrown");
  mdb_env_close(env);
  return 0;
}
