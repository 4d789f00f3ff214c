// The file of an environment as read-ahead sees it: the current window over it, the WindowFile with the
// window's chunks, and what is in the page cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lmdbio/ahead/unmapped_file.h"
#include "lmdbio/base/result.h"
#include "lmdbio/gather/needed_pages.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/residency.h"
#include "lmdbio/window/window.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::ahead {

/// Any thread, unless stated otherwise.
class EnvironmentFile {
 public:
  struct Facts {
    int fd;            ///< in the program's descriptor table; -1: the window is over the caller's bytes
    FileIdentity id;   ///< of the file
    std::string path;  ///< absolute; empty: not known
    std::string name;  ///< for messages
    format::PageFormat pages;
    bool no_readahead;  ///< MDB_NORDAHEAD is set
    bool unmapped;      ///< the file cannot be mapped
  };
  explicit EnvironmentFile(Facts facts) noexcept;
  ~EnvironmentFile();
  EnvironmentFile(const EnvironmentFile&) = delete;
  EnvironmentFile& operator=(const EnvironmentFile&) = delete;

  int fd() const noexcept { return facts_.fd; }
  const FileIdentity& identity() const noexcept { return facts_.id; }
  const char* name() const noexcept { return facts_.name.c_str(); }
  bool no_readahead() const noexcept { return facts_.no_readahead; }
  bool unmapped() const noexcept { return facts_.unmapped; }
  /// Returns how to open the file again in our own descriptor table.
  Origin origin() const noexcept {
    return {facts_.fd, facts_.path.empty() ? nullptr : facts_.path.c_str(), facts_.id};
  }
  /// Returns whether walks may be read ahead: there is a file, read-ahead helps, and the configuration
  /// allows it.
  bool reads_ahead() const noexcept { return lookups_.path != ReadPath::page_faults; }
  /// Returns why reads_ahead() is false; a string literal.
  const char* no_read_ahead_reason() const noexcept { return lookups_.reason; }

  /// Returns the current window; nullptr: there is none.
  const std::shared_ptr<window::Window>& window() const noexcept { return window_; }
  /// Replaces the window.  No other thread may use this object meanwhile.
  void set_window(std::shared_ptr<window::Window> window) noexcept { window_ = std::move(window); }
  /// Creates unmapped_file(), with the current window as its first window.  Threads: as set_window().
  Status begin_unmapped(std::uint64_t used_pages);
  /// Returns nullptr if the file is mapped.
  UnmappedFile* unmapped_file() const noexcept { return unmapped_file_.get(); }
  /// Closes the window's WindowFile.  Threads: as set_window().
  void close_window_file() noexcept;

  /// Returns the current window's WindowFile.  The first call makes it, for a snapshot of `used_pages`.
  /// Returns nullptr if there can be none.
  std::shared_ptr<window::WindowFile> window_file(std::uint64_t used_pages) noexcept;
  /// Returns the WindowFile of the window to which `view` belongs.  `view` must belong to a running
  /// transaction.
  std::shared_ptr<window::WindowFile> window_file(const window::WindowView& view) noexcept;
  /// Returns the current window's WindowFile if it has been made, else nullptr.
  std::shared_ptr<window::WindowFile> existing_window_file() const noexcept;
  /// Reads a range of `file`, a WindowFile of this file, as NeededPages::bring() does, and counts the read.
  /// If an image cannot be read, reads the database instead.
  Status bring(gather::NeededPages& needs, window::WindowFile& file, std::uint64_t offset,
               std::uint64_t bytes) noexcept;
  /// Returns the statistics of `file`, a WindowFile of this file.  For an unmapped file they include all its
  /// windows.
  window::FileStats stats(const window::WindowFile& file) const noexcept {
    return unmapped_file_ != nullptr ? unmapped_file_->stats() : file.stats;
  }
  /// Called when a transaction of snapshot `txnid` begins, before it reads anything.  The file has
  /// `file_bytes`, and the snapshot uses `used_bytes` of it.  On ENOMEM the transaction must not begin.
  Status new_snapshot(std::uint64_t txnid, std::uint64_t file_bytes, std::uint64_t used_bytes) noexcept;

  /// Returns the resident share of a range, as Residency::share() does.  May open the file.
  std::optional<double> cached_share(std::uint64_t offset, std::uint64_t bytes,
                                     const window::WindowView& view) noexcept;
  /// Returns the time of a one-byte read in nanoseconds, or nothing if the read fails.  May open the file.
  std::optional<std::int64_t> time_read(std::uint64_t offset, const window::WindowView& view) noexcept;

 private:
  const Residency* residency() noexcept;

  const Facts facts_;
  const ReadDecision lookups_;
  std::shared_ptr<window::Window> window_;  ///< of an unmapped file: its first window
  std::unique_ptr<UnmappedFile> unmapped_file_;
  // Owned.  Replaced without a lock: by the one thread that changes the map size, or by compare-and-exchange.
  std::atomic<std::shared_ptr<window::WindowFile>*> window_file_{nullptr};
  std::atomic<const Residency*> residency_{nullptr};  ///< owned; made at the first use
  std::atomic<std::uint64_t> newest_{0};              ///< txnid of the newest snapshot seen
};

}  // namespace lmdbio::ahead
