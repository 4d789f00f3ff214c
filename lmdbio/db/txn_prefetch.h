// The keys that a transaction prefetches (lmdbio_prefetch): values on their way, and those that are here.
//
// No thread: reads are submitted and taken in by the calls themselves, add() and answer().  A value goes
// into the transaction's arena, or into the page cache from where the mapping gives it (prefetch_file.h says
// which). Small values lie in leaf pages, which are read through the page cache on the way.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lmdbio/cache/value_arena.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/db/bulk_lookup.h"
#include "lmdbio/db/prefetch_counters.h"
#include "lmdbio/db/prefetch_file.h"
#include "lmdbio/db/prefetch_queues.h"
#include "lmdbio/db/prefetch_table.h"

namespace lmdbio::db {

class Txn;

/// A transaction's.  Its memory stays valid until end().
class TxnPrefetch {
 public:
  /// Null: out of memory.
  static std::unique_ptr<TxnPrefetch> make(std::shared_ptr<PrefetchFile> file) noexcept;
  ~TxnPrefetch();
  TxnPrefetch(const TxnPrefetch&) = delete;
  TxnPrefetch& operator=(const TxnPrefetch&) = delete;

  /// Begins to read the values of `keys`, none of them empty; waits for pages of the tree.  What goes wrong
  /// is left to lookups.  errno is not preserved.
  void add(Txn& txn, MDB_dbi dbi, std::span<const MDB_val> keys) noexcept;
  /// A lookup: true if the answer is `st` and `data`, which are not touched otherwise.  Waits for a value
  /// that is on its way.  No cancellation point; errno preserved.
  bool answer(const PrefetchedTree& tree, const MDB_val& key, const cache::WindowView& view, MDB_val& data,
              Status& st) noexcept;
  /// The transaction ends: waits for reads in flight.  Its memory may be used again by another one.
  void end() noexcept;
  /// In a forked child another thread was in here: its state is unknown, and it must not be
  /// freed.
  bool lost() const noexcept { return busy_ && forks_ != file_->prefetcher().forks(); }
  const PrefetchFile& file() const noexcept { return *file_; }
  /// Since the last call of this.
  PrefetchCounters take_counters() noexcept;

 private:
  /// A thread is in here.
  class Busy {
   public:
    explicit Busy(bool& flag) noexcept : flag_(flag) { flag_ = true; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() { flag_ = false; }

   private:
    bool& flag_;
  };

  /// A key that was found with a value in pages of its own.
  struct Wanted {
    std::size_t key = 0;
    std::uint64_t page = 0;
    std::uint32_t bytes = 0;
  };
  /// Values that lie one after the other and are read as one.
  struct Run {
    std::size_t first = 0, count = 0;  ///< of wanted_
    std::size_t key = 0;               ///< the one added first
  };
  /// Of the keys that were looked at in a call.
  struct Seen {
    bool any = false, cold = false;
  };

  explicit TxnPrefetch(std::shared_ptr<PrefetchFile> file);
  bool ready(const Txn& txn);
  bool make_queues(std::uint64_t file_bytes);
  void find_some(Txn& txn, const PrefetchedTree& tree, const format::DbRecord& db,
                 std::span<const MDB_val> keys, std::size_t from, std::size_t step, Seen& seen);
  void read_wanted(const Txn& txn, std::size_t tree, std::span<const MDB_val> keys);
  void read_run(const Run& run, std::span<PrefetchedKey* const> items, unsigned page_shift);
  bool read_into_arena(const Run& run, std::span<PrefetchedKey* const> items, const Extent& extent,
                       unsigned page_shift);
  void read_into_page_cache(const Run& run, std::span<PrefetchedKey* const> items, const Extent& extent);
  std::optional<format::DbRecord> record_of(Txn& txn, MDB_dbi dbi);
  bool give_out(PrefetchedKey& e, unsigned page_shift) noexcept;
  bool wait_for_slab(PrefetchedKey& e) noexcept;
  bool wait_for_page_cache(PrefetchedKey& e) noexcept;
  void drop_reads() noexcept;
  void forget_pages() noexcept;
  void after_fork() noexcept;
  bool forked_here() noexcept;

  const std::shared_ptr<PrefetchFile> file_;
  PrefetchQueues queues_;
  std::unique_ptr<PageStore> store_;
  std::uint64_t store_reserved_ = 0;  ///< bytes
  bool joined_ = false;               ///< counted as a user of the process's memory
  cache::ValueArena arena_;
  Mapping scratch_;  ///< where reads into the page cache leave their bytes: nobody looks at them
  std::size_t next_scratch_ = 0;
  PrefetchTable table_;
  std::deque<std::shared_ptr<ReadGroup>>
      groups_;  ///< of reads into the page cache, those in flight among them
  std::vector<Wanted> wanted_;
  std::uint64_t passed_ = 0;  ///< number of the newest key that was looked up
  std::uint64_t txnid_ = 0;
  std::uint32_t window_ = 0;  ///< of store_, with txnid_
  unsigned step_ = 1;         ///< of the keys, each step_-th is probed first
  std::uint64_t skipped_ = 0;
  PrefetchCounters counters_;
  unsigned forks_;
  bool busy_ = false;
};

}  // namespace lmdbio::db
