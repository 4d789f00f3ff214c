#include "lmdbio/tree/diff_pages.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "lmdbio/format/explain.h"

namespace lmdbio::tree {

using format::DbRecord;
using format::PageView;
using format::Pgno;

namespace {

/// Number of leaf pages that are requested at a time.
constexpr std::size_t kWave = 2048;

void ask_pages(DiffPages& side, ReadGroup& group, const std::uint64_t* first, std::size_t n) {
  if (!side.batches().on() || n == 0) return;
  std::vector<gather::PageRun> runs;
  runs.reserve(n);
  for (std::size_t i = 0; i < n; ++i) runs.push_back({first[i], 1});
  side.batches().ask(group, runs);
}

/// Drops a group that an exception or an error has left behind.
struct Dropper {
  DiffPages& side;
  ReadGroup group{};
  ~Dropper() { side.batches().drop(group); }
};

/// Removes the pages that both lists have.
void remove_common(Shared shared, DiffPages& older, DiffPages& newer, std::vector<std::uint64_t>& a,
                   std::vector<std::uint64_t>& b) {
  std::vector<std::uint64_t> x = a, y = b, common;
  std::sort(x.begin(), x.end());
  std::sort(y.begin(), y.end());
  std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(common));
  if (shared == Shared::transaction) {
    Dropper reads[2] = {{older}, {newer}};
    for (Dropper& r : reads) ask_pages(r.side, r.group, common.data(), common.size());
    for (Dropper& r : reads) (void)r.side.batches().wait(r.group);
    std::erase_if(common, [&](std::uint64_t p) { return !is_shared(shared, older, newer, p); });
  }
  const auto is_common = [&](std::uint64_t p) { return std::binary_search(common.begin(), common.end(), p); };
  std::erase_if(a, is_common);
  std::erase_if(b, is_common);
}

/// Returns the key of an entry of a branch page.
Bytes key_of(const PageView& page, const format::Node& n) noexcept {
  // Load the size once, since a writer may change the page.
  const auto room = static_cast<std::size_t>(page.bytes() + page.size() - n.key());
  return {n.key(), std::min<std::size_t>(n.key_size(), room)};
}

}  // namespace

bool is_shared(Shared shared, const DiffPages& older, const DiffPages& newer, std::uint64_t page) noexcept {
  if (shared != Shared::transaction) return shared == Shared::number;
  const std::uint64_t writer = older.writer_of(page);
  return writer != 0 && writer == newer.writer_of(page);
}

bool same_node(Shared shared, const DiffPages& older_pages, const DiffPages& newer_pages,
               const DiffItem& older, const DiffItem& newer) noexcept {
  const bool elsewhere = (older.flags & (format::kBigData | format::kSubData)) != 0;  // refers to pages
  if (older.flags != newer.flags || older.data_bytes != newer.data_bytes ||
      (elsewhere && shared == Shared::nothing))
    return false;
  const bool big = (older.flags & format::kBigData) != 0;
  const std::size_t bytes = big ? format::run_record(newer_pages.view().version()) : older.data_bytes;
  if (std::memcmp(older.data, newer.data, bytes) != 0) return false;
  // The record of a run has its transaction.
  if (!elsewhere || shared == Shared::number || big) return true;
  if (older.data_bytes != sizeof(DbRecord)) return false;
  const auto root = load<DbRecord>(older.data).root;
  return root == format::kNoPage || is_shared(shared, older_pages, newer_pages, format::raw(root));
}

int compare_keys(const format::Comparator& order, Bytes a, Bytes b) noexcept {
  format::Comparator used = order;
  if (order.order != format::Order::memn && order.order != format::Order::memnr) {
    if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
    // Stock LMDB compares unsigned int items that have the size of size_t as size_t.
    if (order.order == format::Order::uint && a.size() == sizeof(std::size_t))
      used.order = format::Order::word;
  }
  return format::compare(used, {a.size(), const_cast<std::byte*>(a.data())},
                         {b.size(), const_cast<std::byte*>(b.data())}, b.data() + b.size());
}

DbRecord empty_tree(const DbRecord& like) noexcept {
  DbRecord r = like;
  r.depth = 0;
  r.branch_pages = r.leaf_pages = r.overflow_pages = r.entries = 0;
  r.root = format::kNoPage;
  return r;
}

Status DiffPages::corrupted(std::uint64_t page, const char* format, ...) noexcept {
  problem_.newer = newer_;
  problem_.page = page;
  va_list args;
  va_start(args, format);
  (void)std::vsnprintf(problem_.reason, sizeof problem_.reason, format, args);
  va_end(args);
  return Status::from_mdb(MDB_CORRUPTED);
}

Status DiffPages::wrong_order(std::uint64_t page, const char* what) noexcept {
  (void)corrupted(page, "%s are not in the default order; the database needs its program's own comparison",
                  what);
  return Status::from_mdb(MDB_INCOMPATIBLE);
}

Status DiffPages::open(std::uint64_t page, bool branch, PageView& out) noexcept {
  if (cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed))
    return Status::from_errno(ECANCELED);
  ++counters_.pages;
  // No page belongs to two trees of a snapshot.
  if (++opened_ > pages_) return corrupted(page, "the trees have more pages than the snapshot");
  const std::byte* const at = page < pages_ ? view_.at(Pgno{page}) : nullptr;
  if (at == nullptr) return corrupted(page, "not in the snapshot, which has %llu pages", 0ULL + pages_);
  if (!PageView::open(view_.version(), at, view_.page_size(), Pgno{page}, out)) {
    (void)corrupted(page, "invalid page header");
    (void)format::explain_page(view_.version(), {at, view_.page_size()}, Pgno{page}, problem_.reason);
    return Status::from_mdb(MDB_CORRUPTED);
  }
  if (out.is_branch() != branch)
    return corrupted(page, "a %s page at a depth where the tree has %s pages", branch ? "leaf" : "branch",
                     branch ? "branch" : "leaf");
  if (out.count() == 0) return corrupted(page, "no entries");
  return {};
}

std::uint64_t DiffPages::writer_of(std::uint64_t page) const noexcept {
  const std::byte* const at = page < pages_ ? view_.at(Pgno{page}) : nullptr;
  if (at == nullptr || load<std::uint64_t>(at) != page) return 0;
  const auto writer = load<std::uint64_t>(at + format::kAtTxnid);
  return writer <= txnid_ ? writer : 0;
}

Status DiffPages::check_order(std::uint64_t page, const PageView& branch,
                              const format::Comparator& order) noexcept {
  Bytes last;
  for (unsigned i = 1; i < branch.count(); ++i) {  // the first entry has no key
    format::Node n;
    if (!branch.node(i, n)) return corrupted(page, "the node of slot %u is outside the page", i);
    const Bytes key = key_of(branch, n);
    if (i > 1 && compare_keys(order, last, key) >= 0) return wrong_order(page, "its keys");
    last = key;
  }
  return {};
}

Status DiffPages::children(std::uint64_t page, const PageView& branch, unsigned from,
                           std::vector<std::uint64_t>& out) {
  for (unsigned i = from; i < branch.count(); ++i) {
    format::Node n;
    if (!branch.node(i, n)) return corrupted(page, "the node of slot %u is outside the page", i);
    out.push_back(format::raw(n.child()));
  }
  if (out.size() > pages_) return corrupted(page, "the tree has more pages than the file");
  return {};
}

Status find_leaves(const DiffTree& older, const DiffTree& newer, Shared shared,
                   std::vector<std::uint64_t>& older_leaves, std::vector<std::uint64_t>& newer_leaves) {
  const DiffTree* const trees[2] = {&older, &newer};
  std::vector<std::uint64_t> levels[2];
  unsigned heights[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    const DbRecord& r = trees[i]->record;
    if (r.root == format::kNoPage) continue;
    if (r.depth == 0 || r.depth > format::kMaxDepth)
      return trees[i]->side->corrupted(format::raw(r.root), "the record gives the tree a depth of %u",
                                       unsigned{r.depth});
    heights[i] = r.depth;
  }
  // A page that both trees have has the same height in both.  Its parent is the same in both trees, or each
  // parent is in one tree only.  So it is enough to compare the pages of one height, after all pages above
  // that both trees have were removed.
  for (unsigned height = std::max(heights[0], heights[1]); height > 0; --height) {
    for (int i = 0; i < 2; ++i)
      if (heights[i] == height) levels[i] = {format::raw(trees[i]->record.root)};
    if (shared != Shared::nothing) remove_common(shared, *older.side, *newer.side, levels[0], levels[1]);
    if (height == 1) break;
    Dropper reads[2] = {{*older.side}, {*newer.side}};
    for (int i = 0; i < 2; ++i) ask_pages(reads[i].side, reads[i].group, levels[i].data(), levels[i].size());
    for (int i = 0; i < 2; ++i) {
      (void)reads[i].side.batches().wait(reads[i].group);
      std::vector<std::uint64_t> below;
      for (const std::uint64_t p : levels[i]) {
        PageView page;
        if (const Status st = reads[i].side.open(p, true, page); !st.ok()) return st;
        if (const Status st = reads[i].side.children(p, page, 0, below); !st.ok()) return st;
      }
      levels[i] = std::move(below);
    }
  }
  older_leaves = std::move(levels[0]);
  newer_leaves = std::move(levels[1]);
  return {};
}

Status leaves_behind(DiffPages& side, const DbRecord& record, const format::Comparator& order, Bytes key,
                     std::vector<std::uint64_t>& leaves, bool only_one) {
  leaves.clear();
  if (record.root == format::kNoPage) return {};
  if (record.depth == 0 || record.depth > format::kMaxDepth)
    return side.corrupted(format::raw(record.root), "the record gives the tree a depth of %u",
                          unsigned{record.depth});
  leaves.push_back(format::raw(record.root));
  for (unsigned height = record.depth; height > 1; --height) {
    Dropper reads{side};
    ask_pages(side, reads.group, leaves.data(), leaves.size());
    (void)side.batches().wait(reads.group);
    std::vector<std::uint64_t> below;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      PageView page;
      if (const Status st = side.open(leaves[i], true, page); !st.ok()) return st;
      if (i == 0)
        if (const Status st = side.check_order(leaves[i], page, order); !st.ok()) return st;
      // The keys of the child before the first entry above `key` are the first that may be from `key` on.
      unsigned from = 0;
      for (unsigned low = 1, high = page.count(); i == 0 && low < high;) {
        const unsigned middle = low + (high - low) / 2;
        format::Node n;
        if (!page.node(middle, n))
          return side.corrupted(leaves[i], "the node of slot %u is outside the page", middle);
        const bool above = compare_keys(order, key_of(page, n), key) > 0;
        above ? high = middle : low = middle + 1;
        if (!above) from = middle;
      }
      if (const Status st = side.children(leaves[i], page, from, below); !st.ok()) return st;
    }
    leaves = std::move(below);
    if (only_one) leaves.resize(1);
  }
  return {};
}

DiffItems::~DiffItems() {
  for (ReadGroup& g : groups_) side_.batches().drop(g);
}

void DiffItems::take_leaves(std::vector<std::uint64_t> leaves, std::size_t item_bytes) {
  leaves_ = std::move(leaves);
  item_bytes_ = item_bytes;
  ask(0);
}

Status DiffItems::take_sub_page(const DiffItem& node) {
  page_number_ = node.page;
  if (!PageView::open_sub(side_.view().version(), node.data, node.data_bytes, page_))
    return side_.corrupted(node.page, "it has an invalid sub-page");
  item_bytes_ = page_.item_size();
  return {};
}

void DiffItems::take_value(const DiffItem& value) noexcept {
  single_ = value;
  has_single_ = true;
}

void DiffItems::ask(std::size_t wave) {
  const std::size_t begin = wave * kWave;
  if (begin >= leaves_.size()) return;
  ask_pages(side_, groups_[wave % 2], leaves_.data() + begin, std::min(kWave, leaves_.size() - begin));
}

void DiffItems::reach(std::size_t leaf) {
  if (leaf % kWave != 0) return;
  (void)side_.batches().wait(groups_[leaf / kWave % 2]);
  ask(leaf / kWave + 1);
}

Status DiffItems::give(DiffItem& out) {
  out.page = page_number_;
  const unsigned i = out.index = index_++;
  if (page_.is_leaf2()) {
    out.key = item_bytes_ != 0 ? page_.item(i, item_bytes_) : nullptr;
    out.key_bytes = item_bytes_;
    out.flags = 0;
    out.data = out.key;
    out.data_bytes = 0;
    return out.key != nullptr
               ? Status()
               : side_.corrupted(page_number_, "item %u of %zu bytes is outside the page", i, item_bytes_);
  }
  format::Node n;
  if (!page_.leaf_node(i, n, out.flags, out.key_bytes, out.data_bytes))
    return side_.corrupted(page_number_, "the node of slot %u is outside the page", i);
  out.key = n.key();
  out.data = n.data();
  return {};
}

Status DiffItems::next(DiffItem& out, bool& ended) {
  if (has_single_) {
    out = single_;
    has_single_ = false;
    return {};
  }
  while (index_ >= page_.count()) {
    if (next_leaf_ == leaves_.size()) {
      ended = true;
      return {};
    }
    reach(next_leaf_);
    page_number_ = leaves_[next_leaf_++];
    index_ = 0;
    if (const Status st = side_.open(page_number_, false, page_); !st.ok()) {
      page_ = PageView::none();
      return st;
    }
  }
  if (const Status st = give(out); !st.ok()) return st;
  if (ordered_ && has_last_ && compare_keys(order_, last_.key_span(), out.key_span()) >= 0)
    return side_.wrong_order(page_number_, "its keys");
  last_ = out;
  has_last_ = true;
  return {};
}

}  // namespace lmdbio::tree
