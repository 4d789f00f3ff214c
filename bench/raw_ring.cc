// The limit of bench/cold.  Reads a data file in order with direct I/O, through a ring of huge-page buffers
// with many requests in flight, and XORs all bytes.  Does not use LMDB.
//
//   raw_ring DATABASE [--reverse] [--request BYTES] [--depth N]
#include <liburing.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/cold_result.h"
#include "bench/raw_file.h"
#include "bench/xor_bytes.h"

namespace lmdbio::bench {
namespace {

struct Options {
  std::string file;
  bool reverse = false;
  std::size_t request = 1u << 20;
  unsigned depth = 32;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--reverse") {
      o.reverse = true;
    } else if (a == "--request" && i + 1 < argc) {
      o.request = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--depth" && i + 1 < argc) {
      o.depth = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
    } else if (a[0] != '-' && o.file.empty()) {
      o.file = a + "/data.mdb";
    } else {
      die("usage: raw_ring DATABASE [--reverse] [--request BYTES] [--depth N]");
    }
  }
  if (o.file.empty()) die("raw_ring: no database");
  if (o.request == 0 || o.request % 4096 != 0) die("--request: not a multiple of 4096");
  if (o.depth == 0 || o.depth > 4096) die("--depth: not from 1 to 4096");
  return o;
}

class Ring {
 public:
  Ring(const Options& o, int fd, std::uint64_t file_bytes)
      : o_(o),
        fd_(fd),
        file_bytes_(file_bytes),
        blocks_((file_bytes + o.request - 1) / o.request),
        buffers_(make_buffers(o.request * o.depth)),
        got_(o.depth) {
    if (const int rc = io_uring_queue_init(o.depth, &ring_, 0); rc < 0)
      die("io_uring: %s", std::strerror(-rc));
  }
  ~Ring() { io_uring_queue_exit(&ring_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void read_all(ColdResult& r) {
    std::uint64_t asked = 0;
    for (; asked < std::min<std::uint64_t>(blocks_, o_.depth); ++asked) ask(asked, 0);
    submit();
    for (std::uint64_t block = 0; block < blocks_; ++block) {
      while (got_[slot(block)] < length(block)) wait();
      r.digest ^= xor_bytes(buffer(block), length(block));
      r.bytes += length(block);
      if (asked < blocks_) {
        ask(asked++, 0);
        submit();
      }
    }
  }

 private:
  std::size_t slot(std::uint64_t block) const { return block % o_.depth; }
  char* buffer(std::uint64_t block) const { return buffers_ + slot(block) * o_.request; }
  std::uint64_t offset(std::uint64_t block) const {
    return (o_.reverse ? blocks_ - 1 - block : block) * o_.request;
  }
  std::size_t length(std::uint64_t block) const {
    return static_cast<std::size_t>(std::min<std::uint64_t>(o_.request, file_bytes_ - offset(block)));
  }

  /// Requests the bytes of block `block` after its first `got` bytes.
  void ask(std::uint64_t block, std::size_t got) {
    got_[slot(block)] = got;
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) die("io_uring: no free entry");
    io_uring_prep_read(sqe, fd_, buffer(block) + got, static_cast<unsigned>(o_.request - got),
                       offset(block) + got);
    io_uring_sqe_set_data64(sqe, block);
  }

  void submit() {
    if (const int rc = io_uring_submit(&ring_); rc < 0) die("io_uring: %s", std::strerror(-rc));
  }

  void wait() {
    io_uring_cqe* cqe = nullptr;
    if (const int rc = io_uring_wait_cqe(&ring_, &cqe); rc < 0) {
      if (rc == -EINTR) return;
      die("io_uring: %s", std::strerror(-rc));
    }
    const std::uint64_t block = io_uring_cqe_get_data64(cqe);
    const int n = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    const bool again = n == -EINTR || n == -EAGAIN;
    if (n < 0 && !again) die("%s: %s", o_.file.c_str(), std::strerror(-n));
    if (n == 0) die("%s: shorter than it was", o_.file.c_str());
    std::size_t& got = got_[slot(block)];
    if (!again) got += static_cast<std::size_t>(n);
    if (got >= length(block)) return;
    ask(block, got);  // a short read
    submit();
  }

  const Options& o_;
  const int fd_;
  const std::uint64_t file_bytes_, blocks_;
  char* const buffers_;
  std::vector<std::size_t> got_;  // by slot
  io_uring ring_{};
};

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  ColdResult result;
  const RawFile file = open_raw(o.file);
  result.direct = file.direct;
  Ring ring(o, file.fd, file.bytes);
  const ProcessUse before = process_use();
  const std::uint64_t start = clock_ns();
  ring.read_all(result);
  result.seconds = static_cast<double>(clock_ns() - start) * 1e-9;
  print_result(result, before);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
