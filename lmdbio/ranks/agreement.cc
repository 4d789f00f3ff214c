#include "lmdbio/ranks/agreement.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lmdbio/base/mix.h"

namespace lmdbio::ranks {

using records::Position;

namespace {

/// Channels of the transport.
enum : unsigned { kAnswers, kClaims, kStarts };

/// The other ranks wait longer than rank 0 by this time, because only rank 0 can name the missing ranks.
constexpr std::int64_t kLongerNs = std::int64_t{10} * 1'000'000'000;
/// Upper limit for the time between two calls of progress() that counts as waiting.
constexpr std::int64_t kMostPassedNs = 1'000'000'000;
/// Maximum number of numbers to try.  If all of them are in use, the agreement gets a number in use.  Its
/// port can then be opened only after it has become free.
constexpr unsigned kMostNumbers = 1 << 16;

template <std::size_t n>
void put(char (&to)[n], std::string_view from) noexcept {
  std::memset(to, 0, n);
  std::memcpy(to, from.data(), std::min(from.size(), n - 1));
}

std::uint64_t hash(std::string_view text, std::uint64_t seed) noexcept {
  std::uint64_t h = mix(seed);
  for (const char c : text) h = mix(h ^ static_cast<unsigned char>(c));
  return mix(h ^ text.size());
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
  return std::as_bytes(std::span(&value, 1));
}

std::string seconds_text(std::int64_t ns) { return std::to_string(ns / 1'000'000'000) + " s"; }

}  // namespace

Agreement::Agreement(Transport& transport, std::string host, std::int64_t timeout_ns)
    : transport_(transport), host_(std::move(host)), timeout_ns_(timeout_ns) {}

std::uint64_t Agreement::claim(std::string_view path, std::string_view name, const FileState& state,
                               std::string_view why, const Terms& terms) {
  std::string text(path);
  text.append(1, '\0').append(name);
  Hash key{hash(text, 1), hash(text, 2)};
  const std::uint64_t nth = opens_[key]++;
  key.low = mix(key.low ^ nth);
  const std::uint64_t number = next_claim_++;
  claims_[number] = {std::string(path), key, terms.kind, 0, {}};
  claim_again(number, state, why, terms);
  return number;
}

void Agreement::claim_again(std::uint64_t number, const FileState& state, std::string_view why,
                            const Terms& terms) {
  Claim& claim = claims_.at(number);
  claim.waited_ns = 0;
  claim.answer = {};
  auto out = std::make_unique<Sent<ClaimMessage>>();
  ClaimMessage& m = out->message;
  m.claim = number;
  m.key = claim.key;
  m.state = state;
  m.failed = why.empty() ? 0 : 1;
  m.terms = terms;
  put(m.host, host_);
  put(m.path, claim.path);
  put(m.why, why);
  claims_out_.push_back(std::move(out));
}

Agreement::Answer Agreement::answer(std::uint64_t claim) const {
  const auto at = claims_.find(claim);
  if (at != claims_.end()) return at->second.answer;
  Answer none;
  none.verdict = Verdict::failed;
  none.code = EINVAL;
  none.why = "no such claim";
  return none;
}

void Agreement::hear(const AnswerMessage& message, std::shared_ptr<const std::vector<Position>> starts) {
  const auto at = claims_.find(message.claim);
  if (at == claims_.end() || at->second.answer.verdict != Verdict::pending) return;
  Answer& answer = at->second.answer;
  answer.verdict = static_cast<Verdict>(message.verdict);
  answer.late = false;
  answer.number = message.number;
  answer.code = message.code;
  answer.why = message.why;
  answer.offer = message.offer;
  answer.votes = message.votes;
  answer.starts = std::move(starts);
}

// Compares the claims of all ranks.  If they differ, sets `code` and `why` to an error that names the first
// different rank.
Agreement::Verdict Agreement::judge(const Matched& matched, int& code, std::string& why) const {
  const auto who = [&](std::size_t rank) {
    return "rank " + std::to_string(rank) + " (" + matched.by_rank[rank]->host + ")";
  };
  std::size_t failed = 0, first_failed = 0;
  for (std::size_t r = matched.by_rank.size(); r-- > 0;)
    if (matched.by_rank[r]->failed != 0) ++failed, first_failed = r;
  if (failed != 0) {
    code = matched.by_rank[first_failed]->terms.code;
    if (code == 0) code = EREMOTEIO;
    why = who(first_failed) + ": " + matched.by_rank[first_failed]->why;
    if (failed > 1) why += " (and " + std::to_string(failed - 1) + " other ranks)";
    return Verdict::failed;
  }
  for (std::size_t r = 1; r < matched.by_rank.size(); ++r) {
    if (matched.by_rank[r]->terms.options == matched.by_rank[0]->terms.options) continue;
    code = EINVAL;
    why = std::string(matched.by_rank[r]->path) + ": " + who(r) + " has other lmdbio_mpi_options than " +
          who(0);
    return Verdict::failed;
  }
  const FileState& first = matched.by_rank[0]->state;
  const auto other = std::find_if(matched.by_rank.begin(), matched.by_rank.end(),
                                  [&](const auto& m) { return !(m->state == first); });
  if (other == matched.by_rank.end()) return Verdict::agreed;
  const auto others_rank = static_cast<std::size_t>(other - matched.by_rank.begin());
  if (const Terms::Kind kind = matched.by_rank[0]->terms.kind; kind != Terms::Kind::file) {
    code = EINVAL;
    why = std::string((*other)->path) + ": " + who(others_rank) +
          (kind == Terms::Kind::stream ? " opened a stream with another order than "
                                       : " follows it with other options or another state than ") +
          who(0);
    return Verdict::failed;
  }
  code = ESTALE;
  bool changed = matched.before.empty();
  for (std::size_t r = 0; !changed && r < matched.by_rank.size(); ++r)
    changed = !(matched.before[r] == matched.by_rank[r]->state);
  if (changed && matched.renewals < kMostRenewals) return Verdict::renew;
  const FileState& theirs = (*other)->state;
  const auto differs = [&](const char* what, std::uint64_t here, std::uint64_t there) {
    return std::string(what) + " " + std::to_string(there) + ", but " + std::to_string(here) + " on " +
           who(0);
  };
  why = std::string((*other)->path) + ": " +
        (changed ? "changes too often to be opened: " : "not the same file on all ranks: ") +
        who(others_rank) + " has ";
  if (theirs.size != first.size)
    why += differs("a size of", first.size, theirs.size);
  else if (theirs.txnid != first.txnid)
    why += differs("transaction", first.txnid, theirs.txnid);
  else if (theirs.mtime_ns != first.mtime_ns)
    why += differs("a modification time of", first.mtime_ns, theirs.mtime_ns);
  else
    why += "other meta pages than " + who(0);
  return Verdict::failed;
}

Status Agreement::answer_all(Matched& matched, Verdict verdict, int code, const std::string& why) {
  if (verdict == Verdict::agreed)
    for (unsigned tries = 0; tries < kMostNumbers && in_use_(next_number_); ++tries) ++next_number_;
  const std::uint32_t number = verdict == Verdict::agreed ? next_number_++ : 0;
  std::uint64_t offer = UINT64_MAX;
  std::uint32_t votes = UINT32_MAX;
  std::shared_ptr<std::vector<Position>> starts;
  if (verdict == Verdict::agreed) {
    bool differ = false;
    for (const auto& m : matched.by_rank) {
      offer = std::min(offer, m->terms.offer);
      votes &= m->terms.votes;
      totals_.add(m->terms.totals);
      differ = differ || m->terms.start != matched.by_rank[0]->terms.start;
    }
    if (differ) {
      starts = std::make_shared<std::vector<Position>>();
      for (const auto& m : matched.by_rank) starts->push_back(m->terms.start);
    }
  }
  for (std::size_t r = 0; r < matched.by_rank.size(); ++r) {
    if (matched.by_rank[r] == nullptr) continue;
    AnswerMessage m;
    m.claim = matched.by_rank[r]->claim;
    m.verdict = static_cast<std::uint32_t>(verdict);
    m.number = number;
    m.code = code;
    m.offer = offer;
    m.votes = votes;
    m.starts = starts != nullptr ? static_cast<std::uint32_t>(starts->size()) : 0;
    put(m.why, why);
    if (r == transport_.rank()) {
      hear(m, starts);
      continue;
    }
    auto out = std::make_unique<Sent<AnswerMessage>>();
    out->to = static_cast<std::uint32_t>(r);
    out->message = m;
    out->starts = starts;
    Status st = transport_.send(out->to, kAnswers, bytes_of(out->message), out->op);
    if (st.ok() && starts != nullptr)
      st = transport_.send(out->to, kStarts, std::as_bytes(std::span(*starts)), out->starts_op);
    answers_out_.push_back(std::move(out));
    if (!st.ok()) return st;
  }
  return {};
}

Status Agreement::take(std::uint32_t rank, const ClaimMessage& message) {
  Matched& matched = matched_[message.key];
  if (matched.by_rank.empty()) {
    matched.by_rank.resize(transport_.ranks());
  }
  matched.by_rank[rank] = std::make_unique<ClaimMessage>(message);
  matched.waits_for_ever = message.terms.kind == Terms::Kind::end;
  ++matched.claimed;
  std::string why;
  int code = 0;
  Verdict verdict = Verdict::pending;
  if (const auto given_up = given_up_.find(message.key); given_up != given_up_.end()) {
    why = given_up->second;
    code = ETIMEDOUT;
    verdict = Verdict::failed;
  } else if (matched.claimed == matched.by_rank.size()) {
    verdict = judge(matched, code, why);
  }
  if (verdict == Verdict::pending) return {};
  if (const Status st = answer_all(matched, verdict, code, why); !st.ok()) return st;
  if (verdict != Verdict::renew) {
    matched_.erase(message.key);
    return {};
  }
  matched.before.clear();
  for (auto& m : matched.by_rank) {
    matched.before.push_back(m->state);
    m.reset();
  }
  matched.claimed = 0;
  matched.waited_ns = 0;
  ++matched.renewals;
  return {};
}

// Answers claims that not all ranks have made within the time limit.
Status Agreement::give_up_late(std::int64_t passed_ns) {
  for (auto at = matched_.begin(); at != matched_.end();) {
    Matched& matched = at->second;
    matched.waited_ns += passed_ns;
    if (matched.waited_ns < timeout_ns_ || matched.waits_for_ever) {
      ++at;
      continue;
    }
    std::string missing, path;
    std::size_t n = 0;
    for (std::size_t r = 0; r < matched.by_rank.size(); ++r) {
      if (matched.by_rank[r] != nullptr)
        path = matched.by_rank[r]->path;
      else if (++n <= 4)
        missing += (n > 1 ? ", " : "") + std::to_string(r);
    }
    if (n > 4) missing += " and " + std::to_string(n - 4) + " more";
    const std::string why =
        path + ": rank " + missing + " did not open it within " + seconds_text(timeout_ns_);
    if (const Status st = answer_all(matched, Verdict::failed, ETIMEDOUT, why); !st.ok()) return st;
    given_up_[at->first] = why;
    at = matched_.erase(at);
  }
  return {};
}

Status Agreement::receive_claims() {
  if (claims_in_.empty()) claims_in_.resize(transport_.ranks());
  for (std::uint32_t r = 0; r < claims_in_.size(); ++r) {
    if (r == transport_.rank()) continue;
    auto& in = claims_in_[r];
    if (in != nullptr && !in->op.done()) continue;
    if (in != nullptr) {
      if (!in->op.status.ok()) return in->op.status;
      if (const Status st = take(r, in->message); !st.ok()) return st;
    } else {
      in = std::make_unique<Sent<ClaimMessage>>();
    }
    if (const Status st =
            transport_.receive(r, kClaims, std::as_writable_bytes(std::span(&in->message, 1)), in->op);
        !st.ok())
      return st;
  }
  return {};
}

Status Agreement::send_waiting() {
  for (const auto& out : claims_out_) {
    if (out->to != 0) continue;  // being sent
    out->to = 1;
    if (const Status st = transport_.send(0, kClaims, bytes_of(out->message), out->op); !st.ok()) return st;
  }
  std::erase_if(claims_out_, [](const auto& out) { return out->to != 0 && out->op.done(); });
  return {};
}

Status Agreement::progress(std::int64_t now_ns) {
  if (closing_) return {};
  // A long time since the last call does not count fully, because this rank could not receive claims or
  // answers.
  const std::int64_t passed_ns =
      last_ns_ != 0 ? std::clamp<std::int64_t>(now_ns - last_ns_, 0, kMostPassedNs) : 0;
  last_ns_ = now_ns;
  if (transport_.rank() == 0) {
    const auto own = std::exchange(claims_out_, {});
    for (const auto& out : own)
      if (const Status st = take(0, out->message); !st.ok()) return st;
    if (const Status st = receive_claims(); !st.ok()) return st;
    if (const Status st = give_up_late(passed_ns); !st.ok()) return st;
    std::erase_if(answers_out_, [](const auto& out) { return out->done(); });
    return {};
  }
  if (const Status st = send_waiting(); !st.ok()) return st;
  if (const Status st = hear_answers(); !st.ok()) return st;
  for (auto& [number, claim] : claims_) {
    if (claim.answer.verdict != Verdict::pending || claim.kind == Terms::Kind::end) continue;
    claim.waited_ns += passed_ns;
    if (claim.waited_ns < timeout_ns_ + kLongerNs || claim.answer.late) continue;
    claim.answer.late = true;
    claim.answer.code = ETIMEDOUT;
    claim.answer.why = claim.path + ": rank 0 did not answer within " +
                       seconds_text(timeout_ns_ + kLongerNs) +
                       ": has it opened it, and does it call LMDBIO or MPI?";
  }
  return {};
}

Status Agreement::hear_answers() {
  for (;;) {
    if (expects_answer_) {
      if (!answer_op_.done()) return {};
      if (!answer_op_.status.ok()) return answer_op_.status;
      if (answer_in_.starts != 0 && starts_in_ == nullptr) {
        auto starts = std::make_shared<std::vector<Position>>(answer_in_.starts);
        if (const Status st =
                transport_.receive(0, kStarts, std::as_writable_bytes(std::span(*starts)), starts_op_);
            !st.ok())
          return st;
        starts_in_ = std::move(starts);
      }
      if (!starts_op_.done()) return {};
      if (!starts_op_.status.ok()) return starts_op_.status;
      hear(answer_in_, std::exchange(starts_in_, nullptr));
    }
    expects_answer_ = true;
    if (const Status st =
            transport_.receive(0, kAnswers, std::as_writable_bytes(std::span(&answer_in_, 1)), answer_op_);
        !st.ok())
      return st;
  }
}

bool Agreement::close() {
  closing_ = true;
  if (expects_answer_ && !answer_op_.done()) transport_.cancel(answer_op_);
  bool all = answer_op_.done();
  for (const auto& in : claims_in_) {
    if (in == nullptr) continue;
    if (!in->op.done()) transport_.cancel(in->op);
    all = all && in->op.done();
  }
  const auto done = [](const auto& out) { return out->done(); };
  return all && std::all_of(claims_out_.begin(), claims_out_.end(), done) &&
         std::all_of(answers_out_.begin(), answers_out_.end(), done);
}

}  // namespace lmdbio::ranks
