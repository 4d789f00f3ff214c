// Which records each batch of an order has.  Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/records/order.h"

namespace lmdbio::records {

struct BatchPlan {
  Spot at;                  ///< of its first record
  Spot after;               ///< of the next batch's
  std::uint64_t count = 0;  ///< records, padding included
  std::uint64_t padding = 0;
};

class Sequence {
 public:
  /// `ordinals_of_keys`: with LMDBIO_ORDER_KEYS, a record's ordinal for each key.  EINVAL: a field out of its
  /// range.
  static Result<Sequence> make(const lmdbio_order& order, Order made,
                               std::vector<std::uint64_t> ordinals_of_keys) noexcept;

  bool by_key() const noexcept { return order_.by_key(); }
  /// Where the order begins.
  Spot first() const noexcept { return settle(first_); }
  /// The batch at `at`, which is first() or another batch's `after`.  None: the end.
  std::optional<BatchPlan> batch(Spot at) const noexcept;
  /// The ordinal of record `i` of a batch.
  std::uint64_t ordinal(const BatchPlan& b, std::uint64_t i) const noexcept;
  /// Records of this batch and the next lie among each other in the file: they are best read together.
  bool mixed_with_next(const BatchPlan& b) const noexcept;

 private:
  Sequence(const lmdbio_order& o, Order made, std::vector<std::uint64_t> ordinals) noexcept
      : order_(std::move(made)), ordinals_(std::move(ordinals)), first_{o.epoch, o.position} {}
  Spot settle(Spot s) const noexcept;
  std::optional<BatchPlan> batch_across_epochs(Spot at) const noexcept;

  Order order_;
  std::vector<std::uint64_t> ordinals_;
  Spot first_;
  lmdbio_last last_ = LMDBIO_LAST_KEEP;
  std::uint64_t batch_ = 1, epochs_ = 0;
  std::uint64_t window_ = 0;  ///< of LMDBIO_ORDER_WINDOW_SHUFFLE; 0: not that
};

}  // namespace lmdbio::records
