// The process's settings: every LMDBIO_* environment variable, in one table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lmdbio/base/log.h"

namespace lmdbio {

/// How walks over data that is not in memory are read: see the table.
enum class IoMode : unsigned char { automatic, mmap, direct, buffered };
/// By which system calls.
enum class IoEngineChoice : unsigned char { automatic, uring, threads, pread };

/// What the processes of a node share.
enum class NodeMode : unsigned char { automatic, cache, chunks, off };

struct Config {
  bool disable = false;
  std::string stock_lib;  // empty: found by rule (docs/abi.md)
  LogLevel log_level = LogLevel::warn;
  bool strict = false;
  unsigned lock_seconds = 10;  // 0: for ever
  IoMode io = IoMode::automatic;
  IoEngineChoice engine = IoEngineChoice::automatic;
  std::uint64_t memory_bytes = 0;  // 0 with memory_percent 0: none
  unsigned memory_percent = 25;    // of what the process may use; used if memory_bytes is 0
  bool memory_is_agreed = true;    // not set: processes that share a memory limit agree on less
  /// LMDBIO_MEMORY in bytes, of `total` that the process may use.
  std::uint64_t memory_limit(std::uint64_t total) const noexcept {
    return memory_percent != 0 ? total / 100 * memory_percent : memory_bytes;
  }
  NodeMode node = NodeMode::automatic;
  bool mpi = false;
  unsigned stall_seconds = 30;  // 0: never told
  std::string index_dir;        // of record indexes; empty: each beside its database
  std::string
      stats;  // empty: none; "1": standard error; else a path template with %p (pid), %h (host), %% (%)
};

/// Parsed from the environment at the first call, then constant; any thread.  Lives until the process ends.
/// Sets the log level.  In setuid programs the environment is ignored; out of memory gives the defaults.
const Config& config() noexcept;

struct ConfigEntry {
  const char* name;
  const char* range;
  const char* def;  // as one would write it; empty: not set
  const char* meaning;
  /// False if `value` (never null or empty) is not in range; the Config is then as it was.  May throw
  /// bad_alloc.
  bool (*parse)(Config&, const char* value);
};

/// One entry for each variable, in the order in which they are documented.
std::span<const ConfigEntry> config_table() noexcept;

/// The setting whose name is most like `name`, with LMDBIO_ or without it; null: none is like it.
const char* nearest_setting(std::string_view name) noexcept;

/// The settings that `get` (as getenv) tells.  Not set and empty are the same.  `complain` is called for each
/// value out of range, which is then ignored; null: nobody is told.  Touches neither the log nor config().
Config parse_config(const char* (*get)(const char* name),
                    void (*complain)(const ConfigEntry&, const char* value));

}  // namespace lmdbio
