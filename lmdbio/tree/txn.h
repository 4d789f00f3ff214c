// A read-only transaction: its snapshot, the records of its databases, and lookups.
#pragma once

#include <lmdb.h>

#include <algorithm>
#include <memory>
#include <span>

#include "lmdbio/ahead/lookups.h"
#include "lmdbio/ahead/unmapped_file.h"
#include "lmdbio/base/result.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/prefetch_counters.h"
#include "lmdbio/tree/snapshot.h"
#include "lmdbio/window/window.h"

namespace lmdbio::format {
struct Place;
}

namespace lmdbio::tree {

/// Counts the calls of a transaction.  Plain numbers: one thread uses them at a time.
struct Counters {
  static constexpr unsigned kCursorOps = 19;  ///< MDB_cursor_op values; one more counter is for invalid ones
  std::uint64_t get = 0, get_missed = 0;
  std::uint64_t cursor_op[kCursorOps + 1]{};
  std::uint64_t cursor_failed = 0;       ///< calls in cursor_op that returned no record
  std::uint64_t bytes = 0;               ///< total size of the values returned
  std::uint64_t begun = 0, renewed = 0;  ///< transactions
  PrefetchCounters prefetch;

  void add(const Counters& c) noexcept;
};

class TxnPrefetch;

/// A read-only transaction.  Not thread-safe; may move between threads by the rules of lmdb.h.  Memory that
/// it returns belongs to the window.  It stays valid until the transaction ends, is reset or is renewed.
class Txn {
 public:
  explicit Txn(Env& env);
  ~Txn();
  Txn(const Txn&) = delete;
  Txn& operator=(const Txn&) = delete;

  /// Begins a transaction on the newest snapshot.  `txnid` is the id that `source` holds now.  After a
  /// failure the transaction is finished.
  template <SnapshotSource Source>
  Status begin(std::uint64_t txnid, Source&& source) {
    // A committed snapshot never changes, so a handle that has read snapshot `txnid` before does not copy it
    // again.  Renew, get and reset on 10 k records took 0.88 of stock's time with the copy, 0.78 without.
    if (txnid == snapshot_.txnid && stamp_.window() == env_->window_number()) [[likely]] {
      restart();
      return {};
    }
    stamp_.set_window(0);
    if (env_->window() == nullptr) return Status::from_errno(ENOMEM);
    snapshot_.txnid = txnid;
    Env::Metas metas;
    do {  // again if a chunk has replaced the metas in the window meanwhile
      metas = env_->metas();
      if (const Status st = read_snapshot(metas.records, source, snapshot_);
          !st.ok() && metas.records[0] == env_->metas().records[0]) {
        block(kFinished);
        return st;
      }
      std::atomic_thread_fence(std::memory_order_acquire);
    } while (metas.records[0] != env_->metas().records[0]);
    return enter();
  }
  /// Begins a transaction on a snapshot for which another process has a reader slot.  The slot must stay as
  /// long as the transaction runs.  Errors as begin().
  Status begin_at(const Snapshot& snapshot) {
    stamp_.set_window(0);
    if (env_->window() == nullptr) return Status::from_errno(ENOMEM);
    snapshot_ = snapshot;
    return enter();
  }
  /// As begin(), for a file that cannot be mapped: reads the metas from the file.  The previous transaction
  /// must have ended.
  Status begin_unmapped() noexcept;
  /// Implements mdb_txn_reset, abort and commit.  If `keep`, databases that were opened in it stay open.
  /// Cursors stay attached.
  void end(bool keep) noexcept;
  /// The state of a transaction without cursors, with which the transaction continues in another Txn or is
  /// renewed there.
  struct Saved {
    Snapshot snapshot;
    unsigned num_dbs = 0;
    bool runs = false;
  };
  /// Returns whether save() loses nothing that a program could notice.
  bool savable() const noexcept;
  Saved save() const noexcept { return {snapshot_, num_dbs_, !finished()}; }
  /// Continues a saved transaction in this Txn, whose own transaction is finished.
  void restore(const Saved& saved) noexcept;
  /// Forbids further reads of the snapshot: calls return MDB_BAD_TXN.
  void lose() noexcept { block(kError); }
  /// Lets calls read on after one of them found damage.  Cursors of the transaction must be closed.  Returns
  /// false if the transaction is blocked for another reason.
  bool pardon() noexcept {
    if ((blocked_ & ~unsigned{kDamage}) != 0) return false;
    blocked_ = 0;
    stamp_.bits &= ~Stamp::kBlocked;
    return true;
  }
  /// Prepares the Txn for another user.  Cursors of the previous use return MDB_BAD_TXN from now on.  Records
  /// of named databases are cleared (in a new transaction, an unknown record is all zeros).
  void recycle() noexcept;

  std::uint64_t id() const noexcept { return snapshot_.txnid; }
  const Snapshot& snapshot() const noexcept { return snapshot_; }
  /// Returns whether calls return MDB_BAD_TXN: the transaction has ended or was lost, or an earlier call
  /// found damage in the tree.
  bool blocked() const noexcept { return blocked_ != 0; }
  /// Returns whether the record must still be looked up by name.
  bool stale(MDB_dbi dbi) const noexcept { return (dbi_state_[dbi] & kStale) != 0; }
  bool finished() const noexcept { return (blocked_ & kFinished) != 0; }
  Env& env() noexcept { return *env_; }
  const window::WindowView& view() const noexcept { return view_; }
  /// A cursor's record of its transaction: to which use of the Txn it belongs, and to which window.  A
  /// comparison of stamps also detects a blocked transaction, because a cursor's stamp never contains
  /// kBlocked.
  struct Stamp {
    std::uint64_t bits;
    static constexpr std::uint64_t kBlocked = std::uint64_t{1} << 63;  ///< never in a cursor's stamp
    std::uint32_t use() const noexcept { return static_cast<std::uint32_t>((bits & ~kBlocked) >> 32); }
    std::uint32_t window() const noexcept {
      return static_cast<std::uint32_t>(bits);
    }  ///< 0: no snapshot was read
    void set_window(std::uint32_t n) noexcept { bits = (bits & ~std::uint64_t{0xffffffff}) | n; }
    void next_use() noexcept { bits = (bits & kBlocked) | ((bits + (std::uint64_t{1} << 32)) & ~kBlocked); }
  };
  Stamp stamp() const noexcept { return stamp_; }

  /// Returns whether programs may use `dbi`, as stock's TXN_DBI_EXIST. `free_too` includes the free database.
  bool has_dbi(MDB_dbi dbi, bool free_too = false) const noexcept {
    return dbi < num_dbs_ && (dbi_state_[dbi] & (free_too ? kValid : kUserValid)) != 0;
  }
  /// Returns the database's record in this snapshot.  Looks it up by name at first use.
  Result<const format::DbRecord*> record(MDB_dbi dbi);
  const format::DbRecord& record_now(MDB_dbi dbi) const noexcept { return dbs_[dbi]; }

  /// Implements mdb_get after stock's checks of its arguments.  May run a user's comparator, which may throw.
  Status get(MDB_dbi dbi, const MDB_val& key, MDB_val& data);

  /// Looks up `key` in entry `index` of leaf page `page`, which must be a page of this snapshot.  Returns
  /// false if the entry is not a plain record with this key, or cannot be read; get() then has the answer.
  bool get_at(MDB_dbi dbi, std::uint64_t page, unsigned index, const MDB_val& key, MDB_val& data) noexcept;
  /// Returns true if entry `index` of leaf page `page`, as for get_at(), and its value are in the page cache.
  bool is_resident(std::uint64_t page, unsigned index) noexcept;

  /// Implements lmdbio_prefetch: announces lookups of `keys`, none of them empty.  Waits for pages of the
  /// tree.  Does not run a user's comparator.  This is a hint: it changes the time of lookups, not their
  /// results.
  void prefetch(MDB_dbi dbi, std::span<const MDB_val> keys) noexcept;

  /// order_main() gives the main database its default orders if it has none, as stock does before it looks up
  /// a name. order_main_anew() replaces its orders by the default ones.
  void order_main() noexcept;
  void order_main_anew() noexcept;
  /// Implements mdb_dbi_open in stock's order of checks.  A null `name` means the main database.  Sets `dbi`
  /// only on success.  May run a user's comparator of the main database.  As in stock, one thread at a time
  /// (lmdb.h).
  Status open_dbi(const char* name, unsigned flags, MDB_dbi& dbi);

  /// Sets `out` to page `p` of a tree.  Damage blocks the transaction, as in stock; a failed read does not.
  Status page(format::Pgno p, format::PageView& out) noexcept {
    if (view_.version() != format::Version::v09) [[unlikely]]
      return page_10(p, out);
    return page<format::Version::v09>(p, out);
  }
  /// Does the same in a file of version kVersion.
  template <format::Version kVersion>
  Status page(format::Pgno p, format::PageView& out) noexcept {
    const std::byte* const bytes = view_.at(p);
    if (bytes == nullptr || format::raw(p) < format::kMetaPages ||
        !format::PageView::open(kVersion, bytes, view_.page_size(), p, out)) [[unlikely]]
      return bad_page(p);
    return {};
  }
  /// Sets `data` to the value of a leaf's node.
  [[gnu::always_inline]] Status value(const format::Node& node, MDB_val& data) noexcept {
    if (node.version != format::Version::v09) [[unlikely]]
      return value_10(node.at, data);
    return value<format::Version::v09>(node.at, data);
  }
  /// Does the same for the node at `at` in a file of version kVersion.
  template <format::Version kVersion>
  [[gnu::always_inline]] Status value(const std::byte* at, MDB_val& data) noexcept {
    const format::Node node{at, kVersion};
    const std::uint32_t size = node.data_size();
    const std::byte* const in_node =
        node.key() + format::data_after_key(kVersion, node.key_size());  // the data, or the run's record
    if ((node.flags() & format::kBigData) == 0) {
      data = {size, const_cast<std::byte*>(in_node)};
      return {};
    }
    const auto p = load<format::Pgno>(in_node);
    const std::byte* run;
    if (!view_.find<kVersion>(p, size, run)) [[unlikely]]
      return bad_run(p, size);
    data = {size, const_cast<std::byte*>(run)};
    return {};
  }
  /// Marks the tree as damaged, logs it and returns MDB_CORRUPTED. Later calls return MDB_BAD_TXN. `what`
  /// describes the damage of the page that contains `at`; the log uses `what` if a check of the page itself
  /// finds no damage.
  [[gnu::cold]] Status corrupted(const char* what, const std::byte* at) noexcept;

  /// Called before a lookup of `key`.  From time to time, probes residency and reads what the lookup will
  /// touch.  While data is missing, does so at each lookup.  `or_next`: if there is no such key, the lookup
  /// returns the next record.
  void before_lookup(MDB_dbi dbi, const MDB_val& key, bool or_next) noexcept {
    if (--ask_in_ == 0) [[unlikely]]
      ask(dbi, key, or_next);
  }

  /// Returns the leaf of the last lookup, or nullptr.  Callers use it as a hint about the layout of leaves.
  const std::byte* leaf_seen() const noexcept { return leaf_seen_; }
  void saw_leaf(const std::byte* page) noexcept { leaf_seen_ = page; }

  Counters& counters() noexcept { return *counters_; }
  const Counters& counters() const noexcept { return *counters_; }
  /// Counts in `counters` from now on.  It must outlive the transaction.
  void count_in(Counters& counters) noexcept { counters_ = &counters; }

 private:
  enum : unsigned { kFinished = 1, kError = 2, kDamage = 4 };
  enum : unsigned char { kNew = 1, kStale = 2, kValid = 4, kUserValid = 8 };

  void block(unsigned why) noexcept {
    blocked_ |= why;
    stamp_.bits |= Stamp::kBlocked;
  }
  // Runs the transaction on snapshot_.
  Status enter() noexcept {
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
  void start(std::uint32_t window, const window::WindowView& view) noexcept;
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
  [[gnu::noinline]] Status page_10(format::Pgno p, format::PageView& out) noexcept {
    return page<format::Version::v10>(p, out);
  }
  [[gnu::noinline]] Status value_10(const std::byte* at, MDB_val& data) noexcept {
    return value<format::Version::v10>(at, data);
  }
  Status find(MDB_dbi dbi, const MDB_val& key, MDB_val& data);
  template <format::Version kVersion>
  Status find_memn(MDB_dbi dbi, const MDB_val& key, MDB_val& data);
  template <format::Version kVersion>
  Status found(MDB_dbi dbi, const MDB_val& key, MDB_val& data, const format::PageView& leaf,
               const format::Place& place);
  Status find_other(MDB_dbi dbi, const MDB_val& key, MDB_val& data);
  [[gnu::noinline]] Status find_rare(MDB_dbi dbi, const MDB_val& key, MDB_val& data,
                                     const format::Node* node);
  [[gnu::noinline]] Status find_prefetched(MDB_dbi dbi, const MDB_val& key, MDB_val& data);
  [[gnu::cold]] void forget_prefetch() noexcept;

  /// Loads pages of a file that cannot be mapped.
  class Loader final : public window::PageLoader {
   public:
    bool load(std::uint64_t first, std::uint64_t n) noexcept override;
    std::shared_ptr<window::WindowFile> file;
    unsigned page_shift = 0;
    Status failed;  ///< error of the last load
    MetaCopies metas;
  };

  unsigned blocked_ = kFinished;
  Stamp stamp_{Stamp::kBlocked};
  unsigned num_dbs_ = 0;
  std::uint32_t ask_in_ = 1;      ///< lookups until the next residency probe
  unsigned used_dbs_ = kCoreDbs;  ///< one past the highest record ever written
  window::WindowView view_;
  ZeroedArray<format::DbRecord> dbs_;
  ZeroedArray<unsigned char> dbi_state_;
  Env* env_;
  const std::byte* leaf_seen_ = nullptr;
  TxnPrefetch* prefetch_ = nullptr;  ///< null: nothing was prefetched in this transaction; else own_prefetch_
  Counters own_counters_;
  Counters* counters_ = &own_counters_;
  Snapshot snapshot_;
  ahead::UnmappedFile::Entry* entered_ = nullptr;  ///< set while a transaction of an unmapped file runs
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<TxnPrefetch> own_prefetch_;  ///< kept for later transactions
  std::unique_ptr<ahead::Lookups> lookups_;    ///< null: no lookup has probed residency yet
};

}  // namespace lmdbio::tree
