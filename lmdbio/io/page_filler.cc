#include "lmdbio/io/page_filler.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/io/engine_threads.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace lmdbio {
namespace {

/// Pieces smaller than this, in bytes, are read instead: a fill reads kPiece, which is too much for scattered
/// pieces.
constexpr std::size_t kLeast = std::size_t{512} << 10;
/// Requests in flight: kFills for fills that copy nothing, else kReads.
constexpr unsigned kFills = 8, kReads = 32;

bool kernel_is(unsigned major, unsigned minor) noexcept {
  struct utsname u;
  if (::uname(&u) != 0) return false;
  unsigned a = 0, b = 0;
  const char* const end = u.release + std::strlen(u.release);
  const auto first = std::from_chars(u.release, end, a);
  if (first.ec != std::errc() || first.ptr == end) return false;
  if (std::from_chars(first.ptr + 1, end, b).ec != std::errc()) return false;
  return a > major || (a == major && b >= minor);
}

}  // namespace

PageFiller::PageFiller(const File& file, Mapping map, std::uint64_t size, Bytes bytes) noexcept
    : fd_(file.fd()),
      map_(std::move(map)),
      size_(size),
      bytes_(bytes),
      residency_(fd_, Residency::Sampling::no) {}

Result<std::unique_ptr<PageFiller>> PageFiller::make(const File& file, Bytes bytes) noexcept {
  const Result<std::uint64_t> size = file.size();
  if (!size) return size.error();
  if (size.value() == 0 || file.direct()) return Status::from_errno(EINVAL);
  Result<Mapping> map = Mapping::map_file(file.fd(), size.value(), kPiece);
  if (!map) return map.error();
  Mapping& m = map.value();
  // MADV_HUGEPAGE makes the kernel read a whole huge page.  With MADV_RANDOM it reads nothing beyond that.
  if (::madvise(m.data(), m.size(), MADV_HUGEPAGE) != 0 || ::madvise(m.data(), m.size(), MADV_RANDOM) != 0)
    return Status::from_errno(errno);
  (void)::madvise(m.data(), m.size(), MADV_DONTDUMP);
  std::unique_ptr<PageFiller> made(new (std::nothrow)
                                       PageFiller(file, std::move(map).value(), size.value(), bytes));
  if (made == nullptr) return Status::from_errno(ENOMEM);
  return made;
}

unsigned PageFiller::threads() const noexcept {
  return works() && bytes_ == Bytes::unwanted ? kFills : kReads;
}

// Returns false if the range was not filled.  The read that follows then reports the cause: madvise(2)
// reports any storage error as EFAULT or EHWPOISON.  Its other errors are ENOMEM, EINVAL (before Linux 5.14)
// and EPERM (a seccomp filter).
bool PageFiller::populate(std::uint64_t offset, std::size_t bytes) noexcept {
  for (;;) {
    if (::madvise(map_.data() + offset, bytes, MADV_POPULATE_READ) == 0) return true;
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL || errno == ENOSYS || errno == EPERM)
      trust_.store(Trust::refused, std::memory_order_relaxed);
    return false;
  }
}

// Tests, on the first piece that is not resident, whether a fill of one page reads most of the piece.  Takes
// a page in the middle, since the first page may be a meta page.  Returns true if the piece may be filled.
bool PageFiller::prove(std::uint64_t offset, std::size_t bytes) noexcept {
  const std::optional<double> before = residency_.share(offset, bytes);
  const std::size_t page = system_page();
  constexpr double kSome = 0.1, kMost = 0.5;
  const std::uint64_t middle = offset + align_down(bytes / 2, page);
  if (!before) {
    trust_.store(kernel_is(5, 18) ? Trust::proven : Trust::refused, std::memory_order_relaxed);
    return works();
  }
  if (*before > kSome || residency_.share(middle, page) != 0.0) return true;  // proves nothing
  if (!populate(middle, page)) return false;
  const bool large = residency_.share(offset, bytes).value_or(0) >= kMost;
  trust_.store(large ? Trust::proven : Trust::refused, std::memory_order_relaxed);
  return large;
}

long PageFiller::fill(std::uint64_t offset, MutableBytes to) noexcept {
  const std::size_t page = system_page();
  const std::uint64_t first = align_down(offset, page);
  const bool inside = offset < size_ && to.size() <= align_up(size_, page) - offset;
  if (inside && to.size() >= kLeast && works()) {
    const auto bytes =
        static_cast<std::size_t>(std::min(align_up(offset + to.size(), page), align_up(size_, page)) - first);
    const bool goes = trust_.load(std::memory_order_relaxed) == Trust::proven || prove(first, bytes);
    const bool there = goes && populate(first, bytes);
    // Unmap the pages, since the kernel keeps mapped pages in memory for longer.
    if (goes) (void)::madvise(map_.data() + first, bytes, MADV_DONTNEED);
    if (there && bytes_ == Bytes::unwanted)
      return static_cast<long>(std::min<std::uint64_t>(to.size(), size_ - offset));
  }
  // This is not pread(), since several threads may write unwanted bytes to one buffer.  ThreadSanitizer would
  // report that as a race.
  const long n = ::syscall(SYS_pread64, fd_, to.data(), to.size(), static_cast<off_t>(offset));
  return n < 0 ? -static_cast<long>(errno) : n;
}

Result<std::unique_ptr<IoEngine>> populate_engine(const File& file, unsigned depth, PageFiller::Bytes bytes,
                                                  EventCount* results) noexcept {
  Result<std::unique_ptr<PageFiller>> filler = PageFiller::make(file, bytes);
  if (!filler) return filler.error();
  return threads_engine(file, depth, 0, std::move(filler).value(), results);
}

bool fault_pages_in(std::byte* at, std::size_t bytes) noexcept {
  const int saved = errno;
  const bool done = ::madvise(at, bytes, MADV_POPULATE_READ) == 0;
  errno = saved;
  return done;
}

}  // namespace lmdbio
