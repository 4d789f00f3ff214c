// A machine to simulate, described by a file of JSON (bench/scale/simulation/README.md).
#pragma once

#include <cstdint>
#include <string>

#include "bench/scale/simulation/storage_model.h"

namespace lmdbio::bench {

/// What a rank's CPU takes, seconds.
struct CpuCosts {
  double next_s = 0;           ///< for each record that a cursor of LMDB steps to
  double fault_s = 0;          ///< for a page fault whose page is there
  double major_fault_s = 0;    ///< for one whose page is not: beside the wait, and the above
  double wake_s = 0;           ///< for each process that waits for a page: they are woken one after the other
  double copy_bytes_s = 1e18;  ///< of records that are copied from a mapping, bytes a second
};

/// What the ranks themselves have to know; bench/scale/simulation/simulated_jobs.py tells SimGrid the rest.
struct Platform {
  std::uint64_t node_memory_bytes = 0;
  unsigned read_ahead_bytes = 0;  ///< of mapped files, as the kernel's read_ahead_kb
  double memory_latency_s = 0;    ///< of a message between ranks of a node
  CpuCosts cpu;
  std::uint64_t largest_request_bytes = 0;  ///< that clients do not divide; 0: they divide none
  StorageSettings storage;
};

/// Ends the program with a message that names the file if a member is missing, unknown or has no sense.
Platform read_platform(const std::string& file);

}  // namespace lmdbio::bench
