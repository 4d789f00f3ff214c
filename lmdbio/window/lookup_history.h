// Records what the lookups of all environments on a file have missed.  Decides whether to load the whole file
// or to fetch all leaf pages.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <new>

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::window {

/// Records how many lookups of one snapshot missed data, and in which parts of the database.
class MissRecord {
 public:
  /// Lower limits for all_over(): the number of misses, and the number of the 64 parts of the database that
  /// have misses.
  static constexpr unsigned kMisses = 16, kParts = 12;

  /// Records that a lookup under `snapshot` missed data at byte `at` of `used_bytes`, far from the previous
  /// lookup.
  void note(std::uint64_t snapshot, std::uint64_t at, std::uint64_t used_bytes) noexcept {
    if (snapshot != snapshot_) *this = MissRecord(snapshot);
    ++misses_;
    const std::uint64_t part = used_bytes / 64 + 1;
    parts_ |= std::uint64_t{1} << (at / part < 64 ? at / part : 63);
  }
  std::uint64_t misses() const noexcept { return misses_; }
  bool all_over() const noexcept {
    return misses_ >= kMisses && std::popcount(parts_) >= static_cast<int>(kParts);
  }

  MissRecord() = default;

 private:
  explicit MissRecord(std::uint64_t snapshot) noexcept : snapshot_(snapshot) {}
  std::uint64_t snapshot_ = 0, misses_ = 0, parts_ = 0;
};

/// Returns whether to load a file of `used_bytes` as a whole, for lookups that go all over it.  `missed_ns`:
/// time that lookups have waited.  On remote storage the load begins at once: it ends soon and does not slow
/// lookups down.  On a local disk, lookups wait several times as long during the load, so it pays off only if
/// many lookups follow.  There the load begins when lookups have waited for half of the time that the load
/// takes, at 1.5 bytes per nanosecond.
constexpr bool load_is_due(bool local, std::uint64_t used_bytes, std::uint64_t missed_ns) noexcept {
  return !local || missed_ns >= used_bytes / 3;
}

/// Upper limit on the leaf pages per miss for which a fetch of all leaf pages costs no more than the misses.
/// It is larger than 1 because the fetch makes many reads at once, while lookups make one at a time.
inline constexpr std::uint64_t kLeavesAMiss = 64;
/// Returns whether to fetch all leaf pages of a tree.  They must be few per miss, and a small part of the
/// `available` bytes of memory.
constexpr bool worth_all_leaves(std::uint64_t misses, std::uint64_t leaf_pages, std::uint64_t leaf_bytes,
                                std::uint64_t available) noexcept {
  return leaf_pages <= misses * kLeavesAMiss && leaf_bytes <= available / 16;
}

/// The misses of one file.  Any thread.  Has a lock of its own; no other lock is taken while it is held.
class LookupHistory {
 public:
  /// Records that lookups have waited `ns` nanoseconds for data.
  void note_wait(std::uint64_t ns) noexcept { waited_ns_.fetch_add(ns, std::memory_order_relaxed); }
  /// Records a miss as MissRecord::note() does, and returns how many there were under this snapshot.
  std::uint64_t note_miss(std::uint64_t snapshot, std::uint64_t at, std::uint64_t used_bytes) noexcept {
    const std::lock_guard lock(mutex_);
    misses_.note(snapshot, at, used_bytes);
    return misses_.misses();
  }
  /// Returns true if a load of the whole file is due, once per snapshot.  After kMostLoads loads it always
  /// returns false, because a busy writer makes each load less useful.
  bool claim_load(std::uint64_t snapshot, std::uint64_t used_bytes, bool local) noexcept {
    const std::lock_guard lock(mutex_);
    if (!misses_.all_over() || load_snapshot_ == snapshot ||
        !load_is_due(local, used_bytes, waited_ns_.load(std::memory_order_relaxed)))
      return false;
    load_snapshot_ = snapshot;
    return loads_ < kMostLoads;
  }
  /// Records that the load has begun.
  void load_begins() noexcept {
    const std::lock_guard lock(mutex_);
    ++loads_;
    waited_ns_.store(0, std::memory_order_relaxed);
  }
  /// Returns true for the caller that is to fetch all leaf pages.  Returns true once per snapshot, for at
  /// most kMostClaims snapshots.  Without this limit, a busy writer would cause a fetch for each snapshot.
  bool claim_leaves(std::uint64_t snapshot) noexcept {
    const std::lock_guard lock(mutex_);
    if (leaves_for_ == snapshot || leaves_claimed_ >= kMostClaims) return false;
    leaves_for_ = snapshot;
    ++leaves_claimed_;
    return true;
  }
  /// In a forked child, where another thread may have held the lock.
  void after_fork() noexcept {
    new (&mutex_) SignalSafeMutex;
    waited_ns_.store(0, std::memory_order_relaxed);
    load_snapshot_ = kNoSnapshot;
    loads_ = 0;
  }

 private:
  static constexpr std::uint64_t kNoSnapshot = ~std::uint64_t{0};
  static constexpr unsigned kMostLoads = 8, kMostClaims = 8;

  std::atomic<std::uint64_t> waited_ns_{0};  ///< time that lookups have waited since the last load began
  SignalSafeMutex mutex_;                    // guards the members below
  MissRecord misses_;
  std::uint64_t load_snapshot_ = kNoSnapshot;  ///< snapshot of the last decision to load
  unsigned loads_ = 0;                         ///< loads begun
  std::uint64_t leaves_for_ = kNoSnapshot;     ///< snapshot whose leaf pages were claimed last
  unsigned leaves_claimed_ = 0;                ///< number of claims
};

}  // namespace lmdbio::window
