// Statistics of the process's environments (LMDBIO_STATS).
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/node/counter_board.h"
#include "lmdbio/stats/report.h"
#include "lmdbio/tree/txn.h"

namespace lmdbio::records {
struct Shared;
}

namespace lmdbio::compat {

struct EnvHandle;

/// Calls that went to the real library, counted per transaction or cursor.
struct ForwardCounters {
  std::uint64_t get = 0, cursor_get = 0, write = 0;
  void add(const ForwardCounters& c) noexcept {
    get += c.get;
    cursor_get += c.cursor_get;
    write += c.write;
  }
};

/// Counters of an environment.  If statistics go to a file, other processes see the counters
/// (node/counter_board.h).
struct EnvStats {
  EnvStats() noexcept;
  std::string path;
  const char* reason = "not opened";  ///< why stock serves it; null if the engine does
  /// The mutex of lock_handles() guards `ended`.  The mutex of lock_stats() guards `closed_readers` and
  /// `readers`.
  node::Cell<stats::EnvironmentCounters> counters;
  std::int64_t opened_ns = 0;                   ///< CLOCK_MONOTONIC
  rusage usage{};                               ///< of the process, at the open
  std::optional<std::uint64_t> storage_bytes;   ///< at the open: stats::process_storage_bytes()
  std::vector<const records::Shared*> readers;  ///< open ones

  void add(const ForwardCounters& c) noexcept;
  /// Counts one call in `c`.  Moves the counts to where other processes see them after every 256 calls.
  void count(ForwardCounters& c, std::uint64_t ForwardCounters::*which) noexcept {
    if (++(c.*which) < 256) [[likely]]
      return;
    add(c);
    c = {};
  }
  /// Notes path, time and usage at the open, and the file behind `fd` if that is not negative.
  void opened(const char* at, const char* why_not, int fd);
  /// Called before each call that counts.  In a forked child, the first call makes the counters visible to
  /// other processes.
  static void show() noexcept {
    if (node::CounterBoard::show()) [[unlikely]]
      shown();
  }

 private:
  static void shown() noexcept;
  node::BoardCell<stats::EnvironmentText> text_;
};

/// Adds an environment to the list of open ones.  Records of closed environments are kept until they are
/// written.
void stats_environment_made(EnvHandle& env) noexcept;
/// Called before the handle is freed.  The last environment writes the statistics if the configuration asks
/// for them.
void stats_environment_gone(EnvHandle& env) noexcept;

/// Called after a reader of the environment was opened, and before it is closed.  If memory is short, it is
/// not counted.
void stats_reader_made(EnvHandle& env, const records::Shared& reader) noexcept;
void stats_reader_gone(EnvHandle& env, const records::Shared& reader) noexcept;

/// Called at load: notes whether the environment variables ask for statistics.  Calls nothing else, because
/// most processes that load the library do not use LMDB.
void stats_loaded(const char* const* environment) noexcept;
/// Called when the process ends.  If it was started with statistics, writes a line that names a module whose
/// LMDB is not reached.  Nothing else shows why no environment was seen.
void stats_ends() noexcept;

/// For a forked child: it writes only its own statistics, and only of environments that it used.  Called with
/// the lock held.
void stats_after_fork() noexcept;
/// Appends `line`, which includes its line end, to the statistics if they are written.  May throw bad_alloc.
void stats_write(const std::string& line);

void lock_stats() noexcept;
void unlock_stats() noexcept;

}  // namespace lmdbio::compat
