// Orders of records: pure functions of the place in a sequence, so that a job can go on anywhere.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <vector>

#include "lmdbio/base/result.h"

namespace lmdbio::reader {

/// Element `i` of a permutation of 0 to `count` - 1, another one for each seed and epoch.  Frozen: jobs
/// resume by it, and ranks agree on it; docs/format.md says how it is made.  `i` is below `count`.
std::uint64_t shuffle(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count, std::uint64_t i) noexcept;

/// What a lmdbio_order says, for a database of so many records.  Constant once made; any thread.
class Order {
 public:
  /// Copies the list.  EINVAL: a field out of its range, an ordinal of the list among them; `wrong` (may be
  /// null) then gets its name and what it has to be, a constant.  ENOMEM.
  static Result<Order> make(const lmdbio_order& order, std::uint64_t records,
                            const char** wrong = nullptr) noexcept;

  /// Records in an epoch's sequence, the same for all epochs.
  std::uint64_t length() const noexcept { return length_; }
  /// The record at a place of an epoch's sequence, below length(): its ordinal; with by_key() the index of
  /// its key.
  std::uint64_t at(std::uint64_t epoch, std::uint64_t position) const noexcept;
  bool by_key() const noexcept { return kind_ == LMDBIO_ORDER_KEYS; }
  /// Records that lie next to each other in the database mostly follow each other.
  bool in_order() const noexcept;

 private:
  Order() = default;
  lmdbio_order_kind kind_ = LMDBIO_ORDER_SEQUENTIAL;
  std::uint64_t all_ = 0;     ///< places before offset and step choose among them
  std::uint64_t length_ = 0;  ///< chosen
  std::uint64_t offset_ = 0, step_ = 1, seed_ = 0, window_ = 1;
  std::vector<std::uint64_t> list_;
};

}  // namespace lmdbio::reader
