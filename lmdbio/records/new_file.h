// Replaces a file atomically.
#pragma once

#include <string>
#include <utility>

#include "lmdbio/base/status.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio::records {

/// A new file that replaces the file at a path when it is complete.  One thread.  All functions may throw
/// bad_alloc; errors are those of the system calls.
class NewFile {
 public:
  explicit NewFile(std::string path) noexcept : path_(std::move(path)) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  /// Removes the new file, unless it has replaced the old file.
  ~NewFile();

  /// Makes a file without a name.  The kernel removes this file if the process is killed.  Fails with
  /// EOPNOTSUPP and other errors if the file system does not support such files.
  Status make_unnamed();
  /// Makes a file with a temporary name in the same directory.
  Status make_named();
  int fd() const noexcept { return fd_.get(); }
  bool named() const noexcept { return !name_.empty(); }
  /// Removes temporary files for the same path that killed processes left more than an hour ago.  Uses the
  /// clock of the file system.  Requires a file.
  void remove_abandoned() const;

  /// Replaces the file at the path, and makes this durable.  If this fails and named() is false, the file
  /// could not get a name.
  Status replace();

 private:
  bool link(const std::string& name) const noexcept;

  const std::string path_;
  UniqueFd fd_;
  std::string name_;  ///< empty if the file has no temporary name
};

}  // namespace lmdbio::records
