// lmdbio ls: lists the keys of a database.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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

class Listing {
 public:
  explicit Listing(const Options& options)
      : options_(options),
        database_(options.path, options.database),
        range_(key_range(database_, options.prefix, options.range)),
        terminal_(::isatty(STDOUT_FILENO) == 1),
        out_(STDOUT_FILENO) {}

  int run() {
    if (options_.json)
      check_output(out_.append("{\"path\": " + dumped(database_.path()) + ",\n \"records\": ["));
    try {
      list();
    } catch (const files::Error& e) {  // what was listed is good
      finish(e.what());
      throw;
    }
    finish({});
    return damaged_ ? kFindings : kClean;
  }

 private:
  void list() {
    std::optional<files::Cursor> at(database_);
    bool placed = false;
    for (bool more = true; more;) {
      try {
        more = (placed ? at->next() : at->seek(range_.first)) && add(at->key(), at->value());
      } catch (const files::Error&) {
        at.reset();
        if (!database_.go_on()) throw;
        damaged_ = true;
        more = skip_values(at) || skip_pages(at);
      }
      placed = true;
    }
  }

  /// Goes on after the values of the last key, if a page of them is damaged.  Returns false if that fails.
  bool skip_values(std::optional<files::Cursor>& at) {
    if (!listed_ || !database_.has_duplicates()) return false;
    try {
      at.emplace(database_);
      return at->seek(last_key_) && at->next_key() && add(at->key(), at->value());
    } catch (const files::Error&) {
      at.reset();
      (void)database_.go_on();
      return false;
    }
  }

  /// Goes on at the next page that can be read.  Returns false if there is none.
  bool skip_pages(std::optional<files::Cursor>& at) {
    std::string key = listed_ ? last_key_ : range_.first;
    for (;;) {
      std::size_t page = 0;
      const bool more = database_.skip_page(key, page);
      if (page != 0)
        std::fprintf(stderr, "lmdbio: %s: page %zu is damaged; its keys are left out\n",
                     printable(database_.path()).c_str(), page);
      if (!more || !range_.before_end(key)) return false;
      try {
        at.emplace(database_);
        return at->seek(key) && add(at->key(), at->value());
      } catch (const files::Error&) {
        at.reset();
        (void)database_.go_on();
      }
    }
  }

  /// Lists a record.  Returns false if it is after the range.
  bool add(const MDB_val& key, const MDB_val& value) {
    const std::string_view bytes = files::bytes_of(key);
    if (!range_.before_end(bytes)) return false;
    if (options_.json) check_output(out_.append(listed_ ? ",\n  " : "\n  "));
    check_output(out_.append(entry(key, value)));
    if (!listed_ || bytes != last_key_) last_key_ = bytes;
    listed_ = true;
    return true;
  }

  /// Returns the line, or the JSON object, for a record.
  std::string entry(const MDB_val& key, const MDB_val& value) {
    const std::string name = files::name_of(files::bytes_of(key));
    const std::size_t bytes = value.mv_size;
    const bool is_database = (options_.json || options_.sizes) && database_.is_named_database(key, value);
    if (options_.json) {
      Json j{{"name", name}, {"key_hex", hex(files::bytes_of(key))}};
      if (is_database)
        j["database"] = true;
      else
        j["bytes"] = bytes;
      return dumped(j);
    }
    std::string out;
    if (options_.sizes) out = is_database ? "  database " : format_text("%10zu ", bytes);
    out += terminal_ ? printable(name) : name;
    return out += options_.zeros ? '\0' : '\n';
  }

  void finish(const std::string& error) {
    if (options_.json) {
      check_output(out_.append("\n ]"));
      if (damaged_) check_output(out_.append(",\n \"damaged\": true"));
      if (!error.empty()) check_output(out_.append(",\n \"error\": " + dumped(error)));
      check_output(out_.append("}\n"));
    }
    check_output(out_.flush());
  }

  const Options& options_;
  files::Database database_;
  const files::KeyRange range_;
  const bool terminal_;
  files::Output out_;
  bool listed_ = false, damaged_ = false;
  std::string last_key_;  ///< listed last
};

}  // namespace

void add_ls(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand(
      "ls", "list the keys of a database, in their order; exit status 1: some could not be read");
  add_database_options(*sub, options->path, options->database);
  sub->add_option("PREFIX", options->prefix, "list only keys that begin with this");
  sub->add_option("--range", options->range,
                  "list only keys from FIRST up to, but without, END; both may be empty")
      ->type_name("FIRST:END");
  CLI::Option* const sizes = sub->add_flag("-l", options->sizes, "also print the sizes of values, in bytes");
  CLI::Option* const zeros =
      sub->add_flag("-0,--null", options->zeros, "end each line with a byte 0 instead of a newline");
  sub->add_flag("--json", options->json, "print one JSON object")->excludes(sizes)->excludes(zeros);
  sub->callback([options, &status] { status = Listing(*options).run(); });
}

}  // namespace lmdbio::cli
