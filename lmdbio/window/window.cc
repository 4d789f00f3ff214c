#include "lmdbio/window/window.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::window {

namespace {

// An old size of 0 duplicates a shared mapping (mremap(2)).  The copy is made at another address and then
// moved.  The reason: older kernels unmap the target before they find that no further mapping is allowed.  A
// move needs no further mapping.
void* duplicate_mapping(void* from, std::size_t bytes, void* to) noexcept {
  void* const copy = ::mremap(from, 0, bytes, MREMAP_MAYMOVE);
  if (copy == MAP_FAILED) return copy;
  void* const moved = move_mapping(copy, bytes, to);
  if (moved == MAP_FAILED) {
    const int failed = errno;
    Mapping(copy, bytes).reset();
    errno = failed;
  }
  return moved;
}
// Makes the system call directly, because ThreadSanitizer takes mmap(3) for a write into the range, which
// other threads read.
void* reserve_at(void* at, std::size_t bytes) noexcept {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, PROT_NONE, kFlags, -1, 0));
}
constinit WindowCalls calls{move_mapping, duplicate_mapping, reserve_at};

// Windows are as long as their map sizes until all windows together take kMostReserved bytes.  Further
// windows are only somewhat longer than their files, but by more than a file grows while it is open.
// Otherwise windows would use up the addresses that the program needs for its own mappings.
constexpr std::uint64_t kMostReserved = std::uint64_t{4} << 40, kMostCapacity = std::uint64_t{8} << 40;
constexpr std::uint64_t kMuchRoom = std::uint64_t{1} << 40, kLittleRoom = std::uint64_t{1} << 30,
                        kLeastRoom = std::uint64_t{64} << 20;

/// Returns RLIMIT_AS in bytes; 0: no limit.
std::uint64_t address_limit() noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : 0;
}

/// Returns lengths to try for a window, the best first.  `capacity`: its largest possible length.  `used`:
/// the bytes in use.  `reserved`: the lengths of all other windows.
std::array<std::uint64_t, 4> lengths(std::uint64_t capacity, std::uint64_t used,
                                     std::uint64_t reserved) noexcept {
  const std::uint64_t left = kMostReserved - std::min(reserved, kMostReserved);
  std::array<std::uint64_t, 4> all{capacity, 2 * used + kMuchRoom, 2 * used + kLittleRoom, used};
  if (address_limit() != 0)
    all[0] = all[1] = all[2] = used + kLeastRoom;
  else if (all[0] > left)
    all[0] = all[1] = all[1] > left ? all[2] : all[1];
  for (std::uint64_t& bytes : all) bytes = std::min(bytes, capacity);
  return all;
}

/// Windows of files that environments of this process share.  Leaked on purpose: no static destructor.
struct Shared {
  std::uint64_t dev, ino, length;
  format::PageFormat pages;
  bool no_readahead;
  std::weak_ptr<Window> window;
};
constinit SignalSafeMutex shared_mutex;
constinit std::vector<Shared>* all_shared = nullptr;

}  // namespace

WindowCalls& window_calls() noexcept { return calls; }

void lock_shared_windows() noexcept { shared_mutex.lock(); }
void unlock_shared_windows() noexcept { shared_mutex.unlock(); }

Result<Staging> Staging::make(std::size_t bytes) noexcept {
  Result<Mapping> range = Mapping::reserve(bytes, Window::kHugePage);
  if (!range) return range.error();
  Staging s;
  s.mapping_ = std::move(range).value();
  std::byte* const data = s.mapping_.data();
  if (::mprotect(data, bytes, PROT_READ | PROT_WRITE) != 0) return Status::from_errno(errno);
  (void)::madvise(data, bytes, MADV_HUGEPAGE);  // advice; if it fails, small pages are slower
  (void)::madvise(data, bytes, MADV_DONTDUMP);
  if (::madvise(data, bytes, MADV_DONTFORK) != 0) return Status::from_errno(errno);
  return s;
}

Result<Window> Window::map(int fd, std::uint64_t length, format::PageFormat pages, bool no_readahead,
                           std::uint64_t capacity) noexcept {
  static constinit std::atomic<std::byte*> last{nullptr};  // likely to be free if that window was closed
  capacity = std::max(capacity, length);
  // Growth extends the last page of the mapping.  That page must map the file.  Publishing replaces
  // mappings, so the page lies behind all pages that can be published.
  const std::uint64_t bytes = capacity > length ? align_up(length, system_page()) + system_page() : length;
  Result<Mapping> mapping = Mapping::map_file(fd, bytes, kHugePage, last.load(std::memory_order_relaxed));
  if (!mapping) return mapping.error();
  if (const std::uint64_t limit = capacity > length ? address_limit() : 0; limit != 0) {
    // The kernel leaves no room behind a mapping.  A gap of RLIMIT_AS bytes cannot be filled by other
    // mappings.
    const std::uint64_t gap = align_up(std::min(capacity, limit), kHugePage);
    const auto at = reinterpret_cast<std::uintptr_t>(mapping.value().data());
    if (at > 2 * gap) {
      void* const hint = reinterpret_cast<void*>(at - gap);
      Result<Mapping> apart = Mapping::map_file(fd, bytes, kHugePage, hint);
      if (apart && apart.value().data() == hint) mapping = std::move(apart);
    }
  }
  Window w;
  w.mapping_ = std::move(mapping).value();
  w.base_ = w.mapping_.data();
  w.metas_ = w.base_ + format::page_header(pages.version);
  w.length_ = length;
  w.capacity_ = capacity;
  w.shift_ = static_cast<unsigned>(std::countr_zero(pages.size));
  w.version_ = pages.version;
  w.no_readahead_ = no_readahead;
  last.store(w.mapping_.data(), std::memory_order_relaxed);
  if (no_readahead) (void)::madvise(w.mapping_.data(), w.mapping_.size(), MADV_RANDOM);  // advice; may fail
  return w;
}

Result<Window> Window::reserve(std::uint64_t length, format::PageFormat pages) noexcept {
  Result<Mapping> mapping = Mapping::reserve(length, kHugePage);
  if (!mapping) return mapping.error();
  Window w;
  w.mapping_ = std::move(mapping).value();
  w.base_ = w.mapping_.data();
  w.length_ = w.capacity_ = length;
  w.shift_ = static_cast<unsigned>(std::countr_zero(pages.size));
  w.version_ = pages.version;
  w.has_file_ = false;
  return w;
}

Result<std::shared_ptr<Window>> Window::shared(int fd, const FileIdentity& id, std::uint64_t length,
                                               format::PageFormat pages, bool no_readahead,
                                               std::uint64_t used) noexcept {
  used = std::min(used, length);
  const std::uint64_t capacity = length <= kMostCapacity ? length : std::min(length, 2 * used + kMuchRoom);
  try {
    const std::lock_guard lock(shared_mutex);
    if (all_shared == nullptr) all_shared = new std::vector<Shared>;
    std::erase_if(*all_shared, [](const Shared& s) { return s.window.expired(); });
    std::uint64_t reserved = 0;
    for (const Shared& s : *all_shared) {
      std::shared_ptr<Window> window = s.window.lock();
      if (window == nullptr) continue;
      if (s.dev == id.dev && s.ino == id.ino && s.length == length && s.pages == pages &&
          s.no_readahead == no_readahead && window->grow_locked(used)) {
        (void)window->hold(used);
        return window;
      }
      reserved += window->length();
    }
    Result<Window> made = Status::from_errno(ENOMEM);
    for (const std::uint64_t bytes : lengths(capacity, used, reserved)) {
      made = map(fd, bytes, pages, no_readahead, capacity);
      if (made || made.error().raw() != ENOMEM) break;
    }
    if (!made) return made.error();
    const auto window = std::make_shared<Window>(std::move(made).value());
    (void)window->hold(used);
    all_shared->push_back({id.dev, id.ino, length, pages, no_readahead, window});
    return window;
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

bool Window::shrink_all() noexcept {
  const std::lock_guard lock(shared_mutex);
  bool any = false;
  if (all_shared != nullptr)
    for (const Shared& s : *all_shared)
      if (const std::shared_ptr<Window> window = s.window.lock(); window != nullptr)
        any = window->shrink_locked() || any;
  return any;
}

bool Window::grow(std::uint64_t bytes) noexcept {
  if (bytes <= length()) return true;
  const std::lock_guard lock(shared_mutex);
  return grow_locked(bytes);
}

bool Window::grow_locked(std::uint64_t bytes) noexcept {
  if (bytes <= length()) return true;
  if (!has_file_ || bytes > capacity_) return false;
  for (const std::uint64_t longer : lengths(capacity_, bytes, kMostReserved)) {
    if (!mapping_.resize(align_up(longer, system_page()) + system_page())) continue;
    __atomic_store_n(&length_, longer, __ATOMIC_SEQ_CST);
    return true;
  }
  return false;
}

// Pairs with hold(), which stores how much is in use and then loads the length.  This function stores the
// length and then loads how much is in use.  So at least one of the two functions sees the store of the other
// one.
bool Window::shrink_locked() noexcept {
  const std::uint64_t before = length();
  const std::uint64_t less = align_up(__atomic_load_n(&held_, __ATOMIC_SEQ_CST) + kLeastRoom, kHugePage);
  if (!has_file_ || less + kLeastRoom > before) return false;
  __atomic_store_n(&length_, less, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&held_, __ATOMIC_SEQ_CST) <= less && mapping_.resize(less + system_page())) return true;
  __atomic_store_n(&length_, before, __ATOMIC_SEQ_CST);
  return false;
}

// Takes no lock, because callers may hold the Prefetcher's lock, which comes after this one in the lock
// order.  So the result may be too small while shrink_locked() runs.  grow() takes the lock and finds the
// right length.
std::uint64_t Window::hold(std::uint64_t bytes) const noexcept {
  std::uint64_t held = __atomic_load_n(&held_, __ATOMIC_SEQ_CST);
  while (held < bytes &&
         !__atomic_compare_exchange_n(&held_, &held, bytes, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return std::min(bytes, length());
}

Window Window::over(Bytes bytes, format::PageFormat pages) noexcept {
  Window w;
  w.base_ = bytes.data();
  w.metas_ = w.base_ + format::page_header(pages.version);
  w.length_ = w.capacity_ = bytes.size();
  w.shift_ = static_cast<unsigned>(std::countr_zero(pages.size));
  w.version_ = pages.version;
  return w;
}

WindowView Window::view(std::uint64_t pages) const noexcept {
  const std::uint64_t most = ~std::uint64_t{0} >> shift_;
  return {base_, shift_, hold(std::min(pages, most) << shift_) >> shift_, version_};
}

bool Window::publish(std::uint64_t offset, std::size_t bytes, Staging& staging) noexcept {
  std::byte* const from = staging.data();
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  bytes = align_up(bytes, page);
  const std::uint64_t end = align_up(length(), page);
  if (offset >= end) return false;
  if (offset + bytes > end) bytes = end - offset;
  if (has_file_ && offset + bytes > twin_.size()) return false;
  if (::mprotect(from, staging.size(), PROT_READ) != 0) return false;
  if (::madvise(from, staging.size(), MADV_DOFORK) == 0 &&
      calls.mremap(from, bytes, at(offset)) != MAP_FAILED) {
    Mapping rest(from + bytes, staging.size() - bytes);
    (void)staging.mapping_.release();
    if (rest.size() == 0) (void)rest.release();
    return true;
  }
  (void)::mprotect(from, staging.size(), PROT_READ | PROT_WRITE);
  (void)::madvise(from, staging.size(), MADV_DONTFORK);
  return false;
}

void Window::use_readahead(bool on) noexcept {
  if (!no_readahead_) return;
  readahead_ = on;
  // The twin gets the same advice.  Otherwise its pieces would not merge with the rest of the window into
  // one VMA.
  const int advice = on ? MADV_NORMAL : MADV_RANDOM;
  (void)::madvise(at(0), length(), advice);
  if (twin_) (void)::madvise(twin_.data(), twin_.size(), advice);
}

bool Window::prepare_restore(std::uint64_t bytes) noexcept {
  constexpr std::uint64_t kUnit = 8 * kHugePage;  // a multiple of the largest chunk
  bytes = align_up(hold(align_up(bytes, kUnit)), system_page());
  if (!has_file_ || (twin_ && bytes <= twin_.size())) return true;
  if (original_) return false;
  if (!apart_) {
    Result<Mapping> range = Mapping::reserve(format::kMetaPages << shift_, 1);
    if (!range || calls.duplicate(at(0), range.value().size(), range.value().data()) == MAP_FAILED)
      return false;
    apart_ = std::move(range).value();
    __atomic_store_n(&metas_, apart_.data() + format::page_header(version_), __ATOMIC_RELEASE);
  }
  Result<Mapping> range = Mapping::reserve(bytes, kHugePage);
  if (!range) return false;
  // Copies the twin if there is one, since pieces of the window may be private memory by now.
  void* const from = twin_ ? twin_.data() : at(0);
  if (calls.duplicate(from, bytes, range.value().data()) == MAP_FAILED) return false;
  twin_ = std::move(range).value();
  return true;
}

bool Window::map_image(Mapping image) noexcept {
  const std::uint64_t bytes = std::min<std::uint64_t>(image.size(), align_up(length(), system_page()));
  if (!twin_ || original_ || bytes > twin_.size()) return false;
  if (no_readahead_) (void)::madvise(image.data(), image.size(), readahead_ ? MADV_NORMAL : MADV_RANDOM);
  if (calls.duplicate(image.data(), bytes, at(0)) == MAP_FAILED) return false;
  original_ = std::exchange(twin_, std::move(image));
  return true;
}

bool Window::unmap_image() noexcept {
  if (!original_) return true;
  const std::uint64_t bytes = std::min<std::uint64_t>(original_.size(), align_up(length(), system_page()));
  if (calls.duplicate(original_.data(), bytes, at(0)) == MAP_FAILED) return false;
  twin_ = std::move(original_);
  return true;
}

bool Window::restore(std::uint64_t offset, std::uint64_t bytes) noexcept {
  const std::uint64_t end = align_up(length(), system_page());
  if (offset >= end) return true;
  bytes = std::min<std::uint64_t>(bytes, end - offset);
  if (!has_file_) return calls.reserve(at(offset), bytes) != MAP_FAILED;
  if (offset >= twin_.size()) return true;  // nothing was published there
  bytes = std::min<std::uint64_t>(bytes, twin_.size() - offset);
  return calls.duplicate(twin_.data() + offset, bytes, at(offset)) != MAP_FAILED;
}

}  // namespace lmdbio::window
