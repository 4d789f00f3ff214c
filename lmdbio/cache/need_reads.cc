#include "lmdbio/cache/need_reads.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <mutex>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/cache/engine_factory.h"
#include "lmdbio/cache/prefetcher.h"

namespace lmdbio::cache {

namespace {

constexpr std::size_t kPage = 4096;
/// The destination of reads whose bytes only have to reach the page cache.  Nothing is written there, so it
/// takes no memory.
alignas(kPage) constinit std::byte nowhere[ReadQueue::kMostRequest];

Result<std::unique_ptr<ReadQueue>> make_queue(const FileCache& file, const File& from, EngineKind kind,
                                              std::size_t most_request) noexcept {
  try {
    Result<std::unique_ptr<IoEngine>> engine = engine_factory()(from, 1, kind, nullptr);
    if (!engine) return engine.error();
    // The engine finds out where the file ends, because it may have grown.
    auto queue = std::make_unique<ReadQueue>(std::move(engine).value(),
                                             std::numeric_limits<std::int64_t>::max(), most_request);
    queue->tell_stalls(file.name.c_str());
    return queue;
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

/// Adds what the queue has done since `counted` to the file's statistics.
void count(FileCache& file, ReadQueue& queue, IoEngine::Counters& counted) noexcept {
  const ReadQueue::Sizes sizes = queue.take_sizes();
  const IoEngine::Counters now = queue.counters();
  const std::lock_guard lock(*Prefetcher::existing());
  file.stats.add_reads(now, counted, sizes);
  counted = now;
}

}  // namespace

void NeedReads::Lane::forget() noexcept {
  queue.reset();
  counted = {};
}

Status NeedReads::Lane::bring(FileCache& file, const File& from, std::uint64_t offset,
                              std::uint64_t bytes) noexcept {
  if (queue != nullptr && queue->forgotten()) forget();
  if (queue == nullptr) {
    Result<std::unique_ptr<ReadQueue>> made =
        make_queue(file, from, EngineKind::single_unread, sizeof nowhere);
    if (!made) return Status::from_errno(EBADF);
    queue = std::move(made).value();
  }
  Status st;
  // One piece after the other, so that a file that cannot be read costs one failure.
  for (std::uint64_t at = offset, n; st.ok() && at < offset + bytes; at += n) {
    n = std::min<std::uint64_t>(offset + bytes - at, sizeof nowhere);
    ReadGroup group;
    if (!queue->add_unread(group, {at, n}, nowhere).ok()) return Status::from_errno(EBADF);
    st = queue->wait(group);
    if (queue->forgotten()) return Status::from_errno(EBADF);
  }
  count(file, *queue, counted);
  return st;
}

void NeedReads::forget() noexcept {
  program_lane_.forget();
  private_lane_.forget();
  programs_.reset();
  programs_fd_ = -1;
  file_.reset();
}

// The check can be out of date when the read is made, if another thread closes the descriptor in between.
// Then pages of another file come into the page cache, and the caller's page fault reads its own: no bytes
// are used. A descriptor that is no file has no offsets, so the read fails and takes nothing from it.
bool NeedReads::may_read_by_self(const FileCache& file, int programs_fd) noexcept {
  if (!file.local || programs_fd < 0 || !is_inode(programs_fd, file.file->identity())) return false;
  if (programs_ && programs_fd_ == programs_fd) return true;
  program_lane_.forget();
  programs_.reset();
  Result<File> opened = File::from_fd(programs_fd, File::Take::borrow);
  if (!opened || opened.value().direct()) return false;
  programs_.emplace(std::move(opened).value());
  programs_fd_ = programs_fd;
  return true;
}

Status NeedReads::bring(FileCache& file, int programs_fd, std::uint64_t offset,
                        std::uint64_t bytes) noexcept {
  const AsyncSignalsBlocked fork_safe;
  if (file_.get() != &file) {
    forget();
    file_ = file.shared_from_this();
  }
  const std::uint64_t first = align_down(offset, kPage), length = align_up(offset + bytes, kPage) - first;
  if (length <= kMostBySelf && may_read_by_self(file, programs_fd)) {
    const Status st = program_lane_.bring(file, *programs_, first, length);
    if (st.ok() || st.raw() == EIO) return st;
  }
  return private_lane_.bring(file, file.exact ? *file.exact : file.buffered, first, length);
}

Status NeedReads::read(FileCache& file, std::uint64_t offset, MutableBytes to) noexcept {
  const AsyncSignalsBlocked fork_safe;
  const Result<std::unique_ptr<ReadQueue>> made =
      make_queue(file, file.buffered, EngineKind::single, std::max(to.size(), kPage));
  if (!made) return made.error();
  ReadQueue& queue = *made.value();
  ReadGroup group;
  Status st = queue.add(group, {offset, to.size()}, to.data());
  if (!st.ok()) return st;
  st = queue.wait(group);
  if (queue.forgotten()) return Status::from_errno(ECANCELED);
  IoEngine::Counters none;
  count(file, queue, none);
  return st;
}

}  // namespace lmdbio::cache
