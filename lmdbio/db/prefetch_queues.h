// The read queues of a transaction that prefetches: one past the page cache and one through it.
#pragma once

#include <cstdint>
#include <memory>

#include "lmdbio/db/prefetch_counters.h"
#include "lmdbio/db/prefetch_file.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::db {

/// Owns the two read queues.  One thread at a time.
class PrefetchQueues {
 public:
  static constexpr unsigned kDirectDepth = 128, kBufferedDepth = 64;

  /// Makes no queues yet.  `file` outlives this object.
  explicit PrefetchQueues(const PrefetchFile& file) noexcept : file_(file) {}

  /// Makes the queues for a file of `file_bytes`.  Replaces existing queues, which must have no reads in
  /// flight.  Returns false if there are no queues then.  May throw bad_alloc.
  bool make(std::uint64_t file_bytes);
  bool made() const noexcept { return buffered_ != nullptr; }
  /// Size of the file that the queues were made for.
  std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// Returns nullptr if values go to the page cache only.
  ReadQueue* direct() const noexcept { return direct_.get(); }
  ReadQueue& buffered() const noexcept { return *buffered_; }

  /// Submits waiting requests and takes completed ones, without waiting.
  void pump() noexcept;
  /// Whether requests wait to be submitted.
  bool waiting() const noexcept;
  /// Waits for reads in flight and drops all requests.
  void drop_all() noexcept;
  /// Adds the bytes and requests since the last call.
  void count(PrefetchCounters& to) noexcept;
  /// Call in a forked child.  Leaks the queues, because their threads and descriptors belong to the parent.
  void abandon() noexcept;

 private:
  const PrefetchFile& file_;
  std::unique_ptr<ReadQueue> direct_, buffered_;
  std::uint64_t file_bytes_ = 0;
  IoEngine::Counters counted_direct_, counted_buffered_;
};

}  // namespace lmdbio::db
