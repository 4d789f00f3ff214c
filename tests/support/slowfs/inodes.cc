#include "tests/support/slowfs/inodes.h"

#include <fcntl.h>

#include <cerrno>

namespace lmdbio::slowfs {

InodeTable::InodeTable(UniqueFd source) {
  root_.fd = std::move(source);
  for (unsigned i = 0; i < std::size(specials_); ++i) specials_[i].special = static_cast<Special>(i);
}

int InodeTable::lookup(const Inode& parent, const char* name, struct stat& st, Inode*& found) {
  UniqueFd fd(::openat(parent.fd.get(), name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || ::fstatat(fd.get(), "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) return errno;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Inode>& at = files_[{st.st_dev, st.st_ino}];
  if (at == nullptr) {
    at = std::make_unique<Inode>();
    at->fd = std::move(fd);
  }
  ++at->references;
  found = at.get();
  return 0;
}

void InodeTable::hold(Inode& inode) {
  const std::lock_guard lock(mutex_);
  ++inode.references;
}

void InodeTable::forget(NodeId ino, std::uint64_t references) {
  Inode& inode = of(ino);
  if (is_root(inode) || inode.special != Special::kNo) return;
  const std::lock_guard lock(mutex_);
  if ((inode.references -= references) != 0) return;
  struct stat st;
  if (::fstatat(inode.fd.get(), "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) == 0)
    files_.erase({st.st_dev, st.st_ino});
}

}  // namespace lmdbio::slowfs
