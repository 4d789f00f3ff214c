// Receives the records of a rank's share from the readers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/drain.h"
#include "lmdbio/ranks/end_message_receiver.h"
#include "lmdbio/ranks/incoming_part.h"
#include "lmdbio/ranks/kept_records.h"
#include "lmdbio/ranks/sender.h"
#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// Receives the records of one rank.  One thread.  Assignment, transport and sender must outlive it.  Records
/// that find() returned may outlive this object.
class Receiver {
 public:
  /// Bytes that a kept record takes besides its key and value.
  static constexpr std::uint64_t kBytesPerEntry = KeptRecords::kBytesPerEntry;

  /// `reader_ranks`: the rank of each reader of the assignment.  `ahead`: number of rounds whose messages are
  /// expected at a time; only rounds with records of this rank count.  `sender`: the sender of this rank;
  /// null if this rank does not read.  `memory`: memory for messages.  `keeps`: bytes of `memory` for records
  /// that this rank keeps (Assignment::kept_rounds).  `nodes`: the node of each rank, which must outlive this
  /// object; empty: each rank has its own node.
  Receiver(const Assignment& assignment, std::vector<std::uint32_t> reader_ranks, unsigned ahead,
           Transport& transport, Sender* sender, std::shared_ptr<PayloadMemory> memory,
           std::uint64_t keeps = 0, std::span<const std::uint32_t> nodes = {});
  /// Requires closed().
  ~Receiver() = default;
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  /// Returns the number of the next round to open.
  std::uint64_t next_round() const noexcept { return next_; }
  bool has_left() const noexcept { return parts_.left; }
  /// Returns whether messages are arriving, which advance only in calls of progress().
  bool busy() const noexcept;
  /// Returns whether no more messages are expected, because all further records are kept, or because no rank
  /// sends them.
  bool resting() const noexcept;
  /// Makes progress() expect the messages up to this round, even if it is more than `ahead` rounds ahead.
  void require(std::uint64_t round) noexcept { required_ = std::max(required_, round + 1); }
  /// Receives messages.  Never waits.  EPROTO: the content of a message is wrong; leave() must be called.
  /// Other errors are those of the transport, and are final.  `why` describes the error.  May throw
  /// bad_alloc.
  Status progress(std::string& why);

  enum class Found : unsigned char {
    here,
    pending,
    /// This rank must read the record itself: the reader has failed or is late, or no reader sends it.
    failed,
  };
  /// Finds the record at a position of this rank's share.  The position must not be before that of the last
  /// drop_before(), and the record must be needed (Assignment::is_needed).  Sets `keep` to the owner of the
  /// record's bytes.  `impatient`: a reader that has not sent the record yet counts as late.  This rank does
  /// not wait for a late reader until one of its messages arrives in time.
  Found find(records::Position at, lmdbio_record& out, std::shared_ptr<const void>& keep,
             bool impatient = false);
  /// Drops the records before this position.  Do not request them again in this epoch.
  void drop_before(records::Position at) noexcept;
  /// Ends the stream.  find() then returns Found::failed.  If more rounds follow, progress() sends end
  /// messages to the readers.  progress() also receives and drops the messages that the readers have begun to
  /// send.
  void leave() noexcept;
  /// Returns whether nothing is under way but receives for end messages.  True only after leave().
  bool quiet() const noexcept;
  /// Stops to receive end messages.  Call it when all ranks are quiet.
  void stop() { end_messages_.stop(transport_); }
  /// Returns whether nothing is under way.  True only after stop().
  bool closed() const noexcept { return quiet() && end_messages_.idle(); }
  /// Adds the bytes that were received to `traffic`.
  void add_to(Traffic& traffic) const noexcept {
    traffic.bytes_received += parts_.traffic.bytes_received;
    traffic.bytes_from_nodes += parts_.traffic.bytes_from_nodes;
  }
  /// Returns whether memory is short for the next message.
  bool lacks_memory() const noexcept { return parts_.lacks_memory; }

 private:
  struct Round {
    std::uint64_t number = 0;
    std::vector<std::uint64_t> ordinals;  ///< ordinals of this rank's records, by part, sorted
    Range positions;
    std::vector<std::uint32_t> index;  ///< per position: index in `ordinals`; kNone: no reader sends it
    std::vector<std::shared_ptr<IncomingPart>> parts;
    bool kept = false;
    std::uint64_t kept_bytes = 0;  ///< bytes that the round counts as while it is kept
  };
  /// What is known of a reader's messages.
  struct Reader {
    std::uint64_t messages = UINT64_MAX;  ///< number of messages that the reader has sent, when it is known
    std::uint64_t expected = 0;           ///< number of messages of opened rounds, and of dropped messages
    std::unique_ptr<Drain> drain;         ///< receives further messages; null: no message was dropped yet
    bool late = false;                    ///< this rank does not wait for messages of the reader
    bool has_ended() const noexcept { return messages != UINT64_MAX; }
    bool all_came() const noexcept {
      return has_ended() && expected >= messages && (drain == nullptr || drain->idle());
    }
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  bool opens_no_more() const noexcept;
  bool may_open() const noexcept;
  Status open_round(bool& opened);
  bool needs_any(const Round& round) const noexcept;
  const Round* same_before() const noexcept;
  bool open_kept_round();
  bool is_to_be_kept(const Round& round) const noexcept;
  void keep(Round& round);
  Status exchange_end_messages();
  void take_end_message(std::uint32_t rank, std::uint64_t messages) noexcept;
  Status move_on(std::deque<Round>& rounds, bool dropped, std::vector<bool>& behind, std::string& why);
  bool over(const Round& round) const noexcept;

  const Assignment& assignment_;
  const std::vector<std::uint32_t> reader_ranks_;
  const unsigned ahead_;
  Transport& transport_;
  IncomingParts parts_;
  const std::span<const std::uint32_t> nodes_;
  const records::Order share_;
  std::uint64_t next_;
  std::uint64_t required_ = 0;           ///< rounds before this one are required
  std::map<std::uint64_t, Round> kept_;  ///< kept rounds, by their number in the epoch
  std::uint64_t kept_bytes_ = 0, keeps_;
  std::deque<Round> rounds_;
  std::deque<Round> late_;       ///< rounds before those in rounds_ whose messages have not all arrived
  std::vector<Reader> readers_;  ///< that of this rank is not used
  EndMessageReceiver end_messages_;
  bool left_early_ = false;     ///< the readers have to be told
  std::deque<Operation> told_;  ///< end messages that this rank has sent
};

}  // namespace lmdbio::ranks
