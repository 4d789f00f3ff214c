#include "lmdbio/base/memory_facts.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio {
namespace {

/// Returns the start of a small file, or an empty text if the file cannot be read.
template <std::size_t N>
std::string_view read_start(const char* directory, const char* name, char (&buffer)[N]) noexcept {
  char path[PATH_MAX];
  if (std::snprintf(path, sizeof path, "%s%s", directory, name) >= static_cast<int>(sizeof path)) return {};
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return {};
  std::size_t n = 0;
  while (n < N) {
    const ssize_t got = ::read(fd.get(), buffer + n, N - n);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    n += static_cast<std::size_t>(got);
  }
  return {buffer, n};
}

std::optional<std::uint64_t> number(std::string_view text) noexcept {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::uint64_t n = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), n).ec != std::errc()) return {};
  return n;  // "max", which means no limit, is not a number
}

std::optional<std::uint64_t> number_in(const char* directory, const char* name) noexcept {
  char text[64];
  return number(read_start(directory, name, text));
}

/// Returns the value of a line "NAME VALUE" of memory.stat.
std::optional<std::uint64_t> field_of(std::string_view stat, std::string_view name) noexcept {
  std::size_t at = stat.find(name);
  while (at != std::string_view::npos && at != 0 && stat[at - 1] != '\n') at = stat.find(name, at + 1);
  return at == std::string_view::npos ? std::nullopt : number(stat.substr(at + name.size()));
}

/// Returns how many bytes of page cache are charged to a group and the groups below it.  The kernel counts
/// these bytes as used, but can reclaim them, including the active part (files that were read a second time).
/// In cgroup version 1, separate fields (total_*) include the groups below; in version 2, all fields do.
/// Version 2 also reports how much kernel memory can be reclaimed, such as cached file names.  This amount
/// is added.
std::uint64_t reclaimable_in(const char* directory) noexcept {
  char text[4096];
  const std::string_view stat = read_start(directory, "/memory.stat", text);
  const auto inactive = field_of(stat, "total_inactive_file "), active = field_of(stat, "total_active_file ");
  if (inactive || active) return inactive.value_or(0) + active.value_or(0);
  return field_of(stat, "inactive_file ").value_or(0) + field_of(stat, "active_file ").value_or(0) +
         field_of(stat, "slab_reclaimable ").value_or(0);
}

std::optional<std::uint64_t> meminfo(std::string_view text, std::string_view field) noexcept {
  const std::size_t at = text.find(field);
  if (at == std::string_view::npos) return {};
  const auto kib = number(text.substr(at + field.size()));
  return kib ? std::optional<std::uint64_t>(*kib * 1024) : std::nullopt;
}

/// Applies the limits of a group, and of all groups above it, to `facts`.  `group`: path of the group,
/// relative to `mount`.  `throttle_name`: name of a second limit, at which the kernel slows processes down,
/// or null if there is none.
void apply_groups(MemoryFacts& facts, const char* root, const char* mount, std::string_view group,
                  const char* limit_name, const char* throttle_name, const char* usage_name) noexcept {
  for (;;) {
    char directory[PATH_MAX];
    if (std::snprintf(directory, sizeof directory, "%s%s%.*s", root, mount, static_cast<int>(group.size()),
                      group.data()) >= static_cast<int>(sizeof directory))
      return;
    // Check every group, since a group whose limit is not the tightest may be fuller.
    auto limit = number_in(directory, limit_name);
    if (throttle_name != nullptr) {
      if (const auto high = number_in(directory, throttle_name); high)
        limit = std::min(*high, limit.value_or(*high));
    }
    if (limit) {
      // Among groups with the same limit, take the outermost one: all its processes share that limit.
      if (struct stat st; *limit <= facts.total && ::stat(directory, &st) == 0) facts.group = st.st_ino;
      facts.total = std::min(facts.total, *limit);
      const std::uint64_t used = number_in(directory, usage_name).value_or(0);
      const std::uint64_t cached = std::min(used, reclaimable_in(directory));
      facts.available = std::min(facts.available, *limit - std::min(used - cached, *limit));
    }
    const std::size_t slash = group.rfind('/');
    if (group.size() <= 1 || slash == std::string_view::npos) return;
    group = group.substr(0, slash);
  }
}

}  // namespace

MemoryFacts memory_facts(const char* root) noexcept {
  const int saved = errno;
  MemoryFacts facts;
  char text[4096];
  const std::string_view info = read_start(root, "/proc/meminfo", text);
  const auto total = meminfo(info, "MemTotal:"), available = meminfo(info, "MemAvailable:");
  if (total && available) {
    facts.total = *total;
    facts.available = *available;
  } else {
    struct sysinfo s {};
    if (::sysinfo(&s) == 0) facts = {s.totalram * s.mem_unit, s.freeram * s.mem_unit, 0};
    facts.known = false;
  }
  std::string_view groups = read_start(root, "/proc/self/cgroup", text);
  while (!groups.empty()) {
    const std::size_t end = std::min(groups.find('\n'), groups.size());
    const std::string_view line = groups.substr(0, end);
    groups.remove_prefix(std::min(end + 1, groups.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = line.substr(second + 1);
    if (controllers.empty())
      apply_groups(facts, root, "/sys/fs/cgroup", group, "/memory.max", "/memory.high", "/memory.current");
    else if (controllers.find("memory") != std::string_view::npos)
      apply_groups(facts, root, "/sys/fs/cgroup/memory", group, "/memory.limit_in_bytes", nullptr,
                   "/memory.usage_in_bytes");
  }
  errno = saved;
  return facts;
}

}  // namespace lmdbio
