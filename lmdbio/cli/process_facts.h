// Reads facts about another process from /proc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lmdbio::cli {

/// Facts about one process.
class ProcessFacts {
 public:
  /// Returns the facts about process `pid` if it has the System V segment `segment` attached.  Returns
  /// nullopt otherwise: `pid` belongs to another PID namespace, or /proc does not show the process.  May
  /// throw bad_alloc.
  static std::optional<ProcessFacts> find(std::uint32_t pid, int segment);

  /// Returns the text of /proc/PID/comm, which may contain any bytes.
  const std::string& command() const noexcept { return command_; }
  /// Returns a path of the file with that device and inode, if the process has mapped or opened it.
  /// Returns an empty string if no such path leads to this file in the calling process.  May throw
  /// bad_alloc.
  std::string path_of(std::uint64_t dev, std::uint64_t ino) const;

 private:
  struct Mapped {
    std::uint64_t ino;
    std::string path;
  };
  explicit ProcessFacts(std::string folder) noexcept : folder_(std::move(folder)) {}
  std::string folder_;  ///< in /proc
  std::string command_;
  std::vector<Mapped> mapped_;
};

}  // namespace lmdbio::cli
