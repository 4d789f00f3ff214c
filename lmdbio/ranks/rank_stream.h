// The batches of one rank, of records that the ranks of a job read for each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/ranks/deal.h"
#include "lmdbio/ranks/kept_records.h"
#include "lmdbio/ranks/part_source.h"
#include "lmdbio/ranks/receiver.h"
#include "lmdbio/ranks/sender.h"
#include "lmdbio/ranks/transport.h"
#include "lmdbio/records/sequence.h"

namespace lmdbio::ranks {

/// Records, and what their bytes need to live.
struct RankBatch {
  std::vector<lmdbio_record> records;
  records::Spot at;         ///< of the first
  std::size_t padding = 0;  ///< the last ones only fill it up
  std::vector<std::shared_ptr<const void>> keep;
};

/// One thread.  Deal (with rounds), transport and source outlive it.  No call waits: a rank that waits calls
/// next() again, and others' progress depends on it meanwhile.
class RankStream {
 public:
  struct Settings {
    std::vector<std::uint32_t> reader_ranks;  ///< of each reader of the deal
    unsigned ahead = 3;                       ///< rounds, of what is read, sent and received
    Turns::Settings turns;
    std::vector<std::uint32_t> nodes;  ///< of each rank, for traffic(); empty: each rank has its own
    std::shared_ptr<PayloadMemory> memory = std::make_shared<PayloadMemory>();  ///< of messages
    std::uint64_t keeps = 0;   ///< bytes of it for records that are kept (Deal::kept_rounds)
    double in_page_cache = 0;  ///< see Sender::use_page_cache
    /// This rank reads its records itself, and keeps them if its share is the same in each epoch.  It still
    /// reads for the others.
    bool takes_nothing = false;
  };
  /// EINVAL: a field of the order.  May throw bad_alloc.
  static Status open(const Deal& deal, const Settings& settings, Transport& transport, PartSource& source,
                     std::unique_ptr<RankStream>& out);
  RankStream(const RankStream&) = delete;
  RankStream& operator=(const RankStream&) = delete;

  /// Reads, sends and receives ahead.  An error is final.  May throw bad_alloc.
  Status progress(std::string& why);
  /// EAGAIN: not there yet.  MDB_NOTFOUND: the end.  Another error: `why` says what is wrong; of a record
  /// that cannot be read, the next call tries again.  `impatient`: what others have not sent by now is read
  /// here.  May throw bad_alloc.
  Status next(RankBatch& out, std::string& why, bool impatient = false);
  /// Where next() goes on.
  records::Spot position() const noexcept { return at_; }
  /// The rank wants no more batches, and reads nothing more for others, who read for themselves what they do
  /// not have yet.  Waits for reads in flight, not for other ranks.  The source is not needed any more.
  void leave() noexcept;
  /// Something moves on only if progress() is called.
  bool busy() const noexcept {
    return receiver_.busy() || !reads_.empty() || (sender_ != nullptr && sender_->busy());
  }
  /// Nothing is under way, and no call of next() changes that soon: progress() has nothing to do but to hear
  /// of ranks that leave.
  bool resting() const noexcept {
    return reads_.empty() && receiver_.resting() && (sender_ == nullptr || sender_->resting());
  }
  /// There is no memory for what comes next.
  bool lacks_memory() const noexcept { return receiver_.lacks_memory(); }
  /// This rank reads records of the next batch for itself.
  bool reads_for_itself() const noexcept { return !reads_.empty(); }
  Traffic traffic() const noexcept;
  /// A number that changes when a read has ended.
  std::uint64_t events() const noexcept { return own_ended_ + (sender_ != nullptr ? sender_->events() : 0); }
  /// After the end, or after leave(): nothing is under way and nobody expects anything of this rank any more.
  /// Until then progress() is to be called, and the object to stay.
  bool closed() const noexcept {
    return ended_ && receiver_.closed() && (sender_ == nullptr || sender_->closed());
  }

 private:
  RankStream(const Deal& deal, const Settings& settings, Transport& transport, PartSource& source,
             records::Sequence sequence);
  /// Records of the next batch that this rank reads for itself.
  struct OwnRead {
    std::vector<std::size_t> which;
    std::shared_ptr<PartRead> read;
    bool ended = false;  ///< progress() has found it done
  };
  bool collect(const records::BatchPlan& plan, bool impatient, std::vector<std::size_t>& missing);
  Status read_missing(const records::BatchPlan& plan, std::vector<std::size_t> missing, bool may_lend,
                      std::string& why);
  Status finish_reads(std::string& why);
  Status keep(const records::BatchPlan& plan, std::string& why);
  records::Spot spot(const records::BatchPlan& plan, std::size_t i) const noexcept;

  const Deal& deal_;
  PartSource& source_;
  const records::Sequence sequence_;
  const records::Order share_;
  std::unique_ptr<Sender> sender_;
  Receiver receiver_;
  records::Spot at_;
  RankBatch batch_;             ///< the next one, as far as it is there
  std::vector<OwnRead> reads_;  ///< of what nobody sends, or not in time
  std::vector<OwnRead> lent_;   ///< done; their records are to be copied
  std::uint64_t alone_ = 0;     ///< records that were read so
  std::uint64_t own_ended_ = 0;
  const bool takes_nothing_;
  bool ended_ = false;                      ///< nothing more is asked for
  std::optional<KeptRecords> kept_;         ///< of those that it has read itself
  std::optional<records::Spot> waits_for_;  ///< the first record of the batch that was not there
};

}  // namespace lmdbio::ranks
