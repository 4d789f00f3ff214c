// Orders of records: pure functions of the place in a sequence, so that a job can go on anywhere.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lmdbio/base/result.h"

namespace lmdbio::records {

/// Element `i` of a permutation of 0 to `count` - 1, another one for each seed and epoch.  Frozen: jobs
/// resume by it, and ranks agree on it; docs/format.md says how it is made.  `i` is below `count`.
std::uint64_t shuffle(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count, std::uint64_t i) noexcept;
/// The i for which shuffle() gives `x`, which is below `count`.
std::uint64_t unshuffle(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count,
                        std::uint64_t x) noexcept;

/// A place in an order: as lmdbio_order's fields of these names.
struct Spot {
  std::uint64_t epoch = 0, position = 0;
  friend bool operator==(const Spot&, const Spot&) = default;
};

/// What a lmdbio_order says, for a database of so many records.  Constant once made; any thread.
class Order {
 public:
  using List = std::shared_ptr<const std::vector<std::uint64_t>>;
  /// `list`: of the order, if somebody has a copy of it; else it is copied.  EINVAL: a field out of its
  /// range, an ordinal of the list among them; `wrong` (may be null) then gets its name and what it has to
  /// be, a constant.  ENOMEM.
  static Result<Order> make(const lmdbio_order& order, std::uint64_t records, const char** wrong = nullptr,
                            List list = nullptr) noexcept;

  /// Records in an epoch's sequence.  Without across_epochs() the same for all epochs.
  std::uint64_t length(std::uint64_t epoch = 0) const noexcept;
  /// The record at a position of an epoch's sequence, below length(epoch): its ordinal; with by_key() the
  /// index of its key.  With across_epochs() positions beyond that are of the epochs that follow.
  std::uint64_t at(std::uint64_t epoch, std::uint64_t position) const noexcept;
  /// Which element of the kind's order that is, before offset, step and block choose among them, and of which
  /// epoch's.
  Spot element(std::uint64_t epoch, std::uint64_t position) const noexcept;
  /// The ordinal of an element of an epoch, below elements(); with by_key() the index of its key.
  std::uint64_t record(std::uint64_t epoch, std::uint64_t element) const noexcept;
  /// Elements of an epoch, before offset, step and block choose.
  std::uint64_t elements() const noexcept { return all_; }
  /// Which element of an epoch's order, before offset, step and block choose, is the record `ordinal`, below
  /// the number of records.  None: lists and functions, in which a record may be any number of times.
  std::optional<std::uint64_t> element_of(std::uint64_t epoch, std::uint64_t ordinal) const noexcept;
  /// Where that element is: none if offset, step and block do not choose it.  Its position in its epoch's
  /// sequence, or with across_epochs() counted as normal() does.
  std::optional<Spot> position_of(std::uint64_t epoch, std::uint64_t element) const noexcept;
  /// With across_epochs(): the same record's place, with a position below its epoch's length.  There has to
  /// be an element: not for length 0.
  Spot normal(Spot s) const noexcept;
  /// With across_epochs(): how many records there are from `s` to the end of epoch `last`; at most
  /// UINT64_MAX.
  std::uint64_t left(Spot s, std::uint64_t last) const noexcept;
  /// With across_epochs(): how many records lie between two places, at most UINT64_MAX; none: `to` comes
  /// first.
  std::optional<std::uint64_t> distance(Spot from, Spot to) const noexcept;
  /// Positions of an epoch's sequence that are elements below `elements`.
  std::uint64_t positions_below(std::uint64_t epoch, std::uint64_t elements) const noexcept;
  /// Becomes the share of another rank.
  void set_offset(std::uint64_t offset) noexcept {
    offset_ = offset;
    length_ = static_cast<std::uint64_t>(chosen(all_));
  }
  /// The share of another rank.
  Order with_offset(std::uint64_t offset) const noexcept {
    Order other = *this;
    other.set_offset(offset);
    return other;
  }
  /// Epoch follows epoch in one sequence, from which offset, step and block choose.
  bool across_epochs() const noexcept { return across_epochs_; }
  /// Each epoch has the same records at the same positions.
  bool repeats() const noexcept {
    return (kind_ == LMDBIO_ORDER_SEQUENTIAL || kind_ == LMDBIO_ORDER_LIST || kind_ == LMDBIO_ORDER_KEYS) &&
           (!across_epochs_ || Wide{all_} % (Wide{step_} * block_) == 0);
  }
  /// Of a list; else null.
  const List& list() const noexcept { return list_; }
  /// There are no records.
  bool empty() const noexcept { return across_epochs_ ? all_ == 0 : length_ == 0; }
  bool by_key() const noexcept { return kind_ == LMDBIO_ORDER_KEYS; }
  /// Records that lie next to each other in the database mostly follow each other.
  bool in_order() const noexcept;

 private:
  Order() = default;
  lmdbio_order_kind kind_ = LMDBIO_ORDER_SEQUENTIAL;
  /// Wide enough for any epoch times any length.
  __extension__ using Wide = unsigned __int128;
  /// How many of the first `elements` elements are chosen.
  Wide chosen(Wide elements) const noexcept;
  /// With across_epochs_: how many chosen ones lie before that epoch.
  Wide before(Wide epoch) const noexcept { return chosen(epoch * all_); }

  bool across_epochs_ = false;
  std::uint64_t all_ = 0;     ///< elements of an epoch before offset, step and block choose among them
  std::uint64_t length_ = 0;  ///< chosen, without across_epochs_
  std::uint64_t offset_ = 0, step_ = 1, block_ = 1, seed_ = 0, window_ = 1;
  List list_;
  lmdbio_ordinal_func* function_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace lmdbio::records
