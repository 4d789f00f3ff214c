#include "lmdbio/records/dup_trees.h"

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace lmdbio::records {
namespace {

/// Sets the record counts of damaged leaf pages in a tree of `entries` duplicates.  All pages from the first
/// damaged page to the last one count as damaged.  Their page becomes `no_page`, which no tree can have, so
/// that reads of their records fail.  Returns false if there are too many or too few entries.
bool place_damaged_dups(std::span<BlockRow> leaves, std::uint64_t entries, std::uint64_t no_page) noexcept {
  const auto is_damaged = [](const BlockRow& r) { return r.damaged; };
  const auto first = std::find_if(leaves.begin(), leaves.end(), is_damaged);
  if (first == leaves.end()) return true;
  auto last = first;
  std::uint64_t known = 0;
  for (auto leaf = leaves.begin(); leaf != leaves.end(); ++leaf) {
    known += leaf->records;
    if (leaf->damaged) last = leaf;
  }
  std::uint64_t missing = entries - known;
  for (auto leaf = first; leaf <= last; ++leaf) missing += leaf->records;
  const auto pages = static_cast<std::uint64_t>(last - first) + 1;
  if (known > entries || missing < pages || missing - pages >= UINT32_MAX) return false;
  for (auto leaf = first; leaf <= last; ++leaf) {
    leaf->records = leaf == first ? static_cast<std::uint32_t>(missing - (pages - 1)) : 1;
    leaf->where = no_page;
    leaf->damaged = false;
  }
  return true;
}

}  // namespace

Status read_dup_trees(TreeReads& reads, Chunk& chunk) {
  BuildState& state = reads.state();
  struct Node {
    std::size_t tree;
    std::uint64_t page;
    unsigned below;  ///< number of levels of branch pages, from this page down
  };
  const std::vector<DupTree>& trees = chunk.rows.trees;
  std::vector<Node> nodes;
  nodes.reserve(trees.size());
  for (std::size_t t = 0; t < trees.size(); ++t) {
    const format::DbRecord& r = trees[t].record;
    nodes.push_back({t, format::raw(r.root), r.depth - 1u});
  }
  for (;;) {
    std::vector<std::uint64_t> branches, children;
    for (const Node& n : nodes)
      if (n.below != 0) branches.push_back(n.page);
    if (branches.empty()) break;
    std::vector<Range> by_branch;
    if (const Status st = reads.read_branches(branches, children, by_branch); !st.ok()) return st;
    if (children.size() > state.facts().file_pages)
      return state.corrupted(trees[0].leaf, "trees of duplicates have more pages than the file");
    chunk.branch_pages += branches.size();
    std::vector<Node> next;
    next.reserve(nodes.size() - branches.size() + children.size());
    std::size_t branch = 0;
    for (const Node& n : nodes) {
      if (n.below == 0) {
        next.push_back(n);
        continue;
      }
      const Range r = by_branch[branch++];
      for (std::size_t i = r.begin; i < r.end; ++i) next.push_back({n.tree, children[i], n.below - 1});
    }
    nodes = std::move(next);
  }
  std::vector<WantedPage> wanted;
  wanted.reserve(nodes.size());
  chunk.dups.resize(nodes.size());
  chunk.by_tree.resize(trees.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const DupTree& t = trees[nodes[i].tree];
    BlockRow& row = chunk.dups[i];
    row.leaf = t.leaf;
    row.slot = t.slot;
    row.kind = BlockKind::dups;
    row.where = nodes[i].page;
    wanted.push_back({nodes[i].page, i});
    Range& r = chunk.by_tree[nodes[i].tree];
    if (r.end == 0) r.begin = i;
    r.end = i + 1;
  }
  const Status st =
      reads.read(wanted, [&](const WantedPage& w, const std::byte* page, IndexProblem& problem) {
        const format::DbRecord& r = trees[nodes[w.index].tree].record;
        BlockRow& row = chunk.dups[w.index];
        if (scan_dup_leaf(state.facts(), r, w.page, page, row.records, problem)) return true;
        if (!state.request().tolerant) return false;
        row.damaged = true;
        state.note_damage(problem);
        return true;
      });
  if (!st.ok()) return st;
  for (std::size_t t = 0; t < trees.size(); ++t) {
    const std::span<BlockRow> leaves(chunk.dups.begin() + static_cast<std::ptrdiff_t>(chunk.by_tree[t].begin),
                                     chunk.dups.begin() + static_cast<std::ptrdiff_t>(chunk.by_tree[t].end));
    if (!place_damaged_dups(leaves, trees[t].record.entries, state.facts().file_pages))
      return state.corrupted(trees[t].leaf,
                             "entry %u: its tree of duplicates has too many entries for its undamaged pages",
                             unsigned{trees[t].slot});
    std::uint64_t records = 0;
    for (const BlockRow& leaf : leaves) records += leaf.records;
    if (records != trees[t].record.entries)
      return state.corrupted(
          trees[t].leaf, "entry %u: number of duplicates: %" PRIu64 " in the record, %" PRIu64 " in the tree",
          unsigned{trees[t].slot}, trees[t].record.entries, records);
  }
  return {};
}

}  // namespace lmdbio::records
