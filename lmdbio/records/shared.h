// The state that all streams and calls of a reader share.
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

/// Makes an engine for reads of `file`, which outlives it.
using EngineMaker = std::function<Result<std::unique_ptr<IoEngine>>(const File& file, unsigned depth)>;

/// Counters of a reader.  Any thread; no order between them.
struct Counters {
  std::atomic<std::uint64_t> batches{0}, records{0};
  std::atomic<std::uint64_t> bytes_given{0};   ///< of keys and values
  std::atomic<std::uint64_t> bytes_read{0};    ///< from the file
  std::atomic<std::uint64_t> bytes_copied{0};  ///< from the page cache, through the mapping
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> fetches{0};         ///< fetches that have been read
  std::atomic<std::uint64_t> fetches_cached{0};  ///< of those: from the page cache
  std::atomic<std::uint64_t> waits{0}, wait_ns{0};
  std::atomic<std::uint64_t> failed{0};                     ///< batches that could not be returned
  std::atomic<std::uint64_t> leaf_hits{0}, leaf_misses{0};  ///< key leaf pages: cached, not cached
  std::atomic<bool> index_read{false};                      ///< the record index came from a file
  // Readers that the ranks of an MPI job share:
  std::atomic<std::uint64_t> messages_sent{0};  ///< messages with records
  std::atomic<std::uint64_t> bytes_sent{0};     ///< in these messages
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> bytes_from_nodes{0};  ///< of those: from ranks on other nodes
  std::atomic<std::uint64_t> records_alone{0};     ///< read here: others were late, failed or had left
};

/// The shared state of a reader.
struct Shared {
  /// `process`: where the memory is taken from; null: the reader has a Memory of its own.
  Shared(Source from, std::uint64_t memory, ReadDecision how, EngineMaker make_engine,
         std::shared_ptr<Memory> process = nullptr);

  std::uint64_t offset(std::uint64_t page) const noexcept { return page << page_shift; }
  /// Returns true if the `n` pages from `first` on can belong to a tree of the snapshot.
  bool inside(std::uint64_t first, std::uint64_t n) const noexcept {
    return first >= format::kMetaPages && first < source.pages && n <= source.pages - first;
  }

  /// Returns the mapping of the snapshot's pages, which the first call makes.  Returns nullptr if the file
  /// cannot be mapped.  Read only resident pages from it, and check the file's length before: access beyond
  /// the end of the file raises SIGBUS.
  const std::byte* mapped() noexcept;
  /// Maps the pages of the region around a small `extent` with one system call, so that they need no page
  /// faults one by one.  Call it before reading a mostly resident extent from the mapping.  Reads nothing
  /// from storage.  Any thread; mapped() must not be nullptr.
  void fault_in(const Extent& extent) noexcept;

  /// Returns the file's length as this machine knows it; it asks no server of a network file system.
  /// Returns 0 if the length is unknown.
  std::uint64_t file_bytes() const noexcept;

  Source source;
  const unsigned page_shift;
  const ReadDecision read;
  const EngineMaker make_engine;
  const Residency residency;
  const std::shared_ptr<BufferPool> pool;
  /// The tree has so few leaf pages that the leaf cache keeps all of them, also those with values.
  const bool keeps_all_leaves;
  LeafCache leaves;
  node::Cell<Counters> shown;
  Counters& counters = *shown;
  std::atomic<unsigned> streams{0};  ///< open streams
  /// Bytes of the limit that are reserved for the next batches of streams without read-ahead.
  std::atomic<std::uint64_t> reserved{0};
  Memory& memory() const noexcept { return *pool->memory(); }
  /// Returns the bytes that each stream may use if `n` more streams are opened.  It is limited by the
  /// reader's memory and by the process's.
  std::uint64_t share_of_one(unsigned n) const noexcept;

 private:
  const FileIdentity id_;
  std::once_flag map_once_;
  Mapping map_;
  /// One bit for each region of map_: set if fault_in() has mapped the region.  With nullptr, fault_in()
  /// does nothing.
  ZeroedArray<std::uint64_t> faulted_in_;
};

/// The queues of one stream, or of one call.  They are made when they are needed.  One thread at a time.
class Queues {
 public:
  explicit Queues(Shared& shared) noexcept : shared_(shared) {}
  ~Queues();
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;

  /// Returns the queue for direct reads if `direct` is set and the file allows them, or else the queue for
  /// reads through the page cache.  Errors: ENOMEM, or as select_engine().
  Result<ReadQueue*> get(bool direct) noexcept;
  /// Pumps the queues.  Never waits.
  void pump() noexcept;
  /// Adds the reads since the last call to the reader's counters.
  void count() noexcept;
  /// Drops all reads.  Call it in a forked child.
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
