// The memory of assembled batches.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <vector>

namespace lmdbio::python {

/// Memory for batches, which is used again and again.  Counts what the program does not hold in the memory of
/// the process (LMDBIO_MEMORY): prepared batches and unused buffers.  Any thread.
class BufferStore {
 public:
  struct Memory {
    std::byte* data = nullptr;
    std::size_t size = 0;
    bool counted = false;  ///< in the memory of the process
  };
  /// Keeps at most `most` unused buffers.
  explicit BufferStore(std::size_t most);
  BufferStore(const BufferStore&) = delete;
  BufferStore& operator=(const BufferStore&) = delete;
  ~BufferStore();

  /// Returns memory of at least `bytes` bytes, aligned to 64 bytes or more.  If the process may not use more
  /// memory, returns none, or with `needed` memory that does not count.  Throws bad_alloc.
  Memory take(std::size_t bytes, bool needed);
  /// Counts memory of another owner as a prepared batch, until it is handed over.  `data` of the result is
  /// null.  Returns none if the process may not use more memory.
  Memory reserve(std::size_t bytes) noexcept;
  /// Gives a batch to the program, so that its memory does not count any more.
  void hand_over(Memory& memory) noexcept;
  /// Takes back memory that was handed over, unless it has another owner.
  void give_back(Memory memory) noexcept;
  /// Frees all unused buffers.  Returns false if there are none.
  bool drop_unused() noexcept;
  /// Returns the largest number of bytes that prepared batches and unused buffers have had together.
  std::size_t peak() noexcept;

 private:
  static void free(const Memory& memory) noexcept;
  void add(std::size_t bytes) noexcept;  ///< call it under the lock

  std::mutex mutex_;
  const pid_t pid_;
  const std::size_t most_;
  std::vector<Memory> unused_;  ///< all are counted
  std::size_t now_ = 0;         ///< bytes of prepared batches and unused buffers
  std::size_t peak_ = 0;        ///< the largest value of now_
};

}  // namespace lmdbio::python
