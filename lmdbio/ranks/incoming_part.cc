#include "lmdbio/ranks/incoming_part.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lmdbio/base/bytes.h"

namespace lmdbio::ranks {

std::shared_ptr<IncomingPart> IncomingPart::as_failed() const {
  auto failed = std::make_shared<IncomingPart>();
  failed->reader = reader;
  failed->from = from;
  failed->first = first;
  failed->count = count;
  failed->state = State::failed;
  return failed;
}

// Checks the header.  If the message is wrong, uses only its size.
Status IncomingPart::read_header(std::uint64_t round, std::string& why) {
  MessageHeader head{};
  if (header.size() >= sizeof head) head = load<MessageHeader>(header.data());
  std::uint64_t sum = 0;
  bool due = header.size() == header_bytes(count) && head.records == count &&
             head.round == static_cast<std::uint32_t>(round) && head.hash == hash;
  if (due) {
    sizes_.resize(count);
    at_.resize(count);
    std::memcpy(sizes_.data(), header.data() + sizeof head, count * sizeof(RecordSizes));
    for (std::size_t i = 0; i < count; ++i) {
      at_[i] = static_cast<std::size_t>(sum);
      if (sizes_[i].key != RecordSizes::kFailed) sum += std::uint64_t{sizes_[i].key} + sizes_[i].value;
    }
    due = sum == head.bytes;
  }
  header = std::vector<std::byte>();
  size_ = static_cast<std::size_t>(head.bytes);
  unwanted_ = !due;
  state = size_ != 0 ? State::room : due ? State::done : State::failed;
  if (due) return {};
  why = "a message of rank " + std::to_string(from) +
        " is not the one that is due: all ranks need the same order and the same file";
  return Status::from_errno(EPROTO);
}

// Takes the records that this rank has read itself, if they have been read.
Status IncomingPart::take_own(std::uint64_t round, IncomingParts& parts, std::string& why) {
  if (state == State::done || !parts.sender->take_own(round, own_records)) return {};
  if (!own_records.copied) {
    state = State::done;
    if (own_records.hash == hash && own_records.which.size() == count) return {};
    state = State::failed;
    why = "the function of the order does not always return the same ordinals";
    return parts.left ? Status() : Status::from_errno(EPROTO);
  }
  header = own_records.header;
  const Status st = read_header(round, why);
  bytes = std::move(own_records.bytes);
  own_records = {};
  own = false;  // treat it like a message that was received
  state = unwanted_ ? State::failed : State::done;
  return parts.left ? Status() : st;
}

Status IncomingPart::progress(std::uint64_t round, bool dropped, IncomingParts& parts, std::string& why) {
  if (state == State::failed) return {};
  if (own) return take_own(round, parts, why);
  while (is_due() && op.done()) {
    if (!op.status.ok()) {
      why = "a message of rank " + std::to_string(from) + " did not arrive";
      return op.status;
    }
    if (state == State::bytes) {
      parts.traffic.bytes_received += bytes.size();
      if (from_other_node) parts.traffic.bytes_from_nodes += bytes.size();
      state = unwanted_ ? State::failed : State::done;
      if (unwanted_) bytes.clear();
      break;
    }
    if (state == State::header) {
      header.resize(std::min(header.size(), op.bytes));
      if (const Status st = read_header(round, why); !st.ok() && !parts.left) return st;
      if (!is_due()) break;
    }
    if (!bytes.make(parts.memory, size_)) {
      if (!(dropped && bytes.make(parts.spare, size_))) {
        parts.lacks_memory = true;
        break;
      }
      unwanted_ = true;
    }
    state = State::bytes;
    if (const Status st = parts.transport.receive(from, kBytes, bytes.span(), op); !st.ok()) return st;
  }
  return {};
}

bool IncomingPart::record(std::size_t n, std::uint64_t ordinal, lmdbio_record& out,
                          std::shared_ptr<const void>& keep) const {
  if (own) {
    std::string why;
    PartRead* const read = own_records.read.get();
    if (read == nullptr || !read->record(own_records.which[n], out, why).ok()) return false;
    keep = read->bytes();
    return true;
  }
  const RecordSizes sizes = sizes_[n];
  if (sizes.key == RecordSizes::kFailed) return false;
  std::byte* const key = bytes.data() + at_[n];
  out.ordinal = ordinal;
  out.key = {sizes.key, key};
  out.value = {sizes.value, key + sizes.key};
  keep = shared_from_this();
  return true;
}

}  // namespace lmdbio::ranks
