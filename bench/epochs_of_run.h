// What the processes of a run of bench/node (run_node, run_caffe) share: they begin each epoch together, and
// print a line of JSON after it.
//
// Each prints {"library": ..} when it is ready, and begins an epoch when it has read one byte from standard
// input.  The last line tells of closing.
#pragma once

#include <unistd.h>

#include <string>

#include "bench/random_run.h"

namespace lmdbio::bench {

inline void end_line() {
  std::puts("}");
  if (std::fflush(stdout) != 0) die_errno("standard output");
}

/// `library`: that the calls resolve to.
inline void print_ready(const std::string& library) {
  std::printf("{\"library\": \"%s\"", library.c_str());
  end_line();
}

/// Waits until all may start.
inline void wait_for_start() {
  char byte;
  ssize_t n;
  do n = read(STDIN_FILENO, &byte, 1);
  while (n < 0 && errno == EINTR);
  if (n < 0) die_errno("standard input");
  if (n == 0) die("the benchmark has ended");
}

/// How often this thread has given up its core to wait.
inline long thread_waits() {
  rusage use{};
  if (getrusage(RUSAGE_THREAD, &use) != 0) die_errno("getrusage");
  return use.ru_nvcsw;
}

/// One epoch: from when all may begin it, to print_end.
class EpochLine {
 public:
  EpochLine() {
    wait_for_start();
    begin_ns_ = clock_ns();
    before_ = process_use();
    waits_ = thread_waits();
  }
  /// Prints what this process has read in it.
  void print_end(const RandomResult& r) const {
    const std::uint64_t end_ns = clock_ns();
    std::printf("{\"begin_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 ", \"bytes\": %" PRIu64
                ", \"records\": %" PRIu64 ", \"digest\": %" PRIu64 ", \"thread_voluntary_switches\": %ld, ",
                begin_ns_, end_ns, r.bytes, r.records, r.set_digest, thread_waits() - waits_);
    print_use(before_);
    end_line();
  }

 private:
  std::uint64_t begin_ns_ = 0;
  ProcessUse before_;
  long waits_ = 0;
};

/// The line of closing, which began at `before`.
inline void print_closed(const ProcessUse& before) {
  std::printf("{\"end_ns\": %" PRIu64 ", ", clock_ns());
  print_use(before);
  end_line();
}

}  // namespace lmdbio::bench
