// Measures the cost of preloading for a process that never opens an LMDB.  The time from spawn to exit is
// compared with that of an empty library, interleaved, and with a second empty one (A/A).  Also counts
// dynamic relocations and, with valgrind, instructions.  Checks that there is no second thread and no output.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <sstream>

#include "bench/runner.h"
#include "bench/stats.h"

extern char** environ;

namespace lmdbio::bench {
namespace {

struct Options {
  std::string library = default_library(), json;
  std::size_t pairs = 1000;
  double limit_us = 200;
  bool check = false, smoke = false;
};

/// Runs the probe with `preload`.  Returns the time from spawn to exit.  Ends the benchmark if the probe
/// finds a second thread, or if its stdout or stderr is not empty.
double spawn_us(const std::string& preload) {
  static const std::string probe = program_dir() + "/startup_probe";
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) die_errno("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDERR_FILENO);
  const std::string variable = "LD_PRELOAD=" + preload;
  char* const argv[] = {const_cast<char*>(probe.c_str()), nullptr};
  char* const env[] = {const_cast<char*>(variable.c_str()), nullptr};
  pid_t pid = -1;
  int status = 0;
  const std::uint64_t start = clock_ns();
  const int rc = posix_spawn(&pid, argv[0], &actions, nullptr, argv, env);
  if (rc != 0) die("cannot start %s: %s", argv[0], std::strerror(rc));
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const std::uint64_t ns = clock_ns() - start;
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  char text[256];
  const ssize_t n = read(out[0], text, sizeof text);
  close(out[0]);
  if (n > 0) die("with %s a program writes: %.*s", preload.c_str(), static_cast<int>(n), text);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    die("with %s the probe ends with status %d (1: more than one thread)", preload.c_str(), status);
  return static_cast<double>(ns) / 1000;
}

std::string output_of(const std::string& command) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) out += line;
  return pclose(pipe) == 0 ? out : "";
}

/// Returns the number of entries of all relocation sections; -1 without readelf.
long relocations(const std::string& library) {
  std::istringstream lines(output_of("readelf -rW '" + library + "' 2>/dev/null"));
  long count = -1;
  for (std::string line; std::getline(lines, line);) {
    if (count < 0) count = 0;
    if (line.size() > 16 && line.find(" R_") != std::string::npos) ++count;
  }
  return count;
}

/// Returns the number of instructions of the probe from start to end, from callgrind; -1 without valgrind.
long instructions(const std::string& preload) {
  char file[] = "/tmp/lmdbio-startup-XXXXXX";
  const int fd = mkstemp(file);
  if (fd < 0) die_errno("mkstemp");
  close(fd);
  const std::string command =
      "command -v valgrind >/dev/null && LD_PRELOAD='" + preload +
      "' valgrind --tool=callgrind --callgrind-out-file=" + file + " '" + program_dir() +
      "/startup_probe' >/dev/null 2>&1 && awk '/^(summary|totals):/ {print $2; exit}' " + file;
  const std::string out = output_of(command);
  unlink(file);
  return out.empty() ? -1 : std::atol(out.c_str());
}

int run(const Options& o) {
  const std::string lib = program_dir() + "/../lib/";
  const std::array<std::string, 3> libraries{lib + "libstartup_empty.so", lib + "libstartup_empty2.so",
                                             o.library};
  for (const std::string& l : libraries)
    if (access(l.c_str(), R_OK) != 0) die_errno(l.c_str());

  pin_to_cpu(worker_cpu());  // the probes inherit it, so they do not migrate
  std::array<std::vector<double>, 3> us, more;
  const bool tty = isatty(STDERR_FILENO) != 0;
  for (std::size_t i = 0; i < o.pairs; ++i) {
    std::array<double, 3> now{};
    for (const std::size_t l : round_order(libraries.size(), i)) now[l] = spawn_us(libraries[l]);
    for (std::size_t l = 0; l < now.size(); ++l) {
      us[l].push_back(now[l]);
      more[l].push_back(now[l] - now[0]);
    }
    if (tty && i % 50 == 0) std::fprintf(stderr, "\r%zu of %zu pairs\033[K", i, o.pairs);
  }
  if (tty) std::fputs("\r\033[K", stderr);

  constexpr std::array<const char*, 3> kLabels{"empty library", "empty library again (A/A)", "liblmdbio.so"};
  nlohmann::json report{{"machine", machine_facts()}, {"pairs", o.pairs}};
  std::puts(
      "| preloaded | median us | more than empty, us [95 %] | relocations | instructions "
      "|\n|---|---|---|---|---|");
  for (std::size_t l = 0; l < libraries.size(); ++l) {
    const Interval difference = median_interval(more[l]);
    const long relocs = relocations(libraries[l]), instr = o.smoke ? -1 : instructions(libraries[l]);
    std::printf("| %s | %.1f | %.1f [%.1f, %.1f] | %ld | %ld |\n", kLabels[l], median(us[l]),
                difference.middle, difference.low, difference.high, relocs, instr);
    nlohmann::json row{{"preloaded", kLabels[l]},
                       {"median_us", median(us[l])},
                       {"more_us", difference.middle},
                       {"relocations", relocs},
                       {"instructions", instr}};
    if (!std::isnan(difference.low))
      row["more_us_low"] = difference.low, row["more_us_high"] = difference.high;
    report["rows"].push_back(row);
  }
  std::printf("\none thread, no output, in all %zu processes\n", o.pairs * libraries.size());
  if (!o.json.empty()) write_json(o.json, report);
  return o.check && median(more[2]) > o.limit_us ? 1 : 0;
}

int main_(int argc, char** argv) {
  Options o;
  CLI::App app{"What preloading costs a process that opens no LMDB."};
  app.add_option("--library", o.library, "library to preload")->capture_default_str();
  app.add_option("--pairs", o.pairs, "interleaved runs of each")->capture_default_str();
  app.add_option("--limit-us", o.limit_us, "what --check allows above the empty library")
      ->capture_default_str();
  app.add_flag("--check", o.check, "exit 1 if the median is above the limit");
  app.add_option("--json", o.json, "write the result and the machine's facts there");
  app.add_flag("--smoke", o.smoke, "a few runs, no instruction counts");
  CLI11_PARSE(app, argc, argv);
  if (o.smoke) o.pairs = 7;
  return run(o);
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::main_(argc, argv); }
