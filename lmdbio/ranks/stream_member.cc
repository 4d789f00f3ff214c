#include "lmdbio/ranks/stream_member.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "lmdbio/base/log.h"
#include "lmdbio/ranks/file_source.h"
#include "lmdbio/ranks/stream_terms.h"

namespace lmdbio::ranks {

namespace {

/// The source of a rank that has left.  All its reads fail.
class NoSource final : public PartSource {
 public:
  Status start(std::span<const std::uint64_t>, PartUse, std::unique_ptr<PartRead>&,
               std::string& why) override {
    why = "the stream is closed";
    return Status::from_errno(ECANCELED);
  }
};

}  // namespace

// Reduces the part of the share to keep to at most `parts`, and gives back the rest of the reserved memory.
void StreamMember::keep_only(unsigned parts) noexcept {
  const Keeping less{std::min(parts, keeps_.parts), keeps_.of(std::min(parts, keeps_.parts))};
  reader_->team()->keep_less(keeps_.bytes - less.bytes);
  keeps_ = less;
  if (parts == 0) reader_->team()->cache_less(std::exchange(cached_, 0));
}

void StreamMember::fail(Status status, std::string why) noexcept {
  if (!gave_up_) {
    status_ = status;
    why_ = std::move(why);
  }
  keep_only(0);
  if (state_ == State::pending) reader_->team()->agreement().forget(claim_);
  state_ = State::failed;
}

StreamFacts StreamMember::facts(std::uint64_t offer) const {
  const Team& team = *reader_->team();
  StreamFacts f;
  f.share = share_;
  f.list = list_;
  f.records = reader_->records();
  f.record_bytes = reader_->record_bytes();
  f.nodes = static_cast<std::uint32_t>(team.nodes());
  f.readers = static_cast<std::uint32_t>(team.reader_ranks().size());
  f.ranks_here = team.ranks_here();
  f.offer = offer;
  f.for_messages = TeamReader::for_messages(offer);
  f.memory = shared_->memory().limit();
  f.available = shared_->source.available;
  f.caches = shared_->read.path != ReadPath::direct;
  return f;
}

// Returns an error to the program.  For the other ranks, this rank has left.
void StreamMember::give_up(Status status, std::string why) noexcept {
  gave_up_ = true;
  status_ = status;
  why_ = std::move(why);
  leave();
}

void StreamMember::claim() {
  std::string why;
  if (const Status st = reader_->status(why); !st.ok()) return fail(st, why);
  Terms terms;
  terms.kind = Terms::Kind::stream;
  if (!left_ && reader_->local() != nullptr) {
    shared_ = reader_->local()->reader().keep_shared();
    terms.offer = shared_->share_of_one(1);
    const StreamFacts known = facts(terms.offer);
    keep_only(0);  // undo an earlier claim that failed because memory was short
    resident_ = has_in_page_cache(reader_->local()->reader(), share_, list_);
    StreamFacts beside = known;
    if (resident_) {  // the file should stay in the page cache
      const std::uint64_t file = known.records * known.record_bytes;
      beside.available = known.available > file ? known.available - file : 0;
    }
    keeps_ = what_to_keep(beside, reader_->team()->kept());
    reader_->team()->keep(keeps_.bytes);
    // A rank to which nothing is sent decides for itself what it keeps, so it accepts any number.
    terms.votes = votes_of({votes_to_exchange(known), resident_ && reads_in_place(known, keeps_),
                            resident_ ? kKeptParts : keeps_.parts});
  }
  terms.start = {share_.epoch, share_.position};
  terms.options = reader_->team()->options();
  const std::string name = "stream " + std::to_string(reader_->number()) + " " + std::to_string(number_);
  claim_ = reader_->team()->agreement().claim(
      reader_->path(), name, state_of(share_, reader_->number(), reader_->records()), "", terms);
  state_ = State::pending;
}

Status StreamMember::begin(const Agreement::Answer& answer, std::string& why) {
  Team& team = *reader_->team();
  if (shared_ == nullptr || reader_->local() == nullptr) left_ = true;  // the reader was closed
  Job job;
  job.order = whole_order(share_);
  job.distribution = share_.block > 1 ? Distribution::contiguous : Distribution::strided;
  job.ranks = team.network().ranks();
  job.readers = static_cast<std::uint32_t>(team.reader_ranks().size());
  job.starts = answer.starts;
  job.round_records = round_records(answer.offer, reader_->record_bytes(), job.readers);
  const Votes votes = votes_in(answer.votes);
  if (votes.exchanges_scattered)
    job.scattered_records =
        round_records(answer.offer, scattered_bytes(reader_->record_bytes()), job.readers);
  job.list = list_;
  job.kept_parts = votes.kept_parts;
  const char* wrong = nullptr;
  Result<Assignment> assignment = Assignment::make(job, reader_->records(), &wrong);
  if (!assignment) {
    why = reader_->path() + ": lmdbio_order: " + (wrong != nullptr ? wrong : "no memory");
    return assignment.error();
  }
  assignment_ = std::move(assignment).value();
  // Records in the page cache need no messages and no copies.
  if (!assignment_->has_rounds() || votes.reads_alone) {
    keep_only(0);
    state_ = State::alone;
    return {};
  }
  transport_ = team.open_port(answer.number);
  if (transport_ == nullptr) throw std::bad_alloc();
  const std::uint64_t limit = shared_ != nullptr ? shared_->pool->limit() : 0;
  if (left_)
    source_ = std::make_unique<NoSource>();
  else
    source_ = std::make_unique<FileSource>(reader_->local()->reader(), part_bytes(answer.offer),
                                           limit - TeamReader::for_messages(limit),
                                           1.0 / static_cast<double>(team.nodes()));
  RankStream::Settings settings;
  settings.reader_ranks = team.reader_ranks();
  settings.ahead = kRoundsAhead;
  settings.turns = team.turns();
  settings.nodes = team.network().nodes();
  settings.takes_nothing = resident_;
  if (!resident_) keep_only(assignment_->kept_rounds() != 0 ? job.kept_parts : 0);
  settings.keeps = keeps_.bytes;
  team.cache_less(std::exchange(cached_, 0));  // undo an earlier attempt
  settings.in_page_cache = source_->room(team.kept() * team.ranks_here() + team.cached());
  const std::uint64_t cached = reader_->records() * reader_->record_bytes() / team.nodes();
  cached_ = static_cast<std::uint64_t>(static_cast<double>(cached) * settings.in_page_cache);
  team.cache(cached_);
  if (shared_ != nullptr) settings.memory = reader_->message_memory(*shared_->pool);
  return RankStream::open(*assignment_, settings, *transport_, *source_, stream_);
}

void StreamMember::take_answer() {
  Agreement& agreement = reader_->team()->agreement();
  const Agreement::Answer answer = agreement.answer(claim_);
  if (answer.verdict == Agreement::Verdict::pending) {
    if (!answer.late || gave_up_) return;
    gave_up_ = left_ = true;
    status_ = Status::from_errno(answer.code);
    why_ = answer.why;
    return;
  }
  std::string why = answer.why;
  Status st = Status::from_errno(answer.code != 0 ? answer.code : EREMOTEIO);
  // The other ranks expect this rank to begin.  If memory is short, the next call tries again.
  if (answer.verdict == Agreement::Verdict::agreed) st = begin(answer, why);
  if (st.raw() == ENOMEM) throw std::bad_alloc();
  if (!st.ok()) return fail(st, why);
  if (reader_->team()->rank() == 0)
    log_line(LogLevel::info, "%s: %s", reader_->path().c_str(),
             votes_in(answer.votes).reads_alone
                 ? "each rank reads alone: the records are in the page caches of all nodes"
             : state_ == State::alone
                 ? "each rank reads alone: for this order, that is estimated to cost less"
                 : "the ranks read together");
  list_.reset();
  agreement.forget(claim_);
  if (state_ == State::alone) return;
  state_ = State::running;
  if (std::exchange(left_, false)) leave();
}

void StreamMember::progress(std::int64_t now_ns) noexcept {
  try {
    if (state_ != State::failed && !reader_->team()->broken().empty())
      fail(Status::from_errno(EIO), reader_->path() + ": " + reader_->team()->broken());
    if (state_ == State::reader_pending) {
      reader_->progress(now_ns);
      if (!reader_->pending()) claim();
    }
    if (state_ == State::pending) take_answer();
    if (state_ != State::running) return;
    Status st = transport_->poll();
    std::string why = reader_->path() + ": messages between the ranks fail";
    if (st.ok()) st = stream_->progress(why);
    count_traffic();
    if (st.raw() == EPROTO) return give_up(st, reader_->path() + ": " + why);
    if (!st.ok()) fail(st, why);
  } catch (const std::bad_alloc&) {  // the next call tries again
  }
}

void StreamMember::count_traffic() noexcept {
  if (shared_ == nullptr) return;
  const Traffic now = stream_->traffic();
  records::Counters& c = shared_->counters;
  const auto add = [&](Counter& to, std::uint64_t Traffic::*field) { to += now.*field - counted_.*field; };
  add(c.messages_sent, &Traffic::messages_sent);
  add(c.bytes_sent, &Traffic::bytes_sent);
  add(c.bytes_received, &Traffic::bytes_received);
  add(c.bytes_from_nodes, &Traffic::bytes_from_nodes);
  add(c.records_alone, &Traffic::records_alone);
  counted_ = now;
}

std::string StreamMember::lacks_memory() const {
  if (stream_ == nullptr || !stream_->lacks_memory() || stream_->reads_for_itself() || shared_ == nullptr)
    return {};
  return reader_->path() +
         ": out of memory: messages of other ranks do not fit beside batches that were not " +
         "released; the reader has " + std::to_string(shared_->pool->limit()) + " bytes" +
         shared_->memory().reason();
}

Status StreamMember::next(std::unique_ptr<records::Batch>& out, std::string& why, bool looks,
                          bool impatient) {
  // If the team has a thread, make progress here only if `looks` is set, because progress() calls MPI.
  if (state_ != State::running || !reader_->team()->has_thread() || looks) progress(now_ns());
  if (state_ == State::failed || gave_up_) {
    why = why_;
    return status_;
  }
  if (left_ && reader_->local() == nullptr) {
    why = reader_->path() + ": the reader is closed";
    return Status::from_errno(EINVAL);
  }
  if (state_ != State::running) return Status::from_errno(EAGAIN);
  if (reader_->team()->nodes() > 1 && stream_->position().epoch != checked_.epoch &&
      reader_->local() != nullptr)
    return kCheckFirst;
  auto made = std::make_unique<records::Batch>();
  RankBatch batch;
  if (const Status st = stream_->next(batch, why, impatient); !st.ok()) {
    if (st.raw() != EPROTO) return st;
    give_up(st, reader_->path() + ": " + why);
    why = why_;
    return st;
  }
  made->rows = std::move(batch.records);
  made->keep = std::move(batch.keep);
  made->records = made->rows.data();
  made->count = made->rows.size();
  made->epoch = batch.at.epoch;
  made->position = batch.at.position;
  made->padding = batch.padding;
  records::Counters& c = shared_->counters;
  std::uint64_t bytes = 0;
  for (const lmdbio_record& r : made->rows) bytes += r.key.mv_size + r.value.mv_size;
  ++c.batches;
  c.records += made->count;
  c.bytes_given += bytes;
  out = std::move(made);
  return {};
}

void StreamMember::leave() noexcept {
  if (left_) return;
  left_ = true;
  keep_only(0);
  if (stream_ == nullptr) return;
  stream_->leave();
  // The program may now close the reader.
  source_.reset();
  shared_.reset();
}

}  // namespace lmdbio::ranks
