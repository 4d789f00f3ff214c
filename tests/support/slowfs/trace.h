// A line for each read request that was answered.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::slowfs {

/// Lines of JSON:
///   begin_ns, end_ns  from the request to its answer, by CLOCK_MONOTONIC
///   process, thread   who asked, numbered as in the mount's PID namespace; 0: not known
///   file              its name
///   offset, bytes     as asked for
///   direct            the file was opened with O_DIRECT
/// Any thread.
class Trace {
 public:
  struct Read {
    std::int64_t begin_ns = 0;
    std::int64_t process = 0, thread = 0;
    std::string file;
    std::uint64_t offset = 0, bytes = 0;
    bool direct = false;
  };

  /// Adds to a file that was opened with O_APPEND; none: there is no trace.
  explicit Trace(UniqueFd file) : file_(std::move(file)) {}
  bool on() const noexcept { return static_cast<bool>(file_); }
  /// Of a thread that has asked and waits for the answer: its process.
  static std::int64_t process_of(std::int64_t thread);
  /// Call before the answer: who has got it finds the line there.
  void ended(const Read& read) const;

 private:
  const UniqueFd file_;
};

}  // namespace lmdbio::slowfs
