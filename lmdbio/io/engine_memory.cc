#include "lmdbio/io/engine_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace lmdbio {

MemoryEngine::MemoryEngine(Bytes file, Caps caps) noexcept
    : IoEngine(caps), file_(file), done_(new (std::nothrow) RawResult[caps.depth]) {}

Result<std::size_t> MemoryEngine::do_submit(std::span<const RawRead> reads) noexcept {
  if (done_ == nullptr) return Status::from_errno(ENOMEM);
  const std::size_t n = std::min(reads.size(), caps().depth - count_);
  for (const RawRead& r : reads.first(n)) {
    const std::size_t left = r.offset < file_.size() ? file_.size() - static_cast<std::size_t>(r.offset) : 0;
    const std::size_t bytes = std::min(r.dst.size(), left);
    if (bytes != 0) std::memcpy(r.dst.data(), file_.data() + r.offset, bytes);
    done_[(first_ + count_++) % caps().depth] = RawResult{r.slot, static_cast<long>(bytes)};
  }
  return n;
}

Result<std::size_t> MemoryEngine::do_reap(std::span<RawResult> out, std::size_t) noexcept {
  const std::size_t n = std::min(out.size(), count_);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = done_[first_];
    first_ = (first_ + 1) % caps().depth;
    --count_;
  }
  return n;
}

std::unique_ptr<IoEngine> memory_engine(Bytes file, IoEngine::Caps caps) {
  return std::make_unique<MemoryEngine>(file, caps);
}

}  // namespace lmdbio
