#include "lmdbio/io/engine_single.h"

#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio {

namespace {

// Reads bytes into the page cache only.  The kernel requests as much from storage as the call asks for.
// The bytes themselves are not needed, so all of them go to one small buffer, which stays in the CPU
// cache.
long read_into_page_cache(int fd, std::uint64_t offset, std::size_t bytes) noexcept {
  constexpr std::size_t kPlace = 4096, kPieces = 256;
  std::byte place[kPlace];
  iovec to[kPieces];
  int pieces = 0;
  for (std::size_t at = 0; at < bytes && pieces < static_cast<int>(kPieces); at += kPlace)
    to[pieces++] = {place, std::min(kPlace, bytes - at)};
  const ssize_t n = ::preadv(fd, to, pieces, static_cast<off_t>(offset));
  if (n < 0) return -static_cast<long>(errno);
  return n == 0 ? static_cast<long>(bytes) : static_cast<long>(n);
}

}  // namespace

void SingleEngine::Request::run(int fd) noexcept {
  if (fd < 0) {
    result = -EBADF;
  } else if (bytes == Bytes::unwanted) {
    result = read_into_page_cache(fd, read.offset, read.dst.size());
  } else {
    const ssize_t n = ::pread(fd, read.dst.data(), read.dst.size(), static_cast<off_t>(read.offset));
    result = n < 0 ? -static_cast<long>(errno) : static_cast<long>(n);
  }
}

Result<std::unique_ptr<IoEngine>> SingleEngine::make(const File& file, Bytes bytes) noexcept {
  std::shared_ptr<PrivateTable> table;
  if (file.kept() && !PrivateTable::inside()) {
    table = PrivateTable::get();
    if (table == nullptr) return Status::from_errno(EBADF);
  }
  std::unique_ptr<Request> request(new (std::nothrow) Request{file, bytes});
  if (request == nullptr) return Status::from_errno(ENOMEM);
  std::unique_ptr<IoEngine> made(new (std::nothrow) SingleEngine(std::move(request), std::move(table)));
  if (made == nullptr) return Status::from_errno(ENOMEM);
  return made;
}

SingleEngine::SingleEngine(std::unique_ptr<Request> request, std::shared_ptr<PrivateTable> table) noexcept
    : IoEngine({request->file.alignment(), 1, request->file.direct()}),
      request_(std::move(request)),
      table_(std::move(table)) {}

SingleEngine::~SingleEngine() {
  constexpr std::int64_t kPoll = 250'000'000;
  while (request_ != nullptr && busy_ && table_ != nullptr && !request_->done->is_set())
    request_->done->wait(kPoll);
}

// The parent's thread writes to the request, so the child leaves it alone.
void SingleEngine::forget() noexcept { (void)request_.release(); }

void SingleEngine::wait_briefly(std::int64_t ns) noexcept {
  if (request_ == nullptr) return;
  if (busy_) {
    if (table_ != nullptr && !request_->done->is_set()) request_->done->wait(ns);
  } else if (waits_to_retry()) {
    constexpr std::int64_t kTryAgain = 1'000'000;
    const timespec pause{0, static_cast<long>(std::min(ns, kTryAgain))};
    (void)::nanosleep(&pause, nullptr);
  }
}

Result<std::size_t> SingleEngine::do_submit(std::span<const RawRead> reads) noexcept {
  if (busy_ || reads.empty() || request_ == nullptr) return std::size_t{0};
  Request& r = *request_;
  r.read = reads.front();
  busy_ = true;
  if (table_ == nullptr) {
    const AsyncSignalsAllowed program;
    r.run(r.file.fd());
    return std::size_t{1};
  }
  r.done.emplace();
  r.job.emplace(
      [](void* request) noexcept {
        auto& its = *static_cast<Request*>(request);
        its.run(its.file.fd());
      },
      &r);
  table_->begin(*r.job, *r.done);
  return std::size_t{1};
}

Result<std::size_t> SingleEngine::do_reap(std::span<RawResult> out, std::size_t min) noexcept {
  if (!busy_ || out.empty() || request_ == nullptr) return std::size_t{0};
  while (table_ != nullptr && !request_->done->is_set()) {
    if (min == 0) return std::size_t{0};
    constexpr std::int64_t kPoll = 250'000'000;
    request_->done->wait(kPoll);
  }
  out.front() = RawResult{request_->read.slot, request_->result};
  busy_ = false;
  return std::size_t{1};
}

}  // namespace lmdbio
