// lmdbio: runs programs with LMDBIO, and looks into databases.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "lmdbio/cli/command.h"

int main(int argc, char** argv) {
  using namespace lmdbio::cli;
  CLI::App app("LMDBIO: faster reading of LMDB databases by programs that stay as they are", "lmdbio");
  app.set_version_flag("--version", std::string("lmdbio " LMDBIO_VERSION));
  app.require_subcommand(1);
  app.footer(
      "Exit status 2: usage, or a file that cannot be read.  lmdbio COMMAND --help tells more; lmdbio(1).");
  int status = kClean;
  const int end = run_options_end(argc, argv);
  std::vector<std::string> command(argv + end, argv + argc);
  if (!command.empty() && command[0] == "--") command.erase(command.begin());
  add_run(app, command, status);
  add_info(app, status);
  add_check(app, status);
  add_index(app, status);
  add_config(app, status);
  add_ps(app, status);
  try {
    app.parse(end, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kClean : kUnusable;
  } catch (const Failure& e) {
    std::fprintf(stderr, "lmdbio: %s\n", e.what());
    return e.status();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "lmdbio: out of memory\n");
    return kUnusable;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "lmdbio: %s\n", e.what());
    return kUnusable;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "lmdbio: cannot write to standard output\n");
    return kUnusable;
  }
  return status;
}
