// The machine as strategies use it: files, a clock, memory of nodes.  The real one, or a simulated one in
// whose processes no data exists.
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

/// Memory that ranks of one node share.  All of them call the same functions in the same order.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  /// Room for so many bytes, as the first rank says, of which those before are lost.
  virtual void reserve(std::uint64_t bytes) = 0;
  /// Until all ranks call it.
  virtual void wait_for_all() = 0;
  /// Aligned for direct reads in the first rank; each process has it at an address of its own.
  virtual std::byte* bytes() const noexcept = 0;
};

/// The database of a job, and what is made beside it.
struct Data {
  std::string database;  ///< a directory
  std::optional<Content> content;
  std::uint64_t bytes = std::uint64_t{1} << 28, multiple = 1;  ///< of a database that is made
  std::string sums;                                            ///< file of checksums
  bool no_check = false;                                       ///< with them
  bool only_prepare = false;
};

struct TrainingSettings;
/// What options set.
struct JobSettings {
  Data& data;
  LoaderSettings& loading;
  TrainingSettings& training;
};

/// What a process has used so far.
struct ProcessFacts {
  std::uint64_t device_bytes = 0, max_rss_kib = 0;
  std::uint64_t memory_kib = 0;  ///< private and shared, without mapped files
  bool lmdb_loaded = false, lmdbio_loaded = false;
};

struct CpuUse {
  double busy_s = 0, all_s = 0;
};

/// What has been read of a file system.
struct StorageUse {
  std::uint64_t requests = 0, bytes = 0;
  std::uint64_t most_in_flight = 0;  ///< of all nodes at the same time, without opening `full`; 0: not known
};

/// One for each rank.  Ends the program, on all ranks, if something is wrong.
class World {
 public:
  virtual ~World() = default;
  /// Makes what is not there.  On rank 0, while the others wait.
  virtual void prepare(const Data& data, Order order) = 0;
  /// Checksums of all records; empty: nothing is compared.
  virtual std::vector<std::uint64_t> sums(const Data& data) = 0;

  virtual double seconds() = 0;
  virtual void sleep(double seconds) = 0;
  /// A barrier of all ranks.  Not MPI_Barrier, in which ranks that have ended take the CPU from those that
  /// have not, where several share one.
  virtual void wait_for_all(Loader& loader);
  /// The ranks of this rank's node.  All ranks call it; who calls it frees the communicator.
  virtual MPI_Comm split_by_node() = 0;
  /// `ranks` are on one node, and all of them call it.  They outlive what is returned.
  virtual std::unique_ptr<NodeMemory> share_memory(MPI_Comm ranks) = 0;

  virtual std::unique_ptr<Storage> open(const std::string& file) = 0;
  /// LMDB with the database in this directory, or what stands for it.  `keys`: for get(), see real_lmdb().
  virtual std::unique_ptr<LmdbAccess> lmdb(const std::string& directory, const std::string& keys) = 0;
  /// LMDBIO's streams, or what stands for them.
  virtual std::unique_ptr<Loader> library_loader(const LoaderSettings& settings) = 0;
  /// False: values have no bytes that could be looked at.
  virtual bool has_values() const = 0;

  virtual ProcessFacts process() = 0;
  /// Seconds that all CPUs of this machine together have worked, and could have; 0: it is not known.
  virtual CpuUse cpu_use() = 0;
  /// CPU seconds that this rank has spent so far asking whether other ranks of its node have come: MPI waits
  /// so, and gives the CPU to who has something to do.
  virtual double asking_seconds() { return 0; }
  /// Of this node's file system; nothing: it does not say.
  virtual std::optional<StorageUse> storage_use() = 0;
};

/// What the command line says of the world that this program is built for.
class WorldMaker {
 public:
  virtual ~WorldMaker() = default;
  virtual void add_options(CLI::App& app, JobSettings job) = 0;
  virtual std::unique_ptr<World> make() = 0;
};

/// This machine.  Reads are in flight together by io_uring if it is there, else one after the other: there
/// are no threads.
std::unique_ptr<WorldMaker> real_world();
/// Ranks of SimGrid's SMPI, which are threads of execution of one process.
std::unique_ptr<WorldMaker> simulated_world();

}  // namespace lmdbio::bench
