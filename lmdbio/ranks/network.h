// The ranks of a communicator and their nodes.  Implemented by MPI and by tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// Constant after construction, except open_port(), which one thread at a time may call.
class Network {
 public:
  virtual ~Network() = default;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t ranks() const noexcept = 0;
  /// Returns the number of the node of each rank, counted from 0.
  virtual std::span<const std::uint32_t> nodes() const noexcept = 0;

  /// Thread level that MPI granted: which threads may use the transports.
  enum class Threads : unsigned char {
    main_only,      ///< MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED
    one_at_a_time,  ///< MPI_THREAD_SERIALIZED: the program ensures it
    any,            ///< MPI_THREAD_MULTIPLE
  };
  virtual Threads threads() const noexcept = 0;
  /// Returns whether the calling thread has initialized MPI.
  virtual bool in_main_thread() const noexcept = 0;

  /// Returns a transport whose messages do not mix with those of other ports.  The network outlives it.
  /// Returns null if memory is short, or with port_in_use().
  virtual std::unique_ptr<Transport> open_port(std::uint32_t port) noexcept = 0;
  /// Returns whether messages of `port` would mix with those of another port that is open on this rank.  Any
  /// thread.
  virtual bool port_in_use(std::uint32_t) const noexcept { return false; }
};

}  // namespace lmdbio::ranks
