// Duplicates of one key: a second walker walks their sub-page or sub-database as a tree.
#include "lmdbio/tree/walker.h"

namespace lmdbio::tree {

using format::DbRecord;
using format::Node;
using format::PageView;

namespace {

Status not_found() noexcept { return Status::from_mdb(MDB_NOTFOUND); }
Status invalid() noexcept { return Status::from_errno(EINVAL); }

}  // namespace

void Walker::attach_dups(Txn& txn, const format::Comparator& order) noexcept {
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

// Makes the duplicates of `node` the tree of the dups walker.
Status Walker::enter_dups(const Node& node) {
  // The node of a big value contains only its page number.
  if (dups_ == nullptr || (node.flags() & format::kBigData) != 0)
    return txn_->corrupted("invalid duplicates", node.at);
  Walker& d = *dups_;
  d.above_ = 0;
  if ((node.flags() & format::kSubData) != 0) {
    if (node.data_size() < sizeof(DbRecord))
      return txn_->corrupted("the record of a tree of duplicates is too short", node.at);
    d.own_db_ = load<DbRecord>(node.data());
    d.inline_root_ = PageView::none();
    d.flags_ = 0;
  } else {
    PageView sub;  // an invalid sub-page must not be stored: a renewed cursor uses it again
    if (!PageView::open_sub(node, sub)) return txn_->corrupted("invalid sub-page", node.at);
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
      return txn_->corrupted("fixed-size duplicates of size 0", node.at);
    }
    d.leaf_ = {d.inline_root_, 0};
    d.flags_ = kPositioned;
  }
  // From here on, unsigned int items that have the size of size_t are compared as size_t.
  if (d.own_order_.order == format::Order::uint && d.own_db_.pad == sizeof(std::size_t))
    d.own_order_.order = format::Order::word;
  return {};
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

// Returns all items of the duplicates' page.
Status Walker::give_page(MDB_val* data) noexcept {
  Walker& d = *dups_;
  const std::size_t n = d.leaf_.page.count(), bytes = n * d.db_->pad;
  if (n == 0 || d.leaf_.page.item(0, bytes) == nullptr)
    return txn_->corrupted("fixed-size duplicates reach beyond the page", d.leaf_.page.bytes());
  *data = {bytes, const_cast<std::byte*>(d.leaf_.page.slots())};
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
  if (leaf_.index >= leaf_.page.count()) return not_found();  // stock reads bytes that are no entry
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

}  // namespace lmdbio::tree
