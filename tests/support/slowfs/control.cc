// The files below .slowfs.
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tests/support/slowfs/fs.h"

namespace lmdbio::slowfs {

bool FileSystem::set_read_ahead(std::int64_t kb, std::string& why) const {
  const dev_t dev = dev_;
  const std::string path = "/sys/class/bdi/" + std::to_string(::major(dev)) + ":" +
                           std::to_string(::minor(dev)) + "/read_ahead_kb";
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const std::string text = std::to_string(kb);
  if (fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return true;
  why = path + ": " + std::strerror(errno);
  return false;
}

bool FileSystem::mounted(dev_t dev, std::string& why) {
  dev_ = dev;
  const std::int64_t kb = settings()->read_ahead_kb;
  if (kb >= 0 && !set_read_ahead(kb, why)) return false;
  counters_.reset();
  return true;
}

void FileSystem::control_attr(const Inode& inode, struct stat& st) const {
  st.st_mode = inode.special == Special::kDir       ? S_IFDIR | 0755
               : inode.special == Special::kControl ? S_IFREG | 0600
                                                    : S_IFREG | 0444;
  st.st_nlink = 1;
  st.st_uid = ::geteuid();
  st.st_gid = ::getegid();
}

void FileSystem::control_entry(fuse_req* req, Inode& inode) {
  fuse_entry_param e{};
  e.ino = InodeTable::number(inode);
  control_attr(inode, e.attr);
  fuse_reply_entry(req, &e);
}

void FileSystem::control_open(fuse_req* req, Inode& inode, fuse_file_info* fi) {
  std::unique_ptr<Handle> h(new Handle{UniqueFd(), &inode, {}, {}});
  if (inode.special == Special::kCounters) {
    nlohmann::json j = counters_.json();
    j["bucket"] = bucket_.json();
    j["hung"] = parking_.hung();
    h->text = j.dump() + "\n";
  } else if (inode.special == Special::kSettings) {
    nlohmann::json j = settings()->json();
    j["bandwidth"] = bucket_.json()["rate"];
    h->text = j.dump() + "\n";
  }
  fi->fh = handles_.give(std::move(h));
  fi->direct_io = 1;  // the size is 0 and the text is new each time
  if (fuse_reply_open(req, fi) != 0) closed(&handle(fi));
}

void FileSystem::control_write(fuse_req* req, std::string_view text) {
  const std::size_t size = text.size();
  std::int64_t reset = 0, release = 0, wait_hung = 0;
  std::string why;
  {
    const std::lock_guard one(control_mutex_);
    Settings next = *settings();
    bool bandwidth = false, read_ahead = false;
    while (why.empty() && !text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(line.size() + 1, text.size()));
      if (line.empty()) continue;
      const std::size_t equals = line.find('=');
      const std::string_view name = line.substr(0, equals);
      const std::string_view value = equals == line.npos ? std::string_view() : line.substr(equals + 1);
      std::int64_t* const action = name == "reset"       ? &reset
                                   : name == "release"   ? &release
                                   : name == "wait_hung" ? &wait_hung
                                                         : nullptr;
      if (action != nullptr) {
        if (!parse_number(value, 0, 1'000'000, *action))
          why = std::string(line) + ": not a number of any use";
      } else {
        next.set(name, value, why);
        bandwidth = bandwidth || name == "bandwidth";
        read_ahead = read_ahead || name == "read_ahead_kb";
      }
    }
    if (why.empty() && read_ahead) set_read_ahead(next.read_ahead_kb, why);
    if (!why.empty()) {
      std::fprintf(stderr, "lmdbio_slowfs: %s\n", why.c_str());
      fuse_reply_err(req, EINVAL);
      return;
    }
    if (reset != 0) {
      counters_.reset();
      bucket_.reset();
    }
    if (bandwidth) bucket_.set_rate(static_cast<std::uint64_t>(next.bandwidth));
    const std::lock_guard lock(settings_mutex_);
    settings_ = std::make_shared<const Settings>(next);
  }
  if (release != 0) parking_.release();
  if (wait_hung == 0) {
    fuse_reply_write(req, size);
    return;
  }
  parking_.arm(parking_.add(
      req, Parking::Kind::kControl, Parking::kNever,
      [req, size](Parking::Why why_now) {
        if (why_now == Parking::Why::kDue) {
          fuse_reply_write(req, size);
        } else {
          fuse_reply_err(req, why_now == Parking::Why::kInterrupted ? EINTR : ENOTCONN);
        }
      },
      nullptr, static_cast<std::size_t>(wait_hung)));
}

}  // namespace lmdbio::slowfs
