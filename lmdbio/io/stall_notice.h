// Logs a read that takes too long.
#pragma once

#include <cinttypes>
#include <cstdint>

#include "lmdbio/base/config.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"

namespace lmdbio {

/// One wait of the program for data.
class StallNotice {
 public:
  /// Call this repeatedly while the program waits for the byte at `offset` of the file `name`.  Logs one
  /// warning once the wait has taken LMDBIO_STALL_SECONDS since the first call.
  void look(const char* name, std::uint64_t offset) noexcept {
    const std::int64_t now = now_ns();
    if (begun_ == 0) begun_ = now;
    const unsigned limit = config().stall_seconds;
    if (limit == 0 || told_ || now - begun_ < std::int64_t{limit} * 1'000'000'000) return;
    told_ = true;
    log_line(LogLevel::warn, "%s: a read at offset %" PRIu64 " has taken more than %u s; still waiting", name,
             offset, limit);
  }
  /// Returns the time when the wait began, CLOCK_MONOTONIC in ns, or 0 if there was no wait yet.
  std::int64_t begun() const noexcept { return begun_; }

 private:
  std::int64_t begun_ = 0;
  bool told_ = false;
};

}  // namespace lmdbio
