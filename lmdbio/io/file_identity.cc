#include "lmdbio/io/file_identity.h"

#include <fcntl.h>
#include <sys/sysmacros.h>

#include <cerrno>

namespace lmdbio {

std::uint64_t size_known_here(int fd) noexcept {
  struct statx sx;
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &sx) == 0) return sx.stx_size;
  struct stat st;
  return ::fstat(fd, &st) == 0 ? static_cast<std::uint64_t>(st.st_size) : 0;
}

std::optional<std::uint64_t> size_if_inode(int fd, const FileIdentity& id) noexcept {
  if (fd < 0) return {};
  struct statx st;
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO | STATX_SIZE, &st) == 0) {
    if (makedev(st.stx_dev_major, st.stx_dev_minor) != id.dev || st.stx_ino != id.ino) return {};
    return st.stx_size;
  }
  const Result<FileIdentity> now = identity_of(fd);
  if (!now || now.value().dev != id.dev || now.value().ino != id.ino) return {};
  return now.value().size;
}

bool is_inode(int fd, const FileIdentity& id) noexcept { return size_if_inode(fd, id).has_value(); }

Result<FileIdentity> identity_of(int fd) noexcept {
  struct stat st;
  if (::fstat(fd, &st) != 0) return Status::from_errno(errno);
  return identity_of(st);
}

FileIdentity identity_of(const struct stat& st) noexcept {
  FileIdentity id;
  id.dev = st.st_dev;
  id.ino = st.st_ino;
  id.size = static_cast<std::uint64_t>(st.st_size);
  id.mtime_ns = std::int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
  return id;
}

}  // namespace lmdbio
