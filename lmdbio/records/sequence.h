// Computes the batches of an order, by pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/records/order.h"

namespace lmdbio::records {

/// Describes a batch.
struct BatchPlan {
  Position at;                ///< position of the batch's first record
  Position after;             ///< position of the first record of the next batch
  std::uint64_t count = 0;    ///< number of records, including the padding
  std::uint64_t padding = 0;  ///< number of records at the end that only fill up the batch
};

/// Divides an order into batches, from its start to its end.  Immutable; any thread.
class Sequence {
 public:
  /// Makes the sequence of `order`.  `made` was made from `order`.  With LMDBIO_ORDER_KEYS,
  /// `ordinals_of_keys` has the ordinal of each key.  EINVAL: a field is out of range.
  static Result<Sequence> make(const lmdbio_order& order, Order made,
                               std::vector<std::uint64_t> ordinals_of_keys) noexcept;

  bool by_key() const noexcept { return order_.by_key(); }
  /// Returns the position of the first batch, if there is one.
  Position first() const noexcept { return settle(first_); }
  /// Returns the batch at position `at`.  `at` must be first() or the `after` of another batch.  Returns
  /// nothing at the end.
  std::optional<BatchPlan> batch(Position at) const noexcept;
  /// Returns the ordinal of record `i` of a batch.
  std::uint64_t ordinal(const BatchPlan& b, std::uint64_t i) const noexcept;
  /// Returns true if the records of this batch and of the next batch are mixed in the file.  It is then best
  /// to read both batches together.
  bool mixed_with_next(const BatchPlan& b) const noexcept;

 private:
  Sequence(const lmdbio_order& o, Order made, std::vector<std::uint64_t> ordinals) noexcept
      : order_(std::move(made)), ordinals_(std::move(ordinals)), first_{o.epoch, o.position} {}
  Position settle(Position p) const noexcept;
  std::optional<BatchPlan> batch_across_epochs(Position at) const noexcept;

  Order order_;
  std::vector<std::uint64_t> ordinals_;
  Position first_;
  lmdbio_last last_ = LMDBIO_LAST_KEEP;
  std::uint64_t batch_ = 1;      ///< records per batch
  std::uint64_t end_epoch_ = 1;  ///< records::end_epoch of the order
  std::uint64_t window_ = 0;     ///< records per window of LMDBIO_ORDER_WINDOW_SHUFFLE; 0: another kind
};

}  // namespace lmdbio::records
