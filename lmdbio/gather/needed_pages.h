// Reads of single pages and values for a thread of the program, which waits for them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::gather {

/// Reads what a lookup or a walk needs now.  The calling thread drives the queues (io/read_queue.h), so these
/// reads are split, continued, retried and counted like all other reads.  Starts no thread.  One thread at a
/// time; it must hold no SignalSafeMutex.
///
/// A small piece of a local file is read by the calling thread itself, through the program's descriptor.
/// Everything else is read by a thread of the private descriptor table, which costs two context switches
/// (decision 0034).
class NeededPages {
 public:
  /// The largest piece that the calling thread reads itself, in bytes.
  static constexpr std::uint64_t kMostBySelf = std::uint64_t{32} << 10;

  /// Reads the pages with the bytes [offset, offset + bytes), up to the end of the file, into the page cache.
  /// Makes one request per MiB, and requests no other pages.  `name`: the name of the file, for messages;
  /// must live as long as the queues.  `programs_fd`: the program's descriptor of the file, or -1.  The
  /// descriptor may be closed by now, or belong to another file.  The program's signal handlers run
  /// meanwhile.
  ///
  /// Returns an errno if a read failed; the requests after it were then not made.  Returns EBADF if nothing
  /// was tried, because a forked child cannot open the file again or memory is short.
  Status bring(const std::shared_ptr<const OpenFile>& file, const char* name, int programs_fd,
               std::uint64_t offset, std::uint64_t bytes) noexcept;
  /// Returns what was read since the last call.
  ReadCounts take_counts() noexcept;
  /// Releases the file.  Drops counts that were not taken.
  void forget() noexcept;

 private:
  Status bring_through(std::unique_ptr<ReadQueue>& queue, const File* from, const char* name,
                       std::uint64_t offset, std::uint64_t bytes) noexcept;
  bool may_read_by_self(int programs_fd) noexcept;

  std::shared_ptr<const OpenFile> file_;  ///< declared first, since the queues must be destroyed before it
  std::optional<File> programs_;          ///< borrows the program's descriptor
  int programs_fd_ = -1;                  ///< the number of that descriptor
  std::unique_ptr<ReadQueue> own_;        ///< reads programs_, in the calling thread
  std::unique_ptr<ReadQueue> private_;    ///< reads in a thread of the private table
  ReadCounts counts_;
};

/// Reads to.size() bytes at `offset` into `to` with one request through the page cache, and adds the read to
/// `counts`.  The program's signal handlers run meanwhile.  Returns EIO if the file ends earlier, and
/// ECANCELED or EBADF in a child that a signal handler has forked meanwhile.
Status read_now(const OpenFile& file, const char* name, std::uint64_t offset, MutableBytes to,
                ReadCounts& counts) noexcept;

}  // namespace lmdbio::gather
