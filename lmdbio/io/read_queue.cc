#include "lmdbio/io/read_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/interrupt.h"
#include "lmdbio/io/stall_notice.h"

namespace lmdbio {

namespace {

unsigned size_class(std::size_t bytes) noexcept {
  constexpr std::size_t kBounds[] = {4 << 10, 64 << 10, 256 << 10, 1 << 20};
  return static_cast<unsigned>(std::lower_bound(std::begin(kBounds), std::end(kBounds), bytes) -
                               std::begin(kBounds));
}

ReadGroup& group_of(std::uint64_t tag) noexcept {
  return *reinterpret_cast<ReadGroup*>(static_cast<std::uintptr_t>(tag));
}
std::uint64_t tag_of(const ReadGroup& g) noexcept { return reinterpret_cast<std::uintptr_t>(&g); }

}  // namespace

ReadQueue::ReadQueue(std::unique_ptr<IoEngine> engine, std::uint64_t file_bytes, std::size_t most_request)
    : engine_(std::move(engine)), file_bytes_(file_bytes), most_request_(most_request) {}

ReadQueue::~ReadQueue() {
  if (forgotten()) return;
  pending_.clear();
  while (!forgotten() && engine_->in_flight() != 0) reap_next(engine_->in_flight());
}

std::size_t ReadQueue::room(const Extent& e) const noexcept {
  const std::size_t align = alignment();
  return static_cast<std::size_t>(align_up(e.offset + e.bytes, align) - align_down(e.offset, align));
}

template <class Place>
Status ReadQueue::add_pieces(ReadGroup& group, const Extent& extent, Place&& place) noexcept {
  const std::size_t before = pending_.size();
  try {
    split_aligned(extent, alignment(), file_bytes_, most_request_, [&](const ReadPiece& r) {
      pending_.push_back({r.offset, {place(r.offset), r.bytes}, tag_of(group), r.minimum});
    });
  } catch (...) {
    pending_.resize(before);
    return Status::from_errno(ENOMEM);
  }
  const auto added = static_cast<unsigned>(pending_.size() - before);
  group.offset = extent.offset;
  group.left += added;
  group.waiting += added;
  return {};
}

Status ReadQueue::add(ReadGroup& group, const Extent& extent, std::byte* to) noexcept {
  const std::uint64_t start = align_down(extent.offset, alignment());
  return add_pieces(group, extent, [&](std::uint64_t at) { return to + (at - start); });
}

Status ReadQueue::add_unread(ReadGroup& group, const Extent& extent, MutableBytes scratch) noexcept {
  return add_pieces(group, extent, [&](std::uint64_t) {
    return scratch.data() + next_unread_++ % (scratch.size() / most_request_) * most_request_;
  });
}

void ReadQueue::pump() noexcept {
  if (forgotten()) return;
  submit();
  reap_here();
}

void ReadQueue::take_done() noexcept {
  if (!forgotten() && engine_->in_flight() != 0) reap(0);
}

Status ReadQueue::wait(ReadGroup& group) noexcept {
  if (forgotten()) return group.done() ? group.status : Status::from_errno(ECANCELED);
  if (group.done()) return group.status;
  put_first(group);
  submit();
  if (name_ != nullptr) {
    StallNotice stall;
    for (reap_here(); !group.done() && !forgotten(); reap_here()) {
      stall.look(name_, group.offset);
      constexpr std::int64_t kPoll = 250'000'000;
      if (!wait_briefly(kPoll)) break;
    }
  } else {
    for (; !group.done() && !forgotten(); submit()) reap_next(1);
  }
  return group.done() ? group.status : Status::from_errno(ECANCELED);
}

Status ReadQueue::wait(ReadGroup& group, const std::atomic<bool>& cancelled) noexcept {
  constexpr std::int64_t kPoll = 10'000'000;
  if (forgotten()) return group.done() ? group.status : Status::from_errno(ECANCELED);
  if (group.done()) return group.status;
  put_first(group);
  for (;;) {
    submit();
    if (engine_->in_flight() != 0) reap(0);
    if (group.done()) return group.status;
    submit();
    if (wait_ended(cancelled)) return Status::from_errno(ECANCELED);
    if (!wait_briefly(kPoll)) return Status::from_errno(ECANCELED);
  }
}

void ReadQueue::wait_any() noexcept {
  if (forgotten()) return;
  submit();
  if (engine_->in_flight() != 0) reap_next(1);
}

void ReadQueue::drop(ReadGroup& group) noexcept {
  if (forgotten()) return;
  if (group.waiting != 0) {
    const std::uint64_t tag = tag_of(group);
    std::erase_if(pending_, [tag](const ReadOp& op) { return op.tag == tag; });
    group.left -= std::exchange(group.waiting, 0);
  }
  while (!group.done() && !forgotten()) reap_next(1);
}

void ReadQueue::drop_all() noexcept {
  if (forgotten()) return;
  for (const ReadOp& op : pending_) {
    ReadGroup& group = group_of(op.tag);
    --group.left;
    --group.waiting;
  }
  pending_.clear();
  while (!forgotten() && engine_->in_flight() != 0) reap_next(engine_->in_flight());
}

ReadCounts ReadQueue::take_counts() noexcept {
  const IoEngine::Counters now = counters(), before = std::exchange(taken_, now);
  return {now.requests - before.requests, now.bytes - before.bytes, now.short_reads - before.short_reads,
          now.retries - before.retries, std::exchange(sizes_, {})};
}

bool ReadQueue::forgotten() noexcept {
  if (!forgotten_ && born_ != PrivateTable::generation()) forget();
  return forgotten_;
}

void ReadQueue::forget() noexcept {
  forgotten_ = true;
  pending_.clear();
  engine_->forget();
}

// Moves the pending reads of `group` to the front, because a caller waits for them.
void ReadQueue::put_first(const ReadGroup& group) noexcept {
  const std::uint64_t tag = tag_of(group);
  if (group.waiting == 0 || pending_.front().tag == tag) return;
  std::stable_partition(pending_.begin(), pending_.end(), [tag](const ReadOp& op) { return op.tag == tag; });
}

void ReadQueue::submit() noexcept {
  if (forgotten()) return;
  while (!pending_.empty()) {
    ReadOp ops[32];  // copied, since the elements of a deque are not contiguous
    const std::size_t n = std::min(pending_.size(), std::size(ops));
    std::copy_n(pending_.begin(), n, ops);
    const Result<std::size_t> taken = engine_->submit({ops, n});
    const std::size_t gone = taken ? taken.value() : 1;
    const std::int64_t now = gone != 0 ? now_ns() : 0;
    for (std::size_t i = 0; i < gone; ++i) {
      ReadGroup& group = group_of(ops[i].tag);
      --group.waiting;
      group.sent_ns = now;
      ++sizes_[size_class(ops[i].dst.size())];
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(gone));
    if (!taken)
      end(group_of(ops[0].tag), taken.error());
    else if (gone < n)
      return;
  }
}

void ReadQueue::reap(std::size_t min) noexcept {
  Completion done[32];
  for (;;) {
    const Result<std::size_t> n = engine_->reap(done, std::min(min, std::size(done)));
    if (!n) return;  // an error of the engine: its reads stay in flight, and the next call tries again
    for (std::size_t i = 0; i < n.value(); ++i) end(group_of(done[i].tag), done[i].status);
    if (n.value() < std::size(done)) return;
    min = 0;
  }
}

// Takes finished reads, then submits pending ones.
void ReadQueue::reap_here() noexcept {
  if (forgotten() || engine_->in_flight() == 0) return;
  reap(0);
  submit();
}

// Waits for `min` of the reads in flight.  If the caller has blocked signals, the program's handlers run
// during the wait, and the wait may end early.
void ReadQueue::reap_next(std::size_t min) noexcept {
  if (!AsyncSignalsBlocked::active() || engine_->in_flight() == 0) return reap(min);
  constexpr std::int64_t kPoll = 250'000'000;
  if (wait_briefly(kPoll)) reap(0);
}

// Waits with the program's signal mask.  Returns false in a child that a signal handler has forked; the queue
// is forgotten then.
bool ReadQueue::wait_briefly(std::int64_t ns) noexcept {
  const bool handlers = AsyncSignalsBlocked::active();
  const pid_t self = handlers ? ::getpid() : 0;
  {
    const AsyncSignalsAllowed program;
    engine_->wait_briefly(ns);
  }
  if (!handlers || ::getpid() == self) return true;
  forget();
  return false;
}

void ReadQueue::end(ReadGroup& group, Status st) noexcept {
  if (!st.ok() && group.status.ok()) group.status = st;
  --group.left;
}

}  // namespace lmdbio
