#include "compat/stats.h"

#include <fcntl.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "compat/handle.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cache/prefetcher.h"
#include "lmdbio/db/file_policy.h"
#include "lmdbio/reader/shared.h"

namespace lmdbio::compat {

namespace {

// Leaked on purpose: no static destructor, and the atexit handler may run late.
struct Registry {
  std::vector<EnvHandle*> open;
  std::string closed;  ///< JSON objects, comma-separated, not yet written
};
constinit SignalSafeMutex mutex;  // guards `registry`
constinit Registry* registry = nullptr;
constinit std::atomic<bool> complained{false};  ///< one line a process
constinit pid_t registered_pid = 0;             ///< of the atexit handler; 0: not registered
constinit bool forked = false;  ///< environments may be the parent's: only used ones are told of

void append_string(std::string& out, const char* s) {
  out += '"';
  for (; *s != '\0'; ++s) {
    const auto c = static_cast<unsigned char>(*s);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += *s;
    } else if (c < 0x20) {
      char escaped[8];
      (void)std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += *s;
    }
  }
  out += '"';
}

void append_number(std::string& out, const char* name, std::uint64_t value) {
  append_string(out, name);
  out += ':';
  out += std::to_string(value);
  out += ',';
}

void close_object(std::string& out) {
  if (out.back() == ',') out.pop_back();
  out += '}';
}

// What reading ahead came to.  Of the file: environments that share a window share it.
void append_reading(std::string& out, const EnvHandle& env) {
  const std::shared_ptr<cache::FileCache> file =
      env.engine != nullptr ? env.engine->read_ahead_so_far() : nullptr;
  if (env.engine == nullptr) return;
  if (file == nullptr) {
    out += "\"io\":{\"read_path\":\"mmap\",\"reason\":";
    append_string(out, env.engine->reads_ahead() ? "nothing met data that was not in memory"
                                                 : env.engine->no_read_ahead_reason());
    out += "},";
    return;
  }
  const cache::ReadStats s = env.engine->read_stats(*file);
  const db::AccessCounters a = env.engine->access_counters(*file);
  out += "\"io\":{\"read_path\":";
  append_string(out, name_of(file->path()));
  out += ",\"reason\":";
  append_string(out, file->decision.reason);
  out += ",\"engine\":";
  append_string(out, file->engine.load(std::memory_order_relaxed));
  out += ",\"residency\":";
  append_string(out, file->residency.how());
  out += ',';
  append_number(out, "chunk_bytes", file->chunk_bytes);
  append_number(out, "memory_limit", cache::Prefetcher::existing()->memory_limit());
  append_number(out, "asked", s.asked);
  append_number(out, "read", s.read);
  append_number(out, "wasted", s.wasted);
  append_number(out, "chunks_read", s.chunks_read);
  append_number(out, "chunks_cached", s.chunks_cached);
  append_number(out, "chunks_given", s.chunks_given);
  append_number(out, "chunks_claimed", s.chunks_claimed);
  append_number(out, "extents", s.extents);
  append_number(out, "stalls", s.stalls);
  append_number(out, "stall_us", s.stall_ns / 1000);
  append_number(out, "published", s.published);
  append_number(out, "reclaimed", s.reclaimed);
  append_number(out, "most_resident", s.most_resident);
  append_number(out, "most_vmas", s.most_vmas);
  append_number(out, "publish_failed", s.publish_failed);
  append_number(out, "read_failed", s.read_failed);
  append_number(out, "short_reads", s.short_reads);
  append_number(out, "retries", s.retries);
  append_number(out, "stale", s.stale);
  append_number(out, "stolen", s.stole);
  append_number(out, "snapshots", s.snapshots);
  append_number(out, "key_walks", a.key_walks);
  append_number(out, "stride_walks", a.stride_walks);
  append_number(out, "predicted", a.predicted);
  append_number(out, "predicted_right", a.predicted_right);
  append_number(out, "predicted_wrong", a.predicted_wrong);
  append_number(out, "sparse_plans", a.sparse_plans);
  append_number(out, "vanished", s.vanished);
  append_number(out, "went_direct", s.went_direct);
  append_number(out, "lookups_missed", a.lookups_missed);
  append_number(out, "exact_reads", a.exact_reads);
  append_number(out, "exact_bytes", a.exact_bytes);
  append_number(out, "leaves_fetched", a.leaves_fetched);
  append_number(out, "loads_begun", s.loads_begun);
  append_number(out, "loads_finished", s.loads_finished);
  out += "\"requests\":{";
  constexpr const char* kSizes[cache::ReadStats::kSizes] = {"4K", "64K", "256K", "1M", "more"};
  for (unsigned i = 0; i < cache::ReadStats::kSizes; ++i) append_number(out, kSizes[i], s.requests[i]);
  close_object(out);
  out += "},";
}

void append_readers(std::string& out, const EnvStats& s) {
  ReaderTotals all = s.closed_readers;
  for (const reader::Shared* const r : s.readers) all.add(*r);
  if (all.readers == 0) return;
  out += "\"reader\":{";
  append_number(out, "readers", all.readers);
  append_number(out, "index_read", all.index_read);
  append_number(out, "index_built", all.readers - all.index_read);
  append_number(out, "batches", all.batches);
  append_number(out, "records", all.records);
  append_number(out, "bytes", all.bytes_given);
  append_number(out, "read", all.bytes_read);
  append_number(out, "copied", all.bytes_copied);
  append_number(out, "requests", all.requests);
  append_number(out, "fetches", all.fetches);
  append_number(out, "fetches_cached", all.fetches_cached);
  append_number(out, "leaf_hits", all.leaf_hits);
  append_number(out, "leaf_misses", all.leaf_misses);
  append_number(out, "waits", all.waits);
  append_number(out, "wait_us", all.wait_ns / 1000);
  append_number(out, "failed", all.failed);
  append_number(out, "most_memory", all.most_bytes);
  close_object(out);
  out += ',';
}

constexpr const char* kCursorOpNames[db::Counters::kCursorOps + 1] = {
    "first",      "first_dup", "get_both", "get_both_range", "get_current",   "get_multiple", "last",
    "last_dup",   "next",      "next_dup", "next_multiple",  "next_nodup",    "prev",         "prev_dup",
    "prev_nodup", "set",       "set_key",  "set_range",      "prev_multiple", "invalid"};

void append_environment(std::string& out, EnvHandle& env) {
  const EnvStats& s = env.stats;
  const ReadCounters read = env.read_counters();
  const db::Counters& calls = read.calls;
  std::uint64_t cursor_get = 0;
  for (const std::uint64_t n : calls.cursor_op) cursor_get += n;

  const std::uint64_t forwarded =
      s.forward_get.load(std::memory_order_relaxed) + s.forward_cursor_get.load(std::memory_order_relaxed) +
      s.forward_txn.load(std::memory_order_relaxed) + s.forward_write.load(std::memory_order_relaxed);
  if (forked && calls.get + cursor_get + read.begun + read.renewed + forwarded == 0) return;

  if (!out.empty()) out += ',';
  out += "{\"path\":";
  append_string(out, s.path.c_str());
  out += s.reason == nullptr ? ",\"ours\":true,\"reason\":\"\"" : ",\"ours\":false,\"reason\":";
  if (s.reason != nullptr) append_string(out, s.reason);
  out += ",\"calls\":{";
  append_number(out, "get", calls.get);
  append_number(out, "cursor_get", cursor_get);
  append_number(out, "txn_begin", read.begun);
  append_number(out, "txn_renew", read.renewed);
  close_object(out);
  out += ",\"cursor_ops\":{";
  for (unsigned i = 0; i <= db::Counters::kCursorOps; ++i) {
    if (calls.cursor_op[i] != 0) append_number(out, kCursorOpNames[i], calls.cursor_op[i]);
  }
  close_object(out);
  out += ",\"forwarded\":{";
  append_number(out, "get", s.forward_get.load(std::memory_order_relaxed));
  append_number(out, "cursor_get", s.forward_cursor_get.load(std::memory_order_relaxed));
  append_number(out, "txn_begin", s.forward_txn.load(std::memory_order_relaxed));
  append_number(out, "write", s.forward_write.load(std::memory_order_relaxed));
  close_object(out);
  out += env.lockless ? ",\"locks\":false," : ",\"locks\":true,";
  append_number(out, "without_slot", s.without_slot.load(std::memory_order_relaxed));
  append_number(out, "overtaken", env.overtaken.load(std::memory_order_relaxed));
  append_number(out, "records", calls.get - calls.get_missed + cursor_get - calls.cursor_failed);
  append_number(out, "bytes", calls.bytes);
  if (const db::PrefetchCounters& prefetch = calls.prefetch; prefetch.keys != 0) {
    out += "\"prefetch\":{";
    append_number(out, "keys", prefetch.keys);
    append_number(out, "found", prefetch.found);
    append_number(out, "cached", prefetch.cached);
    append_number(out, "arena", prefetch.arena);
    append_number(out, "read", prefetch.bytes);
    append_number(out, "requests", prefetch.requests);
    append_number(out, "hits", prefetch.hits);
    append_number(out, "waits", prefetch.waits);
    append_number(out, "dropped", prefetch.dropped);
    close_object(out);
    out += ',';
  }
  append_reading(out, env);
  append_readers(out, s);
  rusage now{};
  (void)::getrusage(RUSAGE_SELF, &now);
  const auto since = [](long later, long earlier) {
    return static_cast<std::uint64_t>(std::max(0L, later - earlier));
  };
  if (s.opened_ns != 0) {
    // Of the whole process while the environment was open.
    append_number(out, "minor_faults", since(now.ru_minflt, s.usage.ru_minflt));
    append_number(out, "major_faults", since(now.ru_majflt, s.usage.ru_majflt));
    append_number(out, "voluntary_switches", since(now.ru_nvcsw, s.usage.ru_nvcsw));
    append_number(out, "involuntary_switches", since(now.ru_nivcsw, s.usage.ru_nivcsw));
    append_number(out, "open_us", static_cast<std::uint64_t>((now_ns() - s.opened_ns) / 1000));
  }
  close_object(out);
}

std::string expand(const std::string& pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char c = pattern[++i];
    if (c == 'p') {
      out += std::to_string(::getpid());
    } else if (c == 'h') {
      char host[HOST_NAME_MAX + 1] = "unknown";
      (void)::gethostname(host, sizeof host - 1);
      out += host;
    } else if (c == '%') {
      out += '%';
    } else {
      out += '%';
      out += c;
    }
  }
  return out;
}

// One line in one write, so that processes may share a file.
void write_line(const std::string& line) {
  const std::string& where = config().stats;
  UniqueFd file;
  int fd = STDERR_FILENO;
  if (where != "1") {
    const std::string path = expand(where);
    file = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    fd = file.get();
    if (fd < 0 && !complained.exchange(true))
      log_line(LogLevel::warn, "LMDBIO_STATS: cannot open %s: %s", path.c_str(), ::strerrordesc_np(errno));
    if (fd < 0) return;
  }
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (!complained.exchange(true))
        log_line(LogLevel::warn, "LMDBIO_STATS: cannot write: %s", ::strerrordesc_np(errno));
      return;
    }
    done += static_cast<std::size_t>(n);
  }
}

// Under the mutex.
void write_statistics() {
  std::string environments = registry->closed;
  for (EnvHandle* const env : registry->open) append_environment(environments, *env);
  registry->closed.clear();
  registry->open.clear();  // told: an environment that is closed later, after exit began, is not told again
  if (environments.empty()) return;
  std::string line = "{\"lmdbio\":\"" LMDBIO_VERSION "\",";
  append_number(line, "pid", static_cast<std::uint64_t>(::getpid()));
  line += "\"environments\":[" + environments + "]}\n";
  write_line(line);
}

bool wanted() noexcept { return !config().stats.empty(); }

void at_exit() {
  if (::getpid() != registered_pid) return;  // a child made without fork handlers has its parent's numbers
  const std::lock_guard lock(mutex);
  try {
    write_statistics();
  } catch (...) {  // out of memory: nothing to tell it with
  }
}

}  // namespace

void ReadCounters::add(const ReadTxn& t) noexcept {
  calls.add(t.txn.counters());
  begun += t.begun;
  renewed += t.renewed;
}

void ReaderTotals::add(const reader::Shared& s) noexcept {
  const auto get = [](const std::atomic<std::uint64_t>& n) { return n.load(std::memory_order_relaxed); };
  const reader::Counters& c = s.counters;
  ++readers;
  index_read += c.index_read.load(std::memory_order_relaxed) ? 1u : 0u;
  batches += get(c.batches);
  records += get(c.records);
  bytes_given += get(c.bytes_given);
  bytes_read += get(c.bytes_read);
  bytes_copied += get(c.bytes_copied);
  requests += get(c.requests);
  fetches += get(c.fetches);
  fetches_cached += get(c.fetches_cached);
  leaf_hits += get(c.leaf_hits);
  leaf_misses += get(c.leaf_misses);
  waits += get(c.waits);
  wait_ns += get(c.wait_ns);
  failed += get(c.failed);
  most_bytes = std::max(most_bytes, s.pool->counters().most_bytes);
}

void stats_reader_made(EnvHandle& env, const reader::Shared& reader) noexcept {
  if (!wanted()) return;
  const std::lock_guard lock(mutex);
  try {
    env.stats.readers.push_back(&reader);
  } catch (...) {
  }
}

void stats_reader_gone(EnvHandle& env, const reader::Shared& reader) noexcept {
  if (!wanted()) return;
  const std::lock_guard lock(mutex);
  if (std::erase(env.stats.readers, &reader) != 0) env.stats.closed_readers.add(reader);
}

void EnvStats::add(const ForwardCounters& c) noexcept {
  if (c.get != 0) forward_get.fetch_add(c.get, std::memory_order_relaxed);
  if (c.cursor_get != 0) forward_cursor_get.fetch_add(c.cursor_get, std::memory_order_relaxed);
  if (c.write != 0) forward_write.fetch_add(c.write, std::memory_order_relaxed);
}

void EnvStats::opened(const char* at, const char* why_not) {
  path = at;
  reason = why_not;
  if (!wanted()) return;
  opened_ns = now_ns();
  (void)::getrusage(RUSAGE_SELF, &usage);
}

void stats_environment_made(EnvHandle& env) noexcept {
  if (!wanted()) return;
  const std::lock_guard lock(mutex);
  try {
    if (registry == nullptr) registry = new Registry;
    registry->open.push_back(&env);
    if (registered_pid == 0 && std::atexit(at_exit) == 0) registered_pid = ::getpid();
  } catch (...) {  // out of memory: this environment stays out of the statistics
  }
}

void stats_environment_gone(EnvHandle& env) noexcept {
  if (!wanted()) return;
  const std::lock_guard lock(mutex);
  if (registry == nullptr || std::erase(registry->open, &env) == 0) return;
  try {
    append_environment(registry->closed, env);
    if (registry->open.empty() && ::getpid() == registered_pid) write_statistics();
  } catch (...) {
  }
}

void stats_after_fork() noexcept {
  if (registry == nullptr) return;
  forked = true;
  if (registered_pid != 0) registered_pid = ::getpid();
  registry->closed.clear();
  for (EnvHandle* const env : registry->open) env->forget_counters();
}

void lock_stats() noexcept { mutex.lock(); }
void unlock_stats() noexcept { mutex.unlock(); }

}  // namespace lmdbio::compat
