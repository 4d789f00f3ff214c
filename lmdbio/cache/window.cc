#include "lmdbio/cache/window.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::cache {

namespace {

void* move_mapping(void* from, std::size_t bytes, void* to) noexcept {
  return ::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
}
// An old size of 0 duplicates a shared mapping (mremap(2)).  Elsewhere first: older kernels unmap the target
// before they find out that there is no room for one more.  Moving needs none.
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
// Not by way of mmap(3): the thread sanitizer takes that for a write into the range, which others read.
void* reserve_at(void* at, std::size_t bytes) noexcept {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, PROT_NONE, kFlags, -1, 0));
}
constinit WindowCalls calls{move_mapping, duplicate_mapping, reserve_at};

/// Windows of files that environments of this process share.  Leaked on purpose: no static destructor.
struct Shared {
  std::uint64_t dev, ino, length;
  std::size_t page_size;
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
  (void)::madvise(data, bytes, MADV_HUGEPAGE);  // advice: may fail, small pages are slower
  (void)::madvise(data, bytes, MADV_DONTDUMP);
  if (::madvise(data, bytes, MADV_DONTFORK) != 0) return Status::from_errno(errno);
  return s;
}

Result<Window> Window::map(int fd, std::uint64_t length, std::size_t page_size, bool no_readahead) noexcept {
  Result<Mapping> mapping = Mapping::map_file(fd, length, kHugePage);
  if (!mapping) return mapping.error();
  Window w;
  w.mapping_ = std::move(mapping).value();
  w.base_ = w.mapping_.data();
  w.length_ = length;
  w.shift_ = static_cast<unsigned>(std::countr_zero(page_size));
  w.no_readahead_ = no_readahead;
  if (no_readahead) (void)::madvise(w.mapping_.data(), w.mapping_.size(), MADV_RANDOM);  // advice: may fail
  return w;
}

Result<Window> Window::reserve(std::uint64_t length, std::size_t page_size) noexcept {
  Result<Mapping> mapping = Mapping::reserve(length, kHugePage);
  if (!mapping) return mapping.error();
  Window w;
  w.mapping_ = std::move(mapping).value();
  w.base_ = w.mapping_.data();
  w.length_ = length;
  w.shift_ = static_cast<unsigned>(std::countr_zero(page_size));
  w.has_file_ = false;
  return w;
}

Result<std::shared_ptr<Window>> Window::shared(int fd, std::uint64_t length, std::size_t page_size,
                                               bool no_readahead) noexcept {
  struct stat at;
  if (::fstat(fd, &at) != 0) return Status::from_errno(errno);
  try {
    const std::lock_guard lock(shared_mutex);
    if (all_shared == nullptr) all_shared = new std::vector<Shared>;
    std::erase_if(*all_shared, [](const Shared& s) { return s.window.expired(); });
    for (const Shared& s : *all_shared) {
      if (s.dev != at.st_dev || s.ino != at.st_ino || s.length != length || s.page_size != page_size ||
          s.no_readahead != no_readahead)
        continue;
      if (std::shared_ptr<Window> window = s.window.lock(); window != nullptr) return window;
    }
    Result<Window> made = map(fd, length, page_size, no_readahead);
    if (!made) return made.error();
    const auto window = std::make_shared<Window>(std::move(made).value());
    all_shared->push_back({at.st_dev, at.st_ino, length, page_size, no_readahead, window});
    return window;
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

Window Window::over(Bytes bytes, std::size_t page_size) noexcept {
  Window w;
  w.base_ = bytes.data();
  w.length_ = bytes.size();
  w.shift_ = static_cast<unsigned>(std::countr_zero(page_size));
  return w;
}

WindowView Window::view(std::uint64_t pages) const noexcept {
  return {base_, shift_, std::min(pages, length_ >> shift_)};
}

bool Window::publish(std::uint64_t offset, std::size_t bytes, Staging& staging) noexcept {
  std::byte* const from = staging.data();
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  bytes = align_up(bytes, page);
  if (offset + bytes > mapping_.size()) bytes = mapping_.size() - offset;
  if (has_file_ && offset + bytes > twin_.size()) return false;
  if (::mprotect(from, staging.size(), PROT_READ) != 0) return false;
  if (::madvise(from, staging.size(), MADV_DOFORK) == 0 &&
      calls.mremap(from, bytes, mapping_.data() + offset) != MAP_FAILED) {
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
  // The twin as well: pieces of it join the rest of the window only if their advice is the same.
  for (const Mapping* const m : {&mapping_, &twin_})
    if (*m) (void)::madvise(m->data(), m->size(), on ? MADV_NORMAL : MADV_RANDOM);
}

bool Window::prepare_restore(std::uint64_t bytes) noexcept {
  constexpr std::uint64_t kUnit = 8 * kHugePage;  // a multiple of what is published at once
  bytes = std::min<std::uint64_t>(align_up(bytes, kUnit), mapping_.size());
  if (!has_file_ || (twin_ && bytes <= twin_.size())) return true;
  Result<Mapping> range = Mapping::reserve(bytes, kHugePage);
  if (!range) return false;
  // Pieces of mapping_ may be private memory by now.
  void* const from = twin_ ? twin_.data() : mapping_.data();
  if (calls.duplicate(from, bytes, range.value().data()) == MAP_FAILED) return false;
  twin_ = std::move(range).value();
  return true;
}

bool Window::restore(std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (offset >= mapping_.size()) return true;
  bytes = std::min<std::uint64_t>(bytes, mapping_.size() - offset);
  std::byte* const at = mapping_.data() + offset;
  if (!has_file_) return calls.reserve(at, bytes) != MAP_FAILED;
  if (offset >= twin_.size()) return true;  // nothing was published there
  bytes = std::min<std::uint64_t>(bytes, twin_.size() - offset);
  return calls.duplicate(twin_.data() + offset, bytes, at) != MAP_FAILED;
}

}  // namespace lmdbio::cache
