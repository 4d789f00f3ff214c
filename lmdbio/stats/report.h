// Reports what LMDBIO did for an environment: one JSON object per process (LMDBIO_STATS).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lmdbio/node/counter_board.h"
#include "lmdbio/records/counters.h"
#include "lmdbio/tree/txn.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::records {
struct Shared;
}  // namespace lmdbio::records

namespace lmdbio::stats {

/// Totals of the readers (lmdbio.h) of an environment.
struct ReaderTotals {
  std::uint64_t readers = 0;
  records::Counters counters;
  std::uint64_t most_bytes = 0;  ///< peak bytes of buffers of one reader, the maximum of all readers
  /// Adds a reader of this process.
  void add(const records::Shared& s) noexcept;
  /// Adds the counters of a reader that a board shows.
  void add(const records::Counters& c) noexcept;
};

/// Numbers of calls that LMDBIO passed on to stock LMDB.
struct Forwarded {
  std::atomic<std::uint64_t> get{0}, cursor_get{0}, txn{0}, write{0};
};

/// Content of a cell of CellKind::environment: the counts of an environment that do not belong to its
/// transactions, readers and files.
struct EnvironmentCounters {
  Forwarded forwarded;
  std::atomic<std::uint64_t> without_slot{0};  ///< transactions that got no reader slot from stock LMDB
  tree::Counters ended;                        ///< counters of transactions whose handles no longer exist
  ReaderTotals closed_readers;
};

/// Content of a cell of CellKind::text.  Strings are cut to the size of the array, and end with a null byte.
struct EnvironmentText {
  char path[1024]{};
  char reason[256]{};  ///< why LMDBIO does not read this environment
  std::uint8_t ours = 0, without_locks = 0;
};

/// Describes how LMDBIO read data that was not in memory.
struct IoReport {
  std::string read_path, reason, engine, residency;
  std::uint64_t chunk_bytes = 0, memory_limit = 0;
  window::FileStats stats;
  bool counted = true;  ///< false: only read_path and reason are known
};

/// Resource use of the whole process while the environment was open.
struct ProcessUse {
  std::uint64_t minor_faults, major_faults, voluntary_switches, involuntary_switches, open_us;
  std::optional<std::uint64_t> storage_bytes;  ///< see process_storage_bytes()
};

/// Returns how many bytes block devices have read for this process since it started, including page faults
/// and the kernel's read-ahead (read_bytes of /proc/self/io).  The kernel does not count reads from network
/// file systems and FUSE.  Returns nullopt if the kernel does not count at all, or if the file cannot be
/// read.
std::optional<std::uint64_t> process_storage_bytes() noexcept;

struct EnvironmentReport {
  std::string path, reason;  ///< reason: why LMDBIO does not read this environment
  bool ours = false, locks = true;
  std::uint64_t without_slot = 0, overtaken = 0;
  tree::Counters calls;  ///< calls that LMDBIO answered
  std::uint64_t forward_get = 0, forward_cursor_get = 0, forward_txn = 0, forward_write = 0;
  std::optional<IoReport> io;
  ReaderTotals readers;
  std::optional<ProcessUse> use;

  std::uint64_t cursor_gets() const noexcept;
  /// Returns true if there were no calls.
  bool is_unused() const noexcept;
};

/// Appends the report as a JSON object.  This function and the functions below may throw bad_alloc.
void append_json(std::string& out, const EnvironmentReport& report);
/// Returns the line of a process, with a line end.  `environments`: objects that append_json() has made,
/// separated by commas.  `state`, `unreached`: see docs/operations.md; omitted if empty or null.
std::string process_line(std::uint32_t pid, std::string_view state, std::string_view environments,
                         const char* unreached = nullptr);

/// Returns the environments on the board of a process, except those that the process did not use.
std::vector<EnvironmentReport> environments_on(const node::ShownBoard& board);
/// Returns the line of a process, or an empty text if the process used no environment.
std::string line_of(const node::ShownBoard& board);

/// Returns the path of the file that a process writes to: LMDBIO_STATS with %p, %h and %% replaced.
std::string expand(const std::string& pattern, std::uint32_t pid);
/// Returns the topic of the board of a process, which is the pattern as an absolute path.
std::string topic_of(const std::string& pattern);

}  // namespace lmdbio::stats
