// What all readings of one reader have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/zeroed_array.h"
#include "lmdbio/io/extents.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/io/residency.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/records/buffer_pool.h"
#include "lmdbio/records/leaf_cache.h"
#include "lmdbio/records/source.h"

namespace lmdbio::records {

/// An engine for reads of `file`, which outlives it.
using EngineMaker = std::function<Result<std::unique_ptr<IoEngine>>(const File& file, unsigned depth)>;

/// What readings came to.  Any thread, no order between them.
struct Counters {
  std::atomic<std::uint64_t> batches{0}, records{0};
  std::atomic<std::uint64_t> bytes_given{0};   ///< of keys and values
  std::atomic<std::uint64_t> bytes_read{0};    ///< from the file
  std::atomic<std::uint64_t> bytes_copied{0};  ///< out of the page cache, by its mapping
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> fetches{0};         ///< stretches of batches that were read together
  std::atomic<std::uint64_t> fetches_cached{0};  ///< of those, out of the page cache
  std::atomic<std::uint64_t> waits{0}, wait_ns{0};
  std::atomic<std::uint64_t> failed{0};                     ///< batches that could not be given
  std::atomic<std::uint64_t> leaf_hits{0}, leaf_misses{0};  ///< leaf pages for keys: kept ones, others
  std::atomic<bool> index_read{false};                      ///< from a file
  // Readers that the ranks of an MPI job share.
  std::atomic<std::uint64_t> messages_sent{0};  ///< with records
  std::atomic<std::uint64_t> bytes_sent{0};     ///< in these
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> bytes_from_nodes{0};  ///< of these: from ranks of other nodes
  std::atomic<std::uint64_t> records_alone{0};     ///< read here, as others were late, failed or had left
};

struct Shared {
  /// `process`: what the memory is taken from; null: it is this reader's alone.
  Shared(Source from, std::uint64_t memory, ReadDecision how, EngineMaker make_engine,
         std::shared_ptr<Memory> process = nullptr);

  std::uint64_t offset(std::uint64_t page) const noexcept { return page << page_shift; }
  /// Run of `pages` pages from `first` on that a tree may have.
  bool inside(std::uint64_t first, std::uint64_t n) const noexcept {
    return first >= format::kMetaPages && first < source.pages && n <= source.pages - first;
  }

  /// The snapshot's pages as the file has them; made at the first call.  Null: it cannot be mapped.  Read
  /// from it what is in the page cache, after a look at the file's length: what has been cut off is SIGBUS.
  const std::byte* mapped() noexcept;
  /// Before a small `extent`, which is mostly in the page cache, is read from the mapping: brings the page
  /// table entries of the region around it by one system call, where page faults would bring them one after
  /// the other.  Reads nothing from storage.  Any thread; mapped() is not null.
  void fault_in(const Extent& extent) noexcept;

  /// The file's length, as far as this machine knows it: on a network file system nobody is asked.  0: it
  /// cannot be told.
  std::uint64_t file_bytes() const noexcept;

  Source source;
  const unsigned page_shift;
  const ReadDecision read;
  const EngineMaker make_engine;
  const Residency residency;
  const std::shared_ptr<BufferPool> pool;
  /// The tree's leaf pages are so few that all of them are kept, those that hold values too.
  const bool keeps_all_leaves;
  LeafCache leaves;
  node::Cell<Counters> shown;
  Counters& counters = *shown;
  std::atomic<unsigned> streams{0};  ///< that are open
  /// Of the limit, bytes for the next batches of streams that have nothing read ahead.
  std::atomic<std::uint64_t> reserved{0};
  Memory& memory() const noexcept { return *pool->memory(); }
  /// Bytes that one of `n` streams more than now may have of the reader's memory, and of the process's.
  std::uint64_t share_of_one(unsigned n) const noexcept;

 private:
  const FileIdentity id_;
  std::once_flag map_once_;
  Mapping map_;
  /// Of map_, a bit for each region: fault_in() has brought it.  Null: it does nothing.
  ZeroedArray<std::uint64_t> faulted_in_;
};

/// The queues of one stream, or of one call, made as they are needed.  One thread at a time.
class Queues {
 public:
  explicit Queues(Shared& shared) noexcept : shared_(shared) {}
  ~Queues();
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;

  /// For reads past the page cache, or through it.  Errors: as select_engine.
  Result<ReadQueue*> get(bool direct) noexcept;
  /// Never waits.
  void pump() noexcept;
  /// Adds what was read since the last call to the reader's counters.
  void count() noexcept;
  /// In a forked child.
  void forget() noexcept;

 private:
  static constexpr unsigned kDepth = 128;
  struct One {
    std::unique_ptr<ReadQueue> queue;
    std::uint64_t bytes = 0, requests = 0;  ///< counted so far
  };
  Shared& shared_;
  One direct_, buffered_;
};

}  // namespace lmdbio::records
