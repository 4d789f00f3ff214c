// lmdbio run: runs a program with liblmdbio.so preloaded.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "lmdbio/base/config.h"
#include "lmdbio/base/file_size_signal.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/node_servers.h"
#include "lmdbio/cli/program.h"
#include "lmdbio/cli/statistics.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/stats/report.h"

namespace lmdbio::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  bool stats = false, processes = false, nodes = false;
  std::string json;  ///< file, or "-"
  std::string library, cache;
  std::string launcher;  ///< of the servers; empty: that of the job
  std::vector<std::string> settings;
};

void warn(const std::string& text) { std::fprintf(stderr, "lmdbio: warning: %s\n", text.c_str()); }

std::string own_directory() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0 || n == static_cast<ssize_t>(sizeof path)) return "";
  return fs::path(std::string(path, static_cast<std::size_t>(n))).parent_path().string();
}

std::string find_library(const std::string& asked) {
  std::vector<std::string> places;
  if (!asked.empty()) {
    places = {asked};
  } else if (const std::string here = own_directory(); !here.empty()) {
    places = {here + "/../lib/liblmdbio.so", here + "/" LMDBIO_LIBDIR_FROM_BINDIR "/liblmdbio.so",
              here + "/liblmdbio.so"};
  }
  for (const std::string& p : places) {
    char real[PATH_MAX];
    if (::realpath(p.c_str(), real) == nullptr) continue;
    struct stat st {};
    if (::stat(real, &st) != 0 || !S_ISREG(st.st_mode) || ::access(real, R_OK) != 0) continue;
    const std::string found = real;
    if (found.find_first_of(": ") != std::string::npos)
      throw Failure(found + ": LD_PRELOAD cannot contain a path with a space or a colon");
    return found;
  }
  throw Failure(asked.empty()
                    ? "liblmdbio.so was not found next to this command; give its path with --library"
                    : asked + ": no such library, or it is not readable");
}

/// Sets a setting in the environment.  `text` is NAME=VALUE; NAME may omit the prefix LMDBIO_.
void set(const std::string& text, bool stats) {
  const std::size_t eq = text.find('=');
  if (eq == std::string::npos || eq == 0) throw Failure("--set " + text + ": expected NAME=VALUE");
  const std::string name = text.substr(0, eq), value = text.substr(eq + 1);
  std::string known;
  for (const ConfigEntry& e : config_table()) {
    known += (known.empty() ? "" : ", ") + std::string(e.name);
    if (name != e.name && "LMDBIO_" + name != e.name) continue;
    if (stats && std::strcmp(e.name, "LMDBIO_STATS") == 0)
      throw Failure("--set " + text +
                    ": cannot be combined with --stats, --processes or --json, which set LMDBIO_STATS");
    Config scratch;
    if (!value.empty() && !e.parse(scratch, value.c_str()))
      throw Failure("--set " + text + ": not valid; allowed: " + e.range);
    // An empty value unsets the setting.
    if ((value.empty() ? ::unsetenv(e.name) : ::setenv(e.name, value.c_str(), 1)) != 0)
      throw std::bad_alloc();
    return;
  }
  const char* const meant = nearest_setting(name);
  throw Failure(
      "--set " + text + ": unknown setting; " +
      (meant != nullptr ? std::string("did you mean ") + meant + "?" : "the settings are " + known));
}

// --- a child ---

std::atomic<pid_t> child{0};

// Forwards a signal that a process other than the child sent to this one.  Signals of the terminal reach
// the child directly.
extern "C" void forward(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  if (info->si_code <= 0 && info->si_pid != child) (void)::kill(child, signal);
  errno = saved;
}

constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGCONT};

[[noreturn]] void execute(const std::string& file, char** argv) {
  ::execvp(file.c_str(), argv);  // the path has a slash, so PATH is not searched; scripts without #! run, too
  throw Failure(file + ": cannot be executed: " + ::strerrordesc_np(errno),
                errno == ENOENT ? kNotFound : kNotExecutable);
}

/// Runs the program until it ends.  Returns its status as a shell reports it.
int run_child(const std::string& file, char** argv) {
  struct sigaction on_child {
  }, by_default{};
  by_default.sa_handler = SIG_DFL;  // if SIGCHLD were ignored, the exit status would be lost
  (void)::sigaction(SIGCHLD, &by_default, &on_child);
  sigset_t block, before;
  sigemptyset(&block);
  for (const int s : kForwarded) sigaddset(&block, s);
  (void)::sigprocmask(SIG_BLOCK, &block, &before);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw Failure(std::string("fork: ") + ::strerrordesc_np(errno));
  if (pid == 0) {
    (void)::sigaction(SIGCHLD, &on_child, nullptr);
    (void)::sigprocmask(SIG_SETMASK, &before, nullptr);
    try {
      execute(file, argv);
    } catch (const Failure& e) {
      std::fprintf(stderr, "lmdbio: %s\n", e.what());
      ::_exit(e.status());
    }
  }
  child = pid;
  for (const int s : kForwarded) {
    struct sigaction act {
    }, old{};
    act.sa_sigaction = forward;
    act.sa_flags = SA_SIGINFO | SA_RESTART;
    (void)::sigaction(s, nullptr, &old);
    if (old.sa_handler != SIG_IGN) (void)::sigaction(s, &act, nullptr);  // keep nohup's ignored signals
  }
  (void)::sigprocmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  siginfo_t ended{};
  // Reap the child only after forwarding has stopped: a signal must not reach another process with its
  // number.
  while (::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  (void)::sigprocmask(SIG_BLOCK, &block, nullptr);
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// --- statistics ---

/// A temporary directory, which the destructor removes.
class Scratch {
 public:
  Scratch() {
    const char* const tmp = std::getenv("TMPDIR");
    path_ = std::string(tmp != nullptr && *tmp != '\0' ? tmp : "/tmp") + "/lmdbio-run-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw Failure(path_ + ": " + ::strerrordesc_np(errno));
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Returns each process that wrote statistics, in the order of their files, and then those that ended
/// without writing or still run.
Json told(const std::string& dir, const std::string& topic) {
  Json without = Json::array();
  Json processes = collect([&topic](const node::ShownBoard& b) { return b.topic == topic; },
                           [&without](const node::ShownBoard& b) { add_line(stats::line_of(b), without); },
                           [&dir] {
                             Json lines = Json::array();
                             std::set<std::string> files;
                             for (const fs::directory_entry& e : fs::directory_iterator(dir))
                               files.insert(e.path().string());
                             for (const std::string& f : files) (void)add_lines(f, lines);
                             return lines;
                           });
  for (Json& p : without) processes.push_back(std::move(p));
  return processes;
}

void write_json(const std::string& where, int status, const JobUse& job, const Json& total,
                const Json& processes) {
  const std::string text = dump(Json{{"exit_status", status},
                                     {"seconds", job.seconds},
                                     {"cpu_seconds", job.cpu_seconds},
                                     {"total", total},
                                     {"processes", processes}}) +
                           "\n";
  if (where == "-") {
    std::fputs(text.c_str(), stdout);
    return;
  }
  const NoFileSizeSignal limited;
  std::ofstream out(where, std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw Failure(where + ": cannot be written: " + ::strerrordesc_np(errno));
}

/// Prints the usage line: CLI11 does not know the program and its arguments.
class Usage : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: lmdbio run [OPTIONS] [--] PROGRAM [ARGS...]\n";
  }
};

int run(const Options& options, const std::vector<std::string>& command) {
  if (command.empty())
    throw Failure("run: no program given; example: lmdbio run --stats -- python3 train.py");
  const std::string library = find_library(options.library);
  const bool stats = options.stats || options.processes || !options.json.empty();
  for (const std::string& s : options.settings) set(s, stats);
  if (!options.cache.empty()) set("LMDBIO_CACHE_DIR=" + fs::absolute(options.cache).string(), stats);
  const std::string file = find_program(command[0]);
  for (const std::string& o : obstacles(file, {command.begin() + 1, command.end()})) warn(o);
  const char* const disable = std::getenv("LMDBIO_DISABLE");
  const bool off = disable != nullptr && std::strcmp(disable, "1") == 0;
  if (off) warn("LMDBIO_DISABLE is set: all calls go to stock LMDB");

  if (!options.nodes && !options.launcher.empty()) throw Failure("--launcher: only with --nodes");
  std::optional<NodeServers> servers;  // before LD_PRELOAD is set, which is not for them
  if (options.nodes) servers.emplace(launcher_words(options.launcher));

  const char* const others = std::getenv("LD_PRELOAD");
  const std::string preload =
      library + (others != nullptr && *others != '\0' ? std::string(":") + others : "");
  if (::setenv("LD_PRELOAD", preload.c_str(), 1) != 0) throw std::bad_alloc();
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  if (!stats && !servers) execute(file, argv.data());
  if (!stats) return run_child(file, argv.data());

  const Scratch scratch;
  std::string pattern;
  for (const char c : scratch.path()) pattern += c == '%' ? "%%" : std::string(1, c);
  pattern += "/%p";
  if (::setenv("LMDBIO_STATS", pattern.c_str(), 1) != 0) throw std::bad_alloc();
  const std::int64_t begun = now_ns();
  const int status = run_child(file, argv.data());
  rusage used{};  // of the program and all its descendants that were waited for
  (void)::getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds_of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  const JobUse job{
      static_cast<double>(now_ns() - begun) / 1e9, seconds_of(used.ru_utime) + seconds_of(used.ru_stime),
      static_cast<std::uint64_t>(used.ru_majflt), static_cast<std::uint64_t>(used.ru_inblock) * 512};
  const Json processes = told(scratch.path(), stats::topic_of(pattern));
  const Json total = total_of(processes, job);
  const auto print = [](const std::vector<std::string>& lines) {
    for (const std::string& line : lines) std::fprintf(stderr, "lmdbio: %s\n", line.c_str());
  };
  if (options.stats && off)
    print({format_text("LMDBIO was disabled (LMDBIO_DISABLE=1): there are no statistics; the job took %.3f s",
                       job.seconds)});
  else if (options.stats)
    print(total_lines(total, job));
  if (options.processes) print(process_lines(processes));
  if (!options.json.empty()) write_json(options.json, status, job, total, processes);
  return status;
}

}  // namespace

int run_options_end(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "run") != 0) return argc;
  int i = 2;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    if (word == "--json" || word == "--set" || word == "--library" || word == "--cache" ||
        word == "--launcher")
      ++i;  // skip its value
  }
  return std::min(i, argc);
}

void add_run(CLI::App& app, const std::vector<std::string>& command, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub =
      app.add_subcommand("run", "run a program with LMDBIO preloaded; exits with its status");
  sub->formatter(std::make_shared<Usage>());
  sub->add_flag("--stats", options->stats, "print statistics of all processes to standard error afterwards");
  sub->add_flag("--processes", options->processes,
                "print statistics of each process to standard error afterwards");
  sub->add_option("--json", options->json,
                  "write all statistics as one JSON object to FILE (-: standard output)")
      ->type_name("FILE");
  sub->add_option("--set", options->settings,
                  "set one of the settings that lmdbio config lists, for this program only; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  sub->add_option("--cache", options->cache,
                  "keep a copy of the databases in this directory on local disk (sets LMDBIO_CACHE_DIR)")
      ->type_name("DIR");
  sub->add_flag(
      "--nodes", options->nodes,
      "first start a server on each node of the job, and end the servers after the program (lmdbio serve)");
  sub->add_option("--launcher", options->launcher,
                  "what starts one process on each node (default: srun in a job of Slurm, else mpirun)")
      ->type_name("COMMAND");
  sub->add_option("--library", options->library, "the liblmdbio.so to preload")->type_name("PATH");
  sub->callback([options, &command, &status] { status = run(*options, command); });
}

}  // namespace lmdbio::cli
