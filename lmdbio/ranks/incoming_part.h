// The records that one reader sends to this rank for a round.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/payload.h"
#include "lmdbio/ranks/sender.h"
#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// What all parts of a receiver need, and what they report to it.
struct IncomingParts {
  Transport& transport;
  Sender* sender;  ///< of this rank; null if it does not read
  std::shared_ptr<PayloadMemory> memory;
  /// For messages that are received only to be dropped.  Without it, ranks without memory could wait for
  /// each other.
  std::shared_ptr<PayloadMemory> spare = std::make_shared<SpareMemory>();
  bool left = false;          ///< the stream has ended: records are dropped, and wrong content is no error
  bool lacks_memory = false;  ///< set if memory was short for a message
  Traffic traffic{};          ///< increased by what was received
};

/// Receives a header and then the bytes of the records.  If this rank is the reader itself, takes them from
/// its sender instead.  One thread.  Must not end while a message is under way.
class IncomingPart : public std::enable_shared_from_this<IncomingPart> {
 public:
  enum class State : unsigned char {
    header,
    room,  ///< the size of the bytes is known, but memory is short
    bytes,
    done,
    failed  ///< nothing is received: this rank reads the records itself
  };

  /// Begins to receive the header.
  Status begin(IncomingParts& parts) { return parts.transport.receive(from, kHeaders, header, op); }
  /// Advances the part.  Never waits.  `dropped`: its records are received only to be dropped.  EPROTO: the
  /// content is wrong.  Other errors are those of the transport.  `why` describes the error.  May throw
  /// bad_alloc.
  Status progress(std::uint64_t round, bool dropped, IncomingParts& parts, std::string& why);
  /// The reader will not send the message.
  void fail(Transport& transport) {
    if (!op.done()) transport.cancel(op);
    state = State::failed;
  }
  /// Returns a part with the same records, which this rank reads itself.
  std::shared_ptr<IncomingPart> as_failed() const;
  bool is_due() const noexcept { return state != State::done && state != State::failed; }
  /// Returns record number `n` of the part.  Requires State::done.  `keep` owns its bytes.  Returns false if
  /// the reader could not read the record.
  bool record(std::size_t n, std::uint64_t ordinal, lmdbio_record& out,
              std::shared_ptr<const void>& keep) const;

  std::uint32_t reader = 0;          ///< number of the reader in the assignment
  std::uint32_t from = 0;            ///< its rank
  std::size_t first = 0, count = 0;  ///< range of the round's ordinals
  std::uint64_t sequence = 0;        ///< number of the message, counted per reader
  std::uint64_t hash = 0;            ///< ordinals_hash() of the expected records
  State state = State::header;
  bool own = false;              ///< this rank is the reader
  bool from_other_node = false;  ///< for the traffic
  bool overtaken = false;        ///< its records were requested but not waited for
  std::vector<std::byte> header;
  Payload bytes;
  OwnRecords own_records;
  Operation op;

 private:
  Status take_own(std::uint64_t round, IncomingParts& parts, std::string& why);
  Status read_header(std::uint64_t round, std::string& why);

  bool unwanted_ = false;        ///< wrong content, or received into spare memory only
  std::size_t size_ = 0;         ///< of the bytes
  std::vector<std::size_t> at_;  ///< of each record's key, in `bytes`
  std::vector<RecordSizes> sizes_;
};

}  // namespace lmdbio::ranks
