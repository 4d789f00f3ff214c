// The statistics as lines for people.
#include <algorithm>
#include <string_view>
#include <utility>

#include "lmdbio/cli/statistics.h"
#include "lmdbio/cli/text.h"

namespace lmdbio::cli {
namespace {

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

/// Adds lines about reads of data that was not resident.  `only_lookups`: no cursor moved.
void add_reading(const Json& io, bool only_lookups, Lines& out) {
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
  if (!only_lookups)
    out.push_back("records in key order that are not in memory: " + how + " (" +
                  printable(io.value("reason", "")) + ")");
  if (number(io, "read") == 0) return;
  out.push_back("read for cursors and lookups: " + bytes(io, "read") +
                (engine.empty() ? "" : " (by " + printable(engine) + ")") +
                "; requests by size: " + requests_text(io));
  add_cache(io, "", out);
  if (count(io, "asked") != 0)
    out.push_back("read ahead of the program: it reached " + bytes(io, "asked") + " and waited " +
                  counted(count(io, "stalls"), "time") +
                  format_text(", %.3f s in total", static_cast<double>(number(io, "stall_us")) / 1e6) +
                  (count(io, "wasted") == 0 ? "" : "; evicted before it came: " + bytes(io, "wasted")));
  if (count(io, "chunks_given") + count(io, "chunks_claimed") != 0)
    out.push_back(
        format_text("shared with other processes on this node: chunks taken from shared memory: %llu; chunks "
                    "that another process was already reading: %llu",
                    count(io, "chunks_given"), count(io, "chunks_claimed")));
  if (const unsigned long long most = count(io, "most_resident"); most != 0)
    out.push_back("private memory of a process: at most " +
                  bytes_text(static_cast<double>(most) * static_cast<double>(number(io, "chunk_bytes"))) +
                  " at a time (limit LMDBIO_MEMORY: " + bytes(io, "memory_limit") + ")" +
                  (count(io, "snapshots") == 0
                       ? ""
                       : "; discarded after " + counted(count(io, "snapshots"), "commit")));
  if (count(io, "read_failed") + count(io, "publish_failed") != 0)
    out.push_back(format_text("failed reads: %llu; chunks left to page faults for lack of memory: %llu",
                              count(io, "read_failed"), count(io, "publish_failed")));
  if (count(io, "key_walks") != 0)
    out.push_back(
        format_text("times that a cursor was seen to use keys only, so that values were not read: %llu",
                    count(io, "key_walks")));
  if (count(io, "lookups_missed") != 0)
    out.push_back(format_text(
        "lookups of data not in memory: %llu; LMDBIO read %s for them in %s, and they waited %.3f s in total",
        count(io, "lookups_missed"), bytes(io, "exact_bytes").c_str(),
        counted(count(io, "exact_reads"), "request").c_str(),
        static_cast<double>(number(io, "exact_us")) / 1e6));
  if (count(io, "loads_begun") != 0)
    out.push_back(
        format_text("background loads of the whole file, for random lookups: %llu started, %llu finished",
                    count(io, "loads_begun"), count(io, "loads_finished")));
  if (count(io, "stride_walks") != 0)
    out.push_back(format_text(
        "cursors that used every k-th value: %llu; values prefetched for them: %llu, seen to be used: %llu, "
        "seen not to be used: %llu",
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

/// Returns how many calls of each kind there were, such as "3 lookups, 1 transaction".
std::string calls_text(const Json& j, const char* group) {
  std::string out;
  const auto add = [&](std::uint64_t n, const char* what) {
    if (n != 0) out += (out.empty() ? "" : ", ") + counted(n, what);
  };
  add(number(j, group, "get"), "lookup");
  add(number(j, group, "cursor_get"), "cursor move");
  add(number(j, group, "txn_begin") + number(j, group, "txn_renew"), "transaction");
  add(number(j, group, "write"), "write");
  return out;
}

/// Adds lines for one environment, or for the totals of all environments.
void add_details(const Json& j, Lines& out) {
  const auto r = j.find("reader");
  const bool has_readers = r != j.end() && r->is_object();
  if (has_readers) add_readers(*r, out);
  // A reader's own environment makes no calls.
  const bool has_calls = !has_readers || number(j, "calls", "get") + number(j, "calls", "cursor_get") != 0;
  if (const std::string passed = calls_text(j, "forwarded"); has_calls)
    out.push_back("calls served: " + calls_text(j, "calls") +
                  (passed.empty() ? "" : "; passed through to stock LMDB: " + passed));
  const auto io = j.find("io");
  if (io != j.end() && io->is_object() && (has_calls || number(*io, "read") != 0))
    add_reading(
        *io,
        number(j, "calls", "get") != 0 && number(j, "calls", "cursor_get") == 0 && number(*io, "asked") == 0,
        out);
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
