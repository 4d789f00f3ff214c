// The record index that simulated ranks make when they open a database for `full`: lmdbio/records reads the
// tree, lmdbio/ranks exchanges the parts.
#pragma once

#include <cstdint>
#include <span>

#include "bench/scale/simulation/machine.h"

namespace lmdbio::bench {

/// All ranks together; returns once the calling rank has the index.  `nodes`: of each rank.  What is made is
/// checked, and dropped: places of records are those of the tree.
void make_simulated_index(Machine& machine, std::span<const std::uint32_t> nodes, std::uint32_t rank);

}  // namespace lmdbio::bench
