#include "lmdbio/dist/receiver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lmdbio/base/bytes.h"

namespace lmdbio::dist {

using reader::Spot;

Receiver::Receiver(const Deal& deal, std::vector<std::uint32_t> reader_ranks, unsigned ahead,
                   Transport& transport, Sender* sender, std::shared_ptr<PayloadMemory> memory,
                   std::vector<std::uint32_t> nodes)
    : deal_(deal),
      reader_ranks_(std::move(reader_ranks)),
      ahead_(ahead),
      transport_(transport),
      sender_(sender),
      memory_(std::move(memory)),
      nodes_(std::move(nodes)),
      share_(deal.order_of(transport.rank())),
      next_(deal.first_round(deal.start_of(transport.rank()).epoch)),
      farewells_(reader_ranks_.size()) {
  for (std::size_t r = 0; r < reader_ranks_.size(); ++r)
    if (reader_ranks_[r] == transport.rank()) farewells_[r].heard = farewells_[r].sent = true;
}

Status Receiver::hear_farewells() {
  for (std::size_t r = 0; r < farewells_.size(); ++r) {
    Farewell& f = farewells_[r];
    if (!expected_ && !f.heard) {
      const Status st = transport_.receive(reader_ranks_[r], kFarewellFromReader,
                                           std::as_writable_bytes(std::span(&f.said, 1)), f.in);
      if (!st.ok()) return st;
    }
    if (left_ && !f.sent) {
      f.sent = true;
      if (const Status st = transport_.send(reader_ranks_[r], kFarewellToReader, {}, f.out); !st.ok())
        return st;
    }
    if (f.heard || !f.in.done()) continue;
    if (!f.in.status.ok()) return f.in.status;
    f.heard = true;
    f.begun = f.said;
    // What does not come any more.
    for (const std::deque<Round>* const rounds : {&late_, &rounds_})
      for (const Round& round : *rounds)
        for (const std::shared_ptr<Part>& part : round.parts) {
          if (part->reader != r || comes(round, *part)) continue;
          if (!part->op.done()) transport_.cancel(part->op);
          part->state = Part::State::failed;
        }
  }
  expected_ = true;
  return {};
}

// A rank that has left opens the rounds that are on their way to it once it knows which these are.
bool Receiver::may_open() const noexcept {
  if (deal_.epoch_of(next_) > deal_.last_epoch()) return false;
  if (!left_) return rounds_.size() < ahead_ || next_ < required_;
  bool wanted = false;
  for (std::size_t r = 0; r < farewells_.size(); ++r) {
    if (reader_ranks_[r] == transport_.rank()) continue;
    if (!farewells_[r].heard) return false;
    wanted = wanted || next_ < farewells_[r].begun;
  }
  return wanted;
}

void Receiver::leave() noexcept {
  left_ = true;
  for (const Round& round : rounds_)
    for (const std::shared_ptr<Part>& part : round.parts) part->own_records = {};
}

bool Receiver::closed() const noexcept {
  return left_ && rounds_.empty() && late_.empty() && !may_open() &&
         std::all_of(farewells_.begin(), farewells_.end(),
                     [](const Farewell& f) { return f.heard && f.sent && f.out.done(); });
}

// `opened`: there may be another one.
Status Receiver::open_round(bool& opened) {
  opened = false;
  if (!may_open()) return {};
  const std::uint64_t epoch = deal_.epoch_of(next_);
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
    if (!comes(rounds_.back(), *part)) {
      part->state = Part::State::failed;
      continue;
    }
    part->header.resize(header_bytes(part->count));
    if (const Status st = transport_.receive(reader_ranks_[part->reader], kHeaders, part->header, part->op);
        !st.ok())
      return st;
  }
  return {};
}

Status Receiver::read_header(const Round& round, Part& part, std::string& why) {
  MessageHeader header{};
  if (part.header.size() == header_bytes(part.count)) header = load<MessageHeader>(part.header.data());
  std::uint64_t bytes = 0;
  part.sizes.resize(part.count);
  part.at.resize(part.count);
  if (header.records == part.count && header.round == static_cast<std::uint32_t>(round.number)) {
    std::memcpy(part.sizes.data(), part.header.data() + sizeof header, part.count * sizeof(RecordSizes));
    for (std::size_t i = 0; i < part.count; ++i) {
      part.at[i] = static_cast<std::size_t>(bytes);
      if (part.sizes[i].key != RecordSizes::kFailed)
        bytes += std::uint64_t{part.sizes[i].key} + part.sizes[i].value;
    }
    part.header = {};
    if (bytes == header.bytes) {
      part.size = static_cast<std::size_t>(bytes);
      part.state = bytes == 0 ? Part::State::done : Part::State::room;
      return {};
    }
  }
  why = "a message of rank " + std::to_string(reader_ranks_[part.reader]) +
        " is not the one that is due: all ranks need the same order and the same file";
  return Status::from_errno(EPROTO);
}

// `dropped`: nobody wants its records any more.
Status Receiver::move_on(const Round& round, Part& part, bool dropped, std::string& why) {
  if (part.state == Part::State::failed) return {};
  if (part.own) {
    if (part.state == Part::State::done || !sender_->take_own(round.number, part.own_records)) return {};
    if (!part.own_records.copied) {
      part.state = Part::State::done;
      return {};
    }
    part.own = false;  // as if it had come
    part.header = std::move(part.own_records.header);
    const Status st = read_header(round, part, why);
    part.bytes = std::move(part.own_records.bytes);
    part.state = Part::State::done;
    return st;
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
      bytes_ += part.bytes.size();
      if (nodes_.empty() || nodes_[reader_ranks_[part.reader]] != nodes_[transport_.rank()])
        bytes_from_nodes_ += part.bytes.size();
      break;
    }
    if (part.state == Part::State::header) {
      if (part.op.bytes != part.header.size()) part.header.clear();
      if (const Status st = read_header(round, part, why); !st.ok()) return st;
      if (part.state == Part::State::done) break;
    }
    if (!part.bytes.make(memory_, part.size) && !(dropped && part.bytes.make(spare_, part.size))) {
      lacks_memory_ = true;
      break;
    }
    part.state = Part::State::bytes;
    if (const Status st = transport_.receive(reader_ranks_[part.reader], kBytes, part.bytes.span(), part.op);
        !st.ok())
      return st;
  }
  return {};
}

Status Receiver::progress(std::string& why) {
  if (const Status st = hear_farewells(); !st.ok()) return st;
  for (bool opened = true; opened;)
    if (const Status st = open_round(opened); !st.ok()) return st;
  // A reader's bytes of a round are asked for before those of its next one: they come in this order.
  // Memory goes to the first rounds.
  std::vector<bool> behind(reader_ranks_.size());
  lacks_memory_ = false;
  if (const Status st = move_on(late_, true, behind, why); !st.ok()) return st;
  if (const Status st = move_on(rounds_, left_, behind, why); !st.ok()) return st;
  const auto is_over = [this](const Round& round) { return over(round); };
  std::erase_if(late_, is_over);
  if (left_) std::erase_if(rounds_, is_over);
  return {};
}

Status Receiver::move_on(std::deque<Round>& rounds, bool dropped, std::vector<bool>& behind,
                         std::string& why) {
  for (const Round& round : rounds) {
    for (const std::shared_ptr<Part>& part : round.parts) {
      if (part->state == Part::State::done || behind[part->reader]) continue;
      if (lacks_memory_ && !part->own && part->state != Part::State::bytes) continue;
      if (const Status st = move_on(round, *part, dropped, why); !st.ok()) return st;
      if (part->state == Part::State::done && dropped) part->bytes.clear();
      if (part->state == Part::State::done && !part->overtaken) farewells_[part->reader].late = false;
      behind[part->reader] = part->state == Part::State::header || part->state == Part::State::room;
    }
  }
  return {};
}

// Nothing of it is under way, and the sender keeps nothing for it.
bool Receiver::over(const Round& round) const noexcept {
  return std::all_of(round.parts.begin(), round.parts.end(), [this](const std::shared_ptr<Part>& p) {
    return (p->own && sender_->has_left()) || p->state == Part::State::done ||
           p->state == Part::State::failed;
  });
}

Receiver::Found Receiver::find(Spot at, lmdbio_record& out, std::shared_ptr<const void>& keep,
                               bool impatient) {
  for (const Round& round : rounds_) {
    if (deal_.epoch_of(round.number) != at.epoch || at.position < round.positions.begin ||
        at.position >= round.positions.end)
      continue;
    const std::uint32_t i = round.index[static_cast<std::size_t>(at.position - round.positions.begin)];
    const auto part = std::upper_bound(round.parts.begin(), round.parts.end(), i,
                                       [](std::uint32_t n, const auto& p) { return n < p->first; }) -
                      1;
    Part& p = **part;
    if (p.state == Part::State::failed) return Found::failed;
    if (p.state != Part::State::done) {
      if (!impatient && !farewells_[p.reader].late) return Found::pending;
      p.overtaken = farewells_[p.reader].late = true;
      return Found::failed;
    }
    const std::size_t n = i - p.first;
    if (p.own) {
      std::string why;
      PartRead* const read = p.own_records.read.get();
      if (read == nullptr || !read->record(p.own_records.which[n], out, why).ok()) return Found::failed;
      keep = read->bytes();
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
    if (!over(first)) {
      late_.push_back(std::move(rounds_.front()));
      late_.back().ordinals = {};  // nobody asks for its records any more
      late_.back().index = {};
    }
    rounds_.pop_front();
  }
}

}  // namespace lmdbio::dist
