// State of a file that is read ahead: its window, its open descriptors, the states of its chunks,
// statistics.
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
#include "lmdbio/base/futex.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/gather/cached_engine.h"
#include "lmdbio/gather/memory_budget.h"
#include "lmdbio/io/extents.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/residency.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/window/chunk_source.h"
#include "lmdbio/window/chunk_table.h"
#include "lmdbio/window/extent_list.h"
#include "lmdbio/window/file_stats.h"
#include "lmdbio/window/late_use.h"
#include "lmdbio/window/lookup_history.h"
#include "lmdbio/window/node_share.h"
#include "lmdbio/window/residents.h"
#include "lmdbio/window/window.h"

namespace lmdbio::window {

/// Progress of a load of a whole file.  Under the Prefetcher's lock, except is_going().
struct WholeLoad {
  std::atomic<ReadPath> path{ReadPath::none};  ///< none: no load is going on
  std::uint32_t next = 0, end_chunk = 0;       ///< chunk numbers
  unsigned reading = 0;                        ///< chunks being read
  unsigned begun = 0;                          ///< number of loads begun
  bool has_skipped = false;                    ///< in this turn, chunks that other processes were reading
  unsigned turns = 0;              ///< how many times the load has started again for skipped chunks
  std::int64_t wait_until_ns = 0;  ///< when the next turn starts; 0: now
  bool is_going() const noexcept { return path.load(std::memory_order_relaxed) != ReadPath::none; }
  void end() noexcept { path.store(ReadPath::none, std::memory_order_relaxed); }
  /// In a forked child: the parent's load does not go on here.
  void after_fork() noexcept {
    end();
    next = end_chunk = 0;
    reading = begun = 0;
  }
};

/// Byte counts that show whether the page cache keeps what is read into it (path_change.h).
struct PageCacheUse {
  std::uint64_t read = 0;     ///< read into the page cache since check_memory() last checked
  std::uint64_t reached = 0;  ///< bytes of chunks read into it that walks have reached recently
  std::uint64_t lost = 0;     ///< the part of `reached` that was not in the page cache any more
};

/// Counts snapshot changes that evict chunks.  If a writer commits often, chunks are evicted before they have
/// been useful.  The file is then left to page faults until the minute is over.
class SnapshotChanges {
 public:
  void add() noexcept {
    if (const std::int64_t now = now_ns(); now - since_ns_ > kMinuteNs) {
      since_ns_ = now;
      count_ = 0;
    }
    ++count_;
  }
  bool are_frequent() const noexcept { return count_ >= kFrequent && now_ns() - since_ns_ <= kMinuteNs; }

 private:
  static constexpr std::int64_t kMinuteNs = 60'000'000'000;
  static constexpr unsigned kFrequent = 8;  ///< changes in a minute
  std::int64_t since_ns_ = 0;               ///< start of the current minute
  unsigned count_ = 0;                      ///< changes in this minute
};

/// The file that has the bytes: the database file, or its image in the cache on local disk.
struct Backing {
  std::shared_ptr<const OpenFile> file;
  const File& buffered;      ///< see OpenFile
  const File* const direct;  ///< see OpenFile; null if not available or not wanted
  Residency residency;
  /// The image of the file in the cache on local disk, or null.  If `file` is the image itself, it has all of
  /// the database.  Otherwise reads go through it (gather/cached_engine.h).
  std::shared_ptr<cache::Image> image;
  /// The file as the server of the node brings it, or null.
  std::shared_ptr<gather::ServedFile> served;

  Backing(std::shared_ptr<const OpenFile> f, const File* past_page_cache, int programs_fd,
          gather::Sources sources)
      : file(std::move(f)),
        buffered(file->buffered()),
        direct(past_page_cache),
        residency(file->residency(programs_fd)),
        image(std::move(sources.image)),
        served(std::move(sources.served)) {}
  gather::Sources sources() const noexcept { return {image, served}; }
};

/// State of a file that is read ahead.  Made by Prefetcher::open().  Members are constant or guarded by the
/// Prefetcher's lock, unless stated otherwise.
///
/// The file is mapped.  Where no chunk is resident, page faults of the window read the file.  For files that
/// cannot be mapped, see UnmappedWindowFile.
struct WindowFile : std::enable_shared_from_this<WindowFile> {
  /// `by_cache`: used instead of `own` until the next snapshot, if it is not null.
  WindowFile(std::shared_ptr<Window> w, const Backing& own, std::unique_ptr<const Backing> by_cache,
             ReadDecision how, ChunkTable t, std::size_t chunk, std::string n)
      : window(std::move(w)),
        database(own),
        from_cache(std::move(by_cache)),
        local(backing().file->local()),
        readahead(backing().file->readahead()),
        decision(how),
        table(std::move(t)),
        chunk_bytes(chunk),
        page_shift(window->page_shift()),
        name(std::move(n)),
        counters({node::CellKind::file, 0, database.file->identity().dev, database.file->identity().ino}),
        node(backing().file->identity(), chunk, window->capacity(),
             config().node != NodeMode::off && window->has_file()),
        path_now_(how.path) {}

  std::shared_ptr<Window> window;  ///< null once the file is closed
  const Backing database;          ///< the database file itself
  const std::unique_ptr<const Backing> from_cache;
  /// The database is in the state that from_cache has.  Any thread.
  std::atomic<bool> is_cached{from_cache != nullptr};
  /// Returns what has the bytes now.  Under the lock, or in the I/O thread for a job that it was given, whose
  /// bytes are not used if the snapshot has changed; any thread for residency and reads into the page cache,
  /// which the change makes useless.
  const Backing& backing() const noexcept {
    return is_cached.load(std::memory_order_relaxed) ? *from_cache : database;
  }
  const std::shared_ptr<const OpenFile>& file() const noexcept { return backing().file; }
  const File& buffered() const noexcept { return backing().buffered; }
  const File* direct() const noexcept { return backing().direct; }
  const Residency& residency() const noexcept { return backing().residency; }
  /// True if the window maps an image instead of the database file.
  bool is_image() const noexcept { return is_image(backing()); }
  bool is_image(const Backing& b) const noexcept { return b.file != database.file; }
  /// True if reads take from other sources what these have: from an image that is compressed or lacks some
  /// chunks, or from the server of the node.
  bool reads_through_sources() const noexcept { return backing().sources() && !is_image(); }
  /// Counts reads of a backing.
  void count(const Backing& b, const ReadCounts& reads) noexcept {
    stats.add_reads(reads);
    if (b.image != nullptr) b.image->count_into(stats, is_image(b) ? reads.bytes : 0);
    if (b.served != nullptr) b.served->count_into(stats);
  }
  const bool local;               ///< on a local file system
  const std::uint64_t readahead;  ///< size of the kernel's read-ahead for page faults, in bytes
  bool shares_chunks = false;     ///< see shares_chunk_files(); constant once a walk has begun
  const ReadDecision decision;    ///< the first decision; path() is the current one
  ChunkTable table;
  const std::size_t chunk_bytes;  ///< a multiple of 2 MiB
  const unsigned page_shift;      ///< log2 of the database's page size
  const std::string name;
  std::atomic<std::uint64_t> file_bytes{0};  ///< size of the file; any thread may read it
  /// The part of `file_bytes` that the database uses.  If the file was written with MDB_WRITEMAP, the rest
  /// has no data.
  std::uint64_t used_bytes = 0;
  std::atomic<const char*> engine{""};  ///< name of the engine in use
  Residents residents;                  ///< the same chunks as in `table`
  ExtentList reading;                   ///< extents that are being read
  ExtentList dropping;                  ///< pieces to drop from the page cache
  /// A read has failed.  Since then the page cache may have pages without their bytes.  Calls that count
  /// resident pages count such pages, too, and an access to such a page may raise a signal.  Any thread.
  std::atomic<bool> read_failed{false};
  /// PageFiller is not available, so buffered reads bring chunks into the page cache.  Only the I/O thread
  /// uses it.
  bool cannot_populate = false;
  PageCacheUse page_cache_use;
  std::atomic<unsigned> users{0};  ///< number of environments; any thread may read it
  /// A reference to itself, set if there was no memory to give the chunks back at close.  Later users of the
  /// window, perhaps under a new snapshot, need to know these chunks.
  std::shared_ptr<WindowFile> kept;
  std::atomic<bool> drop_behind{false};   ///< drop chunks that walks have passed from the page cache
  unsigned readahead_walks = 0;           ///< see Prefetcher::use_readahead
  std::atomic<bool> comes_around{false};  ///< a walk has gone through the file more than once; any thread
  std::atomic<std::uint64_t> least_latency_ns{0};  ///< shortest time of a direct request; 0: none; any thread
  SnapshotChanges changes;                         ///< snapshot changes that evicted chunks
  node::Cell<FileCounters> counters;
  FileStats& stats = counters->stats;           ///< any thread, without the lock
  NodeShare node;                               ///< any thread, without the lock
  std::unique_ptr<ChunkSource> source;          ///< constant once a walk has begun
  WholeLoad load;                               ///< of this file
  std::optional<bool> takes_chunks_from_cache;  ///< see Prefetcher::takes_chunks_from_cache()
  LateUse late_use;                             ///< of this file's values
  LookupHistory lookups;                        ///< any thread, without the lock

  virtual ~WindowFile() = default;

  /// Returns whether the window maps the page cache where no chunk is resident.  If so, no chunk has to be
  /// read: single pages and extents may be read into the page cache instead.
  virtual bool has_page_cache() const noexcept { return true; }
  /// Returns whether resident chunks stay until the file is closed, also in a forked child.  If so, their
  /// memory is counted when they are published, even beyond the limit.
  virtual bool keeps_chunks() const noexcept { return false; }
  /// Returns the use for which the memory of the file's chunks is counted.
  virtual gather::MemoryUse memory_use() const noexcept { return gather::MemoryUse::chunks; }

  std::uint64_t offset(ChunkIndex i) const noexcept { return std::uint64_t{raw(i)} * chunk_bytes; }
  ChunkIndex chunk_at(std::uint64_t at) const noexcept {
    return ChunkIndex{static_cast<std::uint32_t>(at / chunk_bytes)};
  }
  /// Any thread, without the lock.
  ReadPath path() const noexcept { return path_now_.load(std::memory_order_relaxed); }
  /// Changes from the page cache to direct reads, for good.  Under the lock.
  void go_direct() noexcept {
    path_now_.store(ReadPath::direct, std::memory_order_relaxed);
    counters->path = ReadPath::direct;
  }
  /// Resets all counters to zero.  Under the lock.
  void begin_counting(std::uint64_t memory_limit) noexcept {
    *counters = {};
    counters->chunk_bytes = chunk_bytes;
    counters->memory_limit = memory_limit;
    counters->path = path();
    set_text(counters->reason, decision.reason);
    set_text(counters->engine, engine.load(std::memory_order_relaxed));
    set_text(counters->residency, residency().how());
  }
  /// Sets the name of the engine in use.  Only the I/O thread calls it.
  void set_engine(const char* engine_name) noexcept {
    engine.store(engine_name, std::memory_order_relaxed);
    set_text(counters->engine, engine_name);
  }
  /// Any thread, without the lock.
  bool resident_now(ChunkIndex i) const noexcept { return table.state(i) == ChunkState::resident; }
  /// Returns how many bytes of the file lie in the chunk; 0 if it is beyond the end of the file.
  std::uint64_t bytes_in(ChunkIndex i) const noexcept {
    const std::uint64_t size = file_bytes.load(std::memory_order_relaxed), at = offset(i);
    return at >= size ? 0 : std::min<std::uint64_t>(chunk_bytes, size - at);
  }
  /// Returns how many chunks the file has.
  std::uint64_t chunks() const noexcept {
    return (file_bytes.load(std::memory_order_relaxed) + chunk_bytes - 1) / chunk_bytes;
  }

 private:
  template <std::size_t n>
  static void set_text(char (&to)[n], const char* from) noexcept {
    std::memset(to, 0, n);
    std::memcpy(to, from, ::strnlen(from, n - 1));
  }

  std::atomic<ReadPath> path_now_;
};

/// State of a file that cannot be mapped (ahead/unmapped_file.h).  Its window is addresses without memory
/// until chunks are published there.  So each page that is read must lie in a resident chunk, and no chunk
/// is evicted.
struct UnmappedWindowFile final : WindowFile {
  using WindowFile::WindowFile;
  bool has_page_cache() const noexcept override { return false; }
  bool keeps_chunks() const noexcept override { return true; }
  gather::MemoryUse memory_use() const noexcept override { return gather::MemoryUse::unmapped; }
};

}  // namespace lmdbio::window
