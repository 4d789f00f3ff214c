// The program that bench/random and bench/index run to read a database through LMDB's calls.  Looks up
// records by key in random order, or walks over all records and uses some.  Reads all bytes of each value
// that it uses.  The program is linked with -llmdb, and runs with stock LMDB, or with LMDBIO by
// LD_PRELOAD=liblmdbio.so.
//
//   run_random DATABASE --records N [--count N] [--seed S] [--prefetch AHEAD] [--nordahead] [--places FILE]
//   run_random DATABASE --stride K [--phase P] [--until N] [--keys-only] [--nordahead] [--places FILE]
//
// --records: number of records of the database.  --count: lookups (0: all records).  --prefetch: passes the
// next AHEAD keys to lmdbio_prefetch(), in pieces.  --stride: walks with MDB_NEXT and uses the records P, P +
// K, ..  --until: the stride ends at
// record N; all records from N on are used.  --keys-only: uses no values.  --places: writes the
// places of the values to FILE; only with stock.
#define LMDBIO_WEAK
#include <lmdbio/lmdbio.h>

#include <algorithm>

#include "bench/random_run.h"
#include "bench/workload_warm.h"

namespace lmdbio::bench {
namespace {

struct Options {
  const char* path = nullptr;
  std::string places;
  unsigned flags = MDB_NOTLS;
  bool keys_only = false;
  std::uint64_t records = 0, count = 0, seed = 1, ahead = 0;
  std::uint64_t stride = 0, phase = 0, until = UINT64_MAX;
};

Options parse(int argc, char** argv) {
  Options o;
  const std::pair<const char*, std::uint64_t*> numbers[] = {
      {"--records", &o.records}, {"--count", &o.count}, {"--seed", &o.seed},   {"--prefetch", &o.ahead},
      {"--stride", &o.stride},   {"--phase", &o.phase}, {"--until", &o.until},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto* number =
        std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& n) { return a == n.first; });
    if (number != std::end(numbers) && i + 1 < argc) {
      *number->second = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--nordahead") {
      o.flags |= MDB_NORDAHEAD;
    } else if (a == "--keys-only") {
      o.keys_only = true;
    } else if (a == "--places" && i + 1 < argc) {
      o.places = argv[++i];
    } else if (a[0] != '-' && o.path == nullptr) {
      o.path = argv[i];
    } else {
      die("run_random: %s: see run_random.cc", a.c_str());
    }
  }
  if (o.path == nullptr) die("run_random: no database");
  if (o.stride == 0 && o.records == 0) die("run_random: --records or --stride is needed");
  if (o.phase >= std::max<std::uint64_t>(o.stride, 1)) die("--phase: below --stride");
  return o;
}

/// Returns the address at which this process has mapped the data file.
const char* file_map() {
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) die_errno("/proc/self/maps");
  char line[4096];
  std::uintptr_t at = 0;
  while (at == 0 && std::fgets(line, sizeof line, maps) != nullptr)
    if (std::strstr(line, "/data.mdb\n") != nullptr) at = std::strtoull(line, nullptr, 16);
  std::fclose(maps);
  if (at == 0) die("the data file is not mapped");
  return reinterpret_cast<const char*>(at);
}

/// Adds each value to the result.  With --places, also keeps its place in the file.
class Sink {
 public:
  Sink(const Options& o, RandomResult& r) : r_(r), map_(o.places.empty() ? nullptr : file_map()) {}

  void take(std::uint64_t ordinal, const MDB_val& value) {
    r_.add(ordinal, value.mv_data, value.mv_size);
    if (map_ == nullptr) return;
    const auto offset = static_cast<const char*>(value.mv_data) - map_;
    places_.push_back({static_cast<std::uint64_t>(offset), value.mv_size});
  }
  const std::vector<Place>& places() const { return places_; }

 private:
  RandomResult& r_;
  const char* const map_;
  std::vector<Place> places_;
};

/// The keys of an order, made before the clock starts.
class Keys {
 public:
  explicit Keys(const std::vector<std::uint32_t>& order)
      : bytes_(order.size() * kKeyRoom), keys_(order.size()) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      char* const at = &bytes_[i * kKeyRoom];
      keys_[i] = {make_key(KeyKind::kImage, order[i], false, at), at};
    }
  }
  MDB_val* at(std::size_t i) { return &keys_[i]; }

 private:
  std::vector<char> bytes_;
  std::vector<MDB_val> keys_;
};

void look_up(MDB_txn* txn, MDB_dbi dbi, const Options& o, const std::vector<std::uint32_t>& order, Keys& keys,
             RandomResult& r, Sink& sink) {
  r.told = o.ahead != 0 && lmdbio_prefetch != nullptr;
  const std::size_t piece = std::max<std::size_t>(o.ahead / 4, 1);
  std::size_t told = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (r.told && told < order.size() && told < i + o.ahead && (i == 0 || i + o.ahead >= told + piece)) {
      const std::size_t n = std::min(i + o.ahead, order.size()) - told;
      must(lmdbio_prefetch(txn, dbi, keys.at(told), n), "lmdbio_prefetch");
      told += n;
    }
    MDB_val value{};
    must(mdb_get(txn, dbi, keys.at(i), &value), "mdb_get");
    sink.take(order[i], value);
  }
}

void walk(MDB_txn* txn, const OpenDb& db, const Options& o, Sink& sink) {
  MDB_cursor* cursor = nullptr;
  must(mdb_cursor_open(txn, db.dbi, &cursor), "mdb_cursor_open");
  MDB_val key{}, value{};
  std::uint64_t i = 0;
  int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
  for (; rc == 0; rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT), ++i)
    if (!o.keys_only && (i >= o.until || i % o.stride == o.phase)) sink.take(i, value);
  if (rc != MDB_NOTFOUND) die("mdb_cursor_get: %s", mdb_strerror(rc));
  if (i != db.records) die("%" PRIu64 " of %" PRIu64 " records", i, db.records);
  mdb_cursor_close(cursor);
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  RandomResult result;
  result.library = library_of(dlsym(RTLD_DEFAULT, "mdb_cursor_get"));
  std::vector<std::uint32_t> order;
  if (o.stride == 0) order = random_order(o.records, o.count, o.seed);
  Keys keys(order);
  const std::uint64_t start = clock_ns();
  const OpenDb db = open_db(o.path, KeyKind::kImage, o.flags);
  result.open_seconds = static_cast<double>(clock_ns() - start) * 1e-9;
  Sink sink(o, result);
  MDB_txn* txn = nullptr;
  must(mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  if (o.stride == 0)
    look_up(txn, db.dbi, o, order, keys, result, sink);
  else
    walk(txn, db, o, sink);
  mdb_txn_abort(txn);
  MDB_stat stat{};
  must(mdb_env_stat(db.env, &stat), "mdb_env_stat");
  mdb_env_close(db.env);
  result.seconds = static_cast<double>(clock_ns() - start) * 1e-9;
  result.entries = stat.ms_entries;
  result.tree_pages = stat.ms_branch_pages + stat.ms_leaf_pages;
  result.page_bytes = stat.ms_psize;
  if (!o.places.empty()) write_places(o.places, sink.places());
  print_result(result);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
