// What a reader of bench/cold prints when it is done: one line of JSON.
#pragma once

#include <sys/resource.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>

#include "bench/common.h"

namespace lmdbio::bench {

struct ColdResult {
  double seconds = 0;
  std::uint64_t bytes = 0, records = 0, digest = 0;  // bytes: of values (LMDB) or of the file (ring)
  std::uint64_t mark_bytes = 0, mark_records = 0, mark_digest = 0;  // what they were at --mark
  const char* library = "";                                         // that mdb_cursor_get resolves to
  bool direct = false;                                              // O_DIRECT (ring)
};

inline rusage usage() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return use;
}

/// Prints it, with what the whole process has used since `before` (nothing: since it began): all its threads,
/// also the kernel's I/O workers.
inline void print_result(const ColdResult& r, const rusage& before = {}) {
  const rusage use = usage();
  const auto seconds = [](const timeval& from, const timeval& to) {
    return static_cast<double>(to.tv_sec - from.tv_sec) +
           static_cast<double>(to.tv_usec - from.tv_usec) * 1e-6;
  };
  std::printf(
      "{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"records\": %" PRIu64 ", \"digest\": \"%016" PRIx64
      "\", \"mark_bytes\": %" PRIu64 ", \"mark_records\": %" PRIu64 ", \"mark_digest\": \"%016" PRIx64
      "\", \"user_s\": %.6f, \"system_s\": %.6f, \"minor_faults\": %ld, \"major_faults\": %ld, "
      "\"voluntary_switches\": %ld, \"involuntary_switches\": %ld, \"max_rss_kib\": %ld, "
      "\"direct\": %s, \"library\": \"%s\"}\n",
      r.seconds, r.bytes, r.records, r.digest, r.mark_bytes, r.mark_records, r.mark_digest,
      seconds(before.ru_utime, use.ru_utime), seconds(before.ru_stime, use.ru_stime),
      use.ru_minflt - before.ru_minflt, use.ru_majflt - before.ru_majflt, use.ru_nvcsw - before.ru_nvcsw,
      use.ru_nivcsw - before.ru_nivcsw, use.ru_maxrss, r.direct ? "true" : "false", r.library);
  if (std::fflush(stdout) != 0) die_errno("standard output");
}

}  // namespace lmdbio::bench
