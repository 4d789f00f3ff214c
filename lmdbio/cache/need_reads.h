// Reads of what a thread of the program needs now, each of which it waits for.
#pragma once

#include <cstdint>
#include <memory>

#include "lmdbio/base/result.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::cache {

/// By way of a queue (io/read_queue.h) that the calling thread pumps: split, continued, tried again and
/// counted as all reads are, and told of when they stall.  Starts no thread.  One thread at a time; with no
/// SignalSafeMutex held.
class NeedReads {
 public:
  /// The pages that hold the bytes [offset, offset + bytes) are in the page cache afterwards, as far as the
  /// file has them, and nothing beyond them was asked for where the system lets us; each MiB is asked for in
  /// one call, so that storage gets few, large requests.  An errno: the read failed, and what lies beyond
  /// that MiB was not tried.  EBADF: nothing is known of the file; this is a forked child that cannot open it
  /// anew, or there is no memory.  The program's handlers run meanwhile.
  Status bring(FileCache& file, std::uint64_t offset, std::uint64_t bytes) noexcept;
  /// Lets go of the file.
  void forget() noexcept;

  /// Reads into `to`, by one request, through the page cache.  EIO also where the file ends before.
  /// ECANCELED, EBADF: a handler has forked meanwhile, and this is the child.
  static Status read(FileCache& file, std::uint64_t offset, MutableBytes to) noexcept;

 private:
  static Result<std::unique_ptr<ReadQueue>> make_queue(const FileCache& file, const File& from,
                                                       EngineKind kind, std::size_t most_request) noexcept;

  std::shared_ptr<FileCache> file_;  ///< the queue's, which goes first
  std::unique_ptr<ReadQueue> queue_;
  IoEngine::Counters counted_;  ///< of the queue's, those that are in the file's statistics
};

}  // namespace lmdbio::cache
