// What environments on one file have seen of its walks and lookups together, and what that makes worth doing.
#pragma once

#include <cstdint>

#include "lmdbio/cache/file_cache.h"
#include "lmdbio/db/lookup_policy.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::db {

using cache::AccessCounters;

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
  /// A walk passes by the values of that leaf: if they are read later, outside of calls, the file is worth
  /// loading.
  static void pass_by(cache::FileCache& file, const format::PageView& leaf,
                      const cache::WindowView& view) noexcept;
  /// Adds `more` to the file's.
  static void count(cache::FileCache& file, const AccessCounters& more) noexcept;
  static AccessCounters counters(const cache::FileCache& file) noexcept;

  void after_fork() noexcept override;

 private:
  static constexpr std::uint64_t kNoSnapshot = ~std::uint64_t{0};
  static FilePolicy* of(cache::FileCache& file) noexcept;

  MissRecord misses_;
  std::uint64_t missed_ns_ = 0;                ///< time that lookups have waited for data since the last load
  std::uint64_t load_snapshot_ = kNoSnapshot;  ///< for which a load was decided on last
  unsigned loads_ = 0;                         ///< begun
  std::uint64_t leaves_for_ = kNoSnapshot;     ///< the snapshot whose leaf pages were claimed last
  unsigned leaves_claimed_ = 0;                ///< times
};

}  // namespace lmdbio::db
