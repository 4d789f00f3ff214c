// How much memory a process may use, and how much is free now.
#pragma once

#include <cstdint>

namespace lmdbio {

struct MemoryFacts {
  std::uint64_t total = 0;      ///< bytes: of the machine, or the tightest limit of the process's cgroups
  std::uint64_t available = 0;  ///< bytes that could be taken without swapping; all page cache could be
  std::uint64_t group = 0;      ///< the cgroup with that limit; 0: the machine.  Processes may compare it
  bool known = true;            ///< false: `available` is too low, and limits of cgroups may be missing
};

/// From /proc/meminfo, and memory.max, memory.high and memory.current (v1: limit_in_bytes, usage_in_bytes) of
/// the process's cgroup and those above it.  What cannot be read does not limit; without /proc both are from
/// sysinfo(2), which does not tell of page cache.  About 50 us; no allocation.  Any thread.  `root`: where
/// /proc and /sys are, for tests.
MemoryFacts memory_facts(const char* root = "") noexcept;

}  // namespace lmdbio
