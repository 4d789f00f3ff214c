#include "lmdbio/ahead/stride_walk.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "lmdbio/ahead/pages_there.h"
#include "lmdbio/base/config.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::ahead {

using window::ChunkIndex;
using window::Prefetcher;
using window::TouchedPages;

namespace {

/// Bytes on each side of a sampled page that must belong to its value.  The system's page may begin
/// elsewhere than the file's.
constexpr std::uint64_t kAround = TouchedPages::kAround + (4 << 10);
/// Number of values at the start that are fetched whether they are used or not.
constexpr std::uint64_t kProbed = 4;
/// Gives up after this many values at the start whose use cannot be seen.
constexpr unsigned kMostUnseen = 8;
/// Gives up after this many values at the start that were fetched without finding out whether all are used.
constexpr unsigned kMostProbed = 16;
/// Out of kUnseen values in a row whose use was not seen, kUnseenFaults major page faults mean that they
/// are read where it does not show.
constexpr unsigned kUnseen = 8, kUnseenFaults = 4;
/// Number of unused values that are sampled once more, and how many used ones among them show that the
/// program reads late.
constexpr std::size_t kLate = 16, kReadLate = 8;
/// After this many unused values in a row, the walk counts as one over keys and calls step() at leaves only.
constexpr std::uint64_t kKeys = 256;
/// After this many unused values in a row, the values that follow are watched for late reads.
constexpr std::uint64_t kPassedBy = 16;
/// For values that cannot be distinguished.  kMostUnasked: with more bytes of values per leaf, the walk
/// calls step() at each value.  kOfLeaf: samples per leaf.  kLookedAtAgain: one sample in this many is looked
/// at again later.
constexpr std::uint64_t kMostUnasked = std::uint64_t{1} << 20;
constexpr unsigned kOfLeaf = 8, kLookedAtAgain = 8;
/// Leaf pages ahead; of a walk that reads leaf pages only: at first, and at most.  kMostProbes: leaf pages
/// that a plan may probe.
constexpr std::size_t kLeaves = 32, kFirstLeaves = 8, kMostLeaves = 64;
constexpr unsigned kMostProbes = 48;
/// Upper limits on what is fetched ahead: bytes, and values.  The surer the guess, the more values.
constexpr std::uint64_t kMostAhead = std::uint64_t{64} << 20;
constexpr unsigned kMostValues = 32;

unsigned values_ahead(unsigned sure) noexcept {
  return sure < 2 ? 1 : sure >= 6 ? kMostValues : std::min(1u << sure, kMostValues);
}

ReadFacts facts_of(const window::FileCache& file) noexcept {
  ReadFacts facts;
  facts.setting = config().io;
  facts.can_map = file.has_page_cache();
  facts.memory_limit = Prefetcher::existing()->memory_limit();
  facts.residency_is_known = *file.residency.how() != '\0';  // plans must know which leaf pages are there
  return facts;
}

// Returns the pages of the value of an entry; none if it has no valid pages of its own.
PageRun pages_of(const format::PageView& leaf, unsigned entry, const window::WindowView& view) noexcept {
  format::Node node;
  if (entry >= leaf.count() || !leaf.node(entry, node) || (node.flags() & format::kBigData) == 0) return {};
  const PageRun run = {format::raw(node.overflow()), format::overflow_pages(node.data_size(), view.shift())};
  return run.first < view.pages() && run.pages <= view.pages() - run.first ? run : PageRun{};
}

// Whether the program has read the value before `place`: the walk jumped to a place near here, and the
// program reads the values that it has come to since.  A page near the leaf shows nothing, because the
// touch of the leaf may have made it present.
bool has_read_before(const TouchedPages& touched, const WalkPlace& place,
                     const window::WindowView& view) noexcept {
  const PageRun value = pages_of(place.leaf, place.forward ? place.index - 1 : place.index + 1, view);
  if (value.pages == 0) return false;
  const std::byte* const page = view.hint(format::Pgno{value.first});
  const auto away = static_cast<std::uint64_t>(std::abs(page - place.leaf.bytes()));
  return away > TouchedPages::kAround && touched.look(page) == TouchedPages::Page::touched;
}

}  // namespace

bool StrideWalk::tells_each(const WalkPlace& place, const window::WindowView& view) noexcept {
  return place.value_pages << view.shift() >= 2 * kAround;
}

StrideWalk::StrideWalk(window::Walk& walk, TouchedPages touched, bool tells_each) noexcept
    : walk_(walk), touched_(std::move(touched)), tells_each_(tells_each) {}

StrideWalk::~StrideWalk() { report(); }

std::unique_ptr<StrideWalk> StrideWalk::start(window::Walk& walk, const WalkPlace& place,
                                              const window::WindowView& view) noexcept {
  window::FileCache& file = walk.file();
  const bool each = tells_each(place, view);
  // Where page faults read the data, they also read only the leaf pages if the program does not read
  // values.
  if (!place.values || (!each && file.path() == ReadPath::page_faults)) return nullptr;
  if (choose_read_path(Access::stride, facts_of(file)) == ReadPath::none) return nullptr;
  const std::byte* const leaf = place.leaf.bytes();
  if (leaf != nullptr && is_shared(file, file.chunk_at(static_cast<std::uint64_t>(leaf - view.base())), 0))
    return nullptr;
  TouchedPages touched = TouchedPages::open();
  if (!touched) return nullptr;
  if (!each && leaf != nullptr && has_read_before(touched, place, view)) return nullptr;
  Prefetcher::existing()->forget_extents(walk);
  return std::unique_ptr<StrideWalk>(new (std::nothrow) StrideWalk(walk, std::move(touched), each));
}

bool StrideWalk::is_shared(window::FileCache& file, ChunkIndex chunk, std::uint32_t share) noexcept {
  // Data that one process reads into private memory is of no use to another.
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

StrideWalk::Faults StrideWalk::faults() noexcept {
  rusage used;
  if (::getrusage(RUSAGE_THREAD, &used) != 0) return {};
  return {used.ru_majflt, used.ru_majflt + used.ru_minflt};
}

// Forgets all observations.
void StrideWalk::anew(const WalkPlace& place) noexcept {
  stride_ = Stride();
  given_.clear();
  late_.clear();
  base_ = entries_ = next_ = 0;
  leaves_ = leaves_ahead_ = 0;
  unseen_ = unseen_faults_ = unseen_in_a_row_ = probed_ = 0;
  forward_ = place.forward;
}

bool StrideWalk::probes() const noexcept {
  return tells_each_ && !stride_.seen_unused() && stride_.period() == 0;
}
bool StrideWalk::is_fast() const noexcept {
  return stride_.period() == 0 && stride_.unused_in_a_row() >= kKeys &&
         (tells_each_ || leaf_bytes_ <= kMostUnasked);
}
bool StrideWalk::goes_on() const noexcept {
  const Stride::Verdict verdict = stride_.verdict();
  return apart_ && verdict != Stride::Verdict::dense && verdict != Stride::Verdict::irregular &&
         (tells_each_ || !stride_.seen_used());
}

Result<bool> StrideWalk::step(Arrival at, const WalkPlace& here, const PageRun& need,
                              const window::WindowView& view, FreeRun& run) {
  if (!touched_) return false;  // this is a forked child
  look_back(at == Arrival::value ? &here : nullptr, view);
  if (!goes_on()) return false;
  if (stride_.verdict() == Stride::Verdict::stride) {
    if (is_shared(walk_.file(), walk_.file().chunk_at(need.first << view.shift()), share())) return false;
    if (!std::exchange(counted_, true)) ++counters_.stride_walks;
  }

  WalkPlace place = here;
  if (at == Arrival::value) {
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
      const bool predicted = stride_.predicts(number);
      if (probes() && ++probed_ > kMostProbed) return false;
      if (predicted || probes()) {
        if (const Status st = fetch(place, number, &need, view); !st.ok()) return st;
      }
      if (number >= next_) {
        const TouchedPages::Page* const page = upcoming(here);
        give(number, sample_of(here.leaf, here.index, view),
             page != nullptr ? *page : TouchedPages::Page::unknown, predicted);
      }
      run = {need.first, need.pages};
    }
  } else {
    upcoming_.count = 0;  // from an earlier turn, if the tree has one leaf
    if (const Status st = arrive_at_leaf(at, place, need, view); !st.ok()) return st;
    if (stride_.period() == 0 && stride_.unused_in_a_row() >= kPassedBy)
      pass_by(walk_.file(), place.leaf, view);
    if (is_fast()) {
      if (!std::exchange(keys_counted_, true)) ++walk_.file().stats.key_walks;
      give_leaf(place.leaf, view);
      run = FreeRun::everything();
    } else {
      run = {need.first, 1};
    }
  }
  before_ = faults();
  return true;
}

// --- use of the values ------------------------------------------------------------------------------------

// Finds out which of the values in given_ were used.  `value`: the value that is given next, or null.  Each
// look costs two changes of threads.  So values whose reading would have caused a page fault wait for one,
// or for other values to be looked at with.
void StrideWalk::look_back(const WalkPlace* value, const window::WindowView& view) {
  const Faults now = given_.empty() ? before_ : faults();
  const bool quiet = now.all == before_.all, asks = value != nullptr && upcoming(*value) == nullptr;
  if (tells_each_ && quiet && !asks && !is_fast() && !probes() && given_.size() < Upcoming::kMost) return;
  // Without page faults, nothing was touched; without major ones, nothing that was not in memory.  The
  // first values may be in the page cache since the file was opened.
  const bool minor = !tells_each_ && now.major == before_.major;
  const bool fast = tells_each_ ? is_fast() && quiet : minor && (quiet || stride_.unused_in_a_row() >= kLate);
  looks_.clear();
  if (!fast)
    for (const Given& g : given_) looks_.push_back(g.sample);
  const std::size_t before = looks_.size();
  if (asks) {
    const unsigned n = value->leaf.count(), step = value->forward ? 1u : ~0u;
    for (unsigned i = value->index; i < n && looks_.size() < before + Upcoming::kMost; i += step)
      looks_.push_back(sample_of(value->leaf, i, view));
  }
  looked_.resize(looks_.size());
  if (!looks_.empty()) touched_.look(looks_, looked_);
  if (asks) {
    upcoming_ = {
        value->leaf.bytes(), value->forward, value->index, static_cast<unsigned>(looks_.size() - before), {}};
    std::copy(looked_.begin() + static_cast<std::ptrdiff_t>(before), looked_.end(), upcoming_.pages.begin());
  }
  if (given_.empty()) return;
  unsigned used = 0, unseen = 0;
  for (std::size_t i = 0; i < given_.size(); ++i) {
    const Given& g = given_[i];
    Stride::Seen seen = Stride::Seen::unknown;
    if (g.sample != nullptr) {
      const TouchedPages::Page page = fast ? TouchedPages::Page::absent : looked_[i];
      const bool tells = !minor || g.absent;  // without a wait, present pages show nothing
      if (page != TouchedPages::Page::unknown)
        seen = page == TouchedPages::Page::touched && tells ? Stride::Seen::used : Stride::Seen::unused;
    }
    if (g.predicted) {
      ++counters_.predicted;
      if (seen == Stride::Seen::used) ++counters_.predicted_right;
      if (seen == Stride::Seen::unused) ++counters_.predicted_wrong;
    }
    if (seen == Stride::Seen::used)
      ++used;
    else
      ++unseen;
    const bool again = tells_each_ ? !fast
                                   : g.absent && (stride_.unused_in_a_row() < kLate || is_fast() ||
                                                  g.number % kLookedAtAgain == 0);
    if (seen == Stride::Seen::unused && again && read_late(g.sample)) apart_ = false;
    stride_.observe(g.number, seen);
    unseen_in_a_row_ = seen == Stride::Seen::unknown && !stride_.seen_used() && !stride_.seen_unused()
                           ? unseen_in_a_row_ + 1
                           : 0;
    if (unseen_in_a_row_ >= kMostUnseen) apart_ = false;
  }
  given_.clear();
  if (used != 0) {
    unseen_ = unseen_faults_ = 0;
  } else {
    unseen_ += unseen;
    unseen_faults_ += static_cast<unsigned>(now.major - before_.major);
    if (unseen_ >= kUnseen) {
      if (unseen_faults_ >= kUnseenFaults) apart_ = false;
      unseen_ = unseen_faults_ = 0;
    }
  }
}

// Collects samples of unused values and looks at them again together.  Returns true if many are used by
// then.  Such a program reads values some time after it was given them, which looks like a program that
// does not read them.
bool StrideWalk::read_late(const std::byte* sample) {
  late_.push_back(sample);
  if (late_.size() < kLate) return false;
  std::vector<TouchedPages::Page> now(late_.size());
  touched_.look(late_, now);
  const auto used = std::count(now.begin(), now.end(), TouchedPages::Page::touched);
  late_.clear();
  return static_cast<std::size_t>(used) >= kReadLate;
}

// Returns the state of the value's page from the last look ahead; null if the value was not part of it.
const TouchedPages::Page* StrideWalk::upcoming(const WalkPlace& value) const noexcept {
  if (value.leaf.bytes() != upcoming_.leaf || value.forward != upcoming_.forward) return nullptr;
  const unsigned i = value.forward ? value.index - upcoming_.first : upcoming_.first - value.index;
  return i < upcoming_.count ? &upcoming_.pages[i] : nullptr;
}

const std::byte* StrideWalk::sample_of(const format::PageView& leaf, unsigned entry,
                                       const window::WindowView& view) const noexcept {
  const PageRun value = pages_of(leaf, entry, view);
  if (value.pages == 0) return nullptr;
  if (!tells_each_) return view.hint(format::Pgno{value.first});
  const std::uint64_t before = value.pages / 2;
  if (before << view.shift() < kAround || (value.pages - before - 1) << view.shift() < kAround)
    return nullptr;
  return view.hint(format::Pgno{value.first + before});
}

// Records that a value is given to the program.  `now`: state of the sample's page.
void StrideWalk::give(std::uint64_t number, const std::byte* sample, TouchedPages::Page now, bool predicted) {
  const bool absent = now == TouchedPages::Page::absent;
  given_.push_back({number, absent || !tells_each_ ? sample : nullptr, predicted, absent});
  next_ = number + 1;
}

// Records that all values of a leaf are given.  None of them is likely to be used.
void StrideWalk::give_leaf(const format::PageView& leaf, const window::WindowView& view) {
  const unsigned n = leaf.count(), apart = tells_each_ ? 1 : std::max(1u, n / kOfLeaf);
  looks_.assign(n, nullptr);
  for (unsigned i = 0; i < n; i += apart) looks_[i] = sample_of(leaf, forward_ ? i : n - 1 - i, view);
  looked_.assign(n, TouchedPages::Page::unknown);
  if (tells_each_ || fast_leaves_++ % kLookedAtAgain == 0) touched_.look(looks_, looked_);
  for (unsigned i = 0; i < n; ++i)
    if (looks_[i] != nullptr) give(base_ + i, looks_[i], looked_[i], false);
}

// --- position of the walk ---------------------------------------------------------------------------------

// Fetches the leaf if it is not there, and sets it as the place's leaf.
Status StrideWalk::arrive_at_leaf(Arrival at, WalkPlace& place, const PageRun& need,
                                  const window::WindowView& view) {
  const bool at_end = next_ == base_ + entries_;
  if (place.forward != forward_ || (at == Arrival::edge && !at_end) || leaf_page_ == ~std::uint64_t{0})
    anew(place);
  if (at == Arrival::edge) Prefetcher::existing()->forget_extents(walk_);
  base_ += entries_;
  entries_ = 0;
  leaf_page_ = need.first;
  PagesThere there(walk_.file(), view, 1);
  format::PageView leaf;
  if (!there.get(need.first, leaf)) {
    place.leaf = format::PageView::none();
    if (const Status st = fetch(place, base_, &need, view); !st.ok()) return st;
    const std::byte* const bytes = view.at(format::Pgno{need.first});
    if (bytes == nullptr || !format::PageView::open(bytes, view.page_size(), format::Pgno{need.first}, leaf))
      return {};  // damaged: the walk itself reports it
  }
  if (!leaf.is_leaf() || leaf.count() == 0) return {};
  entries_ = leaf.count();
  leaf_bytes_ = entries_ * place.value_pages << view.shift();
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

// --- prefetch ---------------------------------------------------------------------------------------------

bool StrideWalk::is_resident(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  const window::FileCache& file = walk_.file();
  return file.resident_now(file.chunk_at(offset)) && file.resident_now(file.chunk_at(offset + bytes - 1));
}

// Fetches the likely needs from the entry with `number` on.  Waits for `first` if it is not null.
Status StrideWalk::fetch(WalkPlace place, std::uint64_t number, const PageRun* first,
                         const window::WindowView& view) {
  Prefetcher& prefetcher = *Prefetcher::existing();
  window::FileCache& file = walk_.file();
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
  if (stride_.period() != 0 || probes()) {
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
    if (stride_.period() != 0) {
      place.period = stride_.period();
      place.skip = stride_.until_next(number);
      values = values_ahead(stride_.sure());
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
    if (looks && file.residency.share(e.offset, e.bytes, view.base()) == 1.0) continue;
    extents_.push_back(e);
  }
  report();
  if (extents_.empty()) return {};
  window::Ticket ticket = prefetcher.submit(walk_, {{}, extents_, {}, waits ? extents_.front() : Extent()});
  return prefetcher.wait(ticket);
}

void StrideWalk::report() noexcept {
  if (counters_.predicted == 0 && counters_.stride_walks == 0) return;
  walk_.file().stats.add(counters_);
  counters_ = {};
}

}  // namespace lmdbio::ahead
