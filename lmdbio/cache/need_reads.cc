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

constexpr std::size_t kPlace = 4096;
/// Where bytes would go that nobody looks at.  Nothing is written there, so that it takes no memory.
alignas(kPlace) constinit std::byte nowhere[ReadQueue::kMostRequest];

/// What the queue has done since goes to the file's statistics.
void count(FileCache& file, ReadQueue& queue, IoEngine::Counters& counted) noexcept {
  const ReadQueue::Sizes sizes = queue.take_sizes();
  const IoEngine::Counters now = queue.counters();
  const std::lock_guard lock(*Prefetcher::existing());
  file.stats.add_reads(now, counted, sizes);
  counted = now;
}

}  // namespace

Result<std::unique_ptr<ReadQueue>> NeedReads::make_queue(const FileCache& file, const File& from,
                                                         EngineKind kind, std::size_t most_request) noexcept {
  try {
    Result<std::unique_ptr<IoEngine>> engine = engine_factory()(from, 1, kind, nullptr);
    if (!engine) return engine.error();
    // What is beyond the end is the engine's to find out: the file may have grown.
    auto queue = std::make_unique<ReadQueue>(std::move(engine).value(),
                                             std::numeric_limits<std::int64_t>::max(), most_request);
    queue->tell_stalls(file.name.c_str());
    return queue;
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

void NeedReads::forget() noexcept {
  queue_.reset();
  file_.reset();
  counted_ = {};
}

Status NeedReads::bring(FileCache& file, std::uint64_t offset, std::uint64_t bytes) noexcept {
  const AsyncSignalsBlocked fork_safe;
  if (queue_ != nullptr && (file_.get() != &file || queue_->forgotten())) forget();
  if (queue_ == nullptr) {
    Result<std::unique_ptr<ReadQueue>> made =
        make_queue(file, file.exact ? *file.exact : file.buffered, EngineKind::single_unread, sizeof nowhere);
    if (!made) return Status::from_errno(EBADF);
    queue_ = std::move(made).value();
    file_ = file.shared_from_this();
  }
  Status st;
  const std::uint64_t end = align_up(offset + bytes, kPlace);
  // One after the other, so that a file that cannot be read costs one failure.
  for (std::uint64_t at = align_down(offset, kPlace), n; st.ok() && at < end; at += n) {
    n = std::min<std::uint64_t>(end - at, sizeof nowhere);
    ReadGroup group;
    if (!queue_->add_unread(group, {at, n}, nowhere).ok()) return Status::from_errno(EBADF);
    st = queue_->wait(group);
    if (queue_->forgotten()) return Status::from_errno(EBADF);
  }
  count(file, *queue_, counted_);
  return st;
}

Status NeedReads::read(FileCache& file, std::uint64_t offset, MutableBytes to) noexcept {
  const AsyncSignalsBlocked fork_safe;
  const Result<std::unique_ptr<ReadQueue>> made =
      make_queue(file, file.buffered, EngineKind::single, std::max(to.size(), kPlace));
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
