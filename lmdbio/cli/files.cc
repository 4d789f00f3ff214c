// lmdbio ls, cat, export and pack, started as lmdbio-files; lmdbio mount, started as lmdbio-fuse.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/program.h"

namespace lmdbio::cli {

namespace {

constexpr struct {
  const char *name, *help;
  const char *program = "lmdbio-files", *package = "lmdbio";
} kCommands[] = {
    {"ls", "list the keys of a database, in their order"},
    {"cat", "write the value of a key to standard output"},
    {"export", "write records as files, or as a tar archive"},
    {"pack", "pack a directory or tar archives into a database"},
    {"mount", "show a database as a read-only file system", "lmdbio-fuse", "lmdbio-fuse"},
};

}  // namespace

int files_options_end(int argc, char** argv) {
  const auto is_given = [&](const auto& c) { return std::string_view(argv[1]) == c.name; };
  return argc > 1 && std::any_of(std::begin(kCommands), std::end(kCommands), is_given) ? 2 : argc;
}

void add_files_commands(CLI::App& app, int argc, char** argv) {
  for (const auto& c : kCommands) {
    CLI::App* const sub = app.add_subcommand(c.name, c.help);
    sub->set_help_flag();
    sub->callback([&c, argc, argv] {
      // lmdbio-files has several subcommands, and so gets the name as well.
      execute(sibling_program(c.program, c.package),
              {argv + (c.program == std::string_view("lmdbio-fuse") ? 2 : 1), argv + argc});
    });
  }
}

}  // namespace lmdbio::cli
