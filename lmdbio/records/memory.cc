#include "lmdbio/records/memory.h"

#include <unistd.h>

#include <algorithm>

#include "lmdbio/records/buffer_pool.h"
#include "lmdbio/records/memory_wait.h"
#include "lmdbio/records/stream.h"

namespace lmdbio::records {

namespace {

/// An entry for one process.  It is never destroyed, because a forked child's inherited readers refer to the
/// parent's entry.
struct OfProcess {
  pid_t pid;
  std::shared_ptr<Memory> memory;
  OfProcess* before;
};
// Uses no lock, because a fork may happen while another thread is in of_process().
constinit std::atomic<OfProcess*> of_process_now{nullptr};

}  // namespace

Memory::Memory(gather::MemorySource* source) noexcept : source_(source), pid_(::getpid()) {}

std::shared_ptr<Memory> Memory::of_process(gather::MemorySource& source) {
  const pid_t self = ::getpid();
  OfProcess* now = of_process_now.load(std::memory_order_acquire);
  std::unique_ptr<OfProcess> made;
  while (now == nullptr || now->pid != self) {
    if (made == nullptr)
      made = std::make_unique<OfProcess>(OfProcess{self, std::make_shared<Memory>(&source), nullptr});
    made->before = now;
    if (of_process_now.compare_exchange_strong(now, made.get(), std::memory_order_acq_rel))
      now = made.release();
  }
  return now->memory;
}

void Memory::reclaim(std::uint64_t bytes) noexcept {
  OfProcess* const now = of_process_now.load(std::memory_order_acquire);
  if (now == nullptr || now->pid != ::getpid()) return;
  (void)now->memory->drop_free(nullptr, now->memory->useful(bytes));
}

void Memory::give_back(MemoryUse use, std::uint64_t bytes) noexcept {
  if (source_ != nullptr && bytes != 0 && ::getpid() == pid_) source_->give_back(use, bytes);
}

void Memory::leave(MemoryUse use) noexcept {
  if (source_ != nullptr && ::getpid() == pid_) source_->leave(use);
}

// Sums up the holders first.  Memory that a holder gives back meanwhile is then counted twice.  In the other
// order, it would not be counted at all.  An overestimate is harmless, since the caller tries again.
bool Memory::could_have(MemoryUse use, std::uint64_t bytes) noexcept {
  if (source_ == nullptr) return false;
  std::uint64_t sum = 0;
  const std::lock_guard lock(mutex);
  for (MemoryHolder* const p : holders_) sum += p->releasable_bytes();
  return source_->could_take(use, bytes, sum);
}

bool Memory::is_read_ahead() noexcept {
  const std::lock_guard lock(mutex);
  return std::any_of(holders_.begin(), holders_.end(), [](MemoryHolder* p) { return p->ahead_bytes() != 0; });
}

std::string Memory::reason() const {
  if (source_ == nullptr) return {};
  return " (LMDBIO_MEMORY allows this process " + std::to_string(source_->limit()) +
         " bytes; readers, indexes, prepared batches and lmdbio_prefetch use " +
         std::to_string(source_->limit() - source_->room_for_needs()) + ")";
}

bool Memory::drop_free(const MemoryHolder* but, std::uint64_t bytes) noexcept {
  std::uint64_t sum = 0;
  const std::lock_guard lock(mutex);
  for (auto at = holders_.begin(); at != holders_.end() && sum < bytes; ++at)
    if (*at != but) sum += (*at)->unmap_free(bytes - sum);
  return sum != 0;
}

bool Memory::take_of_readers(MemoryUse use, std::uint64_t bytes, Urgency urgency,
                             const std::atomic<bool>* cancelled) noexcept {
  const std::atomic<bool> never{false};
  MemoryWait wait(*this, {cancelled != nullptr ? *cancelled : never});
  for (;;) {
    wait.begin();
    if (take(use, bytes, urgency)) return true;
    std::uint64_t free = std::max<std::uint64_t>(bytes, 1);
    if (use != MemoryUse::readers) free = useful(free);
    if (drop_free(nullptr, free)) continue;
    if (urgency != Urgency::last) return false;
    if (!could_have(use, bytes)) {
      if (!wait.changed()) return false;
    } else if (!wait.make_way(nullptr).ok()) {
      return false;
    }
  }
}

void Memory::add(MemoryHolder& holder) {
  const std::lock_guard lock(mutex);
  holders_.push_back(&holder);
}

void Memory::remove(MemoryHolder& holder) noexcept {
  const std::lock_guard lock(mutex);
  std::erase(holders_, &holder);
}

Memory::Need::Need(Memory& memory) noexcept : memory_(memory) {
  memory_.needs_.fetch_add(1);
  if (memory_.source_ != nullptr) memory_.source_->begin_wait();
}

Memory::Need::~Need() {
  memory_.needs_.fetch_sub(1);
  if (memory_.source_ != nullptr && ::getpid() == memory_.pid_) memory_.source_->end_wait();
}

TakenMemory& TakenMemory::operator=(TakenMemory&& other) noexcept {
  if (this == &other) return *this;
  clear();
  memory_ = std::move(other.memory_);
  use_ = other.use_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void TakenMemory::clear() noexcept {
  if (memory_ != nullptr) memory_->give_back(use_, bytes_);
  bytes_ = 0;
}

void TakenMemory::set(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes) noexcept {
  if (memory_ == nullptr) memory_ = memory;
  use_ = use;
  bytes_ = bytes;
}

bool TakenMemory::take(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes,
                       Urgency urgency, const std::atomic<bool>* cancelled) noexcept {
  if (memory == nullptr) return true;
  if (bytes < bytes_) {
    memory->give_back(use, bytes_ - bytes);
  } else if (bytes > bytes_) {
    if (!memory->take_of_readers(use, bytes - bytes_, urgency, cancelled)) return false;
  }
  set(memory, use, bytes);
  return true;
}

void TakenMemory::count(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes) noexcept {
  if (memory == nullptr) return;
  if (bytes > bytes_)
    memory->count(use, bytes - bytes_);
  else
    memory->give_back(use, bytes_ - bytes);
  set(memory, use, bytes);
}

}  // namespace lmdbio::records
