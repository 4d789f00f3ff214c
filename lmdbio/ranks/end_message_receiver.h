// Receives at most one end message from each of many ranks.
//
// At most 16 receives are posted, and each of them accepts a message from any rank.  With a receive for each
// rank, MPI would test thousands of receives thousands of times a second.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// Receives end messages.  One thread.  Must not be moved or destroyed while a receive is under way.
class EndMessageReceiver {
 public:
  /// Expects at most one message from each of `ranks` ranks.  Nothing else may be received on the channel.
  EndMessageReceiver(std::uint32_t ranks, unsigned channel) noexcept : left_(ranks), channel_(channel) {}
  EndMessageReceiver(const EndMessageReceiver&) = delete;
  EndMessageReceiver& operator=(const EndMessageReceiver&) = delete;

  /// Calls `take(rank, number)` for each message that has arrived.  `number` is the content of the message,
  /// or 0 if it is empty.  Then begins further receives.  Never waits.  Errors are those of the transport.
  template <class Take>
  Status progress(Transport& transport, Take&& take) {
    for (One& one : under_way_) {
      if (one.begun) {
        if (!one.op.done()) continue;
        one.begun = false;
        if (!one.op.status.ok()) return one.op.status;
        take(one.op.from, one.number);
      }
      if (left_ == 0) continue;
      one.number = 0;
      if (const Status st = transport.receive(kAnyRank, channel_,
                                              std::as_writable_bytes(std::span(&one.number, 1)), one.op);
          !st.ok())
        return st;
      one.begun = true;
      --left_;
    }
    return {};
  }

  /// Ends the receives.  Call it when no more messages can arrive.
  void stop(Transport& transport) {
    left_ = 0;
    for (One& one : under_way_) {
      if (one.begun && !one.op.done()) transport.cancel(one.op);
      one.begun = false;
    }
  }
  /// Returns whether no receive is under way.
  bool idle() const noexcept {
    return std::all_of(under_way_.begin(), under_way_.end(), [](const One& one) { return one.op.done(); });
  }

 private:
  struct One {
    Operation op;
    std::uint64_t number = 0;
    bool begun = false;
  };
  std::array<One, 16> under_way_;
  std::uint32_t left_;  ///< receives that have not begun
  const unsigned channel_;
};

}  // namespace lmdbio::ranks
