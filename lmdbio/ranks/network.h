// Interface to the ranks of a communicator and their nodes.  MPI and tests implement it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// Immutable after construction.  Only open_port() changes the object; one thread at a time may call it.
class Network {
 public:
  virtual ~Network() = default;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t ranks() const noexcept = 0;
  /// Returns the node number of each rank.  Nodes are numbered from 0.
  virtual std::span<const std::uint32_t> nodes() const noexcept = 0;

  /// The thread level that MPI granted.  It says which threads may use the transports.
  enum class Threads : unsigned char {
    main_only,      ///< MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED
    one_at_a_time,  ///< MPI_THREAD_SERIALIZED; the program must ensure this
    any,            ///< MPI_THREAD_MULTIPLE
  };
  virtual Threads threads() const noexcept = 0;
  /// Returns whether the calling thread has initialized MPI.
  virtual bool in_main_thread() const noexcept = 0;

  /// Returns a transport whose messages do not mix with those of other ports.  The network must outlive the
  /// transport.  Returns null if memory is short, or if port_in_use() is true.
  virtual std::unique_ptr<Transport> open_port(std::uint32_t port) noexcept = 0;
  /// Returns whether messages of this port would mix with those of another port that is open on this rank.
  /// Any thread.
  virtual bool port_in_use(std::uint32_t) const noexcept { return false; }
};

}  // namespace lmdbio::ranks
