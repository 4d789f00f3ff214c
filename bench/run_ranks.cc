// The MPI job of bench/distributed.  Its ranks read their shares of one database, all bytes of each value, in
// several epochs.
//
//   mpirun -n P run_ranks DATABASE --backend stock|alone|ours|caffe [options]     (--help lists them)
//
//   stock  each rank steps over all records with a cursor of stock LMDB, and uses its share
//   alone  lmdbio_reader_open and a stream of the rank's share, on each rank
//   ours   lmdbio_mpi_reader_open and a stream
//   caffe  Caffe's backend with LMDBIO_MPI=1; shares continue from the last record of an epoch to the first
//
// After each batch, a rank sleeps as if it computed, and takes part in an MPI_Allreduce, if options say so.
//
// Rank 0 prints one line of JSON.  The first epoch includes the opening, and with `ours` the record index.
#include <lmdbio/mpi_reader.h>
#include <mpi.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/random_run.h"
#include "bench/rank_of_node.h"
#include "bench/stock_lmdb.h"
#ifdef USE_LMDBIO
#include "caffe/data_reader.hpp"
#include "caffe/util/db_lmdbio.hpp"
#endif

namespace lmdbio::bench {
namespace {

struct Options {
  std::string path, backend, assignment = "strided", order = "sequential", level = "multiple", counters;
  std::uint64_t batch = 64, epochs = 2, window = 4096, seed = 1, compute_us = 0, polls = 0, allreduce_mb = 0;
  unsigned readers_per_node = 0;
  bool no_thread = false, unread = false;

  std::uint64_t block() const { return assignment == "contiguous" ? batch : 1; }
};

const std::vector<std::string> kLevels = {"single", "funneled", "serialized", "multiple"};

int parse(int argc, char** argv, Options& o) {
  CLI::App app{"Reads a database by the ranks of an MPI job."};
  app.add_option("database", o.path)->required();
  app.add_option("--backend", o.backend)
      ->required()
      ->check(CLI::IsMember({"stock", "alone", "ours", "caffe"}));
  app.add_option("--batch", o.batch, "records")->check(CLI::PositiveNumber);
  app.add_option("--epochs", o.epochs)->check(CLI::PositiveNumber);
  app.add_option("--assignment", o.assignment, "each P-th record, or each P-th batch of consecutive ones")
      ->check(CLI::IsMember({"strided", "contiguous"}));
  app.add_option("--order", o.order, "of ours")
      ->check(CLI::IsMember({"sequential", "window-shuffle", "shuffle"}));
  app.add_option("--window", o.window, "of window-shuffle, records")->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed, "of the shuffles");
  app.add_option("--level", o.level, "thread level that MPI is asked for")->check(CLI::IsMember(kLevels));
  app.add_option("--compute-us", o.compute_us, "sleep so long after each batch");
  app.add_option("--poll", o.polls, "calls of lmdbio_mpi_poll during that");
  app.add_option("--allreduce-mb", o.allreduce_mb, "sum so many MB over all ranks after each batch");
  app.add_option("--readers-per-node", o.readers_per_node, "ranks of a node that read; 0: the default");
  app.add_flag("--unread", o.unread,
               "of ours and alone: values are not looked at, so that only the exchange is measured");
  app.add_flag("--no-thread", o.no_thread, "no thread of the library");
  app.add_option("--counters", o.counters, "of a slow file system, one on each node: JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return -1;
}

/// Returns the busy seconds of all CPUs of this machine, for all processes.
double busy_seconds() {
  std::ifstream in("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0;
  in >> cpu >> user >> nice >> system >> idle >> wait >> irq >> softirq;
  return (user + nice + system + irq + softirq) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double seconds_since(std::uint64_t begin_ns) { return static_cast<double>(clock_ns() - begin_ns) * 1e-9; }

/// Measures the epochs of one rank, and computes between its batches, for all backends.
class Rank {
 public:
  explicit Rank(const Options& o) : o_(o), summands_(o.allreduce_mb * 1000000 / sizeof(float)) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    rank_of_node_ = rank_of_node();
  }
  std::uint64_t rank() const { return static_cast<std::uint64_t>(rank_); }
  std::uint64_t ranks() const { return static_cast<std::uint64_t>(ranks_); }
  bool uses(std::uint64_t ordinal) const { return ordinal / o_.block() % ranks() == rank(); }
  /// From now on, barriers and computations poll `team`, as programs without MPI_THREAD_MULTIPLE do.
  void polls(const MpiRanks* team) { team_ = team; }
  void records(std::uint64_t n) { sums_ = n / (ranks() * o_.batch); }
  void opened() { open_seconds_ = seconds_since(begin_ns_); }

  void begin_epoch();
  void take(std::uint64_t ordinal, const void* data, std::size_t size) {
    if (!o_.unread) return read_.add(ordinal, data, size);
    ++read_.records;
    read_.bytes += size;
  }
  /// Called when the rank has taken a batch, for which it waited `waited_s`.  Computes.
  void end_batch(double waited_s);
  void end_epoch();
  void print(const std::string& library);

 private:
  void barrier();
  template <class T>
  T over_ranks(T value, MPI_Datatype type, MPI_Op op) const {
    T out{};
    MPI_Reduce(&value, &out, 1, type, op, 0, MPI_COMM_WORLD);
    return out;
  }
  double maximum(double v) const { return over_ranks(v, MPI_DOUBLE, MPI_MAX); }
  double sum(double v) const { return over_ranks(v, MPI_DOUBLE, MPI_SUM); }
  std::uint64_t sum(std::uint64_t v) const { return over_ranks(v, MPI_UINT64_T, MPI_SUM); }

  const Options& o_;
  const MpiRanks* team_ = nullptr;
  int rank_ = 0, ranks_ = 1, rank_of_node_ = 0;
  std::vector<float> summands_;
  std::uint64_t sums_ = 0;  // batches of an epoch that all ranks have
  double open_seconds_ = 0, busy_ = 0, cpu_ = 0;
  nlohmann::json epochs_ = nlohmann::json::array();
  // State of the current epoch.
  std::uint64_t begin_ns_ = 0, batches_ = 0;
  double waited_ = 0;
  RandomResult read_;
};

double cpu_seconds() {
  const rusage u = process_use().use;
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

void Rank::barrier() {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) return;
    if (team_ != nullptr) team_->poll();  // other ranks may still wait for messages of this rank
    usleep(100);
  }
}

void Rank::begin_epoch() {
  barrier();
  batches_ = 0;
  waited_ = 0;
  read_ = {};
  busy_ = busy_seconds();
  cpu_ = cpu_seconds();
  begin_ns_ = clock_ns();
}

void Rank::end_batch(double waited_s) {
  waited_ += waited_s;
  const auto part = static_cast<useconds_t>(o_.compute_us / (o_.polls + 1));
  for (std::uint64_t i = 0; i <= o_.polls && part != 0; ++i) {
    if (i != 0 && team_ != nullptr) team_->poll();
    usleep(part);
  }
  if (!summands_.empty() && batches_ < sums_)
    MPI_Allreduce(MPI_IN_PLACE, summands_.data(), static_cast<int>(summands_.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  ++batches_;
}

void Rank::end_epoch() {
  const double cpu = cpu_seconds() - cpu_;
  barrier();
  // The maximum over all ranks is the time from the first begin to the last end.  Some ranks are scheduled
  // late.
  const double seconds = seconds_since(begin_ns_), busy = busy_seconds() - busy_;
  nlohmann::json e;
  std::uint64_t requests = 0, bytes = 0;  // since the file system was mounted
  if (!o_.counters.empty() && rank_of_node_ == 0) {
    std::ifstream in(o_.counters);
    const nlohmann::json read = nlohmann::json::parse(in).at("read");
    requests = read.at("numbered");
    bytes = read.at("bytes");
    e["first_node_so_far"] = read;
  }
  e["seconds"] = maximum(seconds);
  e["wait_s_max"] = maximum(waited_);
  e["wait_s_mean"] = sum(waited_) / ranks_;
  e["records"] = sum(read_.records);
  e["bytes"] = sum(read_.bytes);
  e["digest"] = sum(read_.set_digest);
  e["batches"] = over_ranks(batches_, MPI_UINT64_T, MPI_MAX);
  e["cpu_s"] = sum(cpu);
  e["machine_busy_s"] = busy;
  e["requests_so_far"] = sum(requests);
  e["storage_bytes_so_far"] = sum(bytes);
  epochs_.push_back(e);
}

void Rank::print(const std::string& library) {
  nlohmann::json j{{"library", library}, {"ranks", ranks_}, {"open_seconds", maximum(open_seconds_)}};
  j["nodes"] = sum(std::uint64_t{rank_of_node_ == 0});
  j["max_rss_kib"] = over_ranks(process_use().max_rss_kib, MPI_UINT64_T, MPI_MAX);
  j["epochs"] = epochs_;
  if (rank_ == 0) std::puts(j.dump().c_str());
}

/// Steps over all records, and uses those of this rank.  All time except for computation counts as waiting.
void walk(const StockLmdb& lmdb, MDB_cursor* cursor, const Options& o, Rank& rank) {
  MDB_val key{}, value{};
  std::uint64_t at = 0, taken = 0, begin = clock_ns();
  int rc = lmdb.cursor_get(cursor, &key, &value, MDB_FIRST);
  for (; rc == 0; rc = lmdb.cursor_get(cursor, &key, &value, MDB_NEXT), ++at) {
    if (!rank.uses(at)) continue;
    rank.take(at, value.mv_data, value.mv_size);
    if (++taken % o.batch == 0) {
      rank.end_batch(seconds_since(begin));
      begin = clock_ns();
    }
  }
  if (rc != MDB_NOTFOUND) must(rc, "mdb_cursor_get");
  if (taken % o.batch != 0) rank.end_batch(seconds_since(begin));
}

void read_stock(const Options& o, Rank& rank) {
  const StockLmdb lmdb;
  MDB_env* env = nullptr;
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  for (std::uint64_t epoch = 0; epoch < o.epochs; ++epoch) {
    rank.begin_epoch();
    if (epoch == 0) {
      must(lmdb.env_create(&env), "mdb_env_create");
      must(lmdb.env_open(env, o.path.c_str(), MDB_RDONLY, 0644), o.path.c_str());
      must(lmdb.txn_begin(env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
      must(lmdb.dbi_open(txn, nullptr, 0, &dbi), "mdb_dbi_open");
      MDB_stat stat{};
      must(lmdb.env_stat(env, &stat), "mdb_env_stat");
      rank.records(stat.ms_entries);
      rank.opened();
    }
    MDB_cursor* cursor = nullptr;
    must(lmdb.cursor_open(txn, dbi, &cursor), "mdb_cursor_open");
    walk(lmdb, cursor, o, rank);
    lmdb.cursor_close(cursor);
    rank.end_epoch();
  }
  lmdb.txn_abort(txn);
  lmdb.env_close(env);
  rank.print(library_of(reinterpret_cast<void*>(lmdb.cursor_get)));
}

Order share_of(const Options& o, const Rank& rank) {
  Order order = o.order == "sequential" ? Order::sequential(o.batch)
                : o.order == "shuffle"  ? Order::shuffled(o.seed, o.batch)
                                        : Order::window_shuffled(o.seed, o.window, o.batch);
  order.share(rank.rank(), rank.ranks(), o.block());
  order.repeat(o.epochs);
  return order;
}

/// Reads all epochs.  The first one has begun.
void read_stream(const Options& o, const Reader& reader, Rank& rank) {
  rank.records(reader.size());
  rank.opened();
  Stream stream = reader.stream(share_of(o, rank));
  for (std::uint64_t epoch = 0; epoch < o.epochs; ++epoch) {
    if (epoch != 0) rank.begin_epoch();
    while (stream.position().epoch == epoch) {
      const std::uint64_t begin = clock_ns();
      const std::optional<Batch> batch = stream.next();
      const double waited = seconds_since(begin);
      if (!batch) break;
      for (const Record& r : *batch) rank.take(r.ordinal, r.value.data(), r.value.size());
      rank.end_batch(waited);
    }
    rank.end_epoch();
  }
}

void read_alone(const Options& o, Rank& rank) {
  rank.begin_epoch();
  const Reader reader(o.path);
  read_stream(o, reader, rank);
  rank.print(library_of(reinterpret_cast<void*>(&lmdbio_reader_open)));
}

void read_together(const Options& o, const MpiRanks& team, Rank& rank) {
  const Reader reader = team.open(o.path);
  MpiRanks::wait(reader);
  read_stream(o, reader, rank);
}

void read_ours(const Options& o, Rank& rank) {
  lmdbio_mpi_options options{};
  options.readers_per_node = o.readers_per_node;
  options.no_thread = o.no_thread ? 1 : 0;
  rank.begin_epoch();
  const MpiRanks team(MPI_COMM_WORLD, options);
  rank.polls(&team);
  try {
    read_together(o, team, rank);
  } catch (const Error& e) {
    die("rank %d: %s", static_cast<int>(rank.rank()),
        e.what());  // the destructor of `team` would wait for other ranks
  }
  rank.polls(nullptr);
  rank.print(library_of(reinterpret_cast<void*>(&lmdbio_mpi_reader_open)));
}

#ifdef USE_LMDBIO
/// Reads each P-th record of all epochs as one sequence, in order.
void read_caffe(const Options& o, Rank& rank) {
  rank.begin_epoch();
  caffe::db::LMDBIO db;
  db.Open(o.path, caffe::db::READ);
  const std::unique_ptr<caffe::db::LMDBIOCursor> cursor(db.NewCursor());
  testing::SequentialReader reader(*cursor, rank.rank(), rank.ranks());
  const std::uint64_t records = cursor->count();
  rank.records(records);
  rank.opened();
  std::uint64_t place = rank.rank();
  for (std::uint64_t epoch = 0; epoch < o.epochs; ++epoch) {
    if (epoch != 0) rank.begin_epoch();
    std::uint64_t taken = 0;
    double waited = 0;
    for (; place < (epoch + 1) * records; place += rank.ranks()) {
      const std::uint64_t begin = clock_ns();
      const std::string value = reader.read_one();
      waited += seconds_since(begin);
      rank.take(reader.taken(), value.data(), value.size());
      if (++taken % o.batch != 0) continue;
      rank.end_batch(waited);
      waited = 0;
    }
    if (taken % o.batch != 0) rank.end_batch(waited);
    rank.end_epoch();
  }
  rank.print(library_of(reinterpret_cast<void*>(&lmdbio_reader_open)));
}
#else
void read_caffe(const Options&, const Rank&) { die("Caffe's backend was not built: it needs the tests"); }
#endif

int run(int argc, char** argv) {
  Options o;
  if (const int status = parse(argc, argv, o); status >= 0) return status;
  constexpr int kOfMpi[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                            MPI_THREAD_MULTIPLE};
  const auto level = std::find(kLevels.begin(), kLevels.end(), o.level) - kLevels.begin();
  int granted = 0;
  MPI_Init_thread(&argc, &argv, kOfMpi[level], &granted);
  if (granted < kOfMpi[level]) die("MPI has no level '%s'", o.level.c_str());
  {
    Rank rank(o);
    if (o.backend == "stock") {
      read_stock(o, rank);
    } else if (o.backend == "alone") {
      read_alone(o, rank);
    } else if (o.backend == "caffe") {
      (void)setenv("LMDBIO_MPI", "1", 1);
      read_caffe(o, rank);
    } else {
      read_ours(o, rank);
    }
  }
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) {
  try {
    return lmdbio::bench::run(argc, argv);
  } catch (const std::exception& e) {
    lmdbio::bench::die("run_ranks: %s", e.what());
  }
}
