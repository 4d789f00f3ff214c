#include "lmdbio/ranks/team_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lmdbio/ranks/file_source.h"
#include "lmdbio/ranks/pauses.h"
#include "lmdbio/ranks/rank_stream.h"
#include "lmdbio/ranks/stream_sizes.h"
#include "lmdbio/ranks/stream_terms.h"

namespace lmdbio::ranks {

using records::Position;

namespace {

/// If memory for the messages of a batch is short for longer than this, next() returns an error.
constexpr std::int64_t kLacksMemoryNs = 2'000'000'000;

/// Core::next() returns this at the first batch of an epoch.  The caller then checks the file and calls
/// checked().
constexpr Status kCheckFirst = Status::from_errno(EINPROGRESS);

Status invalid(std::string& why, const std::string& path, const char* text) {
  why = path + ": " + text;
  return Status::from_errno(EINVAL);
}

/// Source of a rank that has left.  All reads fail.
class NoSource final : public PartSource {
 public:
  Status start(std::span<const std::uint64_t>, PartUse, std::unique_ptr<PartRead>&,
               std::string& why) override {
    why = "the stream is closed";
    return Status::from_errno(ECANCELED);
  }
};

}  // namespace

/// The part of a stream that continues while the program computes, and after it has closed the stream.
/// Requires the team's lock.
class TeamStream::Core final : public Member {
 public:
  /// `list`: of the order.
  Core(std::shared_ptr<TeamReader> reader, const lmdbio_order& share, records::Order::List list)
      : reader_(std::move(reader)), share_(share), list_(std::move(list)), number_(reader_->next_stream()) {}
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  ~Core() override = default;

  void progress(std::int64_t now_ns) noexcept override;
  bool finished() const noexcept override {
    if (!left_) return false;
    if (state_ == State::failed) return stream_ == nullptr;  // otherwise it stays: messages may be under way
    return state_ == State::alone || (stream_ != nullptr && stream_->closed());
  }
  std::uint64_t events() const noexcept override {
    std::uint64_t n = static_cast<std::uint64_t>(state_) + 1;
    if (stream_ != nullptr) n += transport_->events + stream_->events();
    return n;
  }

  bool reads_alone() const noexcept { return state_ == State::alone; }
  /// Returns the next batch.  EAGAIN: it is not complete yet.  `looks`: makes progress first, even if the
  /// team has a thread.  `impatient`: see RankStream::next().
  Status next(std::unique_ptr<records::Batch>& out, std::string& why, bool looks, bool impatient);
  /// The file has not changed, so the batches of this epoch may be returned.
  void checked() noexcept { checked_ = stream_->position(); }
  Position position() const noexcept {
    return stream_ != nullptr ? stream_->position() : Position{share_.epoch, share_.position};
  }
  bool busy() const noexcept override {
    return left_ || state_ == State::reader_pending || state_ == State::pending ||
           (stream_ != nullptr && stream_->busy());
  }
  void leave() noexcept override;
  bool stuck() const noexcept override { return state_ == State::failed && stream_ != nullptr; }
  /// See RankStream::resting().
  bool resting() const noexcept { return state_ == State::running && stream_->resting(); }
  /// Returns why the next batch is delayed if memory is short, otherwise an empty text.
  std::string lacks_memory() const {
    if (stream_ == nullptr || !stream_->lacks_memory() || stream_->reads_for_itself() || shared_ == nullptr)
      return {};
    return reader_->path() +
           ": out of memory: messages of other ranks do not fit beside batches that were not " +
           "released; the reader has " + std::to_string(shared_->pool->limit()) + " bytes" +
           shared_->memory().reason();
  }
  /// Returns the reader's shared state and counters.  Null: none yet.
  std::shared_ptr<records::Shared> shared() const noexcept { return shared_; }

 private:
  enum class State : unsigned char {
    reader_pending,  ///< not all ranks have one snapshot yet
    pending,         ///< not all ranks have opened the stream yet
    running,
    alone,  ///< no rounds: each rank reads its own records
    failed
  };

  void claim();
  StreamFacts facts(std::uint64_t offer) const;
  void keep_only(unsigned parts) noexcept {
    const Keeping less{std::min(parts, keeps_.parts), keeps_.of(std::min(parts, keeps_.parts))};
    reader_->team()->keep_less(keeps_.bytes - less.bytes);
    keeps_ = less;
    if (parts == 0) reader_->team()->cache_less(std::exchange(cached_, 0));
  }
  void take_answer();
  void count_traffic() noexcept;
  Status begin(const Agreement::Answer& answer, std::string& why);
  void fail(Status status, std::string why) noexcept;
  void give_up(Status status, std::string why) noexcept;

  const std::shared_ptr<TeamReader> reader_;
  const lmdbio_order share_;
  records::Order::List list_;   ///< of share_; dropped when the assignment has it
  const std::uint64_t number_;  ///< number of this stream, counted per reader
  State state_ = State::reader_pending;
  std::uint64_t claim_ = 0;
  Keeping keeps_;
  std::uint64_t cached_ = 0;  ///< read through this node's page cache on the direct path, in bytes
  bool resident_ = false;     ///< this rank's records are in the page cache of its node
  bool left_ = false;
  bool gave_up_ = false;  ///< the program has an error, status_; for other ranks this rank has left
  Status status_;
  std::string why_;
  // Destroyed in reverse sequence: each needs those before it.
  std::shared_ptr<records::Shared> shared_;
  std::unique_ptr<Transport> transport_;
  std::optional<Assignment> assignment_;
  std::unique_ptr<PartSource> source_;
  std::unique_ptr<RankStream> stream_;
  Traffic counted_;                  ///< traffic that the reader's counters contain
  Position checked_{UINT64_MAX, 0};  ///< where the epoch began for which the file was checked last
};

void TeamStream::Core::fail(Status status, std::string why) noexcept {
  if (!gave_up_) {
    status_ = status;
    why_ = std::move(why);
  }
  keep_only(0);
  if (state_ == State::pending) reader_->team()->agreement().forget(claim_);
  state_ = State::failed;
}

StreamFacts TeamStream::Core::facts(std::uint64_t offer) const {
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
void TeamStream::Core::give_up(Status status, std::string why) noexcept {
  gave_up_ = true;
  status_ = status;
  why_ = std::move(why);
  leave();
}

void TeamStream::Core::claim() {
  std::string why;
  if (const Status st = reader_->status(why); !st.ok()) return fail(st, why);
  Terms terms;
  terms.kind = Terms::Kind::stream;
  if (!left_ && reader_->local() != nullptr) {
    shared_ = reader_->local()->reader().keep_shared();
    terms.offer = shared_->share_of_one(1);
    const StreamFacts known = facts(terms.offer);
    keep_only(0);  // of a claim that failed, since memory was short
    resident_ = has_in_page_cache(reader_->local()->reader(), share_, list_);
    StreamFacts beside = known;
    if (resident_) {  // the file should stay in the page cache
      const std::uint64_t file = known.records * known.record_bytes;
      beside.available = known.available > file ? known.available - file : 0;
    }
    keeps_ = what_to_keep(beside, reader_->team()->kept());
    reader_->team()->keep(keeps_.bytes);
    // A rank to which nothing is sent decides itself what it keeps, so it agrees to any number.
    terms.votes = votes_of({votes_to_exchange(known), resident_, resident_ ? kKeptParts : keeps_.parts});
  }
  terms.start = {share_.epoch, share_.position};
  terms.options = reader_->team()->options();
  const std::string name = "stream " + std::to_string(reader_->number()) + " " + std::to_string(number_);
  claim_ = reader_->team()->agreement().claim(
      reader_->path(), name, state_of(share_, reader_->number(), reader_->records()), "", terms);
  state_ = State::pending;
}

Status TeamStream::Core::begin(const Agreement::Answer& answer, std::string& why) {
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
  // If nothing is kept, a stream of this rank alone is better: it reads ahead.
  if (!assignment_->has_rounds() || (votes.reads_alone && keeps_.parts == 0)) {
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
  if (!votes.reads_alone) settings.reader_ranks = team.reader_ranks();
  settings.ahead = kRoundsAhead;
  settings.turns = team.turns();
  settings.nodes.assign(team.network().nodes().begin(), team.network().nodes().end());
  settings.takes_nothing = resident_;
  if (!resident_) keep_only(assignment_->kept_rounds() != 0 ? job.kept_parts : 0);
  settings.keeps = keeps_.bytes;
  team.cache_less(std::exchange(cached_, 0));  // of an attempt that failed, since memory was short
  settings.in_page_cache = source_->room(team.kept() * team.ranks_here() + team.cached());
  const std::uint64_t cached = reader_->records() * reader_->record_bytes() / team.nodes();
  cached_ = static_cast<std::uint64_t>(static_cast<double>(cached) * settings.in_page_cache);
  team.cache(cached_);
  if (shared_ != nullptr) settings.memory = reader_->message_memory(*shared_->pool);
  return RankStream::open(*assignment_, settings, *transport_, *source_, stream_);
}

void TeamStream::Core::take_answer() {
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
  // The other ranks expect this one to begin: if memory is short, the next call tries again.
  if (answer.verdict == Agreement::Verdict::agreed) st = begin(answer, why);
  if (st.raw() == ENOMEM) throw std::bad_alloc();
  if (!st.ok()) return fail(st, why);
  list_.reset();
  agreement.forget(claim_);
  if (state_ == State::alone) return;
  state_ = State::running;
  if (std::exchange(left_, false)) leave();
}

void TeamStream::Core::progress(std::int64_t now_ns) noexcept {
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

void TeamStream::Core::count_traffic() noexcept {
  if (shared_ == nullptr) return;
  const Traffic now = stream_->traffic();
  records::Counters& c = shared_->counters;
  const auto add = [&](std::atomic<std::uint64_t>& to, std::uint64_t Traffic::*field) {
    if (now.*field != counted_.*field) to.fetch_add(now.*field - counted_.*field, std::memory_order_relaxed);
  };
  add(c.messages_sent, &Traffic::messages_sent);
  add(c.bytes_sent, &Traffic::bytes_sent);
  add(c.bytes_received, &Traffic::bytes_received);
  add(c.bytes_from_nodes, &Traffic::bytes_from_nodes);
  add(c.records_alone, &Traffic::records_alone);
  counted_ = now;
}

Status TeamStream::Core::next(std::unique_ptr<records::Batch>& out, std::string& why, bool looks,
                              bool impatient) {
  // If the team has a thread, make progress only if the batch was not complete: it also calls MPI.
  if (state_ != State::running || !reader_->team()->has_thread() || looks) progress(now_ns());
  if (state_ == State::failed || gave_up_) {
    why = why_;
    return status_;
  }
  if (left_ && reader_->local() == nullptr) return invalid(why, reader_->path(), "the reader is closed");
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
  c.batches.fetch_add(1, std::memory_order_relaxed);
  c.records.fetch_add(made->count, std::memory_order_relaxed);
  c.bytes_given.fetch_add(bytes, std::memory_order_relaxed);
  out = std::move(made);
  return {};
}

void TeamStream::Core::leave() noexcept {
  if (left_) return;
  left_ = true;
  keep_only(0);
  if (stream_ == nullptr) return;
  stream_->leave();
  // The program may now close the reader.
  source_.reset();
  shared_.reset();
}

Status TeamStream::open(std::shared_ptr<TeamReader> reader, const lmdbio_order& order,
                        std::unique_ptr<records::BatchStream>& out, std::string& why) {
  Team& team = *reader->team();
  if (!team.may_call(why)) return Status::from_errno(EINVAL);
  std::unique_ptr<TeamStream> made(new TeamStream(reader, order));
  const std::uint64_t ranks = team.network().ranks(), block = std::max<std::uint64_t>(order.block, 1);
  const bool share = order.step == ranks && order.offset == team.rank() &&
                     (block == 1 || block == std::max<std::uint64_t>(order.batch, 1));
  made->copy_lists();
  {
    const std::lock_guard lock(team.mutex());
    if (reader->local() == nullptr) return invalid(why, reader->path(), "the reader is closed");
    const char* wrong = nullptr;
    const auto checked = records::Order::make(order, reader->records(), &wrong, made->list_);
    if (!checked && wrong != nullptr && !reader->pending()) {
      why = reader->path() + ": lmdbio_order: " + wrong;
      return checked.error();
    }
    if (ranks > 1 && order.kind != LMDBIO_ORDER_KEYS && share) {
      made->core_ = std::make_shared<Core>(std::move(reader), made->order_, made->list_);
      team.add(made->core_);
      team.notify();
    }
  }
  out = std::move(made);
  return {};
}

// Copies lists and keys, since the program may free them before the order is used.
void TeamStream::copy_lists() {
  if (order_.kind == LMDBIO_ORDER_LIST && order_.list != nullptr) {
    list_ = std::make_shared<const std::vector<std::uint64_t>>(order_.list, order_.list + order_.length);
    order_.list = list_->data();
  }
  if (order_.kind != LMDBIO_ORDER_KEYS || order_.keys == nullptr) return;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < order_.length; ++i) bytes += order_.keys[i].mv_size;
  key_bytes_.reserve(bytes);
  for (std::size_t i = 0; i < order_.length; ++i) {
    const MDB_val& key = order_.keys[i];
    const std::size_t at = key_bytes_.size();
    key_bytes_.append(static_cast<const char*>(key.mv_data), key.mv_size);
    keys_.push_back({key.mv_size, key_bytes_.data() + at});
  }
  order_.keys = keys_.data();
}

TeamStream::~TeamStream() {
  if (core_ != nullptr) give_up_core();
}

void TeamStream::give_up_core() noexcept {
  if (team_.closed() && team_.ours()) return;
  std::string why;
  if (!team_.ours()) {
    // In a forked child, leak the core: its operations must not be touched.
    (void)new (std::nothrow) std::shared_ptr<Core>(std::move(core_));
    return;
  }
  {
    const std::lock_guard lock(team_.mutex());
    core_->leave();
    team_.notify();
  }
  if (team_.may_call(why)) team_.poll();
}

Status TeamStream::next_alone(std::unique_ptr<records::Batch>& out, std::string& why) {
  if (alone_ == nullptr) {
    if (const Status st = reader_->wait(cancelled_, why); !st.ok()) return st;
    if (const Status st = records::Stream::open(reader_->local()->reader(), order_, alone_, why); !st.ok())
      return st;
    cancels_ = alone_.get();
    if (cancelled_.load()) alone_->cancel();
  }
  const Status st = alone_->next(out, why);
  at_ = alone_->position();
  return st;
}

Status TeamStream::next(std::unique_ptr<records::Batch>& out, std::string& why) {
  if (core_ == nullptr) return next_alone(out, why);
  if (!team_.may_call(why)) return Status::from_errno(EINVAL);
  std::unique_lock lock(team_.mutex());
  Status st;
  std::int64_t begun = 0;
  const auto ready = [&] {
    const std::int64_t waited = begun != 0 ? now_ns() - begun : 0;
    for (const bool looks : {begun != 0, true}) {
      st = cancelled_.load() ? Status::from_errno(ECANCELED)
                             : core_->next(out, why, looks, waited > kPatienceNs);
      if (st.raw() != EAGAIN || looks) break;
    }
    if (st.raw() != EAGAIN) return true;
    if (begun == 0) begun = now_ns();
    if (waited > kLacksMemoryNs) {
      why = core_->lacks_memory();
      if (!why.empty()) st = Status::from_errno(ENOMEM);
    }
    return st.raw() == ENOMEM || core_->reads_alone();
  };
  for (;;) {
    if (!team_.wait(lock, ready)) {
      why = "this is a forked child";
      return Status::from_errno(EINVAL);
    }
    if (st.raw() != kCheckFirst.raw()) break;
    // LMDB's locks protect the snapshot only from writers on the same node.  The check reads the file, and
    // its server may not answer: without the lock, this rank still sends what the others wait for.
    TeamReader::Local* const local = reader_->local();
    lock.unlock();
    st = local->check(why);
    lock.lock();
    if (!st.ok()) break;
    core_->checked();
  }
  if (core_->reads_alone()) {
    core_->leave();
    core_.reset();
    lock.unlock();
    return next_alone(out, why);
  }
  at_ = core_->position();
  if (const auto shared = core_->shared(); begun != 0 && shared != nullptr) {
    shared->counters.waits.fetch_add(1, std::memory_order_relaxed);
    shared->counters.wait_ns.fetch_add(static_cast<std::uint64_t>(now_ns() - begun),
                                       std::memory_order_relaxed);
  }
  if (!core_->resting()) team_.notify();  // there may be room for more
  return st;
}

void TeamStream::cancel() noexcept {
  cancelled_ = true;
  if (records::Stream* const alone = cancels_.load()) alone->cancel();
  team_.notify();
}

}  // namespace lmdbio::ranks
