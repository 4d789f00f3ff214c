#include "lmdbio/dist/agreement.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lmdbio/base/mix.h"

namespace lmdbio::dist {

namespace {

/// How much longer than rank 0 another rank waits: rank 0 knows who is missing.
constexpr std::int64_t kLongerNs = std::int64_t{10} * 1'000'000'000;

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
                               std::string_view why, std::int64_t now_ns) {
  std::string text(path);
  text.append(1, '\0').append(name);
  Hash key{hash(text, 1), hash(text, 2)};
  const std::uint64_t nth = opens_[key]++;
  key.low = mix(key.low ^ nth);
  const std::uint64_t number = next_claim_++;
  claims_[number] = {std::string(path), key, now_ns, {}};
  claim_again(number, state, why, now_ns);
  return number;
}

void Agreement::claim_again(std::uint64_t number, const FileState& state, std::string_view why,
                            std::int64_t now_ns) {
  Claim& claim = claims_.at(number);
  claim.since_ns = now_ns;
  claim.answer = {};
  auto out = std::make_unique<Sent<ClaimMessage>>();
  ClaimMessage& m = out->message;
  m.claim = number;
  m.key = claim.key;
  m.state = state;
  m.failed = why.empty() ? 0 : 1;
  put(m.host, host_);
  put(m.path, claim.path);
  put(m.why, why);
  claims_out_.push_back(std::move(out));
}

Agreement::Answer Agreement::answer(std::uint64_t claim) const {
  const auto at = claims_.find(claim);
  return at != claims_.end() ? at->second.answer : Answer{Verdict::failed, 0, "no such claim"};
}

void Agreement::hear(const AnswerMessage& message) {
  const auto at = claims_.find(message.claim);
  if (at == claims_.end() || at->second.answer.verdict != Verdict::pending) return;
  at->second.answer = {static_cast<Verdict>(message.verdict), message.number, message.why};
}

// Why ranks that have all claimed do not agree, by rank; or that they do.
Agreement::Verdict Agreement::judge(const Matched& matched, std::string& why) const {
  const auto who = [&](std::size_t rank) {
    return "rank " + std::to_string(rank) + " (" + matched.by_rank[rank]->host + ")";
  };
  std::size_t failed = 0, first_failed = 0;
  for (std::size_t r = matched.by_rank.size(); r-- > 0;)
    if (matched.by_rank[r]->failed != 0) ++failed, first_failed = r;
  if (failed != 0) {
    why = who(first_failed) + ": " + matched.by_rank[first_failed]->why;
    if (failed > 1) why += " (and " + std::to_string(failed - 1) + " other ranks)";
    return Verdict::failed;
  }
  const FileState& first = matched.by_rank[0]->state;
  const auto other = std::find_if(matched.by_rank.begin(), matched.by_rank.end(),
                                  [&](const auto& m) { return !(m->state == first); });
  if (other == matched.by_rank.end()) return Verdict::agreed;
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
        who(static_cast<std::size_t>(other - matched.by_rank.begin())) + " has ";
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

void Agreement::answer_all(Matched& matched, Verdict verdict, const std::string& why) {
  const std::uint32_t number = verdict == Verdict::agreed ? next_number_++ : 0;
  for (std::size_t r = 0; r < matched.by_rank.size(); ++r) {
    if (matched.by_rank[r] == nullptr) continue;
    AnswerMessage m;
    m.claim = matched.by_rank[r]->claim;
    m.verdict = static_cast<std::uint32_t>(verdict);
    m.number = number;
    put(m.why, why);
    if (r == transport_.rank()) {
      hear(m);
      continue;
    }
    auto out = std::make_unique<Sent<AnswerMessage>>();
    out->to = static_cast<std::uint32_t>(r);
    out->message = m;
    if (!transport_.send(out->to, 0, bytes_of(out->message), out->op).ok())
      continue;  // it finds out by itself
    answers_out_.push_back(std::move(out));
  }
}

void Agreement::take(std::uint32_t rank, const ClaimMessage& message, std::int64_t now_ns) {
  Matched& matched = matched_[message.key];
  if (matched.by_rank.empty()) {
    matched.by_rank.resize(transport_.ranks());
    matched.since_ns = now_ns;
  }
  matched.by_rank[rank] = std::make_unique<ClaimMessage>(message);
  ++matched.claimed;
  std::string why;
  Verdict verdict = Verdict::pending;
  if (const auto given_up = given_up_.find(message.key); given_up != given_up_.end()) {
    why = given_up->second;
    verdict = Verdict::failed;
  } else if (matched.claimed == matched.by_rank.size()) {
    verdict = judge(matched, why);
  }
  if (verdict == Verdict::pending) return;
  answer_all(matched, verdict, why);
  if (verdict != Verdict::renew) {
    matched_.erase(message.key);
    return;
  }
  matched.before.clear();
  for (auto& m : matched.by_rank) {
    matched.before.push_back(m->state);
    m.reset();
  }
  matched.claimed = 0;
  matched.since_ns = now_ns;
  ++matched.renewals;
}

// Not all ranks opened it.
void Agreement::give_up_late(std::int64_t now_ns) {
  for (auto at = matched_.begin(); at != matched_.end();) {
    Matched& matched = at->second;
    if (now_ns - matched.since_ns < timeout_ns_) {
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
    answer_all(matched, Verdict::failed, why);
    given_up_[at->first] = why;
    at = matched_.erase(at);
  }
}

Status Agreement::receive_claims(std::int64_t now_ns) {
  if (claims_in_.empty()) claims_in_.resize(transport_.ranks());
  for (std::uint32_t r = 0; r < claims_in_.size(); ++r) {
    if (r == transport_.rank()) continue;
    auto& in = claims_in_[r];
    if (in != nullptr && !in->op.done()) continue;
    if (in != nullptr) {
      if (!in->op.status.ok()) return in->op.status;
      take(r, in->message, now_ns);
    } else {
      in = std::make_unique<Sent<ClaimMessage>>();
    }
    if (const Status st =
            transport_.receive(r, 1, std::as_writable_bytes(std::span(&in->message, 1)), in->op);
        !st.ok())
      return st;
  }
  return {};
}

Status Agreement::send_waiting() {
  for (const auto& out : claims_out_) {
    if (out->to != 0) continue;  // under way
    out->to = 1;
    if (const Status st = transport_.send(0, 1, bytes_of(out->message), out->op); !st.ok()) return st;
  }
  std::erase_if(claims_out_, [](const auto& out) { return out->to != 0 && out->op.done(); });
  return {};
}

Status Agreement::progress(std::int64_t now_ns) {
  if (transport_.rank() == 0) {
    const auto own = std::exchange(claims_out_, {});
    for (const auto& out : own) take(0, out->message, now_ns);
    if (const Status st = receive_claims(now_ns); !st.ok()) return st;
    give_up_late(now_ns);
    std::erase_if(answers_out_, [](const auto& out) { return out->op.done(); });
    return {};
  }
  if (const Status st = send_waiting(); !st.ok()) return st;
  for (;;) {
    if (expects_answer_) {
      if (!answer_op_.done()) break;
      if (!answer_op_.status.ok()) return answer_op_.status;
      hear(answer_in_);
    }
    expects_answer_ = true;
    if (const Status st =
            transport_.receive(0, 0, std::as_writable_bytes(std::span(&answer_in_, 1)), answer_op_);
        !st.ok())
      return st;
  }
  for (auto& [number, claim] : claims_)
    if (claim.answer.verdict == Verdict::pending && now_ns - claim.since_ns >= timeout_ns_ + kLongerNs)
      claim.answer = {Verdict::failed, 0,
                      claim.path + ": rank 0 did not answer within " + seconds_text(timeout_ns_ + kLongerNs) +
                          ": has it opened it, and does it call LMDBIO or MPI?"};
  return {};
}

bool Agreement::close() {
  if (expects_answer_ && !answer_op_.done()) transport_.cancel(answer_op_);
  bool all = answer_op_.done();
  for (const auto& in : claims_in_) {
    if (in == nullptr) continue;
    if (!in->op.done()) transport_.cancel(in->op);
    all = all && in->op.done();
  }
  const auto done = [](const auto& out) { return out->op.done(); };
  return all && std::all_of(claims_out_.begin(), claims_out_.end(), done) &&
         std::all_of(answers_out_.begin(), answers_out_.end(), done);
}

}  // namespace lmdbio::dist
