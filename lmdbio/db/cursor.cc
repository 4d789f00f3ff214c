#include "lmdbio/db/cursor.h"

#include <algorithm>
#include <cstdlib>

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::db {

using format::DbRecord;
using format::Node;
using format::PageView;

namespace {

Status not_found() noexcept { return Status::from_mdb(MDB_NOTFOUND); }
Status invalid() noexcept { return Status::from_errno(EINVAL); }

std::size_t common_prefix(const MDB_val& a, const MDB_val& b) noexcept {
  return db::common_prefix(static_cast<const std::byte*>(a.mv_data), a.mv_size,
                           static_cast<const std::byte*>(b.mv_data), b.mv_size);
}

}  // namespace

Cursor::Cursor(Txn& txn, MDB_dbi dbi) : dbi_(dbi) {
  (void)txn.record(dbi_);  // as mdb_cursor_init: a failure shows when the cursor is used
  if (wants_dups(txn, dbi)) dups_ = std::make_unique<Walker>();
  attach(txn);
}

Cursor::Cursor(Txn& txn, MDB_dbi dbi, std::unique_ptr<Walker> dups) noexcept
    : dbi_(dbi), dups_(std::move(dups)) {
  attach(txn);
}

void Cursor::attach(Txn& txn) noexcept {
  // A renewed cursor keeps its last duplicates, as stock's does: moves before the next lookup show them.  Not
  // where they lay in a window that may have gone.
  if (dups_ != nullptr && dups_window_ != txn.stamp().window()) dups_->forget_tree();
  if (dups_window_ != txn.stamp().window()) readahead_.reset();  // it may be another environment's
  dups_window_ = txn.stamp().window();
  main_.attach(txn, dbi_, wants_dups(txn, dbi_) ? dups_.get() : nullptr);
  main_.read_ahead_by(txn.env().reads_ahead() ? &readahead_ : nullptr);
  txn_ = &txn;
  stamp_ = txn.stamp();
  stamp_.bits &= ~Txn::Stamp::kBlocked;
}

bool Cursor::renew(Txn& txn) {
  (void)txn.record(dbi_);
  if (dups_ == nullptr && wants_dups(txn, dbi_)) {
    const AsyncSignalsBlocked fork_safe(has_own_threads());
    dups_.reset(new (std::nothrow) Walker);
    if (dups_ == nullptr) return false;
  }
  attach(txn);
  return true;
}

// The transaction is blocked, of another use, or it was renewed and the map has moved: then the place, which
// pointed into a window that may have gone, is forgotten.
bool Cursor::still_attached() noexcept {
  if (txn_->stamp().use() != stamp_.use() || txn_->blocked()) return false;
  if (stamp_.window() != txn_->stamp().window()) {
    stamp_ = txn_->stamp();
    dups_window_ = stamp_.window();
    main_.unset();
    if (readahead_ != nullptr) readahead_->forget();
    main_.read_ahead_by(txn_->env().reads_ahead() ? &readahead_ : nullptr);
    if (dups_ != nullptr) {
      dups_->unset();
      dups_->forget_tree();
    }
  }
  return true;
}

Status Cursor::get_slow(MDB_val* key, MDB_val* data, MDB_cursor_op op) {
  Counters& n = txn_->counters();
  const auto kind = static_cast<unsigned>(op);
  ++n.cursor_op[kind < Counters::kCursorOps ? kind : Counters::kCursorOps];
  const Status st = dispatch(key, data, op);
  if (!st.ok())
    ++n.cursor_failed;
  else if (data != nullptr && op != MDB_GET_MULTIPLE && op != MDB_NEXT_MULTIPLE && op != MDB_PREV_MULTIPLE)
    n.bytes += data->mv_size;  // of whole pages: give_page
  return st;
}

// Stock's order of checks.
Status Cursor::dispatch(MDB_val* key, MDB_val* data, MDB_cursor_op op) {
  switch (op) {
    case MDB_FIRST:
      return main_.first(key, data);
    case MDB_LAST:
      return main_.last(key, data);
    case MDB_NEXT:
    case MDB_NEXT_DUP:
    case MDB_NEXT_NODUP:
      return main_.next(key, data, op);
    case MDB_PREV:
    case MDB_PREV_DUP:
    case MDB_PREV_NODUP:
      return main_.prev(key, data, op);
    case MDB_GET_CURRENT:
      return main_.current(key, data);
    case MDB_GET_BOTH:
    case MDB_GET_BOTH_RANGE:
      if (data == nullptr) return invalid();
      if (!has_dups()) return Status::from_mdb(MDB_INCOMPATIBLE);
      [[fallthrough]];
    case MDB_SET:
    case MDB_SET_KEY:
    case MDB_SET_RANGE:
      if (key == nullptr) return invalid();
      return main_.set(key, data, op, op != MDB_SET_RANGE);
    case MDB_FIRST_DUP:
      return main_.edge_dup(false, key, data);
    case MDB_LAST_DUP:
      return main_.edge_dup(true, key, data);
    case MDB_GET_MULTIPLE:
      return main_.get_multiple(data);
    case MDB_NEXT_MULTIPLE:
      return main_.next_multiple(key, data);
    case MDB_PREV_MULTIPLE:
      return main_.prev_multiple(key, data);
  }
  return invalid();
}

Status Cursor::count(std::size_t& n) {
  if (!has_dups()) return Status::from_mdb(MDB_INCOMPATIBLE);
  if (!still_attached()) return Status::from_mdb(MDB_BAD_TXN);
  return main_.count(n);
}

// --- Walker: one tree -------------------------------------------------------------------------------------

void Walker::attach(Txn& txn, MDB_dbi dbi, Walker* dups) {
  const Dbx& slot = txn.env().dbx(dbi);
  txn_ = &txn;
  dbi_ = dbi;
  dups_ = dups;
  is_dups_ = false;
  flags_ = dups == nullptr ? unsigned{kPlain} : 0u;
  above_ = 0;
  ahead_.off();
  order_ = &slot.key_order;
  dup_order_ = &slot.dup_order;
  db_ = &txn.record_now(dbi);
  if (dups != nullptr) dups->attach_dups(txn, slot.dup_order);
}

void Walker::attach_dups(Txn& txn, const Comparator& order) noexcept {
  txn_ = &txn;
  is_dups_ = true;
  flags_ = 0;
  above_ = 0;
  leaves_walked_ = 0;
  own_order_ = order;
  order_ = &own_order_;
  db_ = &own_db_;
}

void Walker::forget_tree() noexcept {
  own_db_ = {};
  own_db_.root = format::kNoPage;
  inline_root_ = PageView::none();
}

// The duplicates of `node` become a tree of their own.
Status Walker::enter_dups(const Node& node) {
  // Of a big value only its page number lies in the node.
  if (dups_ == nullptr || (node.flags() & format::kBigData) != 0)
    return txn_->corrupted("duplicates where there can be none", node.at);
  Walker& d = *dups_;
  d.above_ = 0;
  if ((node.flags() & format::kSubData) != 0) {
    if (node.data_size() < sizeof(DbRecord)) return txn_->corrupted("record of a sub-database", node.at);
    d.own_db_ = load<DbRecord>(node.data());
    d.inline_root_ = PageView::none();
    d.flags_ = 0;
  } else {
    PageView sub;  // what is no sub-page must not stay: a renewed cursor looks at its last one again
    if (!PageView::open_sub(node.data(), node.data_size(), sub)) return txn_->corrupted("sub-page", node.at);
    d.inline_root_ = sub;
    d.own_db_ = {};
    d.own_db_.depth = 1;
    d.own_db_.leaf_pages = 1;
    d.own_db_.entries = d.inline_root_.count();
    d.own_db_.root = load<format::Pgno>(node.data());
    if ((db_->flags & MDB_DUPFIXED) != 0) {
      d.own_db_.flags = MDB_DUPFIXED;
      d.own_db_.pad = d.inline_root_.item_size();
    }
    if (sub.is_leaf2() && d.own_db_.pad == 0) {
      d.forget_tree();
      return txn_->corrupted("fixed-size duplicates of no size", node.at);
    }
    d.leaf_ = {d.inline_root_, 0};
    d.flags_ = kPositioned;
  }
  // Unsigned int items of size_t's size are compared as those, from here on.
  if (d.own_order_.order == Order::uint && d.own_db_.pad == sizeof(std::size_t))
    d.own_order_.order = Order::word;
  return {};
}

// Before what is not in the run that was granted last: `leaf` is the one that the walker is in, or none if
// `need` is the next one.
Status Walker::pace(Readahead::Step kind, bool forward, const PageRun& need, const PageView& leaf) noexcept {
  if (need.first >= txn_->view().pages()) return {};  // damaged: whoever reads it will tell
  if (*readahead_ == nullptr) {
    const AsyncSignalsBlocked fork_safe(has_own_threads());
    readahead_->reset(new (std::nothrow) Readahead(txn_->env()));
  }
  if (*readahead_ == nullptr || !(*readahead_)->is_on()) {
    run_ = FreeRun::everything();
    each_leaf_ = false;
    return {};
  }
  WalkPlace place;
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

// The value of an entry that a walk came to.
Status Walker::give_value(const Node& n, bool forward, MDB_val* data) noexcept {
  if (readahead_ != nullptr && (n.flags() & format::kBigData) != 0) {
    const std::uint64_t first = format::raw(n.overflow());
    const std::uint64_t pages = format::overflow_pages(n.data_size(), txn_->view().shift());
    if (!run_.covers(first, pages - 1) && first < txn_->view().pages() &&
        pages <= txn_->view().pages() - first) {
      if (const Status st = pace(Readahead::Step::value, forward, {first, pages}, leaf_.page); !st.ok())
        return st;
    }
  }
  return txn_->value(n, *data);
}

// A lookup has set the walker somewhere: what is around may be read without asking, it need not be a walk.
void Walker::jumped_to_value() noexcept {
  if (readahead_ == nullptr || leaf_.page.is_leaf2()) return;
  PageRun need{static_cast<std::uint64_t>(leaf_.page.bytes() - txn_->view().base()) >> txn_->view().shift(),
               1};
  Node n;
  if (node(leaf_.index, n) && (n.flags() & format::kBigData) != 0)
    need = {format::raw(n.overflow()), format::overflow_pages(n.data_size(), txn_->view().shift())};
  if (!run_.covers(need.first, need.pages - 1)) run_ = Readahead::after_jump(need);
}

// Pages that are shared make a small file an endless tree.  A walk in one direction sees no leaf twice, and
// those of the duplicates' trees count as well.
bool Walker::walk_on(bool right) noexcept {
  leaves_walked_ =
      right ? std::max(leaves_walked_, std::int64_t{0}) + 1 : std::min(leaves_walked_, std::int64_t{0}) - 1;
  return static_cast<std::uint64_t>(std::abs(leaves_walked_)) <= txn_->view().pages();
}

void Walker::walk_anew() noexcept {
  leaves_walked_ = 0;
  if (dups_ != nullptr) dups_->leaves_walked_ = 0;
}

Status Walker::bad_leaf() noexcept { return txn_->corrupted("an entry of a leaf page", leaf_.page.bytes()); }
Status Walker::bad_branch(const PageView& page) noexcept {
  return txn_->corrupted("an entry of a branch page, or too many levels", page.bytes());
}

// Only duplicates have kLeaf2 pages.  Elsewhere their count has no slots behind it.
Status Walker::load_page(format::Pgno p, PageView& page) {
  if (const Status st = txn_->page(p, page); !st.ok()) return st;
  if (!page.is_leaf2() || (is_dups_ && db_->pad != 0)) return {};
  if (is_dups_) return txn_->corrupted("fixed-size duplicates of no size", page.bytes());
  return txn_->corrupted("fixed-size duplicates outside of a duplicates' tree", page.bytes());
}

// Start of mdb_page_search.
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
  return load_page(db_->root, page);
}

Status Walker::to_edge(PageView page, bool last) {
  while (page.is_branch()) {
    const unsigned i = last ? page.count() - 1 : 0;
    Node node;
    if (page.count() == 0 || !page.node(i, node) || !push(page, i)) return bad_branch(page);
    if (above_ + 1u == db_->depth && asks_for_leaf(node.child())) {
      if (const Status st =
              pace(Readahead::Step::edge, !last, {format::raw(node.child()), 1}, PageView::none());
          !st.ok()) {
        unset();
        return st;
      }
    }
    if (const Status st = load_page(node.child(), page); !st.ok()) return st;
  }
  leaf_ = {page, 0};
  flags_ = (flags_ | kPositioned) & ~unsigned{kEof | kOwed};
  if (last)
    ahead_.off();
  else
    jumped_to_leaf();
  return {};
}

// To the leaf where `key` is or belongs; its index is left to search_leaf.
Status Walker::to_key(const MDB_val& key) {
  PageView page;
  if (const Status st = root(page); !st.ok()) return st;
  while (page.is_branch()) {
    Place place;
    if (page.count() == 0 || !search_page(page, *order_, key, 0, place)) return bad_branch(page);
    const unsigned i = place.exact ? place.index : place.index - 1;
    Node node;
    if (i >= page.count() || !page.node(i, node) || !push(page, i)) return bad_branch(page);
    if (const Status st = load_page(node.child(), page); !st.ok()) return st;
  }
  leaf_ = {page, 0};
  flags_ = (flags_ | kPositioned) & ~unsigned{kEof | kOwed};
  jumped_to_leaf();
  return {};
}

// The leaf behind entry `taken` may be entered without asking the pacer.
bool Walker::next_is_free(const PageView& parent, unsigned taken) const noexcept {
  Node next;
  return taken + 1 < parent.count() && parent.node(taken + 1, next) &&
         run_.covers(format::raw(next.child()), 0);
}

// To the next or previous leaf; nothing changes where there is none.
Status Walker::sibling(bool right) {
  unsigned level = above_;
  do {
    if (level == 0) return not_found();
    --level;
  } while (right ? index_[level] + 1u >= branch_[level].count() : index_[level] == 0);
  const std::int64_t walked = leaves_walked_;
  if (!walk_on(right)) {
    clear(kPositioned | kEof);
    return txn_->corrupted("more leaf pages than the file has pages", branch_[level].bytes());
  }
  // To be as it was where the next leaf cannot be read now.  Mostly it has the same parent.
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
    Node node;
    PageView page;
    Status st;
    if (!parent.node(taken, node)) {
      st = bad_branch(parent);
    } else {
      if (above_ == depth && asks_for_leaf(node.child())) {
        st = pace(Readahead::Step::leaf, right, {format::raw(node.child()), 1}, PageView::none());
        if (!st.ok()) {
          for (unsigned i = level + 1; i < depth; ++i) {
            branch_[i] = below[i].page;
            index_[i] = below[i].index;
          }
          index_[level] = taken_before;
          leaves_walked_ = walked;
          return st;
        }
      }
      st = load_page(node.child(), page);
    }
    if (st.ok() && page.is_branch() != (above_ < depth))
      st = txn_->corrupted("leaves at different depths", page.bytes());
    if (st.ok() && page.count() == 0) st = txn_->corrupted("page without entries", page.bytes());
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
      else  // Loads nothing of the next leaf: it may not be in memory.  Among overflow pages it lies far
            // away, and touching it would end the kernel's read-ahead of the values (31 major faults in 0.5
            // GB, not 4).
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
  if (order_->order == Order::memn)
    return compare_memn(static_cast<const std::byte*>(key.mv_data), key.mv_size,
                        static_cast<const std::byte*>(entry.mv_data), entry.mv_size);
  return compare(*order_, key, entry, leaf_.page.bytes() + leaf_.page.size());
}

Status Walker::entry_key(unsigned i, MDB_val& key) {
  if (leaf_.page.is_leaf2()) return give_item(i, &key);
  Node n;
  if (!node(i, n)) return bad_leaf();
  key = {n.key_size(), const_cast<std::byte*>(n.key())};
  return {};
}

Status Walker::give_item(unsigned i, MDB_val* key) noexcept {
  const std::byte* const item = i < leaf_.page.count() ? leaf_.page.item(i, db_->pad) : nullptr;
  if (item == nullptr) return bad_leaf();
  if (key != nullptr) *key = {db_->pad, const_cast<std::byte*>(item)};
  return {};
}

// The entry under the walker, its first or last duplicate if it has several.  `jumped`: by MDB_FIRST or LAST.
Status Walker::give_entry(bool last_dup, MDB_val* key, MDB_val* data, bool jumped) {
  if (leaf_.page.is_leaf2()) return give_item(leaf_.index, key);
  Node n;
  if (!node(leaf_.index, n)) return bad_leaf();
  if ((n.flags() & format::kDupData) != 0) {
    const bool old = data == nullptr && txn_->env().behaviour().no_data_no_dups;
    if (!old || !jumped) {
      if (const Status st = enter_dups(n); !st.ok()) return st;
      if (!jumped && (n.flags() & format::kSubData) != 0 && !dups_->walk_on(!last_dup))
        return txn_->corrupted("more leaf pages of duplicates than the file has pages", leaf_.page.bytes());
    }
    if (!old) {
      if (const Status st = dups_->edge(last_dup, data, nullptr); !st.ok()) return st;
    }
  } else if (data != nullptr) {
    if (const Status st = give_value(n, !last_dup, data); !st.ok()) return st;
  }
  if (key != nullptr) *key = {n.key_size(), const_cast<std::byte*>(n.key())};
  return {};
}

Status Walker::edge(bool last, MDB_val* key, MDB_val* data) {
  forget_dups();
  clear(kOwed);
  if (!is_dups_) walk_anew();
  if (!positioned() || above_ != 0) {
    PageView page;
    if (const Status st = root(page); !st.ok()) return st;
    if (const Status st = to_edge(page, last); !st.ok()) return st;
  }
  if (leaf_.page.count() == 0) return txn_->corrupted("page without entries", leaf_.page.bytes());
  leaf_.index = last ? static_cast<std::uint16_t>(leaf_.page.count() - 1) : std::uint16_t{0};
  flags_ |= kPositioned;
  if (last)
    flags_ |= kEof;
  else
    clear(kEof);
  return give_entry(last, key, data, true);
}

// A step to another duplicate of the same page.  False: nothing was done.
inline bool Walker::step_dup(int step, MDB_val* data) noexcept {
  const unsigned i = leaf_.index + static_cast<unsigned>(step);
  if (flags_ != kPositioned || i >= leaf_.page.count() || data == nullptr) return false;
  if (leaf_.page.is_leaf2()) {
    const std::byte* const item = leaf_.page.item(i, db_->pad);
    if (item == nullptr) return false;
    *data = {db_->pad, const_cast<std::byte*>(item)};
  } else {
    Node n;
    if (!leaf_.page.node(i, n) || (n.flags() & format::kDupData) != 0) return false;
    *data = {n.key_size(), const_cast<std::byte*>(n.key())};
  }
  leaf_.index = static_cast<std::uint16_t>(i);
  return true;
}

// A read that failed is no move: the entry is owed.
Status Walker::owe(unsigned which, Status st) noexcept {
  if (st.raw() > 0 && positioned()) flags_ |= which;
  return st;
}

Status Walker::next(MDB_val* key, MDB_val* data, MDB_cursor_op op) {
  if (!positioned()) return owe(kOwedNext, first(key, data));
  if ((flags_ & kOwedNext) != 0) [[unlikely]] {
    clear(kOwed);
    return owe(kOwedNext, give_entry(false, key, data));
  }
  if (dups_ != nullptr && dups_->leaves_walked_ < 0) dups_->leaves_walked_ = 0;  // the walk turns
  if (at_eof()) {
    if (leaf_.index + 1u >= leaf_.page.count()) return not_found();
    clear(kEof);
  }
  if (dups_ != nullptr && (db_->flags & MDB_DUPSORT) != 0) {
    Node n;
    // Behind the last entry (a failed MDB_SET leaves the cursor there) stock looks at bytes that are no
    // entry.
    const bool here = node(leaf_.index, n);
    if (here && (n.flags() & format::kDupData) != 0) {
      if (op == MDB_NEXT || op == MDB_NEXT_DUP) {
        const Status st = dups_->step_dup(1, data) ? Status() : dups_->next(data, nullptr, MDB_NEXT);
        if (op != MDB_NEXT || st.raw() != MDB_NOTFOUND) {
          if (st.ok() && key != nullptr) *key = {n.key_size(), const_cast<std::byte*>(n.key())};
          return st;
        }
      }
    } else {
      forget_dups();
      if (op == MDB_NEXT_DUP) return not_found();
    }
  }
  if (leaf_.index + 1u >= leaf_.page.count()) {
    if (const Status st = sibling(true); !st.ok()) {
      if (st.raw() < 0) flags_ |= kEof;
      return st;
    }
  } else {
    ++leaf_.index;
  }
  clear(kOwed);
  return owe(kOwedNext, give_entry(false, key, data));
}

Status Walker::prev(MDB_val* key, MDB_val* data, MDB_cursor_op op) {
  if ((flags_ & kOwedPrev) != 0) [[unlikely]] {
    clear(kOwed | kEof);
    return owe(kOwedPrev, give_entry(true, key, data));
  }
  if (dups_ != nullptr && dups_->leaves_walked_ > 0) dups_->leaves_walked_ = 0;
  if (!positioned()) {
    if (const Status st = last(key, data); !st.ok()) return owe(kOwedPrev, st);
    ++leaf_.index;
  }
  if (dups_ != nullptr && (db_->flags & MDB_DUPSORT) != 0 && leaf_.index < leaf_.page.count()) {
    Node n;
    if (!node(leaf_.index, n)) return bad_leaf();
    if ((n.flags() & format::kDupData) != 0) {
      if (op == MDB_PREV || op == MDB_PREV_DUP) {
        const Status st = dups_->step_dup(-1, data) ? Status() : dups_->prev(data, nullptr, MDB_PREV);
        if (op != MDB_PREV || st.raw() != MDB_NOTFOUND) {
          if (st.ok()) {
            if (key != nullptr) *key = {n.key_size(), const_cast<std::byte*>(n.key())};
            clear(kEof);
          }
          return st;
        }
      }
    } else {
      forget_dups();
      if (op == MDB_PREV_DUP) return not_found();
    }
  }
  clear(kEof);
  if (leaf_.index == 0) {
    if (const Status st = sibling(false); !st.ok()) return st;
  } else {
    --leaf_.index;
  }
  clear(kOwed);
  return owe(kOwedPrev, give_entry(true, key, data));
}

Status Walker::search_leaf(const MDB_val& key, Place& place, std::size_t common) {
  // Duplicates are searched in stock's sequence: it shows where they were written in another order.
  const bool ok = order_->order == Order::memn && !is_dups_
                      ? search_memn<true>(leaf_.page, static_cast<const std::byte*>(key.mv_data), key.mv_size,
                                          common, place)
                      : search_page(leaf_.page, *order_, key, db_->pad, place);
  if (!ok) return bad_leaf();
  leaf_.index = static_cast<std::uint16_t>(place.index);
  return {};
}

// To the leaf where `key` is or belongs, and its place there.
Status Walker::to_place(const MDB_val& key, Place& place) {
  if (order_->order != Order::memn || is_dups_) {
    if (const Status st = to_key(key); !st.ok()) return st;
    return search_leaf(key, place);
  }
  PageView page;  // the checks of root(); the page itself is loaded again, from the cache
  if (const Status st = root(page); !st.ok()) return st;
  if (const Status st = detail::descend_memn(*txn_, *db_, static_cast<const std::byte*>(key.mv_data),
                                             key.mv_size, *this, page, place);
      !st.ok())
    return st;
  leaf_ = {page, static_cast<std::uint16_t>(place.index)};
  flags_ = (flags_ | kPositioned) & ~unsigned{kEof | kOwed};
  jumped_to_leaf();
  return {};
}

Status Walker::find_node(const MDB_val& key, Node& out) {
  Place place;
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

Status Walker::set(MDB_val* key, MDB_val* data, MDB_cursor_op op, bool want_exact) {
  if (key->mv_size == 0) return Status::from_mdb(MDB_BAD_VALSIZE);
  forget_dups();
  clear(kOwed);
  if (!is_dups_) {
    walk_anew();
    txn_->before_lookup(dbi_, *key, op == MDB_SET_RANGE && !want_exact);
  }

  enum class Left { tree, page, nothing } left = Left::tree;  // still to be searched
  std::size_t common = 0;                                     // of the page's keys, if it is the page
  if (positioned()) {
    // The page under the cursor may be the right one.  Stock's order of comparisons, and what each leaves.
    const unsigned n = leaf_.page.count();
    MDB_val entry;
    if (n == 0) {
      leaf_.index = 0;
      return not_found();
    }
    if (const Status st = entry_key(0, entry); !st.ok()) return st;
    const MDB_val first = entry;
    int order = compare_entry(*key, entry);
    if (order == 0) {
      leaf_.index = 0;
      left = Left::nothing;
    } else if (order > 0) {
      if (n > 1) {
        if (const Status st = entry_key(n - 1, entry); !st.ok()) return st;
        order = compare_entry(*key, entry);
        if (order == 0) {
          leaf_.index = static_cast<std::uint16_t>(n - 1);
          left = Left::nothing;
        } else if (order < 0) {
          left = Left::page;
          if (order_->order == Order::memn) common = common_prefix(first, entry);
          if (leaf_.index < n) {
            if (const Status st = entry_key(leaf_.index, entry); !st.ok()) return st;
            if (compare_entry(*key, entry) == 0) left = Left::nothing;
          }
          if (left == Left::page) clear(kEof);
        }
      }
      if (left == Left::tree && last_leaf()) {
        leaf_.index = static_cast<std::uint16_t>(n);
        return not_found();
      }
    }
    if (left == Left::tree && above_ == 0) {
      leaf_.index = 0;
      if (op != MDB_SET_RANGE || want_exact) return not_found();
      left = Left::nothing;
    }
  }

  if (left != Left::nothing) {
    Place place;
    const Status st = left == Left::tree ? to_place(*key, place) : search_leaf(*key, place, common);
    if (!st.ok()) return st;
    if (want_exact && !place.exact) return not_found();
    if (place.index >= leaf_.page.count()) {
      if (const Status moved = sibling(true); !moved.ok()) {
        flags_ |= kEof;
        return moved;
      }
    }
  }
  flags_ |= kPositioned;
  clear(kEof);
  jumped_to_value();

  const bool give_key = op == MDB_SET_RANGE || op == MDB_SET_KEY;
  if (leaf_.page.is_leaf2()) return give_key ? give_item(leaf_.index, key) : Status();
  Node n;
  if (!node(leaf_.index, n)) return bad_leaf();
  const bool by_data = op == MDB_GET_BOTH || op == MDB_GET_BOTH_RANGE;
  Status st;
  if ((n.flags() & format::kDupData) != 0) {
    if (st = enter_dups(n); !st.ok()) return st;
    if (by_data) {
      if (st = dups_->set(data, nullptr, MDB_SET_RANGE, op == MDB_GET_BOTH); !st.ok()) return st;
    } else if (data != nullptr || !txn_->env().behaviour().no_data_no_dups) {
      st = dups_->first(data, nullptr);
    }
  } else if (data != nullptr && by_data) {
    MDB_val only;
    if (st = txn_->value(n, only); !st.ok()) return st;
    Comparator by = *dup_order_;
    if (by.order == Order::uint && only.mv_size == sizeof(std::size_t)) by.order = Order::word;
    const std::byte* const end = static_cast<const std::byte*>(only.mv_data) + only.mv_size;
    const int order = compare(by, *data, only, end);
    if (order > 0 || (order != 0 && op == MDB_GET_BOTH)) return not_found();
    *data = only;
  } else if (data != nullptr) {
    if (st = txn_->value(n, *data); !st.ok()) return st;
  }
  if (give_key) *key = {n.key_size(), const_cast<std::byte*>(n.key())};
  return st;
}

Status Walker::current(MDB_val* key, MDB_val* data) {
  if (txn_->blocked()) return Status::from_mdb(MDB_BAD_TXN);
  if (!positioned()) return invalid();
  const unsigned n = leaf_.page.count();
  if (leaf_.index >= n) {
    leaf_.index = static_cast<std::uint16_t>(n);
    return not_found();
  }
  if (leaf_.page.is_leaf2()) return give_item(leaf_.index, key);
  Node entry;
  if (!node(leaf_.index, entry)) return bad_leaf();
  if (key != nullptr) *key = {entry.key_size(), const_cast<std::byte*>(entry.key())};
  if (data == nullptr) return {};
  if ((entry.flags() & format::kDupData) == 0) return give_value(entry, true, data);
  if (dups_ == nullptr) return txn_->corrupted("duplicates where there can be none", entry.at);
  return dups_->current(data, nullptr);
}

Status Walker::edge_dup(bool last, MDB_val* key, MDB_val* data) {
  if (data == nullptr || !positioned()) return invalid();
  if (dups_ == nullptr) return Status::from_mdb(MDB_INCOMPATIBLE);
  const unsigned n = leaf_.page.count();
  if (leaf_.index >= n) {
    leaf_.index = static_cast<std::uint16_t>(n);
    return not_found();
  }
  if (!txn_->env().behaviour().dup_edges_keep_eof) clear(kEof);
  Node entry;
  if (!node(leaf_.index, entry)) return bad_leaf();
  if ((entry.flags() & format::kDupData) == 0) {
    if (key != nullptr) *key = {entry.key_size(), const_cast<std::byte*>(entry.key())};
    return txn_->value(entry, *data);
  }
  if (!dups_->positioned()) return invalid();
  dups_->leaves_walked_ = 0;
  return dups_->edge(last, data, nullptr);
}

// All items of the duplicates' page.
Status Walker::give_page(MDB_val* data) noexcept {
  Walker& d = *dups_;
  const std::size_t n = d.leaf_.page.count(), bytes = n * d.db_->pad;
  if (n == 0 || format::kPageHeader + bytes > d.leaf_.page.size())
    return txn_->corrupted("items of fixed-size duplicates", d.leaf_.page.bytes());
  *data = {bytes, const_cast<std::byte*>(d.leaf_.page.bytes() + format::kPageHeader)};
  d.leaf_.index = static_cast<std::uint16_t>(n - 1);
  txn_->counters().bytes += bytes;
  return {};
}

Status Walker::get_multiple(MDB_val* data) {
  if (data == nullptr || !positioned()) return invalid();
  if ((db_->flags & MDB_DUPFIXED) == 0 || dups_ == nullptr) return Status::from_mdb(MDB_INCOMPATIBLE);
  if (!dups_->positioned() || dups_->at_eof()) return {};
  return give_page(data);
}

Status Walker::next_multiple(MDB_val* key, MDB_val* data) {
  if (data == nullptr) return invalid();
  if ((db_->flags & MDB_DUPFIXED) == 0 || dups_ == nullptr) return Status::from_mdb(MDB_INCOMPATIBLE);
  if (const Status st = next(key, data, MDB_NEXT_DUP); !st.ok()) return st;
  return dups_->positioned() ? give_page(data) : not_found();
}

Status Walker::prev_multiple(MDB_val* key, MDB_val* data) {
  if (data == nullptr) return invalid();
  if ((db_->flags & MDB_DUPFIXED) == 0 || dups_ == nullptr) return Status::from_mdb(MDB_INCOMPATIBLE);
  if (!positioned()) {
    if (const Status st = last(key, data); !st.ok()) return st;
  }
  if (!dups_->positioned()) return not_found();
  if (const Status st = dups_->sibling(false); !st.ok()) return st;
  return give_page(data);
}

Status Walker::count(std::size_t& n) {
  if (!positioned()) return invalid();
  if (at_eof()) {
    if (leaf_.index >= leaf_.page.count()) return not_found();
    clear(kEof);
  }
  if (leaf_.index >= leaf_.page.count()) return not_found();  // stock looks at bytes that are no entry
  Node entry;
  if (!node(leaf_.index, entry)) return bad_leaf();
  if ((entry.flags() & format::kDupData) == 0) {
    n = 1;
    return {};
  }
  if (!dups_->positioned()) return invalid();
  n = dups_->own_db_.entries;
  return {};
}

}  // namespace lmdbio::db
