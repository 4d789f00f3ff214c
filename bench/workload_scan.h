// Scans of a whole database that read every byte, through LMDB (the row next_read of workload_warm.h) or raw.
#pragma once

#include <cstdint>

#include "bench/workload_warm.h"

namespace lmdbio::bench {

/// The values of Command::row for run_raw.
enum class RawWay : std::uint32_t { kMapping, kCalls };

/// Returns the value of Command::row for run_lmdb: the index of a row in kRows.
constexpr std::uint32_t row_index(Row row) {
  for (std::uint32_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].row == row) return i;
  return 0;
}

}  // namespace lmdbio::bench
