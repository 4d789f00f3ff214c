// lmdbio serve: starts the server of a node, which is a program of its own because it needs MPI.
#include <CLI/CLI.hpp>
#include <string>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/program.h"

namespace lmdbio::cli {

std::string server_program() { return sibling_program("lmdbio-serve", "lmdbio-mpi"); }

void add_serve(CLI::App& app, int&) {
  CLI::App* const serve = app.add_subcommand(
      "serve",
      "serves the programs of a node with bytes that other nodes have read; see lmdbio serve --help");
  serve->set_help_flag();
  serve->prefix_command();
  serve->callback([serve] { execute(server_program(), serve->remaining()); });
}

}  // namespace lmdbio::cli
