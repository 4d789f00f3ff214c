// What the subcommands of `lmdbio` share: how they are added, how they fail, exit statuses.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lmdbio::cli {

enum ExitStatus : int {
  kClean = 0,
  kFindings = 1,  ///< of `check`
  kUnusable = 2,  ///< usage, or a file that cannot be read
  kNotExecutable = 126,
  kNotFound = 127,  ///< these two as a shell has them
};

/// Ends the command: one line on standard error, and the status.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& what, int status = kUnusable)
      : std::runtime_error(what), status_(status) {}
  int status() const noexcept { return status_; }

 private:
  int status_;
};

/// Each adds one subcommand to `app`.  When it has run, `status` is the exit status; it may throw Failure and
/// bad_alloc.
void add_info(CLI::App& app, int& status);
void add_check(CLI::App& app, int& status);
void add_index(CLI::App& app, int& status);
void add_config(CLI::App& app, int& status);
void add_ps(CLI::App& app, int& status);
void add_stats(CLI::App& app, int& status);
/// `command`: the program and its arguments, which are not for CLI11.  Lives as long as `app`.
void add_run(CLI::App& app, const std::vector<std::string>& command, int& status);
/// Where in `argv` the options of `run` end and "--" or the program stands; argc for other subcommands.
int run_options_end(int argc, char** argv);

}  // namespace lmdbio::cli
