// The settings of the process: all LMDBIO_* environment variables, in one table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lmdbio/base/log.h"

namespace lmdbio {

/// LMDBIO_IO: how data that is not in memory is read.
enum class IoMode : unsigned char { automatic, mmap, direct, buffered };
/// LMDBIO_ENGINE: which system calls read it.
enum class IoEngineChoice : unsigned char { automatic, uring, threads, pread };

/// LMDBIO_NODE: what the processes of a node share.
enum class NodeMode : unsigned char { automatic, cache, chunks, off };

struct Config {
  bool disable = false;
  std::string stock_lib;  // empty: found by rule (docs/abi.md)
  LogLevel log_level = LogLevel::warn;
  bool strict = false;
  unsigned lock_seconds = 10;  // 0: no limit
  IoMode io = IoMode::automatic;
  IoEngineChoice engine = IoEngineChoice::automatic;
  std::uint64_t memory_bytes = 0;  // 0 with memory_percent 0: no private memory
  unsigned memory_percent = 25;    // of what the process may use; 0: memory_bytes counts
  bool memory_is_agreed = true;    // LMDBIO_MEMORY not set: processes with a common limit agree on less
  /// Returns LMDBIO_MEMORY in bytes.  `total`: memory that the process may use, in bytes.
  std::uint64_t memory_limit(std::uint64_t total) const noexcept {
    return memory_percent != 0 ? total / 100 * memory_percent : memory_bytes;
  }
  NodeMode node = NodeMode::automatic;
  bool mpi = false;
  unsigned stall_seconds = 30;  // 0: no warning
  std::string index_dir;        // of record indexes; empty: next to each database
  std::string
      stats;  // empty: none; "1": standard error; else a path template with %p (pid), %h (host), %% (%)
};

/// Returns the settings, parsed from the environment at the first call and constant after that.  Any thread.
/// They live until the process ends.  The first call sets the log level.  Setuid programs ignore the
/// environment.  If memory is short, returns the defaults.
const Config& config() noexcept;

struct ConfigEntry {
  const char* name;
  const char* range;
  const char* def;  // as a user would write it; empty: not set
  const char* meaning;
  /// Parses `value`, which is never null or empty.  False: it is not in range, and the Config is unchanged.
  /// May throw bad_alloc.
  bool (*parse)(Config&, const char* value);
};

/// Returns one entry for each variable, in the order of the documentation.
std::span<const ConfigEntry> config_table() noexcept;

/// Returns the setting whose name is most similar to `name`, with LMDBIO_ or without it; nullptr: none is
/// similar.
const char* nearest_setting(std::string_view name) noexcept;

/// Returns the settings that `get` (as getenv) reports.  An empty value means not set.  Ignores each value
/// out of range and calls `complain` for it; `complain` may be null.  Uses neither the log nor config().
Config parse_config(const char* (*get)(const char* name),
                    void (*complain)(const ConfigEntry&, const char* value));

}  // namespace lmdbio
