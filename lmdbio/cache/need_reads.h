// Reads of single pages and values for a thread of the program, which waits for them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lmdbio/base/result.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::cache {

/// Reads what a lookup or a walk needs now.  The calling thread drives the queues (io/read_queue.h), so these
/// reads are split, continued, retried and counted as all reads are.  Starts no thread.  One thread at a
/// time; it must hold no SignalSafeMutex.
///
/// A small piece of a local file is read by the calling thread itself, through the program's descriptor.
/// Everything else is read by a thread of the private descriptor table, which costs two context switches
/// (decision 0034).
class NeedReads {
 public:
  /// The largest piece that the calling thread reads itself, in bytes.
  static constexpr std::uint64_t kMostBySelf = std::uint64_t{32} << 10;

  /// Brings the pages with the bytes [offset, offset + bytes) into the page cache, as far as the file has
  /// them. Makes one request per MiB, and asks the kernel for nothing beyond them.  `programs_fd` is the
  /// program's descriptor of the file, or -1; it may be closed or another file's by now.  The program's
  /// signal handlers run meanwhile.
  ///
  /// Returns an errno if a read failed; the MiB after it were not tried.  Returns EBADF if nothing was tried,
  /// because a forked child cannot open the file again or there is no memory.
  Status bring(FileCache& file, int programs_fd, std::uint64_t offset, std::uint64_t bytes) noexcept;
  /// Releases the file.
  void forget() noexcept;

  /// Reads to.size() bytes at `offset` into `to` by one request through the page cache.  Returns EIO if the
  /// file ends before.  Returns ECANCELED or EBADF in a child that a signal handler has forked meanwhile.
  static Status read(FileCache& file, std::uint64_t offset, MutableBytes to) noexcept;

 private:
  /// A queue of reads into the page cache, and the part of its counters that the file's statistics contain.
  struct Lane {
    std::unique_ptr<ReadQueue> queue;
    IoEngine::Counters counted;
    void forget() noexcept;
    Status bring(FileCache& file, const File& from, std::uint64_t offset, std::uint64_t bytes) noexcept;
  };

  bool may_read_by_self(const FileCache& file, int programs_fd) noexcept;

  std::shared_ptr<FileCache> file_;  ///< the lanes' file; declared first, since they must go before it
  std::optional<File> programs_;     ///< borrows the program's descriptor
  int programs_fd_ = -1;             ///< the number of that descriptor
  Lane program_lane_;                ///< reads programs_, in the calling thread
  Lane private_lane_;                ///< reads in a thread of the private table
};

}  // namespace lmdbio::cache
