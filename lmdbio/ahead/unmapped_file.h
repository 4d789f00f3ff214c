// The windows of a file that cannot be mapped: one for each snapshot that transactions read.
//
// Data read from such a file is private memory, which a writer's commit does not change.  A transaction keeps
// its window until it ends, and a transaction of another snapshot gets another window.  So no transaction
// loses pages that it was given, and none gets pages of another snapshot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "lmdbio/base/result.h"
#include "lmdbio/window/prefetcher.h"
#include "lmdbio/window/window.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::ahead {

/// Returns a new number, for a window or for a snapshot of an unmapped file.  Numbers are unique across
/// environments, because a cursor may be renewed to a transaction of another environment.  Never 0.
std::uint32_t next_window_number() noexcept;

/// Owns the windows of one unmapped file.  Any thread.  The Prefetcher's lock guards its state; this lock is
/// also held during a fork.
class UnmappedFile {
 public:
  /// A window for one snapshot.  A transaction may read all members from enter() to leave().
  struct Entry {
    std::shared_ptr<window::Window> window;
    std::shared_ptr<window::WindowFile> file;
    std::uint64_t txnid = kNoSnapshot;
    std::uint32_t number = 0;
    unsigned readers = 0;  ///< running transactions
  };

  /// `first` is the window with room for the whole map.  `first_file` is its file, which the caller closes.
  /// The path in `origin` must outlive this object.
  UnmappedFile(const Origin& origin, format::PageFormat pages, const char* name,
               std::shared_ptr<window::Window> first, std::shared_ptr<window::WindowFile> first_file);
  ~UnmappedFile();
  UnmappedFile(const UnmappedFile&) = delete;
  UnmappedFile& operator=(const UnmappedFile&) = delete;

  /// Begins a transaction of snapshot `txnid` and returns its window.  The snapshot uses `used_bytes` of the
  /// file, which has `file_bytes`.  If no transaction reads the window and too much memory is in use, first
  /// drops the window's data.  Returns MDB_READERS_FULL if transactions hold too many different snapshots,
  /// ENOMEM, or the error of opening the file again.
  Result<Entry*> enter(std::uint64_t txnid, std::uint64_t used_bytes, std::uint64_t file_bytes) noexcept;
  /// Ends a transaction.  Drops the window's data if this was the last transaction of an older snapshot.
  void leave(Entry* entry) noexcept;

  /// Returns the file of the window at `base`.  A transaction of the caller must hold that window.
  std::shared_ptr<window::WindowFile> file_at(const std::byte* base) const noexcept;
  /// Returns the sums over all windows so far.
  window::FileStats stats() const noexcept;

 private:
  static constexpr std::uint64_t kNoSnapshot = ~std::uint64_t{0};
  /// Upper limit on the number of windows.  Each window has its own descriptors.
  static constexpr std::size_t kMostWindows = 64;

  Entry* find(std::uint64_t txnid) noexcept;
  Entry* reuse(std::uint64_t txnid, std::uint64_t used_bytes, std::uint64_t file_bytes) noexcept;
  Status open_one(std::uint64_t used_bytes, std::list<Entry>& out);
  void drop_older(std::list<Entry>& gone) noexcept;
  void close(std::list<Entry>& gone) noexcept;

  const Origin origin_;
  const format::PageFormat pages_;
  const std::string name_;
  const std::uint64_t most_bytes_;  ///< of the first window
  window::Prefetcher& prefetcher_;
  std::list<Entry> entries_;            ///< the first one stays
  std::uint64_t latest_ = kNoSnapshot;  ///< the snapshot entered last that had no window yet
  window::FileStats closed_;            ///< of closed windows
};

}  // namespace lmdbio::ahead
