#include "tests/support/slowfs/settings.h"

#include <fnmatch.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <limits>

namespace lmdbio::slowfs {
namespace {

enum class Kind { kNumber, kFlag, kErrno, kMillis, kId, kMode };

struct Field {
  const char* name;
  Kind kind;
  std::int64_t& (*of)(Settings&);
  const char* help;
};

#define FIELD(name, kind, member, help)                                           \
  {                                                                               \
    name, Kind::kind, [](Settings& s) -> std::int64_t& { return s.member; }, help \
  }
constexpr Field kFields[] = {
    FIELD("delay_us", kNumber, delay_us, "answer each read request this much later"),
    FIELD("metadata_delay_us", kNumber, metadata_delay_us,
          "answer each lookup of a name, and each open of a file, this much later"),
    FIELD("bandwidth", kNumber, bandwidth, "bytes a second that all mounts of the group may read; 0: no cap"),
    FIELD("read_ahead_kb", kNumber, read_ahead_kb,
          "the mount's kernel read-ahead, for files opened afterwards (needs a writable /sys)"),
    FIELD("fail_errno", kErrno, fail_errno, "what failing reads answer"),
    FIELD("fail_at", kNumber, fail.at, "fail the k-th read request"),
    FIELD("fail_from", kNumber, fail.from, "fail read requests from the k-th on"),
    FIELD("fail_every", kNumber, fail.every, "fail every n-th read request"),
    FIELD("short_bytes", kNumber, short_bytes, "what short reads give at most"),
    FIELD("short_at", kNumber, shorten.at, "cut the k-th read request short"),
    FIELD("short_from", kNumber, shorten.from, "cut read requests short from the k-th on"),
    FIELD("short_every", kNumber, shorten.every, "cut every n-th read request short"),
    FIELD("hang_ms", kMillis, hang_ms, "how long hanging reads hang, or `forever`: until release=1"),
    FIELD("hang_at", kNumber, hang.at, "hang at the k-th read request"),
    FIELD("hang_from", kNumber, hang.from, "hang at read requests from the k-th on"),
    FIELD("hang_every", kNumber, hang.every, "hang at every n-th read request"),
    FIELD("no_mmap", kFlag, no_mmap,
          "files opened afterwards: mmap with MAP_SHARED is ENODEV, reads uncached"),
    FIELD("raw_direct", kFlag, raw_direct,
          "files opened afterwards with O_DIRECT: short reads are shown, hanging ones can be killed"),
    FIELD("cold_open", kFlag, cold_open, "each open drops what the page cache has of the file"),
    FIELD("direct_errno", kErrno, direct_errno, "refuse opens with O_DIRECT"),
    FIELD("create_errno", kErrno, create_errno, "refuse to create files and directories"),
    FIELD("write_open_errno", kErrno, write_open_errno, "refuse opens for writing"),
    FIELD("lock_errno", kErrno, lock_errno, "refuse fcntl locks (releasing one is always possible)"),
    FIELD("lock_hang_ms", kMillis, lock_hang_ms, "keep who asks for a fcntl lock waiting, or `forever`"),
    FIELD("uid", kId, uid, "owner of everything, as shown; -1: the source's"),
    FIELD("gid", kId, gid, "group of everything, as shown; -1: the source's"),
    FIELD("file_mode", kMode, file_mode, "permissions of files, as shown, octal; -1: the source's"),
    FIELD("dir_mode", kMode, dir_mode, "permissions of directories, as shown, octal; -1: the source's"),
};
#undef FIELD
constexpr char kFilesHelp[] =
    "fnmatch(3) pattern of base names that faults, refusals and request numbers are for";

bool parse_errno(std::string_view text, std::int64_t& out) {
  if (parse_number(text, 0, 4095, out)) return true;
  for (int e = 1; e < 256; ++e) {
    const char* const name = ::strerrorname_np(e);
    if (name != nullptr && text == name) {
      out = e;
      return true;
    }
  }
  return false;
}

bool parse(Kind kind, std::string_view text, std::int64_t& out) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max() / 2'000'000;
  switch (kind) {
    case Kind::kNumber:
      return parse_number(text, 0, kMax, out);
    case Kind::kFlag:
      return parse_number(text, 0, 1, out);
    case Kind::kErrno:
      return parse_errno(text, out);
    case Kind::kMillis:
      if (text == "forever") {
        out = Settings::kForever;
        return true;
      }
      return parse_number(text, 0, 1'000'000'000, out);
    case Kind::kId:
      return parse_number(text, -1, std::numeric_limits<std::uint32_t>::max() - 1, out);
    case Kind::kMode:
      return text == "-1" ? (out = -1, true) : parse_number(text, 0, 07777, out, 8);
  }
  return false;
}

}  // namespace

bool parse_number(std::string_view text, std::int64_t low, std::int64_t high, std::int64_t& out, int base) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n, base);
  if (error != std::errc() || end != text.data() + text.size() || n < low || n > high) return false;
  out = n;
  return true;
}

Settings::Settings() : fail_errno(EIO) {}

bool Settings::set(std::string_view name, std::string_view value, std::string& why) {
  if (name == "files") {
    files = value;
    return true;
  }
  for (const Field& f : kFields) {
    if (name != f.name) continue;
    if (parse(f.kind, value, f.of(*this))) return true;
    why = std::string(name) + ": not a value for it: " + std::string(value);
    return false;
  }
  why = "no such setting: " + std::string(name);
  return false;
}

nlohmann::json Settings::json() const {
  nlohmann::json out{{"files", files}};
  Settings copy = *this;
  for (const Field& f : kFields) out[f.name] = f.of(copy);
  return out;
}

bool Settings::concerns(const std::string& name) const {
  return ::fnmatch(files.c_str(), name.c_str(), 0) == 0;
}

std::vector<SettingHelp> setting_helps() {
  std::vector<SettingHelp> out;
  for (const Field& f : kFields) out.push_back({f.name, f.help});
  out.push_back({"files", kFilesHelp});
  return out;
}

}  // namespace lmdbio::slowfs
