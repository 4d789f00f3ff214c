// Decides from the misses of random lookups whether a file is worth loading as a whole.  Pure functions of
// facts.
#pragma once

#include <bit>
#include <cstdint>

namespace lmdbio::db {

/// Records how many lookups of one snapshot missed data, and in which parts of the database.
class MissRecord {
 public:
  /// Limits for all_over(): misses, and the number of the 64 parts of the database that they are in.
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

/// Whether lookups that go all over a file of `used_bytes` have waited long enough for a load of the file
/// to begin.  On remote storage the load begins at once: its reads and those of the lookups do not slow each
/// other down, and it ends soon.  On a local disk they do: lookups wait several times as long during the
/// load, which pays off only if many lookups follow.  There the load begins when lookups have waited for
/// half as long as it takes (1.5 bytes per nanosecond).
constexpr bool load_is_due(bool local, std::uint64_t used_bytes, std::uint64_t missed_ns) noexcept {
  return !local || missed_ns >= used_bytes / 3;
}

/// Lookups may miss so often that a fetch of all leaf pages costs no more than their misses.  This is the
/// largest number of leaf pages per miss for which that holds: the fetch makes many reads at once, lookups
/// make one at a time.
inline constexpr std::uint64_t kLeavesAMiss = 64;
/// Whether to fetch all leaf pages of a tree: there are few per miss, and they are a small part of
/// `available` memory, in bytes.
constexpr bool worth_all_leaves(std::uint64_t misses, std::uint64_t leaf_pages, std::uint64_t leaf_bytes,
                                std::uint64_t available) noexcept {
  return leaf_pages <= misses * kLeavesAMiss && leaf_bytes <= available / 16;
}

}  // namespace lmdbio::db
