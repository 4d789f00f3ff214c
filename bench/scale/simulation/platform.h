// A machine to simulate, described by a file of JSON (bench/scale/simulation/README.md).
#pragma once

#include <cstdint>
#include <string>

#include "bench/scale/simulation/storage_model.h"

namespace lmdbio::bench {

/// CPU time of a rank's operations, in seconds.
struct CpuCosts {
  double next_s = 0;         ///< for each record that a cursor of LMDB steps to
  double fault_s = 0;        ///< for a page fault whose page is resident
  double major_fault_s = 0;  ///< extra time if the page is not resident, without the wait
  double wake_s = 0;  ///< for each process that waits for the same page: the kernel wakes them one by one
  double copy_bytes_s = 1e18;  ///< speed of copies from a mapping, bytes a second
};

/// The part of the platform that simulated ranks and servers need.  SimGrid gets the network and the rest
/// from bench/scale/simulation/simulated_jobs.py.
struct Platform {
  std::uint64_t node_memory_bytes = 0;
  unsigned read_ahead_bytes = 0;  ///< the kernel's read-ahead of mapped files, as read_ahead_kb
  double memory_latency_s = 0;    ///< of a message between ranks of a node
  double network_bytes_s = 0, network_latency_s = 0;  ///< between nodes
  CpuCosts cpu;
  std::uint64_t largest_request_bytes = 0;  ///< clients divide larger ones; 0: no limit
  StorageSettings storage;
};

/// Reads a platform from `file`.  Ends the program with a message that names the file if a member is missing,
/// unknown or not valid.
Platform read_platform(const std::string& file);

}  // namespace lmdbio::bench
