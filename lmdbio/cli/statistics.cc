#include "lmdbio/cli/statistics.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string_view>

#include "lmdbio/cli/text.h"
#include "lmdbio/stats/report.h"

namespace lmdbio::cli {
namespace {

std::uint64_t number(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_number_unsigned() ? it->get<std::uint64_t>() : 0;
}

std::uint64_t number(const Json& j, const char* group, const char* key) {
  const auto it = j.find(group);
  return it != j.end() && it->is_object() ? number(*it, key) : 0;
}

/// What is no sum.
bool is_most(std::string_view name) {
  return name == "chunk_bytes" || name == "memory_limit" || name == "most_resident" || name == "most_vmas" ||
         name == "most_memory" || name == "overtaken";
}

/// Texts that differ stand beside each other.
void add_text(Json& to, const std::string& text) {
  const std::string before = to.is_string() ? to.get<std::string>() : "";
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

std::string state_text(const Json& process) {
  const std::string state = process.value("state", "");
  return state.empty() ? "" : state == "running" ? " (still running)" : " (ended without telling)";
}

using Lines = std::vector<std::string>;

unsigned long long count(const Json& j, const char* key) { return number(j, key); }
std::string bytes(const Json& j, const char* key) { return bytes_text(static_cast<double>(number(j, key))); }

std::string requests_text(const Json& io) {
  constexpr struct {
    const char *key, *text;
  } kSizes[] = {
      {"4K", "up to 4 KiB"}, {"64K", "64 KiB"}, {"256K", "256 KiB"}, {"1M", "1 MiB"}, {"more", "more"}};
  std::string out;
  for (const auto& size : kSizes)
    if (const std::uint64_t n = number(io, "requests", size.key); n != 0)
      out += (out.empty() ? "" : ", ") + std::to_string(n) + " of " + size.text;
  return out;
}

/// How data that was not in memory was read.
void add_reading(const Json& io, Lines& out) {
  const std::string path = io.value("read_path", ""), engine = io.value("engine", "");
  std::string how;
  for (std::size_t at = 0, end; at <= path.size(); at = end + 2) {  // of all processes: "direct; buffered"
    end = std::min(path.find("; ", at), path.size());
    const std::string one = path.substr(at, end - at);
    how += (at == 0 ? "" : ", ") + (one == "direct"     ? "direct reads past the page cache"
                                    : one == "buffered" ? "reads into the page cache"
                                    : one == "mmap"     ? "page faults"
                                                        : printable(one));
  }
  out.push_back("data not in memory: " + how + (engine.empty() ? "" : ", by " + printable(engine)) + " (" +
                printable(io.value("reason", "")) + ")");
  if (number(io, "read") == 0) return;
  out.push_back(
      format_text("walks came to %s; %s were read ahead of them, %s for nothing; %llu chunks were in the "
                  "page cache already",
                  bytes(io, "asked").c_str(), bytes(io, "read").c_str(), bytes(io, "wasted").c_str(),
                  count(io, "chunks_cached")));
  out.push_back(format_text("the program waited %llu times, %.3f s in all; requests: %s", count(io, "stalls"),
                            static_cast<double>(number(io, "stall_us")) / 1e6, requests_text(io).c_str()));
  if (count(io, "chunks_given") + count(io, "chunks_claimed") != 0)
    out.push_back(
        format_text("shared with other processes of this node: %llu chunks that they had read were taken "
                    "from shared memory, "
                    "%llu times a chunk was being read by one of them",
                    count(io, "chunks_given"), count(io, "chunks_claimed")));
  if (count(io, "published") != 0)
    out.push_back(
        format_text("%llu chunks of %s held at most, of %s allowed; %llu given back; the snapshot changed "
                    "%llu times under them",
                    count(io, "most_resident"), bytes(io, "chunk_bytes").c_str(),
                    bytes(io, "memory_limit").c_str(), count(io, "reclaimed"), count(io, "snapshots")));
  if (count(io, "read_failed") + count(io, "publish_failed") != 0)
    out.push_back(format_text("%llu reads failed, %llu chunks found no room and were left to page faults",
                              count(io, "read_failed"), count(io, "publish_failed")));
  if (count(io, "key_walks") != 0)
    out.push_back(format_text("%llu times a walk was seen to skip its values: they were not read",
                              count(io, "key_walks")));
  if (count(io, "lookups_missed") != 0)
    out.push_back(format_text(
        "%llu lookups missed memory; %s were read exactly for them, in %llu reads and %.3f s; %llu leaf "
        "pages were fetched ahead",
        count(io, "lookups_missed"), bytes(io, "exact_bytes").c_str(), count(io, "exact_reads"),
        static_cast<double>(number(io, "exact_us")) / 1e6, count(io, "leaves_fetched")));
  if (count(io, "loads_begun") != 0)
    out.push_back(
        format_text("looked up all over: loading the whole file in the background was begun %llu times, "
                    "finished %llu times",
                    count(io, "loads_begun"), count(io, "loads_finished")));
  if (count(io, "stride_walks") != 0)
    out.push_back(
        format_text("%llu times a walk was seen to use each so many-th value: %llu values were fetched as "
                    "the next such ones, %llu of them were seen used, %llu not",
                    count(io, "stride_walks"), count(io, "predicted"), count(io, "predicted_right"),
                    count(io, "predicted_wrong")));
}

/// What is told of all environments together, and of one.
void add_details(const Json& j, Lines& out) {
  out.push_back(format_text(
      "%llu gets, %llu cursor moves, %llu transactions; passed through to LMDB: %llu gets, "
      "%llu cursor moves, %llu writes",
      static_cast<unsigned long long>(number(j, "calls", "get")),
      static_cast<unsigned long long>(number(j, "calls", "cursor_get")),
      static_cast<unsigned long long>(number(j, "calls", "txn_begin") + number(j, "calls", "txn_renew")),
      static_cast<unsigned long long>(number(j, "forwarded", "get")),
      static_cast<unsigned long long>(number(j, "forwarded", "cursor_get")),
      static_cast<unsigned long long>(number(j, "forwarded", "write"))));
  if (const auto io = j.find("io"); io != j.end() && io->is_object()) add_reading(*io, out);
  if (!j.value("locks", true)) out.push_back("read without locks: they were refused");
  if (number(j, "without_slot") != 0)
    out.push_back(format_text("%llu transactions got no reader slot", count(j, "without_slot")));
  if (number(j, "overtaken") != 0) out.push_back("a writer changed the file while it was read without locks");
}

/// Did it help?
std::string answer(const Json& total, std::optional<double> seconds) {
  const std::uint64_t served = number(total, "records") + number(total, "reader", "records");
  if (served == 0) {
    const std::uint64_t passed = number(total, "forwarded", "get") + number(total, "forwarded", "cursor_get");
    return format_text("no read was served by LMDBIO; %llu went to LMDB",
                       static_cast<unsigned long long>(passed)) +
           (passed != 0 ? ": " + printable(total.value("reason", "")) : "");
  }
  const std::uint64_t given = number(total, "bytes") + number(total, "reader", "bytes");
  const std::uint64_t read =
      number(total, "io", "read") + number(total, "reader", "read") + number(total, "prefetch", "read");
  std::uint64_t requests = number(total, "reader", "requests") + number(total, "prefetch", "requests");
  if (const auto io = total.find("io"); io != total.end() && io->contains("requests"))
    for (const Json& n : (*io)["requests"]) requests += n.is_number_unsigned() ? n.get<std::uint64_t>() : 0;
  const double waited =
      static_cast<double>(number(total, "io", "stall_us") + number(total, "io", "exact_us") +
                          number(total, "reader", "wait_us")) /
      1e6;
  std::string out = format_text(
      "%llu reads served, %s: %s from memory, %s from storage in %llu requests; %.3f s waited for it in all "
      "processes",
      static_cast<unsigned long long>(served), bytes_text(static_cast<double>(given)).c_str(),
      bytes_text(static_cast<double>(given > read ? given - read : 0)).c_str(),
      bytes_text(static_cast<double>(read)).c_str(), static_cast<unsigned long long>(requests), waited);
  if (const std::uint64_t n = number(total, "major_faults"); n != 0)
    out += format_text("; page faults that read storage: %llu", static_cast<unsigned long long>(n));
  return seconds ? out + format_text("; the job took %.3f s", *seconds) : out;
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
  // A process that runs may tell at any time: until its line, or its board, is surely the only one, again.
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

Json total_of(const Json& processes) {
  std::set<std::uint64_t> pids;
  std::set<std::string> paths;
  std::uint64_t environments = 0, served = 0, untold = 0, running = 0;
  Json sums = Json::object(), sums_io = Json::object(), idle_io = Json::object();
  for (const Json& p : processes) {
    pids.insert(number(p, "pid"));
    const std::string state = p.value("state", "");
    untold += state == "ended" ? 1u : 0u;
    running += state == "running" ? 1u : 0u;
    for (const Json& e : p["environments"]) {
      if (!e.is_object()) continue;
      ++environments;
      served += e.value("ours", false) ? 1u : 0u;
      paths.insert(e.value("path", ""));
      Json counted = e;
      for (const char* const name : {"path", "ours", "io"}) counted.erase(name);
      add(sums, counted);
      // Where nothing was read ahead, how it would have been is of interest only if that was so everywhere.
      if (const auto io = e.find("io"); io != e.end() && io->is_object())
        add(io->contains("engine") ? sums_io : idle_io, *io);
    }
  }
  Json total = {{"processes", pids.size()}, {"ended_without_telling", untold},
                {"running", running},       {"environments", environments},
                {"served", served},         {"paths", paths}};
  total.update(sums);
  if (!sums_io.empty() || !idle_io.empty()) total["io"] = sums_io.empty() ? idle_io : sums_io;
  return total;
}

Lines total_lines(const Json& total, std::optional<double> seconds) {
  if (number(total, "environments") == 0)
    return {
        "warning: no LMDB environment was seen: the program opened none, or was not reached (static LMDB, "
        "another loader)"};
  Lines out{answer(total, seconds)};
  std::string processes = format_text(count(total, "processes") == 1 ? "%llu process" : "%llu processes",
                                      count(total, "processes"));
  if (number(total, "ended_without_telling") != 0)
    processes += format_text(", %llu of which ended without telling", count(total, "ended_without_telling"));
  if (number(total, "running") != 0)
    processes += format_text(", %llu still running", count(total, "running"));
  for (const char* separator = ": "; const Json& path : total["paths"]) {
    processes += separator + printable(path.get<std::string>());
    separator = ", ";
  }
  out.push_back(std::move(processes));
  if (const std::uint64_t all = number(total, "environments"), served = number(total, "served"); served < all)
    out.push_back(format_text("%llu of %llu environments were passed through to LMDB: ",
                              static_cast<unsigned long long>(all - served),
                              static_cast<unsigned long long>(all)) +
                  printable(total.value("reason", "")));
  add_details(total, out);
  return out;
}

Lines process_lines(const Json& processes) {
  Lines out;
  for (const Json& p : processes) {
    for (const Json& e : p["environments"]) {
      if (!e.is_object()) continue;
      const bool ours = e.value("ours", false);
      out.push_back(
          format_text("process %llu", count(p, "pid")) + state_text(p) + ": " +
          printable(e.value("path", "")) + ": " +
          (ours ? "served by LMDBIO" : "passed through to LMDB: " + printable(e.value("reason", ""))));
      std::string records = format_text("%llu records, ", count(e, "records")) + bytes(e, "bytes");
      if (e.contains("open_us"))  // else it did not live to tell
        records += format_text("; %.3f s open; %llu major faults",
                               static_cast<double>(number(e, "open_us")) / 1e6, count(e, "major_faults"));
      Lines details{std::move(records)};
      add_details(e, details);
      for (const std::string& d : details) out.push_back("  " + d);
    }
  }
  return out;
}

}  // namespace lmdbio::cli
