#include "lmdbio/cli/records.h"

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <map>

#include "lmdbio/cli/command.h"
#include "lmdbio/files/names.h"

namespace lmdbio::cli {

namespace {

/// A colon in an end of a range.  Names of keys have it as it is.
constexpr std::string_view kColon = "%3A";

}  // namespace

void add_database_options(CLI::App& app, std::string& path, std::string& name) {
  app.add_option("DB", path, "directory that contains data.mdb, or the data file")->required();
  app.add_option("--db", name, "use this named database instead of the main database")->type_name("NAME");
}

void add_value_option(CLI::App& app, files::ValuePart& part) {
  using files::ValuePart;
  static const std::map<std::string, ValuePart> kParts{{"raw", ValuePart::raw}, {"datum", ValuePart::datum}};
  app.add_option("--value", part,
                 "raw: whole values (default); datum: the pixels or the encoded image of Caffe's Datum")
      ->transform(CLI::CheckedTransformer(kParts).description(""))
      ->type_name("raw|datum");
}

files::KeyRange key_range(const files::Database& database, const std::string& prefix,
                          const std::string& range) {
  files::KeyRange out;
  if (prefix.empty() && range.empty()) return out;
  if (database.has_other_order())
    throw Failure(database.path() +
                  ": keys are integers or in reverse order, so that they have no prefixes and ranges");
  if (!prefix.empty()) out = files::KeyRange::of_prefix(files::key_of(prefix));
  if (range.empty()) return out;
  const std::size_t colon = range.find(':');
  if (colon == std::string::npos)
    throw Failure(range + ": a range is FIRST:END, with %3A for a colon in one of them");
  const auto key = [](std::string name) {
    for (std::size_t at = 0; (at = name.find(kColon, at)) != std::string::npos; ++at)
      name.replace(at, kColon.size(), ":");
    return files::key_of(name);
  };
  return out & files::KeyRange{key(range.substr(0, colon)), key(range.substr(colon + 1))};
}

void check_output(int error) {
  if (error == 0) return;
  if (error == EPIPE) {  // SIGPIPE is ignored
    (void)::signal(SIGPIPE, SIG_DFL);
    (void)::raise(SIGPIPE);
    ::_exit(128 + SIGPIPE);
  }
  if (error == EFAULT)
    throw Failure("a value cannot be read: the storage has failed, or the data file was truncated");
  throw Failure(std::string("standard output: ") + std::strerror(error));
}

}  // namespace lmdbio::cli
