// The reading half of a rank: reads its part of each round and sends each rank its records.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/ranks/deal.h"
#include "lmdbio/ranks/farewell_receives.h"
#include "lmdbio/ranks/home_load.h"
#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/part_source.h"
#include "lmdbio/ranks/payload.h"
#include "lmdbio/ranks/transport.h"
#include "lmdbio/ranks/turns.h"

namespace lmdbio::ranks {

/// Records of the rank that read them, which are not sent: in what was read, or copied from it into a message
/// to itself, if what was read is mostly others' or only lent, or this rank keeps its records
/// (Deal::kept_rounds).
struct OwnRecords {
  std::shared_ptr<PartRead> read;  ///< null: it could not be started, or there was no room for a copy
  std::vector<std::size_t> which;  ///< of the read: those that this rank needs, by ordinal
  std::uint64_t hash = 0;          ///< ordinals_hash() of these
  bool copied = false;
  std::vector<std::byte> header;
  Payload bytes;
};

/// One thread.  Deal, transport and source outlive it.
class Sender {
 public:
  /// Reader number `reader` of the deal, in this rank.  `reader_ranks`: the rank of each.  At most `ahead`
  /// rounds are read or being sent.  `memory`: of messages.  May throw bad_alloc.
  Sender(const Deal& deal, std::uint32_t reader, const std::vector<std::uint32_t>& reader_ranks,
         unsigned ahead, const Turns::Settings& turns, Transport& transport, PartSource& source,
         std::shared_ptr<PayloadMemory> memory);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Something moves on only if progress() is called: a read, or the bytes of a message.
  bool busy() const noexcept;
  /// It reads and sends nothing, and will not do so.
  bool resting() const noexcept { return ended_ && rounds_.empty() && load_ == nullptr; }
  /// Starts reads and sends, never waits.  `near`: a round that this rank uses now; rounds in which it reads
  /// nothing are passed over up to some rounds beyond it.  An error is the transport's, and final.  May throw
  /// bad_alloc.
  Status progress(std::uint64_t near);
  /// Before the first progress().  The page cache has room for that share of an epoch, 0 to 1: so many rounds
  /// of each epoch are read through it, the first ones that are not kept.  Not of scattered orders, whose
  /// rounds have other records in each epoch.
  void use_page_cache(double share) noexcept;
  /// Before the first progress(): this rank wants no records of its own of it.
  void send_nothing_here() noexcept { own_unwanted_ = true; }
  /// The records of a round that this rank has read for itself: once.  False: they are not there yet.
  bool take_own(std::uint64_t round, OwnRecords& out);
  /// After leave(): take_own() gives nothing more.
  bool has_left() const noexcept { return left_; }
  /// Nothing is read any more, what was read and not sent is dropped, and the other ranks are told.  Waits
  /// for reads in flight.
  void leave() noexcept;
  /// All rounds of the order were sent, or nobody wants them any more, and all ranks have said so: nothing is
  /// under way.
  bool closed() const noexcept;
  /// Adds what was sent.
  void add_to(Traffic& traffic) const noexcept {
    traffic.messages_sent += messages_;
    traffic.bytes_sent += bytes_;
  }
  /// Reads that have ended.
  std::uint64_t events() const noexcept { return packed_; }

 private:
  struct Farewell {
    std::uint64_t messages = 0;  ///< that were sent to the rank
    Operation out;
    bool heard = false, sent = false;
  };
  struct Message {
    std::uint32_t to;
    std::vector<std::size_t> which;  ///< of the read
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

  /// What a round has, before its read begins.
  struct Planned {
    std::unique_ptr<Round> round;  ///< null: nothing is planned
    std::vector<std::uint64_t> ordinals;
  };

  std::uint64_t at_of_epoch(std::uint64_t round) const noexcept {
    return round - deal_.first_round(deal_.epoch_of(round));
  }
  Status hear_farewells();
  Status say_farewell(std::uint32_t rank);
  Status take_turns();
  void plan_round();
  bool start_round(std::uint64_t near);
  Status send(Round& round);
  bool pack(Round& round, Message& message, bool empty = false);
  bool pack(Round& round, bool empty = false);

  const Deal& deal_;
  const std::uint32_t reader_;
  const unsigned ahead_;
  const std::uint64_t first_;
  std::uint64_t next_ = first_;
  bool ended_ = false;  ///< no further round is read
  bool own_unwanted_ = false;
  Range cached_;  ///< rounds of each epoch that go through the page cache
  bool said_all_farewells_ = false, left_ = false;
  std::uint64_t packed_ = 0, messages_ = 0, bytes_ = 0;
  Transport& transport_;
  PartSource& source_;
  const std::shared_ptr<PayloadMemory> memory_;
  Planned planned_;                 ///< round next_
  std::unique_ptr<HomeLoad> load_;  ///< null: there is none, or it is done
  std::uint64_t used_ = 0;          ///< records that were read
  std::deque<std::unique_ptr<Round>> rounds_;
  std::vector<Farewell> farewells_;  ///< of each rank; its own is not used
  FarewellReceives heard_;
  Turns turns_;
};

}  // namespace lmdbio::ranks
