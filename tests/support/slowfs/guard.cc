#include "tests/support/slowfs/guard.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

namespace lmdbio::slowfs {
namespace {

[[noreturn]] void guard(int lifeline, const std::string& mountpoint, const std::string& fsname) {
  ::setsid();
  if (::dup2(lifeline, 0) != 0) ::_exit(1);
  ::close_range(1, ~0u, 0);
  if (::open("/dev/null", O_RDWR) != 1 || ::dup(1) != 2 || ::chdir("/") != 0) ::_exit(1);
  char c;
  ssize_t n;
  do n = ::read(0, &c, 1);
  while (n > 0 || (n < 0 && errno == EINTR));
  ::_exit(detach(mountpoint, fsname) ? 0 : 1);
}

}  // namespace

UniqueFd start_guard(const std::string& mountpoint, const std::string& fsname) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return UniqueFd();
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) guard(read_end.get(), mountpoint, fsname);
    ::_exit(grandchild > 0 ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0) return UniqueFd();
  return write_end;
}

bool detach(const std::string& mountpoint, const std::string& fsname) {
  if (!is_mounted(fsname) || ::umount2(mountpoint.c_str(), MNT_DETACH) == 0) return true;
  const pid_t child = ::fork();
  if (child == 0) {
    ::execlp("fusermount3", "fusermount3", "-u", "-q", "-z", "--", mountpoint.c_str(), nullptr);
    ::_exit(1);
  }
  int status = 0;
  if (child > 0) ::waitpid(child, &status, 0);
  return !is_mounted(fsname);
}

bool is_mounted(const std::string& fsname) {
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);)
    if (line.find(" " + fsname + " ") != line.npos) return true;
  return false;
}

}  // namespace lmdbio::slowfs
