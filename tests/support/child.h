// A part of a test in a process of its own: for state that a process has once.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace lmdbio::testing {

struct ChildResult {
  int exit_code = -1;  // -1: ended by a signal, or could not be started
  std::string err;     // what it wrote to standard error
};

/// Forks; the child runs `body()` and exits with the int that it returns.  The caller has one thread.
template <class Body>
ChildResult in_child(Body&& body) {
  ChildResult result;
  int ends[2];
  if (::pipe(ends) != 0) return result;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ::_exit(body());
  }
  ::close(ends[1]);
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
    if (n > 0) result.err.append(buffer, static_cast<std::size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR)) break;
  }
  ::close(ends[0]);
  int status = 0;
  if (pid > 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status))
    result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace lmdbio::testing
