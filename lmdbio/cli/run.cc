// lmdbio run: a program with liblmdbio.so preloaded.

#include <fcntl.h>
#include <signal.h>
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
#include <map>
#include <memory>
#include <string_view>

#include "lmdbio/base/config.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/program.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"

namespace lmdbio::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  bool stats = false;
  std::string json;  ///< file, or "-"; implies stats
  std::string library;
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
      throw Failure(found + ": LD_PRELOAD cannot hold a path with a space or a colon");
    return found;
  }
  throw Failure(asked.empty() ? "liblmdbio.so is not beside this command; name it with --library"
                              : asked + ": no such library, or not readable");
}

/// NAME=VALUE into the environment, NAME with LMDBIO_ or without it.
void set(const std::string& text, bool stats) {
  const std::size_t eq = text.find('=');
  if (eq == std::string::npos || eq == 0) throw Failure("--set " + text + ": NAME=VALUE is wanted");
  const std::string name = text.substr(0, eq), value = text.substr(eq + 1);
  std::string known;
  for (const ConfigEntry& e : config_table()) {
    known += (known.empty() ? "" : ", ") + std::string(e.name);
    if (name != e.name && "LMDBIO_" + name != e.name) continue;
    if (stats && std::strcmp(e.name, "LMDBIO_STATS") == 0)
      throw Failure("--set " + text + ": --stats and --json need LMDBIO_STATS themselves");
    Config scratch;
    if (!value.empty() && !e.parse(scratch, value.c_str()))
      throw Failure("--set " + text + ": not valid; wanted: " + e.range);
    // Empty: as if not set.
    if ((value.empty() ? ::unsetenv(e.name) : ::setenv(e.name, value.c_str(), 1)) != 0)
      throw std::bad_alloc();
    return;
  }
  const char* const meant = nearest_setting(name);
  throw Failure("--set " + text + ": there is no such setting" +
                (meant != nullptr ? std::string("; did you mean ") + meant + "?" : "; there are " + known));
}

// --- a child ---

std::atomic<pid_t> child{0};

// The terminal's own signals reach the child by themselves; what somebody sent to us alone does not.
extern "C" void forward(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  if (info->si_code <= 0 && info->si_pid != child) (void)::kill(child, signal);
  errno = saved;
}

constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGCONT};

[[noreturn]] void execute(const std::string& file, char** argv) {
  ::execvp(file.c_str(), argv);  // has a slash: no search, but a script without #! is run
  throw Failure(file + ": cannot be executed: " + ::strerrordesc_np(errno),
                errno == ENOENT ? kNotFound : kNotExecutable);
}

/// Runs it to its end; the status as a shell has it.
int run_child(const std::string& file, char** argv) {
  struct sigaction on_child {
  }, by_default{};
  by_default.sa_handler = SIG_DFL;  // ignored, it would take the status away
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
    if (old.sa_handler != SIG_IGN) (void)::sigaction(s, &act, nullptr);  // nohup stays
  }
  (void)::sigprocmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  siginfo_t ended{};
  // Not reaped before no signal can be sent to its number any more.
  while (::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  (void)::sigprocmask(SIG_BLOCK, &block, nullptr);
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// --- statistics ---

/// A directory of our own, gone with the object.
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

/// Every environment of every process, as they told; in the order of their files.
Json collect(const std::string& dir) {
  Json processes = Json::array();
  std::map<std::string, std::vector<Json>> files;
  for (const fs::directory_entry& e : fs::directory_iterator(dir)) {
    std::ifstream in(e.path());
    for (std::string line; std::getline(in, line);) {
      Json j = Json::parse(line, nullptr, false);
      if (j.is_object()) files[e.path().filename().string()].push_back(std::move(j));
    }
  }
  for (const auto& [name, lines] : files)
    for (const Json& line : lines) processes.push_back(line);
  return processes;
}

std::uint64_t number(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : 0;
}

std::uint64_t number(const Json& j, const char* group, const char* key) {
  const auto it = j.find(group);
  return it != j.end() && it->is_object() ? number(*it, key) : 0;
}

/// How data that was not in memory was read.
void summarize_reading(const Json& io) {
  const auto bytes = [&io](const char* key) { return bytes_text(static_cast<double>(number(io, key))); };
  const auto count = [&io](const char* key) { return static_cast<unsigned long long>(number(io, key)); };
  const std::string way = io.value("read_path", "");
  const char* const how = way == "direct"     ? "direct reads past the page cache"
                          : way == "buffered" ? "reads into the page cache"
                                              : "page faults";
  const std::string engine = io.value("engine", "");
  std::fprintf(stderr, "lmdbio:   data not in memory: %s%s%s (%s)\n", how, engine.empty() ? "" : ", by ",
               printable(engine).c_str(), printable(io.value("reason", "")).c_str());
  if (count("read") == 0) return;
  std::fprintf(
      stderr,
      "lmdbio:   walks came to %s; %s were read ahead of them, %s for nothing; %llu chunks were in the page "
      "cache already\n",
      bytes("asked").c_str(), bytes("read").c_str(), bytes("wasted").c_str(), count("chunks_cached"));
  std::fprintf(stderr, "lmdbio:   the program waited %llu times, %.3f s in all; requests:", count("stalls"),
               static_cast<double>(number(io, "stall_us")) / 1e6);
  constexpr struct {
    const char *key, *text;
  } kSizes[] = {
      {"4K", "up to 4 KiB"}, {"64K", "64 KiB"}, {"256K", "256 KiB"}, {"1M", "1 MiB"}, {"more", "more"}};
  const char* separator = " ";
  for (const auto& size : kSizes) {
    const std::uint64_t n = number(io, "requests", size.key);
    if (n == 0) continue;
    std::fprintf(stderr, "%s%llu of %s", separator, static_cast<unsigned long long>(n), size.text);
    separator = ", ";
  }
  std::fputc('\n', stderr);
  if (count("chunks_given") + count("chunks_claimed") != 0)
    std::fprintf(
        stderr,
        "lmdbio:   shared with other processes of this node: %llu chunks that they had read were taken from "
        "shared memory, %llu times a chunk was being read by one of them\n",
        count("chunks_given"), count("chunks_claimed"));
  if (count("published") != 0)
    std::fprintf(stderr,
                 "lmdbio:   %llu chunks of %s held at most, of %s allowed; %llu given back; the snapshot "
                 "changed %llu times under them\n",
                 count("most_resident"), bytes("chunk_bytes").c_str(), bytes("memory_limit").c_str(),
                 count("reclaimed"), count("snapshots"));
  if (count("read_failed") + count("publish_failed") != 0)
    std::fprintf(stderr,
                 "lmdbio:   %llu reads failed, %llu chunks found no room and were left to page faults\n",
                 count("read_failed"), count("publish_failed"));
  if (count("key_walks") != 0)
    std::fprintf(stderr, "lmdbio:   %llu times a walk was seen to skip its values: they were not read\n",
                 count("key_walks"));
  if (count("lookups_missed") != 0)
    std::fprintf(
        stderr,
        "lmdbio:   %llu lookups missed memory; %s were read exactly for them, in %llu reads; %llu leaf pages "
        "were fetched ahead\n",
        count("lookups_missed"), bytes("exact_bytes").c_str(), count("exact_reads"), count("leaves_fetched"));
  if (count("loads_begun") != 0)
    std::fprintf(
        stderr,
        "lmdbio:   looked up all over: loading the whole file in the background was begun %llu times, "
        "finished %llu times\n",
        count("loads_begun"), count("loads_finished"));
  if (count("stride_walks") != 0)
    std::fprintf(
        stderr,
        "lmdbio:   %llu times a walk was seen to use each so many-th value: %llu values were fetched as the "
        "next such ones, %llu of them were seen used, %llu not\n",
        count("stride_walks"), count("predicted"), count("predicted_right"), count("predicted_wrong"));
}

void summarize(const Json& processes) {
  std::uint64_t environments = 0;
  for (const Json& p : processes) {
    const auto list = p.find("environments");
    if (list == p.end() || !list->is_array()) continue;
    for (const Json& e : *list) {
      ++environments;
      const bool ours = e.value("ours", false);
      std::fprintf(stderr, "lmdbio: process %llu: %s: %s%s\n",
                   static_cast<unsigned long long>(number(p, "pid")), printable(e.value("path", "")).c_str(),
                   ours ? "served by LMDBIO" : "passed through to LMDB: ",
                   ours ? "" : printable(e.value("reason", "")).c_str());
      std::fprintf(
          stderr,
          "lmdbio:   %llu gets, %llu cursor moves, %llu transactions; %llu records, %s; %.3f s open; "
          "%llu major faults; passed through: %llu gets, %llu cursor moves, %llu writes\n",
          static_cast<unsigned long long>(number(e, "calls", "get")),
          static_cast<unsigned long long>(number(e, "calls", "cursor_get")),
          static_cast<unsigned long long>(number(e, "calls", "txn_begin") + number(e, "calls", "txn_renew")),
          static_cast<unsigned long long>(number(e, "records")),
          bytes_text(static_cast<double>(number(e, "bytes"))).c_str(),
          static_cast<double>(number(e, "open_us")) / 1e6,
          static_cast<unsigned long long>(number(e, "major_faults")),
          static_cast<unsigned long long>(number(e, "forwarded", "get")),
          static_cast<unsigned long long>(number(e, "forwarded", "cursor_get")),
          static_cast<unsigned long long>(number(e, "forwarded", "write")));
      if (const auto io = e.find("io"); io != e.end() && io->is_object()) summarize_reading(*io);
      if (ours && !e.value("locks", true))
        std::fprintf(stderr, "lmdbio:   read without locks: they were refused\n");
      if (const std::uint64_t n = number(e, "without_slot"); n != 0)
        std::fprintf(stderr, "lmdbio:   %llu transactions got no reader slot\n",
                     static_cast<unsigned long long>(n));
      if (number(e, "overtaken") != 0)
        std::fprintf(stderr, "lmdbio:   a writer changed the file while it was read without locks\n");
    }
  }
  if (environments == 0)
    warn(
        "no LMDB environment was seen: the program opened none, was not reached (static LMDB, another "
        "loader), or was killed");
}

void write_json(const std::string& where, int status, const Json& processes) {
  const std::string text = dump(Json{{"exit_status", status}, {"processes", processes}}) + "\n";
  if (where == "-") {
    std::fputs(text.c_str(), stdout);
    return;
  }
  std::ofstream out(where, std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw Failure(where + ": cannot be written");
}

int run(const Options& options, const std::vector<std::string>& command) {
  if (command.empty())
    throw Failure("run: which program?  For example: lmdbio run --stats -- python3 train.py");
  const std::string library = find_library(options.library);
  const bool stats = options.stats || !options.json.empty();
  for (const std::string& s : options.settings) set(s, stats);
  const std::string file = find_program(command[0]);
  for (const std::string& o : obstacles(file, {command.begin() + 1, command.end()})) warn(o);
  if (const char* const off = std::getenv("LMDBIO_DISABLE"); off != nullptr && std::strcmp(off, "1") == 0)
    warn("LMDBIO_DISABLE is set: all calls go to LMDB");

  const char* const others = std::getenv("LD_PRELOAD");
  const std::string preload =
      library + (others != nullptr && *others != '\0' ? std::string(":") + others : "");
  if (::setenv("LD_PRELOAD", preload.c_str(), 1) != 0) throw std::bad_alloc();
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  if (!stats) execute(file, argv.data());

  const Scratch scratch;
  std::string pattern;
  for (const char c : scratch.path()) pattern += c == '%' ? "%%" : std::string(1, c);
  pattern += "/%p";
  if (::setenv("LMDBIO_STATS", pattern.c_str(), 1) != 0) throw std::bad_alloc();
  const int status = run_child(file, argv.data());
  const Json processes = collect(scratch.path());
  if (options.stats) summarize(processes);
  if (!options.json.empty()) write_json(options.json, status, processes);
  return status;
}

}  // namespace

int run_options_end(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "run") != 0) return argc;
  int i = 2;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    if (word == "--json" || word == "--set" || word == "--library") ++i;  // its value
  }
  return std::min(i, argc);
}

void add_run(CLI::App& app, const std::vector<std::string>& command, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub =
      app.add_subcommand("run", "run a program with LMDBIO; its exit status, as a shell has it");
  sub->footer("lmdbio run [OPTIONS] [--] PROGRAM [ARGS...]");
  sub->add_flag("--stats", options->stats, "afterwards, what LMDBIO did, on standard error");
  sub->add_option("--json", options->json, "the same as one JSON object in FILE; -: standard output")
      ->type_name("FILE");
  sub->add_option("--set", options->settings, "a setting of LMDBIO (lmdbio config), for this program")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  sub->add_option("--library", options->library, "another liblmdbio.so")->type_name("PATH");
  sub->callback([options, &command, &status] { status = run(*options, command); });
}

}  // namespace lmdbio::cli
