// Declarations that the subcommands of `lmdbio` share: how to add them, how they fail, and exit statuses.
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
  kFindings = 1,  ///< of `check`, `diff` and `cache verify`; `cache warm` and `export` are not complete;
                  ///< `cat` has no key
  kUnusable = 2,  ///< usage error, or a file that cannot be read
  kNotExecutable = 126,
  kNotFound = 127,  ///< 126 and 127 have the same meaning as in a shell
};

/// Ends the command with one line on standard error and an exit status.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& what, int status = kUnusable)
      : std::runtime_error(what), status_(status) {}
  int status() const noexcept { return status_; }

 private:
  int status_;
};

/// Each function adds one subcommand to `app`.  After the subcommand has run, `status` is the exit status.
/// A subcommand may throw Failure and bad_alloc.
void add_info(CLI::App& app, int& status);
void add_check(CLI::App& app, int& status);
void add_diff(CLI::App& app, int& status);
void add_index(CLI::App& app, int& status);
void add_cache(CLI::App& app, int& status);
void add_config(CLI::App& app, int& status);
void add_ps(CLI::App& app, int& status);
void add_stats(CLI::App& app, int& status);
/// Adds the subcommands of lmdbio-files and lmdbio-fuse, programs of their own, because they need
/// liblmdbio.so and libfuse3.  They get all arguments as they are in `argv`.
void add_files_commands(CLI::App& app, int argc, char** argv);
/// Adds `lmdbio serve`, in the same way.
void add_serve(CLI::App& app, int argc, char** argv);
/// Returns 2 for these subcommands, whose arguments are not parsed here.  Returns argc for others.
int files_options_end(int argc, char** argv);
int serve_options_end(int argc, char** argv);
/// Subcommands of lmdbio-files.
void add_ls(CLI::App& app, int& status);
void add_cat(CLI::App& app, int& status);
void add_export(CLI::App& app, int& status);
void add_pack(CLI::App& app, int& status);
/// `command` has the program and its arguments, which CLI11 does not parse.  It must live as long as `app`.
void add_run(CLI::App& app, const std::vector<std::string>& command, int& status);
/// Returns the index in `argv` of "--" or of the program, where the options of `run` end.  Returns argc for
/// other subcommands.
int run_options_end(int argc, char** argv);

/// Parses the arguments, runs the subcommand, and prints errors.  Returns the exit status of the process.
int parse(CLI::App& app, int argc, char** argv, const int& status);

}  // namespace lmdbio::cli
