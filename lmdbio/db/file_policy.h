// Collects the access pattern of all walks and lookups on one file and decides what prefetching it
// justifies.
#pragma once

#include <cstdint>

#include "lmdbio/cache/file_cache.h"
#include "lmdbio/db/lookup_policy.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::db {

using cache::AccessCounters;

/// The access pattern of one file; all environments on a window share it.  Any thread may call it; the
/// Prefetcher's lock guards it, and a fork holds that lock.  Without memory it counts nothing and decides
/// against prefetching.
class FilePolicy final : public cache::FileExtension {
 public:
  /// Records that a lookup under `snapshot` found data missing at byte `at` of `used_bytes`.  `far`: `at`
  /// is far from the previous lookup.  Begins a background load of the whole file if lookups go all over it
  /// and it fits.  Returns the number of far misses under this snapshot so far; 0 if the miss was not far,
  /// the file is being loaded, or there is no memory.
  static std::uint64_t lookup_missed(cache::FileCache& file, std::uint64_t snapshot, std::uint64_t at,
                                     std::uint64_t used_bytes, bool far) noexcept;
  /// Returns true for the transaction that is to fetch all leaf pages, once per snapshot.  The number of
  /// such snapshots is limited, because a busy writer would cause a fetch for each.
  static bool claim_leaves(cache::FileCache& file, std::uint64_t snapshot) noexcept;
  /// Records that `bytes` were read for a lookup, which waited `ns` nanoseconds for them.
  static void note_exact(cache::FileCache& file, std::uint64_t bytes, std::uint64_t ns) noexcept;
  /// Records that a walk has started over, so the data that it leaves is worth keeping.
  static void note_epoch(cache::FileCache& file) noexcept;
  /// Records that a walk passes by the values of `leaf`.  If the program reads them later, outside of
  /// calls, the file is worth loading as a whole.
  static void pass_by(cache::FileCache& file, const format::PageView& leaf,
                      const cache::WindowView& view) noexcept;
  /// Adds `more` to the file's counters.
  static void count(cache::FileCache& file, const AccessCounters& more) noexcept;
  static AccessCounters counters(const cache::FileCache& file) noexcept;

  void after_fork() noexcept override;

 private:
  static constexpr std::uint64_t kNoSnapshot = ~std::uint64_t{0};
  static FilePolicy* of(cache::FileCache& file) noexcept;

  MissRecord misses_;
  std::uint64_t missed_ns_ = 0;  ///< that lookups have waited for data since the last load began
  std::uint64_t load_snapshot_ = kNoSnapshot;  ///< snapshot of the last decision to load
  unsigned loads_ = 0;                         ///< background loads begun
  std::uint64_t leaves_for_ = kNoSnapshot;     ///< snapshot whose leaf pages were claimed last
  unsigned leaves_claimed_ = 0;                ///< number of claims
};

}  // namespace lmdbio::db
