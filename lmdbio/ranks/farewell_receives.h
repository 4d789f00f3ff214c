// Receives one farewell from each of many ranks.
//
// With a receive for each rank, MPI would look at thousands of receives, thousands of times a second, for the
// life of a stream.  So at most 16 receives are posted.  Each takes a farewell from any rank.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// One thread.  Stays where it is while receives are under way.
class FarewellReceives {
 public:
  /// Of `ranks` ranks, on a channel on which nothing else is received.
  FarewellReceives(std::uint32_t ranks, unsigned channel) noexcept : left_(ranks), channel_(channel) {}
  FarewellReceives(const FarewellReceives&) = delete;
  FarewellReceives& operator=(const FarewellReceives&) = delete;

  /// Calls `heard(rank, number)` for each farewell that has come: `number` is its content, 0 if it is empty.
  /// Then begins further receives.  Never waits.  Errors: the transport's.
  template <class Heard>
  Status progress(Transport& transport, Heard&& heard) {
    for (One& one : under_way_) {
      if (one.begun) {
        if (!one.op.done()) continue;
        one.begun = false;
        if (!one.op.status.ok()) return one.op.status;
        heard(one.op.from, one.number);
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
