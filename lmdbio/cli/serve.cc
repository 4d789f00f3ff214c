// lmdbio serve: starts the server of a node, which is a program of its own because it needs MPI.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/program.h"

namespace lmdbio::cli {

namespace {

[[noreturn]] void start(std::vector<std::string> words) {
  const std::string program = server_program();
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  (void)::execv(program.c_str(), argv.data());
  throw Failure(program + ": " + std::strerror(errno), kNotExecutable);
}

}  // namespace

std::string server_program() {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("lmdbio-serve");
  if (::access(program.c_str(), F_OK) != 0)
    throw Failure(program + ": not installed; the package lmdbio-mpi has it", kNotFound);
  return program;
}

void add_serve(CLI::App& app, int&) {
  CLI::App* const serve = app.add_subcommand(
      "serve",
      "serves the programs of a node with bytes that other nodes have read; see lmdbio serve --help");
  serve->set_help_flag();
  serve->prefix_command();
  serve->callback([serve] { start(serve->remaining()); });
}

}  // namespace lmdbio::cli
