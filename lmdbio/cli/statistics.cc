#include "lmdbio/cli/statistics.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "lmdbio/stats/report.h"
#include "lmdbio/window/file_stats.h"

namespace lmdbio::cli {
namespace {

/// Returns true if the totals contain the maximum of a number instead of the sum.
bool is_most(std::string_view name) {
  using Field = CounterField<window::FileStats>;
  for (const Field& field : window::kFileStats)
    if (name == field.name) return field.sum == Field::Sum::most;
  return name == "chunk_bytes" || name == "memory_limit" || name == "most_memory" || name == "overtaken";
}

/// Figures of the whole process, which are the same in all its environments.
constexpr const char* kProcessWide[] = {"minor_faults",         "major_faults", "voluntary_switches",
                                        "involuntary_switches", "open_us",      "storage_bytes"};

/// Joins texts that differ with "; ".
void add_text(Json& to, const std::string& text) {
  if (!to.is_string()) to = "";
  const auto before = to.get<std::string>();
  if (text.empty() || ("; " + before + "; ").find("; " + text + "; ") != std::string::npos) return;
  to = before.empty() ? text : before + "; " + text;
}

void add(Json& to, const Json& object) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      if (!to.contains(name)) to[name] = Json::object();
      add(to[name], value);
    } else if (value.is_number_unsigned()) {
      const std::uint64_t before = number(to, name.c_str()), n = value.get<std::uint64_t>();
      to[name] = is_most(name) ? std::max(before, n) : before + n;
    } else if (value.is_string()) {
      add_text(to[name], value.get<std::string>());
    } else if (value.is_boolean()) {
      to[name] = to.value(name, name == "locks") && value.get<bool>();
    }
  }
}

}  // namespace

void add_line(const std::string& line, Json& processes) {
  Json j = Json::parse(line, nullptr, false);
  const auto environments = j.is_object() ? j.find("environments") : j.end();
  if (j.is_object() && environments != j.end() && environments->is_array()) processes.push_back(std::move(j));
}

bool add_lines(const std::string& file, Json& processes) {
  std::ifstream in(file);
  if (!in) return false;
  for (std::string line; std::getline(in, line);) add_line(line, processes);
  return true;
}

Json collect(const std::function<bool(const node::ShownBoard&)>& wanted,
             const std::function<void(const node::ShownBoard&)>& ended, const std::function<Json()>& lines) {
  // A running process may write its line at any time.  Repeat until no process ended meanwhile.  Each process
  // then counts once, by its line or by its board.
  constexpr unsigned kTries = 10;
  for (unsigned tries = 1;; ++tries) {
    const auto look = [&](Json& running) {
      bool all_run = true;
      for (const node::ShownBoard& b : node::take_boards(wanted)) {
        if (b.lives)
          add_line(stats::line_of(b), running);
        else
          ended(b);
        all_run = all_run && b.lives;
      }
      return all_run;
    };
    Json before = Json::array(), running = Json::array();
    (void)look(before);
    Json processes = lines();
    const bool all_run = look(running);
    std::set<std::uint64_t> pids, pids_now;
    for (const Json& p : before) pids.insert(number(p, "pid"));
    for (const Json& p : running) pids_now.insert(number(p, "pid"));
    if ((all_run && pids == pids_now) || tries == kTries) {
      for (Json& p : running) processes.push_back(std::move(p));
      return processes;
    }
  }
}

Json total_of(const Json& processes, const std::optional<JobUse>& job) {
  std::set<std::pair<std::string, std::uint64_t>> pids;  ///< host, pid: hosts may use the same pids
  std::set<std::string> paths, unreached;
  std::uint64_t environments = 0, served = 0, untold = 0, running = 0;
  Json sums = Json::object(), sums_io = Json::object(), idle_io = Json::object();
  for (const Json& p : processes) {
    if (const auto module = p.find("unreached"); module != p.end() && module->is_string())
      unreached.insert(module->get<std::string>());
    if (p["environments"].empty()) continue;
    pids.emplace(p.value("host", ""), number(p, "pid"));
    const std::string state = p.value("state", "");
    untold += state == "ended" ? 1u : 0u;
    running += state == "running" ? 1u : 0u;
    Json process_wide = Json::object();
    for (const Json& e : p["environments"]) {
      if (!e.is_object()) continue;
      ++environments;
      served += e.value("ours", false) ? 1u : 0u;
      paths.insert(e.value("path", ""));
      Json counted = e;
      for (const char* const name : {"path", "ours", "io"}) counted.erase(name);
      for (const char* const name : kProcessWide)
        if (counted.contains(name)) {
          process_wide[name] = std::max(number(process_wide, name), number(counted, name));
          counted.erase(name);
        }
      add(sums, counted);
      // An environment without read-ahead only reports how it would have read.  Use this only if no
      // environment had read-ahead.
      if (const auto io = e.find("io"); io != e.end() && io->is_object())
        add(io->contains("engine") ? sums_io : idle_io, *io);
    }
    add(sums, process_wide);
  }
  Json total = {{"processes", pids.size()}, {"ended_without_telling", untold},
                {"running", running},       {"environments", environments},
                {"served", served},         {"paths", paths}};
  if (!unreached.empty()) total["unreached"] = unreached;
  total.update(sums);
  if (job && untold + running != 0) {
    total["major_faults"] = job->major_faults;
    total["storage_bytes"] = job->storage_bytes;
  }
  if (!sums_io.empty() || !idle_io.empty()) total["io"] = sums_io.empty() ? idle_io : sums_io;
  return total;
}

}  // namespace lmdbio::cli
