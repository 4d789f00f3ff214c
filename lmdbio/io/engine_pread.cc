#include "lmdbio/io/engine_pread.h"

#include <unistd.h>

#include <cerrno>

namespace lmdbio {

PreadEngine::PreadEngine(const File& file) noexcept
    : IoEngine({file.alignment(), 1, file.direct()}), fd_(file.fd()) {}

Result<std::size_t> PreadEngine::do_submit(std::span<const RawRead> reads) noexcept {
  if (done_ || reads.empty()) return std::size_t{0};
  const RawRead& r = reads.front();
  const ssize_t n = ::pread(fd_, r.dst.data(), r.dst.size(), static_cast<off_t>(r.offset));
  result_ = RawResult{r.slot, n < 0 ? -static_cast<long>(errno) : static_cast<long>(n)};
  done_ = true;
  return std::size_t{1};
}

Result<std::size_t> PreadEngine::do_reap(std::span<RawResult> out, std::size_t) noexcept {
  if (!done_ || out.empty()) return std::size_t{0};
  out.front() = result_;
  done_ = false;
  return std::size_t{1};
}

std::unique_ptr<IoEngine> pread_engine(const File& file) { return std::make_unique<PreadEngine>(file); }

}  // namespace lmdbio
