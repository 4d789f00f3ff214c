#include "lmdbio/ranks/follow_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "lmdbio/base/interrupt.h"
#include "lmdbio/ranks/team_reader.h"

namespace lmdbio::ranks {

namespace {

/// Channels of the transport.
enum : unsigned { kEntries, kInUse };

/// A waiting call asks after this time whether it has to end.
constexpr std::int64_t kAskEveryNs = 50'000'000;

/// The name of a followed database in claims.  A reader of the same database has another one.
std::string name_in_claims(std::string_view name) { return std::string(1, '\1').append(name); }

std::string_view as_text(const std::uint64_t& number) noexcept {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

}  // namespace

FollowLog::FollowLog(std::shared_ptr<Team> team, std::string path)
    : team_(std::move(team)), path_(std::move(path)) {
  if (writes())
    peers_.resize(ranks());
  else
    in_.resize(kMostBytes);
}

// --- opening ---

void FollowLog::report_failure(Team& team, std::string_view path, std::string_view name, int code,
                               std::string_view why) {
  TeamReader::report_failure(team, path, name_in_claims(name), code, why);
}

Status FollowLog::open(const std::shared_ptr<Team>& team, std::string_view path, std::string_view name,
                       std::array<std::uint64_t, 2> options, const std::atomic<bool>& cancelled,
                       std::shared_ptr<FollowLog>& out, std::string& why) {
  if (!team->may_call(why)) return Status::from_errno(EINVAL);
  auto made = std::make_shared<FollowLog>(team, std::string(path));
  std::unique_lock lock(team->mutex());
  Terms terms;
  terms.kind = Terms::Kind::follow;
  terms.options = team->options();
  FileState state;
  std::copy(options.begin(), options.end(), state.metas.begin());
  team->add(made);
  made->claim_ = team->agreement().claim(path, name_in_claims(name), state, "", terms);
  team->notify();
  Status st;
  while (made->still_runs(why, st) && made->state_ == State::pending) {
    const std::int64_t until = now_ns() + kAskEveryNs;
    if (!team->wait(lock, [&] {
          made->progress(now_ns());
          return made->state_ != State::pending || !made->status_.ok() || now_ns() >= until;
        })) {
      why = "this is a forked child";
      return Status::from_errno(EINVAL);
    }
    lock.unlock();
    if (wait_ended(cancelled)) st = Status::from_errno(ECANCELED);
    lock.lock();
    if (!st.ok()) break;
  }
  if (st.ok())
    out = std::move(made);
  else
    made->leave();  // it still does its part if the ranks agree
  return st;
}

void FollowLog::take_answer() {
  if (!team_->broken().empty()) return fail(Status::from_errno(EIO), path_ + ": " + team_->broken());
  Agreement& agreement = team_->agreement();
  const Agreement::Answer answer = agreement.answer(claim_);
  if (answer.verdict == Agreement::Verdict::pending) {
    if (!answer.late || !status_.ok()) return;
    why_ = answer.why;
    status_ = Status::from_errno(answer.code);
    return;
  }
  if (answer.verdict == Agreement::Verdict::agreed) {
    begin(answer.number);
  } else {
    const int code = answer.code != 0 ? answer.code : EREMOTEIO;
    fail(code > 0 ? Status::from_errno(code) : Status::from_mdb(code), answer.why);
  }
  agreement.forget(claim_);
}

void FollowLog::begin(std::uint32_t number) {
  transport_ = team_->open_port(number);
  if (transport_ == nullptr) throw std::bad_alloc();
  state_ = State::running;
}

// --- messages ---

void FollowLog::fail(Status status, std::string why) {
  state_ = State::failed;
  status_ = status;
  why_ = std::move(why);
}

// Returns false with an error if the log can no longer be used.
bool FollowLog::still_runs(std::string& why, Status& st) const {
  st = status_;
  if (!st.ok()) why = why_;
  return st.ok();
}

Status FollowLog::send_to(const std::vector<std::uint32_t>& ranks, std::string_view bytes) {
  const auto shared = std::make_shared<const std::string>(bytes);
  std::list<Sent> made(ranks.size());
  for (const std::uint32_t rank : ranks) {
    made.front().bytes = shared;
    Operation& op = made.front().op;
    sent_.splice(sent_.end(), made, made.begin());
    if (const Status st =
            transport_->send(rank, writes() ? kEntries : kInUse, std::as_bytes(std::span(*shared)), op);
        !st.ok())
      return st;
  }
  return {};
}

// Sends this rank's last message, when it has left.
Status FollowLog::say_last() {
  std::vector<std::uint32_t> to;
  if (writes())
    for (std::uint32_t r = 1; r < ranks(); ++r) to.push_back(r);
  else
    to.push_back(0);
  const Status st = send_to(to, writes() ? std::string_view() : as_text(kNothing));
  said_last_ = true;
  return st;
}

Status FollowLog::hear_ranks() {
  for (std::uint32_t r = 1; r < peers_.size(); ++r) {
    Peer& p = peers_[r];
    while (!p.left() && p.op.done()) {
      if (std::exchange(p.expects, false)) {
        if (!p.op.status.ok()) return p.op.status;
        p.in_use = p.in;
        if (p.left()) break;
      }
      const Status st = transport_->receive(r, kInUse, std::as_writable_bytes(std::span(&p.in, 1)), p.op);
      if (!st.ok()) return st;
      p.expects = true;
    }
  }
  return {};
}

Status FollowLog::hear_rank_0() {
  while (!ended_ && in_op_.done()) {
    if (std::exchange(expects_, false)) {
      if (!in_op_.status.ok()) return in_op_.status;
      ended_ = in_op_.bytes == 0;
      if (ended_) break;
      if (!left_) entries_.emplace_back(reinterpret_cast<const char*>(in_.data()), in_op_.bytes);
    }
    if (const Status st = transport_->receive(0, kEntries, in_, in_op_); !st.ok()) return st;
    expects_ = true;
  }
  return {};
}

void FollowLog::progress(std::int64_t) noexcept {
  try {
    if (state_ == State::pending) take_answer();
    if (state_ != State::running) return;
    Status st = transport_->poll();
    if (st.ok()) st = writes() ? hear_ranks() : hear_rank_0();
    if (st.ok() && left_ && !said_last_) st = say_last();
    for (auto at = sent_.begin(); at != sent_.end();) {
      if (at->op.done() && !at->op.status.ok()) st = at->op.status;
      at = at->op.done() ? sent_.erase(at) : std::next(at);
    }
    if (!st.ok()) {
      broken_ = true;
      return fail(Status::from_errno(EIO), path_ + ": messages between the ranks fail");
    }
    if (finished()) keep_.reset();
  } catch (const std::bad_alloc&) {  // the next call tries again
  }
}

bool FollowLog::finished() const noexcept {
  if (state_ == State::failed) return !broken_;
  if (state_ == State::pending || !said_last_ || !sent_.empty()) return false;
  return writes() ? std::all_of(peers_.begin() + 1, peers_.end(), [](const Peer& p) { return p.left(); })
                  : ended_;
}

// --- entries ---

Status FollowLog::append(std::string_view entry, std::string& why) {
  Status st;
  {
    const std::lock_guard lock(team_->mutex());
    if (!still_runs(why, st)) return st;
    std::vector<std::uint32_t> to;
    for (std::uint32_t r = 1; r < peers_.size(); ++r)
      if (!peers_[r].left()) to.push_back(r);
    if (st = send_to(to, entry); !st.ok()) {
      broken_ = true;
      why = path_ + ": messages between the ranks fail";
      fail(st, why);
    }
    team_->notify();
  }
  team_->poll();
  return st;
}

std::uint64_t FollowLog::in_use() {
  const std::lock_guard lock(team_->mutex());
  for (std::uint64_t seen = events() + 1; seen != events();) {  // the team's thread may sleep
    seen = events();
    progress(now_ns());
  }
  std::uint64_t smallest = kNothing;
  for (std::size_t r = 1; r < peers_.size(); ++r) smallest = std::min(smallest, peers_[r].in_use);
  return smallest;
}

Status FollowLog::take(const std::atomic<bool>& cancelled, std::string& entry, std::string& why) {
  for (;;) {
    if (!team_->may_call(why)) return Status::from_errno(EINVAL);
    if (wait_ended(cancelled)) return Status::from_errno(ECANCELED);
    std::unique_lock lock(team_->mutex());
    const std::int64_t until = now_ns() + kAskEveryNs;
    if (!team_->wait(lock, [&] {
          progress(now_ns());
          return !entries_.empty() || ended_ || state_ == State::failed || now_ns() >= until;
        })) {
      why = "this is a forked child";
      return Status::from_errno(EINVAL);
    }
    if (!entries_.empty()) {
      entry = std::move(entries_.front());
      entries_.pop_front();
      return {};
    }
    Status st;
    if (!still_runs(why, st)) return st;
    if (ended_) {
      why = path_ + ": rank 0 has stopped following it";
      return Status::from_errno(ECANCELED);
    }
  }
}

Status FollowLog::use(std::uint64_t smallest, std::string& why) {
  Status st;
  {
    const std::lock_guard lock(team_->mutex());
    if (!still_runs(why, st)) return st;
    if (left_) return st;
    if (st = send_to({0}, as_text(smallest)); !st.ok()) {
      broken_ = true;
      why = path_ + ": messages between the ranks fail";
      fail(st, why);
    }
    team_->notify();
  }
  team_->poll();
  return st;
}

void FollowLog::close(std::shared_ptr<void> keep, bool waits) noexcept {
  if (!team_->ours()) return;
  std::string why;
  try {
    const bool may_call = team_->may_call(why);
    std::unique_lock lock(team_->mutex());
    leave();
    if (!team_->closed() && writes() && state_ == State::running) keep_ = std::move(keep);
    team_->notify();
    const std::int64_t until = now_ns() + team_->timeout_ns();
    if (may_call)
      (void)team_->wait(lock, [&] {
        progress(now_ns());
        return !waits || !writes() || state_ == State::failed || finished() || now_ns() >= until;
      });
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace lmdbio::ranks
