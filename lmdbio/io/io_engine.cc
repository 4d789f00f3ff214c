#include "lmdbio/io/io_engine.h"

#include <time.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lmdbio/base/align.h"
#include "lmdbio/base/log.h"

namespace lmdbio {
namespace {

constexpr std::size_t kBatch = 32;               // reads or results passed below at a time
constexpr std::uint64_t kMaxOffset = INT64_MAX;  // off_t
constexpr unsigned kMaxBackOff = 10;             // 2^10 us

void drop_front(unsigned* list, unsigned& count, std::size_t n) noexcept {
  std::memmove(list, list + n, (count - n) * sizeof *list);
  count -= static_cast<unsigned>(n);
}

}  // namespace

IoEngine::IoEngine(Caps caps) noexcept : caps_(caps) {
  assert(caps.depth > 0 && is_power_of_two(caps.align));
  slots_.reset(new (std::nothrow) Slot[caps.depth]);
  lists_.reset(new (std::nothrow) unsigned[std::size_t{3} * caps.depth]);
  if (slots_ == nullptr || lists_ == nullptr) return;
  depth_ = free_ = caps.depth;
  free_list_ = lists_.get();
  pending_list_ = free_list_ + depth_;
  ready_list_ = pending_list_ + depth_;
  for (unsigned i = 0; i < depth_; ++i) free_list_[i] = depth_ - 1 - i;
}

IoEngine::~IoEngine() = default;

void IoEngine::check(const ReadOp& op) const noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(op.dst.data());
  if (!op.dst.empty() && ((op.offset | op.dst.size() | at) & (caps_.align - 1)) == 0) return;
  log_line(LogLevel::error, "bug: read of %zu bytes at %llu into %p, alignment %zu", op.dst.size(),
           static_cast<unsigned long long>(op.offset), static_cast<void*>(op.dst.data()), caps_.align);
  std::abort();
}

Result<std::size_t> IoEngine::submit(std::span<const ReadOp> ops) noexcept {
  if (depth_ == 0) return Status::from_errno(ENOMEM);
  const std::size_t n = std::min<std::size_t>(ops.size(), free_);
  for (const ReadOp& op : ops.first(n)) {
    check(op);
    const unsigned slot = free_list_[--free_];
    slots_[slot] = Slot{op, 0, 0, Status()};
    if (op.offset > kMaxOffset || op.dst.size() > kMaxOffset - op.offset)
      finish(slot, Status::from_errno(EIO));  // surely beyond the end of the file
    else
      pending_list_[pending_++] = slot;
  }
  push_pending();
  return n;
}

Result<std::size_t> IoEngine::reap(std::span<Completion> out, std::size_t min) noexcept {
  if (depth_ == 0) return std::size_t{0};
  min = std::min(min, out.size());
  std::size_t n = 0;
  for (bool polled = false;;) {
    const std::size_t take = std::min<std::size_t>(ready_, out.size() - n);
    for (std::size_t i = 0; i < take; ++i) {
      const unsigned slot = ready_list_[i];
      out[n++] = Completion{slots_[slot].op.tag, slots_[slot].status};
      free_list_[free_++] = slot;
    }
    drop_front(ready_list_, ready_, take);
    if (n == out.size() || in_flight() == 0 || (n >= min && polled)) return n;

    if (pending_ != 0) {
      back_off();
      push_pending();
      if (ready_ != 0) continue;
    }
    RawResult raw[kBatch];
    const std::size_t room = std::min(kBatch, out.size() - n);
    const std::size_t wait = std::min<std::size_t>({min > n ? min - n : 0, room, below_});
    polled = true;
    if (below_ == 0) continue;  // all are pending: try them again, or give up if nobody waits
    const Result<std::size_t> got = do_reap(std::span(raw).first(room), wait);
    if (!got) {
      if (got.error().raw() == EINTR) continue;
      if (n != 0) return n;
      return got.error();
    }
    assert(got.value() <= room && got.value() <= below_);
    for (std::size_t i = 0; i < got.value(); ++i) settle(raw[i]);
  }
}

// One result from below: the only place where interrupted, refused and short reads and the end of the file
// are known.
void IoEngine::settle(const RawResult& r) noexcept {
  assert(r.slot < depth_);
  --below_;
  Slot& s = slots_[r.slot];
  const std::size_t rest = s.op.dst.size() - s.done;
  if (r.res == -EINTR) {
    ++counters_.retries;
    pending_list_[pending_++] = r.slot;
  } else if (r.res == -EAGAIN) {
    if (retry_later(r.slot)) pending_list_[pending_++] = r.slot;
  } else if (r.res < 0) {
    finish(r.slot, Status::from_kernel(r.res));
  } else if (const auto got = static_cast<std::size_t>(r.res); got == 0 || got > rest) {
    finish(r.slot, Status::from_errno(EIO));  // end of the file; more than asked for: no engine does that
  } else {
    counters_.bytes += got;
    s.done += got;
    s.again = 0;
    if (got == rest) {
      finish(r.slot, Status());
    } else if (got % caps_.align != 0) {
      finish(r.slot, Status::from_errno(EIO));  // only the end of the file cuts a direct read inside a block
    } else {
      ++counters_.short_reads;
      pending_list_[pending_++] = r.slot;
    }
  }
}

void IoEngine::finish(unsigned slot, Status s) noexcept {
  slots_[slot].status = s;
  ready_list_[ready_++] = slot;
}

// Counts one more EAGAIN; false if that was the last one allowed: the read has then ended.
bool IoEngine::retry_later(unsigned slot) noexcept {
  if (slots_[slot].again == kAgainTries) {
    finish(slot, Status::from_errno(EAGAIN));
    return false;
  }
  ++slots_[slot].again;
  ++counters_.retries;
  return true;
}

// Hands the pending reads below, oldest first, as far as they are taken.
void IoEngine::push_pending() noexcept {
  while (pending_ != 0) {
    RawRead batch[kBatch];
    const std::size_t n = std::min<std::size_t>(pending_, kBatch);
    for (std::size_t i = 0; i < n; ++i) {
      const Slot& s = slots_[pending_list_[i]];
      batch[i] = RawRead{s.op.offset + s.done, s.op.dst.subspan(s.done), pending_list_[i]};
    }
    const Result<std::size_t> taken = do_submit(std::span(batch).first(n));
    const std::size_t t = taken ? taken.value() : 0;
    assert(t <= n);
    counters_.requests += t;
    below_ += static_cast<unsigned>(t);
    drop_front(pending_list_, pending_, t);
    if (t == n) continue;
    const int e = taken ? 0 : taken.error().raw();
    if (e == EINTR) {
      ++counters_.retries;
      continue;
    }
    if (e == 0 && below_ != 0) return;  // full: there is room after the next reap
    // EAGAIN, or full with nothing in flight: later, a bounded number of times.  Else this read cannot be
    // had.
    const unsigned first = pending_list_[0];
    if (e == 0 || e == EAGAIN) {
      if (retry_later(first)) return;
    } else {
      finish(first, taken.error());
    }
    drop_front(pending_list_, pending_, 1);
  }
}

// Waits before another try as long as the read that was refused most often asks for.
void IoEngine::back_off() const noexcept {
  unsigned most = 0;
  for (unsigned i = 0; i < pending_; ++i) most = std::max(most, slots_[pending_list_[i]].again);
  if (most == 0) return;
  const struct timespec pause = {0, 1000L << std::min(most, kMaxBackOff)};
  ::nanosleep(&pause, nullptr);
}

Status read_fully(IoEngine& engine, std::uint64_t offset, MutableBytes dst) noexcept {
  assert(engine.in_flight() == 0);
  if (dst.empty()) return Status();
  const ReadOp op{offset, dst, 0};
  if (const auto taken = engine.submit({&op, 1}); !taken) return taken.error();
  Completion done{0, Status()};
  if (const auto got = engine.reap({&done, 1}, 1); !got) return got.error();
  return done.status;
}

}  // namespace lmdbio
