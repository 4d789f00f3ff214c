// The limit of bench/random and bench/index.  Reads known places of a data file with direct I/O and many
// requests in flight, and XORs all their bytes.  Does not use LMDB.
//
//   raw_extents DATABASE --places FILE [--depth N] [--merge BYTES [--gap BYTES]]
//
// By default one request reads the 4 KiB blocks of one place, in the order of the file of places.  With
// --merge, the order is that of the data file, and one request of at most this size reads places that are at
// most --gap bytes apart.
#include <liburing.h>

#include <algorithm>
#include <numeric>

#include "bench/random_run.h"
#include "bench/raw_file.h"

namespace lmdbio::bench {
namespace {

constexpr std::uint64_t kBlock = 4096;

struct Options {
  std::string file, places;
  unsigned depth = 64;
  std::uint64_t merge = 0, gap = 0;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--places" && i + 1 < argc) {
      o.places = argv[++i];
    } else if (a == "--depth" && i + 1 < argc) {
      o.depth = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
    } else if (a == "--merge" && i + 1 < argc) {
      o.merge = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--gap" && i + 1 < argc) {
      o.gap = std::strtoull(argv[++i], nullptr, 10);
    } else if (a[0] != '-' && o.file.empty()) {
      o.file = a + "/data.mdb";
    } else {
      die("usage: raw_extents DATABASE --places FILE [--depth N] [--merge BYTES [--gap BYTES]]");
    }
  }
  if (o.file.empty() || o.places.empty()) die("raw_extents: a database and --places");
  if (o.depth == 0 || o.depth > 4096) die("--depth: not from 1 to 4096");
  return o;
}

/// Whole blocks of the file, and the places in them: order[first] to order[last - 1].
struct Request {
  std::uint64_t begin = 0, end = 0;
  std::size_t first = 0, last = 0;
};

struct Plan {
  std::vector<Place> places;
  std::vector<std::size_t> order;  // of places
  std::vector<Request> requests;
  std::uint64_t largest = 0;
};

Plan make_plan(const Options& o) {
  Plan plan;
  plan.places = read_places(o.places);
  plan.order.resize(plan.places.size());
  std::iota(plan.order.begin(), plan.order.end(), std::size_t{0});
  if (o.merge != 0)
    std::sort(plan.order.begin(), plan.order.end(),
              [&](std::size_t a, std::size_t b) { return plan.places[a].offset < plan.places[b].offset; });
  for (std::size_t i = 0; i < plan.order.size(); ++i) {
    const Place& p = plan.places[plan.order[i]];
    const std::uint64_t begin = p.offset / kBlock * kBlock;
    const std::uint64_t end = (p.offset + p.bytes + kBlock - 1) / kBlock * kBlock;
    Request* const before = plan.requests.empty() ? nullptr : &plan.requests.back();
    if (o.merge != 0 && before != nullptr && begin <= before->end + o.gap &&
        std::max(end, before->end) - before->begin <= o.merge) {
      before->end = std::max(end, before->end);
      before->last = i + 1;
    } else {
      plan.requests.push_back({begin, end, i, i + 1});
    }
    plan.largest = std::max(plan.largest, plan.requests.back().end - plan.requests.back().begin);
  }
  return plan;
}

class Ring {
 public:
  Ring(const Options& o, const RawFile& file, const Plan& plan)
      : o_(o),
        file_(file),
        plan_(plan),
        buffers_(make_buffers(plan.largest * o.depth)),
        slots_(o.depth),
        xored_(plan.places.size()) {
    if (const int rc = io_uring_queue_init(o.depth, &ring_, 0); rc < 0)
      die("io_uring: %s", std::strerror(-rc));
  }
  ~Ring() { io_uring_queue_exit(&ring_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void read_all(RandomResult& r) {
    std::vector<unsigned> free(o_.depth);
    std::iota(free.begin(), free.end(), 0u);
    std::size_t next = 0, done = 0;
    while (done < plan_.requests.size()) {
      for (; next < plan_.requests.size() && !free.empty(); ++next) {
        slots_[free.back()] = {next, 0};
        ask(free.back());
        free.pop_back();
      }
      if (const int rc = io_uring_submit_and_wait(&ring_, 1); rc < 0 && rc != -EINTR)
        die("io_uring: %s", std::strerror(-rc));
      for (io_uring_cqe* cqe = nullptr; io_uring_peek_cqe(&ring_, &cqe) == 0;) {
        const auto slot = static_cast<unsigned>(io_uring_cqe_get_data64(cqe));
        const int n = cqe->res;
        io_uring_cqe_seen(&ring_, cqe);
        if (!complete(slot, n)) continue;
        free.push_back(slot);
        ++done;
      }
    }
    for (std::size_t i = 0; i < xored_.size(); ++i) r.add(xored_[i], plan_.places[i].bytes);
    r.requests = plan_.requests.size();
  }

 private:
  struct Slot {
    std::size_t request = 0;
    std::uint64_t got = 0;
  };

  char* buffer(unsigned slot) const { return buffers_ + slot * plan_.largest; }

  /// Requests the bytes that the slot's request still lacks.
  void ask(unsigned slot) {
    const Slot& s = slots_[slot];
    const Request& request = plan_.requests[s.request];
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) die("io_uring: no free entry");
    io_uring_prep_read(sqe, file_.fd, buffer(slot) + s.got,
                       static_cast<unsigned>(request.end - request.begin - s.got), request.begin + s.got);
    io_uring_sqe_set_data64(sqe, slot);
  }

  /// Handles the result `n` of a read.  Returns whether the slot's request is complete; its places are then
  /// XORed.
  bool complete(unsigned slot, int n) {
    Slot& s = slots_[slot];
    const Request& request = plan_.requests[s.request];
    const bool again = n == -EINTR || n == -EAGAIN;
    if (n < 0 && !again) die("%s: %s", o_.file.c_str(), std::strerror(-n));
    if (n == 0) die("%s: shorter than the places", o_.file.c_str());
    if (!again) s.got += static_cast<std::uint64_t>(n);
    if (s.got < request.end - request.begin) {  // a short read
      ask(slot);
      return false;
    }
    for (std::size_t i = request.first; i < request.last; ++i) {
      const Place& p = plan_.places[plan_.order[i]];
      xored_[plan_.order[i]] = xor_bytes(buffer(slot) + (p.offset - request.begin), p.bytes);
    }
    return true;
  }

  const Options& o_;
  const RawFile& file_;
  const Plan& plan_;
  char* const buffers_;
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> xored_;  // by place
  io_uring ring_{};
};

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  const Plan plan = make_plan(o);
  const RawFile file = open_raw(o.file);
  RandomResult result;
  result.direct = file.direct;
  Ring ring(o, file, plan);
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
