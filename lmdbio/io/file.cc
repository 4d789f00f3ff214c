#include "lmdbio/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lmdbio/base/align.h"

namespace lmdbio {
namespace {

// Where the kernel does not tell: enough for every device with blocks of up to a page.
constexpr std::size_t kUsualAlignment = 4096;

Status regular(const struct stat& st) noexcept {
  if (S_ISREG(st.st_mode)) return Status();
  return Status::from_errno(S_ISDIR(st.st_mode) ? EISDIR : EINVAL);
}

Status regular_fd(int fd) noexcept {
  struct stat st;
  if (::fstat(fd, &st) != 0) return Status::from_errno(errno);
  return regular(st);
}

int open_retrying(const char* path, int flags) noexcept {
  int fd;
  do fd = ::open(path, flags | O_RDONLY | O_CLOEXEC | O_NOCTTY);
  while (fd < 0 && errno == EINTR);
  return fd;
}

// The regular file behind `fd`, opened anew.
Result<UniqueFd> reopen(int fd, int flags) noexcept {
  struct stat before, after;
  if (::fstat(fd, &before) != 0) return Status::from_errno(errno);
  if (const Status s = regular(before); !s.ok()) return s;
  char self[32];
  (void)std::snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  UniqueFd opened(open_retrying(self, flags));
  if (!opened) return Status::from_errno(errno);
  if (::fstat(opened.get(), &after) != 0) return Status::from_errno(errno);
  if (before.st_dev != after.st_dev || before.st_ino != after.st_ino) return Status::from_errno(ESTALE);
  return opened;
}

// The alignment of direct reads as the kernel tells it; 0: there are none.
std::size_t told_alignment(int fd) noexcept {
#ifdef STATX_DIOALIGN
  struct statx stx;
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN) != 0) {
    const std::size_t a = std::max<std::size_t>(stx.stx_dio_mem_align, stx.stx_dio_offset_align);
    return a == 0 || is_power_of_two(a) ? a : 0;
  }
#else
  (void)fd;
#endif
  return kUsualAlignment;
}

// Some file systems accept O_DIRECT and refuse each read: one block is read to know.
bool direct_works(int fd, std::size_t alignment) noexcept {
  void* const block = std::aligned_alloc(alignment, alignment);
  if (block == nullptr) return false;
  ssize_t n;
  do n = ::pread(fd, block, alignment, 0);
  while (n < 0 && errno == EINTR);
  std::free(block);
  return n >= 0;
}

}  // namespace

File::File(UniqueFd owned, int fd, std::size_t direct_alignment) noexcept
    : owned_(std::move(owned)),
      fd_(fd),
      direct_(direct_alignment != 0),
      alignment_(direct_alignment != 0 ? direct_alignment : 1) {}

Result<File> File::open(const char* path, Mode mode) noexcept {
  // Before the open, which would wait for a pipe's writer.
  struct stat st;
  if (::stat(path, &st) != 0) return Status::from_errno(errno);
  if (const Status s = regular(st); !s.ok()) return s;
  if (mode == Mode::direct_if_possible) {
    UniqueFd fd(open_retrying(path, O_DIRECT));
    if (fd && regular_fd(fd.get()).ok()) {
      const std::size_t alignment = told_alignment(fd.get());
      if (alignment != 0 && direct_works(fd.get(), alignment)) {
        const int n = fd.get();
        return File(std::move(fd), n, alignment);
      }
    }
  }
  UniqueFd fd(open_retrying(path, 0));
  if (!fd) return Status::from_errno(errno);
  if (const Status s = regular_fd(fd.get()); !s.ok()) return s;
  const int n = fd.get();
  return File(std::move(fd), n, 0);
}

Result<File> File::from_fd(int fd, Take take) noexcept {
  if (const Status s = regular_fd(fd); !s.ok()) return s;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return Status::from_errno(errno);
  std::size_t alignment = 0;
  if ((flags & O_DIRECT) != 0) {
    alignment = told_alignment(fd);
    if (alignment == 0) alignment = kUsualAlignment;  // O_DIRECT was accepted: the strictest rule in use
  }
  if (take == Take::borrow) return File(UniqueFd(), fd, alignment);
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return Status::from_errno(errno);
  const int n = own.get();
  return File(std::move(own), n, alignment);
}

Result<File> File::reopen_direct(int fd) noexcept {
  Result<UniqueFd> opened = reopen(fd, O_DIRECT);
  if (!opened) return opened.error();
  const int n = opened.value().get();
  const std::size_t alignment = told_alignment(n);
  if (alignment == 0 || !direct_works(n, alignment)) return Status::from_errno(ENOTSUP);
  return File(std::move(opened.value()), n, alignment);
}

Result<File> File::reopen_buffered(int fd) noexcept {
  Result<UniqueFd> opened = reopen(fd, 0);
  if (!opened) return opened.error();
  const int n = opened.value().get();
  return File(std::move(opened.value()), n, 0);
}

Result<FileIdentity> File::identity() const noexcept {
  struct stat st;
  if (::fstat(fd_, &st) != 0) return Status::from_errno(errno);
  FileIdentity id;
  id.dev = st.st_dev;
  id.ino = st.st_ino;
  id.size = static_cast<std::uint64_t>(st.st_size);
  id.mtime_ns = std::int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
  return id;
}

bool File::is_inode(const FileIdentity& id) const noexcept {
  struct statx st;
  if (::statx(fd_, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &st) == 0)
    return makedev(st.stx_dev_major, st.stx_dev_minor) == id.dev && st.stx_ino == id.ino;
  const Result<FileIdentity> now = identity();
  return now && now.value().dev == id.dev && now.value().ino == id.ino;
}

std::uint64_t size_known_here(int fd) noexcept {
  struct statx sx;
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &sx) == 0) return sx.stx_size;
  struct stat st;
  return ::fstat(fd, &st) == 0 ? static_cast<std::uint64_t>(st.st_size) : 0;
}

Result<std::uint64_t> File::size() const noexcept {
  struct stat st;
  if (::fstat(fd_, &st) != 0) return Status::from_errno(errno);
  return static_cast<std::uint64_t>(st.st_size);
}

}  // namespace lmdbio
