// A machine to simulate, described by a file of JSON (bench/simulation/README.md).
#pragma once

#include <cstdint>
#include <string>

#include "bench/simulation/storage_model.h"

namespace lmdbio::bench {

/// What the ranks themselves have to know; bench/scaling/simulation.py tells SimGrid the rest.
struct Platform {
  std::uint64_t node_memory_bytes = 0;
  unsigned read_ahead_bytes = 0;  ///< of mapped files, as the kernel's read_ahead_kb
  StorageSettings storage;
};

/// Ends the program with a message that names the file if a member is missing, unknown or has no sense.
Platform read_platform(const std::string& file);

}  // namespace lmdbio::bench
