// An engine that reads from memory instead of a file, for tests and as the lower bound in benchmarks.
#pragma once

#include <memory>

#include "lmdbio/io/io_engine.h"

namespace lmdbio {

/// Copies the bytes of each read within submit() and completes the reads in order.  The memory must
/// outlive the engine.
class MemoryEngine final : public IoEngine {
 public:
  static constexpr Caps kCaps = {1, 32, false};

  /// The caller may choose the caps, for example a test that needs the alignment of a direct engine.
  explicit MemoryEngine(Bytes file, Caps caps = kCaps) noexcept;

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;

  const Bytes file_;
  std::unique_ptr<RawResult[]> done_;  // a ring of caps().depth results; null if memory is short
  std::size_t first_ = 0, count_ = 0;
};

/// Makes a MemoryEngine.  May throw bad_alloc.
std::unique_ptr<IoEngine> memory_engine(Bytes file, IoEngine::Caps caps = MemoryEngine::kCaps);

}  // namespace lmdbio
