// Lookups by key.
#include <new>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/descend.h"
#include "lmdbio/tree/txn.h"
#include "lmdbio/tree/txn_prefetch.h"

namespace lmdbio::tree {

void Txn::ask(MDB_dbi dbi, const MDB_val& key, bool or_next) noexcept {
  // Lookups until the next probe, if no probe is possible now.
  constexpr std::uint32_t kSoon = 16;
  ask_in_ = kSoon;
  if (prefetch_ != nullptr) {  // prefetch requests already read these pages
    ask_in_ = 1;
    return;
  }
  if (!env_->file().reads_ahead()) {
    ask_in_ = ahead::Lookups::kNever;
    return;
  }
  const format::DbRecord& db = dbs_[dbi];
  const format::Comparator& order = env_->dbx(dbi).key_order;
  // A user's comparator is called only as often as lookups need.
  if (key.mv_size == 0 || stale(dbi) || db.root == format::kNoPage || order.order == format::Order::user)
    return;
  if (lookups_ == nullptr) {
    const AsyncSignalsBlocked fork_safe(has_own_threads());
    lookups_.reset(new (std::nothrow) ahead::Lookups(env_->file()));
  }
  if (lookups_ != nullptr)
    ask_in_ = lookups_->before({view_, snapshot_.txnid, stamp_.window(), counters_->bytes},
                               {db, order, key, or_next});
}

// Returns the first duplicate of `node`.  Uncommon cases use a walker, as cursors do.
Status Txn::find_rare(MDB_dbi dbi, const MDB_val& key, MDB_val& data, const format::Node* node) {
  const format::DbRecord& db = dbs_[dbi];
  const bool dupsort = (db.flags & MDB_DUPSORT) != 0;
  format::PageView dups;
  if (node != nullptr && !dupsort) return corrupted("duplicates in a database without MDB_DUPSORT", node->at);
  constexpr unsigned kElsewhere = format::kSubData | format::kBigData;  // the data is not all in the node
  if (node != nullptr && (node->flags() & kElsewhere) == 0 && format::PageView::open_sub(*node, dups) &&
      dups.count() != 0) {
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

// Returns the value of the entry that a search has found, or the first of its duplicates.
template <format::Version kVersion>
[[gnu::always_inline]] inline Status Txn::found(MDB_dbi dbi, const MDB_val& key, MDB_val& data,
                                                const format::PageView& leaf, const format::Place& place) {
  if (!place.exact) return Status::from_mdb(MDB_NOTFOUND);
  const std::byte* at;
  if (!leaf.node_at<kVersion>(place.index, at)) [[unlikely]]
    return corrupted("invalid entry on a leaf page", leaf.bytes());
  const format::Node node{at, kVersion};
  if ((node.flags() & format::kDupData) != 0) [[unlikely]]
    return find_rare(dbi, key, data, &node);
  return value<kVersion>(at, data);
}

// Finds the value of `key` in a database in byte order.
template <format::Version kVersion>
[[gnu::always_inline]] inline Status Txn::find_memn(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  format::PageView leaf;
  if (kVersion != format::Version::v09) leaf = format::PageView::none();  // GCC 12 warns otherwise
  format::Place place;
  detail::NoPath path;
  const Status st = detail::descend_memn_in<kVersion>(
      *this, dbs_[dbi], static_cast<const std::byte*>(key.mv_data), key.mv_size, path, leaf, place);
  if (!st.ok()) [[unlikely]]
    return st;
  return found<kVersion>(dbi, key, data, leaf, place);
}

// The rest of find(): files of LMDB 1.0, and other orders.
[[gnu::noinline]] Status Txn::find_other(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  const format::Comparator& order = env_->dbx(dbi).key_order;
  if (order.order == format::Order::memn) return find_memn<format::Version::v10>(dbi, key, data);
  format::PageView leaf = format::PageView::none();
  format::Place place{};
  const Status st = detail::descend_any(*this, dbs_[dbi], order, key, leaf, place);
  if (!st.ok()) return st;
  return leaf.version() == format::Version::v09 ? found<format::Version::v09>(dbi, key, data, leaf, place)
                                                : found<format::Version::v10>(dbi, key, data, leaf, place);
}

// Finds the value of `key`, or the first of its duplicates.
[[gnu::always_inline]] inline Status Txn::find(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  if (dbs_[dbi].root == format::kNoPage || stale(dbi)) [[unlikely]]
    return find_rare(dbi, key, data, nullptr);
  if (env_->dbx(dbi).key_order.order != format::Order::memn || view_.version() != format::Version::v09)
      [[unlikely]]
    return find_other(dbi, key, data);
  return find_memn<format::Version::v09>(dbi, key, data);
}

// Does the same in a transaction that has prefetched keys.  This is a separate function, so that it costs
// other transactions only one branch.
Status Txn::find_prefetched(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  const format::DbRecord& db = dbs_[dbi];
  Status st;
  if (!stale(dbi) && prefetch_->answer({dbi, format::raw(db.root), db.flags, env_->dbx(dbi).key_order}, key,
                                       view_, data, st))
    return st;
  return find(dbi, key, data);
}

template <bool kPrefetched>
[[gnu::always_inline]] inline Status Txn::get_by(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  ++counters_->get;
  if ((dbi_state_[dbi] & kStale) != 0) [[unlikely]]
    (void)record(dbi);  // as mdb_cursor_init: the search returns the error
  if (key.mv_size == 0) [[unlikely]] {
    ++counters_->get_missed;
    return Status::from_mdb(MDB_BAD_VALSIZE);
  }
  const Status st = kPrefetched ? find_prefetched(dbi, key, data) : find(dbi, key, data);
  if (st.ok()) [[likely]]
    counters_->bytes += data.mv_size;
  else
    ++counters_->get_missed;
  return st;
}

Status Txn::get_after_asking(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  if (prefetch_ != nullptr) {
    ask_in_ = 1;  // each lookup comes here
    return get_by<true>(dbi, key, data);
  }
  ask(dbi, key, false);
  ++ask_in_;
  return get(dbi, key, data);
}

Status Txn::get(MDB_dbi dbi, const MDB_val& key, MDB_val& data) {
  // This comes first, and as a tail call, so that nothing must be kept in registers for it.
  if (--ask_in_ == 0) [[unlikely]]
    return get_after_asking(dbi, key, data);
  return get_by<false>(dbi, key, data);
}

}  // namespace lmdbio::tree
