#include "lmdbio/python/buffer_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "lmdbio/gather/prepared_memory.h"

namespace lmdbio::python {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kAlignment = 64;

/// Returns the alignment of a buffer of `size` bytes: large buffers consist of huge pages.
std::align_val_t alignment_of(std::size_t size) noexcept {
  return std::align_val_t{size % kHugePage == 0 ? kHugePage : kAlignment};
}

}  // namespace

BufferStore::BufferStore(std::size_t most) : pid_(::getpid()), most_(most) { unused_.reserve(most); }

BufferStore::~BufferStore() {
  if (::getpid() == pid_) (void)drop_unused();
}

void BufferStore::free(const Memory& memory) noexcept {
  ::operator delete(memory.data, alignment_of(memory.size));
  if (memory.counted) lmdbio_give_back_prepared(memory.size);
}

void BufferStore::add(std::size_t bytes) noexcept {
  now_ += bytes;
  peak_ = std::max(peak_, now_);
}

std::size_t BufferStore::peak() noexcept {
  const std::lock_guard lock(mutex_);
  return peak_;
}

bool BufferStore::drop_unused() noexcept {
  for (bool dropped = false;; dropped = true) {
    Memory one;
    {
      const std::lock_guard lock(mutex_);
      if (unused_.empty()) return dropped;
      one = unused_.back();
      unused_.pop_back();
      now_ -= one.size;
    }
    free(one);
  }
}

BufferStore::Memory BufferStore::take(std::size_t bytes, bool needed) {
  {
    const std::lock_guard lock(mutex_);
    const auto fits =
        std::find_if(unused_.begin(), unused_.end(), [&](const Memory& m) { return m.size >= bytes; });
    if (fits != unused_.end()) {
      const Memory found = *fits;
      unused_.erase(fits);
      return found;
    }
  }
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  const std::size_t unit = bytes < kHugePage ? kAlignment : kHugePage;
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
  Memory made = reserve(size);
  if (made.size == 0) {
    if (!needed) return {};
    made.size = size;
    const std::lock_guard lock(mutex_);
    add(size);
  }
  made.data = static_cast<std::byte*>(::operator new(size, alignment_of(size), std::nothrow));
  if (made.data == nullptr) {
    hand_over(made);
    throw std::bad_alloc();
  }
  if (unit == kHugePage)
    (void)::madvise(made.data, size,
                    MADV_HUGEPAGE);  // fewer page faults; without huge pages, all still works
  return made;
}

BufferStore::Memory BufferStore::reserve(std::size_t bytes) noexcept {
  if (lmdbio_take_prepared(bytes) != 0 && (!drop_unused() || lmdbio_take_prepared(bytes) != 0)) return {};
  const std::lock_guard lock(mutex_);
  add(bytes);
  return {nullptr, bytes, true};
}

void BufferStore::hand_over(Memory& memory) noexcept {
  if (memory.size == 0) return;
  {
    const std::lock_guard lock(mutex_);
    now_ -= memory.size;
  }
  if (std::exchange(memory.counted, false)) lmdbio_give_back_prepared(memory.size);
}

void BufferStore::give_back(Memory memory) noexcept {
  // A forked child may have inherited a locked mutex.  It keeps the memory, which it shares with its parent.
  if (memory.data == nullptr || ::getpid() != pid_) return;
  memory.counted = lmdbio_take_prepared(memory.size) == 0;
  if (memory.counted) {
    const std::lock_guard lock(mutex_);
    add(memory.size);
    if (unused_.size() == most_ && most_ != 0) {  // values of different sizes: keep the largest buffers
      const auto least = std::min_element(unused_.begin(), unused_.end(),
                                          [](const Memory& a, const Memory& b) { return a.size < b.size; });
      if (least->size < memory.size) std::swap(*least, memory);
    }
    if (unused_.size() < most_) {
      unused_.push_back(memory);
      return;
    }
    now_ -= memory.size;
  }
  free(memory);
}

}  // namespace lmdbio::python
