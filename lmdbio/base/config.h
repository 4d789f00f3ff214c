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
/// LMDBIO_ENGINE: which system calls read data that is not in memory.
enum class IoEngineChoice : unsigned char { automatic, uring, threads, pread };

/// LMDBIO_CACHE_CODEC: how the cache on local disk is compressed.
enum class CacheCodec : unsigned char { automatic, raw, lz4, zstd1, zstd3, smallest };
/// LMDBIO_NODE: what the processes of a node share.
enum class NodeMode : unsigned char { automatic, cache, chunks, off };

struct Config {
  bool disable = false;
  std::string stock_lib;  // if empty, LMDBIO finds it by the rules in docs/design.md (Routing)
  LogLevel log_level = LogLevel::warn;
  bool strict = false;
  unsigned lock_seconds = 10;  // 0: no limit
  IoMode io = IoMode::automatic;
  IoEngineChoice engine = IoEngineChoice::automatic;
  std::uint64_t memory_bytes = 0;  // if this and memory_percent are 0, there is no private memory
  unsigned memory_percent = 25;    // of the memory that the process may use; if 0, memory_bytes is the limit
  bool memory_is_agreed = true;    // LMDBIO_MEMORY is not set: processes under one limit then divide it
  /// Returns LMDBIO_MEMORY in bytes.  `total`: memory that the process may use, in bytes.
  std::uint64_t memory_limit(std::uint64_t total) const noexcept {
    return memory_percent != 0 ? total / 100 * memory_percent : memory_bytes;
  }
  NodeMode node = NodeMode::automatic;
  bool mpi = false;
  unsigned stall_seconds = 30;    // 0: no warning
  std::string cache_dir;          // of the cache on local disk; if empty, there is none
  std::uint64_t cache_bytes = 0;  // 0: half of the free space
  CacheCodec cache_codec = CacheCodec::automatic;
  std::string index_dir;  // for record indexes; if empty, next to each database
  std::string
      stats;  // empty: none; "1": standard error; else a path template with %p (pid), %h (host), %% (%)
};

/// Returns the settings.  The first call parses them from the environment and sets the log level.  Later
/// calls return the same object, which lives until the process ends.  Setuid programs ignore the environment.
/// If memory is short, returns the defaults.  Any thread.
const Config& config() noexcept;

struct ConfigEntry {
  const char* name;
  const char* range;
  const char* def;  // as a user would write it; empty if the setting has no default
  const char* meaning;
  /// Parses `value`, which is never null or empty.  Returns false, and does not change the Config, if `value`
  /// is out of range.  May throw bad_alloc.
  bool (*parse)(Config&, const char* value);
};

/// Returns one entry for each variable, in the order of the documentation.
std::span<const ConfigEntry> config_table() noexcept;

/// Returns the name of the setting that is most similar to `name`, or nullptr if none is similar.  `name` may
/// lack the prefix LMDBIO_.
const char* nearest_setting(std::string_view name) noexcept;

/// Returns the settings with the values that `get`, a function like getenv(3), returns.  An empty value means
/// that the setting is not set.  Ignores each value that is out of range, and calls `complain` for it unless
/// `complain` is null.  Uses neither the log nor config().
Config parse_config(const char* (*get)(const char* name),
                    void (*complain)(const ConfigEntry&, const char* value));

}  // namespace lmdbio
