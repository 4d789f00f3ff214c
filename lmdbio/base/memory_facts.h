// How much memory a process may use, and how much is free now.
#pragma once

#include <cstdint>

namespace lmdbio {

struct MemoryFacts {
  std::uint64_t total = 0;      ///< in bytes; of the machine, or the process's tightest cgroup limit
  std::uint64_t available = 0;  ///< in bytes, without swapping; all page cache counts as available
  std::uint64_t group = 0;  ///< inode of the cgroup with that limit, to compare processes; 0 for the machine
  bool known = true;        ///< if false, `available` is too low and cgroup limits may be missing
};

/// Returns the limits and the free memory of the process.  Reads /proc/meminfo, and memory.max, memory.high
/// and memory.current (v1: limit_in_bytes, usage_in_bytes) of the process's cgroup and those above it.  A
/// file that cannot be read sets no limit.  Without /proc, both numbers come from sysinfo(2), which does not
/// report page cache.  Takes about 50 us; allocates nothing.  Any thread.  `root`: the directory that
/// contains /proc and /sys, for tests.
MemoryFacts memory_facts(const char* root = "") noexcept;

}  // namespace lmdbio
