#include "lmdbio/records/buffer_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

namespace lmdbio::records {

namespace {

constexpr std::uint64_t kSmallest = std::uint64_t{64} << 10;
/// If a free buffer is larger than needed by more than this factor, the pool makes a new buffer while there
/// is room.
constexpr std::uint64_t kMuchLarger = 4;

}  // namespace

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  if (pool_ != nullptr) pool_->give_back(slot_);
  pool_ = std::move(other.pool_);
  slot_ = other.slot_;
  return *this;
}

Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->give_back(slot_);
}

// The operations on `holds` and on the count of needs are sequentially consistent.  Either the waiting caller
// sees the change of `holds`, or this thread sees the Need and notifies the caller.
void Buffer::hold() const noexcept {
  if (pool_ == nullptr) return;
  slot_->holds.fetch_add(1);
  pool_->notify_needs();
}

void Buffer::unhold() const noexcept {
  if (pool_ == nullptr) return;
  slot_->holds.fetch_sub(1);
  pool_->notify_needs();
}

BufferPool::BufferPool(std::uint64_t limit, std::shared_ptr<Memory> memory)
    : limit_(limit),
      memory_(memory != nullptr ? std::move(memory) : std::make_shared<Memory>()),
      pid_(::getpid()),
      free_(std::make_unique<Slots>()),
      used_(std::make_unique<Slots>()) {
  memory_->add(*this);
}

// In a forked child, the lists may be inconsistent, if another thread of the parent held the mutex at the
// fork.  In this case, the lists are leaked.
BufferPool::~BufferPool() {
  if (::getpid() == pid_) {
    memory_->remove(*this);
    free_.reset();
    memory_->give_back(MemoryUse::readers, granted_);
    if (least_ != 0) memory_->leave(MemoryUse::readers);
    return;
  }
  if (mutex_.try_lock()) {
    mutex_.unlock();
    return;
  }
  (void)free_.release();
  (void)used_.release();
}

std::uint64_t BufferPool::buffer_bytes(std::uint64_t bytes) noexcept {
  if (bytes <= kSmallest) return kSmallest;
  if (bytes <= kHugePage) return std::bit_ceil(bytes);
  return align_up(bytes, std::max<std::uint64_t>(kHugePage, std::bit_floor(bytes) / 4));
}

Result<Mapping> BufferPool::make(std::size_t bytes) noexcept {
  if (bytes < kHugePage) return Mapping::zeroed(bytes);
  Result<Mapping> made = Mapping::reserve(bytes, kHugePage);
  if (!made) return made;
  if (::mprotect(made.value().data(), bytes, PROT_READ | PROT_WRITE) != 0) return Status::from_errno(errno);
  (void)::madvise(made.value().data(), bytes, MADV_HUGEPAGE);  // a failure costs speed only
  return made;
}

// Returns the smallest free buffer that is large enough.
BufferPool::Slots::iterator BufferPool::find_free(std::size_t bytes) noexcept {
  auto fits = free_->end();
  for (auto at = free_->begin(); at != free_->end(); ++at)
    if (at->memory.size() >= bytes && (fits == free_->end() || at->memory.size() < fits->memory.size()))
      fits = at;
  return fits;
}

Buffer BufferPool::give(Slots::iterator slot, std::size_t bytes) noexcept {
  used_->splice(used_->end(), *free_, slot);
  slot->asked = static_cast<std::size_t>(align_up(bytes, system_page()));
  slot->holds.store(0);
  counters_.used_bytes += slot->counted;
  return Buffer(shared_from_this(), slot);
}

Result<Buffer> BufferPool::give_new(std::size_t size, std::size_t bytes) {
  Result<Mapping> made = make(size);
  if (!made) return made.error();
  free_->emplace_front();
  BufferSlot& slot = free_->front();
  slot.memory = std::move(made).value();
  slot.counted = slot.memory.size();
  ++counters_.made;
  counters_.bytes += slot.counted;
  counters_.most_bytes = std::max(counters_.most_bytes, counters_.bytes);
  return give(free_->begin(), bytes);
}

// Does the same as give_new().  If the system has no memory for the buffer, gives the bytes back to the
// process's memory.
Result<Buffer> BufferPool::give_new_or_trim(std::size_t size, std::size_t bytes) noexcept {
  try {
    Result<Buffer> given = give_new(size, bytes);
    if (!given) trim();
    return given;
  } catch (...) {
    trim();
    return Status::from_errno(ENOMEM);
  }
}

// Unmaps free buffers, the largest first, until `size` more bytes fit into `limit`.  Returns whether they
// fit.
bool BufferPool::drop_free(std::uint64_t size, std::uint64_t limit) noexcept {
  while (counters_.bytes + size > limit && !free_->empty()) {
    const auto largest = std::max_element(
        free_->begin(), free_->end(),
        [](const BufferSlot& a, const BufferSlot& b) { return a.memory.size() < b.memory.size(); });
    counters_.bytes -= largest->counted;
    free_->erase(largest);
  }
  return counters_.bytes + size <= limit;
}

// Releases memory at the ends of buffers in use, beyond the bytes requested, until `size` more bytes fit into
// `limit`.
void BufferPool::drop_slack(std::uint64_t size, std::uint64_t limit) noexcept {
  for (auto at = used_->begin(); at != used_->end() && counters_.bytes + size > limit; ++at) {
    if (at->counted <= at->asked) continue;
    (void)::madvise(at->memory.data() + at->asked, at->memory.size() - at->asked, MADV_DONTNEED);
    const std::uint64_t less = at->counted - at->asked;
    at->counted = at->asked;
    counters_.used_bytes -= less;
    counters_.bytes -= less;
  }
}

bool BufferPool::take_least() noexcept {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      memory_->join(MemoryUse::readers);
      if (memory_->take(MemoryUse::readers, kLeast, Urgency::last)) {
        least_ = granted_ = kLeast;
        return true;
      }
      memory_->leave(MemoryUse::readers);
    }
    if (!memory_->drop_free(this, kLeast)) return false;
  }
}

// Takes bytes from the process's memory for `size` more bytes of buffers.  Unmaps free buffers of this pool
// if there is no room.  Returns the bytes that are missing; 0 means success.
std::uint64_t BufferPool::grant(std::uint64_t size, bool needed, Urgency urgency) noexcept {
  for (const bool again : {false, true}) {
    if (counters_.bytes + size <= granted_) return 0;
    const std::uint64_t more = counters_.bytes + size - granted_;
    if (memory_->take(MemoryUse::readers, more, urgency)) {
      granted_ += more;
      return 0;
    }
    if (again) return more;
    (void)drop_free(size, granted_);
    if (needed) drop_slack(size, granted_);
  }
  return 0;
}

// Gives back the process's memory that no buffer needs.
void BufferPool::trim() noexcept {
  const std::uint64_t keep = std::max(counters_.bytes, least_);
  if (granted_ <= keep) return;
  memory_->give_back(MemoryUse::readers, granted_ - keep);
  granted_ = keep;
}

Result<Buffer> BufferPool::take(std::size_t bytes, MemoryRequest& request) noexcept {
  request.ahead_in_the_way = request.others_in_the_way = false;
  if (::getpid() != pid_) return Status::from_errno(EINVAL);
  const std::uint64_t allowed = std::min(request.most, limit_);
  const std::uint64_t exact = align_up(bytes, system_page());
  if (exact > allowed) return Status::from_errno(ENOMEM);
  const std::size_t liked = std::max(bytes, request.least);
  std::uint64_t size = buffer_bytes(liked);
  if (size > allowed) size = align_up(liked, system_page());
  for (;;) {
    std::uint64_t missing = 0, missing_then = 0;  // missing bytes: now, and without read-ahead
    try {
      const std::lock_guard lock(mutex_);
      if (!request.needed && (needs() != 0 || (granted_ > least_ && memory_->pressed())))
        return Status::from_errno(ENOMEM);
      if (const auto free = find_free(liked); free != free_->end() &&
                                              free->memory.size() <= kMuchLarger * size &&
                                              counters_.used_bytes + free->memory.size() <= allowed)
        return give(free, bytes);
      // Unmap free buffers of other sizes to make room.
      if (size <= allowed && counters_.used_bytes <= allowed - size && drop_free(size, limit_)) {
        missing = grant(size, false, Urgency::ahead);
        if (missing == 0) return give_new_or_trim(static_cast<std::size_t>(size), bytes);
      }
      if (request.needed) {
        // The program waits for this buffer, so release all memory that contains no data.
        if (!drop_free(exact, limit_)) drop_slack(exact, limit_);
        if (counters_.bytes + exact <= limit_) {
          missing = grant(exact, true, request.urgency);
          if (missing == 0) return give_new_or_trim(static_cast<std::size_t>(exact), bytes);
        } else {
          request.ahead_in_the_way = used_bytes(true) + exact <= limit_;
          trim();
          return Status::from_errno(ENOMEM);
        }
      }
      trim();
      if (missing != 0) missing = counters_.bytes + (request.needed ? exact : size) - granted_;
      const std::uint64_t held = used_bytes(true), kept = std::max(held, least_);
      missing_then = held + exact - std::min(held + exact, kept);
    } catch (...) {
      return Status::from_errno(ENOMEM);
    }
    if (missing == 0) return Status::from_errno(ENOMEM);
    if (memory_->drop_free(this, missing)) continue;
    request.others_in_the_way = request.needed && memory_->could_have(MemoryUse::readers, missing_then);
    return Status::from_errno(ENOMEM);
  }
}

// In a forked child, only unmaps the memory and keeps the slot, because another thread of the parent may have
// held the mutex at the fork.
void BufferPool::give_back(Slots::iterator slot) noexcept {
  if (::getpid() != pid_) {
    slot->memory.reset();
    return;
  }
  Slots gone;
  {
    const std::lock_guard lock(mutex_);
    counters_.used_bytes -= slot->counted;
    const std::uint64_t more = slot->memory.size() - slot->counted;
    const bool pressed = granted_ > least_ && memory_->pressed();
    if (counters_.bytes + more <= std::min(limit_, granted_) && !pressed) {
      counters_.bytes += more;
      counters_.most_bytes = std::max(counters_.most_bytes, counters_.bytes);
      slot->counted += static_cast<std::size_t>(more);
      free_->splice(free_->begin(), *used_, slot);
    } else {
      gone.splice(gone.begin(), *used_, slot);
    }
  }
  if (!gone.empty()) {
    const std::uint64_t less = gone.front().counted;
    gone.clear();
    const std::lock_guard lock(mutex_);
    counters_.bytes -= less;
    trim();
  }
  notify_needs();
}

std::uint64_t BufferPool::unmap_free(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const std::uint64_t before = granted_;
  (void)drop_free(0, counters_.bytes - std::min(bytes, counters_.bytes));
  trim();
  return before - granted_;
}

BufferPool::Counters BufferPool::counters() const noexcept {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::uint64_t BufferPool::used_bytes(bool held) const noexcept {
  std::uint64_t sum = 0;
  for (const BufferSlot& slot : *used_)
    if ((slot.holds.load() != 0) == held) sum += slot.counted;
  return sum;
}

std::uint64_t BufferPool::held_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return used_bytes(true);
}

std::uint64_t BufferPool::releasable_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return granted_ - std::min(granted_, std::max(used_bytes(true), least_));
}

std::uint64_t BufferPool::ahead_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return used_bytes(false);
}

}  // namespace lmdbio::records
