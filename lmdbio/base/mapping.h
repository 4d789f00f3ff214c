// Owns a range of addresses.  No other code calls munmap(2).
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/result.h"

namespace lmdbio {

/// Returns the kernel's page size, in bytes.
inline std::size_t system_page() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

/// Moves the mapping of `bytes` bytes at `from` to `to`, over what is mapped there.  Returns and errors: as
/// mremap(2) with MREMAP_FIXED.  Makes the system call itself: in processes that use UCX (many MPI
/// libraries), mremap(3) loses its fifth argument, and the mapping would move to address 0.
inline void* move_mapping(void* from, std::size_t bytes, void* to) noexcept {
  return reinterpret_cast<void*>(
      ::syscall(SYS_mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to));
}

/// A range of mapped addresses.  A default-constructed or moved-from Mapping owns nothing: data() is null,
/// size() 0.
class Mapping {
 public:
  Mapping() noexcept = default;
  /// Takes over `size` bytes at `data`, as mmap(2) returned them.
  Mapping(void* data, std::size_t size) noexcept : data_(static_cast<std::byte*>(data)), size_(size) {}
  Mapping(Mapping&& other) noexcept : data_(other.data_), size_(other.size_) { (void)other.release(); }
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      size_ = other.size_;
      data_ = other.release();
    }
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  std::byte* data() const noexcept { return data_; }
  /// Size in bytes, a multiple of the system's page.
  std::size_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// Unmaps the range, including anything that was mapped over it since.  errno preserved.
  void reset() noexcept {
    if (data_ == nullptr) return;
    const int saved = errno;
    ::munmap(data_, size_);
    errno = saved;
    (void)release();
  }
  /// Changes the size to `bytes`, rounded up to the system's page.  Unmaps the addresses beyond the new size,
  /// or extends the mapping of the last page if the addresses behind it are free.  data() stays the same.
  /// Returns false, and changes nothing, if this is not possible.
  bool resize(std::size_t bytes) noexcept {
    const std::size_t page = system_page(), now = align_up(bytes, page);
    std::byte* const end = data_ + size_;
    if (data_ == nullptr || now == 0 || now == size_) return now == size_;
    if (now < size_ ? ::munmap(data_ + now, size_ - now) != 0
                    : ::mremap(end - page, page, page + (now - size_), 0) == MAP_FAILED)
      return false;
    size_ = now;
    return true;
  }
  /// Gives the range to the caller, who unmaps it.  Call size() before, since it is 0 afterwards.
  [[nodiscard]] std::byte* release() noexcept {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

  /// Reserves `size` bytes of addresses without memory (PROT_NONE, MAP_NORESERVE), at a multiple of
  /// `alignment`, a power of two.  Rounds the size up to the system's page.  Errors: EINVAL for size 0,
  /// ENOMEM if there is no room.
  static Result<Mapping> reserve(std::size_t size, std::size_t alignment) noexcept {
    const std::size_t page = system_page();
    if (size == 0 || !is_power_of_two(alignment)) return Status::from_errno(EINVAL);
    if (size > SIZE_MAX / 2 || alignment > SIZE_MAX / 4) return Status::from_errno(ENOMEM);
    const std::size_t bytes = align_up(size, page);
    const std::size_t slack = alignment > page ? alignment - page : 0;
    void* const p =
        ::mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return Status::from_errno(errno);
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    const std::size_t head = align_up(at, alignment) - at;
    std::byte* const data = static_cast<std::byte*>(p) + head;
    const std::size_t tail = slack - head;
    // munmap(2) fails if there are too many VMAs.  Then unmap only addresses that are still ours: another
    // thread may have mapped something at those that were unmapped.
    std::size_t ours = bytes + slack;
    bool trimmed = tail == 0 || ::munmap(data + bytes, tail) == 0;
    if (trimmed) {
      ours -= tail;
      trimmed = head == 0 || ::munmap(p, head) == 0;
    }
    if (!trimmed) {
      const Status failed = Status::from_errno(errno);
      ::munmap(p, ours);
      return failed;
    }
    return Mapping(data, bytes);
  }

  /// Maps `size` bytes of zeros, which get memory as they are used.  Errors: EINVAL for size 0, ENOMEM if
  /// there is no room.
  static Result<Mapping> zeroed(std::size_t size) noexcept {
    if (size == 0) return Status::from_errno(EINVAL);
    const std::size_t bytes = align_up(size, system_page());
    void* const p =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return Status::from_errno(errno);
    return Mapping(p, bytes);
  }

  /// Maps `length` bytes of the file from its start, with PROT_READ and MAP_SHARED, at a multiple of
  /// `alignment`, a power of two.  The mapping may reach beyond the end of the file: an access there raises
  /// SIGBUS until the file has grown.  `fd` may be closed afterwards.  `hint`: address to try first.  Makes
  /// one system call if the kernel chooses an aligned address.  Errors: as mmap(2).
  static Result<Mapping> map_file(int fd, std::size_t length, std::size_t alignment,
                                  void* hint = nullptr) noexcept {
    if (length > SIZE_MAX / 2) return Status::from_errno(ENOMEM);
    const std::size_t bytes = align_up(length, system_page());
    void* const anywhere = ::mmap(hint, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (anywhere == MAP_FAILED) return Status::from_errno(errno);
    Mapping first(anywhere, bytes);
    if (reinterpret_cast<std::uintptr_t>(anywhere) % alignment == 0) return first;
    // The next mmap(2), with MAP_FIXED, must not fail late.  The kernel would already have unmapped the
    // range, and the destructor of `range` could unmap what another thread has mapped there since.  The first
    // mmap(2) has shown that the file can be mapped.
    first.reset();
    Result<Mapping> range = reserve(length, alignment);
    if (!range) return range;
    void* const at = range.value().data();
    if (::mmap(at, range.value().size(), PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
      return Status::from_errno(errno);
    return range;
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lmdbio
