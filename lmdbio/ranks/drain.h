// Receives messages whose records are no longer needed, one after another, and drops them.  The sender can
// then continue.
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
  /// Continues to receive the current message.  If there is none and `begins` is true, begins to receive the
  /// next message.  Never waits.  `header_room`: bytes of the largest header.  `memory`: allocates the bytes
  /// of the records.  Increases `ended` by 1 when a message has ended.  Errors are final: those of the
  /// transport, and EPROTO if a header is too short.  May throw bad_alloc.
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
