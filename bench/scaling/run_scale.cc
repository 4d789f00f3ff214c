// A training loop over MPI whose ranks take batches by some strategy (docs/strategies.md), and compute.
//
//   mpirun -n P run_scale DATABASE [options]            (--help lists them)
//   run_scale DATABASE --make-sums FILE                 checksums of all records, for --sums
//
// Rank 0 prints one line of JSON.
#include <mpi.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/common.h"
#include "bench/process_use.h"
#include "bench/scaling/finders.h"
#include "bench/scaling/loader.h"
#include "bench/xor_bytes.h"

namespace lmdbio::bench {
namespace {

using S = Strategy;

struct Options {
  std::string database, strategy = "stock", sums, make_sums, library = "liblmdbio_mpi.so", counters;
  std::uint64_t batch = 64, global_batch = 0, epochs = 1;
  double compute_s = 0, allreduce_mb = 0;
  bool spin = false;
  Assignment assignment = Assignment::contiguous;
  S knobs;
};

/// What was set of it replaces the strategy's.
template <class T>
void knob(CLI::App& app, const char* name, T& to, const std::map<std::string, T>& names, const char* what) {
  app.add_option(name, to, what)
      ->transform(CLI::CheckedTransformer(names, CLI::ignore_case))
      ->group("Single choices");
}

int parse(int argc, char** argv, Options& o) {
  CLI::App app{"A training loop over the records of an LMDB database."};
  std::vector<std::string> names;
  for (const auto& [name, strategy] : presets()) names.push_back(name);
  app.add_option("database", o.database, "directory")->required();
  app.add_option("--strategy", o.strategy,
                 "how ranks get their records (docs/strategies.md); single choices replace parts of it")
      ->check(CLI::IsMember(names));
  app.add_option("--batch", o.batch, "records of a rank and step")->check(CLI::PositiveNumber);
  app.add_option(
      "--global-batch", o.global_batch,
      "records of all ranks together and step, instead of --batch (strong scaling); rounded down to a "
      "multiple of the ranks");
  app.add_option("--epochs", o.epochs)->check(CLI::PositiveNumber);
  app.add_option("--compute", o.compute_s, "seconds of computation after each batch: a sleep")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--spin", o.spin, "compute on the CPU instead");
  app.add_option("--allreduce-mb", o.allreduce_mb, "sum so many MB over all ranks after each batch")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--assignment", o.assignment,
                 "which records of a fetch a rank uses: each P-th, or one of P equal parts")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Assignment>{
          {"strided", Assignment::strided}, {"contiguous", Assignment::contiguous}}));
  app.add_option("--sums", o.sums, "checksums that each record is compared with");
  app.add_option("--make-sums", o.make_sums, "write these, by stock LMDB, and end");
  app.add_option("--library", o.library, "liblmdbio_mpi.so");
  app.add_option("--counters", o.counters, "of a slow file system, one on each node: JSON");
  knob(app, "--readers", o.knobs.readers,
       {{"every-rank", S::Readers::every_rank}, {"node", S::Readers::some_of_node}}, "who reads");
  app.add_option("--readers-per-node", o.knobs.readers_per_node, "with --readers node")
      ->group("Single choices");
  knob(app, "--access", o.knobs.access, {{"mapped", S::Access::mapped}, {"direct", S::Access::direct}},
       "how");
  knob(app, "--finding", o.knobs.finding,
       {{"walk", S::Finding::walk},
        {"handed-on", S::Finding::handed_on},
        {"guessed", S::Finding::guessed},
        {"index", S::Finding::index}},
       "how a reader finds its records");
  app.add_option("--request-bytes", o.knobs.request_bytes,
                 "that a reader fetches at a time, at least; 0: a batch")
      ->group("Single choices");
  app.add_option("--group", o.knobs.group, "readers that take turns; 0: none")->group("Single choices");
  knob(app, "--exchange", o.knobs.exchange,
       {{"none", S::Exchange::none}, {"redistributed", S::Exchange::redistributed}}, "between nodes");
  knob(app, "--overlap", o.knobs.overlap, {{"none", S::Overlap::none}, {"ahead", S::Overlap::ahead}},
       "of fetching and computation");
  knob(app, "--later", o.knobs.later,
       {{"page-cache", S::Later::page_cache}, {"node-homes", S::Later::node_homes}},
       "where later epochs come from");
  try {
    // The strategy first: what is named beside it replaces parts of it.
    for (int i = 1; i + 1 < argc; ++i)
      if (std::string(argv[i]) == "--strategy")
        for (const auto& [name, strategy] : presets())
          if (name == argv[i + 1]) o.knobs = strategy;
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0) return e.get_exit_code() == 0 ? 0 : 2;
    return app.exit(e) == 0 ? 0 : 2;
  }
  return -1;
}

std::uint64_t sum_of(std::uint64_t ordinal, const void* data, std::size_t size) {
  return mix(mix(ordinal) ^ xor_bytes(data, size) ^ mix(size));
}

void make_sums(const Options& o) {
  const std::unique_ptr<Finder> walk = cursor_walk(o.database);
  std::ofstream out(o.make_sums, std::ios::binary);
  constexpr std::uint64_t kTogether = 4096;
  for (std::uint64_t at = 0; at < walk->records(); at += kTogether) {
    const Window window{at, std::min(kTogether, walk->records() - at)};
    std::vector<std::uint64_t> all(window.count);
    std::iota(all.begin(), all.end(), at);
    const std::vector<Place> places = walk->find(window, all);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::uint64_t sum = sum_of(at + i, walk->mapped() + places[i].offset, places[i].bytes);
      out.write(reinterpret_cast<const char*>(&sum), sizeof sum);
    }
  }
  if (!out.flush()) die("%s: cannot be written", o.make_sums.c_str());
}

std::vector<std::uint64_t> read_sums(const std::string& path) {
  std::vector<std::uint64_t> sums;
  if (path.empty()) return sums;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) die("%s: cannot be read", path.c_str());
  sums.resize(static_cast<std::size_t>(in.tellg()) / sizeof(std::uint64_t));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(sums.data()),
          static_cast<std::streamsize>(sums.size() * sizeof(std::uint64_t)));
  return sums;
}

/// This process has, or had until its last library was closed, mapped such a file.
bool has_mapped(const char* what) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(what) != std::string::npos) return true;
  return false;
}

template <class T>
std::vector<T> over_ranks(const std::vector<T>& mine, MPI_Datatype type, MPI_Op op) {
  std::vector<T> all(mine.size());
  MPI_Reduce(mine.data(), all.data(), static_cast<int>(mine.size()), type, op, 0, MPI_COMM_WORLD);
  return all;
}

class Training {
 public:
  Training(const Options& o, World& world) : o_(o), world_(world), sums_(read_sums(o.sums)) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    rank_of_node_ = rank_of_node();
    summands_.resize(static_cast<std::size_t>(o.allreduce_mb * 1e6 / sizeof(float)));
  }

  nlohmann::json run(const LoaderSettings& settings) {
    nlohmann::json epochs = nlohmann::json::array();
    std::unique_ptr<Loader> loader;
    std::uint64_t steps = 0;
    for (std::uint64_t epoch = 0; epoch < o_.epochs; ++epoch) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double begin = world_.seconds();
      double opened = 0;
      if (loader == nullptr) {
        loader = make_loader(settings, world_);
        steps = steps_per_epoch(loader->records(), settings.batch, static_cast<std::uint64_t>(ranks_));
        opened = world_.seconds() - begin;
      }
      step_s_.clear();
      wait_s_.clear();
      for (std::uint64_t step = 0; step < steps; ++step) one_step(*loader);
      const double seconds = world_.seconds() - begin;
      epochs.push_back(report(seconds, opened));
    }
    nlohmann::json j{
        {"ranks", ranks_}, {"batch", settings.batch}, {"records", loader->records()}, {"steps", steps}};
    j["nodes"] = sum(std::uint64_t{rank_of_node_ == 0});
    j["epochs"] = epochs;
    j["checked"] = !sums_.empty();
    const LoaderCounters c = loader->counters();
    loader.reset();
    std::vector<std::uint64_t> counts{c.reads, c.direct.requests, c.direct.bytes, c.sent_bytes};
    counts.insert(counts.end(), c.direct.by_size.begin(), c.direct.by_size.end());
    counts = over_ranks(counts, MPI_UINT64_T, MPI_SUM);
    const std::vector<std::uint64_t> most = over_ranks(
        std::vector<std::uint64_t>{c.direct.most_in_flight, c.wrong_guesses, process_use().max_rss_kib},
        MPI_UINT64_T, MPI_MAX);
    j["readers"] = counts[0];
    j["requests"] = counts[1];
    j["request_bytes"] = counts[2];
    j["places_sent_bytes"] = counts[3];
    j["requests_by_size"] = {
        {"4K", counts[4]}, {"64K", counts[5]}, {"256K", counts[6]}, {"1M", counts[7]}, {"more", counts[8]}};
    j["most_in_flight"] = most[0];
    j["wrong_guesses"] = most[1];
    j["max_rss_kib"] = most[2];
    j["lmdb_loaded"] = has_mapped("/liblmdb.so");
    j["lmdbio_loaded"] = has_mapped("/liblmdbio.so");
    return j;
  }

 private:
  void one_step(Loader& loader) {
    const double begin = world_.seconds();
    const std::span<const Value> batch = loader.next();
    wait_s_.push_back(world_.seconds() - begin);
    for (const Value& v : batch) {
      const std::uint64_t sum = sum_of(v.ordinal, v.bytes.data(), v.bytes.size());
      ++read_.records;
      read_.bytes += v.bytes.size();
      if (!sums_.empty() && (v.ordinal >= sums_.size() || sums_[v.ordinal] != sum))
        die("rank %d: record %llu differs from its checksum", rank_,
            static_cast<unsigned long long>(v.ordinal));
    }
    compute();
    if (!summands_.empty())
      MPI_Allreduce(MPI_IN_PLACE, summands_.data(), static_cast<int>(summands_.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    step_s_.push_back(world_.seconds() - begin);
  }
  void compute() {
    if (o_.compute_s == 0) return;
    if (!o_.spin) return world_.sleep(o_.compute_s);
    for (const double end = world_.seconds() + o_.compute_s; world_.seconds() < end;) {
    }
  }
  std::uint64_t sum(std::uint64_t v) const { return over_ranks(std::vector{v}, MPI_UINT64_T, MPI_SUM)[0]; }

  nlohmann::json report(double seconds, double opened) {
    const double waited = std::accumulate(wait_s_.begin(), wait_s_.end(), 0.0);
    const std::vector<double> mine{seconds, waited, opened};
    const std::vector<double> most = over_ranks(mine, MPI_DOUBLE, MPI_MAX),
                              least = over_ranks(mine, MPI_DOUBLE, MPI_MIN),
                              all = over_ranks(mine, MPI_DOUBLE, MPI_SUM);
    const std::vector<double> steps = over_ranks(step_s_, MPI_DOUBLE, MPI_MAX);
    std::vector<double> waits = over_ranks(wait_s_, MPI_DOUBLE, MPI_SUM);
    for (double& w : waits) w /= ranks_;
    nlohmann::json e{{"seconds", most[0]},
                     {"open_seconds", most[2]},
                     {"wait_s_max", most[1]},
                     {"wait_s_mean", all[1] / ranks_}};
    e["skew_s"] = most[0] - least[0];
    e["share_of_io"] = all[0] > 0 ? (all[1] + all[2]) / all[0] : 0;
    e["step_seconds"] = steps;
    e["step_wait_s_mean"] = waits;
    e["records"] = sum(read_.records);
    e["bytes"] = sum(read_.bytes);
    read_ = {};
    if (!o_.counters.empty()) {
      std::uint64_t requests = 0, bytes = 0;
      if (rank_of_node_ == 0) {
        std::ifstream in(o_.counters);
        const nlohmann::json read = nlohmann::json::parse(in).at("read");
        requests = read.at("numbered");
        bytes = read.at("bytes");
      }
      e["storage_requests_so_far"] = sum(requests);
      e["storage_bytes_so_far"] = sum(bytes);
    }
    return e;
  }

  const Options& o_;
  World& world_;
  const std::vector<std::uint64_t> sums_;
  int rank_ = 0, ranks_ = 1, rank_of_node_ = 0;
  std::vector<float> summands_;
  std::vector<double> step_s_, wait_s_;
  struct {
    std::uint64_t records = 0, bytes = 0;
  } read_;
};

int run(int argc, char** argv) {
  Options o;
  if (const int status = parse(argc, argv, o); status >= 0) return status;
  int rank = 0, ranks = 1, level = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Query_thread(&level);
  if (!o.make_sums.empty()) {
    if (rank == 0) make_sums(o);
    return 0;
  }
  if (const std::string why = refusal(o.knobs); !why.empty()) {
    if (rank == 0) std::fprintf(stderr, "error: there is no such strategy: %s\n", why.c_str());
    return 2;
  }
  LoaderSettings settings;
  settings.strategy = o.knobs;
  settings.database = o.database;
  settings.library = o.library;
  settings.batch = o.global_batch != 0
                       ? std::max<std::uint64_t>(o.global_batch / static_cast<std::uint64_t>(ranks), 1)
                       : o.batch;
  settings.epochs = o.epochs;
  settings.assignment = o.assignment;
  const std::unique_ptr<World> world = real_world();
  nlohmann::json result = Training(o, *world).run(settings);
  result["strategy"] = o.strategy;
  result["thread_level"] = level;
  if (rank == 0) std::puts(result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  const int status = lmdbio::bench::run(argc, argv);
  MPI_Finalize();
  return status;
}
