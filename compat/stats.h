// What became of the process's environments: LMDBIO_STATS.
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "lmdbio/db/txn.h"

namespace lmdbio::reader {
struct Shared;
}

namespace lmdbio::compat {

struct ReadTxn;
struct EnvHandle;

/// Calls that the engine answered.
struct ReadCounters {
  db::Counters calls;
  std::uint64_t begun = 0, renewed = 0;
  void add(const ReadTxn& t) noexcept;
};

/// Calls that went to the real library, counted in a transaction or cursor.
struct ForwardCounters {
  std::uint64_t get = 0, cursor_get = 0, write = 0;
  void add(const ForwardCounters& c) noexcept {
    get += c.get;
    cursor_get += c.cursor_get;
    write += c.write;
  }
};

/// What readers (lmdbio.h) read.
struct ReaderTotals {
  std::uint64_t readers = 0, index_read = 0;
  std::uint64_t batches = 0, records = 0, bytes_given = 0, bytes_read = 0, bytes_copied = 0, requests = 0;
  std::uint64_t fetches = 0, fetches_cached = 0, waits = 0, wait_ns = 0, failed = 0;
  std::uint64_t leaf_hits = 0, leaf_misses = 0;
  std::uint64_t most_bytes = 0;  ///< of buffers, the most that one reader had
  void add(const reader::Shared& s) noexcept;
};

/// Counters of an environment.
struct EnvStats {
  std::string path;
  const char* reason = "not opened";           ///< why it is not ours; null if it is
  ReadCounters read;                           ///< of transactions whose handles are gone; see lock_handles
  std::atomic<std::uint64_t> without_slot{0};  ///< transactions that stock gave no reader slot
  std::atomic<std::uint64_t> forward_get{0}, forward_cursor_get{0}, forward_write{0}, forward_txn{0};
  std::int64_t opened_ns = 0;                  ///< CLOCK_MONOTONIC
  rusage usage{};                              ///< of the process, at the open
  ReaderTotals closed_readers;                 ///< under the mutex of lock_stats(), as the next
  std::vector<const reader::Shared*> readers;  ///< open ones

  void add(const ForwardCounters& c) noexcept;
  /// Takes path, time and usage at the open.
  void opened(const char* at, const char* why_not);
};

/// The list of open environments, and the records of closed ones until they are written.
void stats_environment_made(EnvHandle& env) noexcept;
/// Before the handle goes.  The last one writes the statistics if the configuration asks for them.
void stats_environment_gone(EnvHandle& env) noexcept;

/// A reader of the environment was opened, and is being closed.  Out of memory: it is not counted.
void stats_reader_made(EnvHandle& env, const reader::Shared& reader) noexcept;
void stats_reader_gone(EnvHandle& env, const reader::Shared& reader) noexcept;

/// In a forked child: what it writes is its own, and only of environments that it used.  With the lock held.
void stats_after_fork() noexcept;

void lock_stats() noexcept;
void unlock_stats() noexcept;

}  // namespace lmdbio::compat
