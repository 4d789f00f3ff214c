#include "lmdbio/io/engine_uring.h"

#include <cerrno>

#ifndef LMDBIO_HAVE_URING

namespace lmdbio {

Result<std::unique_ptr<IoEngine>> uring_engine(const File&, unsigned) noexcept {
  return Status::from_errno(ENOSYS);
}

}  // namespace lmdbio

#else

#include <liburing.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio {
namespace {

class UringEngine final : public IoEngine {
 public:
  UringEngine(const File& file, unsigned depth) noexcept
      : IoEngine({file.alignment(), depth, file.direct()}), fd_(file.fd()) {}
  ~UringEngine() override;
  Status start() noexcept;
  int ready_fd() const noexcept override { return made_ ? ring_.ring_fd : -1; }
  void forget() noexcept override;

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;
  Status try_nothing() noexcept;
  void allow_workers() noexcept;
  long read_at_end(unsigned slot) noexcept;
  void wait_for_one() noexcept;

  const int fd_;
  bool made_ = false;
  io_uring ring_{};
  // One vector per slot, for IORING_OP_READV, since IORING_OP_READ needs Linux 5.6.  Before Linux 5.5,
  // IORING_OP_READV uses its vectors until the read ends.
  struct Sent {
    iovec to;
    std::uint64_t offset;
  };
  std::unique_ptr<Sent[]> sent_;
  std::size_t in_kernel_ = 0;  // reads in flight
};

UringEngine::~UringEngine() {
  if (!made_) return;
  while (in_kernel_ != 0) wait_for_one();
  ::io_uring_queue_exit(&ring_);
}

Status UringEngine::start() noexcept {
  sent_.reset(new (std::nothrow) Sent[caps().depth]);
  if (sent_ == nullptr) return Status::from_errno(ENOMEM);
  // Set no flags, since they are newer than Linux 5.4.  The completion queue cannot overflow: at most depth
  // reads are in flight, and it has twice as many entries.
  if (const int rc = ::io_uring_queue_init(caps().depth, &ring_, 0); rc < 0) return Status::from_kernel(rc);
  made_ = true;
  if (PrivateTable::inside() && PrivateTable::crowded(ring_.ring_fd)) return Status::from_errno(EMFILE);
  // Without this, a forked child would have a copy of the ring's memory, to which the kernel does not
  // write.
  if (const int rc = ::io_uring_ring_dontfork(&ring_); rc < 0) return Status::from_kernel(rc);
  if (const Status s = try_nothing(); !s.ok()) return s;
  allow_workers();
  return Status();
}

// Submits a no-op, since a seccomp filter may allow the set-up and forbid everything after it.
Status UringEngine::try_nothing() noexcept {
  io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return Status::from_errno(EINVAL);
  ::io_uring_prep_nop(sqe);
  int rc;
  do rc = ::io_uring_submit(&ring_);
  while (rc == -EINTR);
  if (rc != 1) return Status::from_errno(rc < 0 ? -rc : EIO);
  io_uring_cqe* cqe = nullptr;
  do rc = ::io_uring_wait_cqe(&ring_, &cqe);
  while (rc == -EINTR);
  if (rc < 0) return Status::from_kernel(rc);
  const Status s = Status::from_kernel(cqe->res);
  ::io_uring_cqe_seen(&ring_, cqe);
  return s;
}

// Raises the limit on kernel workers to the queue depth, or to kMostWorkers, on Linux 5.15 and later. Workers
// read file systems without asynchronous reads, such as FUSE.  A worker whose read has ended starts the next
// one of the queue.  The default limit is four workers per CPU.
void UringEngine::allow_workers() noexcept {
  constexpr unsigned kMostWorkers = 128;
  const unsigned wanted = std::min(caps().depth, kMostWorkers);
  unsigned most[2] = {0, 0};  // 0: query the limits
  if (::io_uring_register_iowq_max_workers(&ring_, most) != 0 || most[0] >= wanted) return;
  most[0] = wanted;
  most[1] = 0;  // 0: leave this limit as it is
  (void)::io_uring_register_iowq_max_workers(&ring_, most);
}

// Does not unmap the ring.  The child does not have its mapping (MADV_DONTFORK), and another mapping may be
// at its addresses now.
void UringEngine::forget() noexcept {
  if (!std::exchange(made_, false)) return;
  UniqueFd(ring_.ring_fd).reset();
  in_kernel_ = 0;
}

Result<std::size_t> UringEngine::do_submit(std::span<const RawRead> reads) noexcept {
  std::size_t prepared = 0;
  for (const RawRead& r : reads) {
    io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) break;
    sent_[r.slot] = {{r.dst.data(), r.dst.size()}, r.offset};
    ::io_uring_prep_readv(sqe, fd_, &sent_[r.slot].to, 1, r.offset);
    ::io_uring_sqe_set_data64(sqe, r.slot);
    ++prepared;
  }
  const int rc = ::io_uring_submit(&ring_);
  const std::size_t taken = rc > 0 ? std::min(static_cast<std::size_t>(rc), prepared) : 0;
  if (taken < prepared) {
    // Without a polling thread, the kernel reads the queue only within io_uring_enter().  Remove the entries
    // that it has not taken, since the next submission would include them.
    io_uring_sq& sq = ring_.sq;
    sq.sqe_head = sq.sqe_tail = *sq.khead;
    io_uring_smp_store_release(sq.ktail, *sq.khead);
  }
  in_kernel_ += taken;
  if (rc == -EBUSY) return std::size_t{0};  // reap first
  if (rc < 0) return Status::from_kernel(rc);
  return taken;
}

Result<std::size_t> UringEngine::do_reap(std::span<RawResult> out, std::size_t min) noexcept {
  assert(min <= in_kernel_);
  int rc = 0;
  if (min != 0) {
    io_uring_cqe* first;
    rc = ::io_uring_wait_cqe_nr(&ring_, &first, static_cast<unsigned>(min));
  }
  std::size_t n = 0;
  for (io_uring_cqe* cqe; n < out.size() && ::io_uring_peek_cqe(&ring_, &cqe) == 0; ++n) {
    const auto slot = static_cast<unsigned>(::io_uring_cqe_get_data64(cqe));
    out[n] = RawResult{slot, cqe->res != 0 ? cqe->res : read_at_end(slot)};
    ::io_uring_cqe_seen(&ring_, cqe);
  }
  in_kernel_ -= n;
  if (n == 0 && rc < 0) return Status::from_kernel(rc);
  return n;
}

// Repeats a read that returned 0 with pread(2), and returns its result.  For files on FUSE that are read past
// the page cache, an asynchronous read ends at the length that the kernel remembers (fuse_direct_IO() in
// fs/fuse/file.c), and the file may have grown since.  pread(2) asks the file system.
long UringEngine::read_at_end(unsigned slot) noexcept {
  const Sent& sent = sent_[slot];
  const ssize_t n = ::pread(fd_, sent.to.iov_base, sent.to.iov_len, static_cast<off_t>(sent.offset));
  return n >= 0 ? n : -errno;
}

// Waits for one read, for the destructor.  A read must end before its memory is freed, even if the kernel
// refuses to wait.
void UringEngine::wait_for_one() noexcept {
  io_uring_cqe* cqe = nullptr;
  int rc = ::io_uring_wait_cqe(&ring_, &cqe);
  if (rc != 0 && rc != -EINTR) {  // waiting is forbidden by now: poll every 10 ms
    pollfd ready = {ring_.ring_fd, POLLIN, 0};
    (void)::poll(&ready, 1, 10);
    rc = ::io_uring_peek_cqe(&ring_, &cqe);
  }
  if (rc != 0) return;
  ::io_uring_cqe_seen(&ring_, cqe);
  --in_kernel_;
}

}  // namespace

Result<std::unique_ptr<IoEngine>> uring_engine(const File& file, unsigned depth) noexcept {
  if (depth == 0) return Status::from_errno(EINVAL);
  std::unique_ptr<UringEngine> engine(new (std::nothrow) UringEngine(file, depth));
  if (engine == nullptr) return Status::from_errno(ENOMEM);
  if (const Status s = engine->start(); !s.ok()) return s;
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace lmdbio

#endif
