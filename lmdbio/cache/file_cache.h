// A file that walks read ahead in: its window, its open descriptors, the states of its chunks, what was read.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/cache/chunk_source.h"
#include "lmdbio/cache/chunk_table.h"
#include "lmdbio/cache/lookup_record.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/io/extents.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/io/residency.h"

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
  std::uint64_t stalls = 0, stall_ns = 0;  ///< waits of programs for data
  std::uint64_t published = 0, reclaimed = 0, publish_failed = 0, stale = 0, read_failed = 0, stole = 0;
  std::uint64_t snapshots = 0;      ///< changes that sent chunks back to the file
  std::uint64_t most_resident = 0;  ///< chunks at once
  std::uint64_t most_vmas = 0;      ///< areas of memory (VMAs) that chunks of the process took, at most
  std::uint64_t key_walks = 0;      ///< walks that were seen not to read their values
  std::uint64_t stride_walks = 0;   ///< walks that were seen to use each k-th value
  std::uint64_t predicted = 0;  ///< values that such walks came to and that had been fetched as the next used
  std::uint64_t predicted_right = 0, predicted_wrong = 0;  ///< of these: seen used, seen not used
  std::uint64_t sparse_plans = 0;    ///< plans of walks whose needs do not follow one another in the file
  std::uint64_t lookups_missed = 0;  ///< lookups that asked, and found something not in memory
  std::uint64_t exact_reads = 0, exact_bytes = 0;     ///< made for them, of what was missing and no more
  std::uint64_t leaves_fetched = 0;                   ///< leaf pages fetched ahead of lookups
  std::uint64_t loads_begun = 0, loads_finished = 0;  ///< of the whole file, for lookups
  std::uint64_t vanished = 0;     ///< bytes brought into the page cache, and gone when a walk came to them
  std::uint64_t went_direct = 0;  ///< the page cache was given up: memory went, or what was brought there did

  /// Of another window on the same file.
  void add(const ReadStats& s) noexcept {
    asked += s.asked, read += s.read, wasted += s.wasted;
    for (unsigned i = 0; i < kSizes; ++i) requests[i] += s.requests[i];
    short_reads += s.short_reads, retries += s.retries;
    chunks_read += s.chunks_read, chunks_cached += s.chunks_cached, extents += s.extents;
    stalls += s.stalls, stall_ns += s.stall_ns;
    published += s.published, reclaimed += s.reclaimed, publish_failed += s.publish_failed;
    stale += s.stale, read_failed += s.read_failed, stole += s.stole, snapshots += s.snapshots;
    most_resident = std::max(most_resident, s.most_resident);
    most_vmas = std::max(most_vmas, s.most_vmas);
    key_walks += s.key_walks, stride_walks += s.stride_walks, predicted += s.predicted;
    predicted_right += s.predicted_right, predicted_wrong += s.predicted_wrong,
        sparse_plans += s.sparse_plans;
    lookups_missed += s.lookups_missed, exact_reads += s.exact_reads, exact_bytes += s.exact_bytes;
    leaves_fetched += s.leaves_fetched, loads_begun += s.loads_begun, loads_finished += s.loads_finished;
  }
};

/// Made by Prefetcher::open.  Unless it says otherwise, members are constant or under the Prefetcher's lock.
struct FileCache : std::enable_shared_from_this<FileCache> {
  struct Resident {
    ChunkIndex chunk;
    bool used = false;       ///< a walk came to it
    std::uint64_t left = 0;  ///< when it was last in a plan, on the Prefetcher's count of plans
  };

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
        anonymous(window->anonymous()),
        chunk_bytes(chunk),
        name(std::move(n)),
        path_now_(how.path) {}

  std::shared_ptr<Window> window;  ///< null once it is closed
  const std::shared_ptr<const OpenFile> file;
  const File& buffered;      ///< as OpenFile has them
  const File* const direct;  ///< likewise; null also where direct reads are not wanted
  const File* const exact;   ///< likewise
  const Residency residency;
  const bool local;               ///< the file system is
  const std::uint64_t readahead;  ///< of the kernel, ahead of page faults, bytes
  const ReadDecision decision;    ///< as it was at first; path() is what holds
  ChunkTable table;
  const bool anonymous;           ///< the window is
  const std::size_t chunk_bytes;  ///< a multiple of 2 MiB
  const std::string name;
  std::atomic<std::uint64_t> file_bytes{0};  ///< any thread may read it
  std::atomic<const char*> engine{""};       ///< name of the engine in use
  std::vector<Resident> residents;           ///< as table.residents()
  std::vector<Extent> reading;               ///< extents that are being read
  std::atomic<bool> reads_extents{false};    ///< there are any; any thread, without the lock
  std::vector<Extent> dropping;              ///< pieces that the page cache is to drop
  /// A read has failed.  Since then pages may be in the page cache without their bytes: what counts pages
  /// takes them to be there, and a touch may end in a signal.  Any thread.
  std::atomic<bool> read_failed{false};
  /// The page cache is filled by reads: see PageFiller.  The I/O thread's.
  bool cannot_populate = false;
  /// What was brought into the page cache since memory was looked at, bytes; what walks came to since, and of
  /// that, what was not there any more.
  std::uint64_t filled = 0, came_to = 0, came_to_nothing = 0;
  unsigned users = 0;  ///< environments
  /// A reference to itself, where there was no memory to give its chunks back when it was closed: who still
  /// uses the window, under a new snapshot perhaps, needs to know of them.
  std::shared_ptr<FileCache> kept;
  std::atomic<bool> drop_behind{false};  ///< what walks have left is taken out of the page cache
  unsigned readahead_walks = 0;          ///< see Prefetcher::use_readahead
  bool comes_around = false;             ///< a walk has gone through it more than once
  std::uint64_t least_latency_ns = 0;    ///< the fastest direct request so far; 0: none
  std::int64_t changes_since_ns = 0;     ///< start of the current minute of snapshot changes
  unsigned changes = 0;                  ///< in it, of those that cost resident chunks
  ReadStats stats;
  std::unique_ptr<ChunkSource> source;           ///< constant once a walk has begun; the I/O thread's
  MissRecord misses;                             ///< of lookups
  WholeLoad load;                                ///< for them
  std::uint64_t leaves_for = ~std::uint64_t{0};  ///< the snapshot whose leaf pages were claimed last
  unsigned leaves_claimed = 0;                   ///< times

  std::uint64_t offset(ChunkIndex i) const noexcept { return std::uint64_t{raw(i)} * chunk_bytes; }
  ChunkIndex chunk_at(std::uint64_t at) const noexcept {
    return ChunkIndex{static_cast<std::uint32_t>(at / chunk_bytes)};
  }
  /// Any thread, without the lock.
  ReadPath path() const noexcept { return path_now_.load(std::memory_order_relaxed); }
  /// Under the lock: from the page cache to direct reads, and never back.
  void go_direct() noexcept { path_now_.store(ReadPath::direct, std::memory_order_relaxed); }
  /// Any thread, without the lock.
  bool resident_now(ChunkIndex i) const noexcept { return table.state(i) == ChunkState::resident; }
  /// Bytes of the file that lie in a chunk; 0 beyond its end.
  std::uint64_t bytes_in(ChunkIndex i) const noexcept {
    const std::uint64_t size = file_bytes.load(std::memory_order_relaxed), at = offset(i);
    return at >= size ? 0 : std::min<std::uint64_t>(chunk_bytes, size - at);
  }

 private:
  std::atomic<ReadPath> path_now_;
};

}  // namespace lmdbio::cache
