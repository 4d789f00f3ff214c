// Functions of all benchmark programs: an end with a message, a clock, a hash.
#pragma once

#include <lmdb.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace lmdbio::bench {

/// Prints one line and ends the process, without unwinding.
[[noreturn, gnu::format(printf, 1, 2)]] inline void die(const char* format, ...) {
  std::fflush(stdout);
  std::fputs("error: ", stderr);
  va_list args;
  va_start(args, format);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::fputc('\n', stderr);
  std::exit(1);
}

[[noreturn]] inline void die_errno(const char* what) { die("%s: %s", what, std::strerror(errno)); }

/// Ends the process if `rc` is an error of the call `what`.
inline void must(int rc, const char* what) {
  if (rc != 0) die("%s: %s", what, mdb_strerror(rc));
}

inline std::uint64_t clock_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u + static_cast<std::uint64_t>(t.tv_nsec);
}

/// splitmix64.  mix(seed), mix(seed + 1), ... is a reproducible random sequence.
inline std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace lmdbio::bench
