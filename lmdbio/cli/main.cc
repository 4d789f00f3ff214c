// lmdbio: runs programs with LMDBIO, and inspects databases.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "lmdbio/base/nearest.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/text.h"

namespace {

int no_command(const CLI::App& app, const char* given) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  std::size_t i = 0;
  const std::string meant(lmdbio::nearest_name(given, [&] {
    return i < commands.size() ? std::string_view(commands[i++]->get_name()) : std::string_view();
  }));
  std::fprintf(stderr, "lmdbio: unknown command: %s%s\n", lmdbio::cli::printable(given).c_str(),
               meant.empty() ? "; lmdbio --help lists them" : ("; did you mean " + meant + "?").c_str());
  return lmdbio::cli::kUnusable;
}

}  // namespace

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
  const int end = run_options_end(argc, argv);
  std::vector<std::string> command(argv + end, argv + argc);
  if (!command.empty() && command[0] == "--") command.erase(command.begin());
  add_run(app, command, status);
  add_info(app, status);
  add_check(app, status);
  add_index(app, status);
  add_cache(app, status);
  add_config(app, status);
  add_ps(app, status);
  add_serve(app, status);
  add_stats(app, status);
  try {
    app.parse(end, argv);
  } catch (const CLI::ExtrasError& e) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) return no_command(app, argv[1]);
    return app.exit(e) == 0 ? kClean : kUnusable;
  } catch (const CLI::RequiredError& e) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) return no_command(app, argv[1]);
    return app.exit(e) == 0 ? kClean : kUnusable;
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
