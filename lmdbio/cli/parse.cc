// How the programs of the command parse their arguments, run a subcommand, and fail.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>

#include "lmdbio/base/nearest.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/text.h"

namespace lmdbio::cli {

namespace {

int no_command(const CLI::App& app, const char* given) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  std::size_t i = 0;
  const std::string meant(nearest_name(given, [&] {
    return i < commands.size() ? std::string_view(commands[i++]->get_name()) : std::string_view();
  }));
  std::fprintf(stderr, "lmdbio: unknown command: %s%s\n", printable(given).c_str(),
               meant.empty() ? "; lmdbio --help lists them" : ("; did you mean " + meant + "?").c_str());
  return kUnusable;
}

/// Messages have names of files and keys, which may contain any bytes.
void print_error(const char* what) { std::fprintf(stderr, "lmdbio: %s\n", masked(what).c_str()); }

}  // namespace

int parse(CLI::App& app, int argc, char** argv, const int& status) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& e) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) return no_command(app, argv[1]);
    return app.exit(e) == 0 ? kClean : kUnusable;
  } catch (const CLI::RequiredError& e) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) return no_command(app, argv[1]);
    return app.exit(e) == 0 ? kClean : kUnusable;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kClean : kUnusable;
  } catch (const Failure& e) {
    print_error(e.what());
    return e.status();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "lmdbio: out of memory\n");
    return kUnusable;
  } catch (const std::exception& e) {
    print_error(e.what());
    return kUnusable;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "lmdbio: cannot write to standard output\n");
    return kUnusable;
  }
  return status;
}

}  // namespace lmdbio::cli
