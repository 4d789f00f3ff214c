// What the subcommands that show records as files share.
#pragma once

#include <string>

#include "lmdbio/files/database.h"
#include "lmdbio/files/value_part.h"

namespace CLI {
class App;
}

namespace lmdbio::cli {

/// Adds the options --db and --value.
void add_database_options(CLI::App& app, std::string& path, std::string& name);
void add_value_option(CLI::App& app, files::ValuePart& part);

/// Returns the range of keys for the arguments PREFIX and A:B, which are names (files/names.h).  In A:B, a
/// colon of a name is %3A.  `prefix` and `range` may be empty.  Throws Failure if `range` has no colon, or if
/// the database has another order.
files::KeyRange key_range(const files::Database& database, const std::string& prefix,
                          const std::string& range);

/// Throws Failure if `error`, an errno of a write to standard output, is not 0.  If the reader of a pipe has
/// gone, ends the process without a message, as SIGPIPE does.
void check_output(int error);

}  // namespace lmdbio::cli
