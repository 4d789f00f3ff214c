// Messages between ranks, as the distributed stream needs them.  MPI implements this; so do tests, with any
// number of ranks in one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lmdbio/base/status.h"

namespace lmdbio::ranks {

/// Of a receive: whichever rank sends first.
inline constexpr std::uint32_t kAnyRank = UINT32_MAX;

/// A send or a receive.  Stays where it is, with its bytes, from the call that starts it until done().
struct Operation {
  bool under_way = false;
  Status status;           ///< once it is done
  std::size_t bytes = 0;   ///< that were received
  std::uint32_t from = 0;  ///< the rank whose message was received
  std::uint64_t tag = 0;   ///< the transport's
  bool done() const noexcept { return !under_way; }
};

/// What a stream has sent and received so far.
struct Traffic {
  std::uint64_t messages_sent = 0, bytes_sent = 0;  ///< with records
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_from_nodes = 0;  ///< of these, from ranks of other nodes
  std::uint64_t records_alone = 0;     ///< read here, as others were late, failed or had left
};

/// One thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t ranks() const noexcept = 0;
  /// Messages from one rank to another on one channel arrive in the order in which they were sent.  A send is
  /// not done before the receiver has begun to receive it, so that nobody sends more than others want.  Any
  /// size, 0 too.  Neither waits.  ENOMEM, or what the transport says: nothing was started.
  virtual Status send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
                      Operation& op) = 0;
  /// A message of at most room.size() bytes.  A longer one is an error of the operation.  `from`: a rank or
  /// kAnyRank, but not both on one channel.
  virtual Status receive(std::uint32_t from, unsigned channel, std::span<std::byte> room, Operation& op) = 0;
  /// Moves on what is under way, never waits.
  virtual Status poll() = 0;
  /// Ends a receive that has not begun, after which it is done(); one that has begun goes on.
  virtual void cancel(Operation& op) = 0;

  /// Operations that have ended.
  std::uint64_t events = 0;
};

}  // namespace lmdbio::ranks
