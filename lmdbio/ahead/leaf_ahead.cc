#include "lmdbio/ahead/leaf_ahead.h"

#include "lmdbio/base/futex.h"

namespace lmdbio::ahead {

using format::Version;

namespace {

/// Returns the leaf of an entry of the branch page above it, for prefetch instructions; null if there is
/// none.
template <Version kVersion>
[[gnu::always_inline]] inline const std::byte* leaf_at(const window::WindowView& view,
                                                       const format::PageView& parent, unsigned i) noexcept {
  const std::byte* at;
  if (i >= parent.count() || !parent.node_at<kVersion>(i, at)) return nullptr;
  const format::Pgno child = format::Node{at}.child();
  return format::raw(child) < view.pages() ? view.hint(child) : nullptr;
}

}  // namespace

template <Version kVersion>
[[gnu::always_inline]] inline void LeafAhead::jumped_in(const window::WindowView& view,
                                                        const format::PageView& parent, unsigned taken,
                                                        const format::PageView& leaf,
                                                        unsigned index) noexcept {
  phase_ = Phase::start;
  next_ = leaf_at<kVersion>(view, parent, taken + 1);
  if (next_ == nullptr) return;
  __builtin_prefetch(next_);
  // The step to entry index + 1 of this leaf prefetches entry 0 of the next one.
  slots_ = leaf.bytes() + format::page_header(kVersion) - 2 * (std::size_t{index} + 1);
  next_ += format::slot_base(kVersion);
  more_lines_ = 0;
}

template <Version kVersion>
[[gnu::always_inline]] inline void LeafAhead::walked_in(const window::WindowView& view,
                                                        const format::PageView& parent, unsigned taken,
                                                        const format::PageView& leaf) noexcept {
  constexpr std::size_t kHeader = format::page_header(kVersion), kBase = format::slot_base(kVersion);
  const unsigned entries = leaf.count();
  next_ = leaf_at<kVersion>(view, parent, taken + 1);
  if (const std::byte* const page = leaf_at<kVersion>(view, parent, taken + 2); page != nullptr)
    __builtin_prefetch(page);
  // Prefetch the page numbers of later leaves early enough.
  if (constexpr unsigned kBranchAhead = 8; taken + kBranchAhead < parent.count())
    __builtin_prefetch(
        parent.bytes() + kBase +
        load<std::uint16_t>(parent.bytes() + kHeader + 2 * (taken + std::size_t{kBranchAhead})));
  // The step to entry 1 of this leaf prefetches entry 0 of the next one.
  slots_ = next_ != nullptr ? next_ + kHeader - 2 : nullptr;
  if (next_ != nullptr) next_ += kBase;
  if (leaves_left_ == 0 || phase_ == Phase::start) tune();
  --leaves_left_;
  entries_ += entries;
  const bool whole = phase_ == Phase::whole || (phase_ == Phase::kept && keep_whole_);
  const auto lines = static_cast<unsigned>(leaf.size() / kLine / entries);
  more_lines_ = whole && lines > 1 ? lines - 1 : 0;
}

[[gnu::noinline]] void LeafAhead::jumped_10(const window::WindowView& view, const format::PageView& parent,
                                            unsigned taken, const format::PageView& leaf,
                                            unsigned index) noexcept {
  jumped_in<Version::v10>(view, parent, taken, leaf, index);
}
[[gnu::noinline]] void LeafAhead::walked_10(const window::WindowView& view, const format::PageView& parent,
                                            unsigned taken, const format::PageView& leaf) noexcept {
  walked_in<Version::v10>(view, parent, taken, leaf);
}

void LeafAhead::jumped(const window::WindowView& view, const format::PageView& parent, unsigned taken,
                       const format::PageView& leaf, unsigned index) noexcept {
  if (view.version() != Version::v09) [[unlikely]]
    return jumped_10(view, parent, taken, leaf, index);
  jumped_in<Version::v09>(view, parent, taken, leaf, index);
}

void LeafAhead::walked(const window::WindowView& view, const format::PageView& parent, unsigned taken,
                       const format::PageView& leaf) noexcept {
  if (view.version() != Version::v09) [[unlikely]]
    return walked_10(view, parent, taken, leaf);
  walked_in<Version::v09>(view, parent, taken, leaf);
}

// Switches between the trials and the faster method.  Reads the clock at most once in kTrialLeaves leaves.  A
// disturbance can only lengthen a trial, so the lowest cost of all trials counts.  The stored lowest cost
// grows slowly, so that a single trial does not decide forever.
void LeafAhead::tune() noexcept {
  constexpr double kForget = 1.1;
  const std::int64_t now = now_ns();
  const double cost =
      entries_ == 0 ? 0 : static_cast<double>(now - since_ns_) / static_cast<double>(entries_);
  const auto shortest = [cost](double& best) {
    best = best == 0 || cost < best * kForget ? cost : best * kForget;
  };
  switch (phase_) {
    case Phase::start:
    case Phase::kept:
      phase_ = Phase::headers;
      leaves_left_ = kTrialLeaves;
      break;
    case Phase::headers:
      shortest(headers_cost_);
      phase_ = Phase::whole;
      leaves_left_ = kTrialLeaves;
      break;
    case Phase::whole:
      shortest(whole_cost_);
      keep_whole_ = whole_cost_ < headers_cost_;
      phase_ = Phase::kept;
      leaves_left_ = kKeptLeaves;
      break;
  }
  entries_ = 0;
  since_ns_ = now;
}

}  // namespace lmdbio::ahead
