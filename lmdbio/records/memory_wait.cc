#include "lmdbio/records/memory_wait.h"

#include <unistd.h>

#include <cerrno>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/interrupt.h"

namespace lmdbio::records {

namespace {

/// Longest wait before a new attempt and a check for cancellation, in nanoseconds.
constexpr std::int64_t kLongest = 250'000'000;
/// kPoll is the longest wait if memory may become free without a notification.  kMostIdle is the longest time
/// without a change.  Both are in nanoseconds.
constexpr std::int64_t kPoll = 10'000'000, kMostIdle = 60'000'000'000;
/// Limit for retries after changes.  Other callers may cause changes all the time.
constexpr unsigned kMostChanges = 32;

}  // namespace

Status MemoryWait::make_way(const Shared* of) noexcept {
  const bool any = of == nullptr;
  if (any && !need_) need_.emplace(memory_);
  if (wait_ended(caller_.cancelled)) return Status::from_errno(ECANCELED);
  const Stream::Dropped dropped = Stream::drop_of_others(memory_, of, caller_);
  if (dropped == Stream::Dropped::some) {
    idle_ns_ = 0;
    return {};
  }
  if (any && urgency_ != Urgency::last) {
    urgency_ = Urgency::last;
    return {};
  }
  // Do not limit the wait for a call of a stream, because the call may take as long as its reads.
  const bool limited = any && (dropped != Stream::Dropped::busy || !memory_.is_read_ahead());
  const pid_t self = ::getpid();
  const std::int64_t begun = now_ns();
  {
    const AsyncSignalsAllowed program;
    memory_.changes().wait(seen_, any ? kPoll : kLongest);
  }
  if (::getpid() != self) return Status::from_errno(ECANCELED);  // a signal handler has forked
  if (!limited || memory_.changes().now() != seen_)
    idle_ns_ = 0;
  else if ((idle_ns_ += now_ns() - begun) > kMostIdle)
    return Status::from_errno(ENOMEM);
  return {};
}

// A Need stops read-ahead, and makes each change send a notification.  The first call therefore makes a Need
// and requests another attempt.
bool MemoryWait::changed() noexcept {
  if (!need_) {
    need_.emplace(memory_);
    return true;
  }
  return memory_.changes().now() != seen_ && changes_++ < kMostChanges;
}

}  // namespace lmdbio::records
