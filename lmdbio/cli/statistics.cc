#include "lmdbio/cli/statistics.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

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

/// Returns true if the totals contain the maximum of a number instead of the sum.
bool is_most(std::string_view name) {
  return name == "chunk_bytes" || name == "memory_limit" || name == "most_resident" || name == "most_vmas" ||
         name == "most_memory" || name == "overtaken";
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

std::string state_text(const Json& process) {
  const std::string state = process.value("state", "");
  return state.empty() ? "" : state == "running" ? " (still running)" : " (counted from shared memory)";
}

std::string unreached_text(const Json& module) {
  return printable(module.is_string() ? module.get<std::string>() : "") +
         " contains an LMDB of its own, which LMDBIO does not reach: see docs/faq.md";
}

using Lines = std::vector<std::string>;

unsigned long long count(const Json& j, const char* key) { return number(j, key); }
std::string bytes(const Json& j, const char* key) { return bytes_text(static_cast<double>(number(j, key))); }

std::string requests_text(const Json& io) {
  constexpr struct {
    const char *key, *text;
  } kSizes[] = {{"4K", "up to 4 KiB"},
                {"64K", "up to 64 KiB"},
                {"256K", "up to 256 KiB"},
                {"1M", "up to 1 MiB"},
                {"more", "larger"}};
  std::string out;
  for (const auto& size : kSizes)
    if (const std::uint64_t n = number(io, "requests", size.key); n != 0)
      out += (out.empty() ? "" : ", ") + std::to_string(n) + " " + size.text;
  return out;
}

/// Adds a line about the cache on local disk, for walks and lookups or for readers.
void add_cache(const Json& j, const char* who, Lines& out) {
  if (count(j, "cache_read") + count(j, "cache_filled") + count(j, "cache_skipped") == 0) return;
  out.push_back(format_text(
      "%scache on local disk: %s read from it, %.3f s of it for compressed data; %s added; not added, "
      "because "
      "the thread that writes was behind: %s",
      who, bytes(j, "cache_read").c_str(), static_cast<double>(number(j, "cache_unpack_us")) / 1e6,
      counted(count(j, "cache_filled"), "chunk").c_str(), bytes(j, "cache_skipped").c_str()));
}

/// Adds lines about reads of data that was not resident.
void add_reading(const Json& io, Lines& out) {
  const std::string path = io.value("read_path", ""), engine = io.value("engine", "");
  std::string how;
  for (std::size_t at = 0, end; at <= path.size(); at = end + 2) {  // of all processes: "direct; buffered"
    end = std::min(path.find("; ", at), path.size());
    const std::string one = path.substr(at, end - at);
    how += (at == 0 ? "" : ", ") + (one == "direct"     ? "direct I/O"
                                    : one == "buffered" ? "reads into the page cache"
                                    : one == "mmap"     ? "page faults"
                                                        : printable(one));
  }
  out.push_back("walks over data not in memory: " + how + " (" + printable(io.value("reason", "")) + ")");
  if (number(io, "read") == 0) return;
  if (count(io, "asked") != 0)
    out.push_back(format_text("walks needed %s; evicted before use: %s; chunks found in the page cache: %llu",
                              bytes(io, "asked").c_str(), bytes(io, "wasted").c_str(),
                              count(io, "chunks_cached")));
  out.push_back("read for walks and lookups: " + bytes(io, "read") +
                (engine.empty() ? "" : " (by " + printable(engine) + ")"));
  add_cache(io, "", out);
  out.push_back(format_text("waits for read-ahead: %llu, %.3f s in total; requests by size: %s",
                            count(io, "stalls"), static_cast<double>(number(io, "stall_us")) / 1e6,
                            requests_text(io).c_str()));
  if (count(io, "chunks_given") + count(io, "chunks_claimed") != 0)
    out.push_back(
        format_text("shared with other processes on this node: chunks taken from shared memory: %llu; chunks "
                    "that another process was already reading: %llu",
                    count(io, "chunks_given"), count(io, "chunks_claimed")));
  if (count(io, "published") != 0)
    out.push_back(
        format_text("chunks of %s in private memory: peak %llu (limit LMDBIO_MEMORY: %s); evicted: "
                    "%llu; snapshot changes that evicted chunks: %llu",
                    bytes(io, "chunk_bytes").c_str(), count(io, "most_resident"),
                    bytes(io, "memory_limit").c_str(), count(io, "reclaimed"), count(io, "snapshots")));
  if (count(io, "read_failed") + count(io, "publish_failed") != 0)
    out.push_back(format_text("failed reads: %llu; chunks left to page faults for lack of memory: %llu",
                              count(io, "read_failed"), count(io, "publish_failed")));
  if (count(io, "key_walks") != 0)
    out.push_back(
        format_text("walks that used keys only, so that values were not read: %llu", count(io, "key_walks")));
  if (count(io, "lookups_missed") != 0)
    out.push_back(format_text(
        "lookups of data not in memory: %llu; LMDBIO read %s for them in %s, %.3f s in total; leaf pages "
        "prefetched: %llu",
        count(io, "lookups_missed"), bytes(io, "exact_bytes").c_str(),
        counted(count(io, "exact_reads"), "read").c_str(), static_cast<double>(number(io, "exact_us")) / 1e6,
        count(io, "leaves_fetched")));
  if (count(io, "loads_begun") != 0)
    out.push_back(
        format_text("background loads of the whole file, for random lookups: %llu started, %llu finished",
                    count(io, "loads_begun"), count(io, "loads_finished")));
  if (count(io, "stride_walks") != 0)
    out.push_back(format_text(
        "walks that used every k-th value: %llu; values prefetched for them: %llu, observed used: "
        "%llu, observed unused: %llu",
        count(io, "stride_walks"), count(io, "predicted"), count(io, "predicted_right"),
        count(io, "predicted_wrong")));
}

/// Adds a line about data that the ranks of an MPI job sent each other.
void add_exchange(const Json& reader, Lines& out) {
  if (count(reader, "messages_sent") + count(reader, "bytes_received") + count(reader, "records_alone") == 0)
    return;
  out.push_back(format_text(
      "records from other MPI ranks: %s received, %s of them from other nodes; %s sent in %s; read "
      "here because other ranks were late, failed or had left: %s",
      bytes(reader, "bytes_received").c_str(), bytes(reader, "bytes_from_nodes").c_str(),
      bytes(reader, "bytes_sent").c_str(), counted(count(reader, "messages_sent"), "message").c_str(),
      counted(count(reader, "records_alone"), "record").c_str()));
}

/// Adds a line about the records that readers (lmdbio.h) returned, and where they came from.
void add_readers(const Json& reader, Lines& out) {
  if (count(reader, "batches") == 0) return;
  out.push_back(format_text(
      "readers: %s in %s, %s; %s read in %s, %s taken from the page cache; waits: %.3f s in total",
      counted(count(reader, "records"), "record").c_str(),
      counted(count(reader, "batches"), "batch", "batches").c_str(), bytes(reader, "bytes").c_str(),
      bytes(reader, "read").c_str(), counted(count(reader, "requests"), "request").c_str(),
      bytes(reader, "copied").c_str(), static_cast<double>(number(reader, "wait_us")) / 1e6));
  add_cache(reader, "readers: ", out);
}

/// Adds lines for one environment, or for the totals of all environments.
void add_details(const Json& j, Lines& out) {
  const auto calls = [&j](const char* group) {
    return counted(number(j, group, "get"), "lookup") + ", " +
           counted(number(j, group, "cursor_get"), "cursor move") + ", ";
  };
  const auto r = j.find("reader");
  const bool has_readers = r != j.end() && r->is_object();
  if (has_readers) add_readers(*r, out);
  if (!has_readers || number(j, "calls", "get") + number(j, "calls", "cursor_get") != 0)
    out.push_back("calls served: " + calls("calls") +
                  counted(number(j, "calls", "txn_begin") + number(j, "calls", "txn_renew"), "transaction") +
                  "; passed through to stock LMDB: " + calls("forwarded") +
                  counted(number(j, "forwarded", "write"), "write"));
  if (const auto io = j.find("io"); io != j.end() && io->is_object()) add_reading(*io, out);
  if (has_readers) add_exchange(*r, out);
  if (!j.value("locks", true)) out.push_back("read without locks, because locking failed");
  if (number(j, "without_slot") != 0)
    out.push_back(format_text("transactions without a reader slot: %llu", count(j, "without_slot")));
  if (number(j, "overtaken") != 0)
    out.push_back(
        "a writer changed the file while it was being read without locks; the data read may be inconsistent");
}

/// Says whether LMDBIO was used, and whether reading was the bottleneck.  The kernel has read all other data:
/// for page faults, by its own read-ahead, and for other files of the process.
std::string answer(const Json& total, const std::optional<JobUse>& job) {
  const std::uint64_t served = number(total, "records") + number(total, "reader", "records");
  if (served == 0) {
    const std::uint64_t passed = number(total, "forwarded", "get") + number(total, "forwarded", "cursor_get");
    return "LMDBIO served no reads; " + counted(passed, "read") + " went to stock LMDB" +
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
  std::string out =
      format_text("%s served, %s; read from storage: %s by LMDBIO in %s", counted(served, "read").c_str(),
                  bytes_text(static_cast<double>(given)).c_str(),
                  bytes_text(static_cast<double>(read)).c_str(), counted(requests, "request").c_str());
  const std::uint64_t all = number(total, "storage_bytes"), faults = number(total, "major_faults");
  if (all > read)
    out += format_text(", %s by the kernel for page faults and other files",
                       bytes_text(static_cast<double>(all - read)).c_str());
  out += format_text("; total wait for LMDBIO's reads: %.3f s", waited);
  if (const std::uint64_t open_us = number(total, "open_us");
      open_us != 0 && number(total, "ended_without_telling") == 0)
    out += format_text(" (%.0f %% of the time that databases were open)",
                       100 * std::min(1.0, waited * 1e6 / static_cast<double>(open_us)));
  if (all > read || faults != 0)
    out += "; waits for the kernel's reads are not measured (" + counted(faults, "major page fault") + ")";
  const std::uint64_t silent = number(total, "ended_without_telling") + number(total, "running");
  if (!job && silent != 0)
    out += "; page faults of " + counted(silent, "process", "processes") + " are not counted";
  if (job)
    out += format_text("; the job took %.3f s, with %.3f s of CPU time", job->seconds, job->cpu_seconds);
  return out;
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

Lines total_lines(const Json& total, const std::optional<JobUse>& job) {
  Lines unreached;
  if (const auto modules = total.find("unreached"); modules != total.end())
    for (const Json& module : *modules) unreached.push_back("warning: " + unreached_text(module));
  if (number(total, "environments") == 0) {
    if (!unreached.empty()) return unreached;
    return {
        "warning: no LMDB environment was seen: the program opened none, or its calls do not reach LMDBIO (a "
        "static "
        "executable, or LMDB linked into it)"};
  }
  Lines out{answer(total, job)};
  std::string processes = counted(count(total, "processes"), "process", "processes");
  const unsigned long long ended = count(total, "ended_without_telling"), running = count(total, "running");
  if (ended != 0) processes += format_text(" (%llu of them counted from shared memory", ended);
  if (running != 0) processes += format_text("%s%llu still running", ended != 0 ? ", " : " (", running);
  if (ended + running != 0) processes += ')';
  for (const char* separator = ": "; const Json& path : total["paths"]) {
    processes += separator + printable(path.get<std::string>());
    separator = ", ";
  }
  out.push_back(std::move(processes));
  if (const std::uint64_t all = number(total, "environments"), served = number(total, "served"); served < all)
    out.push_back(format_text("environments passed through to stock LMDB: %llu of %llu (",
                              static_cast<unsigned long long>(all - served),
                              static_cast<unsigned long long>(all)) +
                  printable(total.value("reason", "")) + ")");
  add_details(total, out);
  out.insert(out.end(), unreached.begin(), unreached.end());
  return out;
}

Lines process_lines(const Json& processes) {
  Lines out;
  for (const Json& p : processes) {
    if (const auto module = p.find("unreached"); module != p.end())
      out.push_back(format_text("process %llu: ", count(p, "pid")) + unreached_text(*module));
    for (const Json& e : p["environments"]) {
      if (!e.is_object()) continue;
      const bool ours = e.value("ours", false);
      out.push_back(
          format_text("process %llu", count(p, "pid")) + state_text(p) + ": " +
          printable(e.value("path", "")) + ": " +
          (ours ? "served by LMDBIO" : "passed through to stock LMDB: " + printable(e.value("reason", ""))));
      std::string records = counted(count(e, "records"), "record") + ", " + bytes(e, "bytes");
      if (e.contains("open_us"))  // only in lines that the process wrote itself
        records += format_text("; open for %.3f s; ", static_cast<double>(number(e, "open_us")) / 1e6) +
                   counted(count(e, "major_faults"), "major page fault");
      Lines details{std::move(records)};
      add_details(e, details);
      for (const std::string& d : details) out.push_back("  " + d);
    }
  }
  return out;
}

}  // namespace lmdbio::cli
