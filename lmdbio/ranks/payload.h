// Memory for the records in messages.  One class allocates all this memory, so that it can be limited, and so
// that a model can omit it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace lmdbio::ranks {

/// Allocates memory without a limit.  Any thread.
class PayloadMemory {
 public:
  virtual ~PayloadMemory() = default;
  /// Counts bytes as taken.  Returns false if there is no room at present.
  virtual bool take(std::uint64_t) noexcept { return true; }
  virtual void give_back(std::uint64_t) noexcept {}
  /// Returns memory with undefined content, or null if there is no room at present.
  virtual std::byte* allocate(std::size_t size) noexcept;
  virtual void release(std::byte* bytes, std::size_t size) noexcept;
  /// Returns the number of bytes that an allocation of `size` bytes counts as.
  virtual std::size_t counted(std::size_t size) const noexcept { return size; }
};

/// Allows one payload at a time, beyond every limit.  One thread.
class SpareMemory final : public PayloadMemory {
 public:
  bool take(std::uint64_t) noexcept override { return !std::exchange(used_, true); }
  void give_back(std::uint64_t) noexcept override { used_ = false; }

 private:
  bool used_ = false;
};

/// Owns bytes.  Their content is undefined at first.  May be empty.
class Payload {
 public:
  Payload() noexcept = default;
  Payload(Payload&& other) noexcept
      : memory_(std::move(other.memory_)),
        bytes_(std::exchange(other.bytes_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Payload& operator=(Payload&& other) noexcept {
    if (this == &other) return *this;
    clear();
    memory_ = std::move(other.memory_);
    bytes_ = std::exchange(other.bytes_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~Payload() { clear(); }

  /// Replaces the bytes by `size` new bytes.  If there is no room, returns false and leaves this object
  /// empty.
  bool make(const std::shared_ptr<PayloadMemory>& memory, std::size_t size) noexcept {
    clear();
    if (size == 0) return true;
    bytes_ = memory->allocate(size);
    if (bytes_ == nullptr) return false;
    memory_ = memory;
    size_ = size;
    return true;
  }
  void clear() noexcept {
    if (bytes_ == nullptr) return;
    memory_->release(bytes_, size_);
    memory_.reset();
    bytes_ = nullptr;
    size_ = 0;
  }

  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  /// Returns the number of bytes that this payload counts as.
  std::size_t counted() const noexcept { return bytes_ != nullptr ? memory_->counted(size_) : 0; }
  std::byte* data() const noexcept { return bytes_; }
  std::span<std::byte> span() const noexcept { return {bytes_, size_}; }

 private:
  std::shared_ptr<PayloadMemory> memory_;
  std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lmdbio::ranks
