// Makes the batches of one rank.  The ranks of a job read the records for each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/departure.h"
#include "lmdbio/ranks/kept_records.h"
#include "lmdbio/ranks/part_source.h"
#include "lmdbio/ranks/receiver.h"
#include "lmdbio/ranks/sender.h"
#include "lmdbio/ranks/transport.h"
#include "lmdbio/records/sequence.h"

namespace lmdbio::ranks {

/// A batch: its records, and the owners of their bytes.
struct RankBatch {
  std::vector<lmdbio_record> records;
  records::Position at;     ///< position of the first record
  std::size_t padding = 0;  ///< number of records at the end that only fill up the batch
  std::vector<std::shared_ptr<const void>> keep;
};

/// Reads, sends and receives the records of one stream.  One thread.  Assignment, transport, source and nodes
/// must outlive it.  The assignment must have rounds.  No call waits.  While a rank waits for a batch, it
/// must call next() again and again, since other ranks depend on its progress.
class RankStream {
 public:
  struct Settings {
    std::vector<std::uint32_t> reader_ranks;  ///< rank of each reader of the assignment
    unsigned ahead = 3;                       ///< number of rounds that are read, sent and received ahead
    Turns::Settings turns;
    std::span<const std::uint32_t> nodes;  ///< node of each rank, for traffic(); empty: a node per rank
    std::shared_ptr<PayloadMemory> memory = std::make_shared<PayloadMemory>();  ///< memory for messages
    /// Bytes of `memory` for records that are kept (Assignment::kept_rounds).
    std::uint64_t keeps = 0;
    double in_page_cache = 0;  ///< see Sender::use_page_cache
    /// True if no rank sends records to this rank.  This rank then reads its records itself, and keeps them
    /// if its share is the same in each epoch.  It still reads for the other ranks.
    bool takes_nothing = false;
  };
  /// EINVAL: a field of the order is invalid.  May throw bad_alloc.
  static Status open(const Assignment& assignment, const Settings& settings, Transport& transport,
                     PartSource& source, std::unique_ptr<RankStream>& out);
  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

  /// Reads, sends and receives ahead.  Never waits.  Errors are final.  May throw bad_alloc.
  Status progress(std::string& why);
  /// Returns the next batch.  EAGAIN: the batch is not complete yet.  MDB_NOTFOUND: the stream has ended.
  /// `why` describes other errors.  If a record could not be read, the next call tries again.  `impatient`:
  /// this rank reads the records itself that other ranks have not sent yet.  May throw bad_alloc.
  Status next(RankBatch& out, std::string& why, bool impatient = false);
  /// Returns the position of the next batch.
  records::Position position() const noexcept { return at_; }
  /// Ends the stream.  This rank needs no more batches, and reads nothing more for other ranks.  The other
  /// ranks read the records themselves that they have not received.  Waits for reads in flight, but not for
  /// other ranks.  The source may be destroyed afterwards.
  void leave() noexcept;
  /// Returns whether something is under way that advances only in calls of progress().
  bool busy() const noexcept {
    return receiver_.busy() || !reads_.empty() || (sender_ != nullptr && sender_->busy());
  }
  /// Returns whether nothing is under way, and no more messages follow.  progress() then only exchanges end
  /// messages.
  bool resting() const noexcept {
    return reads_.empty() && receiver_.resting() && (sender_ == nullptr || sender_->resting());
  }
  /// Returns whether memory is short for the next message.
  bool lacks_memory() const noexcept { return receiver_.lacks_memory(); }
  /// Returns whether this rank reads records of the next batch itself.
  bool reads_for_itself() const noexcept { return !reads_.empty(); }
  Traffic traffic() const noexcept;
  /// Returns a number that changes when a read has ended.
  std::uint64_t events() const noexcept { return own_ended_ + (sender_ != nullptr ? sender_->events() : 0); }
  /// Returns whether nothing is under way on any rank.  True only after the end of the stream or leave(), on
  /// all ranks.  Until it is true, call progress() and do not destroy this object.
  bool closed() const noexcept {
    return departure_.closed() && receiver_.closed() && (sender_ == nullptr || sender_->closed());
  }

 private:
  RankStream(const Assignment& assignment, const Settings& settings, Transport& transport, PartSource& source,
             records::Sequence sequence);
  /// Records of the next batch that this rank reads itself.
  struct OwnRead {
    std::vector<std::size_t> which;
    std::shared_ptr<PartRead> read;
    bool ended = false;  ///< progress() has counted it in own_ended_
  };
  bool collect(const records::BatchPlan& plan, bool impatient, std::vector<std::size_t>& missing);
  Status read_missing(const records::BatchPlan& plan, std::vector<std::size_t> missing, bool may_lend,
                      std::string& why);
  Status finish_reads(std::string& why);
  Status keep(const records::BatchPlan& plan, std::string& why);
  records::Position position_of(const records::BatchPlan& plan, std::size_t i) const noexcept;

  const Assignment& assignment_;
  PartSource& source_;
  const records::Sequence sequence_;
  const records::Order share_;
  Transport& transport_;
  std::unique_ptr<Sender> sender_;
  Receiver receiver_;
  records::Position at_;
  RankBatch batch_;             ///< the next batch, with the records that have arrived
  std::vector<OwnRead> reads_;  ///< reads of records that no rank sends, or not in time
  std::vector<OwnRead> lent_;   ///< completed reads, whose records must be copied
  std::uint64_t alone_ = 0;     ///< number of records that no rank sent, or not in time
  std::uint64_t own_ended_ = 0;
  const bool takes_nothing_;
  bool ended_ = false;     ///< no more batches are needed
  bool is_quiet_ = false;  ///< was quiet; answers to end messages may follow
  Departure departure_;
  std::optional<KeptRecords> kept_;             ///< records that this rank has read itself
  std::optional<records::Position> waits_for_;  ///< first record of the batch that had not arrived
};

}  // namespace lmdbio::ranks
