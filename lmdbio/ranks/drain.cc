#include "lmdbio/ranks/drain.h"

#include <cerrno>

#include "lmdbio/base/bytes.h"

namespace lmdbio::ranks {

Status Drain::progress(Transport& transport, std::uint32_t from, bool begins, std::size_t header_room,
                       const std::shared_ptr<PayloadMemory>& memory, std::uint64_t& ended) {
  if (state_ == State::idle) {
    if (!begins) return {};
    header_.resize(header_room);
    if (const Status st = transport.receive(from, kHeaders, header_, op_); !st.ok()) return st;
    state_ = State::header;
  }
  if (!op_.done()) return {};
  if (!op_.status.ok()) return op_.status;
  if (state_ == State::header) {
    if (op_.bytes < sizeof(MessageHeader)) return Status::from_errno(EPROTO);
    size_ = static_cast<std::size_t>(load<MessageHeader>(header_.data()).bytes);
    state_ = State::room;
  }
  if (state_ == State::room && size_ != 0) {
    if (!bytes_.make(memory, size_)) return {};
    state_ = State::bytes;
    return transport.receive(from, kBytes, bytes_.span(), op_);
  }
  bytes_.clear();
  state_ = State::idle;
  ++ended;
  return {};
}

}  // namespace lmdbio::ranks
