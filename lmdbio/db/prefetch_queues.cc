#include "lmdbio/db/prefetch_queues.h"

#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/cache/io_worker.h"

namespace lmdbio::db {

bool PrefetchQueues::make(std::uint64_t file_bytes) {
  const EngineKind kind = engine_kind(config().engine);
  const char* name = "";
  direct_.reset();
  buffered_.reset();
  counted_direct_ = counted_buffered_ = {};
  Result<std::unique_ptr<IoEngine>> engine =
      cache::engine_factory()(file_.buffered(), kBufferedDepth, kind, &name);
  if (!engine) return false;
  buffered_ = std::make_unique<ReadQueue>(std::move(engine).value(), file_bytes);
  if (file_.direct() != nullptr) {
    if (engine = cache::engine_factory()(*file_.direct(), kDirectDepth, kind, &name); engine)
      direct_ = std::make_unique<ReadQueue>(std::move(engine).value(), file_bytes);
  }
  file_bytes_ = file_bytes;
  return true;
}

void PrefetchQueues::pump() noexcept {
  if (direct_ != nullptr) direct_->pump();
  if (buffered_ != nullptr) buffered_->pump();
}

bool PrefetchQueues::waiting() const noexcept {
  const auto waits = [](const std::unique_ptr<ReadQueue>& q) { return q != nullptr && q->waiting() != 0; };
  return waits(direct_) || waits(buffered_);
}

void PrefetchQueues::drop_all() noexcept {
  for (ReadQueue* const queue : {direct_.get(), buffered_.get()})
    if (queue != nullptr) queue->drop_all();
}

void PrefetchQueues::count(PrefetchCounters& to) noexcept {
  const auto since = [&to](const ReadQueue* queue, IoEngine::Counters& before) {
    if (queue == nullptr) return;
    to.bytes += queue->counters().bytes - before.bytes;
    to.requests += queue->counters().requests - before.requests;
    before = queue->counters();
  };
  since(direct_.get(), counted_direct_);
  since(buffered_.get(), counted_buffered_);
}

void PrefetchQueues::abandon() noexcept {
  (void)direct_.release();
  (void)buffered_.release();
  counted_direct_ = counted_buffered_ = {};
}

}  // namespace lmdbio::db
