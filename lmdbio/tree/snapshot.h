// Takes snapshots for readers: a transaction id, and a copy of the meta page of that transaction.
#pragma once

#include <lmdb.h>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstdint>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/status.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::tree {

/// The source of a reader's transaction id: a companion transaction of stock LMDB, or the metas alone.
/// renew(txnid) releases the snapshot held before and takes the newest one.  Writers then do not reuse pages
/// of `txnid` until the source releases it.  A lock-free source gives no such guarantee.
template <class T>
concept SnapshotSource = requires(T source, std::uint64_t& txnid) {
  { source.renew(txnid) } -> std::same_as<Status>;
};

/// The state that a transaction starts from.
struct Snapshot {
  std::uint64_t txnid = 0;
  std::uint64_t last_pg = 0;
  format::DbRecord dbs[2]{};  ///< free, main
};

/// Loads words of a meta page that writers share.  Tests replace it to let a writer run between two loads.
struct SharedWords {
  static std::uint64_t load(const std::byte* p) noexcept {
    return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(p), __ATOMIC_RELAXED);
  }
};

namespace detail {
inline constexpr std::size_t kAtDbs = offsetof(format::MetaRecord, dbs);
inline constexpr std::size_t kAtLastPg = offsetof(format::MetaRecord, last_pg);
inline constexpr std::size_t kAtTxnid = offsetof(format::MetaRecord, txnid);
}  // namespace detail

/// Copies the meta page of the source's transaction to `out`.  On entry `out.txnid` is the source's current
/// id; on return it is the id of the copy.
///
/// A reader slot does not protect the metas.  Transaction N writes meta N % 2.  Stock's writer stores the
/// roots first and the txnid last.  So commit T+2 may change the roots during a copy of meta[T & 1], while
/// its txnid is still T.  The copy is whole if its txnid is T and one of two conditions holds.  First: the
/// other meta is older than T.  Then T+1 is not visible yet, and T+2 has not started.  Second: the source
/// still returns T after the copy.  It returns T+1 only after commit T+1 has ended, and T+2 starts later.  If
/// neither holds, the function tries again with the newer id.
///
/// If the source returns 0, the newest meta is used, which is safe because a slot with id 0 keeps all pages.
/// A source returns 0 if nothing was ever committed, or if another environment of this process is setting up
/// the lock file of the same file again.  File locks do not prevent this inside one process.  In this case
/// stock shows the reader an empty database.
///
/// `metas` are page 0 and page 1.  Returns MDB_BAD_TXN after kTries rounds, if writers commit faster than a
/// meta can be copied, or the error of the source.
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

/// Returns whether a lock-free reader of `txnid` may have seen pages of a later transaction.  The second
/// commit after `txnid` is the first one that may overwrite pages of the snapshot, because a writer reuses
/// only pages that were freed before its predecessor.
inline bool overtaken(const std::byte* const (&metas)[2], std::uint64_t txnid) noexcept {
  for (const std::byte* const meta : metas) {
    const std::uint64_t id = SharedWords::load(meta + detail::kAtTxnid);
    if (id > txnid && id - txnid > 1) return true;
  }
  return false;
}

/// Returns the newest txnid in the metas, without a lock.  For readers that have no companion.
class MetaSource {
 public:
  explicit MetaSource(const std::byte* const (&metas)[2]) noexcept : metas_{metas[0], metas[1]} {}
  Status renew(std::uint64_t& txnid) const noexcept;

 private:
  const std::byte* metas_[2];
};

}  // namespace lmdbio::tree
