// A training loop.  In each step a rank takes its batch, compares it with checksums, computes, and takes part
// in an MPI_Allreduce.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/scale/loader.h"
#include "bench/scale/world.h"

namespace lmdbio::bench {

struct TrainingSettings {
  double compute_s = 0;  ///< after each batch: a sleep, or a busy loop if `spin`
  bool spin = false;
  double allreduce_mb = 0;          ///< after each batch
  bool barrier = false;             ///< wait for all ranks after each batch
  std::vector<std::uint64_t> sums;  ///< checksums of all records; empty: no check
  bool progress = false;            ///< rank 0 shows the progress on standard error
};

/// Runs the loop.  All ranks call it.  Returns the report of rank 0; bench/scale/README.md describes its
/// members.  Ends the program if a record differs from its checksum.
nlohmann::json train(const TrainingSettings& training, const LoaderSettings& loading, World& world);

}  // namespace lmdbio::bench
