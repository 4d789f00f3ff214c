#include "lmdbio/io/file_system.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

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

}  // namespace lmdbio
