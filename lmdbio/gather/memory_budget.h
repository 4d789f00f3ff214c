// Counts the private memory of the process by use, and the VMAs of this memory, and enforces one limit.
//
// Each use has a guaranteed part of the limit (guaranteed()).  While a use has users, the other uses leave
// this part to it.  The rest of the limit goes to the use that asks first.
//
// If the user has set a limit in bytes, the limit is fixed.  A limit in percent can be reached only while the
// machine, or the cgroup, has memory to spare.  The default limit also depends on other processes: processes
// that share the memory of a cgroup use at most half of it together (docs/decisions/0024).  Readers may
// exceed this amount, up to the limit, for memory without which a call would fail.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lmdbio/base/memory_facts.h"
#include "lmdbio/node/memory_note.h"

namespace lmdbio::gather {

/// The uses of private memory.
enum class MemoryUse : unsigned char {
  chunks,    ///< staging, and published chunks
  unmapped,  ///< data read from files that cannot be mapped; not bound by the limit
  prefetch,  ///< values and tree pages of prefetching transactions
  readers,   ///< buffers, leaf pages and records of readers
  index,     ///< record indexes, and memory for building them
  prepared,  ///< batches that loaders prepare ahead; has no guaranteed part
};
inline constexpr std::size_t kMemoryUses = 6;

/// The facts that decide how much memory a process may use now.  All sizes are in bytes.
struct AgreementFacts {
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  std::uint64_t more = 0;  ///< requested now
  MemoryFacts memory;
  bool is_agreed = false;    ///< with other processes; false if the user has set the limit, in percent
  bool sees_others = false;  ///< `others` is known
  node::MemoryOfOthers others;
};
struct Agreement {
  std::uint64_t limit = 0;    ///< for this process now, as long as nothing else changes
  std::uint64_t grow_to = 0;  ///< how much the process may use before it checks again
  std::uint64_t room = 0;     ///< left for all processes together
};
/// Decides how much memory the process may use.  A pure function.
Agreement agree(const AgreementFacts& f) noexcept;

/// Counts private memory and decides who may take more.  Has no lock of its own: the Prefetcher's lock
/// guards it.
class MemoryBudget {
 public:
  struct Settings {
    std::uint64_t limit = 0;           ///< in bytes
    bool limit_is_share = false;       ///< the limit is a share of the machine's memory, not a byte count
    std::uint64_t vmas = 0;            ///< upper limit of VMAs
    node::MemoryNote* note = nullptr;  ///< null if the limit is not agreed on with other processes
  };
  /// A function like memory_facts().  Tests replace it.
  using Facts = MemoryFacts (*)() noexcept;

  explicit MemoryBudget(const Settings& s, Facts facts = current_facts) noexcept;

  /// Returns the limit for needs, in bytes.  A need is memory without which a call fails.  While there is
  /// memory to spare, all uses have this limit.  Constant.  Any thread.
  std::uint64_t limit() const noexcept { return most_; }
  /// Returns the limit for all uses except needs, in bytes, as of the last check.  Any thread.
  std::uint64_t limit_now() const noexcept { return limit_.load(std::memory_order_relaxed); }
  std::uint64_t used() const noexcept { return used_; }
  std::uint64_t used(MemoryUse use) const noexcept { return by_use_[index(use)]; }
  std::uint64_t vmas() const noexcept { return vmas_; }
  /// Returns whether more memory is in use than limit() allows.  This can happen, since the limit does not
  /// bind MemoryUse::unmapped.
  bool over_limit() const noexcept { return used_ > most_; }
  /// Returns used(), but counts MemoryUse::unmapped only in part, so that the guaranteed memory of the other
  /// uses remains.
  std::uint64_t used_within_limit() const noexcept {
    const std::uint64_t unmapped = used(MemoryUse::unmapped);
    if (unmapped == 0) return used_;
    return used_ - unmapped + std::min(unmapped, limit_now() - guaranteed_to_users());
  }
  std::uint64_t vmas_left() const noexcept { return most_vmas_ - std::min(vmas_, most_vmas_); }
  /// Returns how many bytes `use` may still take.  Memory that is guaranteed to other uses is not available
  /// to `use`.
  std::uint64_t left(MemoryUse use) const noexcept {
    const std::uint64_t taken = used_within_limit() + owed_to_others(use);
    return limit_now() - std::min(taken, limit_now());
  }
  /// Returns whether `use` stays within its share of the limit with `more` bytes.  With more than its share,
  /// `use` would starve the other uses.
  bool within_share(MemoryUse use, std::uint64_t more) const noexcept {
    return used(use) + more <= share(use);
  }
  /// Returns the share of `use`, in bytes.
  std::uint64_t share(MemoryUse use) const noexcept {
    if (use == MemoryUse::prefetch) return limit_now() / 4 * 3;
    if (use == MemoryUse::prepared) return limit_now() / 2;
    return use == MemoryUse::index ? limit_now() / 4 : limit_now();
  }
  /// Returns how many bytes the other uses leave to `use` while it has users.
  std::uint64_t guaranteed(MemoryUse use) const noexcept {
    if (use == MemoryUse::unmapped || use == MemoryUse::prepared) return 0;
    return use == MemoryUse::chunks || use == MemoryUse::readers ? limit_now() / 4 : limit_now() / 8;
  }
  /// Returns how many of its guaranteed bytes `use` would lack after it has given back `fewer` bytes.
  /// Returns 0 if `use` has no users.
  std::uint64_t owed(MemoryUse use, std::uint64_t fewer = 0) const noexcept {
    if (!has_users(use)) return 0;
    const std::uint64_t has = used(use) - std::min(fewer, used(use));
    return guaranteed(use) - std::min(has, guaranteed(use));
  }
  /// Returns how many bytes the needs of `use` must leave to other uses.  Only indexes leave some: the
  /// guaranteed bytes that readers lack.
  std::uint64_t left_by_needs(MemoryUse use, std::uint64_t fewer_of_readers = 0) const noexcept {
    return use == MemoryUse::index ? owed(MemoryUse::readers, fewer_of_readers) : 0;
  }
  /// Adds or removes one user: a walk over chunks, a prefetching transaction, a reader, or a build of an
  /// index.
  void join(MemoryUse use) noexcept { ++users_[index(use)]; }
  void leave(MemoryUse use) noexcept {
    if (users_[index(use)] != 0) --users_[index(use)];
    tell();
  }
  bool has_users(MemoryUse use) const noexcept { return users_[index(use)] != 0; }
  /// Returns whether `use` has to give back what it can do without.  This is so if `use` has more than its
  /// guaranteed memory, and a reader waits for memory or other uses lack guaranteed memory.
  bool pressed(MemoryUse use) const noexcept {
    return used(use) > guaranteed(use) &&
           (waiting_ != 0 || used_within_limit() + owed_to_others(use) > limit_now());
  }
  /// A reader calls this before it waits for memory that it cannot do without.  Until end_wait(), only needs
  /// may take memory.
  void begin_wait() noexcept { ++waiting_; }
  void end_wait() noexcept {
    if (waiting_ != 0) --waiting_;
  }
  bool somebody_waits() const noexcept { return waiting_ != 0; }

  /// Returns whether `use` may take `bytes` and `vmas` more now.  May check memory first
  /// (look_if_needed()).
  bool has_room(MemoryUse use, std::uint64_t bytes, std::uint64_t vmas) noexcept {
    if (waiting_ != 0 || vmas_ + vmas > most_vmas_) return false;
    look_if_needed(bytes);
    return bytes <= left(use) && used_within_limit() + bytes <= (limit_is_share_ ? grow_to_ : limit_now());
  }
  /// Checks the memory of the machine and the other processes, if the last check is too old.  After a
  /// refusal, does not check again for at least 10 ms.  A check takes about 50 us, and a little more for each
  /// other process.
  void look_if_needed(std::uint64_t more) noexcept;
  /// Returns after how many ns memory must be checked again even without a request, since the process may
  /// have to give some back.  Returns 0 if no check is needed.
  std::int64_t look_again_ns() const noexcept {
    constexpr std::int64_t kLeast = 1'000'000;
    return limit_is_share_ && used_ > unchecked_ ? std::max(pause_ns_, kLeast) : 0;
  }
  /// Returns by how many bytes the process exceeds what it may use now.
  std::uint64_t excess() const noexcept {
    const std::uint64_t used = used_within_limit();
    return used - std::min(used, limit_now());
  }
  /// Returns whether `bytes` more fit within limit(), for memory that `use` cannot do without.  Ignores what
  /// other uses lack, except left_by_needs().
  bool has_room_for_need(std::uint64_t bytes, MemoryUse use = MemoryUse::readers) const noexcept {
    return used_within_limit() + bytes + left_by_needs(use) <= most_;
  }
  /// Counts memory as taken, without a check.
  void take(MemoryUse use, std::uint64_t bytes, std::uint64_t vmas) noexcept {
    used_ += bytes;
    by_use_[index(use)] += bytes;
    vmas_ += vmas;
    vmas_by_use_[index(use)] += vmas;
    tell();
  }
  /// Counts memory as given back, up to the amount that was taken.  In a forked child, inherited memory does
  /// not count as taken.
  void give_back(MemoryUse use, std::uint64_t bytes, std::uint64_t vmas) noexcept {
    bytes = std::min(bytes, by_use_[index(use)]);
    vmas = std::min(vmas, vmas_by_use_[index(use)]);
    used_ -= bytes;
    by_use_[index(use)] -= bytes;
    vmas_ -= vmas;
    vmas_by_use_[index(use)] -= vmas;
    tell();
  }
  /// Returns whether the machine, or the cgroup, has so little memory left that nothing may be read ahead for
  /// walks and no whole file may be loaded.  Reads into the page cache are not allowed either, because the
  /// kernel cannot reclaim pages that are being read.  Checks memory itself, at most once in 10 ms.
  bool nearly_full() noexcept;
  /// In a forked child: forgets all memory and users.
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
  const std::uint64_t unchecked_;     ///< bytes that may be used without a check
  std::atomic<std::uint64_t> limit_;  ///< see limit_now(); only the holder of the lock changes it
  std::uint64_t used_ = 0, vmas_ = 0;
  std::array<std::uint64_t, kMemoryUses> by_use_{}, vmas_by_use_{};
  std::array<unsigned, kMemoryUses> users_{};
  unsigned waiting_ = 0;
  // The last check:
  std::int64_t looked_ns_ = 0;  ///< its time; 0 if there was none
  std::int64_t pause_ns_ = 0;   ///< how long it is valid
  std::int64_t took_ns_ = 0;
  std::uint64_t grow_to_ = 0;
  bool memory_was_known_ = false;
  // The last answer of nearly_full(), and until when it is valid.
  std::int64_t full_until_ns_ = 0;
  bool nearly_full_ = false;
};

/// Returns a quarter of the VMAs that the kernel still lets this process make, from /proc/self/maps and
/// vm.max_map_count.
std::uint64_t vmas_to_use() noexcept;

}  // namespace lmdbio::gather
