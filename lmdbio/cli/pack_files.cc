// lmdbio pack: packs files into a database.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/file_size_signal.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/program.h"
#include "lmdbio/cli/progress.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/files/pack.h"

namespace lmdbio::cli {

namespace {

struct Options {
  std::vector<std::string> paths;  ///< the sources, and the database
  files::PackOptions pack;
  bool no_index = false;
};

/// Runs `lmdbio index`.  Returns whether it has succeeded; it prints errors itself.
bool write_index(const std::string& database) {
  const std::string program = sibling_program("lmdbio", "lmdbio");
  std::string words[] = {program, "index", "--", database};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw Failure(program + ": " + std::strerror(error));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int pack(Options& options) {
  options.pack.database = options.paths.back();
  options.pack.sources.assign(options.paths.begin(), options.paths.end() - 1);
  files::PackResult done;
  {
    const NoFileSizeSignal files_may_be_too_large;
    Progress progress("packing");
    done = files::pack(options.pack, [&](std::uint64_t n, std::uint64_t total) { progress.set(n, total); });
  }
  for (const std::string& line : done.left_out)
    std::fprintf(stderr, "lmdbio: left out: %s\n", printable(line).c_str());
  bool indexed = true;
  if (!options.no_index)
    for (const std::string& d : done.databases) indexed = write_index(d) && indexed;
  std::printf(
      "%s: %s, %s, in %s", printable(options.pack.database).c_str(), counted(done.files, "file").c_str(),
      bytes_text(static_cast<double>(done.bytes)).c_str(),
      counted(done.databases.size() - (options.pack.label_database.empty() ? 0 : 1), "database").c_str());
  if (done.resumed != 0) std::printf("; %" PRIu64 " of them were there already", done.resumed);
  std::printf("\n");
  return indexed && done.left_out.empty() ? kClean : kFindings;
}

}  // namespace

void add_pack(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand(
      "pack", "pack a directory or tar archives into a database; exit status 1: something was left out");
  sub->add_option(
         "PATH", options->paths,
         "a directory, or tar archives; the last path is the directory of the database, which is made")
      ->required()
      ->expected(2, -1);
  files::PackOptions& pack_options = options->pack;
  CLI::Option* const seed = sub->add_option("--shuffle", pack_options.order.seed,
                                            "store the files in the shuffled order of this seed")
                                ->type_name("SEED");
  sub->add_flag("--label-keys", pack_options.order.labels_in_keys,
                "begin each key with the number of its folder");
  sub->add_option("--label-db", pack_options.label_database,
                  "write the numbers of folders to a second database")
      ->type_name("DIR");
  sub->add_option("--max-size", pack_options.most_bytes,
                  "write several databases of at most this size each, into directories in DB")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->type_name("SIZE");
  sub->add_option("--format", pack_options.format,
                  "the release of LMDB that reads the database (default: 0.9)")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, format::Version>{{"0.9", format::Version::v09},
                                                                         {"1", format::Version::v10},
                                                                         {"1.0", format::Version::v10}})
              .description(""))
      ->type_name("0.9|1");
  sub->add_flag("--no-index", options->no_index, "do not write the record index");
  sub->callback([options, seed, &status] {
    options->pack.order.shuffled = seed->count() != 0;
    status = pack(*options);
  });
}

}  // namespace lmdbio::cli
