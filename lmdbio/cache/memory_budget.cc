#include "lmdbio/cache/memory_budget.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio::cache {

MemoryBudget::MemoryBudget(const Settings& s, Facts facts) noexcept
    : facts_(facts), limit_(s.limit), most_vmas_(s.vmas), limit_is_share_(s.limit_is_share) {}

// A limit that is a share of the machine's memory is for one process; where others have taken theirs, this
// one grows no further, as long as an eighth is not free.
std::uint64_t MemoryBudget::limit_now(std::uint64_t more) noexcept {
  constexpr std::uint64_t kFree = std::uint64_t{256} << 20, kStep = std::uint64_t{64} << 20;
  constexpr std::int64_t kLookAgainNs = 10'000'000;
  if (!limit_is_share_ || used_ < kFree) return limit_;
  if (used_ + more <= grow_to_) return std::min(limit_, grow_to_);
  const std::int64_t now = now_ns();
  // Who makes room for something large piece by piece is not told less after each piece.
  if (now - checked_ns_ < kLookAgainNs && (grow_to_ <= used_ || !machine_has_room_))
    return std::min(limit_, grow_to_);
  checked_ns_ = now;
  const MemoryFacts facts = facts_();
  machine_has_room_ = facts.available > facts.total / 8 + kStep;
  grow_to_ = std::max(kFree, machine_has_room_ ? used_ + kStep : used_);
  return std::min(limit_, grow_to_);
}

void MemoryBudget::forget_all() noexcept {
  used_ = vmas_ = 0;
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

}  // namespace lmdbio::cache
