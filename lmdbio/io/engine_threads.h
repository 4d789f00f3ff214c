// The engine for where io_uring is not to be had: many pread(2) at once, a thread each.
#pragma once

#include <memory>

#include "lmdbio/base/futex.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"
#include "lmdbio/io/page_filler.h"

namespace lmdbio {

/// The threads are named "lmdbio-read" and block all signals.  One runs from the start, others are added when
/// there are more reads than idle ones; where no more can be had, those that run do it all.  The destructor
/// drops reads that no thread has begun, waits for the others and joins the threads.  The File outlives it.
class ThreadsEngine final : public IoEngine {
 public:
  static constexpr unsigned kMostThreads = 64;

  ~ThreadsEngine() override;
  int ready_fd() const noexcept override;
  void forget() noexcept override;

 private:
  friend Result<std::unique_ptr<IoEngine>> threads_engine(const File&, unsigned, unsigned,
                                                          std::unique_ptr<PageFiller>, EventCount*) noexcept;
  struct Pool;

  ThreadsEngine(const File& file, unsigned depth) noexcept;
  Status start(const File& file, unsigned most, std::unique_ptr<PageFiller> filler,
               EventCount* told) noexcept;
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;

  std::unique_ptr<Pool> pool_;
};

/// `depth` reads in flight by at most `threads` threads (0: as many as the depth, kMostThreads at most). With
/// a `filler` they fill instead, as many at once as it wants.  With `results` there is no ready_fd(), which
/// takes a descriptor: that counts when something has come for reap().
/// Errors: EINVAL for depth 0, ENOMEM, EAGAIN if there is not even one thread to be had, as eventfd(2).
Result<std::unique_ptr<IoEngine>> threads_engine(const File& file, unsigned depth, unsigned threads = 0,
                                                 std::unique_ptr<PageFiller> filler = nullptr,
                                                 EventCount* results = nullptr) noexcept;

}  // namespace lmdbio
