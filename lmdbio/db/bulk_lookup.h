// Many keys at once: pages of a tree in own memory, and lookups that wait once a level for all keys together.
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

#include "lmdbio/db/compare.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::db {

/// Pages of one snapshot, read by a queue and kept as long as there is room: those asked for least lately go
/// first.  One thread at a time.  Pages are as the file has them: nothing in them is checked here.
class PageStore {
 public:
  /// `queue` outlives it, and is pumped and waited for here.  `pages`: of the snapshot that the file holds;
  /// none beyond is read.  `most_bytes`: of kept pages; what one fetch() asks for is kept in any case.
  /// `residency` (may be null; outlives it) is asked whether pages are in the page cache before they are
  /// read.
  PageStore(ReadQueue& queue, unsigned page_shift, std::uint64_t pages, std::size_t most_bytes,
            const Residency* residency = nullptr) noexcept;

  /// All of `wanted` are there afterwards, until the next fetch(); pages beyond the snapshot are not.  They
  /// are read together, neighbours in one request.  An errno: some could not be read; those that were there
  /// before still are.  May throw bad_alloc.
  Status fetch(std::span<const std::uint64_t> wanted);
  /// The page's bytes, or null.  Valid until the next fetch() or clear().
  const std::byte* find(std::uint64_t page) const noexcept;
  /// It was in the page cache before it was read.  False where nothing tells.
  bool was_cached(std::uint64_t page) const noexcept;
  /// Forgets all pages: another snapshot, of `pages`.
  void clear(std::uint64_t pages) noexcept;

  unsigned page_shift() const noexcept { return page_shift_; }
  std::size_t page_size() const noexcept { return std::size_t{1} << page_shift_; }
  /// How many pages at least can be kept at a time.
  std::size_t capacity() const noexcept { return most_cells_; }
  /// Read so far.
  std::uint64_t pages_read() const noexcept { return pages_read_; }

 private:
  // A cell is what is read at once: a page, or the pages in a unit of the queue's alignment.
  struct Slot {
    std::uint64_t cell = 0;
    std::uint64_t used = 0;  ///< count of fetches at the last one that asked for it
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

  static constexpr std::size_t kBlock = 64;  ///< cells

  ReadQueue& queue_;
  const Residency* const residency_;
  const unsigned page_shift_, cell_shift_;
  std::uint64_t pages_;
  const std::size_t most_cells_;
  std::vector<std::unique_ptr<std::byte, FreeBlock>> blocks_;
  std::vector<Slot> slots_;
  std::unordered_map<std::uint64_t, std::size_t> index_;  ///< cell -> slot
  std::vector<std::size_t> missing_;                      ///< of fetch()
  std::size_t hand_ = 0;                                  ///< of the clock
  std::uint64_t fetches_ = 0, pages_read_ = 0;
};

/// Where a key is.
struct KeyPlace {
  enum class Outcome : unsigned char {
    found,
    absent,
    unknown,  ///< a page is damaged or could not be read: a lookup of its own will tell
  };
  Outcome outcome = Outcome::unknown;
  bool cached = false;                               ///< found: the leaf was in the page cache
  std::uint64_t leaf = 0;                            ///< found: page number
  unsigned slot = 0;                                 ///< found: the key's entry there
  format::PageView page = format::PageView::none();  ///< found: the leaf; valid during the call it is told by
  format::Node node;                                 ///< found: the entry; likewise
};
/// Called once a key, in no particular order; `key` is its index.  May throw; not call the store.
using KeyPlaceFunction = std::function<void(std::size_t key, const KeyPlace& place)>;

/// Looks up `keys` in the tree of `db`, all of one snapshot, as mdb_get does: level by level, with one wait a
/// level for some hundreds of keys.  With MDB_DUPSORT a place is that of the key's node.  What it meets is
/// checked as everywhere; what is damaged makes keys `unknown`.
///
/// ENOTSUP: the order is a program's own function, which may throw: nothing was called.  An errno: pages
/// could not be read, the keys that needed them are unknown.  Other errors of single keys are no error here.
/// May throw bad_alloc, and what `tell` throws.
Status find_keys(PageStore& store, const format::DbRecord& db, const Comparator& order,
                 std::span<const MDB_val> keys, const KeyPlaceFunction& tell);

}  // namespace lmdbio::db
