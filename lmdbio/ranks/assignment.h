// Assigns the records of an order to the ranks that read them and to the ranks that use them.  All functions
// are pure: every rank computes the same assignment from the same facts, so no rank has to ask another.
//
// Rounds.  The elements of an epoch's order are divided into rounds of equal size.  The records of a round
// are divided into one part for each reader.  One rank reads a part, in large requests, and each record is
// sent to the rank whose share contains it.  A round never extends beyond the end of an epoch.  A batch may
// contain records of several rounds.
//
// In orders whose neighbouring elements are neighbours in the file, the elements of a round are also its
// ordinals, and its parts are consecutive ranges.  In scattered orders (shuffles of all records, lists,
// functions) each reader has owner blocks: blocks of ordinals whose records it reads in all rounds and
// epochs.  So each record comes from the memory of one node.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/records/order.h"

namespace lmdbio::ranks {

/// Rounds are kept in memory in parts: each part is one kKeptParts-th of the rounds of an epoch.
inline constexpr unsigned kKeptParts = 8;

/// How the elements of one order are divided into the batches of all ranks.
enum class Distribution : unsigned char {
  strided,     ///< rank r of P uses elements r, r + P, r + 2 P, ...
  contiguous,  ///< rank r of P uses batches r, r + P, r + 2 P, ...
};

/// The facts about a stream that all ranks know.
struct Job {
  lmdbio_order order{};  ///< of the whole job: offset 0, step 0 or 1, block 0 or 1; `batch`: of one rank
  Distribution distribution = Distribution::strided;
  std::uint32_t ranks = 1, readers = 1;
  std::uint64_t round_records = 1;  ///< records of a round, approximately
  /// The same for scattered orders.  0: scattered orders have no rounds.
  std::uint64_t scattered_records = 0;
  /// Ranks keep the records that they receive for the first rounds of each epoch, and these records are not
  /// sent again.  In kKeptParts-ths of all rounds.  Without effect if the shares differ between epochs.
  unsigned kept_parts = 0;
  /// Where each rank's share begins.  Null: all shares begin at order.epoch and order.position.  Set for
  /// ranks that continue where they stopped.  The job ends before records::end_epoch(order).
  std::shared_ptr<const std::vector<records::Position>> starts;
  records::Order::List list;  ///< of the order; null: the list in `order` is copied
};

/// Chooses the ranks that read for all others: the first ranks of each node, at most `per_node` of each node
/// but at least one.  Returns them sorted by rank.  `nodes`: the node of each rank, counted from 0.  May
/// throw bad_alloc.
std::vector<std::uint32_t> choose_readers(std::span<const std::uint32_t> nodes, unsigned per_node);

/// The numbers from `begin` to `end` - 1.
struct Range {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const noexcept { return end - begin; }
};

/// The assignment of a stream's records to readers and ranks.  Constant after make().  Any thread may call
/// it.
class Assignment {
 public:
  /// Computes the assignment.  EINVAL: a field is out of its range; `wrong` (may be null) then points to a
  /// constant text that names the field and its valid values.  ENOMEM.
  static Result<Assignment> make(const Job& job, std::uint64_t records,
                                 const char** wrong = nullptr) noexcept;

  std::uint32_t ranks() const noexcept { return job_.ranks; }
  std::uint32_t readers() const noexcept { return job_.readers; }
  /// Returns the order of one rank, as lmdbio_stream_open takes it.  The caller fills in the list or the
  /// keys.  May throw bad_alloc.
  lmdbio_order share(std::uint32_t rank) const;
  /// Returns whether the order has rounds.  False for an order by keys, for a scattered order that the ranks
  /// do not read for each other, and without records.  Each rank then reads its own records, and the
  /// functions below must not be called.
  bool has_rounds() const noexcept { return round_records_ != 0; }
  bool is_scattered() const noexcept { return owner_block_records_ != 0; }
  /// Returns how many rounds of each epoch the ranks keep: the first ones.  0 if shares differ between
  /// epochs.
  std::uint64_t kept_rounds() const noexcept { return kept_rounds_; }
  bool keeps(std::uint64_t round) const noexcept { return round % rounds_per_epoch() < kept_rounds_; }
  /// Returns whether the rank keeps the records of this round and has received all of them in an earlier
  /// epoch.  They are not sent to it in this epoch.
  bool was_sent(std::uint32_t rank, std::uint64_t round) const noexcept {
    const records::Position start = start_of(rank);
    const std::uint64_t epoch = epoch_of(round);
    return keeps(round) && epoch > start.epoch && epoch - start.epoch > (start.position != 0 ? 1 : 0);
  }
  /// Returns the first round in which records may be sent, from `round` on.  `round` must be the first one
  /// of an epoch.  UINT64_MAX: there is none.
  std::uint64_t next_sent(std::uint64_t round) const noexcept;

  std::uint64_t rounds_per_epoch() const noexcept { return (whole_.elements() - 1) / round_records_ + 1; }
  /// Rounds are counted from 0 at the begin of epoch 0, and continue over the ends of epochs.
  std::uint64_t epoch_of(std::uint64_t round) const noexcept { return round / rounds_per_epoch(); }
  std::uint64_t first_round(std::uint64_t epoch) const noexcept { return epoch * rounds_per_epoch(); }
  std::uint64_t round_of(std::uint64_t epoch, std::uint64_t element) const noexcept {
    return first_round(epoch) + element / round_records_;
  }
  /// Returns the elements of the order that are in the round.  Unless the order is scattered, these numbers
  /// are also the round's ordinals, but in another sequence.
  Range elements(std::uint64_t round) const noexcept;
  /// Returns the ordinals of part `part` (below readers()) of a round.  Not for scattered orders.
  Range part(std::uint64_t round, std::uint32_t part) const noexcept;
  std::uint32_t part_of(std::uint64_t round, std::uint64_t ordinal) const noexcept;
  /// Returns the part of a round that reader `reader` (below readers()) reads.  A reader reads another part
  /// in each round of an epoch, but the same records in each epoch, since its node may have cached them.  In
  /// a scattered order, it always reads the part with its own number.
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
  /// Sets `out` to the records of a part that are sent, sorted by ordinal.  A record that several ranks or
  /// batches use is contained once for each use.  Not contained are records that only fill up a batch
  /// (LMDBIO_LAST_PAD), which each rank reads itself, and invalid ordinals that a function returned.  The
  /// time is proportional to the size of the part.  In a scattered order, it is proportional to the round or
  /// to the owner blocks of one reader, whichever is smaller.  May throw bad_alloc.
  void needs(std::uint64_t round, std::uint32_t part, std::vector<Need>& out) const;
  /// Returns the positions of a rank's share that lie in a round, in the round's epoch.  They include
  /// records that are not sent.
  Range positions(std::uint32_t rank, std::uint64_t round) const;
  /// Owner blocks of a reader in a scattered order: the blocks of ordinals that this reader always reads.
  /// Returns their number, or the ordinals of block `i`.
  std::uint64_t owner_blocks(std::uint32_t reader) const noexcept;
  Range owner_block(std::uint32_t reader, std::uint64_t i) const noexcept;
  /// Returns whether each epoch of the order contains all records.
  bool has_all_records() const noexcept {
    return job_.order.kind != LMDBIO_ORDER_LIST && job_.order.kind != LMDBIO_ORDER_FUNCTION;
  }
  /// Returns an upper limit for the positions that any rank has in one round.
  std::uint64_t most_positions() const noexcept;
  /// Returns whether the order is a function.  Ranks may have different functions, and then different
  /// orders.
  bool by_function() const noexcept { return job_.order.kind == LMDBIO_ORDER_FUNCTION; }
  bool is_record(std::uint64_t ordinal) const noexcept { return ordinal < records_; }
  /// Returns whether a batch of the rank contains the record at this position of its share, other than as
  /// padding.
  bool is_needed(std::uint32_t rank, const records::Order& share, records::Position at) const noexcept;
  records::Position start_of(std::uint32_t rank) const noexcept {
    return job_.starts != nullptr ? (*job_.starts)[rank]
                                  : records::Position{job_.order.epoch, job_.order.position};
  }
  records::Order order_of(std::uint32_t rank) const noexcept { return share_.with_offset(rank); }

  /// Returns the earliest epoch in which a rank's share begins.
  std::uint64_t first_epoch() const noexcept { return first_epoch_; }
  /// UINT64_MAX: the order has no end.
  std::uint64_t last_epoch() const noexcept;

 private:
  Assignment(Job job, std::uint64_t records, records::Order whole, records::Order share) noexcept
      : job_(std::move(job)), records_(records), whole_(std::move(whole)), share_(std::move(share)) {}
  std::uint64_t turn_of(std::uint64_t round) const noexcept {
    return is_scattered() ? 0 : round % rounds_per_epoch();
  }
  void keep_rounds() noexcept;
  /// `share`: the order of any rank; its offset is changed.
  void need(std::uint64_t round, std::uint64_t element, std::uint64_t ordinal, records::Order& share,
            std::vector<Need>& out) const;

  Job job_;
  std::uint64_t records_;
  std::uint64_t round_records_ = 0, first_epoch_ = 0;
  std::uint64_t owner_block_records_ = 0;  ///< records of an owner block; 0: not scattered
  std::uint64_t kept_rounds_ = 0;
  records::Order whole_, share_;  ///< orders of all ranks; of rank 0
};

}  // namespace lmdbio::ranks
