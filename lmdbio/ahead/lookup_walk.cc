#include "lmdbio/ahead/lookup_walk.h"

#include <algorithm>

#include "lmdbio/format/layout.h"

namespace lmdbio::ahead {

namespace {

/// Bytes after which a walk over data in memory probes residency again.
constexpr std::uint64_t kLook = std::uint64_t{4} << 20;

}  // namespace

bool LookupWalk::bring(const WalkPlace& place, const PageRun& need, const window::WindowView& view) noexcept {
  const bool value = place.leaf.bytes() != nullptr;
  const bool granted = run_.covers(need.first, need.pages - 1);
  if (granted && (!run_is_resident_ || readahead_.is_resident(need, view))) return true;
  if (!value && need.first == leaf_) return true;
  const std::uint64_t value_pages = std::clamp<std::uint64_t>(place.value_pages, 1, view.pages());
  const std::uint64_t left = sequence_.left_in_run() * width() * value_pages;
  readahead_.limit_bytes(std::min(left, view.pages()) << view.shift());
  readahead_.note_use(1000 / width());
  const Readahead::Step kind = value ? Readahead::Step::value : Readahead::Step::leaf;
  bool each_leaf;
  const bool there = readahead_.step(kind, place, need, view, run_, each_leaf).ok();
  run_is_resident_ = readahead_.is_resident(need, view);
  // Readahead grants a fast program far more than one residency probe covers, so limit the run.
  if (!readahead_.is_streaming()) {
    const std::uint64_t around = kLook >> view.shift();
    const std::uint64_t from = std::max(run_.first, need.first - std::min(need.first, around));
    const std::uint64_t end = need.first + std::max(need.pages, around);
    run_ = {from, std::min(run_.pages, end - from)};
  }
  if (!value) leaf_ = there ? need.first : 0;
  return there;
}

unsigned LookupWalk::covered(const WalkPlace& place, const window::WindowView& view) const noexcept {
  constexpr std::uint64_t kMost = 16;
  if (!sequence_.is_walk()) return 0;  // the walk has ended
  const std::uint64_t most = std::min(sequence_.even_steps_left(), kMost);
  unsigned n = 0;
  std::int64_t at = place.index;
  while (n < most) {
    at += sequence_.step();
    format::Node node;
    if (at < 0 || at >= place.leaf.count() || !place.leaf.node(static_cast<unsigned>(at), node)) break;
    if ((node.flags() & format::kBigData) != 0 &&
        !run_.covers(format::raw(node.overflow()), view.overflow_pages(node.data_size()) - 1))
      break;
    ++n;
  }
  return n;
}

// Data that the kernel is still reading ahead looks resident.  So a walk probes again before it goes much
// beyond the data that one residency probe of Readahead covers.
unsigned LookupWalk::ask_within(const WalkPlace& place, const window::WindowView& view) const noexcept {
  constexpr std::uint64_t kLeast = 16, kMost = 1024;
  const std::uint64_t values = std::min(place.value_pages, view.pages()) << view.shift();
  const std::uint64_t leaf = view.page_size() / std::max(place.leaf.count(), 1u);
  return static_cast<unsigned>(
      std::clamp(kLook / std::max<std::uint64_t>((values + leaf) * width(), 1), kLeast, kMost));
}

}  // namespace lmdbio::ahead
