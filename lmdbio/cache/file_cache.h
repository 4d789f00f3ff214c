// A file that walks read ahead in: its window, its open descriptors, the states of its chunks, what was read.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/cache/chunk_source.h"
#include "lmdbio/cache/chunk_table.h"
#include "lmdbio/cache/late_use.h"
#include "lmdbio/cache/memory_budget.h"
#include "lmdbio/cache/node_share.h"
#include "lmdbio/cache/residents.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/io/extents.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/io/residency.h"
#include "lmdbio/node/counter_board.h"

namespace lmdbio::cache {

/// What reading ahead came to, for statistics.  Bytes, counts, nanoseconds.
struct ReadStats {
  static constexpr unsigned kSizes = ReadQueue::kSizeClasses;
  std::uint64_t asked = 0;   ///< of chunks and extents that walks came to need
  std::uint64_t read = 0;    ///< that the engines gave
  std::uint64_t wasted = 0;  ///< of chunks published and reclaimed before any walk came to them
  std::uint64_t requests[kSizes]{};
  std::uint64_t short_reads = 0, retries = 0;
  std::uint64_t chunks_read = 0, chunks_cached = 0, extents = 0;
  std::uint64_t chunks_given = 0;    ///< of other processes, in chunk files
  std::uint64_t chunks_claimed = 0;  ///< that another process was bringing, each time one was to be read
  std::uint64_t stalls = 0, stall_ns = 0;  ///< waits of programs for data
  std::uint64_t published = 0, reclaimed = 0, publish_failed = 0, stale = 0, read_failed = 0, stole = 0;
  std::uint64_t snapshots = 0;      ///< changes that sent chunks back to the file
  std::uint64_t most_resident = 0;  ///< chunks at once
  std::uint64_t most_vmas = 0;      ///< areas of memory (VMAs) that chunks of the process took, at most
  std::uint64_t loads_begun = 0, loads_finished = 0;  ///< of the whole file
  std::uint64_t vanished = 0;     ///< bytes brought into the page cache, and gone when a walk came to them
  std::uint64_t went_direct = 0;  ///< the page cache was given up: memory went, or what was brought there did

  /// Of a queue: its counters now, and those that were added before.
  void add_reads(const IoEngine::Counters& now, const IoEngine::Counters& before,
                 const ReadQueue::Sizes& sizes) noexcept {
    read += now.bytes - before.bytes;
    for (unsigned i = 0; i < kSizes; ++i) requests[i] += sizes[i];
    short_reads += now.short_reads - before.short_reads;
    retries += now.retries - before.retries;
  }
  /// Of another window on the same file.
  void add(const ReadStats& s) noexcept {
    asked += s.asked, read += s.read, wasted += s.wasted;
    for (unsigned i = 0; i < kSizes; ++i) requests[i] += s.requests[i];
    short_reads += s.short_reads, retries += s.retries;
    chunks_read += s.chunks_read, chunks_cached += s.chunks_cached, extents += s.extents;
    chunks_given += s.chunks_given, chunks_claimed += s.chunks_claimed;
    stalls += s.stalls, stall_ns += s.stall_ns;
    published += s.published, reclaimed += s.reclaimed, publish_failed += s.publish_failed;
    stale += s.stale, read_failed += s.read_failed, stole += s.stole, snapshots += s.snapshots;
    most_resident = std::max(most_resident, s.most_resident);
    most_vmas = std::max(most_vmas, s.most_vmas);
    loads_begun += s.loads_begun, loads_finished += s.loads_finished;
    vanished += s.vanished, went_direct += s.went_direct;
  }
};

/// What walks and lookups came to, for statistics.
struct AccessCounters {
  std::uint64_t key_walks = 0;     ///< walks that were seen not to read their values
  std::uint64_t stride_walks = 0;  ///< walks that were seen to use each k-th value
  std::uint64_t predicted = 0;  ///< values that such walks came to and that had been fetched as the next used
  std::uint64_t predicted_right = 0, predicted_wrong = 0;  ///< of these: seen used, seen not used
  std::uint64_t sparse_plans = 0;    ///< plans of walks whose needs do not follow one another in the file
  std::uint64_t lookups_missed = 0;  ///< lookups that asked, and found something not in memory
  std::uint64_t exact_reads = 0, exact_bytes = 0;  ///< made for them, of what was missing and no more
  std::uint64_t exact_ns = 0;                      ///< that the lookups waited for these
  std::uint64_t leaves_fetched = 0;                ///< leaf pages fetched ahead of lookups

  void add(const AccessCounters& c) noexcept {
    key_walks += c.key_walks, stride_walks += c.stride_walks, predicted += c.predicted;
    predicted_right += c.predicted_right, predicted_wrong += c.predicted_wrong;
    sparse_plans += c.sparse_plans, lookups_missed += c.lookups_missed;
    exact_reads += c.exact_reads, exact_bytes += c.exact_bytes, exact_ns += c.exact_ns;
    leaves_fetched += c.leaves_fetched;
  }
};

/// All of it, where other processes read it (node/counter_board.h), and what a file is read with.
struct FileCounters {
  ReadStats stats;
  AccessCounters access;
  std::uint64_t chunk_bytes = 0, memory_limit = 0;
  ReadPath path = ReadPath::none;
  char reason[64]{}, engine[16]{}, residency[16]{};  ///< cut to this length; ended by a zero
};

/// A load of a whole file, as far as it has come.  Under the Prefetcher's lock.
struct WholeLoad {
  ReadPath path = ReadPath::none;   ///< none: no load is going on
  std::uint32_t next = 0, end = 0;  ///< chunks
  unsigned reading = 0;             ///< chunks
  unsigned begun = 0;               ///< times
};

/// What a layer above keeps with a file, for all who read it.  Under the Prefetcher's lock, as is its making;
/// destroyed with the FileCache.
class FileExtension {
 public:
  FileExtension() = default;
  FileExtension(const FileExtension&) = delete;
  FileExtension& operator=(const FileExtension&) = delete;
  virtual ~FileExtension() = default;
  /// In a forked child: what has been counted is the parent's.
  virtual void after_fork() noexcept = 0;
};

/// Made by Prefetcher::open.  Unless it says otherwise, members are constant or under the Prefetcher's lock.
///
/// The file is mapped: where no chunk is resident the window gives its bytes, by page faults.  Of a file that
/// cannot be mapped: UnmappedFileCache.
struct FileCache : std::enable_shared_from_this<FileCache> {
  FileCache(std::shared_ptr<Window> w, std::shared_ptr<const OpenFile> f, const File* past_page_cache,
            int programs_fd, ReadDecision how, ChunkTable t, std::size_t chunk, std::string n)
      : window(std::move(w)),
        file(std::move(f)),
        buffered(file->buffered()),
        direct(past_page_cache),
        exact(file->exact()),
        residency(file->residency(programs_fd)),
        local(file->local()),
        readahead(file->readahead()),
        decision(how),
        table(std::move(t)),
        chunk_bytes(chunk),
        page_shift(window->page_shift()),
        name(std::move(n)),
        counters({node::CellKind::file, 0, file->identity().dev, file->identity().ino}),
        node(file->identity(), chunk, window->capacity(),
             config().node != NodeMode::off && window->has_file()),
        path_now_(how.path) {}

  std::shared_ptr<Window> window;  ///< null once it is closed
  const std::shared_ptr<const OpenFile> file;
  const File& buffered;      ///< as OpenFile has them
  const File* const direct;  ///< likewise; null also where direct reads are not wanted
  const File* const exact;   ///< likewise
  const Residency residency;
  const bool local;               ///< the file system is
  const std::uint64_t readahead;  ///< of the kernel, ahead of page faults, bytes
  bool shares_chunks = false;     ///< see shares_chunk_files(); constant once a walk has begun
  const ReadDecision decision;    ///< as it was at first; path() is what holds
  ChunkTable table;
  const std::size_t chunk_bytes;  ///< a multiple of 2 MiB
  const unsigned page_shift;      ///< of the database's pages
  const std::string name;
  std::atomic<std::uint64_t> file_bytes{0};  ///< any thread may read it
  /// Of these, what the database uses: the rest of a file that was written with MDB_WRITEMAP has no data.
  std::uint64_t used_bytes = 0;
  std::atomic<const char*> engine{""};     ///< name of the engine in use
  Residents residents;                     ///< as table.residents()
  std::vector<Extent> reading;             ///< extents that are being read
  std::atomic<bool> reads_extents{false};  ///< there are any; any thread, without the lock
  std::vector<Extent> dropping;            ///< pieces that the page cache is to drop
  std::atomic<bool> has_dropping{false};   ///< there are any; any thread, without the lock
  /// A read has failed.  Since then pages may be in the page cache without their bytes: what counts pages
  /// takes them to be there, and a touch may end in a signal.  Any thread.
  std::atomic<bool> read_failed{false};
  /// The page cache is filled by reads: see PageFiller.  The I/O thread's.
  bool cannot_populate = false;
  /// What was brought into the page cache since memory was looked at, bytes; what walks came to since, and of
  /// that, what was not there any more.
  std::uint64_t filled = 0, came_to = 0, came_to_nothing = 0;
  std::atomic<unsigned> users{0};  ///< environments; any thread may look
  /// A reference to itself, where there was no memory to give its chunks back when it was closed: who still
  /// uses the window, under a new snapshot perhaps, needs to know of them.
  std::shared_ptr<FileCache> kept;
  std::atomic<bool> drop_behind{false};            ///< what walks have left is taken out of the page cache
  unsigned readahead_walks = 0;                    ///< see Prefetcher::use_readahead
  bool comes_around = false;                       ///< a walk has gone through it more than once
  std::atomic<std::uint64_t> least_latency_ns{0};  ///< the fastest direct request so far; 0: none; any thread
  std::int64_t changes_since_ns = 0;               ///< start of the current minute of snapshot changes
  unsigned changes = 0;                            ///< in it, of those that cost resident chunks
  node::Cell<FileCounters> counters;
  ReadStats& stats = counters->stats;
  AccessCounters& access = counters->access;
  NodeShare node;                            ///< any thread, without the lock
  std::unique_ptr<ChunkSource> source;       ///< constant once a walk has begun
  WholeLoad load;                            ///< of this file
  LateUse late_use;                          ///< of its values
  std::unique_ptr<FileExtension> extension;  ///< null until somebody has one

  virtual ~FileCache() = default;

  /// The window has the page cache's bytes where no chunk is resident: no chunk is needed, and single pages
  /// and extents may be read into the page cache instead.
  virtual bool has_page_cache() const noexcept { return true; }
  /// Resident chunks stay until the file is closed, and in a forked child; their memory is counted when they
  /// are published, beyond the limit if need be.
  virtual bool keeps_chunks() const noexcept { return false; }
  /// What the memory of its chunks is counted as.
  virtual MemoryUse memory_use() const noexcept { return MemoryUse::chunks; }

  std::uint64_t offset(ChunkIndex i) const noexcept { return std::uint64_t{raw(i)} * chunk_bytes; }
  ChunkIndex chunk_at(std::uint64_t at) const noexcept {
    return ChunkIndex{static_cast<std::uint32_t>(at / chunk_bytes)};
  }
  /// Any thread, without the lock.
  ReadPath path() const noexcept { return path_now_.load(std::memory_order_relaxed); }
  /// Under the lock: from the page cache to direct reads, and never back.
  void go_direct() noexcept {
    path_now_.store(ReadPath::direct, std::memory_order_relaxed);
    counters->path = ReadPath::direct;
  }
  /// Under the lock: counters start from zero.
  void begin_counting(std::uint64_t memory_limit) noexcept {
    *counters = {};
    counters->chunk_bytes = chunk_bytes;
    counters->memory_limit = memory_limit;
    counters->path = path();
    set_text(counters->reason, decision.reason);
    set_text(counters->engine, engine.load(std::memory_order_relaxed));
    set_text(counters->residency, residency.how());
  }
  /// The I/O thread's.
  void set_engine(const char* engine_name) noexcept {
    engine.store(engine_name, std::memory_order_relaxed);
    set_text(counters->engine, engine_name);
  }
  /// Any thread, without the lock.
  bool resident_now(ChunkIndex i) const noexcept { return table.state(i) == ChunkState::resident; }
  /// Bytes of the file that lie in a chunk; 0 beyond its end.
  std::uint64_t bytes_in(ChunkIndex i) const noexcept {
    const std::uint64_t size = file_bytes.load(std::memory_order_relaxed), at = offset(i);
    return at >= size ? 0 : std::min<std::uint64_t>(chunk_bytes, size - at);
  }

 private:
  template <std::size_t n>
  static void set_text(char (&to)[n], const char* from) noexcept {
    std::memset(to, 0, n);
    std::memcpy(to, from, ::strnlen(from, n - 1));
  }

  std::atomic<ReadPath> path_now_;
};

/// A file that cannot be mapped (db/unmapped_file.h).  Its window is addresses without memory until chunks
/// are published there, so every page that is read must lie in a resident chunk, and none may go.
struct UnmappedFileCache final : FileCache {
  using FileCache::FileCache;
  bool has_page_cache() const noexcept override { return false; }
  bool keeps_chunks() const noexcept override { return true; }
  MemoryUse memory_use() const noexcept override { return MemoryUse::unmapped; }
};

}  // namespace lmdbio::cache
