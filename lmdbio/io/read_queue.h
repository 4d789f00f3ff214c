// A queue of reads of one file: it splits and aligns them, keeps the engine full, and lets callers wait for
// groups of reads.  All reads of the library go through a queue, so they are retried and counted in one
// place.
//
// Two kinds of threads drive a queue.  A thread of the program pumps while it waits for the data that it
// needs (readers, prefetching transactions, index builds).  The I/O thread pumps the queues of all walks and
// sleeps in poll(2) in between.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "lmdbio/io/extents.h"
#include "lmdbio/io/io_engine.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio {

/// Reads that a caller waits for together.  It must not move while `left` is not 0.
struct ReadGroup {
  unsigned left = 0;         ///< number of requests that have not ended
  unsigned waiting = 0;      ///< number of these that are not submitted yet
  Status status;             ///< of the first failed request; the bytes of all requests are then unspecified
  std::int64_t sent_ns = 0;  ///< time of the last submission, CLOCK_MONOTONIC
  std::uint64_t offset = 0;  ///< offset in the file of the extent that was added last
  bool done() const noexcept { return left == 0; }
};

/// What queues have read.
struct ReadCounts {
  /// Classes of request sizes: up to 4 KiB, 64 KiB, 256 KiB, 1 MiB, and more.
  static constexpr unsigned kSizes = 5;
  std::uint64_t requests = 0;                   ///< continued and retried ones count again
  std::uint64_t bytes = 0;                      ///< that these requests read
  std::uint64_t short_reads = 0;                ///< that were continued
  std::uint64_t retries = 0;                    ///< after EINTR, EAGAIN, ECANCELED or EFAULT
  std::array<std::uint64_t, kSizes> by_size{};  ///< number of requests that callers made, by size

  void add(const ReadCounts& c) noexcept {
    requests += c.requests, bytes += c.bytes, short_reads += c.short_reads, retries += c.retries;
    for (unsigned i = 0; i < kSizes; ++i) by_size[i] += c.by_size[i];
  }
};

/// One thread at a time may use a queue; it has no thread and no locks of its own.  Memory and groups that
/// were added belong to the engine until the group is done or the queue is destroyed.
class ReadQueue {
 public:
  /// The default for the largest request, in bytes.
  static constexpr std::size_t kMostRequest = std::size_t{1} << 20;

  /// Reads nothing beyond `file_bytes`.  May throw bad_alloc.
  ReadQueue(std::unique_ptr<IoEngine> engine, std::uint64_t file_bytes,
            std::size_t most_request = kMostRequest);
  /// Waits for the requests in flight and drops pending ones.
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  /// Returns the alignment of offsets and memory in bytes, a power of two.
  std::size_t alignment() const noexcept { return engine_->caps().align; }
  bool direct() const noexcept { return engine_->caps().direct; }
  /// Returns how many requests can be in flight, at least 1.
  unsigned depth() const noexcept { return engine_->caps().depth; }
  /// Returns the memory that a read of `extent` needs, in bytes: the extent is widened to the alignment at
  /// both ends.
  std::size_t room(const Extent& extent) const noexcept;
  /// Adds a read of `extent`, cut at the end of the file, to the group.  The byte at file offset o is stored
  /// at `to` + (o - start), where start is the extent's offset rounded down to the alignment.  `to` must be
  /// aligned and have room(extent) bytes.  Submits nothing yet.  Error: ENOMEM; then nothing was added.
  Status add(ReadGroup& group, const Extent& extent, std::byte* to) noexcept;
  /// As add(), for data that is only needed in the page cache.  The bytes are stored somewhere in `scratch`,
  /// which must have room for at least one request of the largest size.
  Status add_unread(ReadGroup& group, const Extent& extent, MutableBytes scratch) noexcept;
  /// Makes wait(group) log a line when it takes long (StallNotice).  `name` is the name of the file and must
  /// outlive the queue.
  void tell_stalls(const char* name) noexcept { name_ = name; }
  /// Sets the length of the file after it has grown or shrunk.
  void set_file_bytes(std::uint64_t bytes) noexcept { file_bytes_ = bytes; }
  /// Submits pending requests until the engine is full.  Never waits.
  void submit() noexcept;
  /// Takes the finished requests and submits none.  Never waits for a read.
  void take_done() noexcept;
  /// Submits pending requests and takes the finished ones.  Never waits.
  void pump() noexcept;
  /// Waits until the group is done, and returns its status.  Submits its pending requests before those of
  /// other groups.  Returns ECANCELED in a forked child to which the group does not belong.
  Status wait(ReadGroup& group) noexcept;
  /// As wait(group), but also returns ECANCELED soon after `cancelled` is set; the group then stays in
  /// flight.
  Status wait(ReadGroup& group, const std::atomic<bool>& cancelled) noexcept;
  /// Waits until one request ends, or none is in flight.
  void wait_any() noexcept;
  /// Removes the group's pending requests and waits for its requests in flight.
  void drop(ReadGroup& group) noexcept;
  /// As drop(), for all groups.
  void drop_all() noexcept;

  /// in_flight() returns the number of requests in flight, waiting() the number of requests not submitted
  /// yet.
  std::size_t in_flight() const noexcept { return engine_->in_flight(); }
  std::size_t waiting() const noexcept { return pending_.size(); }
  const IoEngine::Counters& counters() const noexcept { return engine_->counters(); }
  /// Returns what was read since the last call.
  ReadCounts take_counts() noexcept;
  /// For poll(2), see IoEngine.
  int ready_fd() const noexcept { return engine_->ready_fd(); }
  int poll_timeout_ms() const noexcept { return engine_->poll_timeout_ms(); }
  /// Gives up the parent's reads; a forked child calls this first.  Groups are never done afterwards.
  void forget() noexcept;
  /// Returns true after forget(), and in a child that was forked by a signal handler during a wait.
  bool forgotten() noexcept;

 private:
  template <class Place>
  Status add_pieces(ReadGroup& group, const Extent& extent, Place&& place) noexcept;
  void put_first(const ReadGroup& group) noexcept;
  void reap_here() noexcept;
  void reap(std::size_t min) noexcept;
  void reap_next(std::size_t min) noexcept;
  bool wait_briefly(std::int64_t ns) noexcept;
  void end(ReadGroup& group, Status st) noexcept;

  std::unique_ptr<IoEngine> engine_;
  std::uint64_t file_bytes_;
  const std::size_t most_request_;
  std::deque<ReadOp> pending_;                             ///< the tag of each is the address of its group
  IoEngine::Counters taken_;                               ///< counters() at the last take_counts()
  std::array<std::uint64_t, ReadCounts::kSizes> sizes_{};  ///< requests submitted since then
  std::size_t next_unread_ = 0;
  const char* name_ = nullptr;  ///< if null, stalls are not logged
  bool forgotten_ = false;
  const unsigned born_ = PrivateTable::generation();
};

}  // namespace lmdbio
