// The windows of a file that cannot be mapped: one for each snapshot that transactions read.
//
// What is read of such a file is private memory, which a writer's commit does not change.  So a transaction
// keeps its window until it ends, and one of another snapshot gets another window: neither loses what it was
// given, nor is given pages of the other's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "lmdbio/base/result.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/cache/prefetcher.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/db/file_policy.h"

namespace lmdbio::db {

/// Of all environments, since a cursor may be renewed to a transaction of another one: another number for
/// each window, and for each snapshot of one that has no file.  Never 0.
std::uint32_t next_window_number() noexcept;

/// Any thread.  Its state is guarded by the Prefetcher's lock, which a fork holds.
class UnmappedFile {
 public:
  /// A window for one snapshot.  A transaction may read all members from enter() to leave().
  struct Entry {
    std::shared_ptr<cache::Window> window;
    std::shared_ptr<cache::FileCache> cache;
    std::uint64_t txnid = kNoSnapshot;
    std::uint32_t number = 0;
    unsigned readers = 0;  ///< transactions
  };

  /// `first`: the window with room for the whole map, and its cache, which the caller closes.  `origin`
  /// outlives it.
  UnmappedFile(const Origin& origin, std::size_t page_size, const char* name,
               std::shared_ptr<cache::Window> first, std::shared_ptr<cache::FileCache> first_cache);
  ~UnmappedFile();
  UnmappedFile(const UnmappedFile&) = delete;
  UnmappedFile& operator=(const UnmappedFile&) = delete;

  /// A transaction of snapshot `txnid` begins, of which `used_bytes` of the file are in use; the file has
  /// `file_bytes`.  Where no other transaction reads the window and too much memory is in use, what the
  /// window holds is dropped first.  MDB_READERS_FULL: transactions hold too many different snapshots.
  /// ENOMEM, or why the file cannot be opened once more.
  Result<Entry*> enter(std::uint64_t txnid, std::uint64_t used_bytes, std::uint64_t file_bytes) noexcept;
  /// It has ended.  What the last one of an older snapshot leaves is dropped.
  void leave(Entry* entry) noexcept;

  /// The cache of the window at `base`, which a transaction of the caller's holds.
  std::shared_ptr<cache::FileCache> cache_at(const std::byte* base) const noexcept;
  /// Of all windows so far.
  cache::ReadStats stats() const noexcept;
  AccessCounters counters() const noexcept;

 private:
  static constexpr std::uint64_t kNoSnapshot = ~std::uint64_t{0};
  /// Each has descriptors of its own.
  static constexpr std::size_t kMostWindows = 64;

  Entry* find(std::uint64_t txnid) noexcept;
  Entry* reuse(std::uint64_t txnid, std::uint64_t used_bytes, std::uint64_t file_bytes) noexcept;
  Status open_one(std::uint64_t used_bytes, std::list<Entry>& out);
  void drop_older(std::list<Entry>& gone) noexcept;
  void close(std::list<Entry>& gone) noexcept;

  const Origin origin_;
  const std::size_t page_size_;
  const std::string name_;
  const std::uint64_t most_bytes_;  ///< of the first window
  cache::Prefetcher& prefetcher_;
  std::list<Entry> entries_;            ///< the first one stays
  std::uint64_t latest_ = kNoSnapshot;  ///< the snapshot that was last entered as a new one
  cache::ReadStats closed_;             ///< of windows that are gone
  AccessCounters closed_counters_;      ///< likewise
};

}  // namespace lmdbio::db
