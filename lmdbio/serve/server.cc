#include "lmdbio/serve/server.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "lmdbio/base/mix.h"
#include "lmdbio/cache/packed_range.h"
#include "lmdbio/serve/server_parts.h"

namespace lmdbio::serve {

namespace {

using Request = node::ServiceRequests::Request;

/// Messages with questions, or with answers, that may arrive at the same time.
constexpr std::size_t kMessagesAtOnce = 16;
/// Bytes that are read, but not kept, beyond which no request is accepted.
constexpr std::uint64_t kMostTransient = std::uint64_t{64} << 20;
/// How long a home that did not answer is not asked, in ns.  Each pause is twice as long as the one before,
/// less an eighth for each answer in between.  The first pause ends when the home says that it works.
constexpr std::int64_t kFirstPause = 1'000'000'000, kLongestPause = 60'000'000'000;
/// The longest time between two steps that counts as waiting, in ns: a server that does not run hears
/// nothing.
constexpr std::int64_t kMostStep = 10'000'000;
constexpr std::int64_t kLookEvery = 1'000'000'000;
/// How long after its last question a server is told that this one works, in ns.
constexpr std::int64_t kTold = 5'000'000'000;
/// How long an answer may take in all, in ns.
constexpr std::int64_t kLongestQuestion = 10'000'000'000;
/// The part of the patience for a home that a server has whose name the home has given.
constexpr std::int64_t kHolderShare = 3;
/// Bytes that are received at the same time.
constexpr std::uint64_t kMostArriving = std::uint64_t{16} << 20;

}  // namespace

enum Server::Channel : unsigned {
  kQuestions,
  kAnswers,  ///< tells of the bytes that follow on kBytes
  kBytes,
};

std::uint32_t home_of(const node::ServedState& file, std::uint64_t chunk, std::uint32_t ranks) noexcept {
  const std::uint64_t row = chunk / ranks;
  return static_cast<std::uint32_t>((chunk + mix(file.contents[0] + row)) % ranks);
}

Server::Server(node::ServiceRequests& programs, ranks::Transport& transport, HomeFiles& files,
               const Settings& settings) noexcept
    : programs_(programs), transport_(transport), home_(files), settings_(settings) {}

Server::~Server() = default;

bool Server::has_ended() const noexcept {
  const auto is_busy = [](const std::unique_ptr<File>& f) {
    return f->home != nullptr && f->home->is_busy();
  };
  return waiting_.empty() && sending_.empty() && arriving_.empty() &&
         std::none_of(files_.begin(), files_.end(), is_busy);
}

bool Server::end() {
  (void)transport_.poll();
  bool all = true;
  const auto cancel = [&](ranks::Operation& op) {
    if (!op.done()) transport_.cancel(op);
    all = all && op.done();
  };
  for (Incoming& q : questions_) cancel(q.op);
  for (Incoming& a : answers_) cancel(a.op);
  return all;
}

bool Server::is_busy() const noexcept {
  return !waiting_.empty() || !sending_.empty() ||
         std::any_of(asked_.begin(), asked_.end(), [](const Asked& a) { return a.request.has_value(); });
}

bool Server::is_storing() const noexcept {
  return std::any_of(files_.begin(), files_.end(), [](const std::unique_ptr<File>& f) {
    return f->home != nullptr && f->home->is_storing();
  });
}

Status Server::start() {
  asked_.resize(node::kServiceSlots);
  const auto start = [&](std::deque<Incoming>& incoming, Channel channel) {
    incoming.push_back({std::make_unique_for_overwrite<std::byte[]>(kMessageBytes), {}});
    if (failed_.ok()) failed_ = receive(incoming.back(), channel);
  };
  for (std::size_t i = 0; i < kMessagesAtOnce; ++i) {
    start(questions_, kQuestions);
    start(answers_, kAnswers);
  }
  return failed_;
}

Status Server::receive(Incoming& incoming, Channel channel) {
  return transport_.receive(ranks::kAnyRank, channel, {incoming.bytes.get(), kMessageBytes}, incoming.op);
}

bool Server::may_accept() const noexcept {
  std::uint64_t transient = 0;
  for (const Waiting& w : waiting_) transient += w.bytes;
  for (const std::unique_ptr<File>& f : files_)
    for (const auto& [question, from] : f->questions) transient += question.bytes;
  return transient < kMostTransient;
}

// Takes the messages that have arrived, in the sequence of the receives, and receives again.  Questions wait
// while too many bytes are being read; answers need no reads.
template <class Accept>
Status Server::take(std::deque<Incoming>& incoming, Channel channel, Accept&& accept) {
  while (!incoming.empty() && incoming.front().op.done() && (channel != kQuestions || may_accept())) {
    Incoming first = std::move(incoming.front());
    incoming.pop_front();
    if (!first.op.status.ok()) return first.op.status;
    accept(Bytes(first.bytes.get(), first.op.bytes), first.op.from);
    incoming.push_back(std::move(first));
    if (const Status st = receive(incoming.back(), channel); !st.ok()) return st;
  }
  return {};
}

Status Server::step() {
  const auto note = [this](Status st) {
    if (failed_.ok() && !st.ok()) failed_ = st;
  };
  const std::int64_t now = settings_.now();
  waited_ += std::min(now - std::exchange(last_step_ns_, now), kMostStep);
  const std::uint64_t events = transport_.events;
  note(transport_.poll());
  has_advanced_ = transport_.events != events;
  for (const std::unique_ptr<File>& f : files_) advance(*f);
  if (failed_.ok())
    note(take(answers_, kAnswers, [&](Bytes message, std::uint32_t from) {
      while (const std::optional<Answer> a = next_answer(message)) note(accept_answer(*a, from));
    }));
  for (auto a = arriving_.begin(); a != arriving_.end();) {
    if (!a->begun || !a->op.done()) {
      ++a;
      continue;
    }
    const bool good = a->op.status.ok() && a->op.bytes == a->size;
    // Else the bytes of later answers would be taken for those of others.
    if (!good) note(a->op.status.ok() ? Status::from_errno(EPROTO) : a->op.status);
    Arriving arrived = std::move(*a);
    a = arriving_.erase(a);
    if (!arrived.wanted) continue;
    if (!good) {
      read_alone(arrived.slot);
      continue;
    }
    const Request request = *asked_[arrived.slot].request;
    give_program(arrived.slot, {arrived.bytes.get(), arrived.size},
                 arrived.is_packed ? Form::packed : Form::plain);
    if (arrived.is_packed)
      answer_followers(request, {}, {});  // they ask the home
    else
      keep_for_others(request, std::move(arrived.bytes), arrived.size);
  }
  if (failed_.ok()) note(receive_bytes());
  for (const Sending& sent : sending_)
    if (sent.op.done()) note(sent.op.status);
  std::erase_if(sending_, [](const Sending& s) { return s.op.done(); });

  for (unsigned slot = 0; slot < asked_.size(); ++slot) {
    Asked& asked = asked_[slot];
    if (!asked.request) continue;
    Peer& home = peers_[asked.home];
    const bool is_holder = asked.to == Question::To::holder;
    const std::int64_t patience = is_holder ? settings_.patience / kHolderShare : settings_.patience;
    const bool hangs = waited_ - asked.since >= kLongestQuestion;
    if (failed_.ok() && !hangs && waited_ - std::max(asked.since, home.heard) < patience) continue;
    if (is_holder) {
      ask_home_again(slot);
      continue;
    }
    if (now >= home.silent_until) {
      // A home that works, but does not answer, is not asked again as soon as it says that it works.
      home.pause = std::clamp(2 * home.pause, hangs ? 2 * kFirstPause : kFirstPause, kLongestPause);
      home.silent_until = now + home.pause;
    }
    read_alone(slot);
  }

  if (failed_.ok())
    note(take(questions_, kQuestions, [&](Bytes message, std::uint32_t from) {
      while (const std::optional<Question> q = next_question(message)) accept_question(*q, from);
    }));
  while (!ending_ && may_accept()) {
    const std::optional<Request> request = programs_.next();
    if (!request) break;
    accept_program(*request);
  }
  for (std::size_t i = 0; i < waiting_.size();) {
    if (!waiting_[i].block->is_done()) {
      ++i;
      continue;
    }
    const Waiting waiting = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    give(waiting);
  }
  if (has_read_ && !ending_ && now >= next_sign_ns_) show_work(now);
  for (auto& [to, message] : outgoing_) flush(to.first, to.second, message);
  outgoing_.clear();
  if (now >= next_look_ns_) {
    next_look_ns_ = now + kLookEvery;
    programs_.free_slots_of_dead();
    node::ServiceCounts shown = counts_;
    shown.kept += copied_;
    programs_.show_counts(shown);
    for (const std::unique_ptr<File>& f : files_) look_at(*f);
  }
  return failed_;
}

// Tells others that this server works: its own programs, and servers that may wait for an answer.  A server
// whose reads do not end tells nothing, even if it lives.
void Server::show_work(std::int64_t now) {
  has_read_ = false;
  next_sign_ns_ = now + settings_.patience / 4;
  programs_.show_work();
  for (auto& [rank, peer] : peers_)
    if (peer.asked != 0 && now - peer.asked < kTold && now - peer.answered >= settings_.patience / 4)
      answer(rank, {Answer::Kind::working}, {}, {});
}

// Asks another server for the bytes of a program's request.
void Server::ask(const Request& request, std::uint32_t server, Question::To to) {
  File& file = *files_[request.file];
  const bool knows = to == Question::To::holder || !file.told.insert(server).second;
  const Question question{file.state,
                          request.offset,
                          static_cast<std::uint32_t>(request.bytes),
                          request.slot,
                          ++numbers_,
                          to,
                          knows ? std::string_view() : std::string_view(file.path)};
  (void)outgoing(server, kQuestions, question, request.bytes);
  asked_[request.slot] = {request, server, question.number, to, waited_};
}

// Another server does not bring the bytes.
void Server::accept_no(Asked& asked, const Answer& answer, std::uint32_t from) {
  File& file = *files_[asked.request->file];
  if (asked.to == Question::To::holder) return ask_home_again(answer.slot);
  if (answer.kind == Answer::Kind::other_file) file.refused.insert(from);
  file.told.erase(from);  // it may have forgotten the file
  read_alone(answer.slot);
}

// Reads from this node's file system what a home was asked for.
void Server::read_alone(unsigned slot) {
  const Request request = *std::exchange(asked_[slot], {}).request;
  File& file = *files_[request.file];
  for (Arriving& a : arriving_) a.wanted = a.wanted && a.slot != slot;
  answer_followers(request, {}, {});
  if (!read_here({request, transport_.rank(), 0, 0, {}, &file, nullptr, request.offset, request.bytes},
                 false))
    programs_.finish(request, -EIO, {});
}

// Gives a program the bytes that another server has brought.
void Server::give_program(unsigned slot, Bytes bytes, Form form) {
  Asked& asked = asked_[slot];
  counts_.from_nodes += bytes.size();
  auto result = static_cast<std::int64_t>(bytes.size());
  if (form == Form::packed) {
    const Result<cache::PackedRange> range = cache::PackedRange::parse(bytes);
    if (!range || range.value().bytes() > asked.request->bytes) return read_alone(slot);
    result |= node::kPackedResult;
    counts_.to_programs += range.value().bytes();
  } else {
    counts_.to_programs += bytes.size();
  }
  programs_.finish(*asked.request, result, bytes);
  asked.request.reset();
  Peer& home = peers_[asked.home];
  home.pause -= (home.pause + 7) / 8;
}

Status Server::accept_answer(const Answer& answer, std::uint32_t from) {
  Peer& peer = peers_[from];
  peer.heard = waited_;
  if (peer.pause <= kFirstPause) peer.silent_until = 0;
  if (answer.kind == Answer::Kind::working) {
    programs_.show_work();
    return {};
  }
  Asked* const asked = answer.slot < asked_.size() ? &asked_[answer.slot] : nullptr;
  const bool wanted =
      asked != nullptr && asked->request && asked->home == from && asked->number == answer.number;
  if (answer.kind == Answer::Kind::elsewhere) {
    if (wanted) ask_holder(*asked, answer.bytes);
    return {};
  }
  const bool fits = wanted && answer.bytes <= asked->request->bytes;
  if (answer.kind == Answer::Kind::inline_bytes) {
    if (fits && answer.bytes != 0) give_program(answer.slot, answer.contents, Form::plain);
    return {};
  }
  if (answer.kind != Answer::Kind::bytes && answer.kind != Answer::Kind::packed) {
    if (wanted) accept_no(*asked, answer, from);
    return {};
  }
  if (answer.bytes == 0 || answer.bytes > node::kServiceBytes) return Status::from_errno(EPROTO);
  // Not into the slot, which may serve another request before the bytes come.
  arriving_.push_back(
      {{}, false, answer.slot, from, fits, answer.bytes, answer.kind == Answer::Kind::packed, {}});
  return {};
}

// Receives bytes that were announced, in this sequence, as long as they take little memory.
Status Server::receive_bytes() {
  std::uint64_t bytes = 0;
  for (Arriving& a : arriving_) {
    bytes += a.size;
    if (a.begun) continue;
    if (bytes > std::max<std::uint64_t>(kMostArriving, a.size)) return {};
    a.bytes = std::make_unique_for_overwrite<std::byte[]>(a.size);
    if (const Status st = transport_.receive(a.from, kBytes, {a.bytes.get(), a.size}, a.op); !st.ok())
      return st;
    a.begun = true;
  }
  return {};
}

void Server::accept_question(Question question, std::uint32_t from) {
  peers_[from].asked = settings_.now();
  if (question.to == Question::To::holder) return answer_as_holder(question, from);
  File* const file = find_or_open(std::string(question.path), question.state);
  question.path = {};  // the message ends
  if (file == nullptr) return answer(from, {Answer::Kind::none, question.slot, question.number}, {}, {});
  if (file->opened) return answer_question(*file, question, from);
  file->questions.emplace_back(question, from);
}

void Server::answer(std::uint32_t rank, Answer answer, Bytes bytes, std::shared_ptr<const void> owner) {
  peers_[rank].answered = settings_.now();
  const bool follow = answer.kind == Answer::Kind::bytes || answer.kind == Answer::Kind::packed;
  if (follow) answer.bytes = static_cast<std::uint32_t>(bytes.size());
  if (answer.kind == Answer::Kind::bytes && bytes.size() <= kInlineBytes) {
    answer.kind = Answer::Kind::inline_bytes;
    answer.contents = bytes;
  }
  Outgoing& message = outgoing(rank, kAnswers, answer, bytes.size());
  if (follow && answer.kind != Answer::Kind::inline_bytes)
    message.following.emplace_back(bytes, std::move(owner));
}

// Adds an entry to the message of this step for another server.  `bytes`: that the entry asks for or brings.
template <class Entry>
Server::Outgoing& Server::outgoing(std::uint32_t rank, Channel channel, const Entry& entry,
                                   std::uint64_t bytes) {
  Outgoing& message = outgoing_[{rank, channel}];
  if (message.entries.size() + size_of(entry) > kMessageBytes || message.bytes + bytes > node::kServiceBytes)
    flush(rank, channel, message);
  append(message.entries, entry);
  message.bytes += bytes;
  return message;
}

// Sends a message, and the bytes that follow it.
void Server::flush(std::uint32_t rank, Channel channel, Outgoing& message) {
  const Outgoing sent = std::exchange(message, {});
  const auto send = [&](Channel on, std::vector<std::byte> entries, Bytes bytes,
                        const std::shared_ptr<const void>& owner) {
    if (!failed_.ok()) return;  // an answer without its bytes would give them to the next one
    sending_.push_back({{}, std::move(entries), owner});
    Sending& now = sending_.back();
    failed_ = transport_.send(rank, on, bytes.empty() ? Bytes(now.bytes) : bytes, now.op);
    if (!failed_.ok()) sending_.pop_back();
  };
  if (sent.entries.empty()) return;
  send(channel, sent.entries, {}, {});
  for (const auto& [bytes, owner] : sent.following) send(kBytes, {}, bytes, owner);
}

}  // namespace lmdbio::serve
