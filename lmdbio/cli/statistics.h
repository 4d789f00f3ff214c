// What the processes of a job did, from the lines that they wrote (LMDBIO_STATS) and the boards of those that
// wrote none: of all together, and of each.
#pragma once

#include <cstdint>
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

/// What a whole job used: a program and all of its descendants that were waited for.
struct JobUse {
  double seconds, cpu_seconds;
  std::uint64_t major_faults;
  std::uint64_t storage_bytes;  ///< as stats::process_storage_bytes()
};

/// Of all processes: numbers are sums, but for what is a limit, a size or a most; of texts, those that are
/// different.  Figures of whole processes are counted once for each process, not for each environment.
/// Those of `job`, if it is known, replace them if a process has written none.
Json total_of(const Json& processes, const std::optional<JobUse>& job = std::nullopt);

/// For people.  The first line says whether LMDBIO was used, and whether reading was the bottleneck.
std::vector<std::string> total_lines(const Json& total, const std::optional<JobUse>& job = std::nullopt);
std::vector<std::string> process_lines(const Json& processes);

}  // namespace lmdbio::cli
