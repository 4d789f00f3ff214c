// A directory in memory for the file under test, named by the process.  Whoever dies of a signal leaves it to
// the next one.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

namespace lmdbio::test {

class Scratch {
 public:
  /// Throws std::system_error.
  Scratch() : dir_(prefix() + std::to_string(::getpid())) {
    remove_left_behind();
    if (::mkdir(dir_.c_str(), 0700) != 0) fail();
    path_ = dir_ + "/data.mdb";
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    copy_fd_ = ::memfd_create("copy", MFD_CLOEXEC);
    if (fd_ < 0 || copy_fd_ < 0) fail();
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
    if (fd_ >= 0) ::close(fd_);
    if (copy_fd_ >= 0) ::close(copy_fd_);
  }
  /// The file is `size` bytes at `data`.  False: no room.
  bool write(const std::uint8_t* data, std::size_t size) const noexcept {
    return ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, data, size, 0) == static_cast<ssize_t>(size);
  }
  const char* path() const noexcept { return path_.c_str(); }
  int copy_fd() const noexcept { return copy_fd_; }  ///< for copies of the file

 private:
  [[noreturn]] void fail() const { throw std::system_error(errno, std::generic_category(), dir_); }
  static std::string prefix() {
    return std::filesystem::is_directory("/dev/shm") ? "/dev/shm/lmdbio_fuzz_" : "/tmp/lmdbio_fuzz_";
  }
  static void remove_left_behind() {
    const std::string mine = prefix();
    std::error_code ignored;
    for (const auto& e :
         std::filesystem::directory_iterator(std::filesystem::path(mine).parent_path(), ignored)) {
      const std::string path = e.path();
      if (!path.starts_with(mine)) continue;
      const long pid = std::strtol(path.c_str() + mine.size(), nullptr, 10);
      if (pid > 0 && (pid == ::getpid() || (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH)))
        std::filesystem::remove_all(path, ignored);
    }
  }

  std::string dir_, path_;
  int fd_ = -1, copy_fd_ = -1;
};

}  // namespace lmdbio::test
