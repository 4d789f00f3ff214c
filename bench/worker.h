// The protocol between a benchmark and its workers.
//
// Each backend is a process of its own.  All are pinned to one core, and the parent lets one at a time run a
// round.  One process cannot hold two environments of one file: closing one would drop the fcntl locks of the
// other.  Two libraries in one process would also share the allocator, page tables and branch history.  Two
// processes share only the page cache.  A second worker with the same backend (A/A) shows how much two
// processes differ by themselves.
#pragma once

#include <cstdint>

namespace lmdbio::bench {

constexpr int kWorkerFd = 3;  // a SOCK_SEQPACKET socket to the parent

enum class Action : std::uint32_t {
  kHello,    // reply with provider and version
  kRun,      // one timed pass of `row`
  kTouch,    // untimed: reads the first byte of every value, so that all pages for lookups are mapped
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

/// Replies to commands until the parent closes the socket.  `answer` fills in the reply.  Called by the
/// main() of a worker.
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
