// A scan of a whole database that reads every byte: through LMDB (the row next_read of workload_warm.h), and
// raw.
#pragma once

#include <cstdint>

#include "bench/workload_warm.h"

namespace lmdbio::bench {

/// What run_raw is told in Command::row.
enum class RawWay : std::uint32_t { kMapping, kCalls };

/// What run_lmdb is told in Command::row: the index of a row in kRows.
constexpr std::uint32_t row_index(Row row) {
  for (std::uint32_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].row == row) return i;
  return 0;
}

}  // namespace lmdbio::bench
