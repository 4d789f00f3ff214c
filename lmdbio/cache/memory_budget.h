// The private memory of the process: one limit, who has taken how much of it, and the VMAs it costs.
//
// Each use has a part of the limit that the others leave to it while somebody needs it (guaranteed()).  The
// rest goes to who asks first.
//
// A limit that the user has set in bytes holds.  A limit in percent grows only while the machine, or the
// cgroup, has memory to spare.  The default limit is agreed on, besides: the processes that share the memory
// of a cgroup use at most half of it together (docs/decisions/0024).  Needs of readers may exceed what was
// agreed on, up to the limit: without them a call fails.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lmdbio/base/memory_facts.h"
#include "lmdbio/node/memory_note.h"

namespace lmdbio::cache {

/// What private memory is for.
enum class MemoryUse : unsigned char {
  chunks,    ///< staging, and chunks that are published
  unmapped,  ///< what was read of files that cannot be mapped: the limit does not bind it
  prefetch,  ///< values and tree pages of transactions that prefetch
  readers,   ///< buffers, leaf pages and records of readers
  index,     ///< record indexes, and what it takes to make them
};
inline constexpr std::size_t kMemoryUses = 5;

/// What decides how much memory a process may use now.  Bytes.
struct AgreementFacts {
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  std::uint64_t more = 0;  ///< that is asked for
  MemoryFacts memory;
  bool is_agreed = false;    ///< with other processes; else the limit is in percent, and set by the user
  bool sees_others = false;  ///< `others` is known
  node::MemoryOfOthers others;
};
struct Agreement {
  std::uint64_t limit = 0;    ///< for this process now, as long as nothing else changes
  std::uint64_t grow_to = 0;  ///< before it looks again
  std::uint64_t room = 0;     ///< that is left to all processes together
};
/// A pure function.
Agreement agree(const AgreementFacts& f) noexcept;

/// No lock of its own: the Prefetcher's.
class MemoryBudget {
 public:
  struct Settings {
    std::uint64_t limit = 0;           ///< bytes
    bool limit_is_share = false;       ///< of the machine's memory, not a number that somebody has set
    std::uint64_t vmas = 0;            ///< that may be made
    node::MemoryNote* note = nullptr;  ///< null: the limit is not agreed on with other processes
  };
  /// Of memory_facts(), replaced by tests.
  using Facts = MemoryFacts (*)() noexcept;

  explicit MemoryBudget(const Settings& s, Facts facts = current_facts) noexcept;

  /// Of needs, and of all use as long as there is memory to spare.  Constant; any thread.
  std::uint64_t limit() const noexcept { return most_; }
  /// Of all use but needs, as of the last look.  Any thread.
  std::uint64_t limit_now() const noexcept { return limit_.load(std::memory_order_relaxed); }
  std::uint64_t used() const noexcept { return used_; }
  std::uint64_t used(MemoryUse use) const noexcept { return by_use_[index(use)]; }
  std::uint64_t vmas() const noexcept { return vmas_; }
  /// More is in use than the limit: what cannot be mapped is not bound by it.
  bool over_limit() const noexcept { return used_ > most_; }
  /// As used(), where files that cannot be mapped count only as far as they leave to the others what is
  /// guaranteed to those.
  std::uint64_t used_within_limit() const noexcept {
    const std::uint64_t unmapped = used(MemoryUse::unmapped);
    if (unmapped == 0) return used_;
    return used_ - unmapped + std::min(unmapped, limit_now() - guaranteed_to_users());
  }
  std::uint64_t vmas_left() const noexcept { return most_vmas_ - std::min(vmas_, most_vmas_); }
  /// Of what is left, what `use` may take: the other uses get the memory that is guaranteed to them.
  std::uint64_t left(MemoryUse use) const noexcept {
    const std::uint64_t taken = used_within_limit() + owed_to_others(use);
    return limit_now() - std::min(taken, limit_now());
  }
  /// No use may have more than its share of the limit: the others would starve.
  bool within_share(MemoryUse use, std::uint64_t more) const noexcept {
    return used(use) + more <= share(use);
  }
  /// Bytes.
  std::uint64_t share(MemoryUse use) const noexcept {
    if (use == MemoryUse::prefetch) return limit_now() / 4 * 3;
    return use == MemoryUse::index ? limit_now() / 4 : limit_now();
  }
  /// Bytes that the other uses leave to `use` as long as it has users.
  std::uint64_t guaranteed(MemoryUse use) const noexcept {
    if (use == MemoryUse::unmapped) return 0;
    return use == MemoryUse::chunks || use == MemoryUse::readers ? limit_now() / 4 : limit_now() / 8;
  }
  /// Of that, what it lacks; if it had `fewer` bytes less than now.  0: it has no users.
  std::uint64_t owed(MemoryUse use, std::uint64_t fewer = 0) const noexcept {
    if (!has_users(use)) return 0;
    const std::uint64_t has = used(use) - std::min(fewer, used(use));
    return guaranteed(use) - std::min(has, guaranteed(use));
  }
  /// What needs of `use` leave to others: indexes leave to readers what is guaranteed to them.
  std::uint64_t left_by_needs(MemoryUse use, std::uint64_t fewer_of_readers = 0) const noexcept {
    return use == MemoryUse::index ? owed(MemoryUse::readers, fewer_of_readers) : 0;
  }
  /// One user more, or less: a walk over chunks, a transaction that prefetches, a reader, a build.
  void join(MemoryUse use) noexcept { ++users_[index(use)]; }
  void leave(MemoryUse use) noexcept {
    if (users_[index(use)] != 0) --users_[index(use)];
    tell();
  }
  bool has_users(MemoryUse use) const noexcept { return users_[index(use)] != 0; }
  /// `use` has more than is guaranteed to it, and others lack what is guaranteed to them or somebody waits:
  /// what it can do without has to go.
  bool pressed(MemoryUse use) const noexcept {
    return used(use) > guaranteed(use) &&
           (waiting_ != 0 || used_within_limit() + owed_to_others(use) > limit_now());
  }
  /// A reader waits for memory that it cannot do without: until it has it, nothing else is taken.
  void begin_wait() noexcept { ++waiting_; }
  void end_wait() noexcept {
    if (waiting_ != 0) --waiting_;
  }
  bool somebody_waits() const noexcept { return waiting_ != 0; }

  /// `bytes` and `vmas` more for `use` are within what may be used now.  May look(), at most once in 10 ms.
  bool has_room(MemoryUse use, std::uint64_t bytes, std::uint64_t vmas) noexcept {
    if (waiting_ != 0 || vmas_ + vmas > most_vmas_) return false;
    look_if_needed(bytes);
    return bytes <= left(use) && used_within_limit() + bytes <= (limit_is_share_ ? grow_to_ : limit_now());
  }
  /// Looks at the memory of the machine and at other processes, if the last look is old.  About 50 us, and
  /// some for each other process.
  void look_if_needed(std::uint64_t more) noexcept;
  /// After so many ns memory is to be looked at again, though nobody asks for any: there is some that could
  /// go.  0: it need not be.
  std::int64_t look_again_ns() const noexcept {
    constexpr std::int64_t kLeast = 1'000'000;
    return limit_is_share_ && used_ > unchecked_ ? std::max(pause_ns_, kLeast) : 0;
  }
  /// What is used beyond what may be used now.
  std::uint64_t excess() const noexcept {
    const std::uint64_t used = used_within_limit();
    return used - std::min(used, limit_now());
  }
  /// The same for what cannot be done without, whoever else lacks memory.
  bool has_room_for_need(std::uint64_t bytes, MemoryUse use = MemoryUse::readers) const noexcept {
    return used_within_limit() + bytes + left_by_needs(use) <= most_;
  }
  /// Counts, without a question.
  void take(MemoryUse use, std::uint64_t bytes, std::uint64_t vmas) noexcept {
    used_ += bytes;
    by_use_[index(use)] += bytes;
    vmas_ += vmas;
    vmas_by_use_[index(use)] += vmas;
    tell();
  }
  /// No more than was taken: what a forked child has inherited is not counted there.
  void give_back(MemoryUse use, std::uint64_t bytes, std::uint64_t vmas) noexcept {
    bytes = std::min(bytes, by_use_[index(use)]);
    vmas = std::min(vmas, vmas_by_use_[index(use)]);
    used_ -= bytes;
    by_use_[index(use)] -= bytes;
    vmas_ -= vmas;
    vmas_by_use_[index(use)] -= vmas;
    tell();
  }
  /// The machine, or the cgroup, has so little memory left that nothing may be read ahead for walks and no
  /// whole file loaded, also not into the page cache: pages that are being read cannot be reclaimed.  Looks
  /// by itself, at most once in 10 ms.
  bool nearly_full() noexcept;
  /// In a forked child.
  void forget_all() noexcept;

 private:
  static constexpr std::size_t index(MemoryUse use) noexcept { return static_cast<std::size_t>(use); }
  static MemoryFacts current_facts() noexcept { return memory_facts(); }
  void tell() noexcept;
  std::uint64_t owed_to_others(MemoryUse use) const noexcept;
  std::uint64_t guaranteed_to_users() const noexcept;

  Facts facts_ = current_facts;
  const std::uint64_t most_, most_vmas_;
  const bool limit_is_share_;
  node::MemoryNote* const note_;
  const std::uint64_t unchecked_;     ///< so much may be used without a look
  std::atomic<std::uint64_t> limit_;  ///< limit_now(); others than the holder of the lock only read it
  std::uint64_t used_ = 0, vmas_ = 0;
  std::array<std::uint64_t, kMemoryUses> by_use_{}, vmas_by_use_{};
  std::array<unsigned, kMemoryUses> users_{};
  unsigned waiting_ = 0;
  // Of the last look:
  std::int64_t looked_ns_ = 0;  ///< when; 0: never
  std::int64_t pause_ns_ = 0;   ///< it is good for so long
  std::int64_t took_ns_ = 0;
  std::uint64_t grow_to_ = 0;
  bool memory_was_known_ = false;
  // Of nearly_full(): when it is to be looked at again, and the last answer.
  std::int64_t full_until_ns_ = 0;
  bool nearly_full_ = false;
};

/// A quarter of the VMAs that the kernel lets a process map and that it has not mapped yet: /proc/self/maps
/// and vm.max_map_count.
std::uint64_t vmas_to_use() noexcept;

}  // namespace lmdbio::cache
