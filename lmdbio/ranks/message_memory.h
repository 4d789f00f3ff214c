// Memory for the messages of one reader.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "lmdbio/ranks/payload.h"
#include "lmdbio/records/memory.h"

namespace lmdbio::ranks {

/// Allocates the buffers of messages, and counts them as buffers of readers.  Keeps some idle buffers for
/// later messages, because the first use of new memory costs more than copying data into it.  Any thread.  A
/// forked child can only release memory.
class MessageMemory final : public PayloadMemory, public records::MemoryHolder {
 public:
  /// Takes at most `limit` bytes from `memory`.  May throw bad_alloc.
  MessageMemory(std::shared_ptr<records::Memory> memory, std::uint64_t limit);
  ~MessageMemory() override;
  MessageMemory(const MessageMemory&) = delete;
  MessageMemory& operator=(const MessageMemory&) = delete;

  bool take(std::uint64_t bytes) noexcept override;
  void give_back(std::uint64_t bytes) noexcept override;
  std::byte* allocate(std::size_t size) noexcept override;
  void release(std::byte* bytes, std::size_t size) noexcept override;
  std::size_t counted(std::size_t size) const noexcept override;
  /// Returns the bytes of all buffers, idle ones included.
  std::uint64_t used() const noexcept { return used_.load(); }

  std::uint64_t releasable_bytes() const noexcept override;
  std::uint64_t ahead_bytes() const noexcept override { return 0; }
  /// Releases all idle buffers.
  std::uint64_t unmap_free(std::uint64_t bytes) noexcept override;

 private:
  struct Idle {
    std::byte* bytes = nullptr;
    std::size_t size = 0;
  };
  using Ring = std::array<Idle, 8>;
  bool ours() const noexcept { return ::getpid() == pid_; }
  void free(const Ring& buffers) noexcept;

  const std::shared_ptr<records::Memory> memory_;
  const std::uint64_t limit_;
  const pid_t pid_;
  std::atomic<std::uint64_t> used_{0};
  /// Guards the members below.  Do not allocate, free or count memory while holding it.
  mutable std::mutex mutex_;
  Ring idle_{};
  std::size_t oldest_ = 0;        ///< index of the oldest buffer in idle_, if all its slots are used
  std::uint64_t idle_bytes_ = 0;  ///< bytes of the buffers in idle_
};

}  // namespace lmdbio::ranks
