// Snapshots: how a reader gets a transaction id, and a copy of the meta page that fits it.
#pragma once

#include <lmdb.h>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstdint>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/status.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::db {

/// Where a reader's transaction id comes from: a companion transaction of stock LMDB, or the metas alone.
/// renew(txnid) gives back what was held and takes the newest snapshot; after it the pages of `txnid` are
/// not recycled by writers until the source lets go (a lock-free source gives no such promise).
template <class T>
concept SnapshotSource = requires(T source, std::uint64_t& txnid) {
  { source.renew(txnid) } -> std::same_as<Status>;
};

/// What a transaction starts from.
struct Snapshot {
  std::uint64_t txnid = 0;
  std::uint64_t last_pg = 0;
  format::DbRecord dbs[2]{};  ///< free, main
};

/// How the shared words of a meta page are loaded.  Tests put a writer between two loads.
struct SharedWords {
  static std::uint64_t load(const std::byte* p) noexcept {
    return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(p), __ATOMIC_RELAXED);
  }
};

namespace detail {
inline constexpr std::size_t kAtDbs = format::kPageHeader + offsetof(format::MetaRecord, dbs);
inline constexpr std::size_t kAtLastPg = format::kPageHeader + offsetof(format::MetaRecord, last_pg);
inline constexpr std::size_t kAtTxnid = format::kPageHeader + offsetof(format::MetaRecord, txnid);
}  // namespace detail

/// Copies the meta of `source`'s transaction.  `out.txnid` comes in as the source's current id and goes out
/// as the id that the copy belongs to.
///
/// A reader slot does not protect the metas, and stock's writer stores the roots first and the txnid last,
/// so a copy torn by commit T+2 shows T before and after.  Transaction N writes meta N % 2.  The copy of
/// meta[T & 1] is whole if its txnid is T and either the other meta is older than T (T+2 cannot have started
/// before T+1 is visible), or the source, asked again, still says T (it says T+1 only after T+1's commit
/// ended, and T+2 starts later).  Else the newer id is tried.
///
/// A source that says 0 is asked no further: either nothing was ever committed, or its lock file is just
/// being set up once more, by another environment of this process on the same file (file locks do not keep it
/// from that, and stock shows such a reader an empty database).  A slot with 0 keeps all pages, so the newest
/// meta is as good.
///
/// `metas`: page 0, page 1.  MDB_BAD_TXN after kTries rounds (a writer that commits faster than a meta can
/// be copied); whatever the source answers when it fails.
template <class Words = SharedWords, SnapshotSource Source>
Status read_snapshot(const std::byte* const (&metas)[2], Source&& source, Snapshot& out) {
  constexpr int kTries = 1000;
  for (int round = 0; round < kTries; ++round) {
    if (out.txnid == 0) [[unlikely]]
      out.txnid =
          std::max(Words::load(metas[0] + detail::kAtTxnid), Words::load(metas[1] + detail::kAtTxnid));
    const std::uint64_t txnid = out.txnid;
    const std::byte* const meta = metas[txnid & 1];
    std::uint64_t words[sizeof out.dbs / 8];
    for (std::size_t i = 0; i < std::size(words); ++i) words[i] = Words::load(meta + detail::kAtDbs + 8 * i);
    const std::uint64_t last_pg = Words::load(meta + detail::kAtLastPg);
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint64_t own = Words::load(meta + detail::kAtTxnid);
    const std::uint64_t other = Words::load(metas[~txnid & 1] + detail::kAtTxnid);
    bool whole = own == txnid && (other < txnid || (other == 0 && txnid == 0));
    if (!whole) [[unlikely]] {
      if (const Status st = source.renew(out.txnid); !st.ok()) return st;
      whole = own == txnid && out.txnid == txnid;
    }
    if (whole) [[likely]] {
      std::memcpy(out.dbs, words, sizeof out.dbs);
      out.last_pg = last_pg;
      return {};
    }
  }
  return Status::from_mdb(MDB_BAD_TXN);
}

/// A reader of `txnid` without locks may have seen pages of a later transaction: the second commit after it
/// is the first that may write over them (a writer reuses what was freed before its predecessor).
inline bool overtaken(const std::byte* const (&metas)[2], std::uint64_t txnid) noexcept {
  for (const std::byte* const meta : metas) {
    const std::uint64_t id = SharedWords::load(meta + detail::kAtTxnid);
    if (id > txnid && id - txnid > 1) return true;
  }
  return false;
}

/// The newest txnid that the metas show, without any lock: for readers that have no companion.
class MetaSource {
 public:
  explicit MetaSource(const std::byte* const (&metas)[2]) noexcept : metas_{metas[0], metas[1]} {}
  Status renew(std::uint64_t& txnid) const noexcept;

 private:
  const std::byte* metas_[2];
};

}  // namespace lmdbio::db
