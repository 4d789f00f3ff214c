#include "lmdbio/window/kept_chunks.h"

#include <mutex>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::window {

namespace {

/// The part of the file that readers must have needed before all of it is read.
constexpr std::uint64_t kLeastPart = 8;

}  // namespace

bool KeptChunks::has(const Extent& extent) const noexcept {
  const std::uint64_t end = file_->chunks() * file_->chunk_bytes;
  if (extent.bytes == 0 || extent.offset >= end || extent.bytes > end - extent.offset) return false;
  const std::uint32_t last = raw(file_->chunk_at(extent.offset + extent.bytes - 1));
  for (std::uint32_t c = raw(file_->chunk_at(extent.offset)); c <= last; ++c)
    if (!file_->resident_now(ChunkIndex{c})) return false;
  return true;
}

void KeptChunks::need(std::uint64_t bytes, std::uint64_t requests) noexcept {
  if (is_loading()) return;
  bytes += bytes_.fetch_add(bytes, std::memory_order_relaxed);
  requests += requests_.fetch_add(requests, std::memory_order_relaxed);
  if (bytes < used_bytes_ / kLeastPart || requests < used_bytes_ / ReadQueue::kMostRequest) return;
  bytes_.store(0, std::memory_order_relaxed);
  requests_.store(0, std::memory_order_relaxed);
  const AsyncSignalsBlocked fork_safe;
  Prefetcher& prefetcher = *Prefetcher::existing();
  const std::lock_guard lock(prefetcher);
  if (!is_loading()) (void)prefetcher.begin_load_from_sources(*file_, used_bytes_);
}

}  // namespace lmdbio::window
