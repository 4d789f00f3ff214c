// The files that the kernel knows, by inode.
#pragma once

#include <sys/stat.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "lmdbio/base/unique_fd.h"
#include "tests/support/slowfs/fuse_types.h"
#include "tests/support/slowfs/lock_table.h"

namespace lmdbio::slowfs {

/// Not files of the source.
enum class Special { kNo, kDir, kControl, kCounters, kSettings };

struct Inode {
  Special special = Special::kNo;
  UniqueFd fd;  // O_PATH: keeps the inode number from being used again
  std::uint64_t references = 0;
  std::uint64_t opens = 0;  // guarded, as locks, by FileSystem::locks_mutex_
  LockTable locks;
};

/// One Inode for each file of the source, from its first lookup until the kernel forgets it.  Any thread.
class InodeTable {
 public:
  /// `source`: the directory that is the root.
  explicit InodeTable(UniqueFd source);

  Inode& of(NodeId ino) { return ino == kRootId ? root_ : *reinterpret_cast<Inode*>(ino); }
  Inode& special(Special s) { return specials_[static_cast<unsigned>(s)]; }
  bool is_root(const Inode& i) const { return &i == &root_; }
  static NodeId number(const Inode& i) { return reinterpret_cast<NodeId>(&i); }

  /// Finds `name` in `parent` and takes a reference.  An errno on failure.
  int lookup(const Inode& parent, const char* name, struct stat& st, Inode*& found);
  /// Takes a reference to one that has some.
  void hold(Inode& inode);
  void forget(NodeId ino, std::uint64_t references);

 private:
  using Key = std::pair<dev_t, ino_t>;
  Inode root_, specials_[5];
  std::mutex mutex_;  // guards the map and the references
  std::map<Key, std::unique_ptr<Inode>> files_;
};

}  // namespace lmdbio::slowfs
