// Functions of the processes of a bench/node run (run_node, run_caffe, run_study).  The processes begin each
// epoch together, and print a line of JSON after it.
//
// A process prints {"library": ..} when it is ready.  It begins an epoch when it has read one byte from
// standard input.  Its last line has the use of closing the environment.
#pragma once

#include <unistd.h>

#include <string>

#include "bench/random_run.h"

namespace lmdbio::bench {

inline void end_line() {
  std::puts("}");
  if (std::fflush(stdout) != 0) die_errno("standard output");
}

/// Prints the first line.  `library` is the path of the library whose functions are called.
inline void print_ready(const std::string& library) {
  std::printf("{\"library\": \"%s\"", library.c_str());
  end_line();
}

/// Waits for the byte that starts an epoch.
inline void wait_for_start() {
  char byte;
  ssize_t n;
  do n = read(STDIN_FILENO, &byte, 1);
  while (n < 0 && errno == EINTR);
  if (n < 0) die_errno("standard input");
  if (n == 0) die("the benchmark has ended");
}

/// Returns the number of voluntary context switches of this thread.
inline long thread_waits() {
  rusage use{};
  if (getrusage(RUSAGE_THREAD, &use) != 0) die_errno("getrusage");
  return use.ru_nvcsw;
}

/// Measures one epoch, from its start byte to print_end().
class EpochLine {
 public:
  EpochLine() {
    wait_for_start();
    begin_ns_ = clock_ns();
    before_ = process_use();
    waits_ = thread_waits();
  }
  /// Prints the line of the epoch, in which this process has read `r`.  `more`: further members of the line,
  /// each with a comma and a space behind it.
  void print_end(const RandomResult& r, const std::string& more = "") const {
    const std::uint64_t end_ns = clock_ns();
    std::printf("{%s\"begin_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 ", \"bytes\": %" PRIu64
                ", \"records\": %" PRIu64 ", \"digest\": %" PRIu64 ", \"thread_voluntary_switches\": %ld, ",
                more.c_str(), begin_ns_, end_ns, r.bytes, r.records, r.set_digest, thread_waits() - waits_);
    print_use(before_);
    end_line();
  }

 private:
  std::uint64_t begin_ns_ = 0;
  ProcessUse before_;
  long waits_ = 0;
};

/// Prints the last line.  `before` is the use before closing.
inline void print_closed(const ProcessUse& before) {
  std::printf("{\"end_ns\": %" PRIu64 ", ", clock_ns());
  print_use(before);
  end_line();
}

}  // namespace lmdbio::bench
