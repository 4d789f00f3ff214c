#include "lmdbio/db/txn.h"

#include <algorithm>

#include "lmdbio/db/cursor.h"
#include "lmdbio/db/descend.h"

namespace lmdbio::db {

void Counters::add(const Counters& c) noexcept {
  get += c.get;
  get_missed += c.get_missed;
  for (unsigned i = 0; i <= kCursorOps; ++i) cursor_op[i] += c.cursor_op[i];
  cursor_failed += c.cursor_failed;
  bytes += c.bytes;
}

Txn::Txn(Env& env)
    : dbs_(zeroed_array<format::DbRecord>(env.max_dbs())),
      dbi_state_(zeroed_array<unsigned char>(env.max_dbs())),
      env_(&env) {}

void Txn::start() noexcept {
  stamp_.set_window(env_->window_number());
  leaf_seen_ = nullptr;
  view_ = env_->window()->view(std::min(snapshot_.last_pg + 1, env_->file_pages(snapshot_.txnid)));
  std::memcpy(dbs_.get(), snapshot_.dbs, sizeof snapshot_.dbs);
  dbi_state_[kFreeDbi] = kValid;
  dbi_state_[kMainDbi] = kValid | kUserValid;
  restart();
}

void Txn::restart() noexcept {
  dbs_[kMainDbi].flags = snapshot_.dbs[kMainDbi].flags;  // mdb_dbi_open may have added some
  const unsigned n = env_->num_dbs();
  for (unsigned i = kCoreDbs; i < n; ++i) {
    const unsigned f = env_->slot_flags(i);
    dbs_[i].flags = static_cast<std::uint16_t>(f & kPersistentFlags);
    dbi_state_[i] = (f & kSlotValid) != 0 ? kValid | kUserValid | kStale : 0;
  }
  num_dbs_ = n;
  used_dbs_ = std::max(used_dbs_, n);
  blocked_ = 0;
  stamp_.bits &= ~Stamp::kBlocked;
}

void Txn::end(bool keep) noexcept {
  for (unsigned i = num_dbs_; i-- > kCoreDbs;) {
    if ((dbi_state_[i] & kNew) == 0) continue;
    if (!keep) {
      env_->close_dbi(i);
      continue;
    }
    env_->slot_flags(i) = static_cast<std::uint16_t>(dbs_[i].flags | kSlotValid);
    env_->raise_num_dbs(num_dbs_);
  }
  num_dbs_ = 0;
  block(kFinished);
}

void Txn::recycle() noexcept {
  for (; used_dbs_ > kCoreDbs; --used_dbs_) dbs_[used_dbs_ - 1] = {};
  stamp_.next_use();
}

Status Txn::corrupted() noexcept {
  block(kError);
  return Status::from_mdb(MDB_CORRUPTED);
}

Status Txn::bad_page(format::Pgno p) noexcept {
  block(kError);
  return Status::from_mdb(format::raw(p) > snapshot_.last_pg ? MDB_PAGE_NOTFOUND : MDB_CORRUPTED);
}

// What mdb_page_search does for a stale handle.
Status Txn::look_up(MDB_dbi dbi) {
  if (blocked()) return Status::from_mdb(MDB_BAD_TXN);
  const Dbx& slot = env_->dbx(dbi);
  const format::DbRecord& main = dbs_[kMainDbi];
  if (main.root == format::kNoPage) return Status::from_mdb(MDB_NOTFOUND);
  const auto lost =
      Status::from_mdb(env_->behaviour().lost_dbi_is_not_found ? MDB_NOTFOUND : MDB_BAD_DBI);
  if (!slot.named() || *slot.name == '\0') return lost;  // closed meanwhile: no key is empty

  MDB_val name = {std::strlen(slot.name), slot.name};
  Walker walker;
  walker.attach(*this, kMainDbi, nullptr);
  format::Node node;
  const Status st = walker.find_node(name, node);
  if (st.raw() == MDB_NOTFOUND) return lost;
  if (!st.ok()) return st;
  if ((node.flags() & (format::kDupData | format::kSubData)) != format::kSubData)
    return Status::from_mdb(MDB_INCOMPATIBLE);
  MDB_val data;
  if (const Status read = value(node, data); !read.ok()) return read;
  if (data.mv_size < sizeof(format::DbRecord)) return corrupted();
  const auto found = load<format::DbRecord>(static_cast<const std::byte*>(data.mv_data));
  if ((dbs_[dbi].flags & kPersistentFlags) != found.flags) return Status::from_mdb(MDB_INCOMPATIBLE);
  dbs_[dbi] = found;
  dbi_state_[dbi] &= static_cast<unsigned char>(~kStale);
  return {};
}

Result<const format::DbRecord*> Txn::record(MDB_dbi dbi) {
  if ((dbi_state_[dbi] & kStale) != 0) [[unlikely]] {
    if (const Status st = look_up(dbi); !st.ok()) return st;
  }
  return &dbs_[dbi];
}

void Txn::order_main() noexcept {
  Dbx& main = env_->dbx(kMainDbi);
  if (main.ordered) return;
  main.key_order = default_key_order(dbs_[kMainDbi].flags);
  main.dup_order = default_dup_order(dbs_[kMainDbi].flags);
  main.ordered = true;
}

bool Txn::adopt_dbi(const char* name, unsigned flags, MDB_dbi dbi) {
  if (name == nullptr) {
    dbs_[kMainDbi].flags = static_cast<std::uint16_t>(dbs_[kMainDbi].flags | (flags & kPersistentFlags));
    env_->dbx(kMainDbi).ordered = false;
    order_main();
    return true;
  }
  order_main();
  if (dbi < kCoreDbs || dbi >= env_->max_dbs()) return true;
  Dbx& slot = env_->dbx(dbi);
  if (dbi < num_dbs_ && slot.named() && std::strcmp(slot.name, name) == 0) return true;  // was open

  if (!env_->name_dbi(dbi, name)) return false;
  dbi_state_[dbi] = kNew | kValid | kUserValid;
  for (unsigned i = num_dbs_; i < dbi; ++i) dbi_state_[i] = 0;
  num_dbs_ = std::max(num_dbs_, dbi + 1);
  used_dbs_ = std::max(used_dbs_, num_dbs_);

  // The record itself comes from our own search, through the same code as for a stale handle.
  MDB_val key = {std::strlen(slot.name), slot.name};
  Walker walker;
  walker.attach(*this, kMainDbi, nullptr);
  format::Node node;
  MDB_val data;
  if (walker.find_node(key, node).ok() && value(node, data).ok() && data.mv_size >= sizeof(format::DbRecord))
    dbs_[dbi] = load<format::DbRecord>(static_cast<const std::byte*>(data.mv_data));
  slot.key_order = default_key_order(dbs_[dbi].flags);
  slot.dup_order = default_dup_order(dbs_[dbi].flags);
  slot.ordered = true;
  return true;
}

// The first of the duplicates of `node`; what is not usual goes the way of cursors.
Status Txn::find_rare(MDB_dbi dbi, const MDB_val& key, MDB_val& data, const format::Node* node) {
  const format::DbRecord& db = dbs_[dbi];
  const bool dupsort = (db.flags & MDB_DUPSORT) != 0;
  format::PageView dups;
  if (node != nullptr && !dupsort) return corrupted();
  constexpr unsigned kElsewhere = format::kSubData | format::kBigData;  // the data is not all in the node
  if (node != nullptr && (node->flags() & kElsewhere) == 0 &&
      format::PageView::open_sub(node->data(), node->data_size(), dups) && dups.count() != 0) {
    format::Node first;
    if (dups.is_leaf2() && (db.flags & MDB_DUPFIXED) != 0) {
      if (const std::byte* const item = dups.item(0, dups.item_size()); item != nullptr) {
        data = {dups.item_size(), const_cast<std::byte*>(item)};
        return {};
      }
    } else if (!dups.is_leaf2() && dups.node(0, first) && first.flags() == 0) {
      data = {first.key_size(), const_cast<std::byte*>(first.key())};
      return {};
    }
  }
  Walker main, walker;
  main.attach(*this, dbi, dupsort ? &walker : nullptr);
  MDB_val k = key;
  return main.set(&k, &data, MDB_SET, true);
}

// The value of `key`, or the first of its duplicates.
[[gnu::always_inline]] inline Status Txn::find(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  const format::DbRecord& db = dbs_[dbi];
  if (db.root == format::kNoPage || stale(dbi)) [[unlikely]]
    return find_rare(dbi, key, data, nullptr);
  const Comparator& order = env_->dbx(dbi).key_order;
  format::PageView leaf;
  Place place;
  detail::NoPath path;
  Status st;
  if (order.order == Order::memn) [[likely]]
    st = detail::descend_memn(*this, db, static_cast<const std::byte*>(key.mv_data), key.mv_size, path, leaf, place);
  else
    st = detail::descend_any(*this, db, order, key, leaf, place);
  if (!st.ok()) [[unlikely]]
    return st;
  if (!place.exact) return Status::from_mdb(MDB_NOTFOUND);
  format::Node node;
  if (!leaf.node(place.index, node)) [[unlikely]]
    return corrupted();
  if ((node.flags() & format::kDupData) != 0) [[unlikely]]
    return find_rare(dbi, key, data, &node);
  return value(node, data);
}

Status Txn::get(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  ++counters_.get;
  if ((dbi_state_[dbi] & kStale) != 0) [[unlikely]]
    (void)record(dbi);  // as mdb_cursor_init: a failure shows in the search
  if (key.mv_size == 0) [[unlikely]] {
    ++counters_.get_missed;
    return Status::from_mdb(MDB_BAD_VALSIZE);
  }
  const Status st = find(dbi, key, data);
  if (st.ok()) [[likely]]
    counters_.bytes += data.mv_size;
  else
    ++counters_.get_missed;
  return st;
}

}  // namespace lmdbio::db
