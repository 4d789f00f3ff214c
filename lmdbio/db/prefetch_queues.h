// The reads of a transaction that prefetches: past the page cache and through it.
#pragma once

#include <cstdint>
#include <memory>

#include "lmdbio/db/prefetch_counters.h"
#include "lmdbio/db/prefetch_file.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::db {

/// One thread at a time.
class PrefetchQueues {
 public:
  static constexpr unsigned kDirectDepth = 128, kBufferedDepth = 64;

  /// None yet.  `file` outlives it.
  explicit PrefetchQueues(const PrefetchFile& file) noexcept : file_(file) {}

  /// Makes them for a file of `file_bytes`, in place of those there are, in which nothing is being read.
  /// False: there are none.  May throw bad_alloc.
  bool make(std::uint64_t file_bytes);
  bool made() const noexcept { return buffered_ != nullptr; }
  /// Bytes of the file as they know it.
  std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// Null where values go to the page cache alone.
  ReadQueue* direct() const noexcept { return direct_.get(); }
  ReadQueue& buffered() const noexcept { return *buffered_; }

  /// Reads are submitted and taken in, without waiting.
  void pump() noexcept;
  /// Some reads have not been submitted, or not been taken in.
  bool waiting() const noexcept;
  /// Waits for reads in flight, and forgets all.
  void drop_all() noexcept;
  /// Adds what was read since the last call.
  void count(PrefetchCounters& to) noexcept;
  /// In a forked child: they are left as they are, their threads and descriptors are the parent's.
  void abandon() noexcept;

 private:
  const PrefetchFile& file_;
  std::unique_ptr<ReadQueue> direct_, buffered_;
  std::uint64_t file_bytes_ = 0;
  IoEngine::Counters counted_direct_, counted_buffered_;
};

}  // namespace lmdbio::db
