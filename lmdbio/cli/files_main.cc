// lmdbio-files: the subcommands of lmdbio that read and write records.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

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
  // CLI11 takes "[a,b]" for a list of two paths.  "./[a,b]" is the same path, but no list.
  std::vector<std::string> words(argv, argv + argc);
  std::vector<char*> given;
  for (std::string& w : words) {
    if (words.size() > 1 && words[1] == "pack" && w.starts_with('[') && w.ends_with(']')) w.insert(0, "./");
    given.push_back(w.data());
  }
  return parse(app, argc, given.data(), status);
}
