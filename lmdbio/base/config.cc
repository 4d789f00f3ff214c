#include "lmdbio/base/config.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <string_view>

#include "lmdbio/base/nearest.h"

namespace lmdbio {
namespace {

bool parse_disable(Config& c, const char* value) {
  const std::string_view v = value;
  if (v != "0" && v != "1") return false;
  c.disable = v == "1";
  return true;
}

bool parse_strict(Config& c, const char* value) {
  const std::string_view v = value;
  if (v != "0" && v != "1") return false;
  c.strict = v == "1";
  return true;
}

bool parse_mpi(Config& c, const char* value) {
  const std::string_view v = value;
  if (v != "0" && v != "1") return false;
  c.mpi = v == "1";
  return true;
}

bool parse_seconds(const char* value, unsigned& seconds) {
  constexpr unsigned kMost = 3600;
  unsigned n = 0;
  const std::string_view v = value;
  const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), n);
  if (error != std::errc() || end != v.data() + v.size() || n > kMost) return false;
  seconds = n;
  return true;
}

bool parse_lock_seconds(Config& c, const char* value) { return parse_seconds(value, c.lock_seconds); }
bool parse_stall_seconds(Config& c, const char* value) { return parse_seconds(value, c.stall_seconds); }

template <class Choice>
bool parse_name(const char* value, std::span<const std::string_view> names, Choice& choice) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == value) {
      choice = static_cast<Choice>(i);
      return true;
    }
  return false;
}

bool parse_io(Config& c, const char* value) {
  constexpr std::string_view kNames[] = {"auto", "mmap", "direct", "buffered"};
  return parse_name(value, kNames, c.io);
}

bool parse_engine(Config& c, const char* value) {
  constexpr std::string_view kNames[] = {"auto", "uring", "threads", "pread"};
  return parse_name(value, kNames, c.engine);
}

bool parse_node(Config& c, const char* value) {
  constexpr std::string_view kNames[] = {"auto", "cache", "chunks", "off"};
  return parse_name(value, kNames, c.node);
}

/// Parses a number of bytes with an optional suffix K, M, G or T.  Returns false if it is not one or is above
/// 1P.
bool parse_bytes(std::string_view v, std::uint64_t& bytes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
  constexpr std::string_view kSuffixes = "KMGT";
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), n);
  const std::string_view suffix(end, static_cast<std::size_t>(v.data() + v.size() - end));
  if (error != std::errc() || suffix.size() > 1) return false;
  unsigned shift = 0;
  if (suffix.size() == 1) {
    const std::size_t power = kSuffixes.find(suffix[0]);
    if (power == std::string_view::npos) return false;
    shift = 10 * (static_cast<unsigned>(power) + 1);
  }
  if (n > kMost >> shift) return false;
  bytes = n << shift;
  return true;
}

bool parse_memory(Config& c, const char* value) {
  constexpr std::uint64_t kLeast = std::uint64_t{8} << 20;
  constexpr unsigned kMostPercent = 90;
  const std::string_view v = value;
  std::uint64_t n = 0;
  unsigned percent = 0;
  if (v.ends_with('%')) {
    const auto [end, error] = std::from_chars(v.data(), v.data() + v.size() - 1, percent);
    if (error != std::errc() || end != v.data() + v.size() - 1) return false;
    if (percent < 1 || percent > kMostPercent) return false;
  } else if (!parse_bytes(v, n) || (n != 0 && n < kLeast)) {
    return false;
  }
  c.memory_bytes = n;
  c.memory_percent = percent;
  c.memory_is_agreed = false;
  return true;
}

bool parse_cache_dir(Config& c, const char* value) {
  if (std::strlen(value) >= PATH_MAX) return false;
  c.cache_dir = value;
  return true;
}

bool parse_cache_codec(Config& c, const char* value) {
  constexpr std::string_view kNames[] = {"auto", "raw", "lz4", "zstd-1", "zstd-3", "smallest"};
  return parse_name(value, kNames, c.cache_codec);
}

bool parse_cache_size(Config& c, const char* value) {
  constexpr std::uint64_t kLeast = std::uint64_t{16} << 20;
  std::uint64_t n = 0;
  if (!parse_bytes(value, n) || n < kLeast) return false;
  c.cache_bytes = n;
  return true;
}

bool parse_stock_lib(Config& c, const char* value) {
  if (std::strlen(value) >= PATH_MAX) return false;
  c.stock_lib = value;
  return true;
}

bool parse_index_dir(Config& c, const char* value) {
  if (std::strlen(value) >= PATH_MAX) return false;
  c.index_dir = value;
  return true;
}

bool parse_log(Config& c, const char* value) {
  constexpr std::string_view kNames[] = {"error", "warn", "info", "debug"};
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == value) {
      c.log_level = static_cast<LogLevel>(i);
      return true;
    }
  return false;
}

bool parse_stats(Config& c, const char* value) {
  const std::string_view v = value;
  if (v == "0") {
    c.stats.clear();
    return true;
  }
  if (v.size() >= PATH_MAX) return false;
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (v[i] != '%') continue;
    ++i;
    if (i == v.size() || (v[i] != 'p' && v[i] != 'h' && v[i] != '%')) return false;
  }
  c.stats = value;
  return true;
}

constexpr ConfigEntry kTable[] = {
    {"LMDBIO_DISABLE", "0, 1", "0", "1: every call goes to stock LMDB, as if LMDBIO were not loaded.",
     parse_disable},
    {"LMDBIO_STOCK_LIB", "path of a liblmdb", "",
     "Path of stock LMDB, the original library. Not set: the one that the program would use without LMDBIO.",
     parse_stock_lib},
    {"LMDBIO_STRICT", "0, 1", "0",
     "What happens if an environment cannot be opened, or a transaction cannot begin, because the lock file, "
     "the locks or a reader slot are not available, because the file cannot be mapped, or because it is a "
     "file of another release of LMDB, 0.9 or 1.0, than the program uses. 0: LMDBIO reads without locks, or "
     "without a mapping, and logs a warning. 1: the call fails, as with stock LMDB.",
     parse_strict},
    {"LMDBIO_LOCK_SECONDS", "0 to 3600", "10",
     "How many seconds an open waits for file locks on a network or user-space file system before it "
     "continues without locks. 0: no limit. With LMDBIO_STRICT=1 there is no limit either.",
     parse_lock_seconds},
    {"LMDBIO_IO", "auto, mmap, direct, buffered", "auto",
     "How data that is not in memory is read. mmap: by page faults, as with stock LMDB (readers: as "
     "buffered). buffered: ahead of the program, into the page cache. direct: ahead of the program, by "
     "direct I/O into private memory (lookups without lmdbio_prefetch: into the page cache). auto: LMDBIO "
     "chooses one of these for the file, its file system and the kind of access, and uses data that is in "
     "the page cache already.",
     parse_io},
    {"LMDBIO_MEMORY", "8M to 1P (K, M, G, T), 1% to 90%, 0", "25%",
     "Upper limit on private memory, per process: for data read by direct I/O, prefetched values, readers "
     "and record indexes. A percentage refers to the memory of the machine or the cgroup. Not set: at most "
     "25%, and the processes of a machine or cgroup together at most 50%. 0: no private memory. "
     "LMDB calls and lmdbio_prefetch then do not use direct I/O, and each reader needs its own limit "
     "(option `memory`).",
     parse_memory},
    {"LMDBIO_ENGINE", "auto, uring, threads, pread", "auto",
     "How LMDBIO reads ahead. uring: io_uring. threads: pread in several threads. pread: one pread at a "
     "time. An engine that is not available is replaced by the next one. auto: the first one that is "
     "available.",
     parse_engine},
    {"LMDBIO_NODE", "auto, cache, chunks, off", "auto",
     "How the processes of a user on a node share what they read. auto: they read each chunk of a file once, "
     "into the page cache, or into files in /dev/shm if the file does not fit into the page cache and is not "
     "local. cache: as auto, but never into /dev/shm. chunks: walks read every file by direct I/O, even "
     "if it fits into the page cache, and share it in /dev/shm. off: each process reads the file itself.",
     parse_node},
    {"LMDBIO_MPI", "0, 1", "0",
     "1: the backend for Caffe reads together with the other ranks of MPI_COMM_WORLD, if they run on several "
     "nodes: one rank reads each record and sends it to the rank that uses it. All ranks have to read the "
     "same databases, and MPI has to provide MPI_THREAD_MULTIPLE. 0: each process reads for itself.",
     parse_mpi},
    {"LMDBIO_STALL_SECONDS", "0 to 3600", "30",
     "Log one warning when a read takes longer than this many seconds. 0: no warning.", parse_stall_seconds},
    {"LMDBIO_CACHE_DIR", "path of a directory", "",
     "Directory on local disk, for a cache of databases that survives the job. LMDBIO makes a directory "
     "lmdbio-UID in it. Not set: no cache.",
     parse_cache_dir},
    {"LMDBIO_CACHE_SIZE", "16M to 1P (K, M, G, T)", "",
     "Upper limit on the disk space of the cache. Not set: half of the free space. In any case at least 10%, "
     "or 5 GiB, of the file system stay free.",
     parse_cache_size},
    {"LMDBIO_CACHE_CODEC", "auto, raw, lz4, zstd-1, zstd-3, smallest", "auto",
     "How the cache compresses a database, from its next state on. auto: in the way that makes an epoch "
     "fastest, according to a sample of the database, the storage, the processors and the space. smallest: "
     "in "
     "the smallest way that is not slower than the storage. An image that exists stays as it is.",
     parse_cache_codec},
    {"LMDBIO_INDEX_DIR", "path of a directory", "",
     "Directory for record indexes (lmdbio index). Not set: next to each database.", parse_index_dir},
    {"LMDBIO_LOG", "error, warn, info, debug", "warn",
     "The lowest severity of messages that are written to standard error.", parse_log},
    {"LMDBIO_STATS", "0, 1, path (%p: process id, %h: host name, %%: a percent sign)", "0",
     "Statistics of each process, as one JSON object on one line. A process writes a line when its last open "
     "environment is closed, and one at exit if an environment has not been reported yet. 0: none. 1: to "
     "standard error. path: appended to that file; for a process that was killed, lmdbio stats or another "
     "process adds the line later.",
     parse_stats},
};

void complain_in_log(const ConfigEntry& e, const char* value) {
  log_line(LogLevel::error, "%s=%.200s is not valid (allowed: %s); using %s", e.name, value, e.range,
           *e.def == '\0' ? "no value" : e.def);
}

constexpr std::string_view kPrefix = "LMDBIO_";

/// Logs variables with LMDBIO's prefix that are not settings.
void complain_of_unknown() {
  if (::getauxval(AT_SECURE) != 0) return;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const std::string_view name = std::string_view(*e).substr(0, std::string_view(*e).find('='));
    if (!name.starts_with(kPrefix) || std::any_of(std::begin(kTable), std::end(kTable),
                                                  [name](const ConfigEntry& k) { return name == k.name; }))
      continue;
    const char* const meant = nearest_setting(name);
    log_line(LogLevel::warn, "%.*s is not a setting of LMDBIO%s%s%s",
             static_cast<int>(std::min<std::size_t>(name.size(), 200)), name.data(),
             meant != nullptr ? "; did you mean " : "; lmdbio config lists them",
             meant != nullptr ? meant : "", meant != nullptr ? "?" : "");
  }
}

const char* from_environment(const char* name) { return ::secure_getenv(name); }

#if defined(__clang__) && __clang_major__ < 16  // has no std::string at compile time
const Config kDefaults;
#else
constinit const Config kDefaults;
#endif
// The settings are never destroyed, since other destructors may still read them at exit.
constinit std::atomic<const Config*> the_config{nullptr};

// Takes no lock.  If one thread forked while another thread held a lock, the child would wait for the lock
// forever.
const Config& build() noexcept {
  const Config* made = &kDefaults;
  try {
    made = new Config(parse_config(from_environment, nullptr));
  } catch (...) {  // out of memory
  }
  const Config* first = nullptr;
  if (!the_config.compare_exchange_strong(first, made, std::memory_order_acq_rel)) {
    if (made != &kDefaults) delete made;
    return *first;
  }
  try {
    (void)parse_config(from_environment, complain_in_log);
  } catch (...) {
  }
  set_log_level(made->log_level);
  if (!made->disable) complain_of_unknown();
  return *made;
}

}  // namespace

const Config& config() noexcept {
  const Config* const c = the_config.load(std::memory_order_acquire);
  return c != nullptr ? *c : build();
}

std::span<const ConfigEntry> config_table() noexcept { return kTable; }

const char* nearest_setting(std::string_view name) noexcept {
  std::size_t i = 0;
  const bool with_prefix = name.starts_with(kPrefix);
  const std::string_view meant =
      nearest_name(with_prefix ? name.substr(kPrefix.size()) : name, [&i]() noexcept {
        return i < std::size(kTable) ? std::string_view(kTable[i++].name).substr(kPrefix.size())
                                     : std::string_view();
      });
  return meant.empty() ? nullptr : meant.data() - kPrefix.size();
}

Config parse_config(const char* (*get)(const char* name),
                    void (*complain)(const ConfigEntry&, const char* value)) {
  Config c;
  for (const ConfigEntry& e : kTable) {
    const char* const value = get(e.name);
    if (value == nullptr || *value == '\0') continue;
    if (!e.parse(c, value) && complain != nullptr) complain(e, value);
  }
  return c;
}

}  // namespace lmdbio
