// Receives messages whose records are not needed any more, one after another, and drops them, so that their
// sender can continue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/payload.h"
#include "lmdbio/ranks/transport.h"

namespace lmdbio::ranks {

/// Drains the messages of one reader.  One thread.
class Drain {
 public:
  /// Receives the current message, and then the next one if `begins`.  Never waits.  `header_room`: bytes of
  /// the largest header.  `memory`: for the bytes of the records.  `ended` is increased by 1 for each
  /// message that has ended.  An error is one of the transport, and final.  May throw bad_alloc.
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
