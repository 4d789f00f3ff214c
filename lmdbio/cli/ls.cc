// lmdbio ls: lists the keys of a database.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/records.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"
#include "lmdbio/files/names.h"
#include "lmdbio/files/output.h"

namespace lmdbio::cli {

namespace {

struct Options {
  std::string path, database, prefix, range;
  bool sizes = false, json = false, zeros = false;
};

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += format_text("%02x", static_cast<unsigned char>(c));
  return out;
}

std::string dumped(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Returns the line, or the JSON object, for a record.
std::string entry(const Options& options, files::Database& database, const files::Cursor& at, bool terminal) {
  const std::string_view key = files::bytes_of(at.key());
  const std::string name = files::name_of(key);
  const std::size_t bytes = at.value().mv_size;
  const bool is_database =
      (options.json || options.sizes) && database.is_named_database(at.key(), at.value());
  if (options.json) {
    Json j{{"name", name}, {"key_hex", hex(key)}};
    if (is_database)
      j["database"] = true;
    else
      j["bytes"] = bytes;
    return dumped(j);
  }
  std::string out;
  if (options.sizes) out = is_database ? "  database " : format_text("%10zu ", bytes);
  out += terminal ? printable(name) : name;
  return out += options.zeros ? '\0' : '\n';
}

int ls(const Options& options) {
  files::Database database(options.path, options.database);
  const files::KeyRange range = key_range(database, options.prefix, options.range);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  files::Output out(STDOUT_FILENO);
  files::Cursor at(database);
  bool first = true;
  if (options.json) check_output(out.append("{\"path\": " + dumped(database.path()) + ",\n \"records\": ["));
  try {
    for (bool more = at.seek(range.first); more && range.before_end(files::bytes_of(at.key()));
         more = at.next()) {
      if (options.json) check_output(out.append(first ? "\n  " : ",\n  "));
      check_output(out.append(entry(options, database, at, terminal)));
      first = false;
    }
  } catch (const files::Error& e) {  // the keys before a damaged page are good
    if (options.json) check_output(out.append("\n ],\n \"error\": " + dumped(e.what()) + "}\n"));
    check_output(out.flush());
    throw;
  }
  if (options.json) check_output(out.append("\n ]}\n"));
  check_output(out.flush());
  return kClean;
}

}  // namespace

void add_ls(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand("ls", "list the keys of a database, in their order");
  add_database_options(*sub, options->path, options->database);
  sub->add_option("PREFIX", options->prefix, "list only keys that begin with this");
  sub->add_option("--range", options->range,
                  "list only keys from FIRST up to, but without, END; both may be empty")
      ->type_name("FIRST:END");
  CLI::Option* const sizes = sub->add_flag("-l", options->sizes, "also print the sizes of values, in bytes");
  CLI::Option* const zeros =
      sub->add_flag("-0,--null", options->zeros, "end each line with a byte 0 instead of a newline");
  sub->add_flag("--json", options->json, "print one JSON object")->excludes(sizes)->excludes(zeros);
  sub->callback([options, &status] { status = ls(*options); });
}

}  // namespace lmdbio::cli
