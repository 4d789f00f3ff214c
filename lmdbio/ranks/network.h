// The ranks of a communicator, and where they are.  MPI implements this; so do tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// Constant once made, but for open_port(), which is called by one thread at a time.
class Network {
 public:
  virtual ~Network() = default;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t ranks() const noexcept = 0;
  /// The number of the node that each rank runs on, from 0.
  virtual std::span<const std::uint32_t> nodes() const noexcept = 0;

  /// What MPI granted: which threads may use the transports.
  enum class Threads : unsigned char {
    main_only,      ///< MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED
    one_at_a_time,  ///< MPI_THREAD_SERIALIZED: the program sees to it
    any,            ///< MPI_THREAD_MULTIPLE
  };
  virtual Threads threads() const noexcept = 0;
  /// The calling thread is the one that initialized MPI.
  virtual bool in_main_thread() const noexcept = 0;

  /// A transport whose messages do not mix with those of other ports.  It does not outlive the network.
  /// Null: out of memory, or port_in_use().
  virtual std::unique_ptr<Transport> open_port(std::uint32_t port) noexcept = 0;
  /// Messages of `port` would mix with those of another port that is open on this rank.  Any thread.
  virtual bool port_in_use(std::uint32_t) const noexcept { return false; }
};

}  // namespace lmdbio::ranks
