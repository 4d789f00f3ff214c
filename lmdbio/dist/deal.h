// Which rank uses which record of an order, and which rank reads it: pure functions of what all ranks know,
// so that nobody has to ask.
//
// Rounds.  The records of an epoch are cut, by ordinal, into rounds of equally many records, and each round
// into as many parts as there are readers.  A part is read by one rank, in large requests, and each of its
// records goes to the rank whose share has it.  A round never reaches over the end of an epoch; a batch may
// have records of several rounds.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/reader/order.h"

namespace lmdbio::dist {

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
  /// Where each rank's share begins, if they do not all begin at order.epoch and order.position: ranks that
  /// go on where they stopped.  The job ends with epoch order.epoch + order.epochs - 1.
  std::shared_ptr<const std::vector<reader::Spot>> starts;
};

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
  /// False: an order whose neighbours do not lie next to each other, or no records.  Each rank reads its
  /// records itself, and nothing below can be asked.
  bool has_rounds() const noexcept { return round_records_ != 0; }

  std::uint64_t rounds_per_epoch() const noexcept { return (records_ + round_records_ - 1) / round_records_; }
  /// Rounds count from 0 in epoch 0, and on over the ends of epochs.
  std::uint64_t epoch_of(std::uint64_t round) const noexcept { return round / rounds_per_epoch(); }
  std::uint64_t first_round(std::uint64_t epoch) const noexcept { return epoch * rounds_per_epoch(); }
  std::uint64_t round_of(std::uint64_t epoch, std::uint64_t ordinal) const noexcept {
    return first_round(epoch) + ordinal / round_records_;
  }
  /// Ordinals; also the elements of the order, in another order among themselves.
  Range records(std::uint64_t round) const noexcept;
  /// Part `part`, below readers(), of a round: ordinals.
  Range part(std::uint64_t round, std::uint32_t part) const noexcept;
  std::uint32_t part_of(std::uint64_t round, std::uint64_t ordinal) const noexcept;
  /// Of a round, the part that reader `reader` (below readers()) reads: another one each round of an epoch,
  /// and the same records in each epoch, which its node may have kept.
  std::uint32_t part_read_by(std::uint64_t round, std::uint32_t reader) const noexcept {
    return static_cast<std::uint32_t>((reader + round % rounds_per_epoch()) % job_.readers);
  }
  std::uint32_t reader_of(std::uint64_t round, std::uint32_t part) const noexcept {
    return static_cast<std::uint32_t>((part + job_.readers - round % rounds_per_epoch() % job_.readers) %
                                      job_.readers);
  }

  struct Need {
    std::uint64_t ordinal;
    std::uint32_t rank;
  };
  /// The records of a part that are in the batches of a rank, by ordinal.  Not those that only fill a batch
  /// up (LMDBIO_LAST_PAD): each rank reads these itself.  May throw bad_alloc.
  void needs(std::uint64_t round, std::uint32_t part, std::vector<Need>& out) const;
  /// Positions of a rank's share in the epoch of a round that are in the round: their records, those that
  /// needs() leaves out among them.
  Range positions(std::uint32_t rank, std::uint64_t round) const;
  /// A rank's batches have the record at that place of its share, and not as padding.
  bool is_needed(std::uint32_t rank, const reader::Order& share, reader::Spot at) const noexcept;
  reader::Spot start_of(std::uint32_t rank) const noexcept {
    return job_.starts != nullptr ? (*job_.starts)[rank]
                                  : reader::Spot{job_.order.epoch, job_.order.position};
  }
  /// May throw bad_alloc.
  reader::Order order_of(std::uint32_t rank) const { return share_.with_offset(rank); }

  /// Of all ranks' starts, the earliest.
  std::uint64_t first_epoch() const noexcept { return first_epoch_; }
  /// UINT64_MAX: there is no end.
  std::uint64_t last_epoch() const noexcept;

 private:
  Deal(Job job, std::uint64_t records, reader::Order whole, reader::Order share) noexcept
      : job_(std::move(job)), records_(records), whole_(std::move(whole)), share_(std::move(share)) {}

  Job job_;
  std::uint64_t records_;
  std::uint64_t round_records_ = 0, first_epoch_ = 0;
  reader::Order whole_, share_;  ///< of all ranks; of rank 0
};

}  // namespace lmdbio::dist
