// Sends and receives messages between the ranks of an MPI communicator.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// Transport over MPI.  One thread at a time; with MPI_THREAD_SINGLE and MPI_THREAD_FUNNELED, only the main
/// thread.  A send is an MPI_Issend: it is done when the receiver has begun to receive the message.
class MpiTransport : public Transport {
 public:
  /// Uses the tags first_tag to first_tag + kChannels - 1 (message.h).  The program must not use `comm`.
  /// `comm` must outlive this object, and must return errors (MPI_ERRORS_RETURN).
  MpiTransport(MPI_Comm comm, int first_tag) noexcept;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;
  /// Requires that no operation is under way.
  ~MpiTransport() override = default;

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t ranks() const noexcept override { return ranks_; }
  Status send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes, Operation& op) override;
  Status receive(std::uint32_t from, unsigned channel, std::span<std::byte> room, Operation& op) override;
  Status poll() override;
  void cancel(Operation& op) override;

  /// Returns MPI's text for the last call that failed.
  const char* error() const noexcept { return error_; }

 private:
  Status make_room() noexcept;
  Status check(int rc);
  void end(std::size_t i, const MPI_Status& status);
  void drop_ended();

  const MPI_Comm comm_;
  const int first_tag_;
  std::uint32_t rank_ = 0, ranks_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<Operation*> operations_;  ///< operation of each request
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  char error_[MPI_MAX_ERROR_STRING] = "";
};

}  // namespace lmdbio::ranks
