// Preloaded before the library under test: makes system calls on files below a directory fail, or ends the
// process at one of them.
//   CACHE_FAULTS_DIR   the directory
//   CACHE_FAULTS       one of
//     count              nothing; at its end, the process writes how many such calls it has made to
//                        CACHE_FAULTS_DIR/../calls
//     kill N, torn N     the process is killed before its N-th call, from 1 on; torn: after a half of it, if
//     it
//                        is a write
//     short N            each N-th read of more than one byte returns a half of what was asked for
//     CALL ERRNO FIRST N CALL fails with this number from its FIRST-th time on, N times.  CALL: as below, or
//                        any
// A forked child counts on from what its parent has counted.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *directory, *call = "";
static size_t directory_length;
static int number;
static long first, times;
static atomic_long calls, of_kind;
static int is_read;

__attribute__((constructor)) static void begin(void) {
  static char words[32];
  directory = getenv("CACHE_FAULTS_DIR");
  const char* const faults = getenv("CACHE_FAULTS");
  if (directory == NULL || faults == NULL) return;
  directory_length = strlen(directory);
  if (sscanf(faults, "%31s %d %ld %ld", words, &number, &first, &times) >= 1) call = words;
  is_read = strcmp(call, "short") == 0;
}

__attribute__((destructor)) static void end(void) {
  if (strcmp(call, "count") != 0) return;
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/../calls", directory);
  FILE* const f = fopen(path, "w");
  if (f == NULL) _exit(99);
  fprintf(f, "%ld\n", atomic_load(&calls));
  fclose(f);
}

static int is_below(const char* path) { return strncmp(path, directory, directory_length) == 0; }

static int is_ours(int fd, const char* name) {
  if (*call == 0) return 0;
  if (name != NULL && *name == '/') return is_below(name);
  if (fd < 0) return 0;
  char link[64], path[PATH_MAX];
  const int error = errno;
  snprintf(link, sizeof link, "/proc/thread-self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  errno = error;
  if (n <= 0) return 0;
  path[n] = 0;
  return is_below(path);
}

enum { kGoOn, kFail, kHalf, kDie };

/// What becomes of this call.
static int fate(const char* name, int fd, const char* path) {
  if (!is_ours(fd, path)) return kGoOn;
  const long n = atomic_fetch_add(&calls, 1) + 1;
  const int torn = strcmp(call, "torn") == 0;
  if (torn || strcmp(call, "kill") == 0) {
    if (n != number) return kGoOn;
    if (torn && strcmp(name, "pwrite") == 0) return kDie;
    kill(getpid(), SIGKILL);
  }
  if (is_read && strcmp(name, "pread") == 0)
    return (atomic_fetch_add(&of_kind, 1) + 1) % number == 0 ? kHalf : kGoOn;
  if (strcmp(call, name) != 0 && strcmp(call, "any") != 0) return kGoOn;
  const long k = atomic_fetch_add(&of_kind, 1) + 1;
  if (k < first || k - first >= times) return kGoOn;
  errno = number;
  return kFail;
}

#define REAL(type, name, ...)       \
  static type (*real)(__VA_ARGS__); \
  if (real == NULL) real = (type(*)(__VA_ARGS__))(uintptr_t)dlsym(RTLD_NEXT, name)

ssize_t pread(int fd, void* to, size_t n, off_t at) {
  REAL(ssize_t, "pread", int, void*, size_t, off_t);
  const int f = fate("pread", fd, NULL);
  return f == kFail ? -1 : real(fd, to, f == kHalf && n > 1 ? n / 2 : n, at);
}

ssize_t pwrite(int fd, const void* from, size_t n, off_t at) {
  REAL(ssize_t, "pwrite", int, const void*, size_t, off_t);
  const int f = fate("pwrite", fd, NULL);
  if (f == kFail) return -1;
  const ssize_t done = real(fd, from, f == kDie ? (n + 1) / 2 : n, at);
  if (f == kDie) kill(getpid(), SIGKILL);
  return done;
}

int open(const char* path, int flags, ...) {
  REAL(int, "open", const char*, int, ...);
  va_list args;
  va_start(args, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, unsigned) : 0;
  va_end(args);
  return fate("open", -1, path) == kFail ? -1 : real(path, flags, mode);
}

int openat(int at, const char* path, int flags, ...) {
  REAL(int, "openat", int, const char*, int, ...);
  va_list args;
  va_start(args, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, unsigned) : 0;
  va_end(args);
  return fate("openat", at, path) == kFail ? -1 : real(at, path, flags, mode);
}

int mkdir(const char* path, mode_t mode) {
  REAL(int, "mkdir", const char*, mode_t);
  return fate("mkdir", -1, path) == kFail ? -1 : real(path, mode);
}

int unlinkat(int at, const char* path, int flags) {
  REAL(int, "unlinkat", int, const char*, int);
  return fate("unlinkat", at, path) == kFail ? -1 : real(at, path, flags);
}

int linkat(int at, const char* from, int to_at, const char* to, int flags) {
  REAL(int, "linkat", int, const char*, int, const char*, int);
  return fate("linkat", at, from) == kFail ? -1 : real(at, from, to_at, to, flags);
}

int ftruncate(int fd, off_t bytes) {
  REAL(int, "ftruncate", int, off_t);
  return fate("ftruncate", fd, NULL) == kFail ? -1 : real(fd, bytes);
}

int fallocate(int fd, int mode, off_t at, off_t bytes) {
  REAL(int, "fallocate", int, int, off_t, off_t);
  return fate("fallocate", fd, NULL) == kFail ? -1 : real(fd, mode, at, bytes);
}

// Returns the error.
int posix_fallocate(int fd, off_t at, off_t bytes) {
  REAL(int, "posix_fallocate", int, off_t, off_t);
  return fate("posix_fallocate", fd, NULL) == kFail ? errno : real(fd, at, bytes);
}

void* mmap(void* hint, size_t bytes, int prot, int flags, int fd, off_t at) {
  REAL(void*, "mmap", void*, size_t, int, int, int, off_t);
  return fate("mmap", fd, NULL) == kFail ? MAP_FAILED : real(hint, bytes, prot, flags, fd, at);
}

int fcntl(int fd, int command, ...) {
  REAL(int, "fcntl", int, int, ...);
  va_list args;
  va_start(args, command);
  void* const argument = va_arg(args, void*);
  va_end(args);
  return fate("fcntl", fd, NULL) == kFail ? -1 : real(fd, command, argument);
}

int fstat(int fd, struct stat* st) {
  REAL(int, "fstat", int, struct stat*);
  return fate("fstat", fd, NULL) == kFail ? -1 : real(fd, st);
}

int statx(int fd, const char* restrict path, int flags, unsigned mask, struct statx* restrict st) {
  REAL(int, "statx", int, const char*, int, unsigned, struct statx*);
  return fate("statx", fd, path) == kFail ? -1 : real(fd, path, flags, mask, st);
}

int futimens(int fd, const struct timespec times_of_file[2]) {
  REAL(int, "futimens", int, const struct timespec*);
  return fate("futimens", fd, NULL) == kFail ? -1 : real(fd, times_of_file);
}
