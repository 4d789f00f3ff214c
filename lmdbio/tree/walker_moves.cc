// The moves of a walker, by stock's rules: MDB_FIRST to PREV_NODUP, the lookups, GET_CURRENT.
#include "lmdbio/tree/walker.h"

namespace lmdbio::tree {

using format::Node;
using format::PageView;

namespace {

Status not_found() noexcept { return Status::from_mdb(MDB_NOTFOUND); }
Status invalid() noexcept { return Status::from_errno(EINVAL); }

std::size_t common_prefix(const MDB_val& a, const MDB_val& b) noexcept {
  return format::common_prefix(static_cast<const std::byte*>(a.mv_data), a.mv_size,
                               static_cast<const std::byte*>(b.mv_data), b.mv_size);
}

}  // namespace

// Returns the value of an entry that a walk has reached.
Status Walker::give_value(const Node& n, bool forward, MDB_val* data) noexcept {
  if (readahead_ != nullptr && (n.flags() & format::kBigData) != 0) {
    const std::uint64_t first = format::raw(n.overflow());
    const std::uint64_t pages = txn_->view().overflow_pages(n.data_size());
    if (!run_.covers(first, pages - 1) && first < txn_->view().pages() &&
        pages <= txn_->view().pages() - first) {
      if (const Status st = pace(ahead::Readahead::Step::value, forward, {first, pages}, leaf_.page);
          !st.ok())
        return st;
    }
  }
  return txn_->value(n, *data);
}

Status Walker::give_item(unsigned i, MDB_val* key) noexcept {
  const std::byte* const item = i < leaf_.page.count() ? leaf_.page.item(i, db_->pad) : nullptr;
  if (item == nullptr) return bad_leaf();
  if (key != nullptr) *key = {db_->pad, const_cast<std::byte*>(item)};
  return {};
}

// Returns the entry at the position, with its first or last duplicate if it has several.  `jumped`: the move
// is MDB_FIRST or MDB_LAST.
Status Walker::give_entry(bool last_dup, MDB_val* key, MDB_val* data, bool jumped) {
  if (leaf_.page.is_leaf2()) return give_item(leaf_.index, key);
  Node n;
  if (!node(leaf_.index, n)) return bad_leaf();
  if ((n.flags() & format::kDupData) != 0) {
    const bool old = data == nullptr && txn_->env().behaviour().no_data_no_dups;
    if (!old || !jumped) {
      if (const Status st = enter_dups(n); !st.ok()) return st;
      if (!jumped && (n.flags() & format::kSubData) != 0 && !dups_->walk_on(!last_dup))
        return txn_->corrupted("the tree of duplicates has more leaf pages than the file has pages",
                               leaf_.page.bytes());
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
  if (leaf_.page.count() == 0) return txn_->corrupted("a page without entries", leaf_.page.bytes());
  leaf_.index = last ? static_cast<std::uint16_t>(leaf_.page.count() - 1) : std::uint16_t{0};
  flags_ |= kPositioned;
  if (last)
    flags_ |= kEof;
  else
    clear(kEof);
  return give_entry(last, key, data, true);
}

// Steps to another duplicate on the same page.  Returns false if nothing was done.
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

// A failed read is no move.  So the next move in the same direction returns the entry.
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
    // After the last entry (a failed MDB_SET leaves the cursor there) stock reads bytes that are no entry.
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

Status Walker::set(MDB_val* key, MDB_val* data, MDB_cursor_op op, bool want_exact) {
  if (key->mv_size == 0) return Status::from_mdb(MDB_BAD_VALSIZE);
  forget_dups();
  clear(kOwed);
  if (!is_dups_) {
    walk_anew();
    txn_->before_lookup(dbi_, *key, op == MDB_SET_RANGE && !want_exact);
  }

  enum class Left { tree, page, nothing } left = Left::tree;  // still to be searched
  std::size_t common = 0;                                     // bytes that the page's keys share, for
                                                              // Left::page
  if (positioned()) {
    // The cursor's page may be the right one.  Comparisons follow stock's order, and leave the position as
    // stock does.
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
          if (order_->order == format::Order::memn) common = common_prefix(first, entry);
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
    format::Place place;
    const Status st = left == Left::tree ? to_place(*key, place) : search_leaf(*key, place, common);
    if (!st.ok()) return st;
    if (want_exact && !place.exact) return not_found();
    if (place.index >= leaf_.page.count()) {
      if (const Status moved = sibling(true); !moved.ok()) {
        if (moved.raw() < 0) flags_ |= kEof;
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
    format::Comparator by = *dup_order_;
    if (by.order == format::Order::uint && only.mv_size == sizeof(std::size_t))
      by.order = format::Order::word;
    const std::byte* const end = static_cast<const std::byte*>(only.mv_data) + only.mv_size;
    const int order = format::compare(by, *data, only, end);
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
  if (dups_ == nullptr) return txn_->corrupted("duplicates in a database without MDB_DUPSORT", entry.at);
  return dups_->current(data, nullptr);
}

}  // namespace lmdbio::tree
