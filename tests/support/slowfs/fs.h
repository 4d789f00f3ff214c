// The file system: passes everything through to a directory, and does what its settings say.
#pragma once

#include <dirent.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tests/support/slowfs/buffers.h"
#include "tests/support/slowfs/counters.h"
#include "tests/support/slowfs/inodes.h"
#include "tests/support/slowfs/parking.h"
#include "tests/support/slowfs/settings.h"
#include "tests/support/slowfs/token_bucket.h"
#include "tests/support/slowfs/trace.h"

namespace lmdbio::slowfs {

/// What cannot change once mounted.
struct StartOptions {
  std::int64_t max_read = 0;        // bytes, 0: the kernel's limit
  std::int64_t max_readahead = -1;  // bytes, -1: the kernel's
  std::int64_t max_background = 64;
  double attr_timeout = 0;  // seconds
  bool kernel_locks = false, remote_changes = false;
};

class FileSystem {
 public:
  static constexpr char kControlDir[] = ".slowfs";

  /// `bucket` outlives it.
  FileSystem(UniqueFd source, const StartOptions& start, const Settings& settings, TokenBucket& bucket,
             UniqueFd trace);
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  /// For fuse_session_new(), with the FileSystem as user data.
  static const fuse_lowlevel_ops& ops();

  /// Mounted, as device `dev`: what settings ask of the kernel is done, and counting begins.
  bool mounted(dev_t dev, std::string& why);
  /// Answers all that waits.  Call when the session's loop has ended.
  void end() { parking_.end(); }

 private:
  // An open file, or the text of a control file as it was at open.
  struct Handle {
    UniqueFd fd;
    Inode* inode;
    std::string name, text;
  };
  struct Dir {
    std::unique_ptr<DIR, int (*)(DIR*)> stream;
    std::mutex mutex;  // guards the stream's position
  };
  // What the kernel holds by address; what it still holds when the mount ends is freed with the FileSystem.
  template <class T>
  class Given {
   public:
    std::uint64_t give(std::unique_ptr<T> t) {
      const std::lock_guard lock(mutex_);
      T* const at = t.get();
      all_.emplace(at, std::move(t));
      return reinterpret_cast<std::uint64_t>(at);
    }
    void take_back(T* t) {
      const std::lock_guard lock(mutex_);
      all_.erase(t);
    }

   private:
    std::mutex mutex_;  // rank: leaf
    std::map<T*, std::unique_ptr<T>> all_;
  };
  struct Pending {  // a read request; its file is open until it is answered
    fuse_req* req;
    int fd;
    off_t off;
    std::size_t size;
    int error;  // to answer instead
    Trace::Read traced;
  };
  using SettingsPtr = std::shared_ptr<const Settings>;

  static FileSystem& self(fuse_req* req);
  static Handle& handle(fuse_file_info* fi);
  static void interrupted(fuse_req* req, void* id);

  SettingsPtr settings() const;
  void show(struct stat& st) const;  // owner and mode as set
  /// Calls `answer` now or, if metadata is delayed, in a thread of Parking's.
  void answer_metadata(fuse_req* req, std::function<void()> answer);

  // fs_names.cc
  static void init(void* me, fuse_conn_info* conn);
  static void lookup(fuse_req* req, NodeId parent, const char* name);
  static void forget(fuse_req* req, NodeId ino, std::uint64_t n);
  static void forget_multi(fuse_req* req, std::size_t count, fuse_forget_data* forgets);
  static void getattr(fuse_req* req, NodeId ino, fuse_file_info* fi);
  static void setattr(fuse_req* req, NodeId ino, struct stat* st, int what, fuse_file_info* fi);
  static void readlink(fuse_req* req, NodeId ino);
  static void mkdir(fuse_req* req, NodeId parent, const char* name, mode_t mode);
  static void mknod(fuse_req* req, NodeId parent, const char* name, mode_t mode, dev_t rdev);
  static void symlink(fuse_req* req, const char* target, NodeId parent, const char* name);
  static void link(fuse_req* req, NodeId ino, NodeId parent, const char* name);
  static void unlink(fuse_req* req, NodeId parent, const char* name);
  static void rmdir(fuse_req* req, NodeId parent, const char* name);
  static void rename(fuse_req* req, NodeId parent, const char* name, NodeId to, const char* to_name,
                     unsigned flags);
  static void opendir(fuse_req* req, NodeId ino, fuse_file_info* fi);
  static void readdir(fuse_req* req, NodeId ino, std::size_t size, off_t off, fuse_file_info* fi);
  static void releasedir(fuse_req* req, NodeId ino, fuse_file_info* fi);
  static void statfs(fuse_req* req, NodeId ino);
  int entry(const Inode& parent, const char* name, fuse_entry_param& e, Inode*& inode);
  void made(fuse_req* req, Op op, NodeId parent, const char* name,
            const std::function<int(int parent_fd)>& make);

  // fs_files.cc
  static void open(fuse_req* req, NodeId ino, fuse_file_info* fi);
  static void create(fuse_req* req, NodeId parent, const char* name, mode_t mode, fuse_file_info* fi);
  static void read(fuse_req* req, NodeId ino, std::size_t size, off_t off, fuse_file_info* fi);
  static void write(fuse_req* req, NodeId ino, const char* data, std::size_t size, off_t off,
                    fuse_file_info* fi);
  static void flush(fuse_req* req, NodeId ino, fuse_file_info* fi);
  static void release(fuse_req* req, NodeId ino, fuse_file_info* fi);
  static void fsync(fuse_req* req, NodeId ino, int data_only, fuse_file_info* fi);
  static void fallocate(fuse_req* req, NodeId ino, int mode, off_t off, off_t size, fuse_file_info* fi);
  static void lseek(fuse_req* req, NodeId ino, off_t off, int whence, fuse_file_info* fi);
  static void getlk(fuse_req* req, NodeId ino, fuse_file_info* fi, struct flock* lock);
  static void setlk(fuse_req* req, NodeId ino, fuse_file_info* fi, struct flock* lock, int sleep);
  int refused(const Settings& s, const std::string& name, int flags);
  void opened(fuse_file_info* fi, const Settings& s, UniqueFd fd, Inode& inode, const std::string& name);
  void closed(Handle* h);
  void answer(const std::shared_ptr<Pending>& p, Parking::Why why);
  void acquire(fuse_req* req, Inode& inode, const std::string& name, const Lock& wanted, bool sleep,
               bool again);

  // control.cc
  void control_attr(const Inode& inode, struct stat& st) const;
  void control_entry(fuse_req* req, Inode& inode);
  void control_open(fuse_req* req, Inode& inode, fuse_file_info* fi);
  void control_write(fuse_req* req, std::string_view text);
  bool set_read_ahead(std::int64_t kb, std::string& why) const;

  const StartOptions start_;
  InodeTable inodes_;
  TokenBucket& bucket_;
  Counters counters_;
  Buffers buffers_;
  const Trace trace_;
  mutable std::mutex settings_mutex_;  // guards the pointer; rank: leaf
  SettingsPtr settings_;
  std::mutex control_mutex_;  // one change of settings at a time; taken before settings_mutex_
  std::mutex locks_mutex_;    // guards all Inode::locks and opens; taken before Parking's
  Given<Handle> handles_;
  Given<Dir> dirs_;
  std::atomic<dev_t> dev_{0};
  Parking parking_;  // last: its threads use the others
};

}  // namespace lmdbio::slowfs
