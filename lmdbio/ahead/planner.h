// Plans which pages a walk reads next: pure functions of the tree's pages that can be read now.
//
// plan_walk() lists the needs of a walk in their exact order, which it takes from branch and leaf pages.
// fold_plan() turns the list into a plan for a cache of chunks.  Where needs are adjacent in the file, it
// plans whole chunks, also beyond the known needs.  For isolated needs it plans exact reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lmdbio/format/page_view.h"

namespace lmdbio::ahead {

/// A run of pages that are needed together.
struct PageRun {
  std::uint64_t first = 0, pages = 0;
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

/// The kind of page that a walk comes to.
enum class Step : unsigned char {
  edge,   ///< a leaf, by MDB_FIRST or MDB_LAST
  leaf,   ///< the next leaf
  value,  ///< a value in overflow pages
};

/// The position of a walk.  The walk has checked these pages.
struct WalkPlace {
  std::span<const format::PageView> branches;  ///< from the root down
  std::span<const std::uint16_t> taken;        ///< the entry taken in each branch page
  format::PageView leaf = format::PageView::none();
  unsigned index = 0;  ///< of the entry that is needed now
  bool forward = true;
  bool values = true;        ///< overflow pages are needed as well
  bool apart = false;        ///< plan each page and each value as a run of its own, even if runs are adjacent
  std::uint64_t period = 1;  ///< one value in this many is needed; 1: all values; 2 or more: see `skip`
  std::uint64_t skip = 0;    ///< if `period` is 2 or more: entries to skip from `index` on
  std::uint64_t value_pages = 0;  ///< overflow pages per record, on average
  std::uint64_t given_bytes = 0;  ///< total size of the values that the transaction has returned so far
};

/// Pages that a walker may enter without another call of Readahead::step().
struct FreeRun {
  std::uint64_t first = 0, pages = 0;
  /// Returns whether the `more` + 1 pages from `p` on are inside the run.  Takes one comparison.  So it also
  /// returns true for pages that start up to `more` pages before the run, which costs at most a page fault.
  bool covers(std::uint64_t p, std::uint64_t more) const noexcept { return p - first + more < pages; }
  static constexpr FreeRun everything() noexcept { return {0, ~std::uint64_t{0}}; }
};

/// Provides pages that can be read without waiting.
class PageSource {
 public:
  /// Returns false if the page cannot be read now, or is not a page of a tree.
  virtual bool get(std::uint64_t page, format::PageView& out) = 0;

 protected:
  ~PageSource() = default;
};

struct Plan {
  std::vector<PageRun> runs;  ///< in the order of need; without the place's own leaf
  bool complete = false;      ///< the walk ends with these runs
  /// Pages of all values of a leaf, as far as known.  Leaf pages likely lie this far apart.
  std::uint64_t leaf_pages = 0;
};

struct PlanLimits {
  std::uint64_t pages = 0;  ///< the plan ends at this many pages
  std::size_t runs = 512;   ///< the plan ends at this many runs
  unsigned scout = 16;      ///< unreadable leaf pages that the plan may go past
};

/// Plans the needs of a walk from `place` on.  A page that the source does not have is planned, but nothing
/// below it.  If `place.period` is not 1, no value after such a page is planned.  A damaged page ends the
/// plan; the walk itself reports it.  May throw bad_alloc.
void plan_walk(const WalkPlace& place, PageSource& source, const PlanLimits& limits, unsigned page_shift,
               Plan& out);

/// How a walk has gone so far; an input of its next plan.
struct WalkHistory {
  std::uint64_t end_page = 0;                    ///< where its last needs ended
  std::uint64_t run_pages = 0;                   ///< number of adjacent pages that it needed up to there
  std::uint64_t first_page = ~std::uint64_t{0};  ///< where it started, at an edge of a tree; ~0: elsewhere
  unsigned epochs = 0;                           ///< number of times that it has started there again
  /// How scattered the needs are, 0 to kMostScattered.  Each step doubles the number of adjacent pages that
  /// justify whole chunks.
  unsigned scattered = 0;
  static constexpr unsigned kMostScattered = 5;
};

struct ChunkGeometry {
  unsigned chunk_shift = 0, page_shift = 0;  ///< log2 of bytes
  std::uint64_t file_pages = 0;              ///< of the snapshot
  std::uint32_t chunk_of(std::uint64_t page) const noexcept {
    return static_cast<std::uint32_t>(page >> (chunk_shift - page_shift));
  }
  std::uint64_t pages_a_chunk() const noexcept { return std::uint64_t{1} << (chunk_shift - page_shift); }
};

/// Tells fold_plan() the state of chunks.
class ChunkFacts {
 public:
  /// Returns whether the chunk must not be read as a whole.  Needs in such a chunk are read exactly.
  virtual bool is_exact(std::uint32_t chunk) = 0;
  /// Returns whether the chunk is in memory or being read.  Needs in such a chunk require no reads of their
  /// own.
  virtual bool is_here(std::uint32_t chunk) = 0;

 protected:
  ~ChunkFacts() = default;
};

struct FoldedPlan {
  std::vector<std::uint32_t> chunks;  ///< in the order of need, without duplicates
  std::vector<PageRun> alone;         ///< runs to read exactly
  bool in_chunks_now = true;          ///< the first need lies in `chunks`
  WalkHistory history;                ///< valid once the walk has had its first need
};

/// Folds `plan` into chunks and runs.  `need`: what the walk needs now; it comes first.  Plans at most
/// `horizon` chunks, which is 1 or more, plus up to 64 chunks with short needs for which is_here() is true.
/// Does not call is_exact() for chunks that the walk needs only if it starts again.
void fold_plan(const PageRun& need, const Plan& plan, bool forward, const WalkHistory& history,
               const ChunkGeometry& geometry, std::size_t horizon, ChunkFacts& facts, FoldedPlan& out);

/// Returns how many chunks to read ahead.  `now`: the current number.  The number doubles each time the walk
/// had to wait (`stalled`).  The result is from 2 to `most`, or `most` if that is less than 2.
constexpr std::size_t next_horizon(std::size_t now, bool stalled, std::size_t most) noexcept {
  const std::size_t wanted = stalled ? 2 * now : now;
  return wanted < 2 ? (most < 2 ? most : 2) : wanted > most ? most : wanted;
}

}  // namespace lmdbio::ahead
