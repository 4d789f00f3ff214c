#include "lmdbio/dist/message_memory.h"

#include <bit>
#include <utility>

#include "lmdbio/base/align.h"

namespace lmdbio::dist {

namespace {

/// Smaller ones are left to malloc.
constexpr std::size_t kLeast = std::size_t{64} << 10;
/// Messages are about equally large: sizes are rounded up, by a sixteenth at most, so that buffers fit the
/// next ones.
constexpr std::size_t kRounding = 16;
/// Of the limit, what buffers that are not in use may take.
constexpr std::uint64_t kIdleOfLimit = 4;

std::size_t rounded(std::size_t size) noexcept {
  return size < kLeast ? size : static_cast<std::size_t>(align_up(size, std::bit_floor(size) / kRounding));
}

}  // namespace

bool MessageMemory::take(std::uint64_t bytes) noexcept {
  if (used_.fetch_add(bytes) + bytes <= limit_ &&
      memory_->take_of_readers(reader::MemoryUse::readers, bytes, reader::Urgency::needed))
    return true;
  used_.fetch_sub(bytes);
  return false;
}

void MessageMemory::give_back(std::uint64_t bytes) noexcept {
  memory_->give_back(reader::MemoryUse::readers, bytes);
  used_.fetch_sub(bytes);
}

std::byte* MessageMemory::allocate(std::size_t size) noexcept {
  size = rounded(size);
  {
    const std::lock_guard lock(mutex_);
    for (Idle& idle : idle_) {
      if (idle.bytes == nullptr || idle.size != size) continue;
      idle_bytes_ -= size;
      return std::exchange(idle.bytes, nullptr);
    }
  }
  if (std::byte* const bytes = PayloadMemory::allocate(size); bytes != nullptr) return bytes;
  free_idle();
  return PayloadMemory::allocate(size);
}

void MessageMemory::release(std::byte* bytes, std::size_t size) noexcept {
  size = rounded(size);
  if (size < kLeast || size > limit_ / kIdleOfLimit) return PayloadMemory::release(bytes, size);
  const std::lock_guard lock(mutex_);
  do {
    Idle& oldest = idle_[oldest_];
    oldest_ = (oldest_ + 1) % idle_.size();
    if (oldest.bytes != nullptr) {
      idle_bytes_ -= oldest.size;
      PayloadMemory::release(std::exchange(oldest.bytes, nullptr), oldest.size);
    }
    if (idle_bytes_ + size <= limit_ / kIdleOfLimit) {
      oldest = {std::exchange(bytes, nullptr), size};
      idle_bytes_ += size;
    }
  } while (bytes != nullptr);
}

void MessageMemory::free_idle() noexcept {
  const std::lock_guard lock(mutex_);
  for (Idle& idle : idle_)
    if (idle.bytes != nullptr) PayloadMemory::release(std::exchange(idle.bytes, nullptr), idle.size);
  idle_bytes_ = 0;
}

}  // namespace lmdbio::dist
