#include "lmdbio/gather/needed_pages.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/gather/queues.h"

namespace lmdbio::gather {

namespace {

constexpr std::size_t kPage = 4096;
/// The queues have no end of the file, which may have grown.  The engine detects the end.
constexpr std::uint64_t kNoEnd = std::numeric_limits<std::int64_t>::max();
/// The destination of reads whose bytes only have to reach the page cache.  Nothing is written there, so it
/// takes no memory.
alignas(kPage) constinit std::byte nowhere[ReadQueue::kMostRequest];

}  // namespace

// Reads one piece after the other, so that a file that cannot be read costs one failure.  If `from` is null,
// make_queue() chooses the descriptor.
Status NeededPages::bring_through(std::unique_ptr<ReadQueue>& queue, const File* from, const char* name,
                                  std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (queue != nullptr && queue->forgotten()) queue.reset();
  if (queue == nullptr) {
    Result<std::unique_ptr<ReadQueue>> made = from != nullptr ? make_queue(ReadKind::needed, *from, kNoEnd)
                                                              : make_queue(ReadKind::needed, *file_, kNoEnd);
    if (!made) return Status::from_errno(EBADF);
    queue = std::move(made).value();
    queue->tell_stalls(name);
  }
  Status st;
  for (std::uint64_t at = offset, n; st.ok() && at < offset + bytes; at += n) {
    n = std::min<std::uint64_t>(offset + bytes - at, sizeof nowhere);
    ReadGroup group;
    if (!queue->add_unread(group, {at, n}, nowhere).ok()) return Status::from_errno(EBADF);
    st = queue->wait(group);
    if (queue->forgotten()) return Status::from_errno(EBADF);
  }
  counts_.add(queue->take_counts());
  return st;
}

ReadCounts NeededPages::take_counts() noexcept { return std::exchange(counts_, {}); }

void NeededPages::forget() noexcept {
  own_.reset();
  private_.reset();
  programs_.reset();
  programs_fd_ = -1;
  file_.reset();
  counts_ = {};
}

// Another thread may close the descriptor after this check and before the read.  The read may then bring
// pages of another file into the page cache.  This does no harm: nobody uses these bytes, and the caller's
// page fault reads the right file.  If the descriptor has become one without offsets, such as a pipe, the
// read fails and takes no data from it.
bool NeededPages::may_read_by_self(int programs_fd) noexcept {
  if (!file_->local() || programs_fd < 0 || !is_inode(programs_fd, file_->identity())) return false;
  if (programs_ && programs_fd_ == programs_fd) return true;
  own_.reset();
  programs_.reset();
  Result<File> opened = File::from_fd(programs_fd, File::Take::borrow);
  if (!opened || opened.value().direct()) return false;
  programs_.emplace(std::move(opened).value());
  programs_fd_ = programs_fd;
  return true;
}

Status NeededPages::bring(const std::shared_ptr<const OpenFile>& file, const char* name, int programs_fd,
                          std::uint64_t offset, std::uint64_t bytes) noexcept {
  const AsyncSignalsBlocked fork_safe;
  if (file_ != file) {
    forget();
    file_ = file;
  }
  const std::uint64_t first = align_down(offset, kPage), length = align_up(offset + bytes, kPage) - first;
  if (length <= kMostBySelf && may_read_by_self(programs_fd)) {
    const Status st = bring_through(own_, &*programs_, name, first, length);
    if (st.ok() || st.raw() == EIO) return st;
  }
  return bring_through(private_, nullptr, name, first, length);
}

Status read_now(const OpenFile& file, const char* name, std::uint64_t offset, MutableBytes to,
                ReadCounts& counts) noexcept {
  const AsyncSignalsBlocked fork_safe;
  const Result<std::unique_ptr<ReadQueue>> made = make_queue(ReadKind::needed_copied, file, kNoEnd);
  if (!made) return made.error();
  ReadQueue& queue = *made.value();
  queue.tell_stalls(name);
  ReadGroup group;
  Status st = queue.add(group, {offset, to.size()}, to.data());
  if (!st.ok()) return st;
  st = queue.wait(group);
  if (queue.forgotten()) return Status::from_errno(ECANCELED);
  counts.add(queue.take_counts());
  return st;
}

}  // namespace lmdbio::gather
