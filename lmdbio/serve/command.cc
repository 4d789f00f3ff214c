#include "lmdbio/serve/command.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

namespace lmdbio::serve {

namespace {

constexpr int kNotExecutable = 126, kNotFound = 127;
/// Prefixes of variables by which the ranks of a job find each other.
constexpr std::array<std::string_view, 5> kOfJobs = {"OMPI_", "PMIX_", "PMI_", "ORTE_", "PRTE_"};

/// Settings of Open MPI are for each job that the command starts.
bool is_of_job(std::string_view variable) {
  return !variable.starts_with("OMPI_MCA_") && !variable.starts_with("OMPI_ALLOW_") &&
         std::any_of(kOfJobs.begin(), kOfJobs.end(),
                     [&](std::string_view p) { return variable.starts_with(p); });
}

}  // namespace

Command::Command(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  std::vector<char*> env;
  for (char** e = environ; *e != nullptr; ++e)
    if (!is_of_job(*e)) env.push_back(*e);
  env.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  (void)::signal(SIGCHLD, SIG_DFL);  // else the exit status is lost
  const UniqueFd wait(ends[0]);
  go_ = UniqueFd(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGTERM);
    go_.reset();
    char go = 0;
    if (::read(wait.get(), &go, 1) != 1) ::_exit(kNotExecutable);  // the server has ended
    (void)::execvpe(argv[0], argv.data(), env.data());
    std::fprintf(stderr, "lmdbio serve: %s: %s\n", argv[0], std::strerror(errno));
    ::_exit(errno == ENOENT ? kNotFound : kNotExecutable);
  }
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
}

Command::~Command() {
  go_.reset();
  if (status_) return;
  (void)::kill(pid_, SIGTERM);
  (void)::waitpid(pid_, nullptr, 0);
}

void Command::run() noexcept {
  (void)!::write(go_.get(), "", 1);
  go_.reset();
}

std::optional<int> Command::ended() noexcept {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_)
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return status_;
}

}  // namespace lmdbio::serve
