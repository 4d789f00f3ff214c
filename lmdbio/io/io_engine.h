// The interface of engines that read one file, with many reads in flight, and the code that all engines
// share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"

namespace lmdbio {

/// One read.  The engine owns the memory of `dst` until the caller has reaped the read's completion, or the
/// engine is destroyed.
struct ReadOp {
  std::uint64_t offset;
  MutableBytes dst;
  std::uint64_t tag;  ///< chosen by the caller; the completion returns it
  /// The number of bytes from the start of dst that must be read, at most its size.  0 means all.  A direct
  /// read of the tail of a file needs this, because it has to reach beyond the end of the file.
  std::size_t minimum = 0;
};

/// The outcome of one read.  If status is ok, the first `bytes` bytes of dst are valid: all of dst, or at
/// least ReadOp::minimum.  The bytes after them are unspecified; the file may contain more.  If status is an
/// error, all of dst is unspecified and bytes is 0.  Errors: an errno; EIO also if the file ended before the
/// minimum.
struct Completion {
  std::uint64_t tag;
  Status status;
  std::size_t bytes = 0;
};

/// Reads one file with up to caps().depth reads in flight.  Callers use the public functions, which check and
/// count for all engines.  An engine implements do_submit() and do_reap().  It has no locks, so only one
/// thread at a time may use it.  A thread must reap its reads before it ends.
///
/// If the tail of a file is shorter than caps().align, read it from a direct engine with a longer read that
/// has a minimum.
///
/// To use an engine with poll(2), call reap(out, 0) until it returns fewer than out.size().  Then, while
/// reads are in flight, poll ready_fd() for poll_timeout_ms().
class IoEngine {
 public:
  struct Caps {
    std::size_t align;  ///< offsets, lengths and addresses must be multiples of this power of two
    unsigned depth;     ///< maximum number of reads in flight, at least 1
    bool direct;        ///< reads bypass the page cache
  };
  struct Counters {
    std::uint64_t requests = 0;     ///< reads that do_submit() took; continued and retried reads count again
    std::uint64_t bytes = 0;        ///< bytes read by these requests
    std::uint64_t short_reads = 0;  ///< short reads that were continued
    std::uint64_t retries = 0;      ///< retries after EINTR, EAGAIN, ECANCELED or EFAULT
  };

  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;
  virtual ~IoEngine();  ///< the destructor of an engine waits until no read is in flight

  /// Takes a prefix of ops and returns its length.  0 means that the engine is full: reap first.  The
  /// completion of a read reports the errors of the read.  The only error of submit() is ENOMEM; no op was
  /// taken then. Aborts on an empty or unaligned op, which is a bug of the caller.
  Result<std::size_t> submit(std::span<const ReadOp> ops) noexcept;
  /// Waits for at least `min` completions, or for all reads in flight if they are fewer, and stores them in
  /// any order.  With min 0 it never waits, except that an engine without ready_fd() may continue a short
  /// read. It continues short reads, and retries EINTR without limit.  It retries EAGAIN kAgainTries times,
  /// within about 10 ms, and then reports it.  An error of this function is an error of the engine; the reads
  /// then stay in flight.
  Result<std::size_t> reap(std::span<Completion> out, std::size_t min) noexcept;

  /// Returns a descriptor that poll(2) reports readable while reap() has results.  The engine owns it; use it
  /// for poll(2) only.  Returns -1 if submit() finishes all reads, so that reap() never waits.
  virtual int ready_fd() const noexcept { return -1; }
  /// Returns how long to poll ready_fd() before the next reap, in milliseconds: -1 without limit; 0 if
  /// completions are ready or there is no ready_fd(); 1 while a read that got EAGAIN waits for its next try.
  int poll_timeout_ms() const noexcept;

  /// Waits until reap() has a result, a signal arrives, or `ns` nanoseconds have passed.  May return earlier.
  virtual void wait_briefly(std::int64_t ns) noexcept;

  /// Gives up the parent's reads and threads.  A forked child calls this before any other function of an
  /// inherited engine.  Afterwards the child can only destroy the engine, and the destructor does not wait.
  /// This function closes the engine's descriptors.  It does not wait, and does not access memory that the
  /// kernel or the parent's threads use.  A child that does not call it must not destroy the engine, because
  /// the destructor would wait for threads and reads that do not exist there.
  virtual void forget() noexcept {}

  const Caps& caps() const noexcept { return caps_; }
  const Counters& counters() const noexcept { return counters_; }
  /// Returns the number of reads that were taken and not yet reaped.
  std::size_t in_flight() const noexcept { return depth_ - free_; }

  /// How often a read is tried again after EAGAIN.
  static constexpr unsigned kAgainTries = 20;
  /// How often a read is tried again after EFAULT.  io_uring returns EFAULT for memory that is not mapped,
  /// and for reads through the page cache whose submitting thread has ended.
  static constexpr unsigned kFaultTries = 2;
  /// How often a read that returned less than one block is tried again.
  static constexpr unsigned kCutTries = 2;

 protected:
  explicit IoEngine(Caps caps) noexcept;

  /// Returns true if reads that got EAGAIN wait for their next try, and no other read is in flight.
  bool waits_to_retry() const noexcept { return pending_ != 0 && below_ == 0 && ready_ == 0; }

  /// One attempt at a read, or at the rest of one.
  struct RawRead {
    std::uint64_t offset;
    MutableBytes dst;
    unsigned slot;
  };
  /// The result of an attempt, by the kernel's convention: the number of bytes read, which may be less than
  /// requested or 0, or a negative errno.
  struct RawResult {
    unsigned slot;
    long res;
  };

 private:
  friend class HostedEngine;  // calls another engine's do_submit and do_reap in another thread

  /// Takes a prefix of `reads` and returns its length.  At most caps().depth reads are in flight, so an
  /// engine need not refuse any.  On an error, no read was taken.  EINTR and EAGAIN are retried; any other
  /// error ends the first read.
  virtual Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept = 0;
  /// Waits for at least `min` results.  At least that many reads are in flight.  If the caller gets fewer
  /// results, or EINTR, it calls again.
  virtual Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept = 0;

  struct Slot {
    ReadOp op;
    std::size_t done;  ///< bytes read so far
    unsigned again;    ///< consecutive EAGAIN or EFAULT
    unsigned cut;      ///< consecutive reads of less than one block
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
  // Indices of slots.  The first free_ entries of free_list_ are free.  The first pending_ entries of
  // pending_list_ wait to be passed to do_submit().  The first ready_ entries of ready_list_ wait for the
  // caller.  do_submit() has taken the other below_ slots.
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<unsigned[]> lists_;
  std::int64_t retry_at_ns_ = 0;  ///< CLOCK_MONOTONIC; the earliest time at which pending reads are submitted
  unsigned* free_list_ = nullptr;
  unsigned* pending_list_ = nullptr;
  unsigned* ready_list_ = nullptr;
  unsigned depth_ = 0;  ///< 0 if there was no memory for the slots
  unsigned free_ = 0, pending_ = 0, ready_ = 0, below_ = 0;
};

/// Fills dst with the bytes from `offset` on.  The engine must have no read in flight; offset, size and
/// address must be multiples of caps().align.
Status read_fully(IoEngine& engine, std::uint64_t offset, MutableBytes dst) noexcept;

}  // namespace lmdbio
