// What /proc tells of another process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lmdbio::cli {

class ProcessFacts {
 public:
  /// The process `pid`, if it has the System V segment `segment` attached.  nullopt: it has not, since `pid`
  /// is of another PID namespace; or /proc does not tell.  May throw bad_alloc.
  static std::optional<ProcessFacts> find(std::uint32_t pid, int segment);

  /// As in /proc/PID/comm: any bytes.
  const std::string& command() const noexcept { return command_; }
  /// A path of the file with that device and inode, which the process has mapped or open.  Empty: none that
  /// leads to this file from here.  May throw bad_alloc.
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
