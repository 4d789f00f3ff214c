// Describes the records of a rank to LMDBIO's streams.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>

#include "bench/scale/loader.h"

namespace lmdbio::bench {

inline lmdbio_order order_of(const LoaderSettings& s, int rank, int ranks) {
  lmdbio_order order{};
  order.size = sizeof order;
  order.batch = s.batch;
  order.end_epoch = s.epochs;
  order.last = LMDBIO_LAST_DROP;
  order.offset = static_cast<std::uint64_t>(rank);
  order.step = static_cast<std::uint64_t>(ranks);
  order.block = s.assignment == Assignment::contiguous ? s.batch : 1;
  order.zero_copy = 1;
  if (s.order == Order::shuffled) order.kind = LMDBIO_ORDER_SHUFFLE;
  return order;
}

/// Tells which batch a rank uses next.  Streams also give batches after the last step, which not all ranks
/// have.
class StepCounter {
 public:
  explicit StepCounter(std::uint64_t batch, std::uint64_t steps = 1) : batch_(batch), steps_(steps) {}
  bool is_next(std::uint64_t epoch, std::uint64_t position) const noexcept {
    return epoch == epoch_ && position == step_ * batch_;
  }
  void step() noexcept {
    if (++step_ != steps_) return;
    step_ = 0;
    ++epoch_;
  }

 private:
  std::uint64_t batch_, steps_, step_ = 0, epoch_ = 0;
};

}  // namespace lmdbio::bench
