#include "lmdbio/dist/receiver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lmdbio/base/bytes.h"

namespace lmdbio::dist {

using reader::Spot;

Receiver::Receiver(const Deal& deal, std::vector<std::uint32_t> reader_ranks, unsigned ahead,
                   Transport& transport, Sender* sender)
    : deal_(deal),
      reader_ranks_(std::move(reader_ranks)),
      ahead_(ahead),
      transport_(transport),
      sender_(sender),
      share_(deal.order_of(transport.rank())),
      next_(deal.first_round(deal.start_of(transport.rank()).epoch)) {}

// `opened`: there may be another one.
Status Receiver::open_round(bool& opened) {
  opened = false;
  const std::uint64_t epoch = deal_.epoch_of(next_);
  if ((rounds_.size() >= ahead_ && next_ >= required_) || epoch > deal_.last_epoch()) return {};
  const std::uint32_t rank = transport_.rank();
  Round round;
  round.number = next_;
  round.positions = deal_.positions(rank, next_);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> wanted;  // ordinal, position
  for (std::uint64_t p = round.positions.begin; p < round.positions.end; ++p)
    if (deal_.is_needed(rank, share_, {epoch, p})) wanted.emplace_back(share_.at(epoch, p), p);
  opened = true;
  ++next_;
  if (wanted.empty()) return {};
  std::sort(wanted.begin(), wanted.end());
  round.index.assign(static_cast<std::size_t>(round.positions.size()), kNone);
  for (std::size_t i = 0; i < wanted.size();) {
    const std::uint32_t number = deal_.part_of(round.number, wanted[i].first);
    auto part = std::make_shared<Part>();
    part->reader = deal_.reader_of(round.number, number);
    part->first = i;
    for (; i < wanted.size() && deal_.part_of(round.number, wanted[i].first) == number; ++i) {
      round.ordinals.push_back(wanted[i].first);
      round.index[static_cast<std::size_t>(wanted[i].second - round.positions.begin)] =
          static_cast<std::uint32_t>(i);
    }
    part->count = i - part->first;
    part->own = reader_ranks_[part->reader] == rank;
    round.parts.push_back(std::move(part));
  }
  rounds_.push_back(std::move(round));
  for (const std::shared_ptr<Part>& part : rounds_.back().parts) {
    if (part->own) continue;
    part->header.resize(header_bytes(part->count));
    if (const Status st = transport_.receive(reader_ranks_[part->reader], kHeaders, part->header, part->op);
        !st.ok())
      return st;
  }
  return {};
}

Status Receiver::read_header(const Round& round, Part& part, std::string& why) {
  const auto header = load<MessageHeader>(part.header.data());
  std::uint64_t bytes = 0;
  part.sizes.resize(part.count);
  part.at.resize(part.count);
  if (part.op.bytes == part.header.size() && header.records == part.count &&
      header.round == static_cast<std::uint32_t>(round.number)) {
    std::memcpy(part.sizes.data(), part.header.data() + sizeof header, part.count * sizeof(RecordSizes));
    for (std::size_t i = 0; i < part.count; ++i) {
      part.at[i] = static_cast<std::size_t>(bytes);
      if (part.sizes[i].key != RecordSizes::kFailed)
        bytes += std::uint64_t{part.sizes[i].key} + part.sizes[i].value;
    }
    part.header = {};
    if (bytes == header.bytes) {
      part.bytes.resize(static_cast<std::size_t>(bytes));
      part.state = bytes == 0 ? Part::State::done : Part::State::bytes;
      return {};
    }
  }
  why = "a message of rank " + std::to_string(reader_ranks_[part.reader]) +
        " is not the one that is due: all ranks need the same order and the same file";
  return Status::from_errno(EPROTO);
}

Status Receiver::move_on(const Round& round, Part& part, std::string& why) {
  if (part.own) {
    if (part.state != Part::State::done && sender_->take_own(round.number, part.own_records))
      part.state = Part::State::done;
    return {};
  }
  while (part.state != Part::State::done && part.op.done()) {
    if (!part.op.status.ok()) {
      why = "a message of rank " + std::to_string(reader_ranks_[part.reader]) + " did not arrive";
      return part.op.status;
    }
    if (part.state == Part::State::bytes) {
      if (part.op.bytes != part.bytes.size()) {
        why = "a message of rank " + std::to_string(reader_ranks_[part.reader]) + " is cut short";
        return Status::from_errno(EPROTO);
      }
      part.state = Part::State::done;
      break;
    }
    if (const Status st = read_header(round, part, why); !st.ok()) return st;
    if (part.state == Part::State::done) break;
    if (const Status st = transport_.receive(reader_ranks_[part.reader], kBytes, part.bytes, part.op);
        !st.ok())
      return st;
  }
  return {};
}

Status Receiver::progress(std::string& why) {
  for (bool opened = true; opened;)
    if (const Status st = open_round(opened); !st.ok()) return st;
  // A reader's bytes of a round are asked for before those of its next one: they come in this order.
  std::vector<bool> behind(reader_ranks_.size());
  for (const Round& round : rounds_) {
    for (const std::shared_ptr<Part>& part : round.parts) {
      if (behind[part->reader]) continue;
      if (const Status st = move_on(round, *part, why); !st.ok()) return st;
      behind[part->reader] = part->state == Part::State::header;
    }
  }
  return {};
}

Receiver::Found Receiver::find(Spot at, lmdbio_record& out, std::shared_ptr<const void>& keep) {
  for (const Round& round : rounds_) {
    if (deal_.epoch_of(round.number) != at.epoch || at.position < round.positions.begin ||
        at.position >= round.positions.end)
      continue;
    const std::uint32_t i = round.index[static_cast<std::size_t>(at.position - round.positions.begin)];
    const auto part = std::find_if(round.parts.begin(), round.parts.end(),
                                   [i](const auto& p) { return i >= p->first && i - p->first < p->count; });
    Part& p = **part;
    if (p.state != Part::State::done) return Found::pending;
    const std::size_t n = i - p.first;
    if (p.own) {
      std::string why;
      PartRead* const read = p.own_records.read.get();
      if (read == nullptr || !read->record(p.own_records.which[n], out, why).ok()) return Found::failed;
      keep = p.own_records.read;
      return Found::here;
    }
    const RecordSizes sizes = p.sizes[n];
    if (sizes.key == RecordSizes::kFailed) return Found::failed;
    std::byte* const bytes = p.bytes.data() + p.at[n];
    out.ordinal = round.ordinals[i];
    out.key = {sizes.key, bytes};
    out.value = {sizes.value, bytes + sizes.key};
    keep = *part;
    return Found::here;
  }
  return Found::pending;
}

void Receiver::drop_before(Spot at) {
  while (!rounds_.empty()) {
    const Round& first = rounds_.front();
    const std::uint64_t epoch = deal_.epoch_of(first.number);
    if (epoch > at.epoch || (epoch == at.epoch && first.positions.end > at.position)) return;
    rounds_.pop_front();
  }
}

bool Receiver::cancel() {
  bool all = true;
  for (const Round& round : rounds_)
    for (const std::shared_ptr<Part>& part : round.parts) {
      if (!part->op.done()) transport_.cancel(part->op);
      all = all && part->op.done();
    }
  return all;
}

}  // namespace lmdbio::dist
