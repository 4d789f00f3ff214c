// What the processes of a job did, from the lines that they wrote (LMDBIO_STATS) and the boards of those that
// wrote none: of all together, and of each.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/cli/totals_json.h"
#include "lmdbio/node/counter_board.h"

namespace lmdbio::cli {

/// Appends the processes that wrote a line to `file`.  Lines that are none are passed over; false: it cannot
/// be read.
bool add_lines(const std::string& file, Json& processes);
/// Appends the process that a line tells of; none if it is no such line.
void add_line(const std::string& line, Json& processes);

/// All processes of a job.  `wanted`: theirs are these boards.  `ended`: is given the board of each that has
/// ended and told nothing, which nobody will find any more.  `lines`: reads what the others have told.
Json collect(const std::function<bool(const node::ShownBoard&)>& wanted,
             const std::function<void(const node::ShownBoard&)>& ended, const std::function<Json()>& lines);

/// Of all processes: numbers are sums, but for what is a limit, a size or a most; of texts, those that are
/// different.
Json total_of(const Json& processes);

/// For people.  The first line says whether it helped.  `seconds`: that the job took, if that is known.
std::vector<std::string> total_lines(const Json& total, std::optional<double> seconds);
std::vector<std::string> process_lines(const Json& processes);

}  // namespace lmdbio::cli
