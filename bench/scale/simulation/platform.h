// A machine to simulate, described by a file of JSON (bench/scale/simulation/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/scale/simulation/page_cache.h"
#include "bench/scale/simulation/storage_model.h"

namespace lmdbio::bench {

/// CPU time of a rank's operations, in seconds.
struct CpuCosts {
  double next_s = 0;           ///< for each record that a cursor of LMDB steps to
  double fault_s = 0;          ///< for a page fault whose page is resident
  double major_fault_s = 0;    ///< to start a read of pages that are not resident
  double wake_s = 0;           ///< of the kernel, for each process that it wakes: one after the other
  double woken_s = 0;          ///< of a process that waited for a page: it sleeps, wakes, and faults again
  double copy_bytes_s = 1e18;  ///< speed of copies from a mapping, bytes a second
};

/// The part of the platform that simulated ranks and servers need.  SimGrid gets the network and the rest
/// from bench/scale/simulation/simulated_jobs.py.
struct Platform {
  unsigned cores = 0;  ///< of a node, or of the machine that emulates all nodes
  /// Nodes are emulated on one machine, with the servers of the file system: CPU time of a request.
  struct Emulated {
    double request_s = 0, bytes_s = 1e18;
  };
  std::optional<Emulated> emulated;
  std::uint64_t node_memory_bytes = 0;
  unsigned read_ahead_bytes = 0;  ///< the kernel's read-ahead of mapped files, as read_ahead_kb
  double memory_latency_s = 0;    ///< of a message between ranks of a node
  double network_bytes_s = 0, network_latency_s = 0;  ///< between nodes
  CpuCosts cpu;
  Kernel kernel;
  std::uint64_t largest_request_bytes = 0;  ///< clients divide larger ones; 0: no limit
  StorageSettings storage;
};

/// Reads a platform from `file`.  Ends the program with a message that names the file if a member is missing,
/// unknown or not valid.
Platform read_platform(const std::string& file);

}  // namespace lmdbio::bench
