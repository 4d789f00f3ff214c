// Receives the records of a round that one reader sends to this rank.
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

/// Data that all parts of a receiver share, and their reports to the receiver.
struct IncomingParts {
  Transport& transport;
  Sender* sender;  ///< sender of this rank; null if this rank does not read
  std::shared_ptr<PayloadMemory> memory;
  /// Memory for messages that are received only to be dropped.  Without this memory, ranks that lack memory
  /// could wait for each other.
  std::shared_ptr<PayloadMemory> spare = std::make_shared<SpareMemory>();
  bool left = false;          ///< the stream has ended; records are dropped, and wrong content is not an
                              ///< error
  bool lacks_memory = false;  ///< set if memory was short for a message
  Traffic traffic{};          ///< each part adds the bytes that it has received
};

/// Receives a header, and then the bytes of the records.  If this rank is the reader itself, takes the
/// records from its sender instead.  One thread.  Must not be destroyed while a message is under way.
class IncomingPart : public std::enable_shared_from_this<IncomingPart> {
 public:
  enum class State : unsigned char {
    header,
    room,  ///< the size of the bytes is known, but memory is short
    bytes,
    done,
    failed  ///< nothing is received; this rank reads the records itself
  };

  /// Begins to receive the header.
  Status begin(IncomingParts& parts) { return parts.transport.receive(from, kHeaders, header, op); }
  /// Advances the part.  Never waits.  `dropped`: this rank receives the records only to drop them.  EPROTO:
  /// the content is wrong.  Other errors are those of the transport.  `why` describes the error.  May throw
  /// bad_alloc.
  Status progress(std::uint64_t round, bool dropped, IncomingParts& parts, std::string& why);
  /// Sets State::failed, because the reader will not send the message.
  void fail(Transport& transport) {
    if (!op.done()) transport.cancel(op);
    state = State::failed;
  }
  /// Returns a part with the same records and State::failed, so that this rank reads them itself.
  std::shared_ptr<IncomingPart> as_failed() const;
  bool is_due() const noexcept { return state != State::done && state != State::failed; }
  /// Sets `out` to record number `n` of the part, and `keep` to the owner of its bytes.  Requires
  /// State::done.  Returns false if the reader could not read the record.
  bool record(std::size_t n, std::uint64_t ordinal, lmdbio_record& out,
              std::shared_ptr<const void>& keep) const;

  std::uint32_t reader = 0;          ///< number of the reader in the assignment
  std::uint32_t from = 0;            ///< rank of the reader
  std::size_t first = 0, count = 0;  ///< range of the round's ordinals
  std::uint64_t sequence = 0;        ///< number of the message among those of the reader
  std::uint64_t hash = 0;            ///< ordinals_hash() of the expected records
  State state = State::header;
  bool own = false;              ///< this rank is the reader
  bool from_other_node = false;  ///< true if the bytes count as traffic between nodes
  bool overtaken = false;        ///< this rank did not wait for a record of the part, and reads it itself
  std::vector<std::byte> header;
  Payload bytes;
  OwnRecords own_records;
  Operation op;

 private:
  Status take_own(std::uint64_t round, IncomingParts& parts, std::string& why);
  Status read_header(std::uint64_t round, std::string& why);

  bool unwanted_ = false;        ///< the content is wrong, or was received into spare memory
  std::size_t size_ = 0;         ///< size of `bytes`
  std::vector<std::size_t> at_;  ///< offset of each record's key in `bytes`
  std::vector<RecordSizes> sizes_;
};

}  // namespace lmdbio::ranks
