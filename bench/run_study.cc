// One of the processes of bench/factors --study argonne.  Reads records in batches, and reports how long it
// waited for each.  The program is linked with -llmdb, and runs with stock LMDB, or with LMDBIO by
// LD_PRELOAD=liblmdbio.so.
//
//   run_study DATABASE --order sequential|shuffled|rehearsal --records N [--readers P] [--rank R]
//             [--batch B] [--old O] [--seed S] [--lmdbio]
//
// --records: number of records of the database at the beginning; a writer may append others meanwhile.  The
// R-th of P readers of this database reads these records:
//   sequential  the R-th of P equal parts, in key order
//   shuffled    the elements R, R + P, .. of a permutation, with mdb_get
//   rehearsal   the R-th of P equal parts in key order as new records.  Each batch has O more, which are
//               drawn from those before it, with mdb_get.  Begins a new transaction every 16 batches
// --lmdbio: calls lmdbio_stream or lmdbio_follow instead of LMDB.  A follower shuffles the records that
// exist, and takes the first N / P of them.  --batch: records of a batch, without old ones.
//
// A wait is the time from the request for a batch until all bytes of all its records were read.
//
// epochs_of_run.h describes the output, which has "waits_us" and "old_bytes" as well.  The digest is that of
// the new records.
#define LMDBIO_WEAK
#include <lmdbio/follow.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "bench/epochs_of_run.h"
#include "bench/workload_warm.h"

namespace lmdbio::bench {
namespace {

constexpr std::uint64_t kRenew = 16;  // batches; the default of a follower

struct Options {
  const char* path = nullptr;
  std::string order;
  std::uint64_t records = 0, readers = 1, rank = 0, batch = 16, old = 2, seed = 1;
  bool lmdbio = false;
  std::uint64_t first() const { return records * rank / readers; }
  std::uint64_t end() const { return records * (rank + 1) / readers; }
};

Options parse(int argc, char** argv) {
  Options o;
  const std::pair<const char*, std::uint64_t*> numbers[] = {
      {"--records", &o.records}, {"--readers", &o.readers}, {"--rank", &o.rank},
      {"--batch", &o.batch},     {"--old", &o.old},         {"--seed", &o.seed},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto* number =
        std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& n) { return a == n.first; });
    if (number != std::end(numbers) && i + 1 < argc) {
      *number->second = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--order" && i + 1 < argc) {
      o.order = argv[++i];
    } else if (a == "--lmdbio") {
      o.lmdbio = true;
    } else if (a[0] != '-' && o.path == nullptr) {
      o.path = argv[i];
    } else {
      die("run_study: %s: see run_study.cc", a.c_str());
    }
  }
  if (o.path == nullptr || o.records == 0 || o.batch == 0) die("run_study: a database, --records, --batch");
  if (o.rank >= o.readers) die("run_study: --rank must be below --readers");
  if (o.order != "sequential" && o.order != "shuffled" && o.order != "rehearsal")
    die("run_study: no such order: '%s'", o.order.c_str());
  return o;
}

/// Adds up the records of the batches, and measures the waits.
class Batches {
 public:
  void begin() { begun_ns_ = clock_ns(); }
  void end() { waits_ns_.push_back(clock_ns() - begun_ns_); }
  void add_new(std::uint64_t ordinal, const MDB_val& value) {
    fresh_.add(ordinal, value.mv_data, value.mv_size);
  }
  void add_old(const MDB_val& value) { old_.add(0, value.mv_data, value.mv_size); }
  std::uint64_t fresh() const { return fresh_.records; }
  void print(const EpochLine& line) const {
    std::string more = "\"waits_us\": [";
    for (const std::uint64_t ns : waits_ns_)
      more += (more.back() == '[' ? "" : ", ") + std::to_string(ns / 1000);
    line.print_end(fresh_, more + "], \"old_bytes\": " + std::to_string(old_.bytes) + ", ");
  }

 private:
  RandomResult fresh_, old_;
  std::uint64_t begun_ns_ = 0;
  std::vector<std::uint64_t> waits_ns_;
};

std::vector<std::uint64_t> ordinals(const Options& o) {
  std::vector<std::uint64_t> list;
  if (o.order == "shuffled") {
    const std::vector<std::uint32_t> order = random_order(o.records, 0, o.seed);
    for (std::uint64_t i = o.rank; i < order.size(); i += o.readers) list.push_back(order[i]);
  } else {
    for (std::uint64_t i = o.first(); i < o.end(); ++i) list.push_back(i);
  }
  return list;
}

MDB_val look_up(MDB_txn* txn, MDB_dbi dbi, std::uint64_t ordinal) {
  char name[kKeyRoom];
  MDB_val key{make_key(KeyKind::kImage, ordinal, false, name), name}, value{};
  must(mdb_get(txn, dbi, &key, &value), "mdb_get");
  return value;
}

/// Reads records in key order with a cursor, which stays open, in transactions that are renewed.
class Walk {
 public:
  Walk(MDB_txn* txn, MDB_dbi dbi) : txn_(txn) {
    must(mdb_cursor_open(txn, dbi, &cursor_), "mdb_cursor_open");
  }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;
  ~Walk() { mdb_cursor_close(cursor_); }

  /// Call after mdb_txn_renew.
  void renew() {
    must(mdb_cursor_renew(txn_, cursor_), "mdb_cursor_renew");
    begins_ = true;
  }
  MDB_val next(std::uint64_t ordinal) {
    char name[kKeyRoom];
    MDB_val key{make_key(KeyKind::kImage, ordinal, false, name), name}, value{};
    must(mdb_cursor_get(cursor_, &key, &value, begins_ ? MDB_SET_KEY : MDB_NEXT), "mdb_cursor_get");
    begins_ = false;
    return value;
  }

 private:
  MDB_txn* const txn_;
  MDB_cursor* cursor_ = nullptr;
  bool begins_ = true;
};

void read_by_lmdb(const Options& o, const std::vector<std::uint64_t>& list, Batches& batches) {
  const OpenDb db = open_db(o.path, KeyKind::kImage, 0);
  MDB_txn* txn = nullptr;
  must(mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  {
    Walk walk(txn, db.dbi);
    for (std::uint64_t from = 0, n = 0; from < list.size(); from += o.batch, ++n) {
      const std::uint64_t to = std::min<std::uint64_t>(from + o.batch, list.size());
      batches.begin();
      if (o.order == "rehearsal" && n != 0 && n % kRenew == 0) {
        mdb_txn_reset(txn);
        must(mdb_txn_renew(txn), "mdb_txn_renew");
        walk.renew();
      }
      for (std::uint64_t i = from; i < to; ++i)
        batches.add_new(list[i], o.order == "shuffled" ? look_up(txn, db.dbi, list[i]) : walk.next(list[i]));
      for (std::uint64_t i = 0; o.order == "rehearsal" && from != 0 && i < o.old; ++i)
        batches.add_old(look_up(txn, db.dbi, list[mix(o.seed + n * o.old + i) % from]));
      batches.end();
    }
  }
  mdb_txn_abort(txn);
  mdb_env_close(db.env);
}

void succeed(int rc, const char* what) {
  if (rc != 0) die("%s: %s (%s)", what, mdb_strerror(rc), lmdbio_error());
}

void read_stream(const Options& o, const std::vector<std::uint64_t>& list, Batches& batches) {
  lmdbio_reader* reader = nullptr;
  succeed(lmdbio_reader_open(o.path, nullptr, &reader), "lmdbio_reader_open");
  lmdbio_order order{};
  order.size = sizeof order;
  order.kind = LMDBIO_ORDER_LIST;
  order.batch = o.batch;
  order.list = list.data();
  order.length = list.size();
  lmdbio_stream* stream = nullptr;
  succeed(lmdbio_stream_open(reader, &order, &stream), "lmdbio_stream_open");
  while (batches.fresh() < list.size()) {
    const lmdbio_batch* batch = nullptr;
    batches.begin();
    succeed(lmdbio_stream_next(stream, &batch), "lmdbio_stream_next");
    for (std::size_t i = 0; i < batch->count; ++i)
      batches.add_new(batch->records[i].ordinal, batch->records[i].value);
    batches.end();
    lmdbio_batch_release(batch);
  }
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
}

void follow(const Options& o, std::uint64_t count, Batches& batches) {
  lmdbio_follow_options options{};
  options.size = sizeof options;
  options.seed = o.seed + o.rank;
  options.fresh = o.batch;
  options.old = o.old;
  options.buffer = LMDBIO_BUFFER_ALL;
  options.on_empty = LMDBIO_EMPTY_STOP;
  options.renew_batches = kRenew;
  lmdbio_follow* follow = nullptr;
  succeed(lmdbio_follow_open(o.path, &options, &follow), "lmdbio_follow_open");
  while (batches.fresh() < count) {
    const lmdbio_batch* batch = nullptr;
    std::size_t fresh = 0;
    batches.begin();
    succeed(lmdbio_follow_next(follow, &batch, &fresh), "lmdbio_follow_next");
    for (std::size_t i = 0; i < batch->count; ++i) {
      const lmdbio_record& r = batch->records[i];
      if (i < fresh && batches.fresh() < count)
        batches.add_new(std::strtoull(static_cast<const char*>(r.key.mv_data), nullptr, 10), r.value);
      else
        batches.add_old(r.value);
    }
    batches.end();
    lmdbio_batch_release(batch);
  }
  lmdbio_follow_close(follow);
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  if (o.lmdbio && (lmdbio_stream_open == nullptr || lmdbio_follow_open == nullptr)) {
    std::fputs("the library has no readers\n", stderr);
    return 77;
  }
  const std::vector<std::uint64_t> list = ordinals(o);
  print_ready(library_of(dlsym(RTLD_DEFAULT, "mdb_cursor_get")));
  const EpochLine line;
  Batches batches;
  if (!o.lmdbio)
    read_by_lmdb(o, list, batches);
  else if (o.order == "rehearsal")
    follow(o, list.size(), batches);
  else
    read_stream(o, list, batches);
  batches.print(line);
  print_closed(process_use());
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
