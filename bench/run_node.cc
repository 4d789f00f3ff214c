// One of the processes of bench/node.  Reads all bytes of each record of its share of a database, in several
// epochs.  The program is linked with -llmdb, and runs with stock LMDB, or with LMDBIO by
// LD_PRELOAD=liblmdbio.so.
//
//   run_node DATABASE --pattern strided|partitioned|all|random --records N [--procs P] [--rank R]
//            [--epochs N] [--seed S] [--nordahead] [--batch N --compute-us US]
//
// --records: number of records of the database.  The R-th of P processes reads these records:
//   strided      R, R + P, .., with a cursor that steps over all records
//   partitioned  the R-th of P equal parts in order; finds its first record by its key
//   all          all records in order
//   random       with mdb_get: the keys at R, R + P, .. of a permutation, which differs in each epoch
//
// --nordahead: opens the environment with MDB_NORDAHEAD.  --batch: sleeps for --compute-us after every N
// records, as if it computed.  At the end it sleeps in proportion for the records of an incomplete batch.
//
// epochs_of_run.h describes the output, and when an epoch begins.  The first epoch includes the opening of
// the environment.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/epochs_of_run.h"
#include "bench/workload_warm.h"

namespace lmdbio::bench {
namespace {

struct Options {
  const char* path = nullptr;
  std::string pattern;
  std::uint64_t records = 0, procs = 1, rank = 0, epochs = 1, seed = 1, batch = 0, compute_us = 0;
  bool nordahead = false;
};

Options parse(int argc, char** argv) {
  Options o;
  const std::pair<const char*, std::uint64_t*> numbers[] = {
      {"--records", &o.records},       {"--procs", &o.procs}, {"--rank", &o.rank},
      {"--epochs", &o.epochs},         {"--seed", &o.seed},   {"--batch", &o.batch},
      {"--compute-us", &o.compute_us},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto* number =
        std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& n) { return a == n.first; });
    if (number != std::end(numbers) && i + 1 < argc) {
      *number->second = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--pattern" && i + 1 < argc) {
      o.pattern = argv[++i];
    } else if (a == "--nordahead") {
      o.nordahead = true;
    } else if (a[0] != '-' && o.path == nullptr) {
      o.path = argv[i];
    } else {
      die("run_node: %s: see run_node.cc", a.c_str());
    }
  }
  if (o.path == nullptr) die("run_node: no database");
  if (o.records == 0) die("run_node: --records is needed");
  if (o.rank >= o.procs) die("run_node: --rank must be below --procs");
  if ((o.batch == 0) != (o.compute_us == 0)) die("run_node: --batch and --compute-us need each other");
  const std::string patterns[] = {"strided", "partitioned", "all", "random"};
  if (std::find(std::begin(patterns), std::end(patterns), o.pattern) == std::end(patterns))
    die("run_node: no such pattern: '%s'", o.pattern.c_str());
  return o;
}

/// The records that a process looks up in an epoch, with their keys.
struct Lookups {
  std::vector<std::uint32_t> ordinals;
  KeyList keys;
};

Lookups make_lookups(const Options& o, std::uint64_t epoch) {
  Lookups l;
  const std::vector<std::uint32_t> order = random_order(o.records, 0, o.seed + epoch);
  for (std::uint64_t i = o.rank; i < order.size(); i += o.procs) l.ordinals.push_back(order[i]);
  l.keys.count = l.ordinals.size();
  l.keys.bytes.resize(l.keys.count * kKeyRoom);
  for (std::size_t i = 0; i < l.keys.count; ++i)
    l.keys.size = make_key(KeyKind::kImage, l.ordinals[i], false, &l.keys.bytes[i * kKeyRoom]);
  return l;
}

/// Adds up the records that a process reads, and computes between batches.
class Share {
 public:
  explicit Share(const Options& o) : batch_(o.batch), compute_us_(o.compute_us) {}

  void add(std::uint64_t ordinal, const MDB_val& value) {
    result_.add(ordinal, value.mv_data, value.mv_size);
    if (batch_ != 0 && ++in_batch_ == batch_) compute();
  }

  /// Computes for the records of an incomplete batch.
  const RandomResult& end() {
    if (in_batch_ != 0) compute();
    return result_;
  }

 private:
  void compute() {
    std::this_thread::sleep_for(std::chrono::microseconds(compute_us_ * in_batch_ / batch_));
    in_batch_ = 0;
  }

  const std::uint64_t batch_, compute_us_;
  std::uint64_t in_batch_ = 0;
  RandomResult result_;
};

void look_up(MDB_txn* txn, MDB_dbi dbi, Lookups& l, Share& share) {
  for (std::size_t i = 0; i < l.keys.count; ++i) {
    MDB_val key = l.keys[i], value{};
    must(mdb_get(txn, dbi, &key, &value), "mdb_get");
    share.add(l.ordinals[i], value);
  }
}

/// Walks over all records and reads each `stride`-th from `first` on.
void walk(MDB_cursor* cursor, std::uint64_t records, std::uint64_t first, std::uint64_t stride,
          Share& share) {
  MDB_val key{}, value{};
  std::uint64_t at = 0;
  int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
  for (; rc == 0; rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT), ++at)
    if (at % stride == first) share.add(at, value);
  if (rc != MDB_NOTFOUND) die("mdb_cursor_get: %s", mdb_strerror(rc));
  if (at != records) die("%" PRIu64 " of %" PRIu64 " records", at, records);
}

/// Reads the records first .. end - 1 in order.
void read_part(MDB_cursor* cursor, std::uint64_t first, std::uint64_t end, Share& share) {
  char name[kKeyRoom];
  MDB_val key{make_key(KeyKind::kImage, first, false, name), name}, value{};
  for (std::uint64_t at = first; at < end; ++at) {
    must(mdb_cursor_get(cursor, &key, &value, at == first ? MDB_SET_KEY : MDB_NEXT), "mdb_cursor_get");
    share.add(at, value);
  }
}

RandomResult read_share(const OpenDb& db, const Options& o, Lookups* lookups) {
  Share share(o);
  MDB_txn* txn = nullptr;
  must(mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  if (lookups != nullptr) {
    look_up(txn, db.dbi, *lookups, share);
  } else {
    MDB_cursor* cursor = nullptr;
    must(mdb_cursor_open(txn, db.dbi, &cursor), "mdb_cursor_open");
    if (o.pattern == "partitioned") {
      read_part(cursor, o.records * o.rank / o.procs, o.records * (o.rank + 1) / o.procs, share);
    } else if (o.pattern == "strided") {
      walk(cursor, o.records, o.rank, o.procs, share);
    } else {
      walk(cursor, o.records, 0, 1, share);
    }
    mdb_cursor_close(cursor);
  }
  const RandomResult result = share.end();
  mdb_txn_abort(txn);
  return result;
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  std::vector<Lookups> lookups;  // made before any clock starts
  for (std::uint64_t epoch = 0; o.pattern == "random" && epoch < o.epochs; ++epoch)
    lookups.push_back(make_lookups(o, epoch));
  print_ready(library_of(dlsym(RTLD_DEFAULT, "mdb_cursor_get")));

  OpenDb db;
  ProcessUse before_close;
  for (std::uint64_t epoch = 0; epoch < o.epochs; ++epoch) {
    const EpochLine line;
    if (epoch == 0) {
      db = open_db(o.path, KeyKind::kImage, o.nordahead ? MDB_NORDAHEAD : 0);
      if (db.records != o.records)
        die("%s has %" PRIu64 " records, not %" PRIu64, o.path, db.records, o.records);
    }
    line.print_end(read_share(db, o, lookups.empty() ? nullptr : &lookups[epoch]));
    before_close = process_use();
  }
  mdb_env_close(db.env);
  print_closed(before_close);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
