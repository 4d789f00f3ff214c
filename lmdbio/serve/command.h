// The command that a server runs beside itself, on its node.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::serve {

/// A child process that runs a command.  The process is made before MPI starts, since some MPI libraries do
/// not allow a fork afterwards, and waits until run().
class Command {
 public:
  /// Makes the process.  Throws std::system_error.
  explicit Command(std::vector<std::string> words);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  /// Ends the process by SIGTERM if it still runs, and waits for its end.
  ~Command();

  /// Starts the command.  Its environment has no variable of the MPI job, so that it may start a job of its
  /// own.
  void run() noexcept;
  /// Returns the exit status if the command has ended: as a shell has it, 128 + N after signal N.
  std::optional<int> ended() noexcept;

 private:
  pid_t pid_ = -1;
  UniqueFd go_;  ///< a byte starts the command; its end ends the process
  std::optional<int> status_;
};

}  // namespace lmdbio::serve
