#include "lmdbio/ahead/stride_walk.h"

#include <algorithm>
#include <new>
#include <utility>

#include "lmdbio/ahead/pages_there.h"
#include "lmdbio/base/config.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::ahead {

using window::ChunkIndex;
using window::Prefetcher;

namespace {

/// Number of values at the start that are fetched whether they are used or not.
constexpr std::uint64_t kProbed = 4;
/// StrideWalk gives up if, after this many fetched values at the start, it does not know yet whether all
/// values are used.
constexpr unsigned kMostProbed = 16;
/// After this many unused values in a row, the values that follow are watched for late reads.
constexpr std::uint64_t kPassedBy = 16;
/// kLeaves: leaf pages ahead.  A walk that reads leaf pages only has kFirstLeaves ahead at first, and
/// kMostLeaves at most.  kMostProbes: leaf pages that a plan may probe.
constexpr std::size_t kLeaves = 32, kFirstLeaves = 8, kMostLeaves = 64;
constexpr unsigned kMostProbes = 48;
/// Upper limits on what is fetched ahead, in bytes and in values.  The number of values grows with the
/// reliability of the guess.
constexpr std::uint64_t kMostAhead = std::uint64_t{64} << 20;
constexpr unsigned kMostValues = 32;

unsigned values_ahead(unsigned sure) noexcept {
  return sure < 2 ? 1 : sure >= 6 ? kMostValues : std::min(1u << sure, kMostValues);
}

ReadFacts facts_of(const window::WindowFile& file) noexcept {
  ReadFacts facts;
  facts.setting = config().io;
  facts.can_map = file.has_page_cache();
  facts.in_cache = file.reads_through_sources() && file.path() == ReadPath::direct;
  facts.memory_limit = Prefetcher::existing()->memory().limit();
  facts.residency_is_known = *file.residency().how() != '\0';  // plans must know which leaf pages are there
  return facts;
}

}  // namespace

std::unique_ptr<StrideWalk> StrideWalk::start(window::Walk& walk, const WalkPlace& place,
                                              const window::WindowView& view) noexcept {
  window::WindowFile& file = walk.file();
  const bool each = ValueUse::tells_each(place, view);
  // If page faults read the data and values are small, there is nothing to gain: page faults, too, read only
  // the leaf pages if the program does not read values.
  if (!place.values || (!each && file.path() == ReadPath::page_faults)) return nullptr;
  if (choose_read_path(Access::stride, facts_of(file)) == ReadPath::none) return nullptr;
  const std::byte* const leaf = place.leaf.bytes();
  if (leaf != nullptr && is_shared(file, file.chunk_at(static_cast<std::uint64_t>(leaf - view.base())), 0))
    return nullptr;
  ValueUse use(window::TouchedPages::open(), each);
  if (!use.can_look()) return nullptr;
  if (!each && leaf != nullptr && use.has_read_before(place, view)) return nullptr;
  Prefetcher::existing()->forget_extents(walk);
  return std::unique_ptr<StrideWalk>(new (std::nothrow) StrideWalk(walk, std::move(use)));
}

bool StrideWalk::is_shared(window::WindowFile& file, ChunkIndex chunk, std::uint32_t share) noexcept {
  // Data that one process reads into private memory is of no use to other processes.
  if (file.path() == ReadPath::direct && !file.shares_chunks) return false;
  const std::shared_ptr<node::Table> node = file.node.table();
  if (node == nullptr) return false;
  if (share != 0) node->note_walk(raw(chunk), share);
  constexpr double kWhole = 1000;
  ReadFacts facts = facts_of(file);
  facts.used = share / kWhole;
  facts.used_by_others = node->use_of_others(raw(chunk)) / kWhole;
  return facts.used_by_others > 0 && choose_read_path(Access::stride, facts) == ReadPath::none;
}

// Forgets all observations.
void StrideWalk::anew(const WalkPlace& place) noexcept {
  use_.anew();
  base_ = entries_ = next_ = probed_ = 0;
  leaves_ = leaves_ahead_ = 0;
  forward_ = place.forward;
}

Result<bool> StrideWalk::step(Step at, const WalkPlace& here, const PageRun& need,
                              const window::WindowView& view, FreeRun& run) {
  if (!use_.can_look()) return false;  // this is a forked child
  use_.look_back(at == Step::value ? &here : nullptr, view, walk_.file().stats);
  if (!use_.goes_on()) return false;
  const Stride& stride = use_.stride();
  if (stride.verdict() == Stride::Verdict::stride) {
    if (is_shared(walk_.file(), walk_.file().chunk_at(need.first << view.shift()), share())) return false;
    if (!std::exchange(counted_, true)) ++walk_.file().stats.stride_walks;
  }

  WalkPlace place = here;
  if (at == Step::value) {
    arrive_at_value(place, view);
    const std::uint64_t index = place.forward ? place.index : place.leaf.count() - 1u - place.index;
    const std::uint64_t number = base_ + index;
    if (is_resident(need.first << view.shift(), need.pages << view.shift())) {
      if (const Status st = fetch(place, number, nullptr, view); !st.ok()) return st;
      const std::uint64_t chunk_pages = walk_.file().chunk_bytes >> view.shift();
      const std::uint64_t from = need.first / chunk_pages * chunk_pages;
      run = {from, (need.first + need.pages - 1) / chunk_pages * chunk_pages + chunk_pages - from};
      next_ = number + 1;
    } else {
      const bool predicted = stride.predicts(number);
      if (use_.probes() && ++probed_ > kMostProbed) return false;
      if (predicted || use_.probes()) {
        if (const Status st = fetch(place, number, &need, view); !st.ok()) return st;
      }
      if (number >= next_) {
        use_.give(number, here, predicted, view);
        next_ = number + 1;
      }
      run = {need.first, need.pages};
    }
  } else {
    use_.leave_leaf();  // may be set from an earlier turn if the tree has only one leaf
    if (const Status st = arrive_at_leaf(at, place, need, view); !st.ok()) return st;
    if (stride.period() == 0 && stride.unused_in_a_row() >= kPassedBy)
      pass_by(walk_.file(), place.leaf, view);
    if (use_.is_fast()) {
      if (!std::exchange(keys_counted_, true)) ++walk_.file().stats.key_walks;
      if (const auto next = use_.give_leaf(place.leaf, forward_, base_, view); next != 0) next_ = next;
      run = FreeRun::everything();
    } else {
      run = {need.first, 1};
    }
  }
  use_.end_step();
  return true;
}

// Fetches the leaf if it is not there, and sets it as the place's leaf.
Status StrideWalk::arrive_at_leaf(Step at, WalkPlace& place, const PageRun& need,
                                  const window::WindowView& view) {
  const bool at_end = next_ == base_ + entries_;
  if (place.forward != forward_ || (at == Step::edge && !at_end) || leaf_page_ == ~std::uint64_t{0})
    anew(place);
  if (at == Step::edge) Prefetcher::existing()->forget_extents(walk_);
  base_ += entries_;
  entries_ = 0;
  leaf_page_ = need.first;
  PagesThere there(walk_.file(), view, 1);
  format::PageView leaf;
  if (!there.get(need.first, leaf)) {
    place.leaf = format::PageView::none();
    if (const Status st = fetch(place, base_, &need, view); !st.ok()) return st;
    const std::byte* const bytes = view.at(format::Pgno{need.first});
    if (bytes == nullptr ||
        !format::PageView::open(view.version(), bytes, view.page_size(), format::Pgno{need.first}, leaf))
      return {};  // damaged: the walk itself reports it
  }
  if (!leaf.is_leaf() || leaf.count() == 0) return {};
  entries_ = leaf.count();
  use_.set_leaf_bytes(entries_ * place.value_pages << view.shift());
  next_ = base_;
  place.leaf = leaf;
  place.index = place.forward ? 0 : leaf.count() - 1u;
  return fetch(place, base_, nullptr, view);
}

void StrideWalk::arrive_at_value(const WalkPlace& place, const window::WindowView& view) {
  const std::uint64_t page = static_cast<std::uint64_t>(place.leaf.bytes() - view.base()) >> view.shift();
  const std::uint64_t n = place.leaf.count();
  const std::uint64_t index = place.forward ? place.index : n - 1 - place.index;
  const bool jumped = page != leaf_page_ || n != entries_ || base_ + index + 1 < next_;
  if (!jumped && place.forward == forward_) return;
  anew(place);
  leaf_page_ = page;
  entries_ = n;
}

bool StrideWalk::is_resident(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  const window::WindowFile& file = walk_.file();
  return file.resident_now(file.chunk_at(offset)) && file.resident_now(file.chunk_at(offset + bytes - 1));
}

// Fetches the likely needs from entry `number` on.  Waits for `first` if it is not null.
Status StrideWalk::fetch(WalkPlace place, std::uint64_t number, const PageRun* first,
                         const window::WindowView& view) {
  Prefetcher& prefetcher = *Prefetcher::existing();
  window::WindowFile& file = walk_.file();
  extents_.clear();
  const auto extent_of = [&view](const PageRun& r) {
    return Extent{r.first << view.shift(), r.pages << view.shift()};
  };
  const bool waits =
      first != nullptr && !is_resident(first->first << view.shift(), first->pages << view.shift());
  if (waits) extents_.push_back(extent_of(*first));

  const std::uint64_t value = std::max<std::uint64_t>(place.value_pages, 1);
  const std::uint64_t most = std::max<std::uint64_t>((kMostAhead >> view.shift()) / value, 1);
  PlanLimits limits{kLeaves, kLeaves};
  place.apart = true;
  place.values = false;
  const Stride& stride = use_.stride();
  if (stride.period() != 0 || use_.probes()) {
    leaves_ahead_ = 0;
    place.values = place.leaf.bytes() != nullptr;
  } else {  // leaf pages only: fetch more while half of them are still ahead
    if (!waits && leaves_ahead_ > leaves_ / 2) {
      --leaves_ahead_;
      return {};
    }
    leaves_ = std::clamp(2 * leaves_, kFirstLeaves, kMostLeaves);
    limits = {leaves_, leaves_};
  }
  if (place.values) {
    std::uint64_t values = kProbed;
    if (stride.period() != 0) {
      place.period = stride.period();
      place.skip = stride.until_next(number);
      values = values_ahead(stride.sure());
    }
    values = std::min(values, most);
    limits = {values * value - value / 2, kLeaves + values, kLeaves};
  }
  PagesThere there(file, view, kMostProbes);
  plan_walk(place, there, limits, view.shift(), plan_);
  if (!place.values) leaves_ahead_ = plan_.runs.size();
  const bool looks = !place.values && !file.read_failed.load(std::memory_order_relaxed);
  for (const PageRun& r : plan_.runs) {
    if (r.first >= view.pages() || r.pages > view.pages() - r.first)
      continue;  // damaged: the walk itself reports it
    const Extent e = extent_of(r);
    if (is_resident(e.offset, e.bytes) || (waits && e == extents_.front())) continue;
    if (looks && file.residency().share(e.offset, e.bytes, view.base()) == 1.0) continue;
    extents_.push_back(e);
  }
  if (extents_.empty()) return {};
  window::Ticket ticket = prefetcher.submit(walk_, {{}, extents_, {}, waits ? extents_.front() : Extent()});
  return prefetcher.wait(ticket);
}

}  // namespace lmdbio::ahead
