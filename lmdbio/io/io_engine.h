// Reads of one file, many at once: the interface, and what is the same for all engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"

namespace lmdbio {

/// `dst` is the engine's until the read's completion has been reaped, or the engine is gone.
struct ReadOp {
  std::uint64_t offset;
  MutableBytes dst;
  std::uint64_t tag;  // the caller's own, handed back
  /// Bytes from the start of dst that must come, at most its size; 0: all.  For reads that reach beyond the
  /// end of the file on purpose, as a direct read of its tail must.
  std::size_t minimum = 0;
};

/// status ok: the first `bytes` bytes of dst are read, all of them, or at least ReadOp::minimum; what follows
/// them is unspecified, and may exist in the file.  Else all of dst is unspecified, bytes is 0: an errno, EIO
/// also for a read that met the end of the file before its minimum.
struct Completion {
  std::uint64_t tag;
  Status status;
  std::size_t bytes = 0;
};

/// Callers use the public calls, which check and count once for all engines; an engine writes the two do_*.
/// One engine per thread: no locking inside.  A thread with reads in flight does not end before it has reaped
/// them.
///
/// A direct engine reads a tail of the file that is shorter than caps().align by a longer read with a
/// minimum.
///
/// With poll(2): reap(out, 0) until it gives less than out.size(); then, while reads are in flight, poll
/// ready_fd() for poll_timeout_ms().
class IoEngine {
 public:
  struct Caps {
    std::size_t align;  // offsets, lengths and memory are multiples of it: a power of two, 1 for any
    unsigned depth;     // reads that can be in flight, above 0
    bool direct;
  };
  struct Counters {
    std::uint64_t requests = 0;     // reads asked of the engine below, continued and retried ones included
    std::uint64_t bytes = 0;        // that they gave
    std::uint64_t short_reads = 0;  // continued
    std::uint64_t retries = 0;      // after EINTR or EAGAIN
  };

  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;
  virtual ~IoEngine();  // an engine's own returns only when no read is in flight

  /// Takes a prefix of ops and returns its length; 0 means full, reap first.  What goes wrong with a read is
  /// told by its completion; the only error here is ENOMEM, no op taken.  Aborts on an empty or unaligned op
  /// (our bug).
  Result<std::size_t> submit(std::span<const ReadOp> ops) noexcept;
  /// Waits for at least min completions, in any order, or for all that are in flight if they are fewer; min 0
  /// never waits (an engine without ready_fd() may read on where a read was cut short).  EINTR, EAGAIN and
  /// short reads are dealt with, not shown: EINTR is retried without end, EAGAIN kAgainTries times over about
  /// 10 ms, then shown.  An error is the engine's: reads stay in flight.
  Result<std::size_t> reap(std::span<Completion> out, std::size_t min) noexcept;

  /// A descriptor that poll(2) reports readable while the engine below has results for reap; it is the
  /// engine's, for nothing but polling.  -1: reads are finished within submit(), reap never waits.
  virtual int ready_fd() const noexcept { return -1; }
  /// How long to poll ready_fd() before the next reap, in milliseconds: -1 for ever, 0 not at all
  /// (completions are here already, or there is no ready_fd), 1 while a refused read waits for another try.
  int poll_timeout_ms() const noexcept;

  /// Until there is something for reap(), a signal comes or `ns` have passed; may return before.
  virtual void wait_briefly(std::int64_t ns) noexcept;

  /// For a forked child, before anything else is called there: the parent's reads and threads are not ours.
  /// Own descriptors are closed, nothing is waited for, no memory that the kernel or the parent's threads use
  /// is touched.  Then the engine can only be destroyed, which does not wait either.  Without it a child
  /// leaves an inherited engine alone: its destructor would wait for threads and reads that are not there.
  virtual void forget() noexcept {}

  const Caps& caps() const noexcept { return caps_; }
  const Counters& counters() const noexcept { return counters_; }
  /// Reads taken and not yet reaped.
  std::size_t in_flight() const noexcept { return depth_ - free_; }

  static constexpr unsigned kAgainTries = 20;
  /// EFAULT is what io_uring answers for memory that is not there, and for reads through the page cache whose
  /// submitting thread has ended.
  static constexpr unsigned kFaultTries = 2;
  /// How often a read that was cut short within its first block is tried again.
  static constexpr unsigned kCutTries = 2;

 protected:
  explicit IoEngine(Caps caps) noexcept;

  /// Reads that were refused wait for another try, and there is nothing else to wait for.
  bool waits_to_retry() const noexcept { return pending_ != 0 && below_ == 0 && ready_ == 0; }

  /// What an engine sees: one attempt at a read, or at the rest of one.
  struct RawRead {
    std::uint64_t offset;
    MutableBytes dst;
    unsigned slot;
  };
  /// Kernel convention: bytes read, fewer than asked or 0 as well, or a negative errno.
  struct RawResult {
    unsigned slot;
    long res;
  };

 private:
  friend class HostedEngine;  // runs another engine's do_submit and do_reap in another thread

  /// Takes a prefix and returns its length.  Never more than depth reads are in flight, so an engine that
  /// keeps its depth need not refuse any.  An error: none was taken; EINTR and EAGAIN are tried again, others
  /// end the first.
  virtual Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept = 0;
  /// Waits for at least min results; there are that many in flight.  Fewer, even none, or EINTR: asked again.
  virtual Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept = 0;

  struct Slot {
    ReadOp op;
    std::size_t done;  // bytes
    unsigned again;    // EAGAIN in a row
    Status status;
  };
  void check(const ReadOp& op) const noexcept;
  void settle(const RawResult& r) noexcept;
  void finish(unsigned slot, Status s) noexcept;
  bool retry_later(unsigned slot) noexcept;
  void push_pending() noexcept;
  std::int64_t back_off_ns() const noexcept;
  void back_off() const noexcept;

  const Caps caps_;
  Counters counters_;
  // Indices of slots: [0, free_) of free_list_ are free, [0, pending_) of pending_list_ wait for the engine
  // below, [0, ready_) of ready_list_ wait for the caller.  The rest, below_ of them, are with the engine
  // below.
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<unsigned[]> lists_;
  std::int64_t retry_at_ns_ = 0;  // CLOCK_MONOTONIC; pending reads are not tried again before
  unsigned* free_list_ = nullptr;
  unsigned* pending_list_ = nullptr;
  unsigned* ready_list_ = nullptr;
  unsigned depth_ = 0;  // 0: no memory for the slots
  unsigned free_ = 0, pending_ = 0, ready_ = 0, below_ = 0;
};

/// Fills dst from offset on; the engine has nothing in flight.  Offset, size and memory as caps().align asks.
Status read_fully(IoEngine& engine, std::uint64_t offset, MutableBytes dst) noexcept;

}  // namespace lmdbio
