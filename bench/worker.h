// The protocol between a benchmark and its workers.
//
// Each backend is a process of its own, all pinned to one core; the parent tells one at a time to do a round.
// Two environments of one file in one process would share fcntl locks (closing one drops the other's), and
// two libraries in one process would share allocator, page tables and branch history; two processes share
// nothing but the page cache, and a second worker with the same backend (A/A) shows what processes alone make
// of a difference.
#pragma once

#include <cstdint>

namespace lmdbio::bench {

constexpr int kWorkerFd = 3;  // a SOCK_SEQPACKET socket to the parent

enum class Action : std::uint32_t {
  kHello,    // answers what it is
  kRun,      // one timed pass of `row`
  kTouch,    // untimed: first byte of every value, so that every page a lookup needs is mapped
  kReadAll,  // untimed: digest of all keys and values
};

struct Command {
  Action action = Action::kHello;
  std::uint32_t row = 0;
  std::uint64_t seed = 0;   // of the random keys
  std::uint64_t steps = 0;  // records of a scan (0: all, once), else number of random keys
};

struct Reply {
  std::uint64_t ns = 0;
  std::uint64_t ops = 0;
  std::uint64_t wrong = 0;
  std::uint64_t digest = 0;
  std::uint64_t minor_faults = 0, major_faults = 0;
  char provider[512] = {};  // kHello: the object that mdb_get resolves to, and its version string
  char version[64] = {};
};

/// Answers commands until the parent hangs up.  `answer` fills the reply; used by the mains of the workers.
template <class Answer>
void serve(Answer&& answer);

/// Pins the calling process to one core (none if negative).
void pin_to_cpu(int cpu);

}  // namespace lmdbio::bench

// Implementation of the template.
#include <sched.h>
#include <sys/socket.h>

#include "bench/common.h"

namespace lmdbio::bench {

template <class Answer>
void serve(Answer&& answer) {
  for (;;) {
    Command command;
    const ssize_t n = recv(kWorkerFd, &command, sizeof command, 0);
    if (n == 0) return;
    if (n != static_cast<ssize_t>(sizeof command)) die_errno("worker: recv");
    Reply reply;
    answer(command, reply);
    if (send(kWorkerFd, &reply, sizeof reply, MSG_NOSIGNAL) < 0) return;
  }
}

inline void pin_to_cpu(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die_errno("sched_setaffinity");
}

}  // namespace lmdbio::bench
