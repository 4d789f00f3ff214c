// The engine that works on every system: one pread(2) at a time.
#pragma once

#include <memory>

#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"

namespace lmdbio {

/// Reads within submit(), with a queue depth of 1.  The File must outlive the engine.
class PreadEngine final : public IoEngine {
 public:
  explicit PreadEngine(const File& file) noexcept;

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;

  const int fd_;
  bool done_ = false;
  RawResult result_{};
};

/// Makes a PreadEngine for `file`, which must outlive it.  May throw bad_alloc.
std::unique_ptr<IoEngine> pread_engine(const File& file);

}  // namespace lmdbio
