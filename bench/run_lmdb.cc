// Worker: runs the workloads through LMDB's C interface.  The program is linked with -llmdb, and runs with
// stock LMDB, or with LMDBIO by LD_PRELOAD=liblmdbio.so.
//
//   run_lmdb DATABASE --keys image|random|prefix [--cpu N] [--tls] [--cpu-time]
//     serves a parent (worker.h)
//   run_lmdb DATABASE --keys ... --solo ROW --steps N [--seed S]
//     runs one pass, for instruction counters
#include <dlfcn.h>
#include <sys/resource.h>

#include <string>

#include "bench/worker.h"
#include "bench/workload_warm.h"

namespace lmdbio::bench {
namespace {

struct Options {
  const char* path = nullptr;
  KeyKind keys = KeyKind::kImage;
  int cpu = -1;
  unsigned flags = MDB_NOTLS;
  clockid_t clock = CLOCK_MONOTONIC;
  const char* solo = nullptr;
  std::uint64_t steps = 0, seed = 1;
};

Options parse(int argc, char** argv) {
  Options o;
  const auto value = [&](int& i) {
    return i + 1 < argc ? argv[++i] : (die("%s: value missing", argv[i]), nullptr);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--keys") {
      const std::string kind = value(i);
      o.keys = kind == "random" ? KeyKind::kRandom : kind == "prefix" ? KeyKind::kPrefix : KeyKind::kImage;
    } else if (a == "--cpu") {
      o.cpu = std::atoi(value(i));
    } else if (a == "--tls") {
      o.flags = 0;
    } else if (a == "--cpu-time") {
      o.clock = CLOCK_PROCESS_CPUTIME_ID;
    } else if (a == "--solo") {
      o.solo = value(i);
    } else if (a == "--steps") {
      o.steps = std::strtoull(value(i), nullptr, 10);
    } else if (a == "--seed") {
      o.seed = std::strtoull(value(i), nullptr, 10);
    } else {
      o.path = argv[i];
    }
  }
  if (o.path == nullptr) die("usage: run_lmdb DATABASE --keys image|random|prefix [--solo ROW --steps N]");
  return o;
}

const RowInfo& find_row(const std::string& name) {
  for (const RowInfo& r : kRows)
    if (name == r.name) return r;
  die("no such row: %s", name.c_str());
}

void describe(Reply& reply) {
  Dl_info info{};
  if (void* f = dlsym(RTLD_DEFAULT, "mdb_get"); f != nullptr && dladdr(f, &info) != 0)
    std::snprintf(reply.provider, sizeof reply.provider, "%s", info.dli_fname);
  std::snprintf(reply.version, sizeof reply.version, "%s", mdb_version(nullptr, nullptr, nullptr));
}

Tally touch_everything(const OpenDb& db) {
  Tally tally;
  MDB_txn* txn = nullptr;
  MDB_cursor* cursor = nullptr;
  must(mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  must(mdb_cursor_open(txn, db.dbi, &cursor), "mdb_cursor_open");
  MDB_val key{}, value{};
  int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
  for (; rc == 0; rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
    tally.digest += first_byte(value);
    ++tally.ops;
  }
  if (rc != MDB_NOTFOUND) ++tally.wrong;
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  return tally;
}

void timed(const OpenDb& db, const Options& o, const Command& c, Reply& reply) {
  const RowInfo& info = kRows.at(c.row);
  KeyList keys;
  if (!info.scan) keys = make_keys(db, info.row, c.seed, c.steps);
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const std::uint64_t start = clock_ns(o.clock);
  const Tally tally = run_row(db, info.row, c.steps == 0 ? db.records : c.steps, keys);
  reply.ns = clock_ns(o.clock) - start;
  getrusage(RUSAGE_SELF, &after);
  reply.ops = tally.ops;
  reply.wrong = tally.wrong;
  reply.digest = tally.digest;
  reply.minor_faults = static_cast<std::uint64_t>(after.ru_minflt - before.ru_minflt);
  reply.major_faults = static_cast<std::uint64_t>(after.ru_majflt - before.ru_majflt);
}

void untimed(const Tally& tally, Reply& reply) {
  reply.ops = tally.ops;
  reply.wrong = tally.wrong;
  reply.digest = tally.digest;
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  pin_to_cpu(o.cpu);
  const OpenDb db = open_db(o.path, o.keys, o.flags);
  if (o.solo != nullptr) {
    const RowInfo& info = find_row(o.solo);
    KeyList keys;
    if (!info.scan) keys = make_keys(db, info.row, o.seed, o.steps);
    const Tally tally = run_row(db, info.row, o.steps, keys);
    std::printf("%s ops %llu wrong %llu digest %016llx\n", info.name,
                static_cast<unsigned long long>(tally.ops), static_cast<unsigned long long>(tally.wrong),
                static_cast<unsigned long long>(tally.digest));
    mdb_env_close(db.env);
    return tally.wrong == 0 ? 0 : 1;
  }
  serve([&](const Command& c, Reply& reply) {
    switch (c.action) {
      case Action::kHello:
        describe(reply);
        break;
      case Action::kRun:
        timed(db, o, c, reply);
        break;
      case Action::kTouch:
        untimed(touch_everything(db), reply);
        break;
      case Action::kReadAll:
        untimed(read_everything(db), reply);
        break;
    }
  });
  mdb_env_close(db.env);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
