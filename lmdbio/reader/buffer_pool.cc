#include "lmdbio/reader/buffer_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

namespace lmdbio::reader {

namespace {

constexpr std::uint64_t kHuge = std::uint64_t{2} << 20, kSmallest = std::uint64_t{64} << 10;
constexpr std::uint64_t kSystemPage = 4096;
/// A free buffer that is larger by more is left alone while there is room for a new one.
constexpr std::uint64_t kMuchLarger = 4;

}  // namespace

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  if (pool_ != nullptr) pool_->give_back(std::move(memory_));
  pool_ = std::move(other.pool_);
  memory_ = std::move(other.memory_);
  return *this;
}

Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->give_back(std::move(memory_));
}

BufferPool::BufferPool(std::uint64_t limit) noexcept : limit_(limit), pid_(::getpid()) {}

std::uint64_t BufferPool::buffer_bytes(std::uint64_t bytes) noexcept {
  if (bytes <= kSmallest) return kSmallest;
  if (bytes <= kHuge) return std::bit_ceil(bytes);
  return align_up(bytes, std::max(kHuge, std::bit_floor(bytes) / 4));
}

Result<Mapping> BufferPool::make(std::size_t bytes) noexcept {
  if (bytes < kHuge) return Mapping::zeroed(bytes);
  Result<Mapping> made = Mapping::reserve(bytes, kHuge);
  if (!made) return made;
  if (::mprotect(made.value().data(), bytes, PROT_READ | PROT_WRITE) != 0) return Status::from_errno(errno);
  (void)::madvise(made.value().data(), bytes, MADV_HUGEPAGE);  // without: slower, not wrong
  return made;
}

Result<Buffer> BufferPool::take(std::size_t bytes, std::uint64_t most) noexcept {
  if (::getpid() != pid_) return Status::from_errno(EINVAL);
  const std::uint64_t allowed = std::min(most, limit_);
  if (bytes > allowed) return Status::from_errno(ENOMEM);
  std::uint64_t size = buffer_bytes(bytes);
  if (size > allowed) size = align_up(bytes, kSystemPage);
  try {
    const std::lock_guard lock(mutex_);
    const auto give = [&](Mapping memory) {
      counters_.used_bytes += memory.size();
      return Buffer(shared_from_this(), std::move(memory));
    };
    const auto unused = [&](std::vector<Mapping>::iterator at) {
      Mapping memory = std::move(*at);
      *at = std::move(free_.back());
      free_.pop_back();
      return memory;
    };
    const auto smaller = [](const Mapping& a, const Mapping& b) { return a.size() < b.size(); };
    auto fits = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at)
      if (at->size() >= bytes && (fits == free_.end() || at->size() < fits->size())) fits = at;
    if (fits != free_.end() && fits->size() <= kMuchLarger * size &&
        counters_.used_bytes + fits->size() <= allowed)
      return give(unused(fits));
    if (size > allowed || counters_.used_bytes > allowed - size) return Status::from_errno(ENOMEM);
    // Buffers of other sizes make room.
    while (counters_.bytes + size > limit_ && !free_.empty())
      counters_.bytes -= unused(std::max_element(free_.begin(), free_.end(), smaller)).size();
    if (counters_.bytes + size > limit_) return Status::from_errno(ENOMEM);
    Result<Mapping> made = make(static_cast<std::size_t>(size));
    if (!made) return made.error();
    ++counters_.made;
    counters_.bytes += made.value().size();
    counters_.most_bytes = std::max(counters_.most_bytes, counters_.bytes);
    return give(std::move(made).value());
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

void BufferPool::give_back(Mapping memory) noexcept {
  if (!memory || ::getpid() != pid_) return;  // in a child another thread of the parent's may have the lock
  const std::lock_guard lock(mutex_);
  counters_.used_bytes -= memory.size();
  const std::size_t size = memory.size();
  try {
    free_.push_back(std::move(memory));
  } catch (...) {
    counters_.bytes -= size;
  }
}

BufferPool::Counters BufferPool::counters() const noexcept {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace lmdbio::reader
