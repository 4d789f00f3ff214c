// Measures scans of cached files that read all bytes: stock, stock again (A/A), ours, and the raw file as the
// limit.  Processes, turns and samples are as in warm.cc.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "bench/dataset.h"
#include "bench/runner.h"
#include "bench/stats.h"
#include "bench/workload_scan.h"

namespace lmdbio::bench {
namespace {

struct Options {
  std::string dir, library = default_library(), json;
  std::vector<std::uint64_t> values{200, 3072, 12288, 112640};
  std::uint64_t file_bytes = std::uint64_t{1} << 30;
  std::size_t samples = 7, rounds = 3;
};

struct Backend {
  WorkerSpec spec;
  std::uint32_t row;
};

std::vector<Backend> backends(const Options& o, const Dataset& set, int cpu) {
  const std::string lmdb = program_dir() + "/run_lmdb", raw = program_dir() + "/run_raw";
  const std::vector<std::string> pin{"--cpu", std::to_string(cpu)};
  const std::vector<std::string> with_lmdb{lmdb, set.path, "--keys", key_kind_name(set.keys), pin[0], pin[1]};
  const std::vector<std::string> with_raw{raw, set.path, pin[0], pin[1]};
  const std::uint32_t read = row_index(Row::kNextRead);
  return {{{"stock", with_lmdb, ""}, read},
          {{"stock (A/A)", with_lmdb, ""}, read},
          {{"ours", with_lmdb, o.library == "stock" ? "" : o.library}, read},
          {{"raw mapping", with_raw, ""}, static_cast<std::uint32_t>(RawWay::kMapping)},
          {{"raw pread", with_raw, ""}, static_cast<std::uint32_t>(RawWay::kCalls)}};
}

struct Pass {
  std::vector<std::vector<double>> seconds;  // by backend, by sample
};

/// Prints one line of the table for each backend.  The others are compared with the first one.
void publish(const Dataset& set, const std::vector<Backend>& all, const char* name, const Pass& pass,
             nlohmann::json& report) {
  for (std::size_t b = 0; b < all.size(); ++b) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < pass.seconds[b].size(); ++i)
      ratios.push_back(pass.seconds[b][i] / pass.seconds[0][i]);
    const Interval ratio = median_interval(ratios);
    const double seconds = median(pass.seconds[b]);
    const double rate = static_cast<double>(set.file_bytes) / seconds / 1e9;
    std::printf("| %s | %s | %s | %.3f | %.2f | %.3f [%.3f, %.3f] |\n", set.name.c_str(), name,
                all[b].spec.label.c_str(), seconds, rate, ratio.middle, ratio.low, ratio.high);
    report["rows"].push_back({{"database", set.name},
                              {"pass", name},
                              {"backend", all[b].spec.label},
                              {"seconds", pass.seconds[b]},
                              {"file_GB_per_s", rate},
                              {"ratio_to_stock", ratios}});
  }
  std::fflush(stdout);
}

void measure(const Options& o, const Dataset& set, int cpu, nlohmann::json& report) {
  if (make_resident(set) < 0.999)
    std::fprintf(stderr, "warning: %s is not all in the page cache\n", set.name.c_str());
  const std::vector<Backend> all = backends(o, set, cpu);
  Pass first, second;
  first.seconds.resize(all.size());
  second.seconds.resize(all.size());
  for (std::size_t sample = 0; sample < o.samples; ++sample) {
    std::vector<Worker> workers;
    for (const Backend& b : all) workers.emplace_back(b.spec);
    std::vector<std::vector<double>> turns(all.size());
    std::vector<std::uint64_t> digests(all.size());
    for (std::size_t round = 0; round <= o.rounds; ++round)
      for (const std::size_t b : round_order(all.size(), sample + round)) {
        const Reply reply = workers[b].call({Action::kRun, all[b].row, 0, 0});
        digests[b] = reply.digest;
        const double seconds = static_cast<double>(reply.ns) / 1e9;
        round == 0 ? first.seconds[b].push_back(seconds) : turns[b].push_back(seconds);
      }
    if (digests[1] != digests[0] || digests[2] != digests[0] || digests[4] != digests[3])
      die("%s: backends read different bytes", set.name.c_str());
    for (std::size_t b = 0; b < all.size(); ++b) second.seconds[b].push_back(median(turns[b]));
    if (isatty(STDERR_FILENO) != 0)
      std::fprintf(stderr, "\r%s: sample %zu of %zu\033[K", set.name.c_str(), sample + 1, o.samples);
  }
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
  publish(set, all, "first", first, report);
  publish(set, all, "second", second, report);
}

int main_(int argc, char** argv) {
  Options o;
  bool smoke = false;
  CLI::App app{"Scans of cached databases that read every byte: ours, stock, and the raw file."};
  app.add_option("--dir", o.dir, "where databases are kept and reused (default: a new temporary one)");
  app.add_option("--library", o.library, "library to preload, or 'stock'")->capture_default_str();
  app.add_option("--values", o.values, "sizes of values, bytes")->delimiter(',')->capture_default_str();
  app.add_option("--file-bytes", o.file_bytes, "size of each database")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--samples", o.samples, "samples: fresh processes of every backend")->capture_default_str();
  app.add_option("--rounds", o.rounds, "second passes of a sample")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", o.json, "write all samples and the machine's facts there");
  app.add_flag("--smoke", smoke, "tiny databases: proves that this program works, measures nothing");
  CLI11_PARSE(app, argc, argv);
  if (smoke) {
    o.file_bytes = 2u << 20;
    o.samples = o.rounds = 1;
  }
  if (o.library != "stock" && access(o.library.c_str(), R_OK) != 0) die_errno(o.library.c_str());

  char temporary[] = "/tmp/lmdbio-scan-XXXXXX";
  const bool keep = !o.dir.empty();
  if (!keep) {
    if (mkdtemp(temporary) == nullptr) die_errno("mkdtemp");
    o.dir = temporary;
  }
  nlohmann::json report{{"machine", machine_facts()}};
  const int cpu = worker_cpu();
  keep_off_cpu(cpu);
  std::puts(
      "| database | pass | backend | seconds | file GB/s | backend/stock [95 %] "
      "|\n|---|---|---|---|---|---|");
  for (const std::uint64_t v : o.values)
    measure(o, make_dataset(o.dir, KeyKind::kImage, v, records_for(o.file_bytes, v)), cpu, report);
  if (!o.json.empty()) write_json(o.json, report);
  if (!keep) std::filesystem::remove_all(temporary);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::main_(argc, argv); }
