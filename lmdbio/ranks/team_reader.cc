#include "lmdbio/ranks/team_reader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lmdbio/ranks/message_memory.h"

namespace lmdbio::ranks {

TeamReader::TeamReader(std::shared_ptr<Team> team, std::string path, Local& local) noexcept
    : team_(std::move(team)), path_(std::move(path)), local_(&local) {
  look();
}

void TeamReader::look() noexcept {
  records::Reader& reader = local_->reader();
  const records::Source& source = reader.shared().source;
  const format::DbRecord& db = source.db;
  records_ = reader.count();
  record_bytes_ = std::max<std::uint64_t>(
      (db.leaf_pages + db.overflow_pages) * source.page_size / std::max<std::uint64_t>(db.entries, 1), 1);
}

namespace {

/// What each rank reports when the ranks agree on a reader: whether it has the index.  The ranks build the
/// index together unless all of them have it.
constexpr std::uint64_t kIndexMissing = 0, kIndexThere = 1;

Terms terms_of(const Team& team, TeamReader::Local& local) noexcept {
  Terms terms;
  terms.options = team.options();
  terms.offer = local.missing_index() != nullptr ? kIndexMissing : kIndexThere;
  return terms;
}

/// One kForMessages-th of a reader's memory is for messages, and the rest is for buffers of reads.
constexpr std::uint64_t kForMessages = 2;

}  // namespace

std::uint64_t TeamReader::for_messages(std::uint64_t memory) noexcept { return memory / kForMessages; }

std::shared_ptr<PayloadMemory> TeamReader::message_memory(const records::BufferPool& pool) {
  std::shared_ptr<PayloadMemory> memory = message_memory_.lock();
  if (memory == nullptr) {
    memory = std::make_shared<MessageMemory>(pool.memory(), for_messages(pool.limit()));
    message_memory_ = memory;
  }
  return memory;
}

void TeamReader::open(const std::shared_ptr<Team>& team, std::string_view path, std::string_view name,
                      const FileState& state, Local& local, std::shared_ptr<TeamReader>& out) {
  const std::lock_guard lock(team->mutex());
  auto made = std::make_shared<TeamReader>(team, std::string(path), local);
  team->add(made);
  team->count_at_close(made);
  made->claim_ = team->agreement().claim(path, name, state, "", terms_of(*team, local));
  out = std::move(made);
  team->notify();
}

void TeamReader::report_failure(Team& team, std::string_view path, std::string_view name, int code,
                                std::string_view why) {
  {
    const std::lock_guard lock(team.mutex());
    Terms terms;
    terms.code = code;
    const std::uint64_t claim = team.agreement().claim(path, name, {}, why.empty() ? "failed" : why, terms);
    team.agreement().forget(claim);
    team.notify();
  }
  team.poll();  // send the claim even if this rank never calls again
}

void TeamReader::fail(Status status, std::string why) {
  state_ = State::failed;
  if (gave_up_) return;  // the program has its error
  status_ = status;
  why_ = std::move(why);
}

void TeamReader::take_answer() {
  Agreement& agreement = team_->agreement();
  const Agreement::Answer answer = agreement.answer(claim_);
  switch (answer.verdict) {
    case Agreement::Verdict::pending:
      if (!answer.late || gave_up_) return;
      gave_up_ = true;
      status_ = Status::from_errno(answer.code);
      why_ = answer.why;
      return leave();
    case Agreement::Verdict::agreed:
      number_ = answer.number;
      if (answer.offer == kIndexMissing)
        begin_index();
      else
        state_ = State::agreed;
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
      if (st.ok()) terms = terms_of(*team_, *local_);
      terms.options = team_->options();
      terms.code = st.raw();
      if (!st.ok() && why.empty()) why = "failed";
      agreement.claim_again(claim_, state, why, terms);
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

void TeamReader::progress(std::int64_t) noexcept {
  if (finished()) return;
  try {
    if (!team_->broken().empty())
      fail(Status::from_errno(EIO), path_ + ": " + team_->broken());
    else if (state_ == State::pending)
      take_answer();
    if (exchange_ != nullptr) move_index_on();
  } catch (const std::bad_alloc&) {  // the next call tries again
  }
}

void TeamReader::let_go() noexcept {
  if (!team_->ours()) return;
  const std::lock_guard lock(team_->mutex());
  leave();
}

JobTotals TeamReader::totals() const noexcept {
  JobTotals totals;
  if (local_ == nullptr) return totals;
  const records::Counters& c = local_->reader().shared().counters;
  totals.records = c.records;
  totals.bytes = c.bytes_given;
  totals.file_bytes = c.bytes_read;
  totals.file_requests = c.requests;
  totals.memory_bytes = c.bytes_copied;
  totals.messages = c.messages_sent;
  totals.rank_bytes = c.bytes_received;
  totals.node_bytes = c.bytes_from_nodes;
  totals.records_alone = c.records_alone;
  totals.waits = c.waits;
  totals.wait_ns = c.wait_ns;
  return totals;
}

// The other ranks continue, and this rank's claim remains valid.
void TeamReader::leave() noexcept {
  if (exchange_ == nullptr || !exchange_->needs_work()) work_.reset();
  team_->count(totals());
  local_ = nullptr;
}

void TeamReader::begin_index() {
  Network& network = team_->network();
  IndexExchange::Settings settings;
  settings.nodes = network.nodes();
  settings.records = records_;
  settings.host = team_->host();
  settings.name = path_;
  if (local_ != nullptr) settings.memory = local_->reader().shared().pool->memory();
  auto transport = team_->open_port(number_);
  if (transport == nullptr) throw std::bad_alloc();
  auto exchange = std::make_unique<IndexExchange>(settings, *transport);
  if (exchange->makes_part() && local_ != nullptr)
    work_ = local_->start_index(exchange->part(), exchange->parts());
  transport_ = std::move(transport);
  exchange_ = std::move(exchange);
  state_ = State::indexing;
}

void TeamReader::move_index_on() {
  Status st = transport_->poll();
  if (st.ok()) st = exchange_->progress(works_alone_ ? nullptr : work_.get());
  if (!st.ok()) {
    stuck_ = true;  // messages may be under way
    return fail(Status::from_errno(EIO), path_ + ": messages between the ranks fail");
  }
  if (!works_alone_ && exchange_->has_part()) work_.reset();
  if (state_ != State::indexing) return;
  switch (exchange_->outcome()) {
    case IndexExchange::Outcome::pending:
      return;
    case IndexExchange::Outcome::failed: {
      const int code = exchange_->code();
      return fail(code > 0 ? Status::from_errno(code) : Status::from_mdb(code), exchange_->why());
    }
    case IndexExchange::Outcome::alone:
      return make_index_alone();
    case IndexExchange::Outcome::whole:
      break;
  }
  std::shared_ptr<const void> keep;
  std::vector<records::RecordIndex> parts = exchange_->take(keep);
  records::IndexParts* const missing = local_ != nullptr ? local_->missing_index() : nullptr;
  if (missing != nullptr) missing->set(std::move(parts), std::move(keep));
  state_ = State::agreed;
}

// Builds the whole index on this rank, after Outcome::alone.
void TeamReader::make_index_alone() {
  records::IndexParts* const missing = local_ != nullptr ? local_->missing_index() : nullptr;
  if (missing == nullptr) {
    state_ = State::agreed;
    return;
  }
  if (work_ == nullptr || !works_alone_) {
    work_ = local_->start_index(0, 1);
    works_alone_ = true;
  }
  if (!work_->done()) return;
  Status st;
  std::string why;
  const records::RecordIndex* const made = work_->made(st, why);
  if (made == nullptr) return fail(st, why);
  std::vector<records::RecordIndex> parts;
  parts.push_back(records::view_of(*made));
  missing->set(std::move(parts), std::shared_ptr<const IndexWork>(std::move(work_)));
  state_ = State::agreed;
}

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

}  // namespace lmdbio::ranks
