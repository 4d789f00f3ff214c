// What became of the process's environments: LMDBIO_STATS.
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/db/txn.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/stats/report.h"

namespace lmdbio::records {
struct Shared;
}

namespace lmdbio::compat {

struct EnvHandle;

/// Calls that went to the real library, counted in a transaction or cursor.
struct ForwardCounters {
  std::uint64_t get = 0, cursor_get = 0, write = 0;
  void add(const ForwardCounters& c) noexcept {
    get += c.get;
    cursor_get += c.cursor_get;
    write += c.write;
  }
};

/// Counters of an environment.  Where they go to a file, other processes see them (node/counter_board.h).
struct EnvStats {
  EnvStats() noexcept;
  std::string path;
  const char* reason = "not opened";  ///< why it is not ours; null if it is
  /// `ended`: see lock_handles.  `closed_readers`: under the mutex of lock_stats(), as `readers`.
  node::Cell<stats::EnvironmentCounters> counters;
  std::int64_t opened_ns = 0;                   ///< CLOCK_MONOTONIC
  rusage usage{};                               ///< of the process, at the open
  std::optional<std::uint64_t> storage_bytes;   ///< likewise: stats::process_storage_bytes()
  std::vector<const records::Shared*> readers;  ///< open ones

  void add(const ForwardCounters& c) noexcept;
  /// Counts one in `c`, and what is there once in a while where others see it.
  void count(ForwardCounters& c, std::uint64_t ForwardCounters::*which) noexcept {
    if (++(c.*which) < 256) [[likely]]
      return;
    add(c);
    c = {};
  }
  /// Takes path, time and usage at the open, and which file `fd` is, if it is not negative.
  void opened(const char* at, const char* why_not, int fd);
  /// Before a call that counts: a forked child's counters are seen from its first one on.
  static void show() noexcept {
    if (node::CounterBoard::show()) [[unlikely]]
      shown();
  }

 private:
  static void shown() noexcept;
  node::BoardCell<stats::EnvironmentText> text_;
};

/// The list of open environments, and the records of closed ones until they are written.
void stats_environment_made(EnvHandle& env) noexcept;
/// Before the handle goes.  The last one writes the statistics if the configuration asks for them.
void stats_environment_gone(EnvHandle& env) noexcept;

/// A reader of the environment was opened, and is being closed.  Out of memory: it is not counted.
void stats_reader_made(EnvHandle& env, const records::Shared& reader) noexcept;
void stats_reader_gone(EnvHandle& env, const records::Shared& reader) noexcept;

/// At load: notes whether the environment asks for statistics.  Calls nothing: most processes that load the
/// library have nothing to do with LMDB.
void stats_loaded(const char* const* environment) noexcept;
/// When the process ends: if it was started with statistics, writes a line that names a module whose LMDB is
/// not reached.  Nothing else would tell why no environment was seen.
void stats_ends() noexcept;

/// In a forked child: what it writes is its own, and only of environments that it used.  With the lock held.
void stats_after_fork() noexcept;
/// Appends a line, with its end, to where statistics go, if there is such a place.  May throw bad_alloc.
void stats_write(const std::string& line);

void lock_stats() noexcept;
void unlock_stats() noexcept;

}  // namespace lmdbio::compat
