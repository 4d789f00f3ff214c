// Databases of a transaction: their records, names and orders.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/txn.h"

namespace lmdbio::tree {

// Looks up the record of a named database in the main one.
Status Txn::find_record(const char* name, format::DbRecord& out) {
  const MDB_val key = {format::name_key_bytes(view_.version(), std::strlen(name)), const_cast<char*>(name)};
  if (key.mv_size == 0) return Status::from_mdb(MDB_BAD_VALSIZE);
  Walker walker;
  walker.attach(*this, kMainDbi, nullptr);
  format::Node node;
  if (const Status st = walker.find_node(key, node); !st.ok()) return st;
  const unsigned kind = node.flags() & (format::kDupData | format::kSubData);
  MDB_val data{};
  if ((kind & format::kDupData) == 0) {  // stock reads the value before it checks its kind
    if (const Status st = value(node, data); !st.ok()) return st;
  }
  if (kind != format::kSubData) return Status::from_mdb(MDB_INCOMPATIBLE);
  if (data.mv_size < sizeof out) return corrupted("the record of a named database is too short", node.at);
  out = load<format::DbRecord>(static_cast<const std::byte*>(data.mv_data));
  return {};
}

// Looks up a stale handle's record, as mdb_page_search does.
Status Txn::look_up(MDB_dbi dbi) {
  if (blocked()) return Status::from_mdb(MDB_BAD_TXN);
  const Dbx& slot = env_->dbx(dbi);
  const format::DbRecord& main = dbs_[kMainDbi];
  if (main.root == format::kNoPage) return Status::from_mdb(MDB_NOTFOUND);
  const auto lost = Status::from_mdb(env_->behaviour().lost_dbi_is_not_found ? MDB_NOTFOUND : MDB_BAD_DBI);
  if (!slot.named() || format::name_key_bytes(view_.version(), std::strlen(slot.name)) == 0) return lost;

  format::DbRecord found;
  const Status st = find_record(slot.name, found);
  if (st.raw() == MDB_NOTFOUND) return lost;
  if (!st.ok()) return st;
  if ((dbs_[dbi].flags & kPersistentFlags) != found.flags) return Status::from_mdb(MDB_INCOMPATIBLE);
  dbs_[dbi] = found;
  dbi_state_[dbi] &= static_cast<unsigned char>(~kStale);
  return {};
}

void Txn::order_main() noexcept {
  if (!env_->dbx(kMainDbi).ordered) order_main_anew();
}

// Sets the default orders.  Many programs open the main database again in each transaction, possibly in
// several threads, so nothing is written if the orders are unchanged.
void Txn::order_main_anew() noexcept {
  Dbx& main = env_->dbx(kMainDbi);
  const format::Comparator key = format::default_key_order(dbs_[kMainDbi].flags),
                           dup = format::default_dup_order(dbs_[kMainDbi].flags);
  if (main.ordered && main.key_order == key && main.dup_order == dup) return;
  main.key_order = key;
  main.dup_order = dup;
  main.ordered = true;
}

Status Txn::open_dbi(const char* name, unsigned flags, MDB_dbi& dbi) {
  constexpr unsigned kOrders =
      MDB_REVERSEKEY | MDB_DUPSORT | MDB_INTEGERKEY | MDB_DUPFIXED | MDB_INTEGERDUP | MDB_REVERSEDUP;
  if ((flags & ~(kOrders | MDB_CREATE)) != 0) return Status::from_errno(EINVAL);
  if (blocked()) return Status::from_mdb(MDB_BAD_TXN);
  if (name == nullptr) {
    dbs_[kMainDbi].flags = static_cast<std::uint16_t>(dbs_[kMainDbi].flags | (flags & kPersistentFlags));
    order_main_anew();
    dbi = kMainDbi;
    return {};
  }
  order_main();
  unsigned slot = 0;
  for (unsigned i = kCoreDbs; i < num_dbs_; ++i) {
    if (const Dbx& d = env_->dbx(i); !d.named()) {
      if (slot == 0) slot = i;
    } else if (std::strcmp(d.name, name) == 0) {
      dbi = i;
      return {};
    }
  }
  if (slot == 0) slot = num_dbs_;
  if (slot >= env_->max_dbs()) return Status::from_mdb(MDB_DBS_FULL);
  const bool create = (flags & MDB_CREATE) != 0;
  if ((dbs_[kMainDbi].flags & (MDB_DUPSORT | MDB_INTEGERKEY)) != 0)
    return Status::from_mdb(create ? MDB_INCOMPATIBLE : MDB_NOTFOUND);
  format::DbRecord found;
  if (const Status st = find_record(name, found); !st.ok())
    return st.raw() == MDB_NOTFOUND && create ? Status::from_errno(EACCES) : st;

  const AsyncSignalsBlocked fork_safe(has_own_threads());
  if (!env_->name_dbi(slot, name)) return Status::from_errno(ENOMEM);
  dbs_[slot] = found;
  dbi_state_[slot] = kNew | kValid | kUserValid;
  num_dbs_ = std::max(num_dbs_, slot + 1);
  used_dbs_ = std::max(used_dbs_, num_dbs_);
  Dbx& made = env_->dbx(slot);
  made.key_order = format::default_key_order(found.flags);
  made.dup_order = format::default_dup_order(found.flags);
  made.ordered = true;
  dbi = slot;
  return {};
}

}  // namespace lmdbio::tree
