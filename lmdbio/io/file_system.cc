#include "lmdbio/io/file_system.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <iterator>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio {
namespace {

bool is_local(const struct statfs& at) noexcept {
  constexpr long kLocal[] = {EXT4_SUPER_MAGIC,  XFS_SUPER_MAGIC,      BTRFS_SUPER_MAGIC,
                             TMPFS_MAGIC,       RAMFS_MAGIC,          OVERLAYFS_SUPER_MAGIC,
                             F2FS_SUPER_MAGIC,  SQUASHFS_MAGIC,       MSDOS_SUPER_MAGIC,
                             ISOFS_SUPER_MAGIC, EROFS_SUPER_MAGIC_V1, 0x2fc12fc1 /* ZFS */};
  return std::find(std::begin(kLocal), std::end(kLocal), static_cast<long>(at.f_type)) != std::end(kLocal);
}

}  // namespace

bool is_local_file_system(int fd) noexcept {
  const int saved = errno;
  struct statfs at;
  const bool told = ::fstatfs(fd, &at) == 0;
  errno = saved;
  return !told || is_local(at);
}

bool is_local_file_system(const char* path) noexcept {
  const int saved = errno;
  struct statfs at;
  const bool told = ::statfs(path, &at) == 0;
  errno = saved;
  return !told || is_local(at);
}

std::uint64_t kernel_readahead(int fd) noexcept {
  struct stat at;
  if (::fstat(fd, &at) != 0) return 0;
  char path[64], text[32];
  (void)std::snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", major(at.st_dev),
                      minor(at.st_dev));
  UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) {  // a partition: use its disk
    (void)std::snprintf(path, sizeof path, "/sys/dev/block/%u:%u/../queue/read_ahead_kb", major(at.st_dev),
                        minor(at.st_dev));
    file = UniqueFd(::open(path, O_RDONLY | O_CLOEXEC));
  }
  if (!file) return 0;
  const ssize_t n = ::read(file.get(), text, sizeof text);
  std::uint64_t kib = 0;
  if (n > 0) (void)std::from_chars(text, text + n, kib);
  return kib << 10;
}

}  // namespace lmdbio
