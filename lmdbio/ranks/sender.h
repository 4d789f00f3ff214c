// Reads the parts of a rank that is a reader, and sends the records to the ranks that use them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/end_message_receiver.h"
#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/owner_load.h"
#include "lmdbio/ranks/part_source.h"
#include "lmdbio/ranks/payload.h"
#include "lmdbio/ranks/transport.h"
#include "lmdbio/ranks/turns.h"

namespace lmdbio::ranks {

/// Own records of a rank: records that it has read for itself.  They are not sent.  Usually they stay in the
/// buffers of the read.  The rank copies them into a message to itself in three cases: most records of the
/// read are for other ranks, the read is only lent, or the round is kept (Assignment::kept_rounds).
struct OwnRecords {
  std::shared_ptr<PartRead> read;  ///< null if the read could not start, or if memory for a copy was short
  std::vector<std::size_t> which;  ///< indices of these records in the read, sorted by ordinal
  std::uint64_t hash = 0;          ///< ordinals_hash() of these records
  bool copied = false;
  std::vector<std::byte> header;
  Payload bytes;
};

/// Reads and sends the parts of one reader.  One thread.  Assignment, transport and source must outlive it.
class Sender {
 public:
  /// `reader`: number of this rank as a reader of the assignment.  `reader_ranks`: the rank of each reader.
  /// `ahead`: upper limit for the rounds that are read or sent at a time.  `memory`: memory for messages.
  /// May throw bad_alloc.
  Sender(const Assignment& assignment, std::uint32_t reader, const std::vector<std::uint32_t>& reader_ranks,
         unsigned ahead, const Turns::Settings& turns, Transport& transport, PartSource& source,
         std::shared_ptr<PayloadMemory> memory);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Returns whether a read or the bytes of a message are under way.  Both advance only in calls of
  /// progress().
  bool busy() const noexcept;
  /// Returns whether nothing is being read or sent, and nothing will be.
  bool resting() const noexcept { return ended_ && rounds_.empty() && load_ == nullptr; }
  /// Starts reads and sends.  Never waits.  `near`: a round that this rank uses at present.  Skips rounds
  /// without records to read, up to a limit beyond `near`.  Errors are those of the transport, and are final.
  /// May throw bad_alloc.
  Status progress(std::uint64_t near);
  /// Makes the sender read some rounds of each epoch through the page cache.  These are the first rounds that
  /// are not kept.  `share`: share of an epoch for which the page cache has room, 0 to 1.  Has no effect in
  /// scattered orders, whose rounds have other records in each epoch.  Call it before the first progress().
  void use_page_cache(double share) noexcept;
  /// Makes the sender ignore records that this rank uses itself.  Call it before the first progress().
  void send_nothing_here() noexcept { own_unwanted_ = true; }
  /// Takes the own records of a round.  Returns false if they have not been read yet.  Returns true only once
  /// for each round.
  bool take_own(std::uint64_t round, OwnRecords& out);
  /// Returns whether leave() was called.  take_own() then always returns false.
  bool has_left() const noexcept { return left_; }
  /// Ends the stream.  Waits for reads in flight, and drops records that were read but not sent.  progress()
  /// then reads nothing more.  If ranks expect more, it sends end messages to them.
  void leave() noexcept;
  /// Returns whether nothing is under way but receives for end messages.  All rounds were then sent or are
  /// not needed.
  bool quiet() const noexcept;
  /// Stops to receive end messages.  Call it when all ranks are quiet.
  void stop() { end_messages_.stop(transport_); }
  /// Returns whether nothing is under way.  True only after stop().
  bool closed() const noexcept { return quiet() && end_messages_.idle(); }
  /// Adds the messages and bytes that were sent to `traffic`.
  void add_to(Traffic& traffic) const noexcept {
    traffic.messages_sent += messages_;
    traffic.bytes_sent += bytes_;
  }
  /// Returns the number of rounds that were read and packed.
  std::uint64_t events() const noexcept { return packed_; }

 private:
  struct Rank {
    std::uint64_t messages = 0;  ///< number of messages that were sent to the rank
    bool left = false;           ///< it has sent an end message
    bool told = false;           ///< an end message was sent to it
  };
  struct EndMessage {
    std::uint64_t messages;
    Operation op;
  };
  struct Message {
    std::uint32_t to;
    std::vector<std::size_t> which;  ///< indices of the records in the read
    std::uint64_t hash = 0;          ///< ordinals_hash()
    std::vector<std::byte> header;
    Payload bytes;
    Operation header_op, bytes_op;
  };
  struct Round {
    std::uint64_t number;
    std::shared_ptr<PartRead> read;
    std::vector<std::unique_ptr<Message>> messages;
    std::vector<std::size_t> own;
    std::uint64_t own_hash = 0;
    std::unique_ptr<Message> own_copy;
    std::size_t records = 0;
    bool own_taken = true;
    bool packed = false;
    bool is_read() const noexcept { return packed || read == nullptr || read->done(); }
  };

  /// A round whose read has not begun.
  struct Planned {
    std::unique_ptr<Round> round;  ///< null: no round is planned
    std::vector<std::uint64_t> ordinals;
  };

  std::uint64_t at_of_epoch(std::uint64_t round) const noexcept {
    return round - assignment_.first_round(assignment_.epoch_of(round));
  }
  Status exchange_end_messages();
  Status send_end_message(std::uint32_t rank);
  Status take_turns();
  void plan_round();
  bool start_round(std::uint64_t near);
  Status send(Round& round);
  bool pack(Round& round, Message& message, bool empty = false);
  bool pack(Round& round, bool empty = false);

  const Assignment& assignment_;
  const std::uint32_t reader_;
  const unsigned ahead_;
  const std::uint64_t first_;
  std::uint64_t next_ = first_;
  bool ended_ = false;  ///< no more rounds are read
  bool own_unwanted_ = false;
  Range cached_;             ///< rounds of each epoch that are read through the page cache
  bool left_early_ = false;  ///< the other ranks have to be told
  bool told_all_ = false, left_ = false;
  std::uint64_t packed_ = 0, messages_ = 0, bytes_ = 0;
  Transport& transport_;
  PartSource& source_;
  const std::shared_ptr<PayloadMemory> memory_;
  Planned planned_;                  ///< plan of round next_
  std::unique_ptr<OwnerLoad> load_;  ///< null if there is nothing to load
  std::uint64_t used_ = 0;           ///< number of records that were read
  std::deque<std::unique_ptr<Round>> rounds_;
  std::vector<Rank> ranks_;      ///< that of this rank is not used
  std::deque<EndMessage> told_;  ///< end messages that this rank has sent
  EndMessageReceiver end_messages_;
  Turns turns_;
};

}  // namespace lmdbio::ranks
