// Open files: data and locks.
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>

#include "tests/support/slowfs/fs.h"

namespace lmdbio::slowfs {
namespace {

Parking::Clock::time_point after_ms(std::int64_t ms) {
  return ms == Settings::kForever ? Parking::kNever : Parking::Clock::now() + std::chrono::milliseconds(ms);
}

// The base name that a descriptor of O_PATH was found by, or the file has now.
std::string name_of(const Inode& inode) {
  char path[4097];
  const std::string link = "/proc/self/fd/" + std::to_string(inode.fd.get());
  const ssize_t n = ::readlink(link.c_str(), path, sizeof path);
  const std::string_view text(path, n > 0 ? static_cast<std::size_t>(n) : 0);
  return std::string(text.substr(text.rfind('/') + 1));
}

// As much as there is, like the kernel's own file systems.
ssize_t pread_full(int fd, char* data, std::size_t size, off_t off) {
  std::size_t got = 0;
  while (got < size) {
    const ssize_t n = ::pread(fd, data + got, size - got, off + static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return got != 0 ? static_cast<ssize_t>(got) : -1;
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(got);
}

// How much of `size` bytes at `off` the file has.
std::size_t there(int fd, off_t off, std::size_t size) {
  struct stat st;
  if (::fstat(fd, &st) != 0 || off >= st.st_size) return 0;
  return std::min(size, static_cast<std::size_t>(st.st_size - off));
}

constexpr std::uint64_t kToEof = std::numeric_limits<off_t>::max();

Lock as_lock(const struct flock& l, std::uint64_t owner) {
  const auto first = static_cast<std::uint64_t>(l.l_start);
  return {first, l.l_len == 0 ? kToEof : first + static_cast<std::uint64_t>(l.l_len) - 1, l.l_type, owner,
          l.l_pid};
}

}  // namespace

FileSystem::Handle& FileSystem::handle(fuse_file_info* fi) { return *reinterpret_cast<Handle*>(fi->fh); }

// The errno to refuse an open with, or 0.
int FileSystem::refused(const Settings& s, const std::string& name, int flags) {
  if (!s.concerns(name)) return 0;
  if (s.write_open_errno != 0 && (flags & O_ACCMODE) != O_RDONLY) {
    counters_.count(Fault::k_write_open_refused);
    return static_cast<int>(s.write_open_errno);
  }
  if (s.direct_errno != 0 && (flags & O_DIRECT) != 0) {
    counters_.count(Fault::k_direct_refused);
    return static_cast<int>(s.direct_errno);
  }
  return 0;
}

void FileSystem::opened(fuse_file_info* fi, const Settings& s, UniqueFd fd, Inode& inode,
                        const std::string& name) {
  fi->fh = handles_.give(std::unique_ptr<Handle>(new Handle{std::move(fd), &inode, name, {}}));
  fi->keep_cache = s.cold_open == 0 || !s.concerns(name);
  // The kernel gives ENODEV to shared mappings of files with direct_io, also to those for reading.
  fi->direct_io = s.concerns(name) && (s.no_mmap != 0 || (s.raw_direct != 0 && (fi->flags & O_DIRECT) != 0));
  if (fi->direct_io) counters_.count(Fault::k_direct_io_open);
  inodes_.hold(inode);
  const std::lock_guard lock(locks_mutex_);
  ++inode.opens;
}

void FileSystem::closed(Handle* h) {
  if (h->inode->special == Special::kNo) {
    {
      const std::lock_guard lock(locks_mutex_);
      // The kernel does not report the end of open-file-description locks (F_OFD_SETLK); here they end at
      // last.
      if (--h->inode->opens == 0 && h->inode->locks.drop_all()) parking_.wake(h->inode);
    }
    inodes_.forget(InodeTable::number(*h->inode), 1);
  }
  handles_.take_back(h);
}

void FileSystem::open(fuse_req* req, NodeId ino, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  Inode& inode = fs.inodes_.of(ino);
  if (inode.special != Special::kNo) return fs.control_open(req, inode, fi);
  fs.counters_.count(Op::k_open);
  const SettingsPtr s = fs.settings();
  const std::string name = name_of(inode);
  if (const int error = fs.refused(*s, name, fi->flags)) {
    fuse_reply_err(req, error);
    return;
  }
  // Buffers of ours are not aligned, and the page cache below makes no difference to who measures above.
  const int flags = (fi->flags & ~(O_DIRECT | O_CREAT | O_EXCL | O_NOFOLLOW)) | O_CLOEXEC;
  UniqueFd fd(::open(("/proc/self/fd/" + std::to_string(inode.fd.get())).c_str(), flags));
  if (!fd) {
    fuse_reply_err(req, errno);
    return;
  }
  fs.opened(fi, *s, std::move(fd), inode, name);
  fs.answer_metadata(req, [&fs, req, info = *fi]() mutable {
    if (fuse_reply_open(req, &info) != 0) fs.closed(&handle(&info));  // interrupted: there will be no release
  });
}

void FileSystem::create(fuse_req* req, NodeId parent, const char* name, mode_t mode, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  const Inode& dir = fs.inodes_.of(parent);
  if (dir.special != Special::kNo) {
    fuse_reply_err(req, EPERM);
    return;
  }
  fs.counters_.count(Op::k_create);
  const SettingsPtr s = fs.settings();
  int error = 0;
  if (s->create_errno != 0 && s->concerns(name)) {
    fs.counters_.count(Fault::k_create_refused);
    error = static_cast<int>(s->create_errno);
  } else {
    error = fs.refused(*s, name, fi->flags);
  }
  UniqueFd fd;
  fuse_entry_param e{};
  Inode* inode = nullptr;
  if (error == 0) {
    const int flags = (fi->flags & ~O_DIRECT) | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    fd.reset(::openat(dir.fd.get(), name, flags | O_EXCL, mode));
    const bool ours = static_cast<bool>(fd);
    if (!fd && errno == EEXIST && (fi->flags & O_EXCL) == 0)
      fd.reset(::openat(dir.fd.get(), name, flags, mode));
    const fuse_ctx& who = *fuse_req_ctx(req);
    if (!fd || (ours && ::geteuid() == 0 && ::fchown(fd.get(), who.uid, who.gid) != 0)) {
      error = errno;
    } else {
      error = fs.entry(dir, name, e, inode);
    }
  }
  if (error != 0) {
    fuse_reply_err(req, error);
    return;
  }
  fs.opened(fi, *s, std::move(fd), *inode, name);
  if (fuse_reply_create(req, &e, fi) != 0) {
    fs.closed(&handle(fi));
    fs.inodes_.forget(e.ino, 1);
  }
}

void FileSystem::read(fuse_req* req, NodeId, std::size_t size, off_t off, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  const Handle& h = handle(fi);
  if (h.inode->special != Special::kNo) {
    const std::size_t from = std::min(static_cast<std::size_t>(off), h.text.size());
    const std::string part = h.text.substr(from, size);  // once answered, the handle may go
    fuse_reply_buf(req, part.data(), part.size());
    return;
  }
  const Parking::Clock::time_point now = Parking::Clock::now();
  fs.counters_.read_begins(size, (fi->flags & O_DIRECT) != 0);
  const SettingsPtr s = fs.settings();
  const std::uint64_t number = s->concerns(h.name) ? fs.counters_.number_read() : 0;
  const auto p = std::make_shared<Pending>(Pending{req, h.fd.get(), off, size, 0, {}});
  if (fs.trace_.on()) {
    const pid_t thread = fuse_req_ctx(req)->pid;
    p->traced = {std::chrono::nanoseconds(now.time_since_epoch()).count(),
                 Trace::process_of(thread),
                 thread,
                 h.name,
                 static_cast<std::uint64_t>(off),
                 size,
                 (fi->flags & O_DIRECT) != 0};
  }
  if (number != 0 && s->fail.hits(number)) {
    fs.counters_.count(Fault::k_read_error);
    p->error = static_cast<int>(s->fail_errno);
  } else if (number != 0 && s->shorten.hits(number) && size > static_cast<std::size_t>(s->short_bytes)) {
    fs.counters_.count(Fault::k_read_short);
    p->size = static_cast<std::size_t>(s->short_bytes);
  }
  const auto done = [&fs, p](Parking::Why why) { fs.answer(p, why); };
  const std::size_t transfer = p->error != 0 ? 0 : there(p->fd, off, p->size);
  const Parking::Clock::time_point due = fs.bucket_.take(transfer) + std::chrono::microseconds(s->delay_us);
  if (number != 0 && s->hang.hits(number)) {
    fs.counters_.count(Fault::k_read_hang);
    fs.parking_.park(req, Parking::Kind::kHangRead, std::max(due, after_ms(s->hang_ms)), done);
    // Those who hang may have been released since the settings were looked at.
    if (!fs.settings()->hang.hits(number)) fs.parking_.release();
  } else if (due > now && (s->delay_us != 0 || due > Parking::Clock::now())) {
    fs.parking_.park(req, Parking::Kind::kDelay, due, done);
  } else {
    fs.answer(p, Parking::Why::kDue);
  }
}

void FileSystem::answer(const std::shared_ptr<Pending>& p, Parking::Why why) {
  if (why == Parking::Why::kInterrupted) p->error = EINTR;
  if (why == Parking::Why::kEnding) p->error = ENOTCONN;
  // Read only now: what is copied to the kernel at once is still in the processor's cache.
  std::shared_ptr<char[]> data;
  ssize_t n = 0;
  if (p->error == 0) {
    data = buffers_.take(p->size);
    n = pread_full(p->fd, data.get(), p->size, p->off);
    if (n < 0) p->error = errno;
  }
  counters_.read_ended(p->error != 0 ? 0 : static_cast<std::size_t>(n));
  if (trace_.on()) trace_.ended(p->traced);
  if (p->error != 0) {
    fuse_reply_err(p->req, p->error);
  } else {
    fuse_reply_buf(p->req, data.get(), static_cast<std::size_t>(n));
  }
}

void FileSystem::write(fuse_req* req, NodeId, const char* data, std::size_t size, off_t off,
                       fuse_file_info* fi) {
  FileSystem& fs = self(req);
  const Handle& h = handle(fi);
  if (h.inode->special != Special::kNo) return fs.control_write(req, {data, size});
  fs.counters_.count(Op::k_write);
  ssize_t n;
  do n = ::pwrite(h.fd.get(), data, size, off);
  while (n < 0 && errno == EINTR);
  if (n < 0) {
    fuse_reply_err(req, errno);
    return;
  }
  fs.counters_.written_bytes += static_cast<std::uint64_t>(n);
  fuse_reply_write(req, static_cast<std::size_t>(n));
}

void FileSystem::flush(fuse_req* req, NodeId, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  Inode& inode = *handle(fi).inode;
  if (inode.special == Special::kNo) {
    fs.counters_.count(Op::k_flush);
    const std::lock_guard lock(fs.locks_mutex_);  // closing any descriptor of a file ends its owner's locks
    if (inode.locks.drop_owner(fi->lock_owner)) fs.parking_.wake(&inode);
  }
  fuse_reply_err(req, 0);
}

void FileSystem::release(fuse_req* req, NodeId, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  Handle* const h = &handle(fi);
  if (h->inode->special == Special::kNo) fs.counters_.count(Op::k_release);
  fs.closed(h);
  fuse_reply_err(req, 0);
}

void FileSystem::fsync(fuse_req* req, NodeId, int data_only, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  const Handle& h = handle(fi);
  if (h.inode->special != Special::kNo) {
    fuse_reply_err(req, 0);
    return;
  }
  fs.counters_.count(Op::k_fsync);
  fuse_reply_err(req, (data_only != 0 ? ::fdatasync(h.fd.get()) : ::fsync(h.fd.get())) == 0 ? 0 : errno);
}

void FileSystem::fallocate(fuse_req* req, NodeId, int mode, off_t off, off_t size, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  const Handle& h = handle(fi);
  if (h.inode->special != Special::kNo) {
    fuse_reply_err(req, EINVAL);
    return;
  }
  fs.counters_.count(Op::k_fallocate);
  fuse_reply_err(req, ::fallocate(h.fd.get(), mode, off, size) == 0 ? 0 : errno);
}

void FileSystem::lseek(fuse_req* req, NodeId, off_t off, int whence, fuse_file_info* fi) {
  FileSystem& fs = self(req);
  const Handle& h = handle(fi);
  if (h.inode->special != Special::kNo) {
    fuse_reply_err(req, EINVAL);
    return;
  }
  fs.counters_.count(Op::k_lseek);
  const off_t at = ::lseek(h.fd.get(), off, whence);
  if (at < 0) {
    fuse_reply_err(req, errno);
  } else {
    fuse_reply_lseek(req, at);
  }
}

void FileSystem::getlk(fuse_req* req, NodeId, fuse_file_info* fi, struct flock* lock) {
  FileSystem& fs = self(req);
  const Handle& h = handle(fi);
  fs.counters_.count(Op::k_getlk);
  const SettingsPtr s = fs.settings();
  if (h.inode->special != Special::kNo || (s->lock_errno != 0 && s->concerns(h.name))) {
    fs.counters_.count(Fault::k_lock_refused);
    fuse_reply_err(req, h.inode->special != Special::kNo ? ENOLCK : static_cast<int>(s->lock_errno));
    return;
  }
  const Lock wanted = as_lock(*lock, fi->lock_owner);
  {
    const std::lock_guard guard(fs.locks_mutex_);
    const std::optional<Lock> other = h.inode->locks.conflict(wanted);
    lock->l_type = other ? other->type : static_cast<short>(F_UNLCK);
    if (other) {
      lock->l_whence = SEEK_SET;
      lock->l_start = static_cast<off_t>(other->first);
      lock->l_len = other->last == kToEof ? 0 : static_cast<off_t>(other->last - other->first + 1);
      lock->l_pid = other->pid;
    }
  }
  fuse_reply_lock(req, lock);
}

void FileSystem::setlk(fuse_req* req, NodeId, fuse_file_info* fi, struct flock* lock, int sleep) {
  FileSystem& fs = self(req);
  const Handle& h = handle(fi);
  fs.counters_.count(Op::k_setlk);
  Inode& inode = *h.inode;
  if (inode.special != Special::kNo) {
    fuse_reply_err(req, ENOLCK);
    return;
  }
  const Lock wanted = as_lock(*lock, fi->lock_owner);
  if (wanted.type == F_UNLCK) {
    ++fs.counters_.unlocks;
    {
      const std::lock_guard guard(fs.locks_mutex_);
      if (inode.locks.set(wanted)) fs.parking_.wake(&inode);
    }
    fuse_reply_err(req, 0);
    return;
  }
  const SettingsPtr s = fs.settings();
  if (s->lock_hang_ms == 0 || !s->concerns(h.name)) {
    fs.acquire(req, inode, h.name, wanted, sleep != 0, false);
    return;
  }
  fs.counters_.count(Fault::k_lock_hang);
  fs.parking_.park(req, Parking::Kind::kHangLock, after_ms(s->lock_hang_ms),
                   [&fs, req, &inode, name = h.name, wanted, sleep](Parking::Why why) {
                     if (why == Parking::Why::kInterrupted || why == Parking::Why::kEnding) {
                       fuse_reply_err(req, why == Parking::Why::kInterrupted ? EINTR : ENOTCONN);
                     } else {
                       fs.acquire(req, inode, name, wanted, sleep != 0, false);
                     }
                   });
}

// Answers a request for a lock, at once or when it is free.
void FileSystem::acquire(fuse_req* req, Inode& inode, const std::string& name, const Lock& wanted, bool sleep,
                         bool again) {
  const SettingsPtr s = settings();
  if (s->lock_errno != 0 && s->concerns(name)) {
    counters_.count(Fault::k_lock_refused);
    fuse_reply_err(req, static_cast<int>(s->lock_errno));
    return;
  }
  int error = 0;
  Parking::Id waits = 0;
  {
    const std::lock_guard guard(locks_mutex_);
    if (!inode.locks.conflict(wanted)) {
      if (inode.locks.set(wanted)) parking_.wake(&inode);  // it was stronger before
      ++counters_.locks_granted;
    } else if (!sleep) {
      ++counters_.locks_conflicts;
      error = EAGAIN;
    } else {
      if (!again) ++counters_.locks_waited;
      // Added under the mutex: no release is missed.
      waits = parking_.add(
          req, Parking::Kind::kLock, Parking::kNever,
          [this, req, &inode, name, wanted](Parking::Why why) {
            if (why == Parking::Why::kInterrupted || why == Parking::Why::kEnding) {
              fuse_reply_err(req, why == Parking::Why::kInterrupted ? EINTR : ENOTCONN);
            } else {
              acquire(req, inode, name, wanted, true, true);
            }
          },
          &inode);
    }
  }
  if (waits != 0) {
    parking_.arm(waits);
  } else {
    fuse_reply_err(req, error);
  }
}

}  // namespace lmdbio::slowfs
