// Network over the ranks of an MPI communicator.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "lmdbio/ranks/network.h"

namespace lmdbio::ranks {

/// Connects the ranks of a communicator.  See Network.
class MpiNetwork final : public Network {
 public:
  /// Duplicates `comm`.  Collective.  Returns an MPI error code.  If a rank does not call this function
  /// within about `timeout_ns`, returns MPI_SUCCESS and leaves `out` null.  In this case, no other collective
  /// call may use `comm`.  `most_tags`: upper limit for tags, for tests; 0: MPI's limit.  May throw
  /// bad_alloc.
  static int make(MPI_Comm comm, std::int64_t timeout_ns, std::unique_ptr<MpiNetwork>& out,
                  int most_tags = 0);
  MpiNetwork(const MpiNetwork&) = delete;
  MpiNetwork& operator=(const MpiNetwork&) = delete;
  ~MpiNetwork() override = default;
  /// Frees the communicator.  Collective.  All transports must have been destroyed.
  void free() noexcept;

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t ranks() const noexcept override { return static_cast<std::uint32_t>(nodes_.size()); }
  std::span<const std::uint32_t> nodes() const noexcept override { return nodes_; }
  Threads threads() const noexcept override { return threads_; }
  bool in_main_thread() const noexcept override;
  std::unique_ptr<Transport> open_port(std::uint32_t port) noexcept override;
  bool port_in_use(std::uint32_t port) const noexcept override;

 private:
  MpiNetwork() = default;
  class Port;
  int find_nodes();
  std::uint32_t row_of(std::uint32_t port) const noexcept;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int largest_tag_ = 32767;  // the minimum that MPI guarantees
  std::uint32_t rank_ = 0;
  std::vector<std::uint32_t> nodes_;
  Threads threads_ = Threads::main_only;
  mutable std::mutex mutex_;
  std::set<std::uint32_t> rows_;  ///< rows of tags of the open ports; guarded by mutex_
};

}  // namespace lmdbio::ranks
