// lmdbio stats: prints the statistics of the processes of a job that ran, or runs, with LMDBIO_STATS=PATH.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "lmdbio/base/file_size_signal.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/statistics.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/stats/report.h"

namespace lmdbio::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> files;
  bool processes = false, json = false;
};

// Saves the statistics of an ended process, whose board has been removed, to the file.
void append(const std::string& file, const std::string& line) {
  if (line.empty()) return;
  const NoFileSizeSignal limited;
  std::ofstream out(file, std::ios::app);
  out << line;
  out.close();
  if (!out) std::fprintf(stderr, "lmdbio: %s: cannot be written; not saved: %s", file.c_str(), line.c_str());
}

void tell(const Options& options) {
  std::set<fs::path> files;
  for (const std::string& f : options.files) files.insert(fs::absolute(f).lexically_normal());
  std::set<std::string> without;  ///< files with content, but without statistics
  const Json processes = collect(
      [&files](const node::ShownBoard& b) {
        return files.contains(fs::path(stats::expand(b.topic, b.pid)).lexically_normal());
      },
      [](const node::ShownBoard& b) { append(stats::expand(b.topic, b.pid), stats::line_of(b)); },
      [&options, &without] {
        Json lines = Json::array();
        for (const std::string& f : options.files) {
          const std::size_t before = lines.size();
          std::error_code error;
          if (add_lines(f, lines) && lines.size() == before && fs::file_size(f, error) != 0)
            without.insert(f);
        }
        return lines;
      });
  for (const std::string& f : options.files) {
    if (processes.empty() && ::access(f.c_str(), R_OK) != 0)
      throw Failure(f + ": " + ::strerrordesc_np(errno));
    // An empty file may belong to processes that still run.
    if (processes.empty() || without.contains(f)) throw Failure(f + ": no statistics of LMDBIO");
  }
  const Json total = total_of(processes);
  if (options.json) {
    std::puts(dump(Json{{"total", total}, {"processes", processes}}).c_str());
    return;
  }
  for (const std::string& line : total_lines(total)) std::puts(line.c_str());
  if (!options.processes) return;
  for (const std::string& line : process_lines(processes)) std::puts(line.c_str());
}

}  // namespace

void add_stats(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub =
      app.add_subcommand("stats", "print the statistics of a job that runs, or ran, with LMDBIO_STATS=FILE");
  sub->add_option(
         "FILE", options->files,
         "the file named by LMDBIO_STATS; if the name contains %p or %h, all files that were written")
      ->required();
  sub->add_flag("--processes", options->processes, "also print the statistics of each process");
  sub->add_flag("--json", options->json, "print one JSON object");
  sub->callback([options, &status] {
    tell(*options);
    status = kClean;
  });
}

}  // namespace lmdbio::cli
