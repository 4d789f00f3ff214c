// Makes the batches of one rank from records that the ranks of a job read for each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/ranks/assignment.h"
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
  records::Position at;     ///< of the first record
  std::size_t padding = 0;  ///< number of records at the end that only fill it up
  std::vector<std::shared_ptr<const void>> keep;
};

/// Reads, sends and receives the records of one stream.  One thread.  Assignment (with rounds), transport
/// and source outlive it.  No call waits.  A rank that waits for a batch calls next() again; other ranks
/// depend on the progress that this makes.
class RankStream {
 public:
  struct Settings {
    std::vector<std::uint32_t> reader_ranks;  ///< of each reader of the assignment
    unsigned ahead = 3;                       ///< rounds that are read, sent and received ahead
    Turns::Settings turns;
    std::vector<std::uint32_t> nodes;  ///< of each rank, for traffic(); empty: each rank has its own node
    std::shared_ptr<PayloadMemory> memory = std::make_shared<PayloadMemory>();  ///< of messages
    /// Part of `memory`, in bytes, for records that are kept (Assignment::kept_rounds).
    std::uint64_t keeps = 0;
    double in_page_cache = 0;  ///< see Sender::use_page_cache
    /// This rank reads its records itself, and keeps them if its share is the same in each epoch.  It still
    /// reads for the others.
    bool takes_nothing = false;
  };
  /// EINVAL: a field of the order is invalid.  May throw bad_alloc.
  static Status open(const Assignment& assignment, const Settings& settings, Transport& transport,
                     PartSource& source, std::unique_ptr<RankStream>& out);
  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

  /// Reads, sends and receives ahead.  Never waits.  An error is final.  May throw bad_alloc.
  Status progress(std::string& why);
  /// Returns the next batch.  EAGAIN: it is not complete yet.  MDB_NOTFOUND: the stream has ended.  Other
  /// errors: `why` describes the error.  If a record could not be read, the next call tries again.
  /// `impatient`: reads here what other ranks have not sent by now.  May throw bad_alloc.
  Status next(RankBatch& out, std::string& why, bool impatient = false);
  /// Returns where the next batch begins.
  records::Position position() const noexcept { return at_; }
  /// Ends the stream: this rank needs no more batches and reads nothing more for others.  The others read
  /// for themselves what they have not received.  Waits for reads in flight, but not for other ranks.  The
  /// source is not needed any more.
  void leave() noexcept;
  /// Returns whether something is under way that advances only if progress() is called.
  bool busy() const noexcept {
    return receiver_.busy() || !reads_.empty() || (sender_ != nullptr && sender_->busy());
  }
  /// Returns whether nothing is under way, and no call of next() is about to change that.  progress() then
  /// only receives end messages.
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
  /// Returns whether nothing is under way and no rank expects a message of this one.  Only after the end or
  /// leave().  Until then, progress() must be called and the object must stay.
  bool closed() const noexcept {
    return ended_ && receiver_.closed() && (sender_ == nullptr || sender_->closed());
  }

 private:
  RankStream(const Assignment& assignment, const Settings& settings, Transport& transport, PartSource& source,
             records::Sequence sequence);
  /// Records of the next batch that this rank reads itself.
  struct OwnRead {
    std::vector<std::size_t> which;
    std::shared_ptr<PartRead> read;
    bool ended = false;  ///< progress() has noticed that it is done
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
  std::unique_ptr<Sender> sender_;
  Receiver receiver_;
  records::Position at_;
  RankBatch batch_;             ///< the next batch, as far as its records have arrived
  std::vector<OwnRead> reads_;  ///< records that no rank sends, or not in time
  std::vector<OwnRead> lent_;   ///< completed reads, whose records must be copied
  std::uint64_t alone_ = 0;     ///< records that no rank sent, or not in time
  std::uint64_t own_ended_ = 0;
  const bool takes_nothing_;
  bool ended_ = false;                          ///< no more batches are needed
  std::optional<KeptRecords> kept_;             ///< records that this rank has read itself
  std::optional<records::Position> waits_for_;  ///< the first record of the batch that had not arrived
};

}  // namespace lmdbio::ranks
