#include "lmdbio/cli/node_servers.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "lmdbio/base/futex.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/program.h"
#include "lmdbio/serve/ready.h"

namespace lmdbio::cli {

namespace {

/// How long the servers may take to start, to end, and to end after SIGTERM, in ns.
constexpr std::int64_t kStartLimit = 120'000'000'000, kEndLimit = 10'000'000'000, kTermLimit = 2'000'000'000;

/// Calls `done` until it returns true, or `limit` ns have passed.  Returns what it has returned last.
template <class Done>
bool wait_for(std::int64_t limit, Done&& done) noexcept {
  for (const std::int64_t begun = now_ns(); now_ns() - begun < limit; (void)::usleep(10'000))
    if (done()) return true;
  return done();
}

std::string text_of(int status) {
  return WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status))
                             : "has ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

std::vector<std::string> launcher_words(const std::string& launcher) {
  std::vector<std::string> words;
  std::istringstream in(launcher);
  for (std::string word; in >> word;) words.push_back(word);
  if (!words.empty()) return words;
  const char* const nodes = std::getenv("SLURM_JOB_NUM_NODES");
  if (nodes != nullptr)
    return {"srun", "--overlap", "--ntasks-per-node=1", "--cpu-bind=none", std::string("--ntasks=") + nodes};
  return {"mpirun", "--map-by", "ppr:1:node", "--bind-to", "none"};
}

NodeServers::NodeServers(const std::vector<std::string>& launcher) {
  const std::string file = find_program(launcher[0]);
  std::vector<std::string> words = launcher;
  words.insert(words.end(), {server_program(), "--announce"});
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Failure(std::string("pipe: ") + ::strerrordesc_np(errno));
  said_ = UniqueFd(ends[0]);
  UniqueFd out(ends[1]);
  const pid_t self = ::getpid();
  launcher_ = ::fork();
  if (launcher_ < 0) throw Failure(std::string("fork: ") + ::strerrordesc_np(errno));
  if (launcher_ == 0) {
    (void)::setpgid(0, 0);  // signals of the terminal are for the program; the servers end after it
    (void)::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != self) ::_exit(kNotExecutable);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) (void)::dup2(null, STDIN_FILENO);
    (void)::dup2(out.get(), STDOUT_FILENO);
    (void)::execv(file.c_str(), argv.data());
    ::_exit(errno == ENOENT ? kNotFound : kNotExecutable);
  }
  (void)::setpgid(launcher_, launcher_);  // also here, since it is not known who runs first
  out.reset();                            // else the end of the servers would not be seen
  try {
    wait_until_ready(launcher[0]);
  } catch (...) {
    stop();
    throw;
  }
}

void NodeServers::wait_until_ready(const std::string& program) {
  const std::int64_t begun = now_ns();
  std::string text;
  while (text.find(serve::kReady) == std::string::npos) {
    const std::int64_t left = kStartLimit - (now_ns() - begun);
    pollfd said{said_.get(), POLLIN, 0};
    const int found = left > 0 ? ::poll(&said, 1, static_cast<int>(left / 1'000'000) + 1) : 0;
    if (found == 0) throw Failure("--nodes: the servers have not started within 120 s");
    if (found < 0) continue;  // a signal
    char more[256];
    if (const ssize_t n = ::read(said_.get(), more, sizeof more); n > 0) {
      text.append(more, static_cast<std::size_t>(n));
      continue;
    }
    int status = 0;
    const pid_t launcher = launcher_;
    if (!wait_for(left, [&] { return ::waitpid(launcher, &status, WNOHANG) != 0; })) continue;
    throw Failure("--nodes: the servers have not started: " + program + " " + text_of(status));
  }
}

void NodeServers::stop() noexcept {
  if (launcher_ < 0) return;
  // A script may end before the launcher that it has started.
  const auto is_gone = [this] {
    (void)::waitpid(launcher_, nullptr, WNOHANG);
    return ::kill(-launcher_, 0) != 0;
  };
  const auto end = [&](pid_t whom, int signal, std::int64_t limit) {
    if (is_gone()) return;
    (void)::kill(whom, signal);
    (void)wait_for(limit, [&] { return ::kill(launcher_, 0) != 0 || is_gone(); });
  };
  // mpirun and srun pass SIGUSR1 on to the servers.  After SIGTERM, they soon kill them by SIGKILL.
  end(launcher_, SIGUSR1, kEndLimit);
  end(-launcher_, SIGTERM, kTermLimit);
  end(-launcher_, SIGKILL, kTermLimit);
  launcher_ = -1;
}

}  // namespace lmdbio::cli
