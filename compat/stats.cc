#include "compat/stats.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "compat/handle.h"
#include "compat/object.h"
#include "lmdbio/ahead/file_policy.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/file_size_signal.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/records/shared.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::compat {

namespace {

using node::CellKind;
using node::CounterBoard;

/// Statistics of a closed environment, kept until the process writes its line.
struct ClosedCells {
  explicit ClosedCells(const stats::EnvironmentReport& report) noexcept;
  ClosedCells* next = nullptr;
  node::Cell<stats::EnvironmentCounters> counters{node::CellFacts{CellKind::environment}};
  node::BoardCell<stats::EnvironmentText> text{
      {CellKind::text, CounterBoard::number_of(counters.on_board())}};
  node::BoardCell<window::FileCounters> file{{CellKind::file, CounterBoard::number_of(counters.on_board())}};
};

// Leaked on purpose: it has no static destructor, and the atexit handler may run late.
struct Registry {
  std::vector<EnvHandle*> open;
  std::string closed;                   ///< JSON objects, comma-separated, not written yet
  ClosedCells* closed_cells = nullptr;  ///< head of a list
};
/// Seconds after which statistics are removed if their process ended without writing them.
constexpr std::int64_t kForgotten = 24 * 60 * 60;
/// If more processes than this have ended without writing statistics, a process that starts writes them.  The
/// kernel has 4096 segments, and a search for one of ours examines all of them.
constexpr std::size_t kManyLeft = 64;

constinit SignalSafeMutex mutex;  // guards `registry`
constinit Registry* registry = nullptr;
constinit std::atomic<bool> complained{false};  ///< one line per process
constinit pid_t registered_pid = 0;             ///< of the atexit handler; 0: not registered
constinit bool asked_at_load = false;           ///< LMDBIO_STATS was set
constinit bool forked = false;  ///< environments may be the parent's; reports only those used since the fork

template <std::size_t n>
void set_text(char (&to)[n], std::string_view from) noexcept {
  std::memset(to, 0, n);
  std::memcpy(to, from.data(), std::min(from.size(), n - 1));
}

ClosedCells::ClosedCells(const stats::EnvironmentReport& r) noexcept {
  counters->ended = r.calls;
  counters->closed_readers = r.readers;
  counters->without_slot = r.without_slot;
  counters->forwarded.get = r.forward_get;
  counters->forwarded.cursor_get = r.forward_cursor_get;
  counters->forwarded.txn = r.forward_txn;
  counters->forwarded.write = r.forward_write;
  if (stats::EnvironmentText* const t = text.get(); t != nullptr) {
    set_text(t->path, r.path);
    set_text(t->reason, r.reason);
    t->ours = r.ours;
    t->without_locks = r.locks ? 0 : 1;
  }
  if (file.get() == nullptr || !r.io || !r.io->counted) return;
  window::FileCounters& f = *file.get();
  f.stats = r.io->stats;
  f.chunk_bytes = r.io->chunk_bytes;
  f.memory_limit = r.io->memory_limit;
  set_text(f.reason, r.io->reason);
  set_text(f.engine, r.io->engine);
  set_text(f.residency, r.io->residency);
}

// Returns the statistics of read-ahead.  They belong to the file: environments that share a window share
// them.
std::optional<stats::IoReport> io_report(const EnvHandle& env) {
  if (env.engine == nullptr) return std::nullopt;
  stats::IoReport out;
  const std::shared_ptr<window::WindowFile> file = env.engine->file().existing_window_file();
  if (file == nullptr) {
    out.read_path = "mmap";
    out.reason = env.engine->file().reads_ahead() ? "no walk or lookup found data missing in memory"
                                                  : env.engine->file().no_read_ahead_reason();
    out.counted = false;
    return out;
  }
  out.read_path = name_of(file->path());
  out.reason = file->decision.reason;
  out.engine = file->engine.load(std::memory_order_relaxed);
  out.residency = file->residency().how();
  out.chunk_bytes = file->chunk_bytes;
  out.memory_limit = window::Prefetcher::existing()->memory().limit();
  out.stats = env.engine->file().stats(*file);
  return out;
}

stats::EnvironmentReport report_of(EnvHandle& env) {
  const EnvStats& s = env.stats;
  const auto get = [](const std::atomic<std::uint64_t>& n) { return n.load(std::memory_order_relaxed); };
  stats::EnvironmentReport out;
  out.path = s.path;
  out.ours = s.reason == nullptr;
  if (!out.ours) out.reason = s.reason;
  out.locks = !env.lockless;
  out.without_slot = get(s.counters->without_slot);
  out.overtaken = env.overtaken.load(std::memory_order_relaxed) ? 1 : 0;
  out.calls = env.read_counters();
  out.forward_get = get(s.counters->forwarded.get);
  out.forward_cursor_get = get(s.counters->forwarded.cursor_get);
  out.forward_txn = get(s.counters->forwarded.txn);
  out.forward_write = get(s.counters->forwarded.write);
  out.io = io_report(env);
  out.readers = s.counters->closed_readers;
  for (const records::Shared* const r : s.readers) out.readers.add(*r);
  if (s.opened_ns == 0) return out;
  rusage now{};
  (void)::getrusage(RUSAGE_SELF, &now);
  const auto since = [](long later, long earlier) {
    return static_cast<std::uint64_t>(std::max(0L, later - earlier));
  };
  out.use = {since(now.ru_minflt, s.usage.ru_minflt),
             since(now.ru_majflt, s.usage.ru_majflt),
             since(now.ru_nvcsw, s.usage.ru_nvcsw),
             since(now.ru_nivcsw, s.usage.ru_nivcsw),
             static_cast<std::uint64_t>((now_ns() - s.opened_ns) / 1000),
             std::nullopt};
  if (const auto bytes = stats::process_storage_bytes(); bytes && s.storage_bytes)
    out.use->storage_bytes = *bytes - std::min(*bytes, *s.storage_bytes);
  return out;
}

void append(std::string& out, const stats::EnvironmentReport& report) {
  if (forked && report.is_unused()) return;
  if (!out.empty()) out += ',';
  append_json(out, report);
}

// Writes a line in one call, so that processes may share a file.
/// `path` is empty for standard error.
void write_line(const std::string& line, const std::string& path) {
  UniqueFd file;
  int fd = STDERR_FILENO;
  if (!path.empty()) {
    file = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    fd = file.get();
    if (fd < 0 && !complained.exchange(true))
      log_line(LogLevel::warn, "LMDBIO_STATS: cannot open %s: %s", path.c_str(), ::strerrordesc_np(errno));
    if (fd < 0) return;
  }
  const NoFileSizeSignal limited;
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (!complained.exchange(true))
        log_line(LogLevel::warn, "LMDBIO_STATS: cannot write to %s: %s",
                 path.empty() ? "standard error" : path.c_str(), ::strerrordesc_np(errno));
      return;
    }
    done += static_cast<std::size_t>(n);
  }
}

bool wanted() noexcept { return !config().stats.empty(); }
/// Returns whether statistics go to a file.  Other processes may then see the counters in shared memory.
/// Standard error belongs to this process alone.
bool is_shown() noexcept { return wanted() && config().stats != "1"; }

// Called with the mutex held.
void write_statistics() {
  std::string environments = registry->closed;
  for (EnvHandle* const env : registry->open) append(environments, report_of(*env));
  registry->closed.clear();
  registry->open.clear();  // an environment that is closed during exit must not be written again
  const auto pid = static_cast<std::uint32_t>(::getpid());
  if (!environments.empty())
    write_line(stats::process_line(pid, {}, environments),
               is_shown() ? stats::expand(config().stats, pid) : std::string());
  for (ClosedCells* c; (c = registry->closed_cells) != nullptr;) {
    registry->closed_cells = c->next;
    delete c;
  }
}

void tell_of(const std::vector<node::ShownBoard>& ended) {
  for (const node::ShownBoard& b : ended) {
    const std::string line = stats::line_of(b), path = stats::expand(b.topic, b.pid);
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    if (!line.empty() && ::access(folder.c_str(), F_OK) == 0) write_line(line, path);
  }
}

// Writes the statistics of dead processes that would have written to the same path.
void tell_of_others() {
  const std::string topic = CounterBoard::topic();  // the working directory may have changed
  if (topic.empty()) return;
  tell_of(node::take_boards([&topic](const node::ShownBoard& b) { return !b.lives && b.topic == topic; }));
}

// Writes the statistics of dead processes of any job, if there are many: their job may never read them.
void tell_of_many() {
  if (node::dead_boards() <= kManyLeft) return;
  tell_of(node::take_boards([](const node::ShownBoard& b) { return !b.lives; }));
}

void at_exit() {
  if (::getpid() != registered_pid) return;  // a child made without fork handlers has its parent's numbers
  const std::lock_guard lock(mutex);
  try {
    write_statistics();
    CounterBoard::end();
    tell_of_others();
  } catch (...) {  // out of memory: no line is possible
  }
}

/// Called before the first counter of the process exists.
node::CellFacts first_on_board(node::CellFacts facts) noexcept {
  static constinit std::atomic<bool> begun{false};
  if (is_shown() && !begun.exchange(true)) {
    try {
      CounterBoard::start(stats::topic_of(config().stats));
      (void)node::remove_dead_boards(kForgotten);
      tell_of_many();
    } catch (...) {
    }
  }
  return facts;
}

}  // namespace

EnvStats::EnvStats() noexcept
    : counters(first_on_board({CellKind::environment})),
      text_({CellKind::text, CounterBoard::number_of(counters.on_board())}) {}

void stats_reader_made(EnvHandle& env, const records::Shared& reader) noexcept {
  if (!wanted()) return;
  EnvStats::show();
  const std::lock_guard lock(mutex);
  try {
    env.stats.readers.push_back(&reader);
  } catch (...) {
  }
}

void stats_reader_gone(EnvHandle& env, const records::Shared& reader) noexcept {
  if (!wanted()) return;
  const std::lock_guard lock(mutex);
  if (std::erase(env.stats.readers, &reader) != 0) env.stats.counters->closed_readers.add(reader);
}

void EnvStats::shown() noexcept {
  try {
    tell_of_many();
  } catch (...) {  // out of memory: another process may write them
  }
}

void EnvStats::add(const ForwardCounters& c) noexcept {
  stats::Forwarded& all = counters->forwarded;
  if (c.get != 0) all.get.fetch_add(c.get, std::memory_order_relaxed);
  if (c.cursor_get != 0) all.cursor_get.fetch_add(c.cursor_get, std::memory_order_relaxed);
  if (c.write != 0) all.write.fetch_add(c.write, std::memory_order_relaxed);
}

void EnvStats::opened(const char* at, const char* why_not, int fd) {
  path = at;
  reason = why_not;
  if (!wanted()) return;
  show();
  opened_ns = now_ns();
  (void)::getrusage(RUSAGE_SELF, &usage);
  storage_bytes = stats::process_storage_bytes();
  if (stats::EnvironmentText* const t = text_.get(); t != nullptr) {
    set_text(t->path, path);
    set_text(t->reason, reason == nullptr ? "" : reason);
    t->ours = reason == nullptr;
  }
  struct stat st;
  if (fd >= 0 && ::fstat(fd, &st) == 0) CounterBoard::set_file(counters.on_board(), st.st_dev, st.st_ino);
}

void stats_environment_made(EnvHandle& env) noexcept {
  if (!wanted()) return;
  const std::lock_guard lock(mutex);
  try {
    if (registry == nullptr) registry = new Registry;
    registry->open.push_back(&env);
    if (registered_pid == 0 && std::atexit(at_exit) == 0) registered_pid = ::getpid();
  } catch (...) {  // out of memory: this environment is left out of the statistics
  }
}

void stats_environment_gone(EnvHandle& env) noexcept {
  if (!wanted()) return;
  const std::lock_guard lock(mutex);
  if (registry == nullptr || std::erase(registry->open, &env) == 0) return;
  try {
    const stats::EnvironmentReport report = report_of(env);
    append(registry->closed, report);
    if (!registry->open.empty() && is_shown()) {
      auto cells = std::make_unique<ClosedCells>(report);
      if (cells->counters.on_board() != nullptr) {
        cells->next = registry->closed_cells;
        registry->closed_cells = cells.release();
      }
    }
    if (registry->open.empty() && ::getpid() == registered_pid) write_statistics();
  } catch (...) {
  }
}

void stats_loaded(const char* const* environment) noexcept {
  constexpr std::string_view kSetting = "LMDBIO_STATS=";
  for (; environment != nullptr && *environment != nullptr && !asked_at_load; ++environment)
    asked_at_load = std::strncmp(*environment, kSetting.data(), kSetting.size()) == 0;
}

void stats_ends() noexcept {
  char module[PATH_MAX];
  // Check the configuration last: it reads the environment, which programs without LMDB do not expect here.
  if (!asked_at_load || !find_unreached(module, sizeof module) || !wanted() || config().disable) return;
  try {
    stats_write(stats::process_line(static_cast<std::uint32_t>(::getpid()), {}, {}, module));
  } catch (...) {  // out of memory
  }
}

void stats_after_fork() noexcept {
  if (registry == nullptr) return;
  forked = true;
  if (registered_pid != 0) registered_pid = ::getpid();
  registry->closed.clear();
  // These belong to the parent.  Their memory is not freed, because the fork may have interrupted free().
  for (ClosedCells* c = std::exchange(registry->closed_cells, nullptr); c != nullptr; c = c->next) {
    c->counters.leave();
    c->text.leave();
    c->file.leave();
  }
  for (EnvHandle* const env : registry->open) env->forget_counters();
}

void stats_write(const std::string& line) {
  if (wanted())
    write_line(line, is_shown() ? stats::expand(config().stats, static_cast<std::uint32_t>(::getpid()))
                                : std::string());
}

void lock_stats() noexcept { mutex.lock(); }
void unlock_stats() noexcept { mutex.unlock(); }

}  // namespace lmdbio::compat
