#include "lmdbio/records/memory_wait.h"

#include <unistd.h>

#include <cerrno>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/interrupt.h"

namespace lmdbio::records {

namespace {

/// Nanoseconds; then it is looked again, also whether the program wants the wait to end.
constexpr std::int64_t kLongest = 250'000'000;
/// The same where memory may come back that nobody tells of, and how long at most nothing has.
constexpr std::int64_t kPoll = 10'000'000, kMostIdle = 60'000'000'000;
/// Attempts that are made anew because something changed meanwhile: others may go on all the time.
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
  // A stream's call may take as long as its reads do.
  const bool limited = any && (dropped != Stream::Dropped::busy || !memory_.is_read_ahead());
  const pid_t self = ::getpid();
  const std::int64_t begun = now_ns();
  {
    const AsyncSignalsAllowed program;
    memory_.changes().wait(seen_, any ? kPoll : kLongest);
  }
  if (::getpid() != self) return Status::from_errno(ECANCELED);  // a handler has forked
  if (!limited || memory_.changes().now() != seen_)
    idle_ns_ = 0;
  else if ((idle_ns_ += now_ns() - begun) > kMostIdle)
    return Status::from_errno(ENOMEM);
  return {};
}

// Only while there is a Need does nobody read ahead, and does each change tell of itself.
bool MemoryWait::changed() noexcept {
  if (!need_) {
    need_.emplace(memory_);
    return true;
  }
  return memory_.changes().now() != seen_ && changes_++ < kMostChanges;
}

}  // namespace lmdbio::records
