// What environments on one file have seen of its walks and lookups together, and what that makes worth doing.
#pragma once

#include <cstdint>

#include "lmdbio/cache/file_cache.h"
#include "lmdbio/db/lookup_policy.h"

namespace lmdbio::db {

/// What walks and lookups came to, for statistics.
struct AccessCounters {
  std::uint64_t key_walks = 0;     ///< walks that were seen not to read their values
  std::uint64_t stride_walks = 0;  ///< walks that were seen to use each k-th value
  std::uint64_t predicted = 0;  ///< values that such walks came to and that had been fetched as the next used
  std::uint64_t predicted_right = 0, predicted_wrong = 0;  ///< of these: seen used, seen not used
  std::uint64_t sparse_plans = 0;    ///< plans of walks whose needs do not follow one another in the file
  std::uint64_t lookups_missed = 0;  ///< lookups that asked, and found something not in memory
  std::uint64_t exact_reads = 0, exact_bytes = 0;  ///< made for them, of what was missing and no more
  std::uint64_t leaves_fetched = 0;                ///< leaf pages fetched ahead of lookups

  void add(const AccessCounters& c) noexcept {
    key_walks += c.key_walks, stride_walks += c.stride_walks, predicted += c.predicted;
    predicted_right += c.predicted_right, predicted_wrong += c.predicted_wrong;
    sparse_plans += c.sparse_plans, lookups_missed += c.lookups_missed;
    exact_reads += c.exact_reads, exact_bytes += c.exact_bytes, leaves_fetched += c.leaves_fetched;
  }
};

/// Of one file: all environments on a window share it.  Any thread; guarded by the Prefetcher's lock, which a
/// fork holds.  Out of memory: nothing is counted, and nothing is worth doing.
class FilePolicy final : public cache::FileExtension {
 public:
  /// A lookup under `snapshot` asked, and found data missing at byte `at` of `used_bytes`.  `far`: from where
  /// the last one was.  Where lookups go all over a file that fits, begins a load of all of it.  Returns how
  /// many such misses there were under this snapshot; 0: what is missing is being loaded.
  static std::uint64_t lookup_missed(cache::FileCache& file, std::uint64_t snapshot, std::uint64_t at,
                                     std::uint64_t used_bytes, bool far) noexcept;
  /// Whose transaction fetches all leaf pages: true once a snapshot, and not for every snapshot of a busy
  /// writer.
  static bool claim_leaves(cache::FileCache& file, std::uint64_t snapshot) noexcept;
  /// `bytes` were read for a lookup, which waited for `ns`.
  static void note_exact(cache::FileCache& file, std::uint64_t bytes, std::uint64_t ns) noexcept;
  /// A walk has started over: what it leaves is worth keeping.
  static void note_epoch(cache::FileCache& file) noexcept;
  /// Adds `more` to the file's.
  static void count(cache::FileCache& file, const AccessCounters& more) noexcept;
  static AccessCounters counters(const cache::FileCache& file) noexcept;
  /// The same with the Prefetcher's lock held.
  static AccessCounters counters_locked(const cache::FileCache& file) noexcept;

  void after_fork() noexcept override;

 private:
  static constexpr std::uint64_t kNoSnapshot = ~std::uint64_t{0};
  static FilePolicy* of(cache::FileCache& file) noexcept;

  AccessCounters counters_;
  MissRecord misses_;
  std::uint64_t missed_ns_ = 0;                ///< time that lookups have waited for data since the last load
  std::uint64_t load_snapshot_ = kNoSnapshot;  ///< for which a load was decided on last
  unsigned loads_ = 0;                         ///< begun
  std::uint64_t leaves_for_ = kNoSnapshot;     ///< the snapshot whose leaf pages were claimed last
  unsigned leaves_claimed_ = 0;                ///< times
};

}  // namespace lmdbio::db
