// lmdbio cat: writes the value of a key to standard output.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/records.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/files/names.h"
#include "lmdbio/files/output.h"

namespace lmdbio::cli {

namespace {

struct Options {
  std::string path, database, name;
  files::ValuePart part = files::ValuePart::raw;
};

int cat(const Options& options) {
  files::Database database(options.path, options.database);
  const std::string key = files::key_of(options.name);
  MDB_val value;
  if (key.empty() || !database.get(key, value))
    throw Failure(database.path() + ": no key " + printable(options.name), kFindings);
  if (database.is_named_database(files::value_of(key), value))
    throw Failure(database.path() + ": " + printable(options.name) + ": a named database; give it as --db",
                  kFindings);
  const auto contents = files::contents_of(files::bytes_of(value), options.part);
  if (!contents)
    throw Failure(database.path() + ": " + printable(options.name) +
                  ": not a Datum, or a Datum without data");
  check_output(files::write_all(STDOUT_FILENO, *contents));
  return kClean;
}

}  // namespace

void add_cat(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand(
      "cat", "write the value of a key to standard output; exit status 1: there is no such key");
  add_database_options(*sub, options->path, options->database);
  sub->add_option("KEY", options->name, "key, as lmdbio ls prints it")->required();
  add_value_option(*sub, options->part);
  sub->callback([options, &status] { status = cat(*options); });
}

}  // namespace lmdbio::cli
