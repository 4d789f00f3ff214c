// A training loop: each rank takes its batch, compares it with checksums, computes, and sums over all ranks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/scale/loader.h"
#include "bench/scale/world.h"

namespace lmdbio::bench {

struct TrainingSettings {
  double compute_s = 0;  ///< after each batch: a sleep, or on the CPU
  bool spin = false;
  double allreduce_mb = 0;          ///< after each batch
  std::vector<std::uint64_t> sums;  ///< checksums of all records; empty: nothing is compared
  bool progress = false;            ///< rank 0 shows it on standard error
};

/// All ranks call it.  What rank 0 reports; docs/strategies.md has the fields.  Ends the program if a record
/// differs from its checksum.
nlohmann::json train(const TrainingSettings& training, const LoaderSettings& loading, World& world);

}  // namespace lmdbio::bench
