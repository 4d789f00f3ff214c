// Resources that a reader process has used, as members of its line of JSON.
#pragma once

#include <sys/resource.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>

#include "bench/common.h"

namespace lmdbio::bench {

/// Use of the whole process: all its threads, including the kernel's I/O workers.
struct ProcessUse {
  rusage use{};
  std::uint64_t read_bytes = 0;   // read from block devices, without FUSE
  std::uint64_t max_rss_kib = 0;  // rusage's maximum includes the parent process
};

/// Returns the number that `format` finds in a line of the file `path`, or 0.
inline std::uint64_t proc_number(const char* path, const char* format) {
  std::uint64_t number = 0;
  if (std::FILE* const file = std::fopen(path, "re"); file != nullptr) {
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr)
      if (std::sscanf(line, format, &number) == 1) break;
    std::fclose(file);
  }
  return number;
}

inline ProcessUse process_use() {
  ProcessUse u;
  getrusage(RUSAGE_SELF, &u.use);
  u.read_bytes = proc_number("/proc/self/io", "read_bytes: %" SCNu64);
  u.max_rss_kib = proc_number("/proc/self/status", "VmHWM: %" SCNu64);
  return u;
}

/// Prints the use since `before`, by default since the process began, without braces.
inline void print_use(const ProcessUse& before = {}) {
  const ProcessUse now = process_use();
  const auto seconds = [](const timeval& from, const timeval& to) {
    return static_cast<double>(to.tv_sec - from.tv_sec) +
           static_cast<double>(to.tv_usec - from.tv_usec) * 1e-6;
  };
  const rusage &a = before.use, &b = now.use;
  std::printf(
      "\"user_s\": %.6f, \"system_s\": %.6f, \"minor_faults\": %ld, \"major_faults\": %ld, "
      "\"voluntary_switches\": %ld, \"involuntary_switches\": %ld, \"max_rss_kib\": %" PRIu64
      ", "
      "\"read_bytes\": %" PRIu64,
      seconds(a.ru_utime, b.ru_utime), seconds(a.ru_stime, b.ru_stime), b.ru_minflt - a.ru_minflt,
      b.ru_majflt - a.ru_majflt, b.ru_nvcsw - a.ru_nvcsw, b.ru_nivcsw - a.ru_nivcsw, now.max_rss_kib,
      now.read_bytes - before.read_bytes);
}

}  // namespace lmdbio::bench
