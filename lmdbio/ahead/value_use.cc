#include "lmdbio/ahead/value_use.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>

namespace lmdbio::ahead {

using window::TouchedPages;

namespace {

/// Bytes on each side of a sampled page that must belong to its value.  This includes 4 KiB because pages of
/// the system and of the file may begin at different offsets.
constexpr std::uint64_t kAround = TouchedPages::kAround + (4 << 10);
/// Gives up after this many values at the start whose use cannot be seen.
constexpr unsigned kMostUnseen = 8;
/// ValueUse gives up if kUnseen values in a row are not seen used, but kUnseenFaults major page faults occur
/// meanwhile.  Then the program reads values where their use cannot be seen.
constexpr unsigned kUnseen = 8, kUnseenFaults = 4;
/// kLate unused values are checked a second time.  If kReadLate of them are used by then, the program reads
/// late.
constexpr std::size_t kLate = 16, kReadLate = 8;
/// After this many unused values in a row, the walk counts as one over keys and calls step() at leaves only.
constexpr std::uint64_t kKeys = 256;
// The constants below are for values whose use cannot be distinguished.
/// If the values of a leaf take more bytes than this, the walk calls step() at each value.
constexpr std::uint64_t kMostUnasked = std::uint64_t{1} << 20;
/// Number of samples of a leaf.
constexpr unsigned kOfLeaf = 8;
/// One sample in this many is checked again later.
constexpr unsigned kLookedAtAgain = 8;

// Returns the pages of the value of an entry; none if it has no valid pages of its own.
PageRun pages_of(const format::PageView& leaf, unsigned entry, const window::WindowView& view) noexcept {
  format::Node node;
  if (entry >= leaf.count() || !leaf.node(entry, node) || (node.flags() & format::kBigData) == 0) return {};
  const PageRun run = {format::raw(node.overflow()), view.overflow_pages(node.data_size())};
  return run.first < view.pages() && run.pages <= view.pages() - run.first ? run : PageRun{};
}

}  // namespace

bool ValueUse::tells_each(const WalkPlace& place, const window::WindowView& view) noexcept {
  return place.value_pages << view.shift() >= 2 * kAround;
}

// A page near the leaf shows nothing, because the touch of the leaf may have made it present.
bool ValueUse::has_read_before(const WalkPlace& place, const window::WindowView& view) const noexcept {
  const PageRun value = pages_of(place.leaf, place.forward ? place.index - 1 : place.index + 1, view);
  if (value.pages == 0) return false;
  const std::byte* const page = view.hint(format::Pgno{value.first});
  const auto away = static_cast<std::uint64_t>(std::abs(page - place.leaf.bytes()));
  return away > TouchedPages::kAround && touched_.look(page) == TouchedPages::Page::touched;
}

void ValueUse::anew() noexcept {
  stride_ = Stride();
  given_.clear();
  late_.clear();
  unseen_ = unseen_faults_ = unseen_in_a_row_ = 0;
}

ValueUse::Faults ValueUse::faults() noexcept {
  rusage used;
  if (::getrusage(RUSAGE_THREAD, &used) != 0) return {};
  return {used.ru_majflt, used.ru_majflt + used.ru_minflt};
}

bool ValueUse::is_fast() const noexcept {
  return stride_.period() == 0 && stride_.unused_in_a_row() >= kKeys &&
         (tells_each_ || leaf_bytes_ <= kMostUnasked);
}

bool ValueUse::goes_on() const noexcept {
  const Stride::Verdict verdict = stride_.verdict();
  return apart_ && verdict != Stride::Verdict::dense && verdict != Stride::Verdict::irregular &&
         (tells_each_ || !stride_.seen_used());
}

// Each check costs two thread switches.  So values that the program cannot read without a page fault are
// checked only after a page fault, or together with other values.
void ValueUse::look_back(const WalkPlace* value, const window::WindowView& view, window::FileStats& stats) {
  const Faults now = given_.empty() ? before_ : faults();
  const bool quiet = now.all == before_.all, asks = value != nullptr && upcoming(*value) == nullptr;
  if (tells_each_ && quiet && !asks && !is_fast() && !probes() && given_.size() < Upcoming::kMost) return;
  // Without page faults, the program has touched no new page.  Without major page faults, it has touched no
  // page that was not in memory.  The first values may have been in the page cache since the file was opened.
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
      const bool tells = !minor || g.absent;  // without a major page fault, present pages show nothing
      if (page != TouchedPages::Page::unknown)
        seen = page == TouchedPages::Page::touched && tells ? Stride::Seen::used : Stride::Seen::unused;
    }
    if (g.predicted) {
      ++stats.predicted;
      if (seen == Stride::Seen::used) ++stats.predicted_right;
      if (seen == Stride::Seen::unused) ++stats.predicted_wrong;
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

// Collects samples of unused values and checks them again together.  Returns true if many are used by then.
// Such a program reads values some time after they were given, so that they seem unused at first.
bool ValueUse::read_late(const std::byte* sample) {
  late_.push_back(sample);
  if (late_.size() < kLate) return false;
  std::vector<TouchedPages::Page> now(late_.size());
  touched_.look(late_, now);
  const auto used = std::count(now.begin(), now.end(), TouchedPages::Page::touched);
  late_.clear();
  return static_cast<std::size_t>(used) >= kReadLate;
}

// Returns the state of the value's page in upcoming_; null if the value is not in upcoming_.
const TouchedPages::Page* ValueUse::upcoming(const WalkPlace& value) const noexcept {
  if (value.leaf.bytes() != upcoming_.leaf || value.forward != upcoming_.forward) return nullptr;
  const unsigned i = value.forward ? value.index - upcoming_.first : upcoming_.first - value.index;
  return i < upcoming_.count ? &upcoming_.pages[i] : nullptr;
}

const std::byte* ValueUse::sample_of(const format::PageView& leaf, unsigned entry,
                                     const window::WindowView& view) const noexcept {
  const PageRun value = pages_of(leaf, entry, view);
  if (value.pages == 0) return nullptr;
  if (!tells_each_) return view.hint(format::Pgno{value.first});
  const std::uint64_t before = value.pages / 2;
  if (before << view.shift() < kAround || (value.pages - before - 1) << view.shift() < kAround)
    return nullptr;
  return view.hint(format::Pgno{value.first + before});
}

void ValueUse::give(std::uint64_t number, const WalkPlace& place, bool predicted,
                    const window::WindowView& view) {
  const TouchedPages::Page* const page = upcoming(place);
  give(number, sample_of(place.leaf, place.index, view),
       page != nullptr ? *page : TouchedPages::Page::unknown, predicted);
}

// `now`: state of the sample's page.
void ValueUse::give(std::uint64_t number, const std::byte* sample, TouchedPages::Page now, bool predicted) {
  const bool absent = now == TouchedPages::Page::absent;
  given_.push_back({number, absent || !tells_each_ ? sample : nullptr, predicted, absent});
}

std::uint64_t ValueUse::give_leaf(const format::PageView& leaf, bool forward, std::uint64_t base,
                                  const window::WindowView& view) {
  const unsigned n = leaf.count(), apart = tells_each_ ? 1 : std::max(1u, n / kOfLeaf);
  looks_.assign(n, nullptr);
  for (unsigned i = 0; i < n; i += apart) looks_[i] = sample_of(leaf, forward ? i : n - 1 - i, view);
  looked_.assign(n, TouchedPages::Page::unknown);
  if (tells_each_ || fast_leaves_++ % kLookedAtAgain == 0) touched_.look(looks_, looked_);
  std::uint64_t next = 0;
  for (unsigned i = 0; i < n; ++i) {
    if (looks_[i] == nullptr) continue;
    give(base + i, looks_[i], looked_[i], false);
    next = base + i + 1;
  }
  return next;
}

}  // namespace lmdbio::ahead
