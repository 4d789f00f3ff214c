// Handles that programs hold: our environments, transactions and cursors.  A tag distinguishes them from
// stock's.
#pragma once

#include <lmdb.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "compat/prove.h"
#include "compat/stats.h"
#include "compat/stock.h"
#include "lmdbio/tree/cursor.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"

namespace lmdbio::compat {

// The first eight bytes of our handles.  A stock handle starts with a pointer or with two descriptors, so its
// first eight bytes never equal one of these.
inline constexpr std::uint64_t kEnvTag = 0xD1EC0DE5'4C4D4201, kReadTxnTag = 0xD1EC0DE5'4C4D4202,
                               kForwardTxnTag = 0xD1EC0DE5'4C4D4203, kReadCursorTag = 0xD1EC0DE5'4C4D4204,
                               kForwardCursorTag = 0xD1EC0DE5'4C4D4205, kChildTxnTag = 0xD1EC0DE5'4C4D4206;

inline std::uint64_t tag_of(const void* handle) noexcept {
  std::uint64_t tag;
  std::memcpy(&tag, handle, sizeof tag);
  return tag;
}

/// Returns `handle` as a T of ours, or nullptr for a null handle or one of stock's.
template <class T>
inline T* as(const void* handle) noexcept {
  return handle != nullptr && tag_of(handle) == T::kTag ? static_cast<T*>(const_cast<void*>(handle))
                                                        : nullptr;
}

struct EnvHandle;
struct ReadTxn;

/// A program's handle of a transaction that the engine serves.  A forked child may abandon any number of
/// transactions: py-lmdb 1.7 and later never end those that began in an inherited environment.  So old
/// handles are parked.  The ReadTxn of a parked handle serves another handle.  The next call with the parked
/// handle gives it a ReadTxn again.  See docs/concurrency.md.
struct TxnHandle {
  static constexpr std::uint64_t kTag = kReadTxnTag;
  /// Values of `owner`. kNever: the handle is never parked. kParked: it is parked.  Any other value is a
  /// thread (this_thread()).
  static constexpr std::uintptr_t kNever = 0, kParked = 1;
  TxnHandle(EnvHandle* e, ReadTxn* t) noexcept : txn(t), env(e) {}

  std::uint64_t tag = kTag;  ///< kChildTxnTag: began in a forked child, and may be parked
  ReadTxn* txn;              ///< null: parked
  EnvHandle* env;
  /// The thread that began the transaction.  Only this thread may park the handle, and only until another
  /// thread uses the handle.
  std::atomic<std::uintptr_t> owner{kNever};
  std::atomic<unsigned> refs{1};  ///< one, plus one for each cursor that was opened in a forked child
  bool by_metas = false;          ///< ReadTxn::by_metas, while the handle is parked
  std::uint64_t began = 0;        ///< order of begins in a forked child
  // Used while the handle is parked, under the mutex of lock_handles():
  TxnHandle *next = nullptr, *prev = nullptr;
  tree::Txn::Saved saved;

  /// Drops a reference.  The last one frees the handle.
  void drop() noexcept {
    if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

/// A transaction that the engine serves, beside its companion in the real library.  ReadTxns are pooled:
/// beginning and ending a transaction does not allocate.  The counters stay in the ReadTxn until they are
/// read.
struct ReadTxn {
  ReadTxn(EnvHandle& e, tree::Env& engine);
  ~ReadTxn();

  EnvHandle* env;                 ///< null: the environment was closed before the transaction ended
  TxnHandle* handle = nullptr;    ///< null: a spare without a handle, or the stand-in for parked ones
  MDB_txn* companion = nullptr;   ///< reset while the handle is spare, or null
  std::atomic<bool> live{false};  ///< the program holds it
  bool by_metas = false;          ///< runs without a reader slot; the companion, if any, is not begun
  bool unprotected = false;       ///< runs without locks; its end checks whether a writer overtook it
  std::uint64_t used_before = 0;  ///< used() when it became unprotected
  /// Returns the number of lookups and positionings so far.  It continues over transactions: the count is not
  /// reset.
  std::uint64_t used() const noexcept;
  /// Marks that the transaction runs without locks from now on.
  void unprotect() noexcept {
    unprotected = true;
    used_before = used();
  }
  /// See Stock::read_only_error().
  int read_only_error() const noexcept;
  /// Returns whether the handle can be parked: no cursor or reader depends on it.
  bool parkable() const noexcept {
    return handle->refs.load(std::memory_order_acquire) == 1 && txn.savable();
  }
  ReadTxn* next_spare = nullptr;
  ReadTxn *next = nullptr, *prev = nullptr;  ///< list of all in the environment; see lock_handles
  node::Cell<tree::Counters> counters;
  tree::Txn txn;
};

inline std::uintptr_t this_thread() noexcept {
  return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
}

/// Returns the transaction of a handle with kChildTxnTag, which is not parked afterwards.  Never null: if
/// memory is short, it is a transaction that has ended.
[[gnu::noinline]] ReadTxn* txn_of_child(TxnHandle& h) noexcept;

template <>
inline ReadTxn* as<ReadTxn>(const void* handle) noexcept {
  if (handle == nullptr) return nullptr;
  auto* const h = static_cast<TxnHandle*>(const_cast<void*>(handle));
  const std::uint64_t tag = tag_of(handle);
  if (tag == kReadTxnTag) [[likely]]
    return h->txn;
  return tag == kChildTxnTag ? txn_of_child(*h) : nullptr;
}

/// Begins a transaction without a reader slot, on a snapshot for which another process has one.  See
/// tree::Txn::begin_at().
int begin_lent(EnvHandle& e, const tree::Snapshot& snapshot, MDB_txn** ret);

/// Ends a parked transaction.  Frees its handle unless `reset`.  Returns false if `txn` is not parked.
bool end_parked(TxnHandle& h, bool reset) noexcept;
inline bool end_parked(MDB_txn* txn, bool reset) noexcept {
  return txn != nullptr && tag_of(txn) == kChildTxnTag &&
         end_parked(*reinterpret_cast<TxnHandle*>(txn), reset);
}

/// A transaction of the real library, in environments that the engine does not serve, such as writable ones.
struct ForwardCursor;
struct ForwardTxn {
  static constexpr std::uint64_t kTag = kForwardTxnTag;
  std::uint64_t tag = kTag;
  EnvHandle* env = nullptr;
  MDB_txn* real = nullptr;
  ForwardTxn* parent = nullptr;
  /// At most one (lmdb.h).  Read-only children (1.0) are not recorded: the program ends them before their
  /// parent.
  ForwardTxn* child = nullptr;
  bool read_only = false;
  ForwardCursor* cursors = nullptr;
  ForwardCounters counters;
};

/// A cursor that the engine serves.  Both kinds of cursor handles have one size: mdb_cursor_renew may move a
/// cursor between an environment of ours and a pass-through one, and a handle's address cannot change.
struct ReadCursor {
  static constexpr std::uint64_t kTag = kReadCursorTag;
  ReadCursor(ReadTxn& t, MDB_dbi dbi, std::unique_ptr<tree::Walker> dups) noexcept
      : handle(t), cursor(t.txn, dbi, std::move(dups)) {}

  /// Refers to the handle of the cursor's transaction.  The reference may dangle, as in stock.  In a forked
  /// child it is counted, so it does not dangle.
  class Ref {
   public:
    explicit Ref(const ReadTxn& t) noexcept { set(t); }
    ~Ref() { drop(); }
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    TxnHandle* get() const noexcept { return handle_; }
    /// See Stock::read_only_error().
    int read_only_error() const noexcept { return read_only_error_; }
    void replace(const ReadTxn& t) noexcept {
      drop();
      set(t);
    }

   private:
    void set(const ReadTxn& t) noexcept;
    void drop() noexcept {
      if (counted_) [[unlikely]]
        handle_->drop();
    }
    TxnHandle* handle_ = nullptr;
    int read_only_error_ = EACCES;
    bool counted_ = false;
  };

  std::uint64_t tag = kTag;
  Ref handle;  ///< dropped after the cursor, which uses the transaction
  tree::Cursor cursor;
};

struct ForwardCursor {
  static constexpr std::uint64_t kTag = kForwardCursorTag;
  ForwardCursor(ForwardTxn& t, MDB_cursor* of_real) noexcept;

  std::uint64_t tag = kTag;
  MDB_cursor* real;
  ForwardTxn* owner = nullptr;      ///< null: a read-only transaction that ended
  MDB_txn* owner_handle = nullptr;  ///< what mdb_cursor_txn returned last
  const Stock* stock = nullptr;
  EnvHandle* env = nullptr;
  ForwardCursor *next = nullptr, **link = nullptr;
  ForwardCounters counters;

  void attach(ForwardTxn& t) noexcept;
  void detach() noexcept;
  void count(std::uint64_t ForwardCounters::*which) noexcept;
};

/// The program's settings before the open of an environment, and the arguments of the open.  Used to open
/// another real environment in the same way.
struct Setup {
  std::size_t map_bytes = 0;  ///< 0: not set
  unsigned readers = 0;       ///< 0: not set
  int page_bytes = 0;         ///< of a new file (1.0); 0: not set
  unsigned open_flags = 0;
  mdb_mode_t mode = 0;
  void* userctx = nullptr;
  MDB_assert_func* assert_function = nullptr;
  std::string path;        ///< absolute
  bool own_pages = false;  ///< the program sets functions that encrypt pages, or calculate checksums (1.0)
};

/// State of a forked child's companion.  none: not requested yet.  now: a thread opens it.  done: opened, or
/// failed.
enum class Reopening : int { none, now, done };

/// An environment as the program holds it, with one of the real library inside.
struct EnvHandle {
  static constexpr std::uint64_t kTag = kEnvTag;
  std::uint64_t tag = kTag;
  const Stock* stock = nullptr;
  /// Null if `alone`.  In a forked child with an engine, null until companion() has opened it.
  std::atomic<MDB_env*> real{nullptr};
  std::unique_ptr<tree::Env> engine;  ///< null: pass-through
  int fd = -1;                        ///< of the data file, from the real environment at the engine's start
  bool keep_companions = false;       ///< the reader table does not show a reset companion
  bool opened = false;
  bool tried = false;      ///< an open failed in the real library
  bool refused = false;    ///< an open was refused before the real library was called
  bool alone = false;      ///< there never is a real environment: see alone.h
  bool local = false;      ///< the file was known to be on a local file system before the open
  bool lockless = false;   ///< the real environment has no locks, though the program did not ask for that
  bool inherited = false;  ///< opened before a fork; this process is the child
  unsigned max_dbs = 0;
  Setup setup;
  std::atomic<Reopening> reopening{Reopening::none};
  int reopen_error = 0;  ///< published by `reopening`
  KeptFd proof;          ///< see prove_openable()
  unsigned flags = 0;    ///< mdb_env_get_flags, of an environment with an engine
  int max_key = 0;       ///< mdb_env_get_maxkeysize
  unsigned max_readers = 0;
  std::atomic<bool> overtaken{false};  ///< it was logged that a writer overtook a reader without locks
  std::atomic<bool> lost{false};       ///< it was logged that a parked transaction lost its snapshot
  EnvHandle *next = nullptr, *prev = nullptr;  ///< of served_environments
  EnvStats stats;

  /// Puts the environment on the list that for_each_served() visits.  The engine must have started.
  void serve() noexcept;
  /// Returns the real library's handle, for environments that are passed through or have not been opened.
  MDB_env* passed() const noexcept { return real.load(std::memory_order_relaxed); }
  /// For a forked child: transactions go on, or begin, without the parent's companions.
  void forget_companions() noexcept;
  /// For a forked child: resets the counters, which belong to the parent.  The caller holds the lock of
  /// lock_handles().
  void forget_counters() noexcept;

  /// Returns a spare or new ReadTxn for a transaction that is about to begin.  Returns nullptr if memory is
  /// short.
  ReadTxn* take() noexcept;
  /// Takes back a transaction that the program has ended.  Its companion is reset or null.  Its memory stays
  /// until the environment is closed, because cursors that were not renewed may still read it.
  void give_back(ReadTxn* t) noexcept;
  /// Returns the transaction of `h`, which is parked or owned by another thread.  For txn_of_child().  If
  /// `was_parked`, the caller must restore the transaction.
  ReadTxn* adopt(TxnHandle& h, bool& was_parked) noexcept;
  /// Called after `t` got no reader slot.  If the calling thread has enough other transactions, parks the
  /// oldest and returns its ReadTxn in place of `t`.  Otherwise returns `t`.
  ReadTxn* with_slot_of_oldest(ReadTxn* t) noexcept;
  /// Implements compat::end_parked() for a handle of this environment.
  bool end_parked(TxnHandle& h, bool reset) noexcept;
  /// Ends the companions of spare handles.  Detaches handles that the program still holds from this
  /// environment.  Adds the counters of all to `stats`.  Call this function before mdb_env_close of the real
  /// environment.
  void close_transactions() noexcept;
  /// Returns whether no transaction of ours runs, so that windows may be released.
  bool idle() noexcept;
  /// Returns the transaction that the program holds and whose handle is one of `words`, or nullptr.  The
  /// caller holds the lock of lock_handles().
  TxnHandle* live_among(std::span<const std::uintptr_t> words) noexcept;
  /// Returns the counters of all transactions so far.
  tree::Counters read_counters() noexcept;
  /// Returns whether the program holds a transaction.  The caller holds the lock of lock_handles().
  bool has_live() const noexcept;

 private:
  // Spare transactions.  The thread determines where a search begins, so that up to kPlaces threads mostly
  // share no cache line.
  struct alignas(64) Spare {
    std::atomic<ReadTxn*> txn{nullptr};
  };
  static std::size_t spare_index() noexcept;
  ReadTxn* take_spare() noexcept;
  ReadTxn* with_handle(ReadTxn* t) noexcept;
  ReadTxn* make();
  void make_stand_in();
  void forget(ReadTxn* t) noexcept;
  ReadTxn* park_oldest(unsigned least);
  ReadTxn* oldest_of_thread(unsigned least) noexcept;
  void park(ReadTxn& t) noexcept;

  /// Upper limit on the transactions of one thread of a forked child that are not parked.  Each has a reader
  /// slot.
  static constexpr unsigned kMostHeld = 16;
  /// The number of transactions that a thread keeps if there is no slot for another one.
  static constexpr unsigned kLeastHeld = 4;
  /// Maximum number of transactions that are examined to find one to park.
  static constexpr unsigned kLook = 256;

  static constexpr unsigned kPlaces = 64, kProbes = 8;
  std::array<Spare, kPlaces> spare_;
  ReadTxn* more_spare_ = nullptr;  ///< spares that found no place; guarded by the mutex of lock_handles()
  std::atomic<bool> any_more_{false};
  std::atomic<std::uint64_t> begun_{0};  ///< transactions, in a forked child
  /// A transaction that has ended.  Parked handles get it if memory is short, and when the environment is
  /// closed.  Null until a handle was parked.
  std::atomic<ReadTxn*> stand_in_{nullptr};
  // Guarded by the mutex of lock_handles():
  ReadTxn* all_ = nullptr;
  TxnHandle* parked_ = nullptr;
};

inline int ReadTxn::read_only_error() const noexcept {
  return env != nullptr ? env->stock->read_only_error() : EACCES;
}

/// Environments with an engine.  Guarded by the mutex of lock_handles().
extern EnvHandle* served_environments;
template <class F>
void for_each_served(F&& f) noexcept {
  for (EnvHandle* e = served_environments; e != nullptr; e = e->next) f(*e);
}

/// Lock and unlock the mutex of all environments' lists of transactions, for atfork.  It is taken where a
/// handle is made or freed, not where one is reused.
void lock_handles() noexcept;
void unlock_handles() noexcept;

inline constexpr std::size_t kCursorHandleBytes = std::max(sizeof(ReadCursor), sizeof(ForwardCursor));

/// Makes a cursor handle of kind T in `room` (kCursorHandleBytes).  Does not throw.  Calls that may run a
/// comparator must come before this call.
template <class T, class... Args>
T* make_cursor(void* room, Args&&... args) noexcept {
  return ::new (room) T(std::forward<Args>(args)...);
}
/// Allocates memory for a cursor handle.  Returns nullptr if memory is short.
inline void* cursor_room() noexcept { return ::operator new(kCursorHandleBytes, std::nothrow); }
/// Destroys the cursor and returns the handle's memory, for make_cursor.
template <class T>
void* empty_cursor(T* c) noexcept {
  c->~T();
  return c;
}
template <class T>
void free_cursor(T* c) noexcept {
  c->tag = 0;
  ::operator delete(empty_cursor(c));
}

/// Fills in what mdb_stat returns for a database.
inline void fill(MDB_stat& out, std::size_t page_size, const format::DbRecord& db) noexcept {
  out.ms_psize = static_cast<unsigned>(page_size);
  out.ms_depth = db.depth;
  out.ms_branch_pages = db.branch_pages;
  out.ms_leaf_pages = db.leaf_pages;
  out.ms_overflow_pages = db.overflow_pages;
  out.ms_entries = db.entries;
}

inline void ReadCursor::Ref::set(const ReadTxn& t) noexcept {
  handle_ = t.handle;
  if (t.env != nullptr) read_only_error_ = t.env->stock->read_only_error();
  counted_ = t.env != nullptr && t.env->inherited;
  if (counted_) [[unlikely]]
    handle_->refs.fetch_add(1, std::memory_order_relaxed);
}

inline MDB_env* give(EnvHandle* e) noexcept { return reinterpret_cast<MDB_env*>(e); }
inline MDB_txn* give(TxnHandle* h) noexcept { return reinterpret_cast<MDB_txn*>(h); }
inline MDB_txn* give(ReadTxn* t) noexcept { return give(t->handle); }
inline MDB_txn* give(ForwardTxn* t) noexcept { return reinterpret_cast<MDB_txn*>(t); }
inline MDB_cursor* give(ReadCursor* c) noexcept { return reinterpret_cast<MDB_cursor*>(c); }
inline MDB_cursor* give(ForwardCursor* c) noexcept { return reinterpret_cast<MDB_cursor*>(c); }

}  // namespace lmdbio::compat
