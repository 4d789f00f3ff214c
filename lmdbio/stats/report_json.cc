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

template <class T, class C, std::size_t n>
void append_counters(std::string& out, const T& record, const CounterField<T, C> (&fields)[n]) {
  for (const CounterField<T, C>& f : fields) append_number(out, f.name, record.*f.counter / f.unit);
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
  out += ",\"engine\":";
  append_string(out, io.engine.c_str());
  out += ",\"residency\":";
  append_string(out, io.residency.c_str());
  out += ',';
  append_number(out, "chunk_bytes", io.chunk_bytes);
  append_number(out, "memory_limit", io.memory_limit);
  append_counters(out, io.stats, window::kFileStats);
  out += "\"requests\":{";
  constexpr const char* kSizes[ReadCounts::kSizes] = {"4K", "64K", "256K", "1M", "more"};
  for (unsigned i = 0; i < ReadCounts::kSizes; ++i) append_number(out, kSizes[i], io.stats.requests[i]);
  close_object(out);
  out += "},";
}

void append_readers(std::string& out, const ReaderTotals& all) {
  if (all.readers == 0) return;
  out += "\"reader\":{";
  append_number(out, "readers", all.readers);
  append_number(out, "index_built", all.readers - all.counters.index_read);
  append_counters(out, all.counters, records::kCounters);
  append_number(out, "most_memory", all.most_bytes);
  close_object(out);
  out += ',';
}

constexpr const char* kCursorOpNames[tree::Counters::kCursorOps + 1] = {
    "first",      "first_dup", "get_both", "get_both_range", "get_current",   "get_multiple", "last",
    "last_dup",   "next",      "next_dup", "next_multiple",  "next_nodup",    "prev",         "prev_dup",
    "prev_nodup", "set",       "set_key",  "set_range",      "prev_multiple", "invalid"};

}  // namespace

std::uint64_t EnvironmentReport::cursor_gets() const noexcept {
  return std::accumulate(std::begin(calls.cursor_op), std::end(calls.cursor_op), std::uint64_t{0});
}

bool EnvironmentReport::is_unused() const noexcept {
  return calls.get + cursor_gets() + calls.begun + calls.renewed + forward_get + forward_cursor_get +
             forward_txn + forward_write + readers.counters.batches ==
         0;
}

void append_json(std::string& out, const EnvironmentReport& r) {
  const tree::Counters& calls = r.calls;
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
  for (unsigned i = 0; i <= tree::Counters::kCursorOps; ++i) {
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
  if (const tree::PrefetchCounters& prefetch = calls.prefetch; prefetch.keys != 0) {
    out += "\"prefetch\":{";
    append_counters(out, prefetch, tree::kPrefetchCounters);
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
  std::string absolute;  // the loop below doubles the directory's percent signs
  for (const char* c = here; *c != '\0'; ++c) absolute += *c == '%' ? "%%" : std::string(1, *c);
  return absolute + "/" + pattern;
}

}  // namespace lmdbio::stats
