// Lookups of many keys at once: a private cache of tree pages, and one wait per tree level for all
// keys.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <unordered_map>
#include <vector>

#include "lmdbio/format/compare.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::tree {

/// Reads pages of one snapshot through a queue and caches them.  When the cache is full, pages that were not
/// requested recently are evicted.  One thread at a time.  Page contents are not checked here.
class PageStore {
 public:
  /// Creates an empty cache.  `queue` must outlive it; this class submits requests and waits for them.
  /// `pages` is the number of pages of the snapshot; pages beyond it are never read.  `most_bytes` limits the
  /// cached pages; the pages of a single fetch() are kept even beyond this limit.  `residency` may be null
  /// and must outlive the cache.  If set, it shows before each read whether the pages are in the page cache.
  /// `origin`: offset of page 0 in the file of `queue`.  `version`: of the file's format.
  PageStore(ReadQueue& queue, unsigned page_shift, std::uint64_t pages, std::size_t most_bytes,
            const Residency* residency = nullptr, std::uint64_t origin = 0,
            format::Version version = format::Version::v09) noexcept;

  /// Reads all pages of `wanted` that are not cached; adjacent pages share one request.  On success all of
  /// `wanted` inside the snapshot stay available until the next fetch().  On error returns an errno.  Missing
  /// pages are not available then, but pages cached before still are.  May throw bad_alloc.
  Status fetch(std::span<const std::uint64_t> wanted);
  /// Returns the bytes of a cached page, or nullptr.  Valid until the next fetch() or clear().
  const std::byte* find(std::uint64_t page) const noexcept;
  /// Returns whether the page was in the page cache before it was read.  False if that is not known.
  bool was_cached(std::uint64_t page) const noexcept;
  /// Drops all pages, for the next snapshot, which has `pages` pages.
  void clear(std::uint64_t pages) noexcept;

  unsigned page_shift() const noexcept { return page_shift_; }
  std::size_t page_size() const noexcept { return std::size_t{1} << page_shift_; }
  format::Version version() const noexcept { return version_; }
  /// Returns the number of pages that can always be cached at the same time.
  std::size_t capacity() const noexcept { return most_cells_; }
  /// Returns the number of pages read so far.
  std::uint64_t pages_read() const noexcept { return pages_read_; }

 private:
  // A cell is the unit of a read: one page, or the pages in one unit of the queue's alignment.
  struct Slot {
    std::uint64_t cell = 0;
    std::uint64_t used = 0;  ///< number of the last fetch() that requested this cell
    bool full = false, recent = false, cached = false;
  };
  struct FreeBlock {
    std::align_val_t alignment;
    void operator()(std::byte* p) const noexcept { ::operator delete(p, alignment); }
  };
  const Slot* slot_of(std::uint64_t page) const noexcept;
  std::byte* memory(std::size_t slot) const noexcept;
  std::size_t take_slot();
  Status read(std::span<const std::size_t> slots);

  static constexpr std::size_t kBlock = 64;  ///< cells per memory block

  ReadQueue& queue_;
  const Residency* const residency_;
  const unsigned page_shift_, cell_shift_;
  const format::Version version_;
  std::uint64_t pages_;
  const std::uint64_t origin_;
  const std::size_t most_cells_;
  std::vector<std::unique_ptr<std::byte, FreeBlock>> blocks_;
  std::vector<Slot> slots_;
  std::unordered_map<std::uint64_t, std::size_t> index_;  ///< cell -> slot
  std::vector<std::size_t> missing_;                      ///< slots that the current fetch() reads
  std::size_t hand_ = 0;                                  ///< clock hand of eviction, index of slots_
  std::uint64_t fetches_ = 0, pages_read_ = 0;
};

/// The result of one key's lookup.
struct KeyPlace {
  enum class Outcome : unsigned char {
    found,
    absent,
    unknown,  ///< a page is damaged or could not be read; a regular lookup returns the error
  };
  Outcome outcome = Outcome::unknown;
  bool cached = false;                               ///< found: the leaf was in the page cache
  std::uint64_t leaf = 0;                            ///< found: page number of the leaf
  unsigned slot = 0;                                 ///< found: index of the key's entry in the leaf
  format::PageView page = format::PageView::none();  ///< found: the leaf; valid during the callback
  format::Node node;                                 ///< found: the entry; valid during the callback
};
/// Called once per key, in no particular order; `key` is its index.  May throw.  Must not call the store.
using KeyPlaceFunction = std::function<void(std::size_t key, const KeyPlace& place)>;

/// Looks up `keys` in the tree of `db` and calls `tell` once per key.  Keys are compared as in mdb_get.  Up
/// to 512 keys descend together, with one wait per tree level.  All pages belong to one snapshot.  In a
/// MDB_DUPSORT database the result is the node of the key, not a duplicate.  Pages are checked; a damaged
/// page makes its keys `unknown`.
///
/// Returns ENOTSUP if the order is a user's function, which may throw; `tell` is not called then.  Returns an
/// errno if pages could not be read; the keys that needed them are `unknown`.  Other errors of single keys
/// are not returned.  May throw bad_alloc and whatever `tell` throws.
Status find_keys(PageStore& store, const format::DbRecord& db, const format::Comparator& order,
                 std::span<const MDB_val> keys, const KeyPlaceFunction& tell);

}  // namespace lmdbio::tree
