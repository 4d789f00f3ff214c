#include "lmdbio/ranks/receiver.h"

#include <algorithm>
#include <cerrno>
#include <compare>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "lmdbio/base/bytes.h"

namespace lmdbio::ranks {

using records::Position;

namespace {

/// Most rounds that are opened in one call.  An order may have no end, and most rounds may have no records
/// of this rank.
constexpr unsigned kOpenedInACall = 64;

std::uint32_t others(const std::vector<std::uint32_t>& ranks, std::uint32_t rank) noexcept {
  return static_cast<std::uint32_t>(
      std::count_if(ranks.begin(), ranks.end(), [rank](std::uint32_t r) { return r != rank; }));
}

}  // namespace

Receiver::Receiver(const Assignment& assignment, std::vector<std::uint32_t> reader_ranks, unsigned ahead,
                   Transport& transport, Sender* sender, std::shared_ptr<PayloadMemory> memory,
                   std::uint64_t keeps, std::vector<std::uint32_t> nodes)
    : assignment_(assignment),
      reader_ranks_(std::move(reader_ranks)),
      ahead_(ahead),
      transport_(transport),
      sender_(sender),
      memory_(std::move(memory)),
      nodes_(std::move(nodes)),
      share_(assignment.order_of(transport.rank())),
      next_(assignment.first_round(assignment.start_of(transport.rank()).epoch)),
      keeps_(keeps),
      ends_(reader_ranks_.size()),
      end_messages_(others(reader_ranks_, transport.rank()), kEndFromReader) {
  for (std::size_t r = 0; r < reader_ranks_.size(); ++r)
    if (reader_ranks_[r] == transport.rank()) ends_[r].received = ends_[r].sent = true;
}

void Receiver::take_end_message(std::uint32_t rank, std::uint64_t messages) noexcept {
  const auto reader = static_cast<std::uint32_t>(std::find(reader_ranks_.begin(), reader_ranks_.end(), rank) -
                                                 reader_ranks_.begin());
  EndOfStream& e = ends_[reader];
  e.received = true;
  e.messages = messages;
  // Parts whose messages the reader has not sent, and will not send.
  for (const std::deque<Round>* const rounds : {&late_, &rounds_})
    for (const Round& round : *rounds)
      for (const std::shared_ptr<Part>& part : round.parts) {
        if (part->reader != reader || part->own || part->sequence < messages || !part->is_due()) continue;
        if (!part->op.done()) transport_.cancel(part->op);
        part->state = Part::State::failed;
      }
}

Status Receiver::exchange_end_messages() {
  const Status st = end_messages_.progress(
      transport_, [this](std::uint32_t rank, std::uint64_t n) { take_end_message(rank, n); });
  if (!st.ok() || !left_) return st;
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    EndOfStream& e = ends_[r];
    if (std::exchange(e.sent, true)) continue;
    if (const Status sent = transport_.send(reader_ranks_[r], kEndToReader, {}, e.out); !sent.ok())
      return sent;
  }
  return {};
}

bool Receiver::may_open() const noexcept {
  return !left_ && assignment_.epoch_of(next_) <= assignment_.last_epoch() &&
         (rounds_.size() < ahead_ || next_ < required_);
}

void Receiver::leave() noexcept {
  left_ = true;
  kept_.clear();
  for (const Round& round : rounds_)
    for (const std::shared_ptr<Part>& part : round.parts) part->own_records = {};
}

bool Receiver::closed() const noexcept {
  return left_ && rounds_.empty() && late_.empty() &&
         std::all_of(ends_.begin(), ends_.end(), [&](const EndOfStream& e) {
           const bool own = reader_ranks_[static_cast<std::size_t>(&e - ends_.data())] == transport_.rank();
           return e.received && e.sent && e.out.done() && (own || e.all_came());
         });
}

bool Receiver::needs_any(const Round& round) const noexcept {
  const std::uint64_t epoch = assignment_.epoch_of(round.number);
  for (std::uint64_t p = round.positions.begin; p < round.positions.end; ++p)
    if (assignment_.is_needed(transport_.rank(), share_, {epoch, p})) return true;
  return false;
}

// Returns the round of an earlier epoch that has the same records as round next_, if it is still in use.
const Receiver::Round* Receiver::same_before() const noexcept {
  for (const std::deque<Round>* const rounds : {&rounds_, &late_})
    for (auto at = rounds->rbegin(); at != rounds->rend(); ++at)
      if ((next_ - at->number) % assignment_.rounds_per_epoch() == 0 && !at->index.empty()) return &*at;
  return nullptr;
}

std::shared_ptr<Receiver::Part> Receiver::failed_part(const Part& part) const {
  auto failed = std::make_shared<Part>();
  failed->reader = part.reader;
  failed->first = part.first;
  failed->count = part.count;
  failed->state = Part::State::failed;
  return failed;
}

// Opens a round whose records are not sent, since this rank has kept them.  This rank reads the records that
// it has not kept.  Returns false if the round cannot be opened yet.
bool Receiver::open_kept_round() {
  const auto kept = kept_.find(next_ % assignment_.rounds_per_epoch());
  Round round;
  if (kept != kept_.end()) {
    round = kept->second;  // its parts are shared
  } else if (const Round* const same = same_before(); same != nullptr) {
    if (std::any_of(same->parts.begin(), same->parts.end(),
                    [](const auto& part) { return part->is_due() && !part->overtaken; }))
      return false;
    round = *same;
    for (std::shared_ptr<Part>& part : round.parts)
      if (part->is_due() || part->own) part = failed_part(*part);
    round.kept = true;  // the earlier round will be kept
  }
  round.number = next_;
  if (round.index.empty()) {
    round.positions = assignment_.positions(transport_.rank(), round.number);
    round.index.assign(static_cast<std::size_t>(round.positions.size()), kNone);
  }
  if (needs_any(round)) rounds_.push_back(std::move(round));
  ++next_;
  return true;
}

// Returns whether the round's records are needed again in the next epoch, but are not sent then.
bool Receiver::is_to_be_kept(const Round& round) const noexcept {
  const std::uint64_t epoch = assignment_.epoch_of(round.number);
  return !left_ && keeps_ != 0 && epoch < assignment_.last_epoch() && !round.kept &&
         !assignment_.was_sent(transport_.rank(), round.number) &&
         assignment_.was_sent(transport_.rank(), round.number + assignment_.rounds_per_epoch());
}

// Keeps a round whose messages have all arrived.
void Receiver::keep(Round& round) {
  std::uint64_t bytes = 1;
  for (std::shared_ptr<Part>& part : round.parts) {
    if (part->own) part = failed_part(*part);  // would also keep the other records of the read
    bytes += part->bytes.counted() + part->count * kBytesPerEntry;
  }
  if (bytes > keeps_ - kept_bytes_) return;
  const auto [at, made] = kept_.try_emplace(round.number % assignment_.rounds_per_epoch(), std::move(round));
  if (!made) return;
  at->second.kept = true;
  at->second.kept_bytes = bytes;
  kept_bytes_ += bytes;
}

bool Receiver::busy() const noexcept {
  return std::any_of(rounds_.begin(), rounds_.end(), [](const Round& round) {
    return std::any_of(round.parts.begin(), round.parts.end(),
                       [](const auto& part) { return part->state == Part::State::bytes; });
  });
}

bool Receiver::resting() const noexcept {
  const bool all_are_kept = assignment_.kept_rounds() == assignment_.rounds_per_epoch() &&
                            assignment_.was_sent(transport_.rank(), next_);
  return (left_ || all_are_kept || assignment_.epoch_of(next_) > assignment_.last_epoch()) && late_.empty() &&
         std::all_of(rounds_.begin(), rounds_.end(), [](const Round& round) {
           return std::none_of(round.parts.begin(), round.parts.end(),
                               [](const auto& part) { return part->is_due(); });
         });
}

// Opens the next round.  `opened`: another one may follow.
Status Receiver::open_round(bool& opened) {
  opened = false;
  if (!may_open()) return {};
  const std::uint64_t epoch = assignment_.epoch_of(next_);
  const std::uint32_t rank = transport_.rank();
  if (assignment_.was_sent(rank, next_)) {
    opened = open_kept_round();
    return {};
  }
  Round round;
  round.number = next_;
  round.positions = assignment_.positions(rank, next_);
  struct Wanted {
    std::uint32_t part;
    std::uint64_t ordinal, position;
    auto operator<=>(const Wanted&) const = default;
  };
  std::vector<Wanted> wanted;
  bool asked_for = false;
  for (std::uint64_t p = round.positions.begin; p < round.positions.end; ++p) {
    if (!assignment_.is_needed(rank, share_, {epoch, p})) continue;
    asked_for = true;
    const std::uint64_t ordinal = share_.at(epoch, p);
    if (assignment_.is_record(ordinal))
      wanted.push_back({assignment_.part_of(round.number, ordinal), ordinal, p});
  }
  opened = true;
  if (!asked_for) {
    ++next_;
    return {};
  }
  std::sort(wanted.begin(), wanted.end());
  round.index.assign(static_cast<std::size_t>(round.positions.size()), kNone);
  for (std::size_t i = 0; i < wanted.size();) {
    const std::uint32_t number = wanted[i].part;
    auto part = std::make_shared<Part>();
    part->reader = assignment_.reader_of(round.number, number);
    part->first = i;
    for (; i < wanted.size() && wanted[i].part == number; ++i) {
      round.ordinals.push_back(wanted[i].ordinal);
      part->hash = ordinals_hash(part->hash, wanted[i].ordinal);
      round.index[static_cast<std::size_t>(wanted[i].position - round.positions.begin)] =
          static_cast<std::uint32_t>(i);
    }
    part->count = i - part->first;
    part->own = reader_ranks_[part->reader] == rank;
    // A reader whose order is another function may have sent a larger header, or that of another round.
    if (!part->own)
      part->header.resize(header_bytes(
          assignment_.by_function() ? static_cast<std::size_t>(assignment_.most_positions()) : part->count));
    round.parts.push_back(std::move(part));
  }
  rounds_.push_back(std::move(round));
  ++next_;
  for (const std::shared_ptr<Part>& part : rounds_.back().parts) {
    if (part->own) continue;
    EndOfStream& e = ends_[part->reader];
    part->sequence = e.expected++;
    if (part->sequence >= e.messages) {
      part->state = Part::State::failed;
      continue;
    }
    if (const Status st = transport_.receive(reader_ranks_[part->reader], kHeaders, part->header, part->op);
        !st.ok())
      return st;
  }
  return {};
}

// Checks the header of a part.  Of a wrong message, only the size is used.
Status Receiver::read_header(const Round& round, Part& part, std::string& why) {
  MessageHeader header{};
  if (part.header.size() >= sizeof header) header = load<MessageHeader>(part.header.data());
  std::uint64_t bytes = 0;
  bool due = part.header.size() == header_bytes(part.count) && header.records == part.count &&
             header.round == static_cast<std::uint32_t>(round.number) && header.hash == part.hash;
  if (due) {
    part.sizes.resize(part.count);
    part.at.resize(part.count);
    std::memcpy(part.sizes.data(), part.header.data() + sizeof header, part.count * sizeof(RecordSizes));
    for (std::size_t i = 0; i < part.count; ++i) {
      part.at[i] = static_cast<std::size_t>(bytes);
      if (part.sizes[i].key != RecordSizes::kFailed)
        bytes += std::uint64_t{part.sizes[i].key} + part.sizes[i].value;
    }
    due = bytes == header.bytes;
  }
  part.header = std::vector<std::byte>();
  part.size = static_cast<std::size_t>(header.bytes);
  part.unwanted = !due;
  part.state = part.size != 0 ? Part::State::room : due ? Part::State::done : Part::State::failed;
  if (due) return {};
  why = "a message of rank " + std::to_string(reader_ranks_[part.reader]) +
        " is not the one that is due: all ranks need the same order and the same file";
  return Status::from_errno(EPROTO);
}

// Advances a part.  `dropped`: its records are received only to be dropped, for which there is spare memory.
Status Receiver::move_on(const Round& round, Part& part, bool dropped, std::string& why) {
  if (part.state == Part::State::failed) return {};
  if (part.own) {
    if (part.state == Part::State::done || !sender_->take_own(round.number, part.own_records)) return {};
    if (!part.own_records.copied) {
      part.state = Part::State::done;
      if (part.own_records.hash == part.hash && part.own_records.which.size() == part.count) return {};
      part.state = Part::State::failed;
      why = "the function of the order does not always return the same ordinals";
      return left_ ? Status() : Status::from_errno(EPROTO);
    }
    part.header = part.own_records.header;
    const Status st = read_header(round, part, why);
    part.bytes = std::move(part.own_records.bytes);
    part.own_records = {};
    part.own = false;  // treat it like a message that was received
    part.state = part.unwanted ? Part::State::failed : Part::State::done;
    return left_ ? Status() : st;
  }
  while (part.is_due() && part.op.done()) {
    if (!part.op.status.ok()) {
      why = "a message of rank " + std::to_string(reader_ranks_[part.reader]) + " did not arrive";
      return part.op.status;
    }
    if (part.state == Part::State::bytes) {
      bytes_ += part.bytes.size();
      if (nodes_.empty() || nodes_[reader_ranks_[part.reader]] != nodes_[transport_.rank()])
        bytes_from_nodes_ += part.bytes.size();
      part.state = part.unwanted ? Part::State::failed : Part::State::done;
      if (part.unwanted) part.bytes.clear();
      break;
    }
    if (part.state == Part::State::header) {
      part.header.resize(std::min(part.header.size(), part.op.bytes));
      if (const Status st = read_header(round, part, why); !st.ok() && !left_) return st;
      if (!part.is_due()) break;
    }
    if (!part.bytes.make(memory_, part.size)) {
      if (!(dropped && part.bytes.make(spare_, part.size))) {
        lacks_memory_ = true;
        break;
      }
      part.unwanted = true;
    }
    part.state = Part::State::bytes;
    if (const Status st = transport_.receive(reader_ranks_[part.reader], kBytes, part.bytes.span(), part.op);
        !st.ok())
      return st;
  }
  return {};
}

Status Receiver::progress(std::string& why) {
  if (const Status st = exchange_end_messages(); !st.ok()) return st;
  bool opened = true;
  for (unsigned n = 0; opened && n < kOpenedInACall; ++n)
    if (const Status st = open_round(opened); !st.ok()) return st;
  // A reader sends its messages in the sequence of rounds, so their bytes are received in this sequence.
  // The first rounds get memory first.
  std::vector<bool> behind(reader_ranks_.size());
  lacks_memory_ = false;
  if (const Status st = move_on(late_, true, behind, why); !st.ok()) return st;
  if (const Status st = move_on(rounds_, left_, behind, why); !st.ok()) return st;
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    EndOfStream& e = ends_[r];
    if (reader_ranks_[r] == transport_.rank()) continue;
    const bool more = left_ && e.received && e.expected < e.messages;
    if (behind[r] || (!more && e.drain.idle())) continue;
    if (const Status st = e.drain.progress(
            transport_, reader_ranks_[r], more,
            header_bytes(static_cast<std::size_t>(assignment_.most_positions())), spare_, e.expected);
        !st.ok()) {
      why = "a message of rank " + std::to_string(reader_ranks_[r]) + " did not arrive";
      return st;
    }
  }
  const auto is_over = [this](const Round& round) { return over(round); };
  for (Round& round : late_)
    if (over(round) && is_to_be_kept(round)) keep(round);
  std::erase_if(late_, is_over);
  if (left_) std::erase_if(rounds_, is_over);
  if (lacks_memory_ && !kept_.empty()) {  // drop the round that is needed last
    kept_bytes_ -= kept_.rbegin()->second.kept_bytes;
    kept_.erase(std::prev(kept_.end()));
  }
  return {};
}

Status Receiver::move_on(std::deque<Round>& rounds, bool dropped, std::vector<bool>& behind,
                         std::string& why) {
  for (const Round& round : rounds) {
    for (const std::shared_ptr<Part>& part : round.parts) {
      if (!part->is_due() || behind[part->reader]) continue;
      if (lacks_memory_ && !part->own && !dropped && part->state != Part::State::bytes) {
        behind[part->reader] = true;
        continue;
      }
      if (const Status st = move_on(round, *part, dropped, why); !st.ok()) return st;
      if (part->state == Part::State::done && left_) part->bytes.clear();
      if (part->state == Part::State::done && !part->overtaken) ends_[part->reader].late = false;
      behind[part->reader] = part->state == Part::State::header || part->state == Part::State::room;
    }
  }
  return {};
}

// Returns whether nothing of the round is under way, and the sender keeps nothing for it.
bool Receiver::over(const Round& round) const noexcept {
  return std::all_of(round.parts.begin(), round.parts.end(), [this](const std::shared_ptr<Part>& p) {
    return (p->own && sender_->has_left()) || !p->is_due();
  });
}

Receiver::Found Receiver::find(Position at, lmdbio_record& out, std::shared_ptr<const void>& keep,
                               bool impatient) {
  if (left_) return Found::failed;
  for (const Round& round : rounds_) {
    if (assignment_.epoch_of(round.number) != at.epoch || at.position < round.positions.begin ||
        at.position >= round.positions.end)
      continue;
    const std::uint32_t i = round.index[static_cast<std::size_t>(at.position - round.positions.begin)];
    if (i == kNone) return Found::failed;  // not a record: reading it reports the error
    const auto part = std::upper_bound(round.parts.begin(), round.parts.end(), i,
                                       [](std::uint32_t n, const auto& p) { return n < p->first; }) -
                      1;
    Part& p = **part;
    if (p.state == Part::State::failed) return Found::failed;
    if (p.state != Part::State::done) {
      if (!impatient && !ends_[p.reader].late) return Found::pending;
      p.overtaken = ends_[p.reader].late = true;
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

void Receiver::drop_before(Position at) noexcept {
  while (!rounds_.empty()) {
    Round& first = rounds_.front();
    const std::uint64_t epoch = assignment_.epoch_of(first.number);
    if (epoch > at.epoch || (epoch == at.epoch && first.positions.end > at.position)) return;
    const bool kept = is_to_be_kept(first);
    try {
      if (!over(first)) {
        late_.push_back(std::move(first));
        if (!kept) {  // its records are not requested any more
          late_.back().ordinals = std::vector<std::uint64_t>();
          late_.back().index = std::vector<std::uint32_t>();
        }
      } else if (kept) {
        keep(first);
      }
    } catch (const std::bad_alloc&) {
      return;  // the next call tries again
    }
    rounds_.pop_front();
  }
}

}  // namespace lmdbio::ranks
