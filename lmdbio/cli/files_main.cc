// lmdbio-files: the subcommands of lmdbio that read and write records.
#include <CLI/CLI.hpp>

#include "lmdbio/cli/command.h"

int main(int argc, char** argv) {
  using namespace lmdbio::cli;
  CLI::App app("The subcommands of lmdbio that read and write records", "lmdbio");
  app.require_subcommand(1);
  int status = kClean;
  add_ls(app, status);
  add_cat(app, status);
  add_export(app, status);
  add_pack(app, status);
  return parse(app, argc, argv, status);
}
