// An engine for systems without io_uring: several pread(2) at once, each in a thread of its own.
#pragma once

#include <memory>

#include "lmdbio/base/futex.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"
#include "lmdbio/io/range_reader.h"

namespace lmdbio {

/// Reads in threads that are named "lmdbio-read" and block all signals.  One thread runs from the start.  The
/// engine starts further threads when there are more reads than idle threads.  If no thread can be started,
/// the existing threads make all reads.  The destructor drops reads that no thread has begun, waits for all
/// other reads, and joins the threads.  The File must outlive the engine.
class ThreadsEngine final : public IoEngine {
 public:
  static constexpr unsigned kMostThreads = 64;

  ~ThreadsEngine() override;
  int ready_fd() const noexcept override;
  void forget() noexcept override;

 private:
  friend Result<std::unique_ptr<IoEngine>> threads_engine(const File&, unsigned, unsigned,
                                                          std::unique_ptr<RangeReader>, EventCount*) noexcept;
  struct Pool;

  ThreadsEngine(const File& file, unsigned depth) noexcept;
  Status start(const File& file, unsigned most, std::unique_ptr<RangeReader> reader,
               EventCount* told) noexcept;
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;

  std::unique_ptr<Pool> pool_;
};

/// Makes a reader that calls pread(2) for `file`, which must outlive it.  Call it in a thread that can use
/// the descriptor.  Returns nullptr if memory is short.
std::unique_ptr<RangeReader> file_reader(const File& file) noexcept;

/// Makes an engine with `depth` reads in flight and at most `threads` threads.  0 threads means as many as
/// the depth, but at most kMostThreads.  The threads call the fill() of `reader`, or of file_reader() if it
/// is null; RangeReader::threads() limits their number.  With `results`, the engine notifies this event count
/// when results for reap() have come, and has no ready_fd(), which would take a descriptor.  Errors: EINVAL
/// for depth 0, ENOMEM, EAGAIN if not even one thread can be started, others as eventfd(2).
Result<std::unique_ptr<IoEngine>> threads_engine(const File& file, unsigned depth, unsigned threads = 0,
                                                 std::unique_ptr<RangeReader> reader = nullptr,
                                                 EventCount* results = nullptr) noexcept;

}  // namespace lmdbio
