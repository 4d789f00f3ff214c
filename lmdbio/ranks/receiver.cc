#include "lmdbio/ranks/receiver.h"

#include <algorithm>
#include <compare>
#include <iterator>
#include <new>
#include <utility>

namespace lmdbio::ranks {

using records::Position;
using State = IncomingPart::State;

namespace {

/// Maximum number of rounds to open in one call.  The limit matters if an order has no end and few rounds
/// have records of this rank.
constexpr unsigned kOpenedInACall = 64;

std::uint32_t others(const std::vector<std::uint32_t>& ranks, std::uint32_t rank) noexcept {
  return static_cast<std::uint32_t>(
      std::count_if(ranks.begin(), ranks.end(), [rank](std::uint32_t r) { return r != rank; }));
}

}  // namespace

Receiver::Receiver(const Assignment& assignment, std::vector<std::uint32_t> reader_ranks, unsigned ahead,
                   Transport& transport, Sender* sender, std::shared_ptr<PayloadMemory> memory,
                   std::uint64_t keeps, std::span<const std::uint32_t> nodes)
    : assignment_(assignment),
      reader_ranks_(std::move(reader_ranks)),
      ahead_(ahead),
      transport_(transport),
      parts_{.transport = transport, .sender = sender, .memory = std::move(memory)},
      nodes_(nodes),
      share_(assignment.order_of(transport.rank())),
      next_(assignment.first_round(assignment.start_of(transport.rank()).epoch)),
      keeps_(keeps),
      readers_(reader_ranks_.size()),
      end_messages_(others(reader_ranks_, transport.rank()), kEndFromReader) {}

void Receiver::take_end_message(std::uint32_t rank, std::uint64_t messages) noexcept {
  const auto reader = static_cast<std::uint32_t>(std::find(reader_ranks_.begin(), reader_ranks_.end(), rank) -
                                                 reader_ranks_.begin());
  readers_[reader].messages = messages;
  // Fail the parts whose messages the reader will never send.
  for (const std::deque<Round>* const rounds : {&late_, &rounds_})
    for (const Round& round : *rounds)
      for (const std::shared_ptr<IncomingPart>& part : round.parts) {
        if (part->reader != reader || part->own || part->sequence < messages || !part->is_due()) continue;
        part->fail(transport_);
      }
}

Status Receiver::exchange_end_messages() {
  const Status st = end_messages_.progress(
      transport_, [this](std::uint32_t rank, std::uint64_t n) { take_end_message(rank, n); });
  if (!st.ok() || !left_early_ || !told_.empty()) return st;
  for (const std::uint32_t reader : reader_ranks_) {
    if (reader == transport_.rank()) continue;
    if (const Status sent = transport_.send(reader, kEndToReader, {}, told_.emplace_back()); !sent.ok())
      return sent;
  }
  return {};
}

// Returns whether all rounds whose messages this rank will receive have been opened.
bool Receiver::opens_no_more() const noexcept {
  const bool all_are_kept = assignment_.kept_rounds() == assignment_.rounds_per_epoch() &&
                            assignment_.was_sent(transport_.rank(), next_);
  return all_are_kept || assignment_.epoch_of(next_) > assignment_.last_epoch();
}

bool Receiver::may_open() const noexcept {
  return !parts_.left && assignment_.epoch_of(next_) <= assignment_.last_epoch() &&
         (rounds_.size() < ahead_ || next_ < required_);
}

void Receiver::leave() noexcept {
  if (parts_.left) return;
  // Ranks with different functions as their orders do not agree on the number of messages.
  left_early_ = !opens_no_more() || assignment_.by_function();
  parts_.left = true;
  kept_.clear();
  for (const Round& round : rounds_)
    for (const std::shared_ptr<IncomingPart>& part : round.parts) part->own_records = {};
}

bool Receiver::quiet() const noexcept {
  if (!parts_.left || !rounds_.empty() || !late_.empty()) return false;
  if (!left_early_) return true;
  return told_.size() == others(reader_ranks_, transport_.rank()) &&
         std::all_of(told_.begin(), told_.end(), [](const Operation& op) { return op.done(); }) &&
         std::all_of(readers_.begin(), readers_.end(), [&](const Reader& reader) {
           const auto r = static_cast<std::size_t>(&reader - readers_.data());
           return reader_ranks_[r] == transport_.rank() || reader.all_came();
         });
}

bool Receiver::needs_any(const Round& round) const noexcept {
  const std::uint64_t epoch = assignment_.epoch_of(round.number);
  for (std::uint64_t p = round.positions.begin; p < round.positions.end; ++p)
    if (assignment_.is_needed(transport_.rank(), share_, {epoch, p})) return true;
  return false;
}

// Returns a round of an earlier epoch with the same records as round next_, if such a round is still in use.
const Receiver::Round* Receiver::same_before() const noexcept {
  for (const std::deque<Round>* const rounds : {&rounds_, &late_})
    for (auto at = rounds->rbegin(); at != rounds->rend(); ++at)
      if ((next_ - at->number) % assignment_.rounds_per_epoch() == 0 && !at->index.empty()) return &*at;
  return nullptr;
}

// Opens a round whose records are not sent, because this rank has kept them.  This rank must read the records
// itself that it could not keep.  Returns false if the round cannot be opened yet.
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
    for (std::shared_ptr<IncomingPart>& part : round.parts)
      if (part->is_due() || part->own) part = part->as_failed();
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

// Returns whether the round's records are needed again in the next epoch and will not be sent again.
bool Receiver::is_to_be_kept(const Round& round) const noexcept {
  const std::uint64_t epoch = assignment_.epoch_of(round.number);
  return !parts_.left && keeps_ != 0 && epoch < assignment_.last_epoch() && !round.kept &&
         !assignment_.was_sent(transport_.rank(), round.number) &&
         assignment_.was_sent(transport_.rank(), round.number + assignment_.rounds_per_epoch());
}

// Keeps a round whose messages have all arrived.
void Receiver::keep(Round& round) {
  std::uint64_t bytes = 1;
  for (std::shared_ptr<IncomingPart>& part : round.parts) {
    if (part->own) part = part->as_failed();  // to keep it would also keep the other records of the read
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
                       [](const auto& part) { return part->state == State::bytes; });
  });
}

bool Receiver::resting() const noexcept {
  return (parts_.left || opens_no_more()) && late_.empty() &&
         std::all_of(rounds_.begin(), rounds_.end(), [](const Round& round) {
           return std::none_of(round.parts.begin(), round.parts.end(),
                               [](const auto& part) { return part->is_due(); });
         });
}

// Opens the next round, if allowed.  Sets `opened` to whether another round may be opened.
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
    auto part = std::make_shared<IncomingPart>();
    part->reader = assignment_.reader_of(round.number, number);
    part->from = reader_ranks_[part->reader];
    part->from_other_node = nodes_.empty() || nodes_[part->from] != nodes_[rank];
    part->first = i;
    for (; i < wanted.size() && wanted[i].part == number; ++i) {
      round.ordinals.push_back(wanted[i].ordinal);
      part->hash = ordinals_hash(part->hash, wanted[i].ordinal);
      round.index[static_cast<std::size_t>(wanted[i].position - round.positions.begin)] =
          static_cast<std::uint32_t>(i);
    }
    part->count = i - part->first;
    part->own = part->from == rank;
    // If a reader has another function as its order, its header may be larger, or belong to another round.
    if (!part->own)
      part->header.resize(header_bytes(
          assignment_.by_function() ? static_cast<std::size_t>(assignment_.most_positions()) : part->count));
    round.parts.push_back(std::move(part));
  }
  rounds_.push_back(std::move(round));
  ++next_;
  for (const std::shared_ptr<IncomingPart>& part : rounds_.back().parts) {
    if (part->own) continue;
    Reader& reader = readers_[part->reader];
    part->sequence = reader.expected++;
    if (part->sequence >= reader.messages) {
      part->state = State::failed;
      continue;
    }
    if (const Status st = part->begin(parts_); !st.ok()) return st;
  }
  return {};
}

Status Receiver::progress(std::string& why) {
  if (const Status st = exchange_end_messages(); !st.ok()) return st;
  bool opened = true;
  for (unsigned n = 0; opened && n < kOpenedInACall; ++n)
    if (const Status st = open_round(opened); !st.ok()) return st;
  // A reader sends its messages in the sequence of rounds.  Receive their bytes in the same sequence, so that
  // the first rounds get memory first.
  std::vector<bool> behind(reader_ranks_.size());
  parts_.lacks_memory = false;
  if (const Status st = move_on(late_, true, behind, why); !st.ok()) return st;
  if (const Status st = move_on(rounds_, parts_.left, behind, why); !st.ok()) return st;
  for (std::size_t r = 0; parts_.left && r < readers_.size(); ++r) {
    Reader& reader = readers_[r];
    if (!reader.has_ended() || behind[r]) continue;
    const bool more = reader.expected < reader.messages;
    if (more && reader.drain == nullptr) reader.drain = std::make_unique<Drain>();
    if (reader.drain == nullptr || (!more && reader.drain->idle())) continue;
    if (const Status st =
            reader.drain->progress(transport_, reader_ranks_[r], more,
                                   header_bytes(static_cast<std::size_t>(assignment_.most_positions())),
                                   parts_.spare, reader.expected);
        !st.ok()) {
      why = "a message of rank " + std::to_string(reader_ranks_[r]) + " did not arrive";
      return st;
    }
  }
  const auto is_over = [this](const Round& round) { return over(round); };
  for (Round& round : late_)
    if (over(round) && is_to_be_kept(round)) keep(round);
  std::erase_if(late_, is_over);
  if (parts_.left) std::erase_if(rounds_, is_over);
  if (parts_.lacks_memory && !kept_.empty()) {  // drop the round that is needed last
    kept_bytes_ -= kept_.rbegin()->second.kept_bytes;
    kept_.erase(std::prev(kept_.end()));
  }
  return {};
}

Status Receiver::move_on(std::deque<Round>& rounds, bool dropped, std::vector<bool>& behind,
                         std::string& why) {
  for (const Round& round : rounds) {
    for (const std::shared_ptr<IncomingPart>& part : round.parts) {
      if (!part->is_due() || behind[part->reader]) continue;
      if (parts_.lacks_memory && !part->own && !dropped && part->state != State::bytes) {
        behind[part->reader] = true;
        continue;
      }
      if (const Status st = part->progress(round.number, dropped, parts_, why); !st.ok()) return st;
      if (part->state == State::done && parts_.left) part->bytes.clear();
      if (part->state == State::done && !part->overtaken) readers_[part->reader].late = false;
      behind[part->reader] = part->state == State::header || part->state == State::room;
    }
  }
  return {};
}

// Returns whether no part of the round is under way, and the sender keeps no records for the round.
bool Receiver::over(const Round& round) const noexcept {
  return std::all_of(round.parts.begin(), round.parts.end(), [this](const std::shared_ptr<IncomingPart>& p) {
    return (p->own && parts_.sender->has_left()) || !p->is_due();
  });
}

Receiver::Found Receiver::find(Position at, lmdbio_record& out, std::shared_ptr<const void>& keep,
                               bool impatient) {
  if (parts_.left) return Found::failed;
  for (const Round& round : rounds_) {
    if (assignment_.epoch_of(round.number) != at.epoch || at.position < round.positions.begin ||
        at.position >= round.positions.end)
      continue;
    const std::uint32_t i = round.index[static_cast<std::size_t>(at.position - round.positions.begin)];
    if (i == kNone) return Found::failed;  // not a record; a read of it reports the error
    const auto part = std::upper_bound(round.parts.begin(), round.parts.end(), i,
                                       [](std::uint32_t n, const auto& p) { return n < p->first; }) -
                      1;
    IncomingPart& p = **part;
    if (p.state == State::failed) return Found::failed;
    if (p.state != State::done) {
      if (!impatient && !readers_[p.reader].late) return Found::pending;
      p.overtaken = readers_[p.reader].late = true;
      return Found::failed;
    }
    return p.record(i - p.first, round.ordinals[i], out, keep) ? Found::here : Found::failed;
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
