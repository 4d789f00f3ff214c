// Carries out the commands in its arguments, with one line of answer each; after "-", those on standard
// input.
//   NAME = CODE, or what is named below; NAME = none: there is no environment or transaction for it
//   write ROUND PATH [WORDS]  all records of that round, in one transaction of an environment of its own
//   env I                     the environment, with its transaction, that the following commands are about
//   mapsize BYTES, maxreaders N, maxdbs N
//   open PATH [WORDS]         read-only, creating an environment if need be; closed again if refused
//   begin, reset, renew, abort, close
//   check                     "right round N": all records are there, byte for byte, and of one round
//   flags, info, slots, dead  mdb_env_get_flags, mdb_env_info, mdb_reader_list, mdb_reader_check
//   resize BYTES              mdb_env_set_mapsize
//   maps PATH                 how many times the file is mapped
//   accounted BYTES           how many mappings of that size or more count against the commit limit
//   room                      MiB of address space that can still be mapped, in pieces of 16
//   fds                       how many descriptors are open
//   grow BYTES PATH [WORDS]   the file becomes that much longer, with the same records
//   opens N PATH [WORDS]      N times open and close; 0, or a code other than 0
//   limit as BYTES            address space: what is used now and so much more
//   limit nofile LEFT         descriptors: so many more can be opened
// WORDS, with commas: nosubdir, notls, nolock.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "transcript.h"

enum { kRecords = 1000, kEnvs = 256, kBiggest = 9000, kMostWords = 3 };

static struct {
  MDB_env* env;
  MDB_txn* txn;
} envs[kEnvs], *at = envs;

static MDB_val key_of(unsigned i) {
  static char buffer[16];
  const MDB_val v = {(size_t)snprintf(buffer, sizeof buffer, "k%05u", i), buffer};
  return v;
}

static MDB_val data_of(unsigned round, unsigned i) {
  static char buffer[kBiggest];
  MDB_val v = {i % 16 == 0 ? kBiggest : 40 + i % 100, buffer};
  memset(buffer, (int)('a' + (round + i) % 26), v.mv_size);
  const int n = snprintf(buffer, sizeof buffer, "round %u record %u", round, i);
  buffer[n] = ' ';
  return v;
}

static unsigned flags_of(const char* words) {
  unsigned flags = 0;
  if (words != NULL && strstr(words, "nosubdir")) flags |= MDB_NOSUBDIR;
  if (words != NULL && strstr(words, "notls")) flags |= MDB_NOTLS;
  if (words != NULL && strstr(words, "nolock")) flags |= MDB_NOLOCK;
  return flags;
}

static int write_round(unsigned round, const char* path, unsigned flags) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 64u << 20));
  int rc = mdb_env_open(env, path, flags | MDB_NOSYNC, 0644);
  if (rc == 0) {
    MUST(mdb_txn_begin(env, NULL, 0, &txn));
    MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
    for (unsigned i = 0; i < kRecords; ++i) {
      MDB_val key = key_of(i), data = data_of(round, i);
      MUST(mdb_put(txn, dbi, &key, &data, 0));
    }
    rc = mdb_txn_commit(txn);
  }
  mdb_env_close(env);
  return rc;
}

static int is_record(const MDB_val* data, unsigned i, unsigned* round) {
  unsigned of;
  if (data->mv_size < 40 || sscanf(data->mv_data, "round %u record", &of) != 1) return 0;
  const MDB_val want = data_of(of, i);
  if (data->mv_size != want.mv_size || memcmp(data->mv_data, want.mv_data, want.mv_size) != 0) return 0;
  if (*round == 0) *round = of;
  return *round == of;
}

static int grow_file(size_t bytes, const char* path, unsigned flags) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_val key = {4, "long"}, data = {bytes, NULL};
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 2 * bytes + (64u << 20)));
  MUST(mdb_env_open(env, path, flags | MDB_NOSYNC, 0644));
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_put(txn, dbi, &key, &data, MDB_RESERVE));
  MUST(mdb_txn_commit(txn));
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_del(txn, dbi, &key, NULL));
  MUST(mdb_txn_commit(txn));
  mdb_env_close(env);
  return 0;
}

static int open_often(unsigned long times, const char* path, unsigned flags) {
  for (; times > 0; --times) {
    MDB_env* env;
    MUST(mdb_env_create(&env));
    const int rc = mdb_env_open(env, path, MDB_RDONLY | flags, 0644);
    if (rc != 0) return rc;
    mdb_env_close(env);
  }
  return 0;
}

static int room(void) {
  enum { kPiece = 16 << 20, kMost = 65536 };
  static void* pieces[kMost];
  int n = 0;
  while (n < kMost &&
         (pieces[n] = mmap(NULL, kPiece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED)
    ++n;
  for (int i = 0; i < n; ++i) munmap(pieces[i], kPiece);
  return n * (kPiece >> 20);
}

static int descriptors(void) {
  DIR* const all = opendir("/proc/self/fd");
  CHECK(all != NULL);
  int n = -1;  // its own
  for (const struct dirent* d; (d = readdir(all)) != NULL;) n += d->d_name[0] != '.';
  closedir(all);
  return n;
}

static void check(void) {
  MDB_dbi dbi;
  MDB_cursor* cursor;
  MDB_val key, data;
  unsigned n = 0, round = 0, wrong = 0;
  int rc = mdb_dbi_open(at->txn, NULL, 0, &dbi);
  if (rc == 0) rc = mdb_cursor_open(at->txn, dbi, &cursor);
  if (rc != 0) {
    say("check = %d", rc);
    return;
  }
  while ((rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT)) == 0) {
    const MDB_val want = key_of(n);
    if (key.mv_size != want.mv_size || memcmp(key.mv_data, want.mv_data, want.mv_size) != 0) ++wrong;
    if (!is_record(&data, n, &round)) ++wrong;
    ++n;
  }
  mdb_cursor_close(cursor);
  if (rc == MDB_NOTFOUND) rc = 0;
  for (unsigned i = 0; rc == 0 && i < kRecords; i += 7) {
    key = key_of(i);
    rc = mdb_get(at->txn, dbi, &key, &data);
    if (rc == 0 && !is_record(&data, i, &round)) ++wrong;
  }
  if (rc == 0 && n == kRecords && wrong == 0)
    say("check = right round %u", round);
  else
    say("check = wrong: code %d, %u records, %u of them wrong", rc, n, wrong);
}

static int count_slots(const char* message, void* context) {
  int* const lines = context;
  const int none = strstr(message, "no reader locks") != NULL;
  *lines = none ? -1 : *lines + 1;
  return 0;
}

static int mappings(const char* file, const char* what, size_t least) {
  FILE* const f = fopen(file, "r");
  if (f == NULL) return -1;
  char line[4600];
  int n = 0;
  unsigned long from = 0, to = 0;
  while (fgets(line, sizeof line, f) != NULL) {
    unsigned long a, b;
    if (sscanf(line, "%lx-%lx ", &a, &b) == 2) from = a, to = b;
    if (strstr(line, what) != NULL && to - from >= least) ++n;
  }
  fclose(f);
  return n;
}

static int limit(const char* what, const char* amount) {
  struct rlimit r;
  if (strcmp(what, "as") == 0) {
    unsigned long pages = 0;
    FILE* const f = fopen("/proc/self/statm", "r");
    CHECK(f != NULL && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    CHECK(getrlimit(RLIMIT_AS, &r) == 0);
    r.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + strtoul(amount, NULL, 0);
    return setrlimit(RLIMIT_AS, &r);
  }
  CHECK(strcmp(what, "nofile") == 0);
  // Every place below the limit is taken, and so many given back.
  CHECK(getrlimit(RLIMIT_NOFILE, &r) == 0);
  r.rlim_cur = 64;
  if (setrlimit(RLIMIT_NOFILE, &r) != 0) return -1;
  int fd, last = -1;
  while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) last = fd;
  for (long left = strtol(amount, NULL, 0); left > 0; --left) CHECK(close(last--) == 0);
  return 0;
}

// -- commands: a function each, with its words; most give a code to print

static unsigned long number(const char* word) { return word != NULL ? strtoul(word, NULL, 0) : 0; }

static int do_write(char** a) { return write_round((unsigned)number(a[0]), a[1], flags_of(a[2])); }
static int do_mapsize(char** a) { return mdb_env_set_mapsize(at->env, number(a[0])); }
static int do_maxreaders(char** a) { return mdb_env_set_maxreaders(at->env, (unsigned)number(a[0])); }
static int do_maxdbs(char** a) { return mdb_env_set_maxdbs(at->env, (MDB_dbi)number(a[0])); }
static int do_maps(char** a) { return mappings("/proc/self/maps", a[0], 0); }
// The line of flags follows that of the addresses.
static int do_accounted(char** a) { return mappings("/proc/self/smaps", " ac ", number(a[0])); }
static int do_limit(char** a) { return limit(a[0], a[1]); }

static int do_room(char** a) { return (void)a, room(); }
static int do_fds(char** a) { return (void)a, descriptors(); }
static int do_grow(char** a) { return grow_file(number(a[0]), a[1], flags_of(a[2])); }
static int do_opens(char** a) { return open_often(number(a[0]), a[1], flags_of(a[2])); }

static int do_env(char** a) {
  CHECK(number(a[0]) < kEnvs);
  at = &envs[number(a[0])];
  return 0;
}

static int do_open(char** a) {
  const int rc = mdb_env_open(at->env, a[0], MDB_RDONLY | flags_of(a[1]), 0644);
  if (rc != 0) {
    mdb_env_close(at->env);
    at->env = NULL;
  }
  return rc;
}

static int do_begin(char** a) {
  (void)a;
  const int rc = mdb_txn_begin(at->env, NULL, MDB_RDONLY, &at->txn);
  if (rc != 0) at->txn = NULL;
  return rc;
}

static int do_reset(char** a) {
  (void)a;
  mdb_txn_reset(at->txn);
  return 0;
}

static int do_renew(char** a) {
  (void)a;
  return mdb_txn_renew(at->txn);
}

static int do_abort(char** a) {
  (void)a;
  mdb_txn_abort(at->txn);
  at->txn = NULL;
  return 0;
}

static int do_close(char** a) {
  (void)a;
  mdb_env_close(at->env);
  at->env = NULL, at->txn = NULL;
  return 0;
}

static void say_flags(void) {
  unsigned flags = 0;
  MUST(mdb_env_get_flags(at->env, &flags));
  say("flags = %#x", flags);
}

static void say_info(void) {
  MDB_envinfo info;
  MUST(mdb_env_info(at->env, &info));
  say("info = mapsize %zu txnid %zu", info.me_mapsize, info.me_last_txnid);
}

static void say_slots(void) {
  int lines = 0;
  mdb_reader_list(at->env, count_slots, &lines);
  if (lines < 0)
    say("slots = no reader locks");
  else
    say("slots = %d lines", lines);
}

static void say_dead(void) {
  int dead = 0;
  const int rc = mdb_reader_check(at->env, &dead);
  say("dead = %d %d", rc, dead);
}

enum Need { kNothing, kMadeEnv, kEnv, kTxn };  // kMadeEnv: makes one if there is none
static const struct {
  const char* name;
  enum Need need;
  int (*code)(char** words);
  void (*text)(void);
} kCommands[] = {{"write", kNothing, do_write, NULL},   {"env", kNothing, do_env, NULL},
                 {"room", kNothing, do_room, NULL},     {"fds", kNothing, do_fds, NULL},
                 {"grow", kNothing, do_grow, NULL},     {"opens", kNothing, do_opens, NULL},
                 {"maps", kNothing, do_maps, NULL},     {"accounted", kNothing, do_accounted, NULL},
                 {"limit", kNothing, do_limit, NULL},   {"mapsize", kMadeEnv, do_mapsize, NULL},
                 {"maxdbs", kMadeEnv, do_maxdbs, NULL}, {"maxreaders", kMadeEnv, do_maxreaders, NULL},
                 {"open", kMadeEnv, do_open, NULL},     {"begin", kEnv, do_begin, NULL},
                 {"resize", kEnv, do_mapsize, NULL},    {"close", kEnv, do_close, NULL},
                 {"flags", kEnv, NULL, say_flags},      {"info", kEnv, NULL, say_info},
                 {"slots", kEnv, NULL, say_slots},      {"dead", kEnv, NULL, say_dead},
                 {"check", kTxn, NULL, check},          {"reset", kTxn, do_reset, NULL},
                 {"renew", kTxn, do_renew, NULL},       {"abort", kTxn, do_abort, NULL}};

static void carry_out(char* command) {
  char *rest = NULL, *words[kMostWords];
  const char* const name = strtok_r(command, " \n", &rest);
  for (int i = 0; i < kMostWords; ++i) words[i] = strtok_r(NULL, " \n", &rest);
  enum { kCount = sizeof kCommands / sizeof kCommands[0] };
  size_t i = 0;
  while (name != NULL && i < kCount && strcmp(kCommands[i].name, name) != 0) ++i;
  if (name == NULL || i == kCount) {
    say("%s = no such command", name != NULL ? name : "");
    exit(2);
  }
  const enum Need need = kCommands[i].need;
  if (need == kMadeEnv && at->env == NULL) MUST(mdb_env_create(&at->env));
  if ((need == kEnv && at->env == NULL) || (need == kTxn && at->txn == NULL))
    say("%s = none", name);
  else if (kCommands[i].text != NULL)
    kCommands[i].text();
  else
    say("%s = %d", name, kCommands[i].code(words));
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "-") != 0) {
      carry_out(argv[i]);
      continue;
    }
    char line[4600];
    while (fgets(line, sizeof line, stdin) != NULL) carry_out(line);
  }
  return 0;
}
