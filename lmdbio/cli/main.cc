// lmdbio: runs programs with LMDBIO, and inspects databases.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "lmdbio/cli/command.h"

int main(int argc, char** argv) {
  using namespace lmdbio::cli;
  CLI::App app("LMDBIO speeds up programs that read LMDB databases, without changes to the programs",
               "lmdbio");
  app.set_version_flag("--version", std::string("lmdbio " LMDBIO_VERSION));
  app.require_subcommand(1);
  app.footer(
      "Exit status 2: usage error, or a file that cannot be read.  See also lmdbio COMMAND --help and "
      "lmdbio(1).");
  int status = kClean;
  const int end =
      std::min({run_options_end(argc, argv), files_options_end(argc, argv), serve_options_end(argc, argv)});
  std::vector<std::string> command(argv + end, argv + argc);
  if (!command.empty() && command[0] == "--") command.erase(command.begin());
  add_run(app, command, status);
  add_info(app, status);
  add_check(app, status);
  add_diff(app, status);
  add_index(app, status);
  add_cache(app, status);
  add_files_commands(app, argc, argv);
  add_config(app, status);
  add_ps(app, status);
  add_serve(app, argc, argv);
  add_stats(app, status);
  return parse(app, end, argv, status);
}
