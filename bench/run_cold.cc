// A reader of bench/cold: walks over all records in order, once, and reads all bytes of each.  The program is
// linked with -llmdb, and runs with stock LMDB, or with LMDBIO by LD_PRELOAD=liblmdbio.so.
//
//   run_cold DATABASE [--reverse] [--nordahead] [--mark BYTES [--stop]]
//
// --mark: also prints the digest after this number of bytes of values.  --stop: ends there.
#include <dlfcn.h>

#include <string>

#include "bench/cold_result.h"
#include "bench/workload_warm.h"

namespace lmdbio::bench {
namespace {

struct Options {
  const char* path = nullptr;
  bool reverse = false, stop = false;
  unsigned flags = MDB_NOTLS;
  std::uint64_t mark = UINT64_MAX;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--reverse") {
      o.reverse = true;
    } else if (a == "--nordahead") {
      o.flags |= MDB_NORDAHEAD;
    } else if (a == "--stop") {
      o.stop = true;
    } else if (a == "--mark" && i + 1 < argc) {
      o.mark = std::strtoull(argv[++i], nullptr, 10);
    } else if (a[0] != '-' && o.path == nullptr) {
      o.path = argv[i];
    } else {
      die("usage: run_cold DATABASE [--reverse] [--nordahead] [--mark BYTES [--stop]]");
    }
  }
  if (o.path == nullptr) die("run_cold: no database");
  return o;
}

void walk(const OpenDb& db, const Options& o, std::uint64_t start, ColdResult& r) {
  MDB_txn* txn = nullptr;
  MDB_cursor* cursor = nullptr;
  must(mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  must(mdb_cursor_open(txn, db.dbi, &cursor), "mdb_cursor_open");
  const MDB_cursor_op step = o.reverse ? MDB_PREV : MDB_NEXT;
  MDB_val key{}, value{};
  int rc = mdb_cursor_get(cursor, &key, &value, o.reverse ? MDB_LAST : MDB_FIRST);
  for (; rc == 0; rc = mdb_cursor_get(cursor, &key, &value, step)) {
    // The digest depends on the order of the records.
    r.digest = r.digest * 0x9e3779b97f4a7c15u + xor_bytes(key.mv_data, key.mv_size) +
               3 * xor_bytes(value.mv_data, value.mv_size) + 5 * value.mv_size;
    r.bytes += value.mv_size;
    ++r.records;
    if (r.bytes < o.mark || r.mark_records != 0) continue;
    r.mark_bytes = r.bytes;
    r.mark_records = r.records;
    r.mark_digest = r.digest;
    r.mark_seconds = static_cast<double>(clock_ns() - start) * 1e-9;
    if (o.stop) break;
  }
  const bool stopped = o.stop && r.mark_records != 0;
  if (!stopped && rc != MDB_NOTFOUND) die("mdb_cursor_get: %s", mdb_strerror(rc));
  if (!stopped && r.records != db.records)
    die("%ju of %ju records", static_cast<std::uintmax_t>(r.records),
        static_cast<std::uintmax_t>(db.records));
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  ColdResult result;
  Dl_info info{};
  if (void* f = dlsym(RTLD_DEFAULT, "mdb_cursor_get"); f != nullptr && dladdr(f, &info) != 0)
    result.library = info.dli_fname;
  const std::uint64_t start = clock_ns();
  const OpenDb db = open_db(o.path, KeyKind::kImage, o.flags);
  walk(db, o, start, result);
  mdb_env_close(db.env);
  result.seconds = static_cast<double>(clock_ns() - start) * 1e-9;
  print_result(result);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
