// Interface for messages between ranks.  MPI implements it, and so do tests with any number of ranks in one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lmdbio/base/status.h"

namespace lmdbio::ranks {

/// Argument of receive(): accepts a message from any rank.
inline constexpr std::uint32_t kAnyRank = UINT32_MAX;

/// A send or a receive.  From the call that starts it until done(), neither this object nor the message's
/// bytes may move.
struct Operation {
  bool under_way = false;
  Status status;           ///< result, when it is done
  std::size_t bytes = 0;   ///< bytes that were received
  std::uint32_t from = 0;  ///< rank whose message was received
  std::uint64_t tag = 0;   ///< for the transport
  bool done() const noexcept { return !under_way; }
};

/// Messages and bytes that a stream has sent and received so far.
struct Traffic {
  std::uint64_t messages_sent = 0, bytes_sent = 0;  ///< messages with records, and bytes in them
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_from_nodes = 0;  ///< part of bytes_received that came from other nodes
  std::uint64_t records_alone = 0;     ///< records read here because other ranks were late, failed or had
                                       ///< left
};

/// Sends and receives messages of one rank.  One thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t ranks() const noexcept = 0;
  /// Starts to send a message of any size, including 0.  Messages from one rank to another on one channel
  /// arrive in the sequence in which they were sent.  A send is done only after the receiver has begun to
  /// receive the message.  No rank therefore sends more than the receivers expect.  Never waits.  If it fails
  /// (ENOMEM, or an error of the transport), nothing was started.
  virtual Status send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
                      Operation& op) = 0;
  /// Starts to receive a message of at most room.size() bytes.  A longer message is an error of the
  /// operation.  `from`: a rank or kAnyRank; do not use both on one channel.  Never waits.  Errors as send().
  virtual Status receive(std::uint32_t from, unsigned channel, std::span<std::byte> room, Operation& op) = 0;
  /// Advances all operations.  Never waits.
  virtual Status poll() = 0;
  /// Cancels a receive.  If no message has begun to arrive, the receive is done() afterwards.  Otherwise, it
  /// continues.
  virtual void cancel(Operation& op) = 0;

  /// Number of operations that have ended.
  std::uint64_t events = 0;
};

}  // namespace lmdbio::ranks
