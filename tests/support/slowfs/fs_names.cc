// The tree: names, attributes, directories.
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/slowfs/fs.h"

namespace lmdbio::slowfs {

static_assert(std::is_same_v<NodeId, fuse_ino_t> && kRootId == FUSE_ROOT_ID);

namespace {

std::string path_of(const Inode& inode) { return "/proc/self/fd/" + std::to_string(inode.fd.get()); }

}  // namespace

FileSystem::FileSystem(UniqueFd source, const StartOptions& start, const Settings& settings,
                       TokenBucket& bucket, UniqueFd trace)
    : start_(start),
      inodes_(std::move(source)),
      bucket_(bucket),
      trace_(std::move(trace)),
      settings_(std::make_shared<const Settings>(settings)),
      parking_(&FileSystem::interrupted) {}

const fuse_lowlevel_ops& FileSystem::ops() {
  static const fuse_lowlevel_ops table = [] {
    fuse_lowlevel_ops o{};
    o.init = init;
    o.lookup = lookup;
    o.forget = forget;
    o.forget_multi = forget_multi;
    o.getattr = getattr;
    o.setattr = setattr;
    o.readlink = readlink;
    o.mkdir = mkdir;
    o.mknod = mknod;
    o.symlink = symlink;
    o.link = link;
    o.unlink = unlink;
    o.rmdir = rmdir;
    o.rename = rename;
    o.opendir = opendir;
    o.readdir = readdir;
    o.releasedir = releasedir;
    o.statfs = statfs;
    o.open = open;
    o.create = create;
    o.read = read;
    o.write = write;
    o.flush = flush;
    o.release = release;
    o.fsync = fsync;
    o.fallocate = fallocate;
    o.lseek = lseek;
    o.getlk = getlk;
    o.setlk = setlk;
    return o;
  }();
  return table;
}

FileSystem& FileSystem::self(fuse_req* req) { return *static_cast<FileSystem*>(fuse_req_userdata(req)); }

void FileSystem::interrupted(fuse_req* req, void* id) {
  self(req).parking_.interrupt(reinterpret_cast<Parking::Id>(id));
}

FileSystem::SettingsPtr FileSystem::settings() const {
  const std::lock_guard lock(settings_mutex_);
  return settings_;
}

void FileSystem::init(void* me, fuse_conn_info* conn) {
  const StartOptions& start = static_cast<FileSystem*>(me)->start_;
  if (start.max_read != 0) conn->max_read = static_cast<unsigned>(start.max_read);
  if (start.max_readahead >= 0) conn->max_readahead = static_cast<unsigned>(start.max_readahead);
  conn->max_background = static_cast<unsigned>(start.max_background);
  conn->congestion_threshold = conn->max_background - conn->max_background / 4;
  if (start.kernel_locks) conn->want &= ~static_cast<unsigned>(FUSE_CAP_POSIX_LOCKS);
  // By itself the kernel would also drop the pages of files that are written through this mount.
  if (!start.remote_changes) conn->want &= ~static_cast<unsigned>(FUSE_CAP_AUTO_INVAL_DATA);
}

void FileSystem::show(struct stat& st) const {
  const SettingsPtr s = settings();
  if (s->uid >= 0) st.st_uid = static_cast<uid_t>(s->uid);
  if (s->gid >= 0) st.st_gid = static_cast<gid_t>(s->gid);
  const std::int64_t mode = S_ISDIR(st.st_mode) ? s->dir_mode : S_ISLNK(st.st_mode) ? -1 : s->file_mode;
  if (mode >= 0) st.st_mode = (st.st_mode & static_cast<mode_t>(S_IFMT)) | static_cast<mode_t>(mode);
}

int FileSystem::entry(const Inode& parent, const char* name, fuse_entry_param& e, Inode*& inode) {
  if (const int error = inodes_.lookup(parent, name, e.attr, inode)) return error;
  e.ino = InodeTable::number(*inode);
  e.attr_timeout = e.entry_timeout = start_.attr_timeout;
  show(e.attr);
  return 0;
}

void FileSystem::answer_metadata(fuse_req* req, std::function<void()> answer) {
  const std::chrono::microseconds delay(settings()->metadata_delay_us);
  if (delay.count() == 0) return answer();
  parking_.park(req, Parking::Kind::kDelay, Parking::Clock::now() + delay,
                [answer = std::move(answer)](Parking::Why) { answer(); });
}

void FileSystem::lookup(fuse_req* req, NodeId parent, const char* name) {
  FileSystem& fs = self(req);
  Inode& dir = fs.inodes_.of(parent);
  if (dir.special == Special::kDir) {
    for (const auto& [s, known] :
         {std::pair{Special::kControl, "control"}, std::pair{Special::kCounters, "counters"},
          std::pair{Special::kSettings, "settings"}})
      if (std::strcmp(name, known) == 0) return fs.control_entry(req, fs.inodes_.special(s));
    fuse_reply_err(req, ENOENT);
    return;
  }
  if (fs.inodes_.is_root(dir) && std::strcmp(name, kControlDir) == 0)
    return fs.control_entry(req, fs.inodes_.special(Special::kDir));
  fs.counters_.count(Op::k_lookup);
  fuse_entry_param e{};
  Inode* inode;
  const int error = fs.entry(dir, name, e, inode);
  fs.counters_.lookup_begins();
  fs.answer_metadata(req, [&fs, req, e, error] {
    fs.counters_.lookup_ended();
    if (error != 0) {
      fuse_reply_err(req, error);
    } else {
      fuse_reply_entry(req, &e);
    }
  });
}

void FileSystem::forget(fuse_req* req, NodeId ino, std::uint64_t n) {
  self(req).inodes_.forget(ino, n);
  fuse_reply_none(req);
}

void FileSystem::forget_multi(fuse_req* req, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) self(req).inodes_.forget(forgets[i].ino, forgets[i].nlookup);
  fuse_reply_none(req);
}

void FileSystem::getattr(fuse_req* req, NodeId ino, fuse_file_info*) {
  FileSystem& fs = self(req);
  const Inode& inode = fs.inodes_.of(ino);
  struct stat st {};
  if (inode.special != Special::kNo) {
    fs.control_attr(inode, st);
    fuse_reply_attr(req, &st, 0);
    return;
  }
  fs.counters_.count(Op::k_getattr);
  if (::fstatat(inode.fd.get(), "", &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) {
    fuse_reply_err(req, errno);
    return;
  }
  fs.show(st);
  fuse_reply_attr(req, &st, fs.start_.attr_timeout);
}

void FileSystem::setattr(fuse_req* req, NodeId ino, struct stat* st, int what, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  const Inode& inode = fs.inodes_.of(ino);
  if (inode.special == Special::kNo) {
    fs.counters_.count(Op::k_setattr);
    const std::string path = path_of(inode);
    int rc = 0;
    if ((what & FUSE_SET_ATTR_MODE) != 0) rc = ::chmod(path.c_str(), st->st_mode & 07777u);
    if (rc == 0 && (what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) != 0)
      rc = ::fchownat(inode.fd.get(), "",
                      (what & FUSE_SET_ATTR_UID) != 0 ? st->st_uid : static_cast<uid_t>(-1),
                      (what & FUSE_SET_ATTR_GID) != 0 ? st->st_gid : static_cast<gid_t>(-1),
                      AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
    if (rc == 0 && (what & FUSE_SET_ATTR_SIZE) != 0)
      rc = fi != nullptr ? ::ftruncate(handle(fi).fd.get(), st->st_size)
                         : ::truncate(path.c_str(), st->st_size);
    if (rc == 0 && (what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) != 0) {
      timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
      if ((what & FUSE_SET_ATTR_ATIME_NOW) != 0) {
        times[0].tv_nsec = UTIME_NOW;
      } else if ((what & FUSE_SET_ATTR_ATIME) != 0) {
        times[0] = st->st_atim;
      }
      if ((what & FUSE_SET_ATTR_MTIME_NOW) != 0) {
        times[1].tv_nsec = UTIME_NOW;
      } else if ((what & FUSE_SET_ATTR_MTIME) != 0) {
        times[1] = st->st_mtim;
      }
      rc = ::utimensat(AT_FDCWD, path.c_str(), times, 0);
    }
    if (rc != 0) {
      fuse_reply_err(req, errno);
      return;
    }
  }
  struct stat now {};
  if (inode.special != Special::kNo) {
    fs.control_attr(inode, now);  // `echo >` truncates: nothing to do
  } else if (::fstatat(inode.fd.get(), "", &now, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) {
    fuse_reply_err(req, errno);
    return;
  } else {
    fs.show(now);
  }
  fuse_reply_attr(req, &now, inode.special != Special::kNo ? 0 : fs.start_.attr_timeout);
}

void FileSystem::readlink(fuse_req* req, NodeId ino) {
  FileSystem& fs = self(req);
  fs.counters_.count(Op::k_readlink);
  char target[4097];
  const ssize_t n = ::readlinkat(fs.inodes_.of(ino).fd.get(), "", target, sizeof target - 1);
  if (n < 0) {
    fuse_reply_err(req, errno);
    return;
  }
  target[n] = '\0';
  fuse_reply_readlink(req, target);
}

// Makes `name` by `make`, gives it to who asked, and answers.
void FileSystem::made(fuse_req* req, Op op, NodeId parent, const char* name,
                      const std::function<int(int)>& make) {
  const Inode& dir = inodes_.of(parent);
  if (dir.special != Special::kNo) {
    fuse_reply_err(req, EPERM);
    return;
  }
  counters_.count(op);
  const SettingsPtr s = settings();
  fuse_entry_param e{};
  Inode* inode;
  int error = 0;
  if (s->create_errno != 0 && s->concerns(name)) {
    counters_.count(Fault::k_create_refused);
    error = static_cast<int>(s->create_errno);
  } else if (make(dir.fd.get()) != 0) {
    error = errno;
  } else {
    const fuse_ctx& who = *fuse_req_ctx(req);
    if (op != Op::k_link && ::geteuid() == 0 &&
        ::fchownat(dir.fd.get(), name, who.uid, who.gid, AT_SYMLINK_NOFOLLOW) != 0)
      error = errno;
    else
      error = entry(dir, name, e, inode);
  }
  if (error != 0) {
    fuse_reply_err(req, error);
  } else {
    fuse_reply_entry(req, &e);
  }
}

void FileSystem::mkdir(fuse_req* req, NodeId parent, const char* name, mode_t mode) {
  self(req).made(req, Op::k_mkdir, parent, name, [&](int at) { return ::mkdirat(at, name, mode); });
}

void FileSystem::mknod(fuse_req* req, NodeId parent, const char* name, mode_t mode, dev_t rdev) {
  self(req).made(req, Op::k_mknod, parent, name, [&](int at) { return ::mknodat(at, name, mode, rdev); });
}

void FileSystem::symlink(fuse_req* req, const char* target, NodeId parent, const char* name) {
  self(req).made(req, Op::k_symlink, parent, name, [&](int at) { return ::symlinkat(target, at, name); });
}

void FileSystem::link(fuse_req* req, NodeId ino, NodeId parent, const char* name) {
  FileSystem& fs = self(req);
  const std::string from = path_of(fs.inodes_.of(ino));
  fs.made(req, Op::k_link, parent, name,
          [&](int at) { return ::linkat(AT_FDCWD, from.c_str(), at, name, AT_SYMLINK_FOLLOW); });
}

void FileSystem::unlink(fuse_req* req, NodeId parent, const char* name) {
  FileSystem& fs = self(req);
  fs.counters_.count(Op::k_unlink);
  const Inode& dir = fs.inodes_.of(parent);
  fuse_reply_err(req, dir.special != Special::kNo              ? EPERM
                      : ::unlinkat(dir.fd.get(), name, 0) == 0 ? 0
                                                               : errno);
}

void FileSystem::rmdir(fuse_req* req, NodeId parent, const char* name) {
  FileSystem& fs = self(req);
  fs.counters_.count(Op::k_rmdir);
  const Inode& dir = fs.inodes_.of(parent);
  fuse_reply_err(req, dir.special != Special::kNo                         ? EPERM
                      : ::unlinkat(dir.fd.get(), name, AT_REMOVEDIR) == 0 ? 0
                                                                          : errno);
}

void FileSystem::rename(fuse_req* req, NodeId parent, const char* name, NodeId to, const char* to_name,
                        unsigned flags) {
  FileSystem& fs = self(req);
  fs.counters_.count(Op::k_rename);
  const Inode &from = fs.inodes_.of(parent), &into = fs.inodes_.of(to);
  if (from.special != Special::kNo || into.special != Special::kNo) {
    fuse_reply_err(req, EPERM);
    return;
  }
  fuse_reply_err(req, ::renameat2(from.fd.get(), name, into.fd.get(), to_name, flags) == 0 ? 0 : errno);
}

void FileSystem::opendir(fuse_req* req, NodeId ino, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  const Inode& inode = fs.inodes_.of(ino);
  fi->fh = 0;
  if (inode.special == Special::kNo) {
    fs.counters_.count(Op::k_opendir);
    UniqueFd fd(::openat(inode.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    std::unique_ptr<Dir> dir(new Dir{{fd ? ::fdopendir(fd.get()) : nullptr, ::closedir}, {}});
    if (dir->stream == nullptr) {
      fuse_reply_err(req, errno);
      return;
    }
    static_cast<void>(fd.release());
    fi->fh = fs.dirs_.give(std::move(dir));
  }
  if (fuse_reply_open(req, fi) != 0)
    fs.dirs_.take_back(reinterpret_cast<Dir*>(fi->fh));  // no releasedir will come
}

void FileSystem::readdir(fuse_req* req, NodeId ino, std::size_t size, off_t off, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  Dir* const dir = reinterpret_cast<Dir*>(fi->fh);
  std::vector<char> out(size);
  std::size_t used = 0;
  if (dir == nullptr) {
    constexpr const char* kNames[] = {".", "..", "control", "counters", "settings"};
    for (off_t i = off; i < 5; ++i) {
      struct stat st {};
      st.st_ino = 1;  // 0 is skipped by readdir(3)
      st.st_mode = i < 2 ? S_IFDIR : S_IFREG;
      const std::size_t n = fuse_add_direntry(req, out.data() + used, size - used, kNames[i], &st, i + 1);
      if (n > size - used) break;
      used += n;
    }
  } else {
    fs.counters_.count(Op::k_readdir);
    const bool root = fs.inodes_.is_root(fs.inodes_.of(ino));
    const std::lock_guard lock(dir->mutex);
    ::seekdir(dir->stream.get(), off);
    errno = 0;
    while (const dirent* const e = ::readdir(dir->stream.get())) {
      if (root && std::strcmp(e->d_name, kControlDir) == 0) continue;
      struct stat st {};
      st.st_ino = e->d_ino;
      st.st_mode = static_cast<mode_t>(e->d_type) << 12;
      const std::size_t n = fuse_add_direntry(req, out.data() + used, size - used, e->d_name, &st, e->d_off);
      if (n > size - used) break;
      used += n;
    }
    if (errno != 0 && used == 0) {
      fuse_reply_err(req, errno);
      return;
    }
  }
  fuse_reply_buf(req, out.data(), used);
}

void FileSystem::releasedir(fuse_req* req, NodeId, fuse_file_info* fi) {
  if (Dir* const dir = reinterpret_cast<Dir*>(fi->fh)) {
    self(req).counters_.count(Op::k_releasedir);
    self(req).dirs_.take_back(dir);
  }
  fuse_reply_err(req, 0);
}

void FileSystem::statfs(fuse_req* req, NodeId) {
  FileSystem& fs = self(req);
  fs.counters_.count(Op::k_statfs);
  struct statvfs st;
  if (::fstatvfs(fs.inodes_.of(kRootId).fd.get(), &st) != 0) {
    fuse_reply_err(req, errno);
  } else {
    fuse_reply_statfs(req, &st);
  }
}

}  // namespace lmdbio::slowfs
