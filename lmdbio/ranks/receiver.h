// The using half of a rank: gets the records of its share from those who read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/ranks/deal.h"
#include "lmdbio/ranks/drain.h"
#include "lmdbio/ranks/farewell_receives.h"
#include "lmdbio/ranks/kept_records.h"
#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/sender.h"
#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// One thread.  Deal, transport and sender outlive it; what find() gave out lives on by itself.
class Receiver {
 public:
  /// Of a record that is kept, beside its own: where it is.
  static constexpr std::uint64_t kBytesOfPlace = KeptRecords::kBytesOfPlace;

  /// `reader_ranks`: the rank of each reader of the deal.  `sender`: of this rank, null if it reads nothing.
  /// Messages of `ahead` rounds with records of this rank are expected at a time.
  /// `memory`: of messages; of it `keeps` bytes are for records that this rank keeps (Deal::kept_rounds).
  /// `nodes`: of each rank; empty: each rank has its own.
  Receiver(const Deal& deal, std::vector<std::uint32_t> reader_ranks, unsigned ahead, Transport& transport,
           Sender* sender, std::shared_ptr<PayloadMemory> memory, std::uint64_t keeps = 0,
           std::vector<std::uint32_t> nodes = {});
  /// Only when closed().
  ~Receiver() = default;
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  /// The round that is opened next.
  std::uint64_t next_round() const noexcept { return next_; }
  bool has_left() const noexcept { return left_; }
  /// Bytes are on their way, which move on only if progress() is called.
  bool busy() const noexcept;
  /// No message is expected any more: all records that are still to come are kept, or nobody sends them.
  bool resting() const noexcept;
  /// That round is expected too, however far ahead it is.
  void require(std::uint64_t round) noexcept { required_ = std::max(required_, round + 1); }
  /// Never waits.  EPROTO: a message is not what it has to be; leave() is due.  Any other error is the
  /// transport's, and final.  `why` says more.  May throw bad_alloc.
  Status progress(std::string& why);

  enum class Found : unsigned char {
    here,
    pending,
    failed,  ///< who was to send it could not, or is late, or nobody sends it: the rank tries by itself
  };
  /// The record at a place of this rank's share, at or behind the last drop_before(), and needed
  /// (Deal::is_needed).  `keep` is to live as long as the record's bytes.  `impatient`: who has not sent it
  /// by now is late, and what it sends from now on is not waited for until something of it comes in time.
  Found find(records::Spot at, lmdbio_record& out, std::shared_ptr<const void>& keep, bool impatient = false);
  /// Records before that place were found, all of them, or read otherwise, and are not asked for any more in
  /// this epoch.
  void drop_before(records::Spot at) noexcept;
  /// This rank wants nothing more: find() finds nothing any more, and the readers are told.  What they have
  /// begun to send is received by progress() and dropped.
  void leave() noexcept;
  /// After leave(): nothing is under way.
  bool closed() const noexcept;
  /// Adds what was received.
  void add_to(Traffic& traffic) const noexcept {
    traffic.bytes_received += bytes_;
    traffic.bytes_from_nodes += bytes_from_nodes_;
  }
  /// There is no memory for what comes next.
  bool lacks_memory() const noexcept { return lacks_memory_; }

 private:
  /// What one reader sends for a round.
  struct Part {
    std::uint32_t reader = 0;
    std::size_t first = 0, count = 0;  ///< of the round's ordinals
    std::uint64_t sequence = 0;        ///< among the messages of the reader
    std::uint64_t hash = 0;            ///< ordinals_hash()
    enum class State : unsigned char {
      header,
      room,  ///< the size of the bytes is known, there is no memory for them
      bytes,
      done,
      failed
    } state = State::header;
    bool own = false;
    bool overtaken = false;  ///< its records were asked for, and not waited for
    bool unwanted = false;   ///< what comes is not what is due, or there was only spare memory for it
    bool is_due() const noexcept { return state != State::done && state != State::failed; }
    std::vector<std::byte> header;
    std::size_t size = 0;  ///< of the bytes
    Payload bytes;
    std::vector<std::size_t> at;  ///< of each record's key, in `bytes`
    std::vector<RecordSizes> sizes;
    OwnRecords own_records;
    Operation op;
  };
  struct Round {
    std::uint64_t number = 0;
    std::vector<std::uint64_t> ordinals;  ///< of this rank's records, by part, sorted
    Range positions;
    std::vector<std::uint32_t> index;  ///< of the record at each position; kNone: nobody sends it
    std::vector<std::shared_ptr<Part>> parts;
    bool kept = false;
    std::uint64_t kept_bytes = 0;  ///< of the limit
  };
  /// Of a reader.
  struct Farewell {
    std::uint64_t messages = UINT64_MAX;  ///< that it has sent to this rank, once that is known
    std::uint64_t expected = 0;  ///< messages of rounds that were opened, and those that were dropped
    Drain drain;                 ///< of further ones
    Operation out;
    bool heard = false, sent = false;
    bool late = false;  ///< what it sends is not waited for
    bool all_came() const noexcept { return heard && expected >= messages && drain.idle(); }
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  bool may_open() const noexcept;
  Status open_round(bool& opened);
  std::shared_ptr<Part> failed_part(const Part& part) const;
  bool needs_any(const Round& round) const noexcept;
  const Round* same_before() const noexcept;
  bool open_kept_round();
  bool is_to_be_kept(const Round& round) const noexcept;
  void keep(Round& round);
  Status hear_farewells();
  void heard_farewell(std::uint32_t rank, std::uint64_t messages) noexcept;
  Status move_on(const Round& round, Part& part, bool dropped, std::string& why);
  Status move_on(std::deque<Round>& rounds, bool dropped, std::vector<bool>& behind, std::string& why);
  bool over(const Round& round) const noexcept;
  Status read_header(const Round& round, Part& part, std::string& why);

  const Deal& deal_;
  const std::vector<std::uint32_t> reader_ranks_;
  const unsigned ahead_;
  Transport& transport_;
  Sender* const sender_;
  const std::shared_ptr<PayloadMemory> memory_;
  /// For what is only received to be dropped: else ranks that have no memory could wait for each other.
  const std::shared_ptr<PayloadMemory> spare_ = std::make_shared<SpareMemory>();
  const std::vector<std::uint32_t> nodes_;
  const records::Order share_;
  std::uint64_t bytes_ = 0, bytes_from_nodes_ = 0;
  bool lacks_memory_ = false;
  std::uint64_t next_;
  std::uint64_t required_ = 0;           ///< rounds before it
  std::map<std::uint64_t, Round> kept_;  ///< by their number in the epoch
  std::uint64_t kept_bytes_ = 0, keeps_;
  std::deque<Round> rounds_;
  std::deque<Round> late_;           ///< before rounds_, with messages that are still to come
  std::vector<Farewell> farewells_;  ///< of each reader; of this rank's not used
  FarewellReceives heard_;
  bool left_ = false;
};

}  // namespace lmdbio::ranks
