// A read-only transaction: one snapshot, the databases as they are in it, lookups.
#pragma once

#include <lmdb.h>

#include <algorithm>
#include <memory>
#include <span>

#include "lmdbio/base/result.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/db/env.h"
#include "lmdbio/db/lookups.h"
#include "lmdbio/db/prefetch_counters.h"
#include "lmdbio/db/snapshot.h"
#include "lmdbio/db/unmapped_file.h"

namespace lmdbio::db {

/// What a transaction's calls came to.  Plain numbers: one thread at a time uses it.
struct Counters {
  static constexpr unsigned kCursorOps = 19;  ///< MDB_cursor_op, and the last for anything else
  std::uint64_t get = 0, get_missed = 0;
  std::uint64_t cursor_op[kCursorOps + 1]{};
  std::uint64_t cursor_failed = 0;       ///< of cursor_op, those that gave no record
  std::uint64_t bytes = 0;               ///< sum of the sizes of the values given out
  std::uint64_t begun = 0, renewed = 0;  ///< transactions
  PrefetchCounters prefetch;

  void add(const Counters& c) noexcept;
};

class TxnPrefetch;

/// Not thread-safe; may move between threads under the rules of lmdb.h.  Memory that it hands out belongs to
/// the window and stays valid until the transaction ends, is reset or is renewed.
class Txn {
 public:
  explicit Txn(Env& env);
  ~Txn();
  Txn(const Txn&) = delete;
  Txn& operator=(const Txn&) = delete;

  /// Takes the newest snapshot.  `txnid`: what `source` holds now.  On failure the transaction is finished.
  template <SnapshotSource Source>
  Status begin(std::uint64_t txnid, Source&& source) {
    // What transaction `txnid` committed never changes: a handle that read it before need not read it again
    // (renew and reset of a get on 10 k records: 0.88 of stock with the copy, 0.78 without).
    if (txnid == snapshot_.txnid && stamp_.window() == env_->window_number()) [[likely]] {
      restart();
      return {};
    }
    stamp_.set_window(0);
    if (env_->window() == nullptr) return Status::from_errno(ENOMEM);
    snapshot_.txnid = txnid;
    Env::Metas metas;
    do {  // again where they were in the window, and a chunk has taken their place meanwhile
      metas = env_->metas();
      if (const Status st = read_snapshot(metas.pages, source, snapshot_);
          !st.ok() && metas.pages[0] == env_->metas().pages[0]) {
        block(kFinished);
        return st;
      }
      std::atomic_thread_fence(std::memory_order_acquire);
    } while (metas.pages[0] != env_->metas().pages[0]);
    if (env_->outgrown(snapshot_.last_pg)) [[unlikely]] {
      block(kFinished);
      return Status::from_mdb(MDB_MAP_RESIZED);
    }
    if (const Status st = env_->new_snapshot(snapshot_.txnid, snapshot_.last_pg + 1); !st.ok()) [[unlikely]] {
      block(kFinished);
      return st;
    }
    start(env_->window_number(),
          env_->view(std::min(snapshot_.last_pg + 1, env_->file_pages(snapshot_.txnid))));
    return {};
  }
  /// The same for a file that cannot be mapped, whose metas are read; the transaction has ended.
  Status begin_unmapped() noexcept;
  /// mdb_txn_reset, abort, commit.  `keep`: databases opened in it stay open.  Cursors stay attached.
  void end(bool keep) noexcept;
  /// What a transaction that no cursor uses needs to go on in other memory, or to be renewed there.
  struct Saved {
    Snapshot snapshot;
    unsigned num_dbs = 0;
    bool runs = false;
  };
  /// save() forgets nothing that a program could miss.
  bool savable() const noexcept;
  Saved save() const noexcept { return {snapshot_, num_dbs_, !finished()}; }
  /// Of a finished transaction.
  void restore(const Saved& saved) noexcept;
  /// Its snapshot is not to be read any more: calls get MDB_BAD_TXN.
  void lose() noexcept { block(kError); }
  /// The transaction's memory goes to another user: its cursors answer MDB_BAD_TXN from now on, and records
  /// of named databases are forgotten (an unknown one is all zeros in a new transaction).
  void recycle() noexcept;

  std::uint64_t id() const noexcept { return snapshot_.txnid; }
  const Snapshot& snapshot() const noexcept { return snapshot_; }
  /// Calls get MDB_BAD_TXN: ended, or an earlier call found the tree damaged.
  bool blocked() const noexcept { return blocked_ != 0; }
  /// The record waits to be looked up by name.
  bool stale(MDB_dbi dbi) const noexcept { return (dbi_state_[dbi] & kStale) != 0; }
  bool finished() const noexcept { return (blocked_ & kFinished) != 0; }
  Env& env() noexcept { return *env_; }
  const cache::WindowView& view() const noexcept { return view_; }
  /// What a cursor remembers of its transaction: whether it is still the same use of this memory, and the
  /// same window.
  struct Stamp {
    std::uint64_t bits;
    static constexpr std::uint64_t kBlocked = std::uint64_t{1}
                                              << 63;  ///< never of a cursor's: one compare for both
    std::uint32_t use() const noexcept { return static_cast<std::uint32_t>((bits & ~kBlocked) >> 32); }
    std::uint32_t window() const noexcept {
      return static_cast<std::uint32_t>(bits);
    }  ///< 0: no snapshot was read
    void set_window(std::uint32_t n) noexcept { bits = (bits & ~std::uint64_t{0xffffffff}) | n; }
    void next_use() noexcept { bits = (bits & kBlocked) | ((bits + (std::uint64_t{1} << 32)) & ~kBlocked); }
  };
  Stamp stamp() const noexcept { return stamp_; }

  /// TXN_DBI_EXIST of stock: usable by programs (also the free database if `free_too`).
  bool has_dbi(MDB_dbi dbi, bool free_too = false) const noexcept {
    return dbi < num_dbs_ && (dbi_state_[dbi] & (free_too ? kValid : kUserValid)) != 0;
  }
  /// The database's record in this snapshot; looked up by name at first use.
  Result<const format::DbRecord*> record(MDB_dbi dbi);
  const format::DbRecord& record_now(MDB_dbi dbi) const noexcept { return dbs_[dbi]; }

  /// mdb_get after stock's checks of its arguments.  May run a user's comparator, which may throw.
  Status get(MDB_dbi dbi, const MDB_val& key, MDB_val& data);

  /// lmdbio_prefetch: lookups of `keys`, none of them empty, will follow.  Runs no comparator of a user's;
  /// waits for pages of the tree.  A hint: nothing comes of it but time.
  void prefetch(MDB_dbi dbi, std::span<const MDB_val> keys) noexcept;

  /// The main database gets its default orders unless it has some: what stock does before it looks up a name.
  void order_main() noexcept;
  void order_main_anew() noexcept;
  /// mdb_dbi_open (`name` null: the main database), in stock's order of checks.  `dbi` is set on success
  /// alone. May run a user's comparator of the main database.  As in stock by one thread at a time (lmdb.h).
  Status open_dbi(const char* name, unsigned flags, MDB_dbi& dbi);

  /// The page `p` of a tree.  A failure is sticky, as in stock.
  Status page(format::Pgno p, format::PageView& out) noexcept {
    const std::byte* const bytes = view_.at(p);
    if (bytes == nullptr || format::raw(p) < format::kMetaPages ||
        !format::PageView::open(bytes, view_.page_size(), p, out)) [[unlikely]]
      return bad_page(p);
    return {};
  }
  /// The value of a leaf's node.
  Status value(const format::Node& node, MDB_val& data) noexcept {
    const std::uint32_t size = node.data_size();
    if ((node.flags() & format::kBigData) == 0) {
      data = {size, const_cast<std::byte*>(node.data())};
      return {};
    }
    const format::Pgno p = node.overflow();
    const std::byte* run;
    if (!view_.find(p, size, run)) [[unlikely]]
      return bad_run(p, size);
    data = {size, const_cast<std::byte*>(run)};
    return {};
  }
  /// The tree is not as it must be: MDB_CORRUPTED, and MDB_BAD_TXN from then on.  `what` is wrong with the
  /// page that `at` lies in, where the page itself does not tell; logged.
  [[gnu::cold]] Status corrupted(const char* what, const std::byte* at) noexcept;

  /// A lookup of `key` begins: now and then, and where data is not in memory each time, what it will touch is
  /// brought first.  `or_next`: it gives the next record where there is none of that key.
  void before_lookup(MDB_dbi dbi, const MDB_val& key, bool or_next) noexcept {
    if (--ask_in_ == 0) [[unlikely]]
      ask(dbi, key, or_next);
  }

  /// The leaf of the last lookup, or null: a hint of how leaves are laid out.
  const std::byte* leaf_seen() const noexcept { return leaf_seen_; }
  void saw_leaf(const std::byte* page) noexcept { leaf_seen_ = page; }

  Counters& counters() noexcept { return *counters_; }
  const Counters& counters() const noexcept { return *counters_; }
  /// From now on it counts there.  `counters` outlives the transaction.
  void count_in(Counters& counters) noexcept { counters_ = &counters; }

 private:
  enum : unsigned { kFinished = 1, kError = 2 };
  enum : unsigned char { kNew = 1, kStale = 2, kValid = 4, kUserValid = 8 };

  void block(unsigned why) noexcept {
    blocked_ |= why;
    stamp_.bits |= Stamp::kBlocked;
  }
  void start(std::uint32_t window, const cache::WindowView& view) noexcept;
  void restart() noexcept;
  [[gnu::cold]] void leave_window() noexcept;
  [[gnu::cold]] Status bad_page(format::Pgno p) noexcept;
  [[gnu::cold]] Status bad_run(format::Pgno p, std::uint64_t bytes) noexcept;
  Status unread() noexcept;
  template <bool kPrefetched>
  Status get_by(MDB_dbi dbi, const MDB_val& key, MDB_val& data);
  [[gnu::cold, gnu::noinline]] Status get_after_asking(MDB_dbi dbi, const MDB_val& key, MDB_val& data);
  [[gnu::cold, gnu::noinline]] void ask(MDB_dbi dbi, const MDB_val& key, bool or_next) noexcept;
  Status look_up(MDB_dbi dbi);
  Status find_record(const char* name, format::DbRecord& out);
  Status find(MDB_dbi dbi, const MDB_val& key, MDB_val& data);
  [[gnu::noinline]] Status find_rare(MDB_dbi dbi, const MDB_val& key, MDB_val& data,
                                     const format::Node* node);
  [[gnu::noinline]] Status find_prefetched(MDB_dbi dbi, const MDB_val& key, MDB_val& data);
  [[gnu::cold]] void forget_prefetch() noexcept;

  /// Of a file that cannot be mapped.
  class Loader final : public cache::PageLoader {
   public:
    bool load(std::uint64_t first, std::uint64_t n) noexcept override;
    std::shared_ptr<cache::FileCache> file;
    unsigned page_shift = 0;
    Status failed;  ///< of the last load
    MetaCopies metas;
  };

  unsigned blocked_ = kFinished;
  Stamp stamp_{Stamp::kBlocked};
  unsigned num_dbs_ = 0;
  std::uint32_t ask_in_ = 1;      ///< lookups until the next that asks what is in memory
  unsigned used_dbs_ = kCoreDbs;  ///< one past the highest record ever written
  cache::WindowView view_;
  ZeroedArray<format::DbRecord> dbs_;
  ZeroedArray<unsigned char> dbi_state_;
  Env* env_;
  const std::byte* leaf_seen_ = nullptr;
  TxnPrefetch* prefetch_ = nullptr;  ///< null: the transaction has prefetched nothing; else own_prefetch_
  Counters own_counters_;
  Counters* counters_ = &own_counters_;
  Snapshot snapshot_;
  UnmappedFile::Entry* entered_ = nullptr;  ///< while a transaction of an unmapped file runs
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<TxnPrefetch> own_prefetch_;  ///< kept for transactions that follow
  std::unique_ptr<Lookups> lookups_;           ///< null: none has asked yet
};

}  // namespace lmdbio::db
