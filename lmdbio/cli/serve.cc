// lmdbio serve: starts the server of a node, which is a program of its own because it needs MPI.
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/program.h"

namespace lmdbio::cli {

std::string server_program() { return sibling_program("lmdbio-serve", "lmdbio-mpi"); }

int serve_options_end(int argc, char** argv) {
  return argc > 1 && std::string_view(argv[1]) == "serve" ? 2 : argc;
}

void add_serve(CLI::App& app, int argc, char** argv) {
  CLI::App* const serve = app.add_subcommand(
      "serve",
      "serves the programs of a node with bytes that other nodes have read; see lmdbio serve --help");
  serve->set_help_flag();
  serve->callback([argc, argv] { execute(server_program(), {argv + 2, argv + argc}); });
}

}  // namespace lmdbio::cli
