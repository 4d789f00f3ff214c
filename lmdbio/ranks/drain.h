// Messages with records that nobody wants any more: they are received, one after another, and dropped, so
// that who sends them can go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/payload.h"
#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// Of one reader.  One thread.
class Drain {
 public:
  /// Moves on, never waits.  `begins`: another message may be received if this one has ended.  `header_room`:
  /// bytes of the largest header.  `memory`: for its bytes.  `ended`: gets 1 more for each message.  An error
  /// is the transport's, and final.  May throw bad_alloc.
  Status progress(Transport& transport, std::uint32_t from, bool begins, std::size_t header_room,
                  const std::shared_ptr<PayloadMemory>& memory, std::uint64_t& ended);
  bool idle() const noexcept { return state_ == State::idle; }

 private:
  enum class State : unsigned char { idle, header, room, bytes };
  State state_ = State::idle;
  std::size_t size_ = 0;
  std::vector<std::byte> header_;
  Payload bytes_;
  Operation op_;
};

}  // namespace lmdbio::ranks
