// lmdbio_slowfs [options] SOURCE_DIR MOUNTPOINT: a directory as a slow and faulty file system would show it.
//
// In the foreground.  Prints "ready" and a newline on standard output when the mount can be used.  Unmounts
// itself (lazily: open files give ENOTCONN) on SIGTERM, SIGINT and SIGHUP, and when its owner ends: by
// default the process that started it, see --owner.  If it is itself killed, a process left for that purpose
// unmounts.  Errors are one line on standard error.
// Exit status:
//   0   unmounted
//   77  FUSE, or something else that was asked for, is missing or not permitted here
//   1   any other error
//   2   usage
//
// While it runs, below MOUNTPOINT/.slowfs (not listed; a directory of that name in the source is hidden):
//   counters  JSON, as it was at open
//   settings  JSON
//   control   takes name=value lines, all of one write(2) at once.  If one is wrong: EINVAL, a line on
//             standard error, nothing changed.  Names: the options that --help calls changeable, with _ for
//             -; and actions:
//               reset=1      counters to zero, numbers of requests from 1 again (before settings change)
//               release=1    those who hang go on
//               wait_hung=N  the write returns when N requests hang
// It is a control file and not a socket so that a shell, and a process of another root or user, can use it;
// its requests are never delayed, and waiting requests occupy no thread, so it answers while everything else
// hangs.
//
// What is not as on a disk:
// - flock(2) and leases are the kernel's, local to the mount.  fcntl locks are kept by this program, for all
//   processes that use the mount, not against those that use the source; no EDEADLK; locks of open file
//   descriptions (F_OFD_SETLK) end when the last descriptor of the file is closed.
// - Through the page cache, a failed read-ahead is asked for again when the page is needed (fail_at alone may
//   go unnoticed), and a short answer means the end of the file: the rest reads as zeros, and the file seems
//   shorter.
// - With O_DIRECT, the kernel reads through the page cache what a short answer lacked, sends all requests of
//   a read at once, and waits for them even if the reader is killed.  With raw_direct it shows short reads,
//   sends one request after the other, and can be killed; but that descriptor cannot be mapped.  With no_mmap
//   all reads of the file are like that.
// - O_DIRECT set by fcntl(F_SETFL) is not refused.
// - A hanging read ends with EINTR if its process is being killed, but not if it got another signal before.
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/slowfs/fs.h"
#include "tests/support/slowfs/guard.h"

namespace lmdbio::slowfs {
namespace {

constexpr int kFailed = 1, kUsage = 2, kMissing = 77;

struct Arguments {
  std::string source, mountpoint, bandwidth_group, trace;
  StartOptions start;
  Settings settings;
  bool allow_other = ::geteuid() == 0;
  pid_t owner = ::getppid();
};

int complain(int status, const std::string& what) {
  std::fprintf(stderr, "lmdbio_slowfs: %s\n", what.c_str());
  return status;
}

std::string errno_text(const std::string& what) { return what + ": " + std::strerror(errno); }

// A signal that is given once and seen by all.
class Event {
 public:
  void set() const {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(fd_.get(), &one, sizeof one));
  }
  int fd() const { return fd_.get(); }

 private:
  const UniqueFd fd_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

// Answers requests until told to stop or unmounted.  libfuse's own loop is not used: to stop it takes a
// request, and a process that makes requests to itself cannot die while one is open.
void answer_requests(fuse_session* session, const Event& initialised, const Event& stop) {
  fuse_buf buffer{};
  pollfd fds[] = {{fuse_session_fd(session), POLLIN, 0}, {stop.fd(), POLLIN, 0}};
  for (;;) {
    if (::poll(fds, std::size(fds), -1) < 0 && errno != EINTR) break;
    if (fds[1].revents != 0) break;
    const int n = fuse_session_receive_buf(session, &buffer);
    if (n == -EAGAIN || n == -EINTR) continue;  // another thread was faster
    if (n <= 0) break;
    fuse_session_process_buf(session, &buffer);
    initialised.set();  // the first request, that the others wait for, has been answered
  }
  stop.set();
  std::free(buffer.mem);
}

// The device number of what is mounted with source `fsname`, learnt without a request.
bool device_of(const std::string& fsname, dev_t& dev) {
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    unsigned major_number, minor_number;
    if (line.find(" " + fsname + " ") == line.npos ||
        std::sscanf(line.c_str(), "%*u %*u %u:%u", &major_number, &minor_number) != 2)
      continue;
    dev = ::makedev(major_number, minor_number);
    return true;
  }
  return false;
}

int serve(fuse_session* session, FileSystem& fs, const std::string& mountpoint, const std::string& fsname,
          const UniqueFd& signals, const UniqueFd& owner) {
  constexpr int kThreads = 8;  // none of them waits for anything but the source
  const int fd = fuse_session_fd(session);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  Event initialised, stop;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] { answer_requests(session, initialised, stop); });
  int status = 0;
  pollfd fds[] = {{signals.get(), POLLIN, 0},
                  {owner.get(), POLLIN, 0},
                  {stop.fd(), POLLIN, 0},
                  {initialised.fd(), POLLIN, 0}};
  for (;;) {
    if (::poll(fds, std::size(fds), -1) < 0 && errno == EINTR) continue;
    if ((fds[0].revents | fds[1].revents | fds[2].revents) != 0) break;
    fds[3].fd = -1;
    dev_t dev = 0;
    std::string why;
    if (!device_of(fsname, dev)) why = fsname + ": not in /proc/self/mountinfo";
    if (!why.empty() || !fs.mounted(dev, why)) {
      status = complain(kMissing, why);
      break;
    }
    std::puts("ready");
    std::fflush(stdout);
  }
  stop.set();
  for (std::thread& t : threads) t.join();
  fs.end();
  fuse_session_unmount(session);
  if (!detach(mountpoint, fsname)) return complain(kFailed, mountpoint + ": cannot be unmounted");
  return status;
}

int run(const Arguments& a) {
  UniqueFd source(::open(a.source.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!source) return complain(kFailed, errno_text(a.source));
  char mountpoint[PATH_MAX];
  struct stat st;
  if (::realpath(a.mountpoint.c_str(), mountpoint) == nullptr || ::stat(mountpoint, &st) != 0)
    return complain(kFailed, errno_text(a.mountpoint));
  if (!S_ISDIR(st.st_mode)) return complain(kFailed, a.mountpoint + ": not a directory");
  if (!UniqueFd(::open("/dev/fuse", O_RDWR | O_CLOEXEC))) return complain(kMissing, errno_text("/dev/fuse"));

  UniqueFd trace;
  if (!a.trace.empty()) {
    trace.reset(::open(a.trace.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!trace) return complain(kFailed, errno_text(a.trace));
  }
  UniqueFd owner;
  if (a.owner != 0) {
    owner.reset(static_cast<int>(::syscall(SYS_pidfd_open, a.owner, 0)));
    if (!owner)
      return complain(errno == ENOSYS ? kMissing : kFailed, errno_text("owner " + std::to_string(a.owner)));
  }
  ::umask(0);
  rlimit files;
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  sigset_t stops;
  sigemptyset(&stops);
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stops, s);
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  const UniqueFd signals(::signalfd(-1, &stops, SFD_CLOEXEC));
  if (!signals) return complain(kFailed, errno_text("signalfd"));

  const std::string fsname = "lmdbio_slowfs:" + std::to_string(::getpid());
  const UniqueFd lifeline = start_guard(mountpoint, fsname);
  if (!lifeline) return complain(kFailed, errno_text("fork"));

  TokenBucket bucket(a.bandwidth_group);
  if (a.settings.bandwidth >= 0) bucket.set_rate(static_cast<std::uint64_t>(a.settings.bandwidth));
  FileSystem fs(std::move(source), a.start, a.settings, bucket, std::move(trace));
  std::string options = "fsname=" + fsname + ",subtype=slowfs,default_permissions";
  if (a.allow_other) options += ",allow_other";
  if (a.start.max_read != 0) options += ",max_read=" + std::to_string(a.start.max_read);
  char program[] = "lmdbio_slowfs", dash_o[] = "-o";
  char* argv[] = {program, dash_o, options.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(3, argv);
  fuse_session* const session = fuse_session_new(&args, &FileSystem::ops(), sizeof(fuse_lowlevel_ops), &fs);
  int status = kFailed;
  if (session == nullptr) {
    complain(kFailed, "no FUSE session");
  } else if (fuse_session_mount(session, mountpoint) != 0) {
    status = complain(kMissing, std::string(mountpoint) + ": mounting is not possible here");
  } else {
    status = serve(session, fs, mountpoint, fsname, signals, owner);
  }
  fs.end();
  if (session != nullptr) fuse_session_destroy(session);
  fuse_opt_free_args(&args);
  return status;
}

int parse_and_run(int argc, char** argv) {
  Arguments a;
  CLI::App app{"A directory as a slow and faulty file system would show it."};
  app.add_option("source", a.source, "directory")->required();
  app.add_option("mountpoint", a.mountpoint, "directory")->required();
  const std::string later = "can also be changed while it runs";
  for (const SettingHelp& h : setting_helps()) {
    std::string option = "--" + h.name;
    for (char& c : option)
      if (c == '_') c = '-';
    app.add_option_function<std::string>(
           option,
           [&a, name = h.name](const std::string& value) {
             std::string why;
             if (!a.settings.set(name, value, why)) throw CLI::ValidationError(why);
           },
           h.help)
        ->group(later);
  }
  app.add_option("--bandwidth-group", a.bandwidth_group,
                 "file that the mounts which share the bandwidth name");
  app.add_option("--trace", a.trace, "file to which a line of JSON is added for each read request (trace.h)");
  app.add_option("--max-read", a.start.max_read, "largest read request, bytes, a multiple of 4096")
      ->check(CLI::Range(4096, 1 << 20));
  app.add_option("--max-readahead", a.start.max_readahead,
                 "kernel read-ahead at most, bytes (it has 128 KiB)")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--max-background", a.start.max_background,
                 "asynchronous requests in flight, 64 if not given")
      ->check(CLI::Range(1, 65535));
  app.add_option("--attr-timeout", a.start.attr_timeout,
                 "seconds that the kernel may believe names and attributes, 0 if not given")
      ->check(CLI::Range(0, 1 << 30));
  app.add_flag("--kernel-locks", a.start.kernel_locks,
               "fcntl locks are the kernel's: no lock is asked for here");
  app.add_flag("--remote-changes", a.start.remote_changes,
               "drop cached pages when the source's modification time has changed");
  app.add_flag("--allow-other,!--no-allow-other", a.allow_other, "for all users (if root: given)");
  app.add_option("--owner", a.owner, "process that must live, 0: none; the parent if not given")
      ->check(CLI::Range(0, INT_MAX));
  try {
    app.parse(argc, argv);
    if (a.start.max_read % 4096 != 0) throw CLI::ValidationError("--max-read: not a multiple of 4096");
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
  return run(a);
}

}  // namespace
}  // namespace lmdbio::slowfs

int main(int argc, char** argv) {
  try {
    return lmdbio::slowfs::parse_and_run(argc, argv);
  } catch (const std::exception& e) {
    return lmdbio::slowfs::complain(lmdbio::slowfs::kFailed, e.what());
  }
}
