#include "lmdbio/gather/memory_budget.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio::gather {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
/// Upper limit of a process's growth between two checks, in bytes.
constexpr std::uint64_t kStep = 64 * kMiB;
/// Below this use, in bytes, a process does not check memory.  Unless the user has set a limit in percent,
/// the threshold is at most 1/64 of the limit.
constexpr std::uint64_t kUnchecked = 256 * kMiB;
/// After a refusal, a process waits at least kLeastPause ns before it checks again, and at least
/// kPauseForLook times the duration of the last check.
constexpr std::int64_t kLeastPause = 10'000'000;
constexpr std::int64_t kPauseForLook = 50;
/// The result of a check is valid until programs could have filled the remaining room at kTakenPerNs bytes
/// per ns.  This time is limited to the range from kLeastGood to kMostGood, in ns.
constexpr std::int64_t kLeastGood = 10'000'000, kMostGood = 2'000'000'000;
constexpr std::uint64_t kTakenPerNs = 4;
/// Nothing is read ahead while the available memory is less than an eighth of all memory and less than this.
/// In bytes.
constexpr std::uint64_t kNearlyFull = 64 * kMiB;
/// Assumed number of processes if the other processes are not known.
constexpr std::uint64_t kUnseen = 16;

/// Returns how much memory stays free for what programs may need soon, in bytes.
std::uint64_t kept_free(std::uint64_t total) noexcept {
  return std::max(total / 8, std::min(total / 4, 256 * kMiB));
}
std::uint64_t less(std::uint64_t from, std::uint64_t what) noexcept { return from - std::min(from, what); }

}  // namespace

Agreement agree(const AgreementFacts& f) noexcept {
  const std::uint64_t total = f.memory.total, half = f.is_agreed ? total / 2 : total;
  const bool sees = f.sees_others || !f.is_agreed;
  // A process that does not see the other processes leaves half of the memory to them and to the program.
  const std::uint64_t reserve = sees ? kept_free(total) : total / 2;
  const node::MemoryOfOthers others = f.is_agreed ? f.others : node::MemoryOfOthers{};
  const std::uint64_t processes = sees ? others.processes + std::uint64_t{1} : kUnseen;
  const std::uint64_t most = f.sees_others ? std::min(f.limit, half / processes) : f.limit;
  const std::uint64_t used_by_all = f.used + others.used;
  const std::uint64_t excess = std::max(less(used_by_all, half), less(reserve, f.memory.available));
  Agreement a;
  if (excess != 0) {
    // Each process gives back a part of the excess in proportion to its use.
    const double part =
        static_cast<double>(f.used) / static_cast<double>(std::max<std::uint64_t>(used_by_all, 1));
    a.limit =
        std::min(most, less(f.used, static_cast<std::uint64_t>(static_cast<double>(excess) * part) + 1));
    a.grow_to = a.limit;
    return a;
  }
  const std::uint64_t outstanding = less(others.promised, others.used);
  a.room = std::min(less(half, used_by_all + outstanding), less(f.memory.available, reserve + outstanding));
  a.limit = std::min(most, f.used + a.room / processes);
  a.grow_to = std::min(a.limit, f.used + std::max(f.more, std::min(kStep, total / 64)));
  return a;
}

MemoryBudget::MemoryBudget(const Settings& s, Facts facts) noexcept
    : facts_(facts),
      most_(s.limit),
      most_vmas_(s.vmas),
      limit_is_share_(s.limit_is_share),
      note_(s.note),
      unchecked_(std::min(kUnchecked, s.note != nullptr ? s.limit / 64 : s.limit)),
      limit_(s.limit) {}

void MemoryBudget::look_if_needed(std::uint64_t more) noexcept {
  if (!limit_is_share_) return;
  if (looked_ns_ == 0 && used_ + more <= unchecked_) {
    grow_to_ = unchecked_;
    return;
  }
  const std::int64_t now = now_ns();
  if (looked_ns_ != 0) {
    const bool fits = used_ + more <= grow_to_;
    const std::int64_t pause = std::max(kLeastPause, kPauseForLook * took_ns_);
    // If a step is used up and the limit leaves room for more, the process checks at once.  After a refusal
    // it waits.  If it did not, a caller that frees memory for a large request piece by piece would get a
    // lower limit after each piece.
    const bool may_grow = grow_to_ < limit_now();
    if (now - looked_ns_ < (fits ? std::max(pause_ns_, pause) : may_grow ? 0 : pause)) return;
  }
  AgreementFacts f;
  f.limit = most_;
  f.used = used_;
  f.more = more;
  f.memory = facts_();
  if (!f.memory.known && memory_was_known_) {  // no descriptor is free now: the last result stays valid
    looked_ns_ = now;
    return;
  }
  memory_was_known_ = f.memory.known;
  f.is_agreed = note_ != nullptr;
  f.sees_others = note_ != nullptr && note_->look(f.memory.group, f.others);
  const Agreement a = agree(f);
  limit_.store(std::max(a.limit, unchecked_), std::memory_order_relaxed);
  grow_to_ = std::max(a.grow_to, unchecked_);
  pause_ns_ = std::clamp(static_cast<std::int64_t>(a.room / kTakenPerNs), kLeastGood, kMostGood);
  looked_ns_ = now_ns();
  took_ns_ = looked_ns_ - now;
  tell();
}

bool MemoryBudget::nearly_full() noexcept {
  const std::int64_t now = now_ns();
  if (now < full_until_ns_) return nearly_full_;
  const MemoryFacts memory = facts_();
  nearly_full_ = memory.known && memory.available < std::min(memory.total / 8, kNearlyFull);
  full_until_ns_ =
      now + std::clamp(static_cast<std::int64_t>(memory.available / kTakenPerNs), kLeastPause, kMostGood);
  return nearly_full_;
}

// Writes the memory use of this process to its note.  A process that uses no memory and has no users does not
// count.  When such a process requests memory again, it checks the available memory soon.
void MemoryBudget::tell() noexcept {
  if (note_ == nullptr || looked_ns_ == 0) return;
  const bool counts =
      used_ != 0 || std::any_of(users_.begin(), users_.end(), [](unsigned n) { return n != 0; });
  note_->set(used_, counts ? std::max(used_, grow_to_) : 0);
  if (!counts) pause_ns_ = 0;
}

void MemoryBudget::forget_all() noexcept {
  used_ = vmas_ = 0;
  looked_ns_ = full_until_ns_ = 0;
  limit_.store(most_, std::memory_order_relaxed);
  if (note_ != nullptr) note_->forget();
  by_use_ = {};
  vmas_by_use_ = {};
  users_ = {};
  waiting_ = 0;
}

std::uint64_t MemoryBudget::owed_to_others(MemoryUse use) const noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kMemoryUses; ++i) {
    const auto other = static_cast<MemoryUse>(i);
    if (other != use) sum += owed(other);
  }
  return sum;
}

std::uint64_t MemoryBudget::guaranteed_to_users() const noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kMemoryUses; ++i)
    if (users_[i] != 0) sum += guaranteed(static_cast<MemoryUse>(i));
  return sum;
}

std::uint64_t vmas_to_use() noexcept {
  std::uint64_t most = 65530, now = 0;
  char text[4096];
  if (const UniqueFd fd(::open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC)); fd) {
    if (const ssize_t n = ::read(fd.get(), text, sizeof text); n > 0)
      (void)std::from_chars(text, text + n, most);
  }
  if (const UniqueFd fd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)); fd) {
    for (ssize_t n; (n = ::read(fd.get(), text, sizeof text)) > 0;)
      now += static_cast<std::uint64_t>(std::count(text, text + n, '\n'));
  }
  return most > now ? (most - now) / 4 : 0;
}

}  // namespace lmdbio::gather
