#include "lmdbio/ranks/team_stream.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "lmdbio/base/log.h"
#include "lmdbio/ranks/pauses.h"

namespace lmdbio::ranks {

namespace {

/// If memory for the messages of a batch is short for longer than this, next() returns ENOMEM.
constexpr std::int64_t kLacksMemoryNs = 2'000'000'000;

}  // namespace

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
    if (reader->local() == nullptr) {
      why = reader->path() + ": the reader is closed";
      return Status::from_errno(EINVAL);
    }
    const char* wrong = nullptr;
    const auto checked = records::Order::make(order, reader->records(), &wrong, made->list_);
    if (!checked && wrong != nullptr && !reader->pending()) {
      why = reader->path() + ": lmdbio_order: " + wrong;
      return checked.error();
    }
    if (ranks > 1 && order.kind != LMDBIO_ORDER_KEYS && share) {
      made->member_ = std::make_shared<StreamMember>(std::move(reader), made->order_, made->list_);
      team.add(made->member_);
      team.notify();
    } else if (ranks > 1 && team.rank() == 0) {
      log_line(LogLevel::info,
               "%s: each rank reads alone: the order is one of keys, or not a share of this rank",
               made->reader_->path().c_str());
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
  if (member_ != nullptr) leave_member();
}

void TeamStream::leave_member() noexcept {
  if (team_.closed() && team_.ours()) return;
  std::string why;
  if (!team_.ours()) {
    // In a forked child, leak the member, because its operations must not be touched.
    (void)new (std::nothrow) std::shared_ptr<StreamMember>(std::move(member_));
    return;
  }
  {
    const std::lock_guard lock(team_.mutex());
    member_->leave();
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
  if (member_ == nullptr) return next_alone(out, why);
  if (!team_.may_call(why)) return Status::from_errno(EINVAL);
  std::unique_lock lock(team_.mutex());
  Status st;
  std::int64_t begun = 0;
  const auto ready = [&] {
    const std::int64_t waited = begun != 0 ? now_ns() - begun : 0;
    for (const bool looks : {begun != 0, true}) {
      st = cancelled_.load() ? Status::from_errno(ECANCELED)
                             : member_->next(out, why, looks, waited > kPatienceNs);
      if (st.raw() != EAGAIN || looks) break;
    }
    if (st.raw() != EAGAIN) return true;
    if (begun == 0) begun = now_ns();
    if (waited > kLacksMemoryNs) {
      why = member_->lacks_memory();
      if (!why.empty()) st = Status::from_errno(ENOMEM);
    }
    return st.raw() == ENOMEM || member_->reads_alone();
  };
  for (;;) {
    if (!team_.wait(lock, ready)) {
      why = "this is a forked child";
      return Status::from_errno(EINVAL);
    }
    if (st.raw() != StreamMember::kCheckFirst.raw()) break;
    // LMDB's locks protect the snapshot only from writers on the same node, so check the file.  This reads
    // the file, and its server may not answer.  Without the lock, this rank can still send the records that
    // other ranks wait for.
    TeamReader::Local* const local = reader_->local();
    lock.unlock();
    st = local->check(why);
    lock.lock();
    if (!st.ok()) break;
    member_->checked();
  }
  if (member_->reads_alone()) {
    member_->leave();
    member_.reset();
    lock.unlock();
    return next_alone(out, why);
  }
  at_ = member_->position();
  if (const auto shared = member_->shared(); begun != 0 && shared != nullptr) {
    ++shared->counters.waits;
    shared->counters.wait_ns += static_cast<std::uint64_t>(now_ns() - begun);
  }
  if (!member_->resting()) team_.notify();  // there may be room for more
  return st;
}

void TeamStream::cancel() noexcept {
  cancelled_ = true;
  if (records::Stream* const alone = cancels_.load()) alone->cancel();
  team_.notify();
}

}  // namespace lmdbio::ranks
