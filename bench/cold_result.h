// The result of a reader of bench/cold, and its line of JSON.
#pragma once

#include "bench/process_use.h"

namespace lmdbio::bench {

struct ColdResult {
  double seconds = 0, mark_seconds = 0;              // from the opening to the end; to --mark
  std::uint64_t bytes = 0, records = 0, digest = 0;  // bytes: of values (LMDB) or of the file (ring)
  std::uint64_t mark_bytes = 0, mark_records = 0, mark_digest = 0;  // the same at --mark
  const char* library = "";                                         // the library of mdb_cursor_get
  bool direct = false;                                              // O_DIRECT (ring)
};

/// Prints the result, with the resources that the process has used since `before`.
inline void print_result(const ColdResult& r, const ProcessUse& before = {}) {
  std::printf("{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"records\": %" PRIu64
              ", \"digest\": \"%016" PRIx64 "\", \"mark_bytes\": %" PRIu64 ", \"mark_records\": %" PRIu64
              ", \"mark_digest\": \"%016" PRIx64
              "\", \"mark_seconds\": %.6f, \"direct\": %s, \"library\": \"%s\", ",
              r.seconds, r.bytes, r.records, r.digest, r.mark_bytes, r.mark_records, r.mark_digest,
              r.mark_seconds, r.direct ? "true" : "false", r.library);
  print_use(before);
  std::puts("}");
  if (std::fflush(stdout) != 0) die_errno("standard output");
}

}  // namespace lmdbio::bench
