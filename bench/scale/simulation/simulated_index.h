// Builds the record index when simulated ranks open a database for the strategy `full`.  lmdbio/records reads
// the tree, and lmdbio/ranks exchanges the parts.
#pragma once

#include <cstdint>
#include <span>

#include "bench/scale/simulation/machine.h"

namespace lmdbio::bench {

/// Builds the index.  All ranks call it, and it returns when the calling rank has the index.  `nodes` has the
/// node of each rank.  The index is checked and then dropped, because ModelSource takes the locations of
/// records from the tree.
void make_simulated_index(Machine& machine, std::span<const std::uint32_t> nodes, std::uint32_t rank);

}  // namespace lmdbio::bench
