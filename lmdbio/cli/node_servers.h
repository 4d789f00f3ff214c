// The servers that `lmdbio run --nodes` starts, one on each node of the job.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::cli {

/// Returns the words of `launcher`, separated by blanks.  If it is empty, returns the command that starts one
/// process on each node of this job: srun within a job of Slurm, otherwise mpirun.
std::vector<std::string> launcher_words(const std::string& launcher);

/// An MPI job of servers (docs/servers.md).
class NodeServers {
 public:
  /// Starts the servers with these words before the server's own, and waits until all of them serve.  Throws
  /// Failure if they end before that, or after 120 s.
  explicit NodeServers(const std::vector<std::string>& launcher);
  NodeServers(const NodeServers&) = delete;
  NodeServers& operator=(const NodeServers&) = delete;
  /// Ends the servers by SIGUSR1.  If the launcher has not ended after 10 s, kills its process group.
  ~NodeServers() { stop(); }

 private:
  void wait_until_ready(const std::string& program);
  void stop() noexcept;

  pid_t launcher_ = -1;
  UniqueFd said_;  ///< what the servers print
};

}  // namespace lmdbio::cli
