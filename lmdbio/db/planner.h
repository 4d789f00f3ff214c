// Which pages a walk comes to next: pure functions of the tree's pages that can be read now.
//
// First the exact order of need, as branch and leaf pages tell it (plan_walk).  Then what that means for a
// cache of chunks (fold_plan): where needs follow one another in the file whole chunks are read, also ahead
// of what is known; needs that lie by themselves are read exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lmdbio/format/page_view.h"

namespace lmdbio::db {

/// Pages that are needed together.
struct PageRun {
  std::uint64_t first = 0, pages = 0;
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

/// Where a walk is.  The pages were checked when the walk came to them.
struct WalkPlace {
  std::span<const format::PageView> branches;  ///< from the root down
  std::span<const std::uint16_t> taken;        ///< the entry taken in each
  format::PageView leaf = format::PageView::none();
  unsigned index = 0;  ///< of the entry that is needed now
  bool forward = true;
  bool values = true;        ///< overflow pages are needed as well
  bool apart = false;        ///< each run is to be one page or one value, also where they touch
  std::uint64_t period = 1;  ///< of the values each so many-th; 1: all, 2 or more: `skip` first
  std::uint64_t skip = 0;    ///< with a period: entries from the place's own on before the first needed one
  std::uint64_t value_pages = 0;  ///< overflow pages a record, on average
  std::uint64_t given_bytes = 0;  ///< sizes of all values that the transaction has given out so far
};

/// Pages that a walker may enter without asking.
struct FreeRun {
  std::uint64_t first = 0, pages = 0;
  /// Of a run of `more` + 1 pages from `p` on.  One comparison: what starts up to `more` pages before this
  /// run is taken to be inside as well, which costs a page fault at most.
  bool covers(std::uint64_t p, std::uint64_t more) const noexcept { return p - first + more < pages; }
  static constexpr FreeRun everything() noexcept { return {0, ~std::uint64_t{0}}; }
};

/// Gives pages that can be read without waiting.
class PageSource {
 public:
  /// False: not now, or no page of a tree.
  virtual bool get(std::uint64_t page, format::PageView& out) = 0;

 protected:
  ~PageSource() = default;
};

struct Plan {
  std::vector<PageRun> runs;  ///< in the order of need; the leaf of the place itself is not among them
  bool complete = false;      ///< the walk ends with them
  std::uint64_t leaf_pages =
      0;  ///< of all values of a leaf, as far as known: so far apart lie leaves, likely
};

struct PlanLimits {
  std::uint64_t pages = 0;  ///< enough
  std::size_t runs = 512;   ///< likewise
  unsigned scout = 16;      ///< leaves whose values are not known that are looked for ahead
};

/// What the walk needs from its place on.  A page that the source does not have is needed, and what is below
/// it is left out; with a period, all values that come after it are.  Damaged pages end the plan: the walk
/// itself will tell.  May throw bad_alloc.
void plan_walk(const WalkPlace& place, PageSource& source, const PlanLimits& limits, unsigned page_shift,
               Plan& out);

/// How a walk has gone so far, for what it will do next.
struct WalkHistory {
  std::uint64_t end_page = 0;                    ///< where its last needs ended
  std::uint64_t run_pages = 0;                   ///< how much it needed in a row up to there
  std::uint64_t first_page = ~std::uint64_t{0};  ///< where it started: at the edge of a tree; ~0 elsewhere
  unsigned epochs = 0;                           ///< times that it has started there again
  unsigned scattered = 0;  ///< 0 to kMostScattered: as many doublings of what is much in a row
  static constexpr unsigned kMostScattered = 5;
};

struct ChunkGeometry {
  unsigned chunk_shift = 0, page_shift = 0;  ///< of bytes
  std::uint64_t file_pages = 0;              ///< of the snapshot
  std::uint32_t chunk_of(std::uint64_t page) const noexcept {
    return static_cast<std::uint32_t>(page >> (chunk_shift - page_shift));
  }
  std::uint64_t pages_a_chunk() const noexcept { return std::uint64_t{1} << (chunk_shift - page_shift); }
};

/// What is known of chunks when a plan is folded.
class ChunkFacts {
 public:
  /// It is not to be read as a whole: what is needed of it is read exactly.
  virtual bool is_exact(std::uint32_t chunk) = 0;
  /// It is in memory, or being read: what is needed of it needs no read of its own.
  virtual bool is_here(std::uint32_t chunk) = 0;

 protected:
  ~ChunkFacts() = default;
};

struct FoldedPlan {
  std::vector<std::uint32_t> chunks;  ///< in the order of need, no two the same
  std::vector<PageRun> alone;         ///< what to read exactly
  bool in_chunks_now = true;          ///< the first need lies in chunks of these
  WalkHistory history;                ///< what it is once the walk has had its first need
};

/// `need`: what the walk needs now, it comes first.  At most `horizon` chunks, 1 or more, and up to 64 that
/// are here and hold short needs.  `facts` is not asked about chunks for another turn of the walk.
void fold_plan(const PageRun& need, const Plan& plan, bool forward, const WalkHistory& history,
               const ChunkGeometry& geometry, std::size_t horizon, ChunkFacts& facts, FoldedPlan& out);

/// How many chunks to be ahead, after `now`: twice as many after each wait of the walk (`stalled`), 2 to
/// `most` (1 if there may be no more).
constexpr std::size_t next_horizon(std::size_t now, bool stalled, std::size_t most) noexcept {
  const std::size_t wanted = stalled ? 2 * now : now;
  return wanted < 2 ? (most < 2 ? most : 2) : wanted > most ? most : wanted;
}

}  // namespace lmdbio::db
