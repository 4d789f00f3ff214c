#include "lmdbio/check/ahead.h"

#include <algorithm>
#include <utility>

#include "lmdbio/format/page_view.h"

namespace lmdbio::check {
namespace {

using format::Pgno;

/// Upper limit on the bytes of the pages of a wave; small compared to the page cache.
constexpr std::size_t kWaveBytes = 32 << 20;
/// Number of requests of a wave.  It is several times the queue depth, but small enough that a wave is soon
/// complete: progress is reported only while a wave is walked.
constexpr std::size_t kWaveRequests = 1024;
/// kFirstWave: leaf pages of a wave before it is known how many pages a leaf page names.  kSmallestWave: the
/// least number for any wave.
constexpr std::size_t kFirstWave = 16, kSmallestWave = 4;
/// Number of waves.  The check walks the first wave.  Meanwhile, the pages that the second wave names are
/// being read, and so are the leaf pages of the third wave.
constexpr std::size_t kWaves = 3;
/// After this many leaf pages in a row that were in no wave, ReadAhead stops looking for leaf pages.  This
/// happens in damaged trees.
constexpr unsigned kStrangers = 16;

}  // namespace

void ReadAhead::enter(std::uint64_t root, unsigned depth, Runs runs) noexcept {
  try {
    Tree& tree = trees_.emplace_back();
    tree.levels.resize(std::clamp(depth, 1u, unsigned{format::kMaxDepth}));
    tree.levels[0].push_back(root);
    tree.wave_leaves = kFirstWave;
    tree.runs = runs;
  } catch (...) {
    batches_.turn_off();
  }
}

void ReadAhead::leave() noexcept {
  if (trees_.empty()) return;
  while (!trees_.back().waves.empty()) drop_first(trees_.back());
  trees_.pop_back();
}

void ReadAhead::drop_first(Tree& tree) noexcept {
  Wave& wave = *tree.waves.front();
  batches_.drop(wave.leaf_reads);
  batches_.drop(wave.named_reads);
  tree.waves.pop_front();
}

void ReadAhead::reach(std::uint64_t leaf) noexcept {
  if (!on() || trees_.empty()) return;
  Tree& tree = trees_.back();
  try {
    if (tree.waves.empty() && !add_wave(tree)) return;
    if (tree.strangers > kStrangers) return;
    // Find the leaf page in the waves.  It is the next one, except in damaged trees.
    ++tree.strangers;
    for (std::size_t w = 0; w < tree.waves.size(); ++w) {
      Wave& wave = *tree.waves[w];
      const auto at =
          std::find(wave.leaves.begin() + static_cast<std::ptrdiff_t>(wave.next), wave.leaves.end(), leaf);
      if (at == wave.leaves.end()) continue;
      tree.strangers = 0;
      const bool begins = wave.next == 0;
      wave.next = static_cast<std::size_t>(at - wave.leaves.begin()) + 1;
      for (; w > 0; --w) drop_first(tree);
      if (begins) {
        follow(tree, wave);
        while (tree.waves.size() < kWaves && add_wave(tree)) {
        }
        if (!batches_.wait(wave.named_reads)) return;
      }
      break;
    }
    batches_.pump();
    for (const std::unique_ptr<Wave>& wave : tree.waves)
      if (!wave->followed && wave->leaf_reads.done()) follow(tree, *wave);
  } catch (...) {  // out of memory
    batches_.turn_off();
  }
}

/// Finds at least `wanted` pages of the level, if there are so many.
void ReadAhead::find(Tree& tree, std::size_t level, std::size_t wanted) {
  if (level == 0) return;
  std::deque<std::uint64_t>& found = tree.levels[level];
  std::deque<std::uint64_t>& above = tree.levels[level - 1];
  std::size_t children = 1;  // average number per page; determines how many pages to read at once
  std::vector<PageRun> batch;
  while (found.size() < wanted && on()) {
    const std::size_t pages = std::max<std::size_t>(1, (wanted - found.size()) / children);
    find(tree, level - 1, pages);
    if (above.empty()) return;
    batch.clear();
    std::vector<std::uint64_t> parents(
        above.begin(), above.begin() + static_cast<std::ptrdiff_t>(std::min(pages, above.size())));
    above.erase(above.begin(), above.begin() + static_cast<std::ptrdiff_t>(parents.size()));
    for (const std::uint64_t p : parents) batch.push_back({p, 1});
    ReadGroup group;
    batches_.ask(group, batch);
    if (!batches_.wait(group)) return;
    const std::size_t before = found.size();
    for (const std::uint64_t p : parents) {
      const std::byte* const at = view_.at(Pgno{p});
      format::PageView page;
      if (at == nullptr || !format::PageView::open(view_.version(), at, view_.page_size(), Pgno{p}, page) ||
          !page.is_branch())
        continue;
      for (unsigned i = 0; i < page.count(); ++i)
        if (format::Node n; page.node(i, n)) found.push_back(format::raw(n.child()));
    }
    children = std::max<std::size_t>(1, (found.size() - before) / parents.size());
  }
}

/// Adds a wave and requests its leaf pages.  Returns false if all leaf pages of the tree are in waves.
bool ReadAhead::add_wave(Tree& tree) {
  const std::size_t last = tree.levels.size() - 1;
  find(tree, last, tree.wave_leaves);
  std::deque<std::uint64_t>& leaves = tree.levels[last];
  if (leaves.empty()) return false;
  const auto end = leaves.begin() + static_cast<std::ptrdiff_t>(std::min(tree.wave_leaves, leaves.size()));
  auto wave = std::make_unique<Wave>();
  wave->leaves.assign(leaves.begin(), end);
  leaves.erase(leaves.begin(), end);
  std::vector<PageRun> pages;
  for (const std::uint64_t p : wave->leaves) pages.push_back({p, 1});
  Wave& added = *tree.waves.emplace_back(std::move(wave));
  added.requests = batches_.ask(added.leaf_reads, pages);
  return true;
}

void ReadAhead::follow(Tree& tree, Wave& wave) {
  if (std::exchange(wave.followed, true)) return;
  if (!batches_.wait(wave.leaf_reads)) return;
  std::vector<PageRun> pages;
  for (const std::uint64_t p : wave.leaves) name_pages(tree, p, pages);
  const std::size_t a_leaf = 1 + pages.size() / wave.leaves.size();
  const std::size_t requests = wave.requests + batches_.ask(wave.named_reads, pages);
  tree.wave_leaves =
      std::clamp(kWaveRequests * wave.leaves.size() / std::max<std::size_t>(1, requests), kSmallestWave,
                 std::max(kSmallestWave, kWaveBytes / view_.page_size() / a_leaf));
}

/// Adds the pages that a check reads next for the records of a leaf page.
void ReadAhead::name_pages(const Tree& tree, std::uint64_t leaf, std::vector<PageRun>& out) const {
  const std::byte* const at = view_.at(Pgno{leaf});
  format::PageView page;
  if (at == nullptr || !format::PageView::open(view_.version(), at, view_.page_size(), Pgno{leaf}, page) ||
      !page.is_leaf() || page.is_leaf2())
    return;
  for (unsigned i = 0; i < page.count(); ++i) {
    format::Node n;
    unsigned flags;
    std::size_t key_bytes, data_bytes;
    // Load once: a writer may be changing the page.
    if (!page.leaf_node(i, n, flags, key_bytes, data_bytes)) continue;
    const std::byte* const data = n.data();
    if ((flags & format::kBigData) != 0) {
      if (tree.runs == Runs::none) continue;
      const std::uint64_t run = tree.runs == Runs::whole ? view_.overflow_pages(data_bytes) : 1;
      out.push_back({load<std::uint64_t>(data), run});
    } else if ((flags & format::kSubData) != 0 && data_bytes == sizeof(format::DbRecord)) {
      const auto record = load<format::DbRecord>(data);
      if (record.root != format::kNoPage) out.push_back({format::raw(record.root), 1});
    }
  }
}

}  // namespace lmdbio::check
