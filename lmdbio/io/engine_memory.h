// Reads from memory as if it were a file: for tests, and the floor of benchmarks.
#pragma once

#include <memory>

#include "lmdbio/io/io_engine.h"

namespace lmdbio {

/// The bytes outlive it.  Reads are copies within submit(); completions come in order.
class MemoryEngine final : public IoEngine {
 public:
  static constexpr Caps kCaps = {1, 32, false};

  /// The caps are the caller's to choose: a test may want a direct engine's alignment.
  explicit MemoryEngine(Bytes file, Caps caps = kCaps) noexcept;

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;

  const Bytes file_;
  std::unique_ptr<RawResult[]> done_;  // caps().depth of them, a ring; null: out of memory
  std::size_t first_ = 0, count_ = 0;
};

/// May throw bad_alloc.
std::unique_ptr<IoEngine> memory_engine(Bytes file, IoEngine::Caps caps = MemoryEngine::kCaps);

}  // namespace lmdbio
