// Processes that join node tables, for tests: forked, told when to go on, killed.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/node/table.h"

namespace lmdbio::node {

/// Tables and chunk files are counted, and any process of the user removes dead ones: nobody else is to be in
/// this program's IPC namespace, nor to have its /dev/shm.  Where none of its own can be had, these tests
/// must run alone.
inline bool unshare_namespaces() {
  const auto map = [](const char* file, unsigned id) { std::ofstream(file) << id << ' ' << id << " 1\n"; };
  const unsigned user = ::geteuid(), group = ::getegid();
  if (::unshare(CLONE_NEWIPC | CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWIPC | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny\n";
    map("/proc/self/uid_map", user);
    map("/proc/self/gid_map", group);
  }
  // In a chroot, / is no mount.
  const auto make_private = [](const char* where, unsigned long flags) {
    return ::mount("none", where, nullptr, MS_PRIVATE | flags, nullptr) == 0;
  };
  return (make_private("/", MS_REC) || make_private("/dev/shm", 0) || make_private("/dev", 0)) &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=512m") == 0;
}
inline const bool own_namespaces = unshare_namespaces();

inline constexpr std::uint64_t kChunk = 4 << 20, kWindow = std::uint64_t{1} << 30;

/// Of no file that there is; another one for each test and run.
inline TableIdentity some_file() {
  static std::random_device random;
  return {~std::uint64_t{0}, std::uint64_t{random()} << 32 | random(), kChunk};
}

inline std::shared_ptr<Table> join(const TableIdentity& file) {
  Table::lock_registry();
  Status why;
  std::shared_ptr<Table> joined = Table::join(file, kWindow, why);
  Table::unlock_registry();
  EXPECT_EQ(joined == nullptr, !why.ok());
  return joined;
}

/// The segments of tables that this user has.
inline std::vector<SegmentFacts> tables() {
  std::vector<SegmentFacts> found;
  for (const SegmentFacts& s : own_segments())
    if (is_table_key(s.key) && chunks_in(s.bytes) != 0) found.push_back(s);
  return found;
}

/// Asks until it is true, for a minute at most.  For what takes time, and tells nobody.
template <class Condition>
bool comes_true(Condition&& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Whether the first thread of a process waits in a system call.
inline bool is_asleep(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  stat.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  std::string state;
  return stat >> state && state == "S";
}

/// A process that says when it has done its part, and then goes on as it is told.
class Other {
 public:
  /// `part` runs with the table of `file` joined; then the process waits, and leaves the table.
  Other(const TableIdentity& file, const std::function<void(Table&)>& part,
        const std::function<void(Table&)>& rest = {}) {
    int to_us[2], to_it[2];
    if (::pipe(to_us) != 0 || ::pipe(to_it) != 0) return;
    Table::lock_registry();
    pid_ = ::fork();
    if (pid_ == 0) {
      Table::forget_all();
      Table::unlock_registry();
      ::close(to_us[0]);
      ::close(to_it[1]);
      std::shared_ptr<Table> table = join(file);
      if (table == nullptr) ::_exit(2);
      part(*table);
      char c = 'x';
      if (::write(to_us[1], &c, 1) != 1 || ::read(to_it[0], &c, 1) < 0) ::_exit(3);
      if (rest) rest(*table);
      table.reset();
      ::_exit(0);
    }
    Table::unlock_registry();
    ::close(to_us[1]);
    ::close(to_it[0]);
    from_ = to_us[0];
    to_ = to_it[1];
    char c;
    ready_ = ::read(from_, &c, 1) == 1;
  }
  ~Other() {
    if (pid_ > 0) (void)end();
    ::close(from_);
  }
  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }
  void signal(int sig) const {
    ::kill(pid_, sig);
    if (sig != SIGSTOP) return;
    int status;
    (void)::waitpid(pid_, &status, WUNTRACED);
  }
  void go_on() {
    if (to_ < 0) return;
    (void)::signal(SIGPIPE, SIG_IGN);  // it may have been killed
    (void)!::write(to_, "x",
                   1);  // processes that were made later have the pipe as well: closing it tells nothing
    ::close(to_);
    to_ = -1;
  }
  int kill() {
    ::kill(pid_, SIGKILL);
    return end();
  }
  int end() {
    go_on();
    int status = -1;
    (void)::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int from_ = -1, to_ = -1;
  bool ready_ = false;
};

}  // namespace lmdbio::node
