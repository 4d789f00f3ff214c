// The statistics of a file: what walks and lookups did, and what was read for them.
#pragma once

#include <cstdint>

#include "lmdbio/base/counter.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::window {

/// Counts of bytes, events and nanoseconds.  Any thread.
struct FileStats {
  Counter asked;        ///< bytes of chunks and extents that walks reached
  Counter read;         ///< bytes that were read
  Counter wasted;       ///< bytes of chunks that were evicted before a walk reached them
  Counter short_reads;  ///< short reads that were continued
  Counter retries;
  Counter requests[ReadCounts::kSizes];  ///< read requests, by size
  Counter chunks_read;
  Counter chunks_cached;     ///< found in the page cache
  Counter chunks_given;      ///< read by other processes and taken from chunk files
  Counter chunks_claimed;    ///< about to be read while another process was reading them
  Counter extents;           ///< pieces of chunks that were read into the page cache
  Counter stalls, stall_ns;  ///< waits of programs for data
  Counter published;         ///< chunks that were placed over the window
  Counter reclaimed;         ///< chunks that were evicted
  Counter publish_failed;    ///< chunks that were read and could not be published
  Counter stale;             ///< chunks whose snapshot was outdated when their read ended
  Counter read_failed;       ///< reads of chunks and extents that failed
  Counter stole;             ///< chunks that were evicted from another walk's plan
  Counter snapshots;         ///< new snapshots that evicted chunks
  Counter most_resident;     ///< largest number of chunks resident at the same time
  Counter most_vmas;         ///< largest number of VMAs that all chunks of the process took
  Counter loads_begun;       ///< loads of the whole file
  Counter loads_finished;    ///< loads of the whole file that reached the end
  Counter vanished;          ///< bytes read into the page cache, but evicted before a walk reached them
  Counter went_direct;       ///< changes to direct reads, see path_change.h
  Counter key_walks;         ///< times a walk was seen to skip its values
  Counter stride_walks;      ///< times a walk was seen to use each k-th value
  Counter predicted;         ///< values that walks with a stride prefetched and reached
  Counter predicted_right;   ///< values of `predicted` that the program used
  Counter predicted_wrong;   ///< values of `predicted` that the program did not use
  Counter sparse_plans;      ///< plans of walks whose data is scattered over the file
  Counter lookups_missed;    ///< lookups that probed residency and found data missing
  Counter exact_reads;       ///< reads of just the data that lookups missed
  Counter exact_bytes;       ///< bytes of these reads
  Counter exact_ns;          ///< time that lookups waited for these reads
  Counter cache_read;        ///< bytes that the process has read from the cache on local disk, for any use
  Counter
      cache_unpack_ns;     ///< time of the reads of compressed data among them, in ns, decompression included
  Counter cache_filled;    ///< chunks that the process has added to the cache
  Counter cache_skipped;   ///< bytes that it did not add, because the thread that writes was behind
  Counter server_read;     ///< bytes that the server of the node has brought
  Counter leaves_fetched;  ///< leaf pages fetched ahead of lookups

  void add_reads(const ReadCounts& c) noexcept {
    read += c.bytes, short_reads += c.short_reads, retries += c.retries;
    for (unsigned i = 0; i < ReadCounts::kSizes; ++i) requests[i] += c.by_size[i];
  }
  /// Adds the statistics of another window on the same file, or of a walk.
  void add(const FileStats& s) noexcept;
};

/// All counters but `requests`, with their names in reports (docs/operations.md).
inline constexpr CounterField<FileStats> kFileStats[] = {
    {"asked", &FileStats::asked},
    {"read", &FileStats::read},
    {"wasted", &FileStats::wasted},
    {"chunks_read", &FileStats::chunks_read},
    {"chunks_cached", &FileStats::chunks_cached},
    {"chunks_given", &FileStats::chunks_given},
    {"chunks_claimed", &FileStats::chunks_claimed},
    {"extents", &FileStats::extents},
    {"stalls", &FileStats::stalls},
    {"stall_us", &FileStats::stall_ns, 1000},
    {"published", &FileStats::published},
    {"reclaimed", &FileStats::reclaimed},
    {"most_resident", &FileStats::most_resident, 1, CounterField<FileStats>::Sum::most},
    {"most_vmas", &FileStats::most_vmas, 1, CounterField<FileStats>::Sum::most},
    {"publish_failed", &FileStats::publish_failed},
    {"read_failed", &FileStats::read_failed},
    {"short_reads", &FileStats::short_reads},
    {"retries", &FileStats::retries},
    {"stale", &FileStats::stale},
    {"stolen", &FileStats::stole},
    {"snapshots", &FileStats::snapshots},
    {"key_walks", &FileStats::key_walks},
    {"stride_walks", &FileStats::stride_walks},
    {"predicted", &FileStats::predicted},
    {"predicted_right", &FileStats::predicted_right},
    {"predicted_wrong", &FileStats::predicted_wrong},
    {"sparse_plans", &FileStats::sparse_plans},
    {"vanished", &FileStats::vanished},
    {"went_direct", &FileStats::went_direct},
    {"lookups_missed", &FileStats::lookups_missed},
    {"exact_reads", &FileStats::exact_reads},
    {"exact_bytes", &FileStats::exact_bytes},
    {"exact_us", &FileStats::exact_ns, 1000},
    {"cache_read", &FileStats::cache_read},
    {"cache_unpack_us", &FileStats::cache_unpack_ns, 1000},
    {"cache_filled", &FileStats::cache_filled},
    {"cache_skipped", &FileStats::cache_skipped},
    {"server_read", &FileStats::server_read},
    {"leaves_fetched", &FileStats::leaves_fetched},
    {"loads_begun", &FileStats::loads_begun},
    {"loads_finished", &FileStats::loads_finished},
};

inline void FileStats::add(const FileStats& s) noexcept {
  add_counters(*this, s, kFileStats);
  for (unsigned i = 0; i < ReadCounts::kSizes; ++i) requests[i] += s.requests[i];
}

/// All counters of a file, and how it is read.  Other processes read them (node/counter_board.h).
struct FileCounters {
  FileStats stats;
  std::uint64_t chunk_bytes = 0, memory_limit = 0;
  ReadPath path = ReadPath::none;
  char reason[64]{}, engine[16]{}, residency[16]{};  ///< cut to this length, with a final zero
};

}  // namespace lmdbio::window
