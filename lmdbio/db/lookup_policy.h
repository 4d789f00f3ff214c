// What lookups of random keys have missed in a file, and whether that makes it worth loading as a whole: pure
// functions of facts.
#pragma once

#include <bit>
#include <cstdint>

namespace lmdbio::db {

/// The lookups of one snapshot that found data missing, and where.
class MissRecord {
 public:
  /// So many, in so many of the 64 parts of the database: it is looked up all over.
  static constexpr unsigned kMisses = 16, kParts = 12;

  /// A lookup under `snapshot` missed data at byte `at` of `used_bytes`, far from where the last one was.
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

/// Whether lookups that go all over a file of `used_bytes` have paid enough for a load of it to begin.  On
/// storage that is far away their reads and the load's do not stand in each other's way, and the load is over
/// before long. On this machine's disk they do: lookups wait several times as long while it runs, which pays
/// if there are many more.  So it begins when they have waited for half as long as it takes (1.5 bytes a
/// nanosecond).
constexpr bool load_is_due(bool local, std::uint64_t used_bytes, std::uint64_t missed_ns) noexcept {
  return !local || missed_ns >= used_bytes / 3;
}

/// Leaf pages are fetched all at once when lookups have missed so often that the fetch costs no more than
/// they did, within this factor: many reads at once against one at a time.
inline constexpr std::uint64_t kLeavesAMiss = 64;
/// And if they are a small part of memory.
constexpr bool worth_all_leaves(std::uint64_t misses, std::uint64_t leaf_pages, std::uint64_t leaf_bytes,
                                std::uint64_t available) noexcept {
  return leaf_pages <= misses * kLeavesAMiss && leaf_bytes <= available / 16;
}

}  // namespace lmdbio::db
