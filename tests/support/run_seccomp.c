// Runs a program whose system calls fail as told, by a seccomp filter.  Children have it too.
//   run_seccomp RULE... -- PROGRAM [ARGUMENT...]
//   RULE: CALL[/INDEX:VALUE][/INDEX&MASK]...=ERROR     with ERROR, if each named argument equals VALUE, or
//   has
//                                                      any bit of MASK (of each the low 32 bits are looked
//                                                      at)
//   fcntl/1:6=ENOLCK   openat/2&64=EACCES   clone3=ENOSYS
// Exit 77: filters are not to be had here.  125: bad arguments.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "add the AUDIT_ARCH_* of this machine"
#endif
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of an argument comes first");

#define CALL(name) \
  { #name, SYS_##name }
static const struct {
  const char* name;
  long number;
} kCalls[] = {
    CALL(clone),          CALL(clone3),  CALL(close),      CALL(close_range),      CALL(fcntl),
    CALL(flock),          CALL(fstat),   CALL(fstatfs),    CALL(ftruncate),        CALL(io_uring_enter),
    CALL(io_uring_setup), CALL(lseek),   CALL(madvise),    CALL(mincore),          CALL(mmap),
    CALL(mprotect),       CALL(mremap),  CALL(openat),     CALL(perf_event_open),  CALL(pidfd_getfd),
    CALL(pidfd_open),     CALL(pread64), CALL(preadv2),    CALL(process_vm_readv), CALL(read),
    CALL(statfs),         CALL(unshare), CALL(userfaultfd)};

enum { kMostInstructions = 512 };
static struct sock_filter program[kMostInstructions];
static unsigned short used;

static void refuse(const char* rule, const char* why) {
  fprintf(stderr, "run_seccomp: %s: %s\n", rule, why);
  exit(125);
}

static void emit(unsigned code, uint32_t k, unsigned if_true, unsigned if_false) {
  if (used == kMostInstructions) refuse("rules", "too many");
  program[used++] = (struct sock_filter)BPF_JUMP((uint16_t)code, k, (uint8_t)if_true, (uint8_t)if_false);
}

static int error_number(const char* name) {
  for (int e = 1; e < 256; ++e) {
    const char* const known = strerrorname_np(e);
    if (known != NULL && strcmp(known, name) == 0) return e;
  }
  return 0;
}

static void add_rule(const char* rule) {
  char text[256];
  if (strlen(rule) >= sizeof text) refuse(rule, "too long");
  strcpy(text, rule);
  char* const equals = strrchr(text, '=');
  if (equals == NULL) refuse(rule, "no error");
  *equals = '\0';
  const int error = error_number(equals + 1);
  if (error == 0) refuse(rule, "no such error");
  char* rest = NULL;
  const char* const name = strtok_r(text, "/", &rest);
  long number = -1;
  for (size_t i = 0; name != NULL && i < sizeof kCalls / sizeof kCalls[0]; ++i)
    if (strcmp(kCalls[i].name, name) == 0) number = kCalls[i].number;
  if (number < 0) refuse(rule, "no such system call here");

  const unsigned short first = used;
  emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
  emit(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 0);
  for (const char* condition; (condition = strtok_r(NULL, "/", &rest)) != NULL;) {
    unsigned index;
    char how, end;
    long value;
    if (sscanf(condition, "%u%c%li%c", &index, &how, &value, &end) != 3 || index > 5 ||
        (how != ':' && how != '&'))
      refuse(rule, "an argument is INDEX:VALUE or INDEX&MASK");
    emit(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offsetof(struct seccomp_data, args) + 8 * index), 0, 0);
    emit(BPF_JMP | (how == ':' ? BPF_JEQ : BPF_JSET) | BPF_K, (uint32_t)value, 0, 0);
  }
  emit(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error, 0, 0);
  for (unsigned short i = first; i < used; ++i)  // a test that fails goes to the next rule
    if (BPF_CLASS(program[i].code) == BPF_JMP) program[i].jf = (uint8_t)(used - i - 1);
}

int main(int argc, char** argv) {
  emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch), 0, 0);
  emit(BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 1, 0);
  emit(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  int at = 1;
  for (; at < argc && strcmp(argv[at], "--") != 0; ++at) add_rule(argv[at]);
  if (at + 1 >= argc) refuse("arguments", "no program");
  emit(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  const struct sock_fprog filter = {used, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    perror("run_seccomp: no seccomp filter");
    return 77;
  }
  execv(argv[at + 1], argv + at + 1);
  fprintf(stderr, "run_seccomp: %s: %s\n", argv[at + 1], strerror(errno));
  return 126;
}
