#include "lmdbio/cli/process_facts.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace lmdbio::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSegment = "/SYSV";

bool is_file(const char* path, std::uint64_t dev, std::uint64_t ino) noexcept {
  struct stat st {};
  return ::stat(path, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

}  // namespace

std::optional<ProcessFacts> ProcessFacts::find(std::uint32_t pid, int segment) {
  ProcessFacts found("/proc/" + std::to_string(pid));
  bool has_segment = false;
  std::ifstream maps(found.folder_ + "/maps");
  for (std::string line; std::getline(maps, line);) {
    // Skip addresses, access, offset and device.  For a segment, the inode is its number.
    unsigned long long ino = 0;
    int at = -1;
    if (std::sscanf(line.c_str(), "%*s %*s %*s %*s %llu %n", &ino, &at) != 1 || at < 0) continue;
    const std::string_view path = std::string_view(line).substr(static_cast<std::size_t>(at));
    if (!path.starts_with('/')) continue;
    if (path.starts_with(kSegment))
      has_segment |= segment >= 0 && ino == static_cast<unsigned>(segment);
    else if (found.mapped_.empty() || found.mapped_.back().ino != ino)
      found.mapped_.push_back({ino, std::string(path)});
  }
  if (!has_segment) return std::nullopt;
  std::ifstream comm(found.folder_ + "/comm", std::ios::binary);
  std::getline(comm, found.command_, '\0');
  if (found.command_.ends_with('\n')) found.command_.pop_back();
  return found;
}

std::string ProcessFacts::path_of(std::uint64_t dev, std::uint64_t ino) const {
  for (const Mapped& m : mapped_)
    if (m.ino == ino && is_file(m.path.c_str(), dev, ino)) return m.path;
  // On some file systems (overlayfs), mappings show other inodes than stat(2) does.
  std::error_code failed;
  for (fs::directory_iterator at(folder_ + "/fd", failed), end; !failed && at != end; at.increment(failed)) {
    if (!is_file(at->path().c_str(), dev, ino)) continue;
    std::error_code unread;
    std::string path = fs::read_symlink(at->path(), unread).string();
    if (!unread && is_file(path.c_str(), dev, ino)) return path;
  }
  return "";
}

}  // namespace lmdbio::cli
