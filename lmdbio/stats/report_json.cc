#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/records/shared.h"
#include "lmdbio/stats/report.h"

namespace lmdbio::stats {

namespace {

void append_string(std::string& out, const char* s) {
  out += '"';
  for (; *s != '\0'; ++s) {
    const auto c = static_cast<unsigned char>(*s);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += *s;
    } else if (c < 0x20) {
      char escaped[8];
      (void)std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += *s;
    }
  }
  out += '"';
}

void append_number(std::string& out, const char* name, std::uint64_t value) {
  append_string(out, name);
  out += ':';
  out += std::to_string(value);
  out += ',';
}

void close_object(std::string& out) {
  if (out.back() == ',') out.pop_back();
  out += '}';
}

void append_io(std::string& out, const IoReport& io) {
  out += "\"io\":{\"read_path\":";
  append_string(out, io.read_path.c_str());
  out += ",\"reason\":";
  append_string(out, io.reason.c_str());
  if (!io.counted) {
    out += "},";
    return;
  }
  const cache::ReadStats& s = io.stats;
  const cache::AccessCounters& a = io.access;
  out += ",\"engine\":";
  append_string(out, io.engine.c_str());
  out += ",\"residency\":";
  append_string(out, io.residency.c_str());
  out += ',';
  append_number(out, "chunk_bytes", io.chunk_bytes);
  append_number(out, "memory_limit", io.memory_limit);
  append_number(out, "asked", s.asked);
  append_number(out, "read", s.read);
  append_number(out, "wasted", s.wasted);
  append_number(out, "chunks_read", s.chunks_read);
  append_number(out, "chunks_cached", s.chunks_cached);
  append_number(out, "chunks_given", s.chunks_given);
  append_number(out, "chunks_claimed", s.chunks_claimed);
  append_number(out, "extents", s.extents);
  append_number(out, "stalls", s.stalls);
  append_number(out, "stall_us", s.stall_ns / 1000);
  append_number(out, "published", s.published);
  append_number(out, "reclaimed", s.reclaimed);
  append_number(out, "most_resident", s.most_resident);
  append_number(out, "most_vmas", s.most_vmas);
  append_number(out, "publish_failed", s.publish_failed);
  append_number(out, "read_failed", s.read_failed);
  append_number(out, "short_reads", s.short_reads);
  append_number(out, "retries", s.retries);
  append_number(out, "stale", s.stale);
  append_number(out, "stolen", s.stole);
  append_number(out, "snapshots", s.snapshots);
  append_number(out, "key_walks", a.key_walks);
  append_number(out, "stride_walks", a.stride_walks);
  append_number(out, "predicted", a.predicted);
  append_number(out, "predicted_right", a.predicted_right);
  append_number(out, "predicted_wrong", a.predicted_wrong);
  append_number(out, "sparse_plans", a.sparse_plans);
  append_number(out, "vanished", s.vanished);
  append_number(out, "went_direct", s.went_direct);
  append_number(out, "lookups_missed", a.lookups_missed);
  append_number(out, "exact_reads", a.exact_reads);
  append_number(out, "exact_bytes", a.exact_bytes);
  append_number(out, "exact_us", a.exact_ns / 1000);
  append_number(out, "leaves_fetched", a.leaves_fetched);
  append_number(out, "loads_begun", s.loads_begun);
  append_number(out, "loads_finished", s.loads_finished);
  out += "\"requests\":{";
  constexpr const char* kSizes[cache::ReadStats::kSizes] = {"4K", "64K", "256K", "1M", "more"};
  for (unsigned i = 0; i < cache::ReadStats::kSizes; ++i) append_number(out, kSizes[i], s.requests[i]);
  close_object(out);
  out += "},";
}

void append_readers(std::string& out, const ReaderTotals& all) {
  if (all.readers == 0) return;
  out += "\"reader\":{";
  append_number(out, "readers", all.readers);
  append_number(out, "index_read", all.index_read);
  append_number(out, "index_built", all.readers - all.index_read);
  append_number(out, "batches", all.batches);
  append_number(out, "records", all.records);
  append_number(out, "bytes", all.bytes_given);
  append_number(out, "read", all.bytes_read);
  append_number(out, "copied", all.bytes_copied);
  append_number(out, "requests", all.requests);
  append_number(out, "fetches", all.fetches);
  append_number(out, "fetches_cached", all.fetches_cached);
  append_number(out, "leaf_hits", all.leaf_hits);
  append_number(out, "leaf_misses", all.leaf_misses);
  append_number(out, "waits", all.waits);
  append_number(out, "wait_us", all.wait_ns / 1000);
  append_number(out, "failed", all.failed);
  append_number(out, "messages_sent", all.messages_sent);
  append_number(out, "bytes_sent", all.bytes_sent);
  append_number(out, "bytes_received", all.bytes_received);
  append_number(out, "bytes_from_nodes", all.bytes_from_nodes);
  append_number(out, "records_alone", all.records_alone);
  append_number(out, "most_memory", all.most_bytes);
  close_object(out);
  out += ',';
}

constexpr const char* kCursorOpNames[db::Counters::kCursorOps + 1] = {
    "first",      "first_dup", "get_both", "get_both_range", "get_current",   "get_multiple", "last",
    "last_dup",   "next",      "next_dup", "next_multiple",  "next_nodup",    "prev",         "prev_dup",
    "prev_nodup", "set",       "set_key",  "set_range",      "prev_multiple", "invalid"};

}  // namespace

std::uint64_t EnvironmentReport::cursor_gets() const noexcept {
  return std::accumulate(std::begin(calls.cursor_op), std::end(calls.cursor_op), std::uint64_t{0});
}

bool EnvironmentReport::is_unused() const noexcept {
  return calls.get + cursor_gets() + calls.begun + calls.renewed + forward_get + forward_cursor_get +
             forward_txn + forward_write + readers.batches ==
         0;
}

void append_json(std::string& out, const EnvironmentReport& r) {
  const db::Counters& calls = r.calls;
  const std::uint64_t cursor_get = r.cursor_gets();
  out += "{\"path\":";
  append_string(out, r.path.c_str());
  out += r.ours ? ",\"ours\":true,\"reason\":\"\"" : ",\"ours\":false,\"reason\":";
  if (!r.ours) append_string(out, r.reason.c_str());
  out += ",\"calls\":{";
  append_number(out, "get", calls.get);
  append_number(out, "cursor_get", cursor_get);
  append_number(out, "txn_begin", calls.begun);
  append_number(out, "txn_renew", calls.renewed);
  close_object(out);
  out += ",\"cursor_ops\":{";
  for (unsigned i = 0; i <= db::Counters::kCursorOps; ++i) {
    if (calls.cursor_op[i] != 0) append_number(out, kCursorOpNames[i], calls.cursor_op[i]);
  }
  close_object(out);
  out += ",\"forwarded\":{";
  append_number(out, "get", r.forward_get);
  append_number(out, "cursor_get", r.forward_cursor_get);
  append_number(out, "txn_begin", r.forward_txn);
  append_number(out, "write", r.forward_write);
  close_object(out);
  out += r.locks ? ",\"locks\":true," : ",\"locks\":false,";
  append_number(out, "without_slot", r.without_slot);
  append_number(out, "overtaken", r.overtaken);
  append_number(out, "records", calls.get - calls.get_missed + cursor_get - calls.cursor_failed);
  append_number(out, "bytes", calls.bytes);
  if (const db::PrefetchCounters& prefetch = calls.prefetch; prefetch.keys != 0) {
    out += "\"prefetch\":{";
    append_number(out, "keys", prefetch.keys);
    append_number(out, "found", prefetch.found);
    append_number(out, "cached", prefetch.cached);
    append_number(out, "arena", prefetch.arena);
    append_number(out, "read", prefetch.bytes);
    append_number(out, "requests", prefetch.requests);
    append_number(out, "hits", prefetch.hits);
    append_number(out, "waits", prefetch.waits);
    append_number(out, "dropped", prefetch.dropped);
    close_object(out);
    out += ',';
  }
  if (r.io) append_io(out, *r.io);
  append_readers(out, r.readers);
  if (r.use) {
    append_number(out, "minor_faults", r.use->minor_faults);
    append_number(out, "major_faults", r.use->major_faults);
    append_number(out, "voluntary_switches", r.use->voluntary_switches);
    append_number(out, "involuntary_switches", r.use->involuntary_switches);
    append_number(out, "open_us", r.use->open_us);
    if (r.use->storage_bytes) append_number(out, "storage_bytes", *r.use->storage_bytes);
  }
  close_object(out);
}

std::optional<std::uint64_t> process_storage_bytes() noexcept {
  const UniqueFd file(::open("/proc/self/io", O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t n = file.get() < 0 ? -1 : ::read(file.get(), text, sizeof text - 1);
  if (n <= 0) return std::nullopt;
  text[n] = '\0';
  constexpr char kName[] = "\nread_bytes: ";
  const char* const found = std::strstr(text, kName);
  if (found == nullptr) return std::nullopt;
  return std::strtoull(found + sizeof kName - 1, nullptr, 10);
}

std::string process_line(std::uint32_t pid, std::string_view state, std::string_view environments,
                         const char* unreached) {
  std::string line = "{\"lmdbio\":\"" LMDBIO_VERSION "\",";
  char host[65] = "";
  (void)::gethostname(host, sizeof host - 1);
  line += "\"host\":";
  append_string(line, host);
  line += ',';
  append_number(line, "pid", pid);
  if (!state.empty()) line += "\"state\":\"" + std::string(state) + "\",";
  line += "\"environments\":[";
  line += environments;
  line += ']';
  if (unreached != nullptr) {
    line += ",\"unreached\":";
    append_string(line, unreached);
  }
  return line += "}\n";
}

std::string expand(const std::string& pattern, std::uint32_t pid) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char c = pattern[++i];
    if (c == 'p') {
      out += std::to_string(pid);
    } else if (c == 'h') {
      char host[HOST_NAME_MAX + 1] = "unknown";
      (void)::gethostname(host, sizeof host - 1);
      out += host;
    } else if (c == '%') {
      out += '%';
    } else {
      out += '%';
      out += c;
    }
  }
  return out;
}

std::string topic_of(const std::string& pattern) {
  if (pattern.starts_with('/')) return pattern;
  char here[PATH_MAX];
  if (::getcwd(here, sizeof here) == nullptr) return pattern;
  std::string absolute;  // percent signs of the directory are doubled
  for (const char* c = here; *c != '\0'; ++c) absolute += *c == '%' ? "%%" : std::string(1, *c);
  return absolute + "/" + pattern;
}

}  // namespace lmdbio::stats
