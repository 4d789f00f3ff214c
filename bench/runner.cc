#include "bench/runner.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "bench/common.h"

extern char** environ;

namespace lmdbio::bench {
namespace {

std::string first_line(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

/// Returns the value of a line "name: value" of a file such as /proc/cpuinfo.
std::string field(const std::string& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) != 0) continue;
    const std::size_t at = line.find(':');
    if (at == std::string::npos) continue;
    const std::size_t start = line.find_first_not_of(" \t", at + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

}  // namespace

Worker::Worker(const WorkerSpec& spec) : label_(spec.label) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) die_errno("socketpair");
  timeval limit{600, 0};
  setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  fd_ = pair[0];
  if (pair[1] == kWorkerFd) {  // dup2 onto itself would keep the close-on-exec flag
    pair[1] = fcntl(pair[1], F_DUPFD_CLOEXEC, kWorkerFd + 1);
    if (pair[1] < 0) die_errno("fcntl");
    close(kWorkerFd);
  }

  std::vector<char*> argv;
  for (const std::string& a : spec.argv) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const std::string preload = "LD_PRELOAD=" + spec.preload;
  std::vector<char*> env;
  for (char** e = environ; *e != nullptr; ++e)
    if (std::strncmp(*e, "LD_PRELOAD=", 11) != 0) env.push_back(*e);
  if (!spec.preload.empty()) env.push_back(const_cast<char*>(preload.c_str()));
  env.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], kWorkerFd);
  const int rc = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  close(pair[1]);
  if (rc != 0) die("cannot start %s: %s", argv[0], std::strerror(rc));
}

Worker::~Worker() {
  if (fd_ >= 0) close(fd_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

Worker::Worker(Worker&& other) noexcept
    : label_(std::move(other.label_)),
      pid_(std::exchange(other.pid_, -1)),
      fd_(std::exchange(other.fd_, -1)) {}

Reply Worker::call(const Command& command) {
  Reply reply;
  if (send(fd_, &command, sizeof command, MSG_NOSIGNAL) < 0) die("worker '%s' is gone", label_.c_str());
  const ssize_t n = recv(fd_, &reply, sizeof reply, 0);
  if (n != static_cast<ssize_t>(sizeof reply))
    die("worker '%s' %s", label_.c_str(), n < 0 ? "does not answer" : "is gone");
  if (reply.wrong != 0)
    die("worker '%s': %llu of %llu calls returned something else than they must", label_.c_str(),
        static_cast<unsigned long long>(reply.wrong), static_cast<unsigned long long>(reply.ops));
  return reply;
}

std::vector<std::size_t> round_order(std::size_t n, std::size_t round) {
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = (i + round) % n;
  if (round / n % 2 == 1) std::reverse(order.begin(), order.end());
  return order;
}

int worker_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return -1;
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0; --cpu)
    if (CPU_ISSET(static_cast<unsigned>(cpu), &set)) return cpu;
  return -1;
}

void keep_off_cpu(int cpu) {
  cpu_set_t set;
  if (cpu < 0 || sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < 2) return;
  CPU_CLR(static_cast<unsigned>(cpu), &set);
  sched_setaffinity(0, sizeof set, &set);
}

nlohmann::json machine_facts() {
  nlohmann::json facts;
  facts["cpu"] = field("/proc/cpuinfo", "model name");
  facts["cpus"] = sysconf(_SC_NPROCESSORS_ONLN);
  facts["hypervisor"] = field("/proc/cpuinfo", "flags").find(" hypervisor") != std::string::npos;
  for (int i = 0;; ++i) {
    const std::string dir = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string size = first_line(dir + "size");
    if (size.empty()) break;
    facts["caches"]["L" + first_line(dir + "level") + " " + first_line(dir + "type")] = size;
  }
  facts["memory"] = field("/proc/meminfo", "MemTotal");
  facts["transparent_hugepage"] = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  utsname name{};
  if (uname(&name) == 0) facts["kernel"] = name.release;
  facts["system"] =
      first_line("/etc/debian_version").empty() ? "" : "Debian " + first_line("/etc/debian_version");
  facts["load_average"] = first_line("/proc/loadavg");
  facts["compiler"] = __VERSION__;
  return facts;
}

std::uint64_t last_level_cache_bytes() {
  for (const int level : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
    if (const long bytes = sysconf(level); bytes > 0) return static_cast<std::uint64_t>(bytes);
  return 32u << 20;
}

std::string program_dir() { return std::filesystem::read_symlink("/proc/self/exe").parent_path().string(); }

std::string default_library() {
  return (std::filesystem::path(program_dir()).parent_path() / "lib" / "liblmdbio.so").string();
}

void write_json(const std::string& file, const nlohmann::json& value) {
  std::ofstream out(file);
  out << value.dump(1) << '\n';
  if (!out.flush()) die("cannot write %s", file.c_str());
}

}  // namespace lmdbio::bench
