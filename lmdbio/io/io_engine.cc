#include "lmdbio/io/io_engine.h"

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lmdbio/base/align.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"

namespace lmdbio {
namespace {

constexpr std::size_t kBatch = 32;               // reads or results per call of do_submit() or do_reap()
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
  if (!op.dst.empty() && op.minimum <= op.dst.size() &&
      ((op.offset | op.dst.size() | at) & (caps_.align - 1)) == 0)
    return;
  log_line(LogLevel::error, "bug: read of %zu bytes (minimum %zu) at %llu into %p, alignment %zu",
           op.dst.size(), op.minimum, static_cast<unsigned long long>(op.offset),
           static_cast<void*>(op.dst.data()), caps_.align);
  std::abort();
}

Result<std::size_t> IoEngine::submit(std::span<const ReadOp> ops) noexcept {
  if (depth_ == 0) return Status::from_errno(ENOMEM);
  const std::size_t n = std::min<std::size_t>(ops.size(), free_);
  for (const ReadOp& op : ops.first(n)) {
    check(op);
    const unsigned slot = free_list_[--free_];
    slots_[slot] = Slot{op, 0, 0, 0, Status()};
    if (op.offset > kMaxOffset || op.dst.size() > kMaxOffset - op.offset)
      finish(slot, Status::from_errno(EIO));  // beyond the end of any file
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
      const Slot& s = slots_[slot];
      out[n++] = Completion{s.op.tag, s.status, s.status.ok() ? s.done : 0};
      free_list_[free_++] = slot;
    }
    drop_front(ready_list_, ready_, take);
    if (n == out.size() || in_flight() == 0 || (n >= min && polled)) {
      push_pending();  // submits the rest of a short read, so that ready_fd() reports it
      return n;
    }
    if (pending_ != 0) {
      if (n < min) back_off();
      push_pending();
      if (ready_ != 0) continue;
    }
    RawResult raw[kBatch];
    const std::size_t room = std::min(kBatch, out.size() - n);
    const std::size_t wait = std::min<std::size_t>({min > n ? min - n : 0, room, below_});
    polled = true;
    if (below_ == 0) continue;  // all are pending: try them again, or return if the caller does not wait
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

// Handles one result of do_reap(): interrupted, refused and short reads, and the end of the file.
void IoEngine::settle(const RawResult& r) noexcept {
  assert(r.slot < depth_);
  --below_;
  Slot& s = slots_[r.slot];
  const std::size_t rest = s.op.dst.size() - s.done;
  // io_uring returns ECANCELED or EFAULT if the thread that submitted the read has ended.
  if (r.res == -EINTR || r.res == -ECANCELED) {
    ++counters_.retries;
    pending_list_[pending_++] = r.slot;
  } else if (r.res == -EFAULT && s.again < kFaultTries) {
    ++s.again;
    ++counters_.retries;
    pending_list_[pending_++] = r.slot;
  } else if (r.res == -EAGAIN) {
    if (retry_later(r.slot)) pending_list_[pending_++] = r.slot;
  } else if (r.res < 0) {
    finish(r.slot, Status::from_kernel(r.res));
  } else if (const auto got = static_cast<std::size_t>(r.res); got == 0 || got > rest) {
    // The file ended before the minimum.  No engine returns more than was requested.
    finish(r.slot, Status::from_errno(EIO));
  } else {
    counters_.bytes += got;
    if (got == rest || (s.op.minimum != 0 && s.done + got >= s.op.minimum)) {
      s.done += got;
      finish(r.slot, Status());
      return;
    }
    // A direct read must begin at a block, so a block that came in part is read again.  At the end of the
    // file the next try returns no more than this one.
    const std::size_t blocks = got - got % caps_.align;
    if (blocks == 0 && s.cut == kCutTries) {
      finish(r.slot, Status::from_errno(EIO));
      return;
    }
    s.again = 0;
    s.cut = blocks == 0 ? s.cut + 1 : 0;
    s.done += blocks;
    ++counters_.short_reads;
    pending_list_[pending_++] = r.slot;
  }
}

void IoEngine::finish(unsigned slot, Status s) noexcept {
  slots_[slot].status = s;
  ready_list_[ready_++] = slot;
}

// Counts one more EAGAIN.  Returns false, and ends the read, if it has used up its tries.
bool IoEngine::retry_later(unsigned slot) noexcept {
  if (slots_[slot].again == kAgainTries) {
    finish(slot, Status::from_errno(EAGAIN));
    return false;
  }
  const unsigned again = ++slots_[slot].again;
  ++counters_.retries;
  retry_at_ns_ = std::max(retry_at_ns_, now_ns() + (std::int64_t{1000} << std::min(again, kMaxBackOff)));
  return true;
}

// Passes pending reads to do_submit(), oldest first, until it takes no more.  Passes none before
// retry_at_ns_.
void IoEngine::push_pending() noexcept {
  if (pending_ == 0 || back_off_ns() > 0) return;
  retry_at_ns_ = 0;
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
    // After EAGAIN, or if the engine is full with nothing in flight, the read is tried again later, a limited
    // number of times.  Any other error ends the read.
    const unsigned first = pending_list_[0];
    if (e == 0 || e == EAGAIN) {
      if (retry_later(first)) return;
    } else {
      finish(first, taken.error());
    }
    drop_front(pending_list_, pending_, 1);
  }
}

// Returns the time in nanoseconds until pending reads may be submitted again.  0 or less means now.
std::int64_t IoEngine::back_off_ns() const noexcept {
  return retry_at_ns_ == 0 ? 0 : retry_at_ns_ - now_ns();
}

void IoEngine::back_off() const noexcept {
  const std::int64_t left = back_off_ns();
  if (left <= 0) return;
  const struct timespec pause = {0, static_cast<long>(left)};  // about 1 ms at most
  ::nanosleep(&pause, nullptr);
}

int IoEngine::poll_timeout_ms() const noexcept {
  if (in_flight() == 0) return -1;
  if (ready_ != 0 || ready_fd() < 0) return 0;
  return pending_ != 0 && (below_ == 0 || retry_at_ns_ != 0) ? 1 : -1;
}

void IoEngine::wait_briefly(std::int64_t ns) noexcept {
  pollfd ready = {ready_fd(), POLLIN, 0};
  const int most = poll_timeout_ms(), wanted = static_cast<int>(ns / 1'000'000);
  if (ready.fd >= 0) (void)::poll(&ready, 1, most < 0 ? wanted : std::min(most, wanted));
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
