#include "lmdbio/ranks/rank_stream.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lmdbio::ranks {

using records::BatchPlan;
using records::Order;
using records::Position;
using records::Sequence;

Status RankStream::open(const Assignment& assignment, const Settings& settings, Transport& transport,
                        PartSource& source, std::unique_ptr<RankStream>& out) {
  const lmdbio_order share = assignment.share(transport.rank());
  Result<Sequence> sequence = Sequence::make(share, assignment.order_of(transport.rank()), {});
  if (!sequence) return sequence.error();
  out.reset(new RankStream(assignment, settings, transport, source, std::move(sequence).value()));
  return {};
}

RankStream::RankStream(const Assignment& assignment, const Settings& settings, Transport& transport,
                       PartSource& source, Sequence sequence)
    : assignment_(assignment),
      source_(source),
      sequence_(std::move(sequence)),
      share_(assignment.order_of(transport.rank())),
      transport_(transport),
      sender_([&]() -> std::unique_ptr<Sender> {
        const auto& ranks = settings.reader_ranks;
        const auto self = std::find(ranks.begin(), ranks.end(), transport.rank());
        if (self == ranks.end()) return nullptr;
        return std::make_unique<Sender>(assignment, static_cast<std::uint32_t>(self - ranks.begin()), ranks,
                                        settings.ahead, settings.turns, transport, source, settings.memory);
      }()),
      receiver_(assignment, settings.reader_ranks, settings.ahead, transport, sender_.get(), settings.memory,
                settings.keeps, settings.nodes),
      at_(sequence_.first()),
      takes_nothing_(settings.takes_nothing),
      departure_(transport.rank(), transport.ranks()) {
  if (sender_ != nullptr) sender_->use_page_cache(settings.in_page_cache);
  if (!settings.takes_nothing) return;
  receiver_.leave();
  if (sender_ != nullptr) sender_->send_nothing_here();
  if (settings.keeps != 0 && share_.repeats()) kept_.emplace(settings.keeps, settings.memory);
}

Status RankStream::progress(std::string& why) {
  std::uint64_t near = receiver_.next_round();
  if (receiver_.has_left()) near = ended_ ? UINT64_MAX : assignment_.first_round(at_.epoch + 1);
  if (sender_ != nullptr)
    if (const Status st = sender_->progress(near); !st.ok()) {
      why = "a message could not be sent";
      return st;
    }
  for (OwnRead& r : reads_)
    if (!r.ended && r.read->done()) {
      r.ended = true;
      ++own_ended_;
    }
  if (const Status st = receiver_.progress(why); !st.ok() || !ended_) return st;
  is_quiet_ = is_quiet_ || (receiver_.quiet() && (sender_ == nullptr || sender_->quiet()));
  if (!is_quiet_) return {};
  if (const Status st = departure_.progress(transport_); !st.ok()) {
    why = "a message could not be sent";
    return st;
  }
  if (!departure_.all_ready()) return {};
  receiver_.stop();
  if (sender_ != nullptr) sender_->stop();
  return {};
}

// Collects the records of the next batch that have arrived.  Sets `missing` to the positions in the batch
// that no rank sends, and that this rank does not read yet.  Returns false if some records have still to
// arrive.
bool RankStream::collect(const BatchPlan& plan, bool impatient, std::vector<std::size_t>& missing) {
  if (waits_for_ && !impatient) {  // usually the record that the last call waited for has not arrived yet
    lmdbio_record record;
    std::shared_ptr<const void> keep;
    if (receiver_.find(*waits_for_, record, keep) == Receiver::Found::pending) return false;
  }
  waits_for_.reset();
  const auto count = static_cast<std::size_t>(plan.count);
  batch_ = {};
  batch_.at = plan.at;
  batch_.padding = static_cast<std::size_t>(plan.padding);
  batch_.records.resize(count);
  std::vector<bool> read(count);
  for (const OwnRead& r : reads_)
    for (const std::size_t i : r.which) read[i] = true;
  bool all = true;
  for (std::size_t i = 0; i < count; ++i) {
    if (read[i]) continue;
    if (i >= count - batch_.padding) {
      missing.push_back(i);
      continue;
    }
    const Position at = position_of(plan, i);
    std::shared_ptr<const void> keep;
    const bool kept = kept_ && kept_->find(at.position, batch_.records[i], keep);
    switch (kept ? Receiver::Found::here : receiver_.find(at, batch_.records[i], keep, impatient)) {
      case Receiver::Found::pending:
        if (all) waits_for_ = at;
        all = false;
        break;
      case Receiver::Found::failed:
        missing.push_back(i);
        break;
      case Receiver::Found::here:
        if (batch_.keep.empty() || batch_.keep.back() != keep) batch_.keep.push_back(std::move(keep));
        break;
    }
  }
  return all;
}

Position RankStream::position_of(const BatchPlan& plan, std::size_t i) const noexcept {
  const Position at{plan.at.epoch, plan.at.position + i};
  return share_.across_epochs() ? share_.normal(at) : at;
}

Status RankStream::read_missing(const BatchPlan& plan, std::vector<std::size_t> missing, bool may_lend,
                                std::string& why) {
  std::vector<std::uint64_t> ordinals;
  for (const std::size_t i : missing) ordinals.push_back(sequence_.ordinal(plan, i));
  std::unique_ptr<PartRead> read;
  if (const Status st = source_.start(ordinals, {.may_lend = may_lend}, read, why); !st.ok()) return st;
  if (!takes_nothing_)
    alone_ += static_cast<std::uint64_t>(std::count_if(missing.begin(), missing.end(), [&](std::size_t i) {
      return i < batch_.records.size() - batch_.padding;
    }));
  reads_.push_back({std::move(missing), std::move(read), false});
  return {};
}

// Adds the records that this rank reads itself to the batch.  EAGAIN: reads are in flight.  After another
// error, the next call of next() repeats the failed read.
Status RankStream::finish_reads(std::string& why) {
  if (!std::all_of(reads_.begin(), reads_.end(), [](const OwnRead& r) { return r.read->done(); }))
    return Status::from_errno(EAGAIN);
  for (auto at = reads_.begin(); at != reads_.end(); ++at) {
    for (std::size_t n = 0; n < at->which.size(); ++n)
      if (const Status st = at->read->record(n, batch_.records[at->which[n]], why); !st.ok()) {
        reads_.erase(at);
        return st;
      }
  }
  for (OwnRead& read : reads_)
    if (read.read->lends())
      lent_.push_back(std::move(read));
    else
      batch_.keep.push_back(read.read->bytes());
  reads_.clear();
  return {};
}

// Keeps the records of the batch that are not kept yet.  EAGAIN: some lent records could not be kept, and are
// being read again.
Status RankStream::keep(const BatchPlan& plan, std::string& why) {
  std::vector<KeptRecords::Record> records;
  const std::size_t count = batch_.records.size() - batch_.padding;
  for (std::size_t i = 0; i < count && !kept_->full(); ++i)
    if (const Position at = position_of(plan, i); !kept_->has(at.position))
      records.push_back({at.position, batch_.records[i]});
  kept_->add(records);
  std::vector<std::size_t> again;
  for (const OwnRead& read : std::exchange(lent_, {}))
    for (const std::size_t i : read.which) {
      std::shared_ptr<const void> keep;
      if (i >= count || !kept_->find(position_of(plan, i).position, batch_.records[i], keep))
        again.push_back(i);
      else if (batch_.keep.empty() || batch_.keep.back() != keep)
        batch_.keep.push_back(std::move(keep));
    }
  if (again.empty()) return {};
  if (const Status st = read_missing(plan, std::move(again), false, why); !st.ok()) return st;
  return Status::from_errno(EAGAIN);
}

Traffic RankStream::traffic() const noexcept {
  Traffic t;
  t.records_alone = alone_;
  if (sender_ != nullptr) sender_->add_to(t);
  receiver_.add_to(t);
  return t;
}

void RankStream::leave() noexcept {
  ended_ = true;
  waits_for_.reset();
  reads_.clear();
  lent_.clear();
  kept_.reset();
  receiver_.leave();
  if (sender_ != nullptr) sender_->leave();
}

Status RankStream::next(RankBatch& out, std::string& why, bool impatient) {
  const std::optional<BatchPlan> plan = sequence_.batch(at_);
  if (plan) {
    Position last{plan->at.epoch, plan->at.position + (plan->count - plan->padding) - 1};
    if (share_.across_epochs()) last = share_.normal(last);
    last = share_.element(last.epoch, last.position);
    receiver_.require(assignment_.round_of(last.epoch, last.position));
  }
  if (const Status st = progress(why); !st.ok()) return st;
  if (!plan) {
    ended_ = true;
    receiver_.leave();
    return Status::from_mdb(MDB_NOTFOUND);
  }
  std::vector<std::size_t> missing;
  const bool all = collect(*plan, impatient, missing);
  if (!missing.empty())
    if (const Status st = read_missing(*plan, std::move(missing), kept_ && !kept_->full(), why); !st.ok())
      return st;
  if (!all) return Status::from_errno(EAGAIN);
  if (const Status st = finish_reads(why); !st.ok()) return st;
  if (kept_ && (!kept_->full() || !lent_.empty()))
    if (const Status st = keep(*plan, why); !st.ok()) return st;
  at_ = plan->after;
  out = std::move(batch_);
  receiver_.drop_before(at_);
  return {};
}

}  // namespace lmdbio::ranks
