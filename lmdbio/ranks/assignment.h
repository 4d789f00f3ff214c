// Assigns the records of an order to the ranks that read them and to the ranks that use them.  All functions
// are pure.  Every rank computes the same assignment from the same facts, without messages.
//
// Rounds.  The elements of an epoch's order are divided into rounds of equal size.  The records of a round
// are divided into one part for each reader.  One rank reads a part, in large requests, and sends each record
// to the rank whose share contains it.  A round never extends beyond the end of an epoch.  A batch may
// contain records of several rounds.
//
// There are two kinds of orders.  In the first kind, neighbouring elements are neighbours in the file.  The
// elements of a round are then also its ordinals, and its parts are consecutive ranges.  Scattered orders are
// shuffles of all records, lists and functions.  In a scattered order, each reader has owner blocks.  These
// are blocks of ordinals whose records this reader reads in all rounds and epochs, so that each record is
// cached on one node only.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/records/order.h"

namespace lmdbio::ranks {

/// A rank keeps rounds in memory in units of one kKeptParts-th of the rounds of an epoch.
inline constexpr unsigned kKeptParts = 8;

/// Says how the elements of an order are divided into the batches of all ranks.
enum class Distribution : unsigned char {
  strided,     ///< rank r of P uses elements r, r + P, r + 2 P, ...
  contiguous,  ///< rank r of P uses batches r, r + P, r + 2 P, ...
};

/// The facts about a stream that all ranks know.
struct Job {
  lmdbio_order order{};  ///< order of the whole job: offset 0, step 0 or 1, block 0 or 1; `batch` is that of
                         ///< one rank
  Distribution distribution = Distribution::strided;
  std::uint32_t ranks = 1, readers = 1;
  std::uint64_t round_records = 1;  ///< records of a round, approximately
  /// Records of a round of a scattered order, approximately.  0: scattered orders have no rounds.
  std::uint64_t scattered_records = 0;
  /// How many of the first rounds of an epoch the ranks keep, in kKeptParts-ths of all rounds.  Each rank
  /// keeps the records that it receives for these rounds, and they are not sent again in later epochs.  Has
  /// no effect if the shares differ between epochs.
  unsigned kept_parts = 0;
  /// The start of each rank's share, if ranks resume at different positions.  Null: all shares begin at
  /// order.epoch and order.position.  The job ends before records::end_epoch(order).
  std::shared_ptr<const std::vector<records::Position>> starts;
  records::Order::List list;  ///< list of the order; if null, make() copies the list in `order`
};

/// Chooses the ranks that read for all others: the first `per_node` ranks of each node, but at least one.
/// Returns them sorted by rank.  `nodes`: the node of each rank, counted from 0.  May throw bad_alloc.
std::vector<std::uint32_t> choose_readers(std::span<const std::uint32_t> nodes, unsigned per_node);

/// The numbers from `begin` to `end` - 1.
struct Range {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const noexcept { return end - begin; }
};

/// The assignment of a stream's records to readers and ranks.  Immutable after make().  Any thread.
class Assignment {
 public:
  /// Computes the assignment.  EINVAL: a field is out of range.  In this case, sets `wrong` (unless it is
  /// null) to a constant text that names the field and its valid values.  ENOMEM.
  static Result<Assignment> make(const Job& job, std::uint64_t records,
                                 const char** wrong = nullptr) noexcept;

  std::uint32_t ranks() const noexcept { return job_.ranks; }
  std::uint32_t readers() const noexcept { return job_.readers; }
  /// Returns the order of one rank, in the form that lmdbio_stream_open takes.  The caller must fill in the
  /// list or the keys.  May throw bad_alloc.
  lmdbio_order share(std::uint32_t rank) const;
  /// Returns whether the order has rounds.  There are no rounds in three cases: the order is by keys, the
  /// order has no records, or it is a scattered order that the ranks do not read for each other.  Each rank
  /// then reads its own records, and the functions below must not be called.
  bool has_rounds() const noexcept { return round_records_ != 0; }
  bool is_scattered() const noexcept { return owner_block_records_ != 0; }
  /// Returns how many of the first rounds of each epoch the ranks keep.  Returns 0 if shares differ between
  /// epochs.
  std::uint64_t kept_rounds() const noexcept { return kept_rounds_; }
  bool keeps(std::uint64_t round) const noexcept { return round % rounds_per_epoch() < kept_rounds_; }
  /// Returns whether the rank keeps the records of this round and has received all of them in an earlier
  /// epoch.  They are then not sent to this rank in this epoch.
  bool was_sent(std::uint32_t rank, std::uint64_t round) const noexcept {
    const records::Position start = start_of(rank);
    const std::uint64_t epoch = epoch_of(round);
    return keeps(round) && epoch > start.epoch && epoch - start.epoch > (start.position != 0 ? 1 : 0);
  }
  /// Returns the first round from `round` on in which records may be sent.  Returns UINT64_MAX if there is
  /// none.  `round` must be the first round of an epoch.
  std::uint64_t next_sent(std::uint64_t round) const noexcept;

  std::uint64_t rounds_per_epoch() const noexcept { return (whole_.elements() - 1) / round_records_ + 1; }
  /// Returns the epoch of a round.  Rounds are numbered from 0 at the start of epoch 0, through all epochs.
  std::uint64_t epoch_of(std::uint64_t round) const noexcept { return round / rounds_per_epoch(); }
  std::uint64_t first_round(std::uint64_t epoch) const noexcept { return epoch * rounds_per_epoch(); }
  std::uint64_t round_of(std::uint64_t epoch, std::uint64_t element) const noexcept {
    return first_round(epoch) + element / round_records_;
  }
  /// Returns the numbers of the order's elements that are in the round.  Unless the order is scattered, the
  /// round's ordinals are the same numbers, but in another sequence.
  Range elements(std::uint64_t round) const noexcept;
  /// Returns the ordinals of part `part` (below readers()) of a round.  Not for scattered orders.
  Range part(std::uint64_t round, std::uint32_t part) const noexcept;
  std::uint32_t part_of(std::uint64_t round, std::uint64_t ordinal) const noexcept;
  /// Returns the part of a round that reader `reader` (below readers()) reads.  In an epoch, the part differs
  /// from round to round.  In all epochs, a reader reads the same records, since its node may have cached
  /// them.  In a scattered order, a reader always reads the part with its own number.
  std::uint32_t part_read_by(std::uint64_t round, std::uint32_t reader) const noexcept {
    return static_cast<std::uint32_t>((reader + turn_of(round)) % job_.readers);
  }
  std::uint32_t reader_of(std::uint64_t round, std::uint32_t part) const noexcept {
    return static_cast<std::uint32_t>((part + job_.readers - turn_of(round) % job_.readers) % job_.readers);
  }

  /// A record that is sent, and the rank that uses it.
  struct Need {
    std::uint64_t ordinal;
    std::uint32_t rank;
  };
  /// Sets `out` to the records of a part that are sent, sorted by ordinal.  `out` has a record once for each
  /// use by a rank or batch.  It has no records that only fill up a batch (LMDBIO_LAST_PAD), because each
  /// rank reads these records itself.  It has no invalid ordinals that a function returned.  The time is
  /// proportional to the size of the part.  In a scattered order, it is proportional to the smaller of two
  /// sizes: the round, and the owner blocks of one reader.  May throw bad_alloc.
  void needs(std::uint64_t round, std::uint32_t part, std::vector<Need>& out) const;
  /// Returns the positions of a rank's share that are in a round.  They belong to the round's epoch, and
  /// include records that are not sent.
  Range positions(std::uint32_t rank, std::uint64_t round) const;
  /// Return the number of owner blocks of a reader, and the ordinals of its owner block `i`.  Only for
  /// scattered orders.
  std::uint64_t owner_blocks(std::uint32_t reader) const noexcept;
  Range owner_block(std::uint32_t reader, std::uint64_t i) const noexcept;
  /// Returns whether each epoch of the order contains all records.
  bool has_all_records() const noexcept {
    return job_.order.kind != LMDBIO_ORDER_LIST && job_.order.kind != LMDBIO_ORDER_FUNCTION;
  }
  /// Returns an upper limit for the number of positions that a rank has in one round.
  std::uint64_t most_positions() const noexcept;
  /// Returns whether the order is a function.  Ranks may have different functions, and then different
  /// orders.
  bool by_function() const noexcept { return job_.order.kind == LMDBIO_ORDER_FUNCTION; }
  bool is_record(std::uint64_t ordinal) const noexcept { return ordinal < records_; }
  /// Returns whether a batch of the rank contains the record at this position of its share.  Padding does not
  /// count.
  bool is_needed(std::uint32_t rank, const records::Order& share, records::Position at) const noexcept;
  records::Position start_of(std::uint32_t rank) const noexcept {
    return job_.starts != nullptr ? (*job_.starts)[rank]
                                  : records::Position{job_.order.epoch, job_.order.position};
  }
  records::Order order_of(std::uint32_t rank) const noexcept { return share_.with_offset(rank); }

  /// Returns the earliest epoch in which a rank's share begins.
  std::uint64_t first_epoch() const noexcept { return first_epoch_; }
  /// Returns the last epoch, or UINT64_MAX if the order has no end.
  std::uint64_t last_epoch() const noexcept;

 private:
  Assignment(Job job, std::uint64_t records, records::Order whole, records::Order share) noexcept
      : job_(std::move(job)), records_(records), whole_(std::move(whole)), share_(std::move(share)) {}
  std::uint64_t turn_of(std::uint64_t round) const noexcept {
    return is_scattered() ? 0 : round % rounds_per_epoch();
  }
  void keep_rounds() noexcept;
  /// `share`: the order of any rank; the function changes its offset.
  void need(std::uint64_t round, std::uint64_t element, std::uint64_t ordinal, records::Order& share,
            std::vector<Need>& out) const;

  Job job_;
  std::uint64_t records_;
  std::uint64_t round_records_ = 0, first_epoch_ = 0;
  std::uint64_t owner_block_records_ = 0;  ///< records of an owner block; 0: not scattered
  std::uint64_t kept_rounds_ = 0;
  records::Order whole_, share_;  ///< order of all ranks together; order of rank 0
};

}  // namespace lmdbio::ranks
