#include "lmdbio/tree/walker.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::tree {

using format::Node;
using format::PageView;

namespace {

Status not_found() noexcept { return Status::from_mdb(MDB_NOTFOUND); }

}  // namespace

void Walker::attach(Txn& txn, MDB_dbi dbi, Walker* dups) {
  const Dbx& slot = txn.env().dbx(dbi);
  txn_ = &txn;
  dbi_ = dbi;
  dups_ = dups;
  is_dups_ = false;
  flags_ = dups == nullptr ? unsigned{kPlain} : 0u;
  if (txn.env().pages().version == format::Version::v10) flags_ |= kVersion10;
  above_ = 0;
  ahead_.off();
  order_ = &slot.key_order;
  dup_order_ = &slot.dup_order;
  db_ = &txn.record_now(dbi);
  if (dups != nullptr) dups->attach_dups(txn, slot.dup_order);
}

// Calls the read-ahead before the walker enters `need`, which is outside the run granted last.  `leaf` is the
// current leaf; it is none if `need` is the next leaf.
Status Walker::pace(ahead::Readahead::Step kind, bool forward, const ahead::PageRun& need,
                    const PageView& leaf) noexcept {
  if (need.first >= txn_->view().pages()) return {};  // damaged: reading the page reports it
  if (*readahead_ == nullptr) {
    const AsyncSignalsBlocked fork_safe(has_own_threads());
    readahead_->reset(new (std::nothrow) ahead::Readahead(txn_->env().file()));
  }
  if (*readahead_ == nullptr || !(*readahead_)->is_on()) {
    run_ = ahead::FreeRun::everything();
    each_leaf_ = false;
    return {};
  }
  ahead::WalkPlace place;
  place.branches = {branch_, above_};
  place.taken = {index_, above_};
  place.leaf = leaf;
  place.index = leaf.bytes() != nullptr ? leaf_.index : 0;
  place.forward = forward;
  place.values = db_->overflow_pages != 0;
  place.value_pages = db_->entries != 0 ? db_->overflow_pages / db_->entries : 0;
  place.given_bytes = txn_->counters().bytes;
  return (*readahead_)->step(kind, place, need, txn_->view(), run_, each_leaf_);
}

// Called after a lookup.  Lets the walker read pages around the position without a call of the read-ahead,
// because the program may not walk on from there.
template <format::Version kVersion>
[[gnu::always_inline]] inline void Walker::jumped_to_value_in() noexcept {
  const window::WindowView& view = txn_->view();
  ahead::PageRun need{static_cast<std::uint64_t>(leaf_.page.bytes() - view.base()) >> view.shift(), 1};
  const std::byte* at;
  if (leaf_.index < leaf_.page.count() && leaf_.page.node_at<kVersion>(leaf_.index, at) &&
      (Node{at}.flags() & format::kBigData) != 0) {
    const Node n{at, kVersion};
    need = {format::raw(n.overflow()), format::overflow_pages(kVersion, n.data_size(), view.shift())};
  }
  if (!run_.covers(need.first, need.pages - 1)) run_ = ahead::Readahead::after_jump(need);
}
[[gnu::noinline]] void Walker::jumped_to_value_10() noexcept { jumped_to_value_in<format::Version::v10>(); }

void Walker::jumped_to_value() noexcept {
  if (readahead_ == nullptr || leaf_.page.is_leaf2()) return;
  if (leaf_.page.version() != format::Version::v09) [[unlikely]]
    return jumped_to_value_10();
  jumped_to_value_in<format::Version::v09>();
}

// Counts a leaf of a walk.  Returns false if the walk has entered more leaves than the file has pages.  In a
// damaged file, shared pages can form an endless tree.  In an intact tree, a walk in one direction enters no
// leaf twice.  Leaves of the duplicates' trees count as well.
bool Walker::walk_on(bool right) noexcept {
  leaves_walked_ =
      right ? std::max(leaves_walked_, std::int64_t{0}) + 1 : std::min(leaves_walked_, std::int64_t{0}) - 1;
  return static_cast<std::uint64_t>(std::abs(leaves_walked_)) <= txn_->view().pages();
}

void Walker::walk_anew() noexcept {
  leaves_walked_ = 0;
  if (dups_ != nullptr) dups_->leaves_walked_ = 0;
}

Status Walker::bad_leaf() noexcept {
  return txn_->corrupted("invalid entry on a leaf page", leaf_.page.bytes());
}
Status Walker::bad_branch(const PageView& page) noexcept {
  return txn_->corrupted("invalid entry on a branch page, or the tree is too deep", page.bytes());
}

// Loads a page.  Only trees of duplicates may have kLeaf2 pages.  These pages have no slots, which other
// trees require.
Status Walker::load_page(format::Pgno p, PageView& page) {
  if (const Status st = txn_->page(p, page); !st.ok()) return st;
  if (!page.is_leaf2() || (is_dups_ && db_->pad != 0)) return {};
  if (is_dups_) return txn_->corrupted("fixed-size duplicates of size 0", page.bytes());
  return txn_->corrupted("fixed-size duplicates outside a tree of duplicates", page.bytes());
}

// Called if a page on the path from the root could not be read.  The branch pages then belong to no leaf.
// After damage the position does not matter, because the transaction is over.
Status Walker::lost(Status st) noexcept {
  if (st.raw() > 0) unset();
  return st;
}

// Loads the root page, as the start of mdb_page_search does.
Status Walker::root(PageView& page) {
  if (txn_->blocked()) return Status::from_mdb(MDB_BAD_TXN);
  if (is_dups_) {
    if (inline_root_.bytes() != nullptr) {
      page = inline_root_;
      above_ = 0;
      return {};
    }
  } else if (txn_->stale(dbi_)) {
    if (const auto record = txn_->record(dbi_); !record) return record.error();
  }
  if (db_->root == format::kNoPage) return not_found();
  above_ = 0;
  if (!is_dups_) walk_anew();
  return lost(load_page(db_->root, page));
}

Status Walker::to_edge(PageView page, bool last) {
  while (page.is_branch()) {
    const unsigned i = last ? page.count() - 1 : 0;
    Node node;
    if (page.count() == 0 || !page.node(i, node) || !push(page, i)) return bad_branch(page);
    if (above_ + 1u == db_->depth && asks_for_leaf(node.child())) {
      if (const Status st =
              pace(ahead::Readahead::Step::edge, !last, {format::raw(node.child()), 1}, PageView::none());
          !st.ok()) {
        unset();
        return st;
      }
    }
    if (const Status st = load_page(node.child(), page); !st.ok()) return lost(st);
  }
  leaf_ = {page, 0};
  flags_ = (flags_ | kPositioned) & ~unsigned{kEof | kOwed};
  if (last)
    ahead_.off();
  else
    jumped_to_leaf();
  return {};
}

// Moves to the leaf where `key` is or belongs. search_leaf sets the index in it.
Status Walker::to_key(const MDB_val& key) {
  PageView page;
  if (const Status st = root(page); !st.ok()) return st;
  while (page.is_branch()) {
    format::Place place;
    if (page.count() == 0 || !format::search_page(page, *order_, key, 0, place)) return bad_branch(page);
    const unsigned i = place.exact ? place.index : place.index - 1;
    Node node;
    if (i >= page.count() || !page.node(i, node) || !push(page, i)) return bad_branch(page);
    if (const Status st = load_page(node.child(), page); !st.ok()) return lost(st);
  }
  leaf_ = {page, 0};
  flags_ = (flags_ | kPositioned) & ~unsigned{kEof | kOwed};
  jumped_to_leaf();
  return {};
}

// Returns whether the leaf after entry `taken` may be entered without a call of the read-ahead.
bool Walker::next_is_free(const PageView& parent, unsigned taken) const noexcept {
  const std::byte* next;
  return taken + 1 < parent.count() && parent.node_at(taken + 1, next) &&
         run_.covers(format::raw(Node{next}.child()), 0);
}

// Moves to the next or previous leaf.  Changes nothing if there is none.
Status Walker::sibling(bool right) {
  unsigned level = above_;
  do {
    if (level == 0) return not_found();
    --level;
  } while (right ? index_[level] + 1u >= branch_[level].count() : index_[level] == 0);
  const std::int64_t walked = leaves_walked_;
  if (!walk_on(right)) {
    clear(kPositioned | kEof);
    return txn_->corrupted("the tree has more leaf pages than the file has pages", branch_[level].bytes());
  }
  // Save the path in case the next leaf cannot be read now.  Usually that leaf has the same parent.
  const std::uint16_t taken_before = index_[level];
  Level below[format::kMaxDepth - 1];
  if (level + 1 < above_) {
    for (unsigned i = level + 1; i < above_; ++i) below[i] = {branch_[i], index_[i]};
  }
  index_[level] = static_cast<std::uint16_t>(index_[level] + (right ? 1 : -1));

  const unsigned depth = above_;
  for (above_ = level + 1;; ++above_) {
    const PageView& parent = branch_[above_ - 1];
    const unsigned taken = index_[above_ - 1];
    const std::byte* at;
    PageView page;
    Status st;
    bool paced = false;
    if (!parent.node_at(taken, at)) {
      st = bad_branch(parent);
    } else {
      const Node node{at};
      if (above_ == depth && asks_for_leaf(node.child())) {
        st = pace(ahead::Readahead::Step::leaf, right, {format::raw(node.child()), 1}, PageView::none());
        paced = !st.ok();
      }
      if (st.ok()) st = load_page(node.child(), page);
    }
    if (paced || st.raw() > 0) {
      for (unsigned i = level + 1; i < above_; ++i) {
        branch_[i] = below[i].page;
        index_[i] = below[i].index;
      }
      above_ = depth;
      index_[level] = taken_before;
      leaves_walked_ = walked;
      return st;
    }
    if (st.ok() && page.is_branch() != (above_ < depth))
      st = txn_->corrupted("leaves at different depths", page.bytes());
    if (st.ok() && page.count() == 0) st = txn_->corrupted("a page without entries", page.bytes());
    if (!st.ok()) {
      clear(kPositioned | kEof);
      return st;
    }
    const auto index = static_cast<std::uint16_t>(right ? 0 : page.count() - 1);
    if (above_ == depth) {
      leaf_ = {page, index};
      if (!right)
        ahead_.off();
      else if (db_->overflow_pages == 0 && !txn_->view().loads() &&
               (readahead_ == nullptr || next_is_free(parent, taken)))
        ahead_.walked(txn_->view(), parent, taken, page);
      else  // Do not load any of the next leaf: it may not be in memory.  With values in overflow pages it
            // lies far away, and a touch would end the kernel's read-ahead of the values (31 major page
            // faults in 0.5 GB instead of 4).
        ahead_.jumped(txn_->view(), parent, taken, page, index);
      return {};
    }
    branch_[above_] = page;
    index_[above_] = index;
  }
}

void Walker::jumped_to_leaf() noexcept {
  if (above_ == 0)
    ahead_.off();
  else
    ahead_.jumped(txn_->view(), branch_[above_ - 1], index_[above_ - 1], leaf_.page, leaf_.index);
}

int Walker::compare_entry(const MDB_val& key, const MDB_val& entry) {
  if (order_->order == format::Order::memn)
    return format::compare_memn(static_cast<const std::byte*>(key.mv_data), key.mv_size,
                                static_cast<const std::byte*>(entry.mv_data), entry.mv_size);
  return format::compare(*order_, key, entry, leaf_.page.bytes() + leaf_.page.size());
}

// The versions for LMDB 1.0 are called in place of the others, at the end of a function, so that these need
// no stack frame for them.
template <format::Version kVersion>
[[gnu::always_inline]] inline Status Walker::key_at(unsigned i, MDB_val& key) {
  const std::byte* at;
  if (i >= leaf_.page.count() || !leaf_.page.node_at<kVersion>(i, at)) return bad_leaf();
  const Node n{at};
  key = {n.key_size(), const_cast<std::byte*>(n.key())};
  return {};
}
[[gnu::noinline]] Status Walker::key_of_10(unsigned i, MDB_val& key) {
  return key_at<format::Version::v10>(i, key);
}

Status Walker::entry_key(unsigned i, MDB_val& key) {
  if (leaf_.page.is_leaf2()) return give_item(i, &key);
  if (leaf_.page.version() != format::Version::v09) [[unlikely]]
    return key_of_10(i, key);
  return key_at<format::Version::v09>(i, key);
}

Status Walker::search_leaf(const MDB_val& key, format::Place& place, std::size_t common) {
  // Duplicates are searched in stock's sequence, which matters if they were written in another order.
  const bool ok = order_->order == format::Order::memn && !is_dups_
                      ? format::search_memn<true>(leaf_.page, static_cast<const std::byte*>(key.mv_data),
                                                  key.mv_size, common, place)
                      : format::search_page(leaf_.page, *order_, key, db_->pad, place);
  if (!ok) return bad_leaf();
  leaf_.index = static_cast<std::uint16_t>(place.index);
  return {};
}

// Moves to the leaf where `key` is or belongs, and sets `place` in it.
Status Walker::to_place(const MDB_val& key, format::Place& place) {
  if (order_->order != format::Order::memn || is_dups_) {
    if (const Status st = to_key(key); !st.ok()) return st;
    return search_leaf(key, place);
  }
  PageView page;  // for the checks of root(); the page itself is loaded again, from the processor's cache
  if (const Status st = root(page); !st.ok()) return st;
  if (const Status st = detail::descend_memn(*txn_, *db_, static_cast<const std::byte*>(key.mv_data),
                                             key.mv_size, *this, page, place);
      !st.ok())
    return lost(st);
  leaf_ = {page, static_cast<std::uint16_t>(place.index)};
  flags_ = (flags_ | kPositioned) & ~unsigned{kEof | kOwed};
  jumped_to_leaf();
  return {};
}

Status Walker::find_node(const MDB_val& key, Node& out) {
  format::Place place;
  if (const Status st = to_place(key, place); !st.ok()) return st;
  if (!place.exact) return not_found();
  if (leaf_.page.is_leaf2() || !node(place.index, out)) return bad_leaf();
  return {};
}

bool Walker::last_leaf() const noexcept {
  for (unsigned i = 0; i < above_; ++i) {
    if (index_[i] + 1u < branch_[i].count()) return false;
  }
  return true;
}

}  // namespace lmdbio::tree
