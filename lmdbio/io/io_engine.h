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
};

/// status ok: dst is full.  Else its contents are unspecified: an errno, EIO also for a read that reaches
/// beyond the end of the file.  A short read never gets here.
struct Completion {
  std::uint64_t tag;
  Status status;
};

/// Callers use the public calls, which check and count once for all engines; an engine writes the two do_*.
/// One engine per thread: no locking inside.
///
/// A direct engine cannot read a tail of the file that is shorter than caps().align: such a read is EIO.
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
  /// does not wait for reads.  EINTR, EAGAIN and short reads are dealt with, not shown: EINTR is retried
  /// without end, EAGAIN kAgainTries times over about 10 ms, then shown.  An error is the engine's: reads
  /// stay in flight.
  Result<std::size_t> reap(std::span<Completion> out, std::size_t min) noexcept;

  const Caps& caps() const noexcept { return caps_; }
  const Counters& counters() const noexcept { return counters_; }
  /// Reads taken and not yet reaped.
  std::size_t in_flight() const noexcept { return depth_ - free_; }

  static constexpr unsigned kAgainTries = 20;

 protected:
  explicit IoEngine(Caps caps) noexcept;

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
  void back_off() const noexcept;

  const Caps caps_;
  Counters counters_;
  // Indices of slots: [0, free_) of free_list_ are free, [0, pending_) of pending_list_ wait for the engine
  // below, [0, ready_) of ready_list_ wait for the caller.  The rest, below_ of them, are with the engine
  // below.
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<unsigned[]> lists_;
  unsigned* free_list_ = nullptr;
  unsigned* pending_list_ = nullptr;
  unsigned* ready_list_ = nullptr;
  unsigned depth_ = 0;  // 0: no memory for the slots
  unsigned free_ = 0, pending_ = 0, ready_ = 0, below_ = 0;
};

/// Fills dst from offset on; the engine has nothing in flight.  Offset, size and memory as caps().align asks.
Status read_fully(IoEngine& engine, std::uint64_t offset, MutableBytes dst) noexcept;

}  // namespace lmdbio
