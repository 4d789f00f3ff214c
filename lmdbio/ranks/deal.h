// Which rank uses which record of an order, and which rank reads it: pure functions of what all ranks know,
// so that nobody has to ask.
//
// Rounds.  The elements of an epoch's order are cut into rounds of equally many, and the records of each
// round into as many parts as there are readers.  A part is read by one rank, in large requests, and each of
// its records goes to the rank whose share has it.  A round never reaches over the end of an epoch; a batch
// may have records of several rounds.
//
// In orders whose neighbours lie next to each other in the file, a round's elements are also its ordinals,
// and its parts follow each other.  In scattered orders (shuffles of all records, lists, functions) each
// reader has blocks of ordinals whose records it reads in all rounds and epochs, so that each record comes
// from the memory of one node.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/records/order.h"

namespace lmdbio::ranks {

/// All that can be kept of an epoch is divided into so many parts.
inline constexpr unsigned kKeptParts = 8;

/// How the batches of all ranks follow from one order.
enum class Assignment : unsigned char {
  strided,     ///< rank r of P uses elements r, r + P, r + 2 P, ...
  contiguous,  ///< rank r of P uses batches r, r + P, r + 2 P, ...
};

/// What all ranks know of a stream.
struct Job {
  lmdbio_order order{};  ///< of the whole job: offset 0, step 0 or 1, block 0 or 1; `batch`: of one rank
  Assignment assignment = Assignment::strided;
  std::uint32_t ranks = 1, readers = 1;
  std::uint64_t round_records = 1;  ///< of a round, about
  /// The same of scattered orders; 0: they have no rounds.
  std::uint64_t scattered_records = 0;
  /// Ranks keep what they were sent of the first rounds of each epoch, so many kKeptParts-ths of all rounds,
  /// if their shares are the same in each epoch.  It is not sent again.
  unsigned kept_parts = 0;
  /// Where each rank's share begins, if they do not all begin at order.epoch and order.position: ranks that
  /// go on where they stopped.  The job ends before records::end_epoch(order).
  std::shared_ptr<const std::vector<records::Spot>> starts;
  records::Order::List list;  ///< of the order; null: it is copied
};

/// The ranks that read for all: the first ones of each node, at most `per_node` of it and at least one, by
/// rank.  `nodes`: the node of each rank, from 0.  May throw bad_alloc.
std::vector<std::uint32_t> choose_readers(std::span<const std::uint32_t> nodes, unsigned per_node);

/// [begin, end).
struct Range {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const noexcept { return end - begin; }
};

/// Constant once made; any thread.
class Deal {
 public:
  /// EINVAL: a field out of its range; `wrong` (may be null) then gets its name and what it has to be, a
  /// constant.  ENOMEM.
  static Result<Deal> make(const Job& job, std::uint64_t records, const char** wrong = nullptr) noexcept;

  std::uint32_t ranks() const noexcept { return job_.ranks; }
  std::uint32_t readers() const noexcept { return job_.readers; }
  /// The order of one rank, as lmdbio_stream_open takes it.
  /// List and keys are to be filled in.  May throw bad_alloc.
  lmdbio_order share(std::uint32_t rank) const;
  /// False: an order by keys, a scattered one that is not to be dealt, or no records.  Each rank reads its
  /// records itself, and nothing below can be asked.
  bool has_rounds() const noexcept { return round_records_ != 0; }
  bool is_scattered() const noexcept { return home_records_ != 0; }
  /// Shares are the same in each epoch, and ranks keep what they were sent of so many rounds, the first ones
  /// of an epoch.
  std::uint64_t kept_rounds() const noexcept { return kept_rounds_; }
  bool keeps(std::uint64_t round) const noexcept { return round % rounds_per_epoch() < kept_rounds_; }
  /// The rank keeps the round's records, has been sent all of them in an earlier epoch, and is sent none now.
  bool was_sent(std::uint32_t rank, std::uint64_t round) const noexcept {
    const records::Spot start = start_of(rank);
    const std::uint64_t epoch = epoch_of(round);
    return keeps(round) && epoch > start.epoch && epoch - start.epoch > (start.position != 0 ? 1 : 0);
  }
  /// From a round on that begins an epoch, the first one in which records may be sent; UINT64_MAX: there is
  /// none.
  std::uint64_t next_sent(std::uint64_t round) const noexcept;

  std::uint64_t rounds_per_epoch() const noexcept { return (whole_.elements() - 1) / round_records_ + 1; }
  /// Rounds count from 0 in epoch 0, and on over the ends of epochs.
  std::uint64_t epoch_of(std::uint64_t round) const noexcept { return round / rounds_per_epoch(); }
  std::uint64_t first_round(std::uint64_t epoch) const noexcept { return epoch * rounds_per_epoch(); }
  std::uint64_t round_of(std::uint64_t epoch, std::uint64_t element) const noexcept {
    return first_round(epoch) + element / round_records_;
  }
  /// Elements of the order; unless it is scattered also ordinals, in another order among themselves.
  Range elements(std::uint64_t round) const noexcept;
  /// Of an order that is not scattered, part `part`, below readers(), of a round: ordinals.
  Range part(std::uint64_t round, std::uint32_t part) const noexcept;
  std::uint32_t part_of(std::uint64_t round, std::uint64_t ordinal) const noexcept;
  /// Of a round, the part that reader `reader` (below readers()) reads: another one each round of an epoch,
  /// and the same records in each epoch, which its node may have kept.
  std::uint32_t part_read_by(std::uint64_t round, std::uint32_t reader) const noexcept {
    return static_cast<std::uint32_t>((reader + turn_of(round)) % job_.readers);
  }
  std::uint32_t reader_of(std::uint64_t round, std::uint32_t part) const noexcept {
    return static_cast<std::uint32_t>((part + job_.readers - turn_of(round) % job_.readers) % job_.readers);
  }

  struct Need {
    std::uint64_t ordinal;
    std::uint32_t rank;
  };
  /// The records of a part that are sent, by ordinal; those that several ranks, or batches, have are there as
  /// often.  Records that only fill a batch up (LMDBIO_LAST_PAD) are not sent: each rank reads these itself.
  /// Nor are ordinals that a function must not return.  The time it takes is proportional to the part; in a
  /// scattered order to the whole round, or to the records of one reader if these are fewer.  May throw
  /// bad_alloc.
  void needs(std::uint64_t round, std::uint32_t part, std::vector<Need>& out) const;
  /// Of a rank's share in the epoch of a round, the positions that are in the round, also of records that are
  /// not sent.
  Range positions(std::uint32_t rank, std::uint64_t round) const;
  /// Of a scattered order, the blocks of ordinals that a reader reads always: how many, and each of them.
  std::uint64_t home_blocks(std::uint32_t reader) const noexcept;
  Range home_block(std::uint32_t reader, std::uint64_t i) const noexcept;
  /// Each epoch of the order has all records.
  bool has_all_records() const noexcept {
    return job_.order.kind != LMDBIO_ORDER_LIST && job_.order.kind != LMDBIO_ORDER_FUNCTION;
  }
  /// Of a round of any rank, at most.
  std::uint64_t most_positions() const noexcept;
  /// Ranks may have different functions, and then different orders.
  bool by_function() const noexcept { return job_.order.kind == LMDBIO_ORDER_FUNCTION; }
  bool is_record(std::uint64_t ordinal) const noexcept { return ordinal < records_; }
  /// A rank's batches have the record at that place of its share, and not as padding.
  bool is_needed(std::uint32_t rank, const records::Order& share, records::Spot at) const noexcept;
  records::Spot start_of(std::uint32_t rank) const noexcept {
    return job_.starts != nullptr ? (*job_.starts)[rank]
                                  : records::Spot{job_.order.epoch, job_.order.position};
  }
  records::Order order_of(std::uint32_t rank) const noexcept { return share_.with_offset(rank); }

  /// Of all ranks' starts, the earliest.
  std::uint64_t first_epoch() const noexcept { return first_epoch_; }
  /// UINT64_MAX: there is no end.
  std::uint64_t last_epoch() const noexcept;

 private:
  Deal(Job job, std::uint64_t records, records::Order whole, records::Order share) noexcept
      : job_(std::move(job)), records_(records), whole_(std::move(whole)), share_(std::move(share)) {}
  std::uint64_t turn_of(std::uint64_t round) const noexcept {
    return is_scattered() ? 0 : round % rounds_per_epoch();
  }
  void keep_rounds() noexcept;
  /// `share`: the order of any rank.
  void need(std::uint64_t round, std::uint64_t element, std::uint64_t ordinal, records::Order& share,
            std::vector<Need>& out) const;

  Job job_;
  std::uint64_t records_;
  std::uint64_t round_records_ = 0, first_epoch_ = 0;
  std::uint64_t home_records_ = 0;  ///< of a block that one reader reads always; 0: not scattered
  std::uint64_t kept_rounds_ = 0;
  records::Order whole_, share_;  ///< of all ranks; of rank 0
};

}  // namespace lmdbio::ranks
