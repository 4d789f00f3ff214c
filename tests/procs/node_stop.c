// A process that ends at a certain system call.
//   node_stop [options] PROGRAM [ARGUMENT..]
//     -o FILE           what happened: a line for each point, "kind entry" or "kind exit", in this order, and
//                       at last "killed", "ended" (PROGRAM was never at that point) or "failed"
//     -n N              PROGRAM is killed at the N-th point, from 1 on
//     -p KIND K SIDE    at the K-th point of that kind and side, from 1 on; SIDE: entry, exit, or asleep:
//                       entered, and waiting
//     -a KIND           -n and -p count from the first exit of such a call on
//     -h OUT IN         at the point, writes a line to descriptor OUT, and waits for one from IN: "go" lets
//                       PROGRAM run to its end, any other, or the end of IN, kills it.  Until then each
//                       thread stops at its own next point.
//   Without -n and -p PROGRAM runs to its end.
// Exit status: 0 killed at the point, or nobody asked for that and PROGRAM ended with 0; 1 ended before it,
// or not with 0; 77 processes cannot be traced here; 2 usage.
//
// Points are the entries and exits of the calls by which processes of a node share a file, of any thread:
// kinds are named in classify().
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum { kMostThreads = 512, kMostSegments = 64, kMissing = 77, kFutexPrivate = 128, kFutexCommand = 127 };
static const char kStore[] = "/dev/shm/";

static pid_t program;
static FILE* report;
static const char *wanted_kind, *wanted_side = "", *after;
static long wanted_at, counted;
static int hold_out = -1, hold_in = -1, begun = 1, killed;

static struct { unsigned long at, bytes; } segments[kMostSegments];

// A thread in a call that is a point.
static struct {
  pid_t tid;
  const char* kind;
  unsigned long long first;  ///< argument
} calls[kMostThreads];

static void fail(const char* what) {
  perror(what);
  exit(errno == EPERM || errno == EACCES || errno == ENOSYS ? kMissing : 2);
}

// -- what is traced

static void trace_calls(void) {
  static const int all[] = {SYS_shmget,    SYS_shmat,     SYS_shmdt,    SYS_shmctl,    SYS_pread64,
                            SYS_preadv,    SYS_preadv2,   SYS_mincore,  SYS_cachestat, SYS_io_uring_enter,
                            SYS_readahead, SYS_unlinkat,  SYS_unlink,   SYS_renameat2, SYS_renameat,
                            SYS_rename,    SYS_linkat,    SYS_link,     SYS_mkdirat,   SYS_mkdir,
                            SYS_ftruncate, SYS_fallocate, SYS_pwrite64, SYS_pwritev,   SYS_openat,
                            SYS_futex,     SYS_madvise,   SYS_flock,    SYS_fcntl,     SYS_copy_file_range,
                            SYS_open};
  enum { kAll = sizeof all / sizeof *all };
  struct sock_filter filter[kAll + 3];
  size_t n = 0;
  filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (size_t i = 0; i < kAll; ++i)
    filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)all[i],
                                               (unsigned char)(kAll - i), 0);
  filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
  const struct sock_fprog code = {(unsigned short)n, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &code) != 0)
    fail("seccomp");
}

// -- which call it is

static int in_segment(unsigned long at) {
  for (size_t i = 0; i < kMostSegments; ++i)
    if (at >= segments[i].at && at < segments[i].at + segments[i].bytes) return 1;
  return 0;
}

static int begins(const char* text) { return strncmp(text, kStore, sizeof kStore - 1) == 0; }

static int fd_in_store(pid_t tid, int fd) {
  char link[64], path[256];
  snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)tid, fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  strncat(path, "/", sizeof path - (size_t)n - 1);  // the directory itself
  return begins(path);
}

static int path_in_store(pid_t tid, int dir, unsigned long name) {
  char path[sizeof kStore] = "";
  const struct iovec to = {path, sizeof path - 1}, from = {(void*)name, sizeof path - 1};
  const ssize_t n = process_vm_readv(tid, &to, 1, &from, 1, 0);
  return (n > 0 && path[0] == '/') || dir == AT_FDCWD ? begins(path) : fd_in_store(tid, dir);
}

// NULL: none of ours.
static const char* classify(pid_t tid, const struct user_regs_struct* r) {
  switch (r->orig_rax) {
    case SYS_shmget:
      return (int)r->rdi == IPC_PRIVATE ? "shmget.unnamed"
             : r->rdx & IPC_CREAT       ? "shmget.make"
                                        : "shmget.open";
    case SYS_shmat:
      return "shmat";
    case SYS_shmdt:
      return "shmdt";
    case SYS_shmctl:
      if (r->rsi == SHM_STAT) return NULL;  // one for each segment there is: as many as there may be
      return r->rsi == IPC_RMID ? "shmctl.remove" : r->rsi == IPC_STAT ? "shmctl.stat" : "shmctl.list";
    case SYS_futex:
      if ((r->rsi & kFutexPrivate) != 0 || !in_segment(r->rdi)) return NULL;
      return (r->rsi & kFutexCommand) == 0 ? "futex.wait" : "futex.wake";
    case SYS_madvise:
      return (int)r->rdx == MADV_POPULATE_READ ? "populate" : in_segment(r->rdi) ? "madvise" : NULL;
    case SYS_pread64:
    case SYS_preadv:
    case SYS_preadv2:
    case SYS_readahead:
      return "read";
    case SYS_io_uring_enter:
      return "uring";
    case SYS_mincore:
    case SYS_cachestat:
      return "residency";
    case SYS_open:
      return path_in_store(tid, AT_FDCWD, r->rdi) ? "store.open" : NULL;
    case SYS_openat:
      return path_in_store(tid, (int)r->rdi, r->rsi) ? "store.open" : NULL;
    case SYS_mkdir:
      return path_in_store(tid, AT_FDCWD, r->rdi) ? "store.mkdir" : NULL;
    case SYS_mkdirat:
      return path_in_store(tid, (int)r->rdi, r->rsi) ? "store.mkdir" : NULL;
    case SYS_unlink:
      return path_in_store(tid, AT_FDCWD, r->rdi) ? "store.unlink" : NULL;
    case SYS_unlinkat:
      return path_in_store(tid, (int)r->rdi, r->rsi) ? "store.unlink" : NULL;
    case SYS_rename:
    case SYS_link:
      return path_in_store(tid, AT_FDCWD, r->rsi) ? "store.name" : NULL;
    case SYS_renameat:
    case SYS_renameat2:
    case SYS_linkat:
      return path_in_store(tid, (int)r->rdx, r->r10) ? "store.name" : NULL;
    case SYS_ftruncate:
    case SYS_fallocate:
      return fd_in_store(tid, (int)r->rdi) ? "store.size" : NULL;
    case SYS_pwrite64:
    case SYS_pwritev:
      return fd_in_store(tid, (int)r->rdi) ? "store.write" : NULL;
    case SYS_copy_file_range:
      return fd_in_store(tid, (int)r->rdx) ? "store.write" : NULL;
    case SYS_flock:
    case SYS_fcntl:
      return fd_in_store(tid, (int)r->rdi) ? "store.lock" : NULL;
    default:
      return NULL;
  }
}

// -- what becomes of it

static void sleep_ms(long ms) {
  const struct timespec t = {0, ms * 1000000};
  nanosleep(&t, NULL);
}

// A thread that goes on into its call: until it waits there, or a second is over.
static void until_asleep(pid_t tid) {
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)program, (int)tid);
  for (int i = 0; i < 1000; ++i) {
    sleep_ms(1);
    FILE* const f = fopen(path, "re");
    if (f == NULL) return;
    const char* const got = fgets(line, sizeof line, f);
    fclose(f);
    const char* const end = got != NULL ? strrchr(line, ')') : NULL;
    if (end != NULL && (end[2] == 'S' || end[2] == 'D')) return;
  }
}

// True: the program was killed.
static int end_it(void) {
  if (hold_out >= 0) {
    char c, first = 0;
    if (write(hold_out, "held\n", 5) != 5) perror("held");
    while (read(hold_in, &c, 1) == 1 && c != '\n')
      if (first == 0) first = c;
    if (first == 'g') return 0;
  }
  kill(program, SIGKILL);
  killed = 1;
  return 1;
}

static int is_wanted(const char* kind, const char* side) {
  if (killed || wanted_at == 0 || !begun) return 0;
  if (wanted_kind != NULL && (strcmp(kind, wanted_kind) != 0 || strcmp(side, wanted_side) != 0)) return 0;
  return ++counted == wanted_at;
}

// True: the program was killed, or the thread has been let go.
static int at_point(pid_t tid, const char* kind, const char* side) {
  if (report != NULL && !killed) fprintf(report, "%s %s\n", kind, side);
  if (after != NULL && !begun && strcmp(kind, after) == 0 && strcmp(side, "exit") == 0) begun = 1;
  const int asleep = strcmp(wanted_side, "asleep") == 0 && strcmp(side, "entry") == 0;
  if (!is_wanted(kind, asleep ? "asleep" : side)) return 0;
  if (!asleep) return end_it();
  if (ptrace(PTRACE_CONT, tid, NULL, NULL) == 0) until_asleep(tid);
  (void)end_it();
  return 1;
}

static void note_segment(const struct user_regs_struct* r, unsigned long long number) {
  struct shmid_ds facts;
  if ((long)r->rax < 0 && (long)r->rax > -4096) return;
  size_t i = 0;
  while (i < kMostSegments - 1 && segments[i].bytes != 0) ++i;
  segments[i].at = r->rax;
  segments[i].bytes = shmctl((int)number, IPC_STAT, &facts) == 0 ? facts.shm_segsz : 1;
}

static void forget_segment(unsigned long at) {
  for (size_t i = 0; i < kMostSegments; ++i)
    if (segments[i].at == at) segments[i].bytes = segments[i].at = 0;
}

static size_t slot_of(pid_t tid) {
  size_t i = 0;
  while (i < kMostThreads - 1 && calls[i].tid != tid) ++i;
  return i;
}

// True: the thread has been let go, or is none any more.
static int stopped(pid_t tid, int status) {
  const int event = status >> 16, sig = WSTOPSIG(status);
  struct user_regs_struct r;
  if (event == PTRACE_EVENT_SECCOMP) {
    if (ptrace(PTRACE_GETREGS, tid, NULL, &r) != 0) return 1;
    const char* const kind = classify(tid, &r);
    if (kind == NULL) return 0;
    if (at_point(tid, kind, "entry")) return 1;
    const size_t at = slot_of(0);
    calls[at].tid = tid;
    calls[at].kind = kind;
    calls[at].first = r.rdi;
    if (strcmp(kind, "shmdt") == 0) forget_segment(r.rdi);
    (void)ptrace(PTRACE_SYSCALL, tid, NULL, NULL);
    return 1;
  }
  if (sig == (SIGTRAP | 0x80)) {
    const size_t at = slot_of(tid);
    if (calls[at].tid != tid || ptrace(PTRACE_GETREGS, tid, NULL, &r) != 0) return 0;
    const char* const kind = calls[at].kind;
    calls[at].tid = 0;
    if (strcmp(kind, "shmat") == 0) note_segment(&r, calls[at].first);
    return at_point(tid, kind, "exit");
  }
  return 0;
}

static int follow(void) {
  int status, result = 1;
  for (;;) {
    const pid_t tid = waitpid(-1, &status, __WALL);
    if (tid < 0) {
      if (errno == EINTR) continue;
      return result;
    }
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (tid == program) result = !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      continue;
    }
    if (stopped(tid, status)) continue;
    const int sig = WSTOPSIG(status);
    // Stops of tracing, and of a thread that begins, are no signals of the program.
    const int own = (status >> 16) != 0 || sig == (SIGTRAP | 0x80) || sig == SIGTRAP || sig == SIGSTOP;
    (void)ptrace(PTRACE_CONT, tid, NULL, (void*)(long)(own ? 0 : sig));
  }
}

static void usage(void) {
  fputs("usage: node_stop [-o FILE] [-n N | -p KIND K SIDE] [-a KIND] [-h OUT IN] PROGRAM [ARGUMENT..]\n",
        stderr);
  exit(2);
}

int main(int argc, char** argv) {
  int at = 1;
  for (; at < argc && argv[at][0] == '-'; ++at) {
    const char option = argv[at][1];
    const int takes = option == 'p' ? 3 : option == 'h' ? 2 : 1;
    if (at + takes >= argc) usage();
    char** const v = argv + at + 1;
    at += takes;
    if (option == 'o') {
      report = fopen(v[0], "we");
      if (report == NULL) fail(v[0]);
    } else if (option == 'n') {
      wanted_at = atol(v[0]);
    } else if (option == 'p') {
      wanted_kind = v[0];
      wanted_at = atol(v[1]);
      wanted_side = v[2];
    } else if (option == 'a') {
      after = v[0];
      begun = 0;
    } else if (option == 'h') {
      hold_out = atoi(v[0]);
      hold_in = atoi(v[1]);
    } else {
      usage();
    }
  }
  if (at >= argc) usage();
  program = fork();
  if (program < 0) fail("fork");
  if (program == 0) {
    if (hold_out >= 0) close(hold_out);
    if (hold_in >= 0) close(hold_in);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) fail("ptrace");
    raise(SIGSTOP);
    trace_calls();
    execv(argv[at], argv + at);
    fail(argv[at]);
  }
  int status;
  if (waitpid(program, &status, 0) != program) fail("waitpid");
  if (!WIFSTOPPED(status)) return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
  const long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE |
                       PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
  if (ptrace(PTRACE_SETOPTIONS, program, NULL, (void*)options) != 0) fail("ptrace");
  if (ptrace(PTRACE_CONT, program, NULL, NULL) != 0) fail("ptrace");
  const int failed = follow();
  if (report != NULL) {
    fputs(killed ? "killed\n" : failed ? "failed\n" : "ended\n", report);
    fclose(report);
  }
  return killed || (wanted_at == 0 && !failed) ? 0 : 1;
}
