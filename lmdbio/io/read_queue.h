// Reads of one file: any number is wanted, the engine is kept full, groups are waited for.  All reads of the
// library go through it: they are split, aligned, retried and counted in one place.
//
// Two drivers.  A program's thread waits for what it needs and pumps meanwhile (readers, prefetching
// transactions, index builds).  The I/O thread pumps the queues of all walks and sleeps in poll(2) between.
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

/// Reads that are waited for together.  Stays where it is while `left` is not 0.
struct ReadGroup {
  unsigned left = 0;         ///< requests that have not ended
  unsigned waiting = 0;      ///< of those, not submitted yet
  Status status;             ///< of the first that failed; the group's bytes are unspecified then
  std::int64_t sent_ns = 0;  ///< CLOCK_MONOTONIC, when its last request was submitted
  std::uint64_t offset = 0;  ///< of what was wanted last
  bool done() const noexcept { return left == 0; }
};

/// No thread of its own, no locks: one thread at a time.  Memory and groups that were given to it are the
/// engine's until the group is done, or the queue is gone.
class ReadQueue {
 public:
  /// Requests of up to 4 KiB, 64 KiB, 256 KiB, 1 MiB, more.
  static constexpr unsigned kSizeClasses = 5;
  using Sizes = std::array<std::uint64_t, kSizeClasses>;
  /// Of a request, bytes.
  static constexpr std::size_t kMostRequest = std::size_t{1} << 20;

  /// `file_bytes`: what is beyond is not read.  May throw bad_alloc.
  ReadQueue(std::unique_ptr<IoEngine> engine, std::uint64_t file_bytes,
            std::size_t most_request = kMostRequest);
  /// Waits for what is in flight; what is not is dropped.
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  /// Of offsets and memory, a power of two.
  std::size_t alignment() const noexcept { return engine_->caps().align; }
  bool direct() const noexcept { return engine_->caps().direct; }
  /// Bytes of memory that a read of `extent` takes: it is widened to the alignment at both ends.
  std::size_t room(const Extent& extent) const noexcept;
  /// Wants `extent`, cut to the end of the file: the byte at offset o comes to `to` + (o - the extent's
  /// offset rounded down to the alignment).  `to`: aligned, with room(extent).  Nothing is submitted yet.
  /// ENOMEM: nothing is wanted.
  Status add(ReadGroup& group, const Extent& extent, std::byte* to) noexcept;
  /// The same for bytes that nobody looks at: those of a request come to some place in `scratch`, which has
  /// room for the largest request, or for a few of them.
  Status add_unread(ReadGroup& group, const Extent& extent, MutableBytes scratch) noexcept;
  /// From now on wait(group) logs a line when it takes long (StallNotice).  `name`: of the file; stays.
  void tell_stalls(const char* name) noexcept { name_ = name; }
  /// The file has grown, or shrunk.
  void set_file_bytes(std::uint64_t bytes) noexcept { file_bytes_ = bytes; }
  /// Submits what there is room for.  Never waits.
  void submit() noexcept;
  /// Takes what has come, and submits nothing that waits here.  Blocks for no read.
  void take_done() noexcept;
  /// The same, and takes what has come.
  void pump() noexcept;
  /// Until the group is done, before all that is wanted and not submitted; then the group's status.
  Status wait(ReadGroup& group) noexcept;
  /// The same, or ECANCELED soon after `cancelled` is set: the group then goes on.
  Status wait(ReadGroup& group, const std::atomic<bool>& cancelled) noexcept;
  /// Until any one request ends, or none is in flight.
  void wait_any() noexcept;
  /// The group's bytes are wanted no more; waits for those in flight.
  void drop(ReadGroup& group) noexcept;
  /// Those of all groups.
  void drop_all() noexcept;

  /// Requests submitted and not ended, wanted and not submitted.
  std::size_t in_flight() const noexcept { return engine_->in_flight(); }
  std::size_t waiting() const noexcept { return pending_.size(); }
  const IoEngine::Counters& counters() const noexcept { return engine_->counters(); }
  /// Requests submitted since the last call, by their size.
  Sizes take_sizes() noexcept { return std::exchange(sizes_, Sizes{}); }
  /// For poll(2), as IoEngine says.
  int ready_fd() const noexcept { return engine_->ready_fd(); }
  int poll_timeout_ms() const noexcept { return engine_->poll_timeout_ms(); }
  /// In a forked child, before anything else: the parent's reads are not ours.  Groups are never done then.
  void forget() noexcept;
  /// Also where a signal handler has forked in a wait of the queue's, and this is the child.
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
  std::deque<ReadOp> pending_;  ///< tags: addresses of groups
  Sizes sizes_{};
  std::size_t next_unread_ = 0;
  const char* name_ = nullptr;  ///< null: stalls are not told of
  bool forgotten_ = false;
  const unsigned born_ = PrivateTable::generation();
};

}  // namespace lmdbio
