// Prefetches values of keys for a transaction (lmdbio_prefetch).
//
// Prefetching uses no thread: add() and answer() submit requests and process completed ones.  A value is read
// into the transaction's arena, or into the page cache and then used through the mapping.  PrefetchFile
// decides between the two.  Small values lie in leaf pages, which add() reads through the page cache.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lmdbio/gather/queues.h"
#include "lmdbio/tree/bulk_lookup.h"
#include "lmdbio/tree/prefetch_counters.h"
#include "lmdbio/tree/prefetch_file.h"
#include "lmdbio/tree/prefetch_table.h"
#include "lmdbio/window/value_arena.h"
#include "lmdbio/window/window.h"

namespace lmdbio::tree {

class Txn;

/// The prefetched keys of one transaction.  Values that it returns stay valid until end().
class TxnPrefetch {
 public:
  /// Returns nullptr if memory is short.
  static std::unique_ptr<TxnPrefetch> make(std::shared_ptr<PrefetchFile> file) noexcept;
  ~TxnPrefetch();
  TxnPrefetch(const TxnPrefetch&) = delete;
  TxnPrefetch& operator=(const TxnPrefetch&) = delete;

  /// Submits reads of the values of `keys`, none of them empty.  Waits for pages of the tree.  Errors are
  /// left to lookups.  Does not preserve errno.
  void add(Txn& txn, MDB_dbi dbi, std::span<const MDB_val> keys) noexcept;
  /// Answers a lookup.  If the answer is known, returns true and sets `st`, and `data` on success; otherwise
  /// returns false and sets neither.  Waits for a value whose read is in flight.  No cancellation point;
  /// preserves errno.
  bool answer(const PrefetchedTree& tree, const MDB_val& key, const window::WindowView& view, MDB_val& data,
              Status& st) noexcept;
  /// Ends the transaction: waits for reads in flight and drops all values.  Another transaction may use the
  /// object then.
  void end() noexcept;
  /// Returns whether this is a forked child and another thread was inside the object during the fork.  The
  /// state is unknown then, and the object must not be freed.
  bool lost() const noexcept { return busy_ && forks_ != file_->prefetcher().forks(); }
  const PrefetchFile& file() const noexcept { return *file_; }
  /// Returns the counts since the last call.
  PrefetchCounters take_counters() noexcept;

 private:
  /// Marks that a thread is inside the object.
  class Busy {
   public:
    explicit Busy(bool& flag) noexcept : flag_(flag) { flag_ = true; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() { flag_ = false; }

   private:
    bool& flag_;
  };

  /// A key that was found with a value in overflow pages.
  struct Wanted {
    std::size_t key = 0;
    std::uint64_t page = 0;
    std::uint32_t bytes = 0;
  };
  /// Adjacent values that are read together.
  struct Run {
    std::size_t first = 0, count = 0;  ///< index and number of elements of wanted_
    std::size_t key = 0;               ///< lowest index of its keys in the program's list
  };
  /// The findings of one add() call.  `any`: a key was looked up.  `cold`: some data is not in the page
  /// cache.
  struct Seen {
    bool any = false, cold = false;
  };

  explicit TxnPrefetch(std::shared_ptr<PrefetchFile> file);
  bool ready(const Txn& txn);
  Status make_queues(std::uint64_t file_bytes);
  void count_reads() noexcept;
  void find_some(Txn& txn, const PrefetchedTree& tree, const format::DbRecord& db,
                 std::span<const MDB_val> keys, std::size_t from, std::size_t step, Seen& seen);
  void read_wanted(const Txn& txn, std::size_t tree, std::span<const MDB_val> keys);
  void read_run(const Run& run, std::span<PrefetchedKey* const> items, const window::WindowView& view);
  bool read_into_arena(const Run& run, std::span<PrefetchedKey* const> items, const Extent& extent,
                       unsigned page_shift);
  void read_into_page_cache(const Run& run, std::span<PrefetchedKey* const> items, const Extent& extent);
  std::optional<format::DbRecord> record_of(Txn& txn, MDB_dbi dbi);
  bool give_out(PrefetchedKey& e, const window::WindowView& view) noexcept;
  bool wait_for_slab(PrefetchedKey& e) noexcept;
  bool wait_for_page_cache(PrefetchedKey& e) noexcept;
  void drop_reads() noexcept;
  void forget_pages() noexcept;
  void after_fork() noexcept;
  bool forked_here() noexcept;

  const std::shared_ptr<PrefetchFile> file_;
  gather::Queues queues_;
  std::uint64_t file_bytes_ = 0;  ///< file size for which the queues were made; 0: there are no queues
  ReadQueue* direct_ = nullptr;   ///< reads past the page cache; null: values go to the page cache only
  ReadQueue* cached_ = nullptr;   ///< reads into the page cache
  std::unique_ptr<PageStore> store_;
  std::uint64_t store_reserved_ = 0;  ///< bytes
  bool joined_ = false;               ///< counted as a user of the process's memory
  window::ValueArena arena_;
  Mapping scratch_;  ///< target of reads into the page cache; its bytes are not used
  std::size_t next_scratch_ = 0;
  PrefetchTable table_;
  std::deque<std::shared_ptr<ReadGroup>> groups_;  ///< reads into the page cache, including those in flight
  std::vector<Wanted> wanted_;
  std::uint64_t passed_ = 0;  ///< number of the newest key that was looked up
  std::uint64_t txnid_ = 0;
  std::uint32_t window_ = 0;  ///< store_ is for this window and txnid_
  unsigned step_ = 1;         ///< every step_-th key is probed first
  std::uint64_t skipped_ = 0;
  PrefetchCounters counters_;
  unsigned forks_;
  bool busy_ = false;
};

}  // namespace lmdbio::tree
