#include "lmdbio/records/scan_leaf.h"

#include <bit>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "lmdbio/format/explain.h"

namespace lmdbio::records {

using format::Node;
using format::PageView;
using format::Pgno;

void tell_problem(IndexProblem& problem, std::uint64_t page, const char* format, ...) noexcept {
  problem.page = page;
  va_list args;
  va_start(args, format);
  (void)std::vsnprintf(problem.reason, sizeof problem.reason, format, args);
  va_end(args);
}

namespace {

bool not_whole(const TreeFacts& tree, std::uint64_t p, const std::byte* page, const char* what,
               IndexProblem& problem) noexcept {
  problem.page = p;
  if (!format::explain_page(tree.version, {page, tree.page_size}, Pgno{p}, problem.reason))
    tell_problem(problem, p, "%s", what);
  return false;
}

bool open(const TreeFacts& tree, std::uint64_t p, const std::byte* page, bool branch, PageView& out,
          IndexProblem& problem) noexcept {
  if (!PageView::open(tree.version, page, tree.page_size, Pgno{p}, out))
    return not_whole(tree, p, page, "invalid page header", problem);
  if (out.is_branch() != branch) {
    tell_problem(problem, p,
                 branch ? "a leaf page at a depth where the tree has branch pages"
                        : "a branch page at a depth where the tree has leaf pages");
    return false;
  }
  if (out.count() == 0) {
    tell_problem(problem, p, "no entries");
    return false;
  }
  return true;
}

/// Groups the slots of a leaf page into blocks.
class Blocks {
 public:
  Blocks(std::uint64_t leaf, Rows& out) : leaf_(leaf), out_(out) {}

  void plain(unsigned slot) {
    if (!open_) begin(slot, BlockKind::plain);
    if (row().kind == BlockKind::runs) out_.runs.push_back({});
    ++row().records;
  }
  void run(unsigned slot, std::uint64_t page, std::uint64_t bytes) {
    if (open_ && row().kind == BlockKind::counted) open_ = false;
    if (!open_) begin(slot, BlockKind::plain);
    if (row().kind == BlockKind::plain) {  // earlier records of the block have their values in the page
      row().kind = BlockKind::runs;
      row().where = out_.runs.size();
      out_.runs.resize(out_.runs.size() + row().records);
    }
    out_.runs.push_back({page, bytes + 1});
    ++row().records;
  }
  void sub_page(unsigned slot, unsigned records) {
    if (open_ && row().kind == BlockKind::runs) open_ = false;
    if (!open_) begin(slot, BlockKind::counted);
    row().kind = BlockKind::counted;
    row().records += records;
  }
  void tree(unsigned slot, const format::DbRecord& record) {
    open_ = false;
    BlockRow r;
    r.leaf = leaf_;
    r.where = out_.trees.size();
    r.slot = static_cast<std::uint16_t>(slot);
    r.tree = true;
    out_.trees.push_back({record, leaf_, r.slot});
    out_.blocks.push_back(r);
  }

 private:
  BlockRow& row() noexcept { return out_.blocks.back(); }
  void begin(unsigned slot, BlockKind kind) {
    BlockRow r;
    r.leaf = leaf_;
    r.slot = static_cast<std::uint16_t>(slot);
    r.kind = kind;
    out_.blocks.push_back(r);
    open_ = true;
  }

  std::uint64_t leaf_;
  Rows& out_;
  bool open_ = false;
};

/// Counts and checks the items of a page or sub-page of duplicates.
bool count_items(const PageView& dups, std::uint32_t& records) noexcept {
  records = dups.count();
  if (records == 0) return false;
  if (dups.is_leaf2()) return dups.item_size() != 0 && dups.item(records - 1, dups.item_size()) != nullptr;
  for (unsigned i = 0; i < records; ++i)
    if (Node n; !dups.node(i, n)) return false;
  return true;
}

}  // namespace

bool scan_branch(const TreeFacts& tree, std::uint64_t p, const std::byte* page, Rows& out,
                 IndexProblem& problem) {
  PageView view;
  if (!open(tree, p, page, true, view, problem)) return false;
  for (unsigned i = 0; i < view.count(); ++i) {
    Node n;
    if (!view.node(i, n)) return not_whole(tree, p, page, "invalid entry", problem);
    const std::uint64_t child = format::raw(n.child());
    if (!in_file(tree, child)) {
      tell_problem(problem, p, "entry %u refers to page %" PRIu64 "; the file has %" PRIu64 " pages", i,
                   child, tree.file_pages);
      return false;
    }
    out.children.push_back(child);
  }
  return true;
}

bool scan_leaf(const TreeFacts& tree, std::uint64_t p, const std::byte* page, Rows& out,
               IndexProblem& problem) {
  PageView view;
  if (!open(tree, p, page, false, view, problem)) return false;
  if (view.is_leaf2()) {
    tell_problem(problem, p, "fixed-size duplicates outside a tree of duplicates");
    return false;
  }
  const auto shift = static_cast<unsigned>(std::countr_zero(tree.page_size));
  Blocks blocks(p, out);
  for (unsigned i = 0; i < view.count(); ++i) {
    Node n;
    unsigned flags;
    std::size_t key_bytes, data_bytes;
    if (!view.leaf_node(i, n, flags, key_bytes, data_bytes))
      return not_whole(tree, p, page, "invalid entry", problem);
    const std::byte* const data = n.data();
    const bool big = (flags & format::kBigData) != 0;
    if ((flags & format::kDupData) == 0) {
      if (!big) {
        blocks.plain(i);
        continue;
      }
      const auto run = load<std::uint64_t>(data);
      if (!in_file(tree, run) ||
          format::overflow_pages(tree.version, data_bytes, shift) > tree.file_pages - run) {
        tell_problem(problem, p,
                     "entry %u: a value of %zu bytes on page %" PRIu64
                     " reaches beyond the end of the file, which has %" PRIu64 " pages",
                     i, data_bytes, run, tree.file_pages);
        return false;
      }
      blocks.run(i, run, data_bytes);
      continue;
    }
    if (big || !tree.dupsort) {
      tell_problem(problem, p, "entry %u has duplicates, which this database cannot have", i);
      return false;
    }
    if ((flags & format::kSubData) != 0) {
      if (data_bytes < sizeof(format::DbRecord)) {
        tell_problem(problem, p, "entry %u: the record of its tree of duplicates is too short: %zu bytes", i,
                     data_bytes);
        return false;
      }
      const auto record = load<format::DbRecord>(data);
      if (!in_file(tree, format::raw(record.root))) {
        tell_problem(problem, p,
                     "entry %u: the root of its duplicates is page %" PRIu64 "; the file has %" PRIu64
                     " pages",
                     i, format::raw(record.root), tree.file_pages);
        return false;
      }
      if (record.depth == 0 || record.depth > format::kMaxDepth ||
          record.entries >> PackedColumn::kBits != 0) {
        tell_problem(problem, p,
                     "entry %u: the record gives its tree of duplicates a depth of %u and %" PRIu64
                     " entries",
                     i, unsigned{record.depth}, record.entries);
        return false;
      }
      blocks.tree(i, record);
      continue;
    }
    PageView sub;
    std::uint32_t records;
    if (!PageView::open_sub(n, sub) || (sub.is_leaf2() && !tree.dupfixed) || !count_items(sub, records)) {
      tell_problem(problem, p, "entry %u: its sub-page of duplicates is damaged", i);
      return false;
    }
    blocks.sub_page(i, records);
  }
  return true;
}

bool scan_dup_leaf(const TreeFacts& tree, const format::DbRecord& record, std::uint64_t p,
                   const std::byte* page, std::uint32_t& records, IndexProblem& problem) {
  PageView view;
  if (!open(tree, p, page, false, view, problem)) return false;
  if (view.is_leaf2() && (!tree.dupfixed || view.item_size() != record.pad)) {
    tell_problem(problem, p, "items of %u bytes in a tree of duplicates with %" PRIu32 " bytes",
                 view.item_size(), record.pad);
    return false;
  }
  return count_items(view, records) || not_whole(tree, p, page, "an item reaches beyond the page", problem);
}

}  // namespace lmdbio::records
