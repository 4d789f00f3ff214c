// Memory for batches: buffers that are used again and again, within a limit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "lmdbio/base/mapping.h"

namespace lmdbio::reader {

class BufferPool;

/// One buffer, page-aligned; from 2 MiB on 2 MiB-aligned and of huge pages where there are any.  Goes back to
/// its pool at the end, from any thread.  Bytes are as the last user left them.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return memory_.data(); }
  /// At least what was asked for.
  std::size_t size() const noexcept { return memory_.size(); }

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<BufferPool> pool, Mapping memory) noexcept
      : pool_(std::move(pool)), memory_(std::move(memory)) {}

  std::shared_ptr<BufferPool> pool_;
  Mapping memory_;
};

/// Any thread.  Lives as long as its buffers do.  In a forked child nothing is taken; what an inherited
/// buffer leaves is unmapped there.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  struct Counters {
    std::uint64_t made = 0;        ///< buffers so far
    std::uint64_t bytes = 0;       ///< of all that exist
    std::uint64_t used_bytes = 0;  ///< of those that are in use
    std::uint64_t most_bytes = 0;  ///< that ever existed at a time
  };

  /// `limit`: bytes, for all buffers together.
  explicit BufferPool(std::uint64_t limit) noexcept;

  /// A free buffer or a new one of at least `bytes` (above 0).  ENOMEM: the system's, or those in use would
  /// have more than `most` bytes, which is at most the limit.
  Result<Buffer> take(std::size_t bytes, std::uint64_t most) noexcept;
  std::uint64_t limit() const noexcept { return limit_; }
  Counters counters() const noexcept;

  /// The size of a buffer for `bytes`: few different ones, so that they fit again.
  static std::uint64_t buffer_bytes(std::uint64_t bytes) noexcept;

 private:
  friend class Buffer;
  void give_back(Mapping memory) noexcept;
  Result<Mapping> make(std::size_t bytes) noexcept;

  const std::uint64_t limit_;
  const pid_t pid_;
  mutable std::mutex mutex_;  ///< guards what follows
  std::vector<Mapping> free_;
  Counters counters_;
};

}  // namespace lmdbio::reader
