// Orders of records.  An order is a pure function of an epoch and a position, so that a job can resume
// anywhere.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lmdbio/base/result.h"

namespace lmdbio::records {

/// Returns element `i` of a permutation of 0 to `count` - 1, which differs for each seed and epoch.  `i` must
/// be less than `count`.  The permutation is defined in docs/format.md.  It must never change, because
/// resumed jobs and all ranks depend on it.
std::uint64_t shuffle(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count, std::uint64_t i) noexcept;
/// Returns the i for which shuffle() returns `x`.  `x` must be less than `count`.
std::uint64_t unshuffle(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count,
                        std::uint64_t x) noexcept;

/// Returns the epoch before which a stream of this order ends, at least 1.  The result is
/// lmdbio_order::end_epoch, or its default if it is 0.  LMDBIO_ENDLESS: the stream never ends.  If the start
/// is not before the end, the stream has no records.
constexpr std::uint64_t end_epoch(const lmdbio_order& order) noexcept {
  if (order.end_epoch != 0) return order.end_epoch;
  return order.epoch < LMDBIO_ENDLESS ? order.epoch + 1 : LMDBIO_ENDLESS;
}
/// Returns the number of epochs that a stream of this order reads.  A first epoch that it reads only in part
/// counts, too.  0: the stream has no records.  The number is huge if the stream never ends.
constexpr std::uint64_t epochs_to_read(const lmdbio_order& order) noexcept {
  const std::uint64_t end = end_epoch(order);
  return order.epoch < end ? end - order.epoch : 0;
}

/// A position in an order: the fields of lmdbio_order with these names.
struct Position {
  std::uint64_t epoch = 0, position = 0;
  friend bool operator==(const Position&, const Position&) = default;
};

/// Maps positions of an lmdbio_order to records of a database with a given number of records.  Immutable; any
/// thread.  Ignores the order's start and end, which Sequence handles.
class Order {
 public:
  using List = std::shared_ptr<const std::vector<std::uint64_t>>;
  /// Checks the fields of `order`.  `list` is a copy of the order's list.  If it is null, make() copies the
  /// list.  `firsts`: as RecordLocations::firsts().  Errors: EINVAL if a field, or an ordinal of the list, is
  /// out of range.  In this case, sets
  /// `*wrong` (unless `wrong` is null) to a constant text that names the field and its range.  ENOMEM.
  static Result<Order> make(const lmdbio_order& order, std::uint64_t records, const char** wrong = nullptr,
                            List list = nullptr, std::span<const std::uint64_t> firsts = {}) noexcept;

  /// Returns the number of records in an epoch's sequence.  Without across_epochs(), it is the same for all
  /// epochs.
  std::uint64_t length(std::uint64_t epoch = 0) const noexcept;
  /// Returns the ordinal of the record at a position of an epoch's sequence; with by_key(), returns the index
  /// of its key.  `position` must be less than length(epoch).  With across_epochs(), larger positions are
  /// allowed, and belong to the epochs that follow.
  std::uint64_t at(std::uint64_t epoch, std::uint64_t position) const noexcept;
  /// Returns the element at a position: its epoch, and its number among all elements of this epoch.  These
  /// are the elements before offset, step and block select the share.
  Position element(std::uint64_t epoch, std::uint64_t position) const noexcept;
  /// Returns the ordinal of an element of an epoch; with by_key(), returns the index of its key.  `element`
  /// must be less than elements().
  std::uint64_t record(std::uint64_t epoch, std::uint64_t element) const noexcept;
  /// Returns the number of elements of an epoch, before offset, step and block select the share.
  std::uint64_t elements() const noexcept { return all_; }
  /// Returns the number of the record `ordinal` among all elements of an epoch, before offset, step and block
  /// select the share.  `ordinal` must be less than the number of records.  Returns nothing for lists, keys,
  /// functions and mixed orders, because they may contain a record any number of times.
  std::optional<std::uint64_t> element_of(std::uint64_t epoch, std::uint64_t ordinal) const noexcept;
  /// Returns the position of an element in its epoch's sequence.  With across_epochs(), it is a position that
  /// normal() returns.  Returns nothing if offset, step and block do not select the element.
  std::optional<Position> position_of(std::uint64_t epoch, std::uint64_t element) const noexcept;
  /// Requires across_epochs().  Returns the same position in normal form: its epoch is that of the record,
  /// and its position is less than the length of this epoch.  The order must have elements.
  Position normal(Position p) const noexcept;
  /// Requires across_epochs().  Returns the number of records from `p` to the end of epoch `last`, at most
  /// UINT64_MAX.
  std::uint64_t left(Position p, std::uint64_t last) const noexcept;
  /// Requires across_epochs().  Returns the number of records from `from` to `to`, at most UINT64_MAX.
  /// Returns nothing if `to` is before `from`.
  std::optional<std::uint64_t> distance(Position from, Position to) const noexcept;
  /// Returns how many positions of an epoch's sequence belong to the first `elements` elements of the epoch.
  std::uint64_t positions_below(std::uint64_t epoch, std::uint64_t elements) const noexcept;
  /// Changes this order to the share of another rank.
  void set_offset(std::uint64_t offset) noexcept {
    offset_ = offset;
    length_ = static_cast<std::uint64_t>(chosen(all_));
  }
  /// Returns the share of another rank.
  Order with_offset(std::uint64_t offset) const noexcept {
    Order other = *this;
    other.set_offset(offset);
    return other;
  }
  /// Returns true if all epochs form one sequence, from which offset, step and block select the share.
  bool across_epochs() const noexcept { return across_epochs_; }
  /// Returns true if each epoch has the same records at the same positions.
  bool repeats() const noexcept {
    return (kind_ == LMDBIO_ORDER_SEQUENTIAL || kind_ == LMDBIO_ORDER_LIST || kind_ == LMDBIO_ORDER_KEYS) &&
           (!across_epochs_ || Wide{all_} % (Wide{step_} * block_) == 0);
  }
  /// Returns the list, or null for other kinds.
  const List& list() const noexcept { return list_; }
  /// Returns true if no epoch has any records.
  bool empty() const noexcept { return across_epochs_ ? all_ == 0 : length_ == 0; }
  bool by_key() const noexcept { return kind_ == LMDBIO_ORDER_KEYS; }
  /// Returns true if consecutive records of the sequence are mostly neighbours in the database.
  bool in_order() const noexcept;

 private:
  Order() = default;
  lmdbio_order_kind kind_ = LMDBIO_ORDER_SEQUENTIAL;
  /// A type for the product of any epoch and any length.
  __extension__ using Wide = unsigned __int128;
  /// Returns how many of the first `elements` elements belong to the share.
  Wide chosen(Wide elements) const noexcept;
  /// Requires across_epochs_.  Returns the number of elements of the share before an epoch.
  Wide before(Wide epoch) const noexcept { return chosen(epoch * all_); }

  /// The part of a database in a mixed order.
  struct Source {
    std::uint64_t first;    ///< ordinal of its first record
    std::uint64_t records;  ///< number of its records
    std::uint64_t seed;
    std::uint64_t first_slot;  ///< slots of a block that belong to the database
    std::uint64_t slots;
  };
  struct Mixture {
    std::uint64_t block = 0;      ///< elements per block
    std::vector<Source> sources;  ///< those with slots, in the sequence of the databases
  };
  static const char* mix_sources(const lmdbio_order& o, std::span<const std::uint64_t> firsts, Mixture& out);
  std::uint64_t mixed(std::uint64_t epoch, std::uint64_t i) const noexcept;

  bool across_epochs_ = false;
  std::uint64_t all_ = 0;     ///< elements of an epoch
  std::uint64_t length_ = 0;  ///< elements of the share in an epoch, without across_epochs_
  std::uint64_t offset_ = 0, step_ = 1, block_ = 1, seed_ = 0, window_ = 1;
  List list_;
  std::shared_ptr<const Mixture> mixture_;
  lmdbio_ordinal_func* function_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace lmdbio::records
