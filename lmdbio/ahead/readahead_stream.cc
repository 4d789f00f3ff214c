// The read-ahead of a stream: makes its plans, and finds out whether the program reads the values.
#include <algorithm>
#include <array>
#include <bit>
#include <mutex>

#include "lmdbio/ahead/file_policy.h"
#include "lmdbio/ahead/pages_there.h"
#include "lmdbio/ahead/readahead.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::ahead {

using window::ChunkIndex;
using window::Prefetcher;

namespace {

/// Upper limit on the speed at which programs read values, in bytes per nanosecond.  A faster program skips
/// them.
constexpr std::uint64_t kReadingSpeed = 50;
constexpr std::uint64_t kJudged = std::uint64_t{1} << 20;  ///< fewer bytes of values show nothing
constexpr unsigned kUnread = 2, kAllCached = 4;
/// Number of pages sampled per chunk.  A sample shows a touch in its 64 KiB (window/touched.h).  After
/// kUntouched chunks in a row without a touch, the values count as not read.
constexpr unsigned kSamples = 3, kUntouched = 4;
/// While values are read, one in this many chunks is sampled.
constexpr unsigned kSampledAgain = 8;
/// Upper limit on the number of needs from one plan of a sparse walk to the next.  Half of the planned needs
/// are left at that time.
constexpr unsigned kSparseSteps = 16;
/// Upper limit on the extent for one value, in bytes.  Page faults read the rest of the value.
constexpr std::uint64_t kMostExtent = std::uint64_t{16} << 20;
/// A need in more chunks than this is not taken from the cache on local disk as chunks.
constexpr std::uint32_t kMostTaken = 16;
/// A step that takes longer than this has waited for data.
constexpr std::int64_t kStallNs = 50'000;
/// A walk counts as less scattered after this many chunks in a row that it reaches for the first time.
constexpr unsigned kFresh = 8;

}  // namespace

/// The state of chunks for one fold_plan().  Takes the Prefetcher's lock at the first call that needs it, and
/// keeps the lock.
class Readahead::Facts final : public ChunkFacts {
 public:
  explicit Facts(const Readahead& readahead) noexcept : readahead_(readahead) {}
  /// Returns whether the walk has left the chunk, or has read it in pieces.  A read of the whole chunk would
  /// then read data twice.
  bool is_exact(std::uint32_t chunk) override {
    if (chunk == last_) return exact_;
    const window::WindowFile& file = readahead_.walk_->file();
    last_ = chunk;
    exact_ = file.has_page_cache() && !readahead_.is_planned(ChunkIndex{chunk}) &&
             (readahead_.trail_.been_in(chunk) || asked_bytes(ChunkIndex{chunk}) >= file.chunk_bytes / kPart);
    return exact_;
  }
  bool is_here(std::uint32_t chunk) override {
    return readahead_.walk_->file().table.state(ChunkIndex{chunk}) != window::ChunkState::file;
  }

 private:
  /// A chunk counts as read in pieces if one part in kPart of it was read exactly.  A walk may begin with a
  /// few exact reads while a StrideWalk finds out which values are used.
  static constexpr std::uint64_t kPart = 2;

  std::uint64_t asked_bytes(ChunkIndex chunk) {
    const window::Walk& walk = *readahead_.walk_;
    if (!walk.has_asked()) return 0;
    if (!lock_) lock_ = std::unique_lock(*Prefetcher::existing());
    return Prefetcher::existing()->asked_bytes(walk, chunk);
  }

  const Readahead& readahead_;
  std::unique_lock<Prefetcher> lock_;
  std::uint32_t last_ = ~0u;
  bool exact_ = false;
};

// Returns whether the chunk is in memory, is being read, or is in the walk's plan.
bool Readahead::is_planned(ChunkIndex chunk) const noexcept {
  return walk_->file().table.state(chunk) != window::ChunkState::file ||
         std::find(chunks_.begin(), chunks_.end(), chunk) != chunks_.end();
}

bool Readahead::comes_back_to(ChunkIndex chunk) const noexcept {
  return trail_.been_in(window::raw(chunk)) && !is_planned(chunk);
}

// Reads a need that lies in no chunk of the plan, up to kMostExtent bytes.  Page faults read the rest of a
// large value.
Status Readahead::read_exactly(const PageRun& need, const window::WindowView& view) noexcept {
  const window::WindowFile& file = walk_->file();
  const PageRun start{need.first, std::min(need.pages, kMostExtent >> view.shift())};
  const ChunkIndex a = file.chunk_at(start.first << view.shift());
  const ChunkIndex b = file.chunk_at((start.first + start.pages - 1) << view.shift());
  for (std::uint32_t c = raw(a); c <= raw(b); ++c)
    if (!file.resident_now(ChunkIndex{c})) return read_need(start, view);
  return {};
}

// Returns whether the program may have read the values that it was given since the last step returned.
bool Readahead::reads_values(std::int64_t now, std::uint64_t given) noexcept {
  const std::uint64_t bytes = given - given_before_;
  const auto passed = static_cast<std::uint64_t>(std::max<std::int64_t>(now - left_ns_, 1));
  return bytes < kJudged || passed >= bytes / kReadingSpeed;
}

// Returns whether the program has read none of the values that it passed since the last step returned, or was
// given none.
bool Readahead::leaves_values(Step kind, std::int64_t now, const WalkPlace& place) noexcept {
  const std::uint64_t bytes = place.given_bytes - given_before_;
  if (samples_.empty()) return kind == Step::value && !reads_values(now, place.given_bytes);
  if (bytes == 0) return kind == Step::leaf;
  if (bytes < kJudged) return false;
  std::array<window::TouchedPages::Page, kSamples> pages;
  touched_->look(samples_, {pages.data(), samples_.size()});
  return std::all_of(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(samples_.size()),
                     [](auto p) { return p == window::TouchedPages::Page::absent; });
}

// Chooses pages of `chunk` whose touch will show that values are read.  Touches of private memory cannot be
// seen.  Pages that were touched before cannot show a new touch.
void Readahead::sample(const FreeRun& chunk, const window::WindowView& view) noexcept {
  samples_.clear();
  if (unread_ == 0 && ++chunks_given_ % kSampledAgain != 0) return;
  if (reads_late_ || walk_->file().path() != ReadPath::page_cache || uses_ == Uses::all) return;
  if (!touched_) touched_.emplace(window::TouchedPages::open());
  std::array<const std::byte*, kSamples> at;
  std::array<window::TouchedPages::Page, kSamples> pages;
  for (unsigned i = 0; i < kSamples; ++i) {
    const std::uint64_t page = chunk.first + chunk.pages * (2 * i + 1) / (2 * kSamples);
    at[i] = page < view.pages() ? view.hint(format::Pgno{page}) : nullptr;
  }
  touched_->look(at, pages);
  if (std::any_of(pages.begin(), pages.end(), [](auto p) { return p != window::TouchedPages::Page::absent; }))
    return;
  samples_.assign(at.begin(), at.end());
}

Status Readahead::go_on(Step kind, WalkPlace place, const PageRun& need, const window::WindowView& view,
                        std::int64_t now, FreeRun& run) {
  Prefetcher& prefetcher = *Prefetcher::existing();
  window::WindowFile& file = walk_->file();
  if (replan_in_ > 0) {
    --replan_in_;
    run = {need.first, need.pages};
    return read_exactly(need, view);
  }
  if (left_ns_ != 0 && uses_ == Uses::unknown && place.values) {
    unread_ = leaves_values(kind, now, place) ? unread_ + 1 : 0;
    if (unread_ >= (samples_.empty() ? kUnread : kUntouched) && file.has_page_cache() &&
        !StrideWalk::is_shared(file, file.chunk_at(need.first << view.shift()), used_)) {
      unread_ = 0;
      ++file.stats.key_walks;
      if (pick(place, view)) {
        const Result<bool> goes_on = picking_->step(kind, place, need, view, run);
        if (!goes_on) return goes_on.error();
        if (goes_on.value()) return {};
        picking_.reset();
      }
      state_ = State::keys;
      return go_on_by_keys(place, need, view);
    }
  }
  const unsigned chunk_shift = static_cast<unsigned>(std::countr_zero(file.chunk_bytes));
  const ChunkGeometry geometry{chunk_shift, view.shift(), view.pages()};
  const ChunkIndex a{geometry.chunk_of(need.first)};
  const ChunkIndex b{geometry.chunk_of(need.first + need.pages - 1)};
  std::size_t most = prefetcher.most_chunks(file);
  if (bytes_left_ != 0) {  // up to the chunk in which the walk ends
    const std::uint64_t in_chunk = (need.first << view.shift()) % file.chunk_bytes;
    const std::uint64_t behind = place.forward ? in_chunk : file.chunk_bytes - 1 - in_chunk;
    most = std::min<std::size_t>(most, (behind + bytes_left_) / file.chunk_bytes + 1);
  }
  horizon_ = std::clamp<std::size_t>(horizon_, 1, most);
  const std::size_t needed = std::min<std::size_t>(raw(b) - raw(a) + 1, prefetcher.most_chunks(file));
  const std::size_t horizon = std::max(horizon_, needed);
  PagesThere there(file, view);
  if (kind != Step::value) {  // the leaf's values are known if the leaf is there
    format::PageView leaf;
    if (there.get(need.first, leaf) && leaf.is_leaf() && leaf.count() != 0) {
      place.leaf = leaf;
      place.index = place.forward ? 0 : leaf.count() - 1u;
    }
  }
  if (file.path() == ReadPath::page_cache || file.shares_chunks)
    if (const auto node = file.node.table(); node != nullptr) node->note_walk(raw(a), used_, !place.forward);
  // If a chunk is evicted before the walk comes back, a part of its read was useless.  The page cache keeps
  // chunks, unless drop_behind is set.
  const bool loses = file.path() == ReadPath::direct || file.drop_behind;
  if (loses && (comes_back_to(a) || comes_back_to(b))) {
    history_.scattered = std::min(history_.scattered + 1, WalkHistory::kMostScattered);
    fresh_ = 0;
  }
  const PlanLimits limits{horizon * geometry.pages_a_chunk()};
  plan_walk(place, there, limits, view.shift(), plan_);
  // A chunk that is not needed may be useful later if it is in the page cache, but not if it is in private
  // memory.
  if (file.path() == ReadPath::direct) plan_.leaf_pages = 0;
  {
    Facts facts(*this);
    fold_plan(need, plan_, place.forward, history_, geometry, horizon, facts, folded_);
  }
  history_ = folded_.history;

  chunks_.clear();
  for (const std::uint32_t c : folded_.chunks) chunks_.push_back(ChunkIndex{c});
  extents_.clear();
  for (const PageRun& r : folded_.alone)
    extents_.push_back({r.first << view.shift(), std::min(r.pages << view.shift(), kMostExtent)});
  if (!file.has_page_cache()) extents_.clear();  // an unmapped file has no page cache to read into
  const bool takes = !folded_.in_chunks_now && raw(b) - raw(a) < kMostTaken &&
                     prefetcher.takes_chunks_from_cache(file, {a, b}, view.pages() << view.shift());
  if (takes) {
    std::erase_if(chunks_, [&](ChunkIndex c) { return raw(c) >= raw(a) && raw(c) <= raw(b); });
    for (std::uint32_t c = raw(b) + 1; c-- > raw(a);) chunks_.insert(chunks_.begin(), ChunkIndex{c});
    extents_.clear();  // these would be read from the database
  } else if (!folded_.in_chunks_now) {
    (void)prefetcher.submit(*walk_, {chunks_, extents_, {}, {}});
    if (folded_.chunks.empty()) {
      ++file.stats.sparse_plans;
      replan_in_ = static_cast<unsigned>(std::min<std::size_t>(kSparseSteps, plan_.runs.size() / 2));
    }
    run = {need.first, need.pages};
    left_ns_ = 0;
    return read_exactly(need, view);
  }
  window::Ticket ticket = prefetcher.submit(*walk_, {chunks_, extents_, {a, b}, {}});
  const Status st = prefetcher.wait(ticket);
  if (!st.ok()) return st;
  if (takes && !is_resident(need, view)) {
    run = {need.first, need.pages};
    return read_exactly(need, view);
  }
  for (std::uint32_t c = window::raw(a); c <= window::raw(b); ++c) {
    if (!trail_.been_in(c) && ++fresh_ >= kFresh) {
      fresh_ = 0;
      history_.scattered -= history_.scattered != 0;
    }
    trail_.enter(c);
  }
  left_ns_ = now_ns();
  horizon_ = next_horizon(horizon_, left_ns_ - now > kStallNs, most);
  const std::uint64_t per_chunk = geometry.pages_a_chunk();
  const std::uint64_t from = std::uint64_t{raw(a)} * per_chunk, end = (std::uint64_t{raw(b)} + 1) * per_chunk;
  run = {from, end - from};
  sample(run, view);
  given_before_ = place.given_bytes;
  cached_ = file.decision.uses_resident && ticket.all_cached() ? cached_ + 1 : 0;
  if (cached_ >= kAllCached) forget();
  return {};
}

// Reads leaf pages, but no values.
Status Readahead::go_on_by_keys(const WalkPlace& place, const PageRun& need, const window::WindowView& view) {
  Prefetcher& prefetcher = *Prefetcher::existing();
  window::WindowFile& file = walk_->file();
  PagesThere there(file, view);
  WalkPlace keys = place;
  keys.values = false;
  constexpr std::size_t kLeaves = 32;
  plan_walk(keys, there, {kLeaves, kLeaves}, view.shift(), plan_);
  extents_.clear();
  extents_.push_back({need.first << view.shift(), need.pages << view.shift()});
  for (const PageRun& r : plan_.runs)
    for (std::uint64_t i = 0; i < r.pages; ++i)
      extents_.push_back({(r.first + i) << view.shift(), view.page_size()});
  (void)prefetcher.submit(*walk_, {{}, extents_, {}, {}});
  if (const Status st = read_need(need, view); !st.ok()) return st;
  const std::byte* const page = view.at(format::Pgno{need.first});
  format::PageView leaf = format::PageView::none();
  bool is_leaf = false;
  // Touch the leaf here, so that its page fault does not count as the program's time.
  if (page != nullptr) {
    const AsyncSignalsAllowed program;
    is_leaf =
        format::PageView::open(view.version(), page, view.page_size(), format::Pgno{need.first}, leaf) &&
        leaf.is_leaf();
  }
  if (is_leaf) pass_by(file, leaf, view);
  given_before_ = place.given_bytes;
  left_ns_ = now_ns();
  return {};
}

}  // namespace lmdbio::ahead
