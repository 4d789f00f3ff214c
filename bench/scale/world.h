// The machine as strategies use it: files, a clock, memory of nodes.  It is real or simulated.  Simulated
// processes have no data.
#pragma once

#include <mpi.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/scale/lmdb_access.h"
#include "bench/scale/loader.h"
#include "bench/scale/prepare.h"
#include "bench/scale/storage.h"

namespace lmdbio::bench {

/// Memory that ranks of one node share.  All these ranks call the same functions in the same order.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  /// Makes room for the number of bytes that the first rank passes.  The content may be lost.
  virtual void reserve(std::uint64_t bytes) = 0;
  /// Waits until all ranks have called it.
  virtual void wait_for_all() = 0;
  /// Returns the memory, at an address that differs by process.  It is aligned for direct reads in the first
  /// rank.
  virtual std::byte* bytes() const noexcept = 0;
};

/// The database of a job, and the files that are made beside it.
struct Data {
  std::string database;  ///< a directory
  std::optional<Content> content;
  std::uint64_t bytes = std::uint64_t{1} << 28, multiple = 1;  ///< if the database is to be made
  std::string sums;                                            ///< file of checksums
  bool no_check = false;                                       ///< do not compare records with the checksums
  bool only_prepare = false;
};

struct TrainingSettings;
/// The settings that options set.
struct JobSettings {
  Data& data;
  LoaderSettings& loading;
  TrainingSettings& training;
};

/// Resources that a process has used so far.
struct ProcessFacts {
  std::uint64_t device_bytes = 0, max_rss_kib = 0;
  std::uint64_t memory_kib = 0;  ///< private and shared, without mapped files
  bool lmdb_loaded = false, lmdbio_loaded = false;
};

struct CpuUse {
  double busy_s = 0, all_s = 0;
};

/// Counters of reads from a file system.
struct StorageUse {
  std::uint64_t requests = 0, bytes = 0;
  std::uint64_t most_in_flight = 0;  ///< over all nodes; `full`: without the open; 0: not known
};

/// Each rank has one.  Ends the program, on all ranks, on an error.
class World {
 public:
  virtual ~World() = default;
  /// Makes the files that do not exist.  Called on rank 0, while the other ranks wait.
  virtual void prepare(const Data& data, Order order) = 0;
  /// Returns the checksums of all records.  Empty if records are not to be compared.
  virtual std::vector<std::uint64_t> sums(const Data& data) = 0;

  virtual double seconds() = 0;
  virtual void sleep(double seconds) = 0;
  /// Waits until all ranks have called it.  Not MPI_Barrier: if several ranks share a CPU, waiting ranks
  /// would take it from working ones.
  virtual void wait_for_all(Loader& loader);
  /// Returns a communicator of the ranks of this node.  All ranks call it.  The caller frees the
  /// communicator.
  virtual MPI_Comm split_by_node() = 0;
  /// Makes memory that `ranks` share.  They must be on one node, and all of them call it.  The communicator
  /// must outlive the memory.
  virtual std::unique_ptr<NodeMemory> share_memory(MPI_Comm ranks) = 0;

  virtual std::unique_ptr<Storage> open(const std::string& file) = 0;
  /// Opens the database in this directory with LMDB, or with its simulation.  `keys`: for get(), see
  /// real_lmdb().
  virtual std::unique_ptr<LmdbAccess> lmdb(const std::string& directory, const std::string& keys) = 0;
  /// Makes a loader that uses LMDBIO's streams, or their simulation.
  virtual std::unique_ptr<Loader> library_loader(const LoaderSettings& settings) = 0;
  /// Returns false if values have no content, as in a simulation.
  virtual bool has_values() const = 0;

  virtual ProcessFacts process() = 0;
  /// Returns the busy and the total seconds of all CPUs of this machine; 0 if not known.
  virtual CpuUse cpu_use() = 0;
  /// Returns the CPU seconds that this rank has spent so far polling for other ranks of its node.  MPI waits
  /// by polling, and yields the CPU to other processes.
  virtual double asking_seconds() { return 0; }
  /// Returns the counters of this node's file system, or nullopt if it has none.
  virtual std::optional<StorageUse> storage_use() = 0;
};

/// Adds the options of this program's world, and makes it.
class WorldMaker {
 public:
  virtual ~WorldMaker() = default;
  virtual void add_options(CLI::App& app, JobSettings job) = 0;
  virtual std::unique_ptr<World> make() = 0;
};

/// Returns the maker of the real world.  It reads with io_uring if available, with several reads in flight;
/// otherwise one after the other.
std::unique_ptr<WorldMaker> real_world();
/// Returns the maker of the simulated world.  Its ranks are actors of SimGrid's SMPI in one process.
std::unique_ptr<WorldMaker> simulated_world();

}  // namespace lmdbio::bench
