#include "lmdbio/ranks/message_memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

#include "lmdbio/base/align.h"

namespace lmdbio::ranks {

namespace {

/// Smaller buffers are not kept for later messages.
constexpr std::size_t kLeast = std::size_t{64} << 10;
/// Sizes are rounded up by at most one kRounding-th.  Later messages have about the same size, and then fit
/// into the same buffer.
constexpr std::size_t kRounding = 16;
/// Idle buffers may take at most one kIdleOfLimit-th of the limit.
constexpr std::uint64_t kIdleOfLimit = 4;

}  // namespace

MessageMemory::MessageMemory(std::shared_ptr<records::Memory> memory, std::uint64_t limit)
    : memory_(std::move(memory)), limit_(limit), pid_(::getpid()) {
  memory_->add(*this);
}

MessageMemory::~MessageMemory() {
  if (!ours()) return;
  memory_->remove(*this);
  free(idle_);
}

std::size_t MessageMemory::counted(std::size_t size) const noexcept {
  if (size < kLeast) return size;
  const auto rounded = static_cast<std::size_t>(align_up(size, std::bit_floor(size) / kRounding));
  return rounded <= limit_ ? rounded : size;
}

bool MessageMemory::take(std::uint64_t bytes) noexcept {
  if (used_.fetch_add(bytes) + bytes <= limit_ &&
      memory_->take_of_readers(records::MemoryUse::readers, bytes, records::Urgency::needed))
    return true;
  used_.fetch_sub(bytes);
  return false;
}

void MessageMemory::give_back(std::uint64_t bytes) noexcept {
  memory_->give_back(records::MemoryUse::readers, bytes);
  used_.fetch_sub(bytes);
}

std::byte* MessageMemory::allocate(std::size_t size) noexcept {
  if (!ours()) return nullptr;
  size = counted(size);
  {
    const std::lock_guard lock(mutex_);
    for (Idle& idle : idle_) {
      if (idle.bytes == nullptr || idle.size != size) continue;
      idle_bytes_ -= size;
      return std::exchange(idle.bytes, nullptr);
    }
  }
  if (std::byte* const bytes = PayloadMemory::allocate(size); bytes != nullptr) return bytes;
  (void)unmap_free(limit_);
  return PayloadMemory::allocate(size);
}

void MessageMemory::release(std::byte* bytes, std::size_t size) noexcept {
  if (!ours()) return std::free(bytes);  // a thread that does not exist in this child may hold the lock
  size = counted(size);
  Ring gone{{{bytes, size}}};
  if (size >= kLeast && size <= limit_ / kIdleOfLimit && !memory_->pressed() && memory_->needs() == 0) {
    gone = {};
    const std::lock_guard lock(mutex_);
    // Drop idle buffers, the oldest first, until there is a free slot and room for this one.
    for (std::size_t n = 0;; ++n) {
      const auto slot =
          std::find_if(idle_.begin(), idle_.end(), [](const Idle& i) { return i.bytes == nullptr; });
      if (slot != idle_.end() && idle_bytes_ + size <= limit_ / kIdleOfLimit) {
        *slot = {bytes, size};
        idle_bytes_ += size;
        break;
      }
      Idle& oldest = idle_[oldest_];
      oldest_ = (oldest_ + 1) % idle_.size();
      if (oldest.bytes != nullptr) idle_bytes_ -= oldest.size;
      gone[n % gone.size()] = std::exchange(oldest, {});
    }
  }
  free(gone);
}

void MessageMemory::free(const Ring& buffers) noexcept {
  for (const Idle& b : buffers)
    if (b.bytes != nullptr) PayloadMemory::release(b.bytes, b.size);
}

std::uint64_t MessageMemory::releasable_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

std::uint64_t MessageMemory::unmap_free(std::uint64_t) noexcept {
  Ring gone;
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    gone = std::exchange(idle_, {});
    bytes = std::exchange(idle_bytes_, 0);
  }
  free(gone);
  return bytes;
}

}  // namespace lmdbio::ranks
