/// @file
/// The orders of lmdbio.h for C++20: which records a stream returns, and in which sequence.  Header-only.
#pragma once

#if __cplusplus < 202002L
#error "lmdbio/order.h needs C++20 (-std=c++20); lmdbio/lmdbio.h has the same for C and for older C++"
#endif

#include <lmdbio/lmdbio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace lmdbio {

/// A position in a stream: an epoch, and a position in the stream's share of this epoch.
struct Position {
  std::uint64_t epoch = 0, position = 0;
  friend bool operator==(const Position&, const Position&) = default;
};

/// An order of records; see lmdbio_order for its fields.  By default, a stream reads all records once, in key
/// order, one record per batch.
struct Order : lmdbio_order {
  Order() noexcept : lmdbio_order{} { size = sizeof(lmdbio_order); }
  /// Makes an order of all records in key order.
  /// @param batch_records  records per batch, at least 1
  static Order sequential(std::uint64_t batch_records = 1) noexcept {
    return with(LMDBIO_ORDER_SEQUENTIAL, batch_records);
  }
  /// Makes a shuffled order of all records, which differs for each seed and epoch.
  /// @param seed_of_all    any number
  /// @param batch_records  records per batch, at least 1
  static Order shuffled(std::uint64_t seed_of_all, std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_SHUFFLE, batch_records);
    o.seed = seed_of_all;
    return o;
  }
  /// Makes an order of all records in key order, but shuffled within each window.
  /// @param seed_of_all     any number
  /// @param window_records  records per window, at least 1
  /// @param batch_records   records per batch, at least 1
  static Order window_shuffled(std::uint64_t seed_of_all, std::uint64_t window_records,
                               std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_WINDOW_SHUFFLE, batch_records);
    o.seed = seed_of_all;
    o.window = window_records;
    return o;
  }
  /// Makes an order of the records with these ordinals.
  /// @param ordinals       must stay valid until Reader::stream has copied them
  /// @param batch_records  records per batch, at least 1
  static Order of(std::span<const std::uint64_t> ordinals, std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_LIST, batch_records);
    o.list = ordinals.data();
    o.length = ordinals.size();
    return o;
  }
  /// Makes an order of the records with these keys.
  /// @param wanted         must stay valid until Reader::stream has copied the keys
  /// @param batch_records  records per batch, at least 1
  static Order of(std::span<const MDB_val> wanted, std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_KEYS, batch_records);
    o.keys = wanted.data();
    o.length = wanted.size();
    return o;
  }
  /// Makes an order of the records whose ordinals a function of the program returns.
  /// @param ordinal        the function; see lmdbio_ordinal_func
  /// @param context        passed to the function
  /// @param elements       number of elements per epoch
  /// @param batch_records  records per batch, at least 1
  static Order by(lmdbio_ordinal_func* ordinal, void* context, std::size_t elements,
                  std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_FUNCTION, batch_records);
    o.function = ordinal;
    o.function_context = context;
    o.length = elements;
    return o;
  }
  /// Makes a shuffled order of the records of several databases, in proportion to weights; see
  /// lmdbio_order::weights.
  /// @param of_databases   one weight for each database; must stay valid until Reader::stream has copied them
  /// @param seed_of_all    any number
  /// @param batch_records  records per batch, at least 1
  /// @param elements       elements per epoch; 0: the number of records
  static Order mixed(std::span<const double> of_databases, std::uint64_t seed_of_all,
                     std::uint64_t batch_records = 1, std::size_t elements = 0) noexcept {
    Order o = with(LMDBIO_ORDER_MIXED, batch_records);
    o.weights = of_databases.data();
    o.weights_count = of_databases.size();
    o.seed = seed_of_all;
    o.length = elements;
    return o;
  }
  /// Selects the share of a rank: the blocks rank, rank + ranks, rank + 2 ranks, ... of the order.  By
  /// default, a block has `batch` elements, so that rank r of n reads the batches r, r + n, r + 2 n, ... of
  /// the whole order.  Set `batch` before this call.
  /// @param rank            number of the share, less than `ranks`
  /// @param ranks           number of shares, at least 1
  /// @param block_elements  elements per block; 0: records per batch
  /// @return this order.
  Order& share(std::uint64_t rank, std::uint64_t ranks, std::uint64_t block_elements = 0) noexcept {
    offset = rank;
    step = ranks;
    block = block_elements != 0 ? block_elements : batch;
    return *this;
  }
  /// Selects the share of a rank from the sequence of all epochs; see lmdbio_order::across_epochs.  With
  /// block_elements = 1, the share is the elements rank, rank + ranks, rank + 2 ranks, ...  Some programs,
  /// for example Caffe, read in this order: they skip the records of other ranks, and start again at the end.
  /// @param rank            number of the share, less than `ranks`
  /// @param ranks           number of shares, at least 1
  /// @param block_elements  elements per block; 0: records per batch
  /// @return this order.
  Order& share_across_epochs(std::uint64_t rank, std::uint64_t ranks,
                             std::uint64_t block_elements = 0) noexcept {
    across_epochs = 1;
    return share(rank, ranks, block_elements);
  }
  /// Sets the end: the stream ends before epoch `epochs`.  If it begins with epoch 0, it reads this many
  /// epochs.  resume() does not change the end.
  /// @param epochs  at least 1; LMDBIO_ENDLESS: the stream never ends
  /// @return this order.
  Order& repeat(std::uint64_t epochs = LMDBIO_ENDLESS) noexcept {
    end_epoch = epochs;
    return *this;
  }
  /// Sets the start, for example to the Stream::position() of an earlier stream.  The stream is empty if the
  /// start is not before the end that repeat() has set.
  /// @param first_epoch     the first epoch to read
  /// @param first_position  number of records of the share that are skipped in this epoch
  /// @return this order.
  Order& resume(std::uint64_t first_epoch, std::uint64_t first_position = 0) noexcept {
    epoch = first_epoch;
    position = first_position;
    return *this;
  }
  Order& resume(const Position& start) noexcept { return resume(start.epoch, start.position); }

 private:
  static Order with(lmdbio_order_kind k, std::uint64_t batch_records) noexcept {
    Order o;
    o.kind = k;
    o.batch = batch_records;
    return o;
  }
};

}  // namespace lmdbio
