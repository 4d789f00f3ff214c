#include "lmdbio/dist/team_reader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lmdbio::dist {

TeamReader::TeamReader(std::shared_ptr<Team> team, std::string path, std::uint64_t claim,
                       Local& local) noexcept
    : team_(std::move(team)), path_(std::move(path)), claim_(claim), local_(&local) {
  look();
}

void TeamReader::look() noexcept {
  reader::Reader& reader = local_->reader();
  const reader::Source& source = reader.shared().source;
  const format::DbRecord& db = source.db;
  records_ = reader.count();
  record_bytes_ = std::max<std::uint64_t>(
      (db.leaf_pages + db.overflow_pages) * source.page_size / std::max<std::uint64_t>(db.entries, 1), 1);
}

std::shared_ptr<TeamReader> TeamReader::open(std::shared_ptr<Team> team, std::string_view path,
                                             std::string_view name, const FileState& state, Local& local) {
  const std::lock_guard lock(team->mutex());
  const std::uint64_t claim = team->agreement().claim(path, name, state, "", now_ns());
  auto made = std::make_shared<TeamReader>(team, std::string(path), claim, local);
  team->add(made);
  team->notify();
  return made;
}

void TeamReader::report_failure(Team& team, std::string_view path, std::string_view name, int code,
                                std::string_view why) {
  {
    const std::lock_guard lock(team.mutex());
    Terms terms;
    terms.code = code;
    const std::uint64_t claim =
        team.agreement().claim(path, name, {}, why.empty() ? "failed" : why, now_ns(), terms);
    team.agreement().forget(claim);
    team.notify();
  }
  team.poll();  // on its way even if this rank never calls again
}

void TeamReader::fail(Status status, std::string why) {
  state_ = State::failed;
  status_ = status;
  why_ = std::move(why);
}

void TeamReader::take_answer(std::int64_t now_ns) {
  Agreement& agreement = team_->agreement();
  const Agreement::Answer answer = agreement.answer(claim_);
  switch (answer.verdict) {
    case Agreement::Verdict::pending:
      return;
    case Agreement::Verdict::agreed:
      state_ = State::agreed;
      number_ = answer.number;
      break;
    case Agreement::Verdict::renew: {
      FileState state;
      std::string why;
      Status st = Status::from_errno(ESTALE);
      why = path_ + ": a writer has committed, and this rank has closed its reader";
      if (local_ != nullptr) {
        why.clear();
        st = local_->renew(state, why);
        if (st.ok()) look();
      }
      Terms terms;
      terms.code = st.raw();
      if (!st.ok() && why.empty()) why = "failed";
      agreement.claim_again(claim_, state, why, now_ns, terms);
      return;
    }
    case Agreement::Verdict::failed: {
      const int code = answer.code != 0 ? answer.code : EREMOTEIO;
      fail(code > 0 ? Status::from_errno(code) : Status::from_mdb(code), answer.why);
      break;
    }
  }
  agreement.forget(claim_);
}

void TeamReader::progress(std::int64_t now_ns) noexcept {
  if (finished()) return;
  try {
    if (!team_->broken().empty())
      fail(Status::from_errno(EIO), path_ + ": " + team_->broken());
    else
      take_answer(now_ns);
  } catch (const std::bad_alloc&) {  // the next call tries again
  }
}

void TeamReader::let_go() noexcept {
  if (!team_->ours()) return;
  const std::lock_guard lock(team_->mutex());
  leave();
}

// The other ranks go on: what this rank has claimed stands.
void TeamReader::leave() noexcept { local_ = nullptr; }

Status TeamReader::wait(const std::atomic<bool>& cancelled, std::string& why) {
  if (!team_->may_call(why)) return Status::from_errno(EINVAL);
  std::unique_lock lock(team_->mutex());
  const bool here = team_->wait(lock, [&] {
    progress(now_ns());
    return !pending() || cancelled.load();
  });
  if (!here) return Status::from_errno(EINVAL);
  return pending() ? Status::from_errno(ECANCELED) : status(why);
}

}  // namespace lmdbio::dist
