// Memory of the messages of one reader.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "lmdbio/dist/payload.h"
#include "lmdbio/reader/memory.h"

namespace lmdbio::dist {

/// Counted as buffers of readers are.  Some buffers that are not in use are kept for the next messages, since
/// the first use of fresh memory costs more than a copy into it.  Any thread.
class MessageMemory final : public PayloadMemory {
 public:
  /// At most `limit` bytes of `memory`.
  MessageMemory(std::shared_ptr<reader::Memory> memory, std::uint64_t limit) noexcept
      : memory_(std::move(memory)), limit_(limit) {}
  ~MessageMemory() override { free_idle(); }
  MessageMemory(const MessageMemory&) = delete;
  MessageMemory& operator=(const MessageMemory&) = delete;

  bool take(std::uint64_t bytes) noexcept override;
  void give_back(std::uint64_t bytes) noexcept override;
  std::byte* allocate(std::size_t size) noexcept override;
  void release(std::byte* bytes, std::size_t size) noexcept override;
  /// Bytes of buffers, those that are not in use included.
  std::uint64_t used() const noexcept { return used_.load(); }

 private:
  struct Idle {
    std::byte* bytes = nullptr;
    std::size_t size = 0;
  };
  void free_idle() noexcept;

  const std::shared_ptr<reader::Memory> memory_;
  const std::uint64_t limit_;
  std::atomic<std::uint64_t> used_{0};
  std::mutex mutex_;              ///< guards what follows
  std::array<Idle, 8> idle_{};    ///< a ring
  std::size_t oldest_ = 0;        ///< of it: replaced next
  std::uint64_t idle_bytes_ = 0;  ///< in it
};

}  // namespace lmdbio::dist
