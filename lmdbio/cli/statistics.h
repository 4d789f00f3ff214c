// Collects the statistics of the processes of a job, from the lines that they wrote (LMDBIO_STATS), and
// from the boards of processes that wrote none.  Sums them up, and describes each process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/cli/totals_json.h"
#include "lmdbio/node/counter_board.h"

namespace lmdbio::cli {

/// Return a number of a JSON object, or of an object in it.  0: it is not there.
inline std::uint64_t number(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : 0;
}
inline std::uint64_t number(const Json& j, const char* group, const char* key) {
  const auto it = j.find(group);
  return it != j.end() && it->is_object() ? number(*it, key) : 0;
}

/// Appends the processes that wrote a line to `file`.  Skips lines that are not statistics.  Returns false
/// if the file cannot be read.
bool add_lines(const std::string& file, Json& processes);
/// Appends the process that `line` describes.  Appends nothing if the line is not statistics.
void add_line(const std::string& line, Json& processes);

/// Returns all processes of a job.  `wanted` returns true for the boards of the job.  `ended` gets the
/// board of each process that has ended without writing a line; that board is removed, so no later call
/// finds it.  `lines` reads the lines that the other processes wrote.
Json collect(const std::function<bool(const node::ShownBoard&)>& wanted,
             const std::function<void(const node::ShownBoard&)>& ended, const std::function<Json()>& lines);

/// Resources that a job used: a program, and all its descendants that were waited for.
struct JobUse {
  double seconds, cpu_seconds;
  std::uint64_t major_faults;
  std::uint64_t storage_bytes;  ///< as stats::process_storage_bytes()
};

/// Returns the totals of all processes.  Numbers are sums, except for limits, sizes and maxima.  Texts are
/// joined if they differ.  Figures of whole processes count once per process, not once per environment.  If
/// `job` is given and a process has written no line, the job's page faults and storage bytes replace the
/// sums.
Json total_of(const Json& processes, const std::optional<JobUse>& job = std::nullopt);

/// Return the statistics as lines for people.  The first total line says whether LMDBIO was used, and
/// whether reading was the bottleneck.
std::vector<std::string> total_lines(const Json& total, const std::optional<JobUse>& job = std::nullopt);
std::vector<std::string> process_lines(const Json& processes);

}  // namespace lmdbio::cli
