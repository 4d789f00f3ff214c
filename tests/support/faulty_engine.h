// An engine that fails as told, around any other engine.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/io_engine.h"

namespace lmdbio::testing {

enum class Fault : unsigned char {
  fail,        // the read gives an errno, dst is not touched
  short_read,  // the read gives about half, a multiple of the engine's alignment
  zero,        // the read gives nothing, as at the end of the file
  flip_bit,    // the read succeeds with one wrong bit
  refuse,      // the submission itself gives an errno
  full,        // the submission takes nothing
  reap,        // the wait itself gives an errno
};

/// Inject `fault` at the nth operation that it can hit, counted from 1: attempts at a read (for short_read
/// those longer than the alignment), submissions, or waits.  `times` operations in a row.
struct FaultPlan {
  Fault fault = Fault::fail;
  unsigned nth = 0;  // 0: never
  int error = 0;
  unsigned times = 1;
};

inline FaultPlan fail_nth(unsigned k, int error) { return {Fault::fail, k, error}; }
inline FaultPlan interrupt_nth(unsigned k) { return {Fault::fail, k, EINTR}; }
inline FaultPlan again_nth(unsigned k, unsigned times = 1) { return {Fault::fail, k, EAGAIN, times}; }
inline FaultPlan short_nth(unsigned k) { return {Fault::short_read, k}; }
inline FaultPlan zero_nth(unsigned k) { return {Fault::zero, k}; }
inline FaultPlan flip_nth(unsigned k) { return {Fault::flip_bit, k}; }
inline FaultPlan refuse_nth(unsigned k, int error, unsigned times = 1) {
  return {Fault::refuse, k, error, times};
}
inline FaultPlan full_nth(unsigned k, unsigned times = 1) { return {Fault::full, k, 0, times}; }
inline FaultPlan reap_nth(unsigned k, int error) { return {Fault::reap, k, error}; }

/// Faults are injected below the checks of IoEngine, as a kernel or a device would.  With `shuffle` the
/// completions of what is in flight come in an order drawn from that seed.
class FaultyEngine final : public IoEngine {
 public:
  struct Injected {
    Fault fault;
    unsigned operation;    // which one, as FaultPlan::nth counts
    std::uint64_t offset;  // of the read, if one was hit
    std::size_t size;
    int error;
  };

  FaultyEngine(std::unique_ptr<IoEngine> inner, const std::vector<FaultPlan>& plans);
  FaultyEngine(std::unique_ptr<IoEngine> inner, FaultPlan plan)
      : FaultyEngine(std::move(inner), std::vector<FaultPlan>{plan}) {}
  /// Completions come shuffled.
  FaultyEngine(std::unique_ptr<IoEngine> inner, FaultPlan plan, std::uint64_t shuffle);

  /// Readable also while answers wait that were given here.
  int ready_fd() const noexcept override { return ready_fd_.get(); }
  /// The inner engine's too.
  void forget() noexcept override;

  /// A fault has been injected.
  bool fired() const noexcept { return !log_.empty(); }
  const std::vector<Injected>& log() const noexcept { return log_; }
  /// The log in words, for a test's message.
  std::string story() const;
  const IoEngine& inner() const noexcept { return *inner_; }

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;
  const FaultPlan* due(Fault fault, std::uint64_t offset = 0, std::size_t size = 0) noexcept;
  void collect(std::size_t min) noexcept;
  void show_ready() noexcept;

  struct Active {
    FaultPlan plan;
    unsigned seen = 0;
  };
  struct Below {  // what the inner engine was asked, by slot
    MutableBytes dst;
    bool flip;
  };

  const std::unique_ptr<IoEngine> inner_;
  std::vector<Active> plans_;
  std::vector<Injected> log_;
  std::vector<Below> below_;
  std::vector<RawResult> ready_;
  UniqueFd ready_fd_;  // an epoll instance of the inner engine's and the next; empty if there is no inner one
  UniqueFd own_ready_;  // an eventfd
  bool shown_ = false;  // it is readable
  bool shuffle_ = false;
  std::mt19937_64 random_;
};

}  // namespace lmdbio::testing
