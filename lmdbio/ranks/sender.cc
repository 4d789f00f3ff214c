#include "lmdbio/ranks/sender.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace lmdbio::ranks {

namespace {

template <class T>
void put(std::vector<std::byte>& to, const T& value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

std::byte* put(std::byte* to, const MDB_val& v) noexcept {
  if (v.mv_size != 0) std::memcpy(to, v.mv_data, v.mv_size);
  return to + v.mv_size;
}

/// This rank copies its own records if at most one kCopiedBelow-th of a read's records are its own.  Without
/// a copy, the program's batches would also keep the memory of the other records.  This rank always copies
/// records that it keeps, and records that were lent.
constexpr std::size_t kCopiedBelow = 2;
/// Limits for skipping rounds without records to read: the number of rounds in one call, and the number of
/// rounds beyond the one that this rank uses.  In an order without an end, a reader may never have a record
/// to read.
constexpr unsigned kPassedInACall = 16;
constexpr std::uint64_t kPassedAhead = 256;

}  // namespace

Sender::Sender(const Assignment& assignment, std::uint32_t reader,
               const std::vector<std::uint32_t>& reader_ranks, unsigned ahead, const Turns::Settings& turns,
               Transport& transport, PartSource& source, std::shared_ptr<PayloadMemory> memory)
    : assignment_(assignment),
      reader_(reader),
      ahead_(ahead),
      first_(assignment.first_round(assignment.first_epoch())),
      transport_(transport),
      source_(source),
      memory_(std::move(memory)),
      ranks_(transport.ranks()),
      end_messages_(transport.ranks() - 1, kEndToReader),
      turns_(turns, reader_ranks, reader, transport) {
  if (assignment.is_scattered() && assignment.has_all_records() && turns.group == 0 && source.caches())
    load_ = std::make_unique<OwnerLoad>(assignment, reader, source);
}

void Sender::use_page_cache(double share) noexcept {
  if (assignment_.is_scattered() || assignment_.last_epoch() <= assignment_.first_epoch()) return;
  const std::uint64_t rounds = assignment_.rounds_per_epoch(), kept = assignment_.kept_rounds();
  const auto room = static_cast<std::uint64_t>(static_cast<double>(rounds) * share);
  cached_ = {kept, kept + std::min(room, rounds - kept)};
}

Status Sender::send_end_message(std::uint32_t rank) {
  if (rank == transport_.rank() || std::exchange(ranks_[rank].told, true)) return {};
  EndMessage& end = told_.emplace_back();
  end.messages = ranks_[rank].messages;
  return transport_.send(rank, kEndFromReader, std::as_bytes(std::span(&end.messages, 1)), end.op);
}

Status Sender::exchange_end_messages() {
  Status answered;
  const Status st = end_messages_.progress(transport_, [&](std::uint32_t rank, std::uint64_t) {
    ranks_[rank].left = true;
    if (const Status sent = send_end_message(rank); answered.ok()) answered = sent;
  });
  if (!st.ok()) return st;
  if (!answered.ok() || !left_early_ || told_all_) return answered;
  told_all_ = true;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r)
    if (const Status sent = send_end_message(r); !sent.ok()) return sent;
  return {};
}

void Sender::leave() noexcept {
  left_early_ = left_early_ || !ended_ ||
                std::any_of(rounds_.begin(), rounds_.end(), [](const auto& round) { return !round->packed; });
  ended_ = left_ = true;
  planned_ = {};
  load_.reset();
  for (const auto& round : rounds_)
    if (!round->packed) next_ = std::min(next_, round->number);
  std::erase_if(rounds_, [](const auto& round) { return !round->packed; });
  for (const auto& round : rounds_) {
    round->own_taken = true;
    round->own_copy.reset();
    round->read.reset();
  }
}

bool Sender::quiet() const noexcept {
  return ended_ && rounds_.empty() && turns_.closed() && told_all_ == left_early_ &&
         std::all_of(told_.begin(), told_.end(), [](const EndMessage& end) { return end.op.done(); });
}

// Ends the turns of rounds that have been read, or that have no records to read.
Status Sender::take_turns() {
  const auto reading =
      std::find_if(rounds_.begin(), rounds_.end(), [](const auto& round) { return !round->is_read(); });
  turns_.ended((reading != rounds_.end() ? (*reading)->number : next_) - first_);
  if (ended_ && reading == rounds_.end()) turns_.leave();
  return turns_.progress();
}

// Plans round next_.  If it has no records to read, increases next_.  If no more rounds follow, sets ended_.
void Sender::plan_round() {
  const std::uint64_t epoch = assignment_.epoch_of(next_);
  if (next_ == assignment_.first_round(epoch)) {
    const std::uint64_t sent = assignment_.next_sent(next_);
    if (sent == UINT64_MAX) {
      ended_ = true;
      return;
    }
    if (sent != next_) {
      next_ = sent;
      return;
    }
  }
  std::vector<Assignment::Need> needs;
  assignment_.needs(next_, assignment_.part_read_by(next_, reader_), needs);
  std::erase_if(needs, [&](const Assignment::Need& need) {
    return need.rank == transport_.rank() ? own_unwanted_ : ranks_[need.rank].left;
  });
  if (needs.empty()) {
    ++next_;
    return;
  }
  auto round = std::make_unique<Round>();
  round->number = next_;
  std::vector<std::uint64_t> ordinals;
  ordinals.reserve(needs.size());
  std::map<std::uint32_t, Message*> messages;
  for (const Assignment::Need& need : needs) {
    if (ordinals.empty() || ordinals.back() != need.ordinal) ordinals.push_back(need.ordinal);
    const std::size_t i = ordinals.size() - 1;
    if (need.rank == transport_.rank()) {
      round->own.push_back(i);
      round->own_hash = ordinals_hash(round->own_hash, need.ordinal);
      round->own_taken = false;
      continue;
    }
    Message*& message = messages[need.rank];
    if (message == nullptr) {
      round->messages.push_back(std::make_unique<Message>());
      message = round->messages.back().get();
      message->to = need.rank;
    }
    message->which.push_back(i);
    message->hash = ordinals_hash(message->hash, need.ordinal);
  }
  round->records = ordinals.size();
  // Sort the messages, so that the readers do not all send to the same rank first.
  const std::uint32_t ranks = transport_.ranks(), self = transport_.rank();
  std::sort(round->messages.begin(), round->messages.end(), [&](const auto& a, const auto& b) {
    return (a->to + ranks - self) % ranks < (b->to + ranks - self) % ranks;
  });
  planned_ = {std::move(round), std::move(ordinals)};
}

bool Sender::busy() const noexcept {
  return (load_ != nullptr && load_->reads()) ||
         std::any_of(rounds_.begin(), rounds_.end(), [](const std::unique_ptr<Round>& round) {
           return !round->is_read() ||
                  std::any_of(round->messages.begin(), round->messages.end(), [&](const auto& message) {
                    return round->packed && message->header_op.done() && !message->bytes_op.done();
                  });
         });
}

// Starts the read of the next round.  Returns false if no round can be started at present.
bool Sender::start_round(std::uint64_t near) {
  for (unsigned passed = 0; planned_.round == nullptr; ++passed) {
    if (ended_ || rounds_.size() >= ahead_ || !turns_.may_begin(next_ - first_)) return false;
    if (passed == kPassedInACall || (next_ > near && next_ - near > kPassedAhead)) return false;
    plan_round();
  }
  std::unique_ptr<PartRead> read;
  std::string why;
  const bool comes_again = cached_.begin <= at_of_epoch(next_) && at_of_epoch(next_) < cached_.end;
  const Status st =
      source_.start(planned_.ordinals, {.may_lend = true, .comes_again = comes_again}, read, why);
  // Wait: reads and messages under way will release memory.
  if (st.raw() == ENOMEM && (!rounds_.empty() || (load_ != nullptr && load_->reads()))) return false;
  used_ += planned_.ordinals.size();
  planned_.round->read = std::move(read);  // if null, each rank reads its records itself
  rounds_.push_back(std::move(planned_.round));
  planned_ = {};
  ++next_;
  return true;
}

// Packs a message.  Returns false if memory is short.  `empty`: packs no records, so that the receiver reads
// them itself.
bool Sender::pack(Round& round, Message& message, bool empty) {
  if (!message.header.empty()) return true;
  std::vector<lmdbio_record> records(message.which.size());
  std::size_t bytes = 0;
  std::vector<RecordSizes> sizes(records.size(), RecordSizes{RecordSizes::kFailed, 0});
  for (std::size_t i = 0; i < records.size(); ++i) {
    std::string why;
    if (empty || round.read == nullptr || !round.read->record(message.which[i], records[i], why).ok())
      continue;
    sizes[i] = {static_cast<std::uint32_t>(records[i].key.mv_size),
                static_cast<std::uint32_t>(records[i].value.mv_size)};
    bytes += records[i].key.mv_size + records[i].value.mv_size;
  }
  if (!message.bytes.make(memory_, bytes)) return false;
  message.header.reserve(header_bytes(records.size()));
  put(message.header, MessageHeader{static_cast<std::uint32_t>(records.size()),
                                    static_cast<std::uint32_t>(round.number), bytes, message.hash});
  for (const RecordSizes& s : sizes) put(message.header, s);
  std::byte* to = message.bytes.data();
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (sizes[i].key == RecordSizes::kFailed) continue;
    to = put(to, records[i].key);
    to = put(to, records[i].value);
  }
  return true;
}

// Packs all messages of a round.  Afterwards, the read is needed only for this rank's own records, unless
// they were copied.
bool Sender::pack(Round& round, bool empty) {
  std::erase_if(round.messages, [&](const auto& message) { return ranks_[message->to].told; });
  if (round.read != nullptr && !round.read->still_lent()) round.read.reset();  // others read for themselves
  for (const std::unique_ptr<Message>& message : round.messages)
    if (!pack(round, *message, empty)) return false;
  const bool lends = round.read != nullptr && round.read->lends();
  if (empty) {  // memory is short: own records stay in the read, or are read again
    round.own_copy.reset();
    if (lends) round.read.reset();
  }
  if (empty || round.own_taken) return true;
  if (!assignment_.keeps(round.number) && !lends && round.own.size() * kCopiedBelow > round.records)
    return true;
  if (round.own_copy == nullptr) {
    auto copy = std::make_unique<Message>();
    copy->which = round.own;
    copy->hash = round.own_hash;
    round.own_copy = std::move(copy);
  }
  return pack(round, *round.own_copy);
}

Status Sender::send(Round& round) {
  for (const std::unique_ptr<Message>& message : round.messages) {
    if (const Status st = transport_.send(message->to, kHeaders, message->header, message->header_op);
        !st.ok())
      return st;
    ++ranks_[message->to].messages;
    ++messages_;
    bytes_ += message->bytes.size();
    if (message->bytes.empty()) continue;
    if (const Status st = transport_.send(message->to, kBytes, message->bytes.span(), message->bytes_op);
        !st.ok())
      return st;
  }
  round.packed = true;
  if (round.own_taken || round.own_copy != nullptr) round.read.reset();
  ++packed_;
  return {};
}

Status Sender::progress(std::uint64_t near) {
  if (const Status st = exchange_end_messages(); !st.ok()) return st;
  if (const Status st = take_turns(); !st.ok()) return st;
  while (start_round(near)) {
  }
  if (load_ != nullptr) {
    load_->progress(used_);
    if (load_->done()) load_.reset();
  }
  // Send in the sequence of rounds, because each rank expects the messages of a reader in this sequence.
  for (const std::unique_ptr<Round>& round : rounds_) {
    if (round->packed) continue;
    if (!round->is_read()) break;
    // If memory is short, wait until earlier rounds have been sent.  If there are no earlier rounds, send
    // empty messages, and do not wait until the program releases memory.
    if (!pack(*round) && (round != rounds_.front() || !pack(*round, true))) break;
    if (const Status st = send(*round); !st.ok()) return st;
  }
  Status failed;
  for (auto at = rounds_.begin(); at != rounds_.end();) {
    Round& round = **at;
    if (round.packed)
      std::erase_if(round.messages, [&](const std::unique_ptr<Message>& m) {
        if (!m->header_op.done() || !m->bytes_op.done()) return false;
        if (!m->header_op.status.ok()) failed = m->header_op.status;
        if (!m->bytes_op.status.ok()) failed = m->bytes_op.status;
        return true;
      });
    at = round.packed && round.messages.empty() && round.own_taken ? rounds_.erase(at) : at + 1;
  }
  return failed;
}

bool Sender::take_own(std::uint64_t number, OwnRecords& out) {
  for (const std::unique_ptr<Round>& round : rounds_) {
    if (round->number != number || round->own_taken) continue;
    if (!round->packed) return false;
    out.read = std::move(round->read);
    out.which = std::move(round->own);
    out.hash = round->own_hash;
    out.copied = round->own_copy != nullptr;
    if (out.copied) {
      out.header = std::move(round->own_copy->header);
      out.bytes = std::move(round->own_copy->bytes);
      round->own_copy.reset();
    }
    round->own_taken = true;
    return true;
  }
  return false;
}

}  // namespace lmdbio::ranks
