// What inherited.c and inherited_file.c share: taking turns with a child, the reader table, reading all there
// is.
#ifndef LMDBIO_TESTS_SHIM_INHERITED_H_
#define LMDBIO_TESTS_SHIM_INHERITED_H_

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "records.h"

static const char* dir;
static unsigned flags;

__attribute__((unused)) static const char* file(const char* name) {
  static char path[4][4096];
  static unsigned at;
  char* const p = path[at++ % 4];
  snprintf(p, sizeof path[0], "%s/%s", dir, name);
  return p;
}

// -- parent and child in turn

struct Turn {
  int to_child[2], to_parent[2];
  pid_t child;
};

static void hand(int fd) { CHECK(write(fd, "", 1) == 1); }
static void await(int fd) {
  char c;
  CHECK(read(fd, &c, 1) == 1);
}

// Each side keeps its own ends alone, so that the end of one is seen by the other.
static int fork_turn(struct Turn* t) {
  CHECK(pipe2(t->to_child, O_CLOEXEC) == 0 && pipe2(t->to_parent, O_CLOEXEC) == 0);
  fflush(stdout);
  t->child = fork();
  CHECK(t->child >= 0);
  if (t->child == 0) {
    alarm(60);
    close(t->to_child[1]), close(t->to_parent[0]);
  } else {
    close(t->to_child[0]), close(t->to_parent[1]);
  }
  return t->child == 0;
}

static void leave(void) {
  fflush(stdout);
  _exit(0);
}

static void reap(struct Turn* t) {
  int status = -1;
  CHECK(waitpid(t->child, &status, 0) == t->child);
  if (status != 0) say("child: status %x", (unsigned)status);
  CHECK(status == 0);
  close(t->to_child[1]), close(t->to_parent[0]);
}

// -- the reader table

struct Slots {
  char own[4096];
  int mine, others;
};

static int one_slot(const char* line, void* out) {
  struct Slots* s = out;
  int pid;
  if (sscanf(line, "%d", &pid) != 1) return 0;  // the heading, or that there is nothing
  if (pid != getpid()) {
    ++s->others;
    return 0;
  }
  ++s->mine;
  CHECK(strlen(s->own) + strlen(line) < sizeof s->own);
  strcat(s->own, line);
  return 0;
}

__attribute__((unused)) static struct Slots slots_of(MDB_env* env) {
  struct Slots s = {"", 0, 0};
  CHECK(mdb_reader_list(env, one_slot, &s) >= 0);
  return s;
}

// Slots of processes that ended without closing stay until someone looks for them, as in stock.
__attribute__((unused)) static void same_slots(MDB_env* env, const struct Slots* before) {
  int dead;
  MUST(mdb_reader_check(env, &dead));
  const struct Slots after = slots_of(env);
  if (strcmp(after.own, before->own) != 0) say("before:\n%safter:\n%s", before->own, after.own);
  CHECK(strcmp(after.own, before->own) == 0 && after.others == 0);
}

__attribute__((unused)) static int ignore_line(const char* line, void* context) {
  (void)context, (void)line;
  return 0;
}

// All that comes after the cursor's 100th record.
static void read_all(struct Reader* r) {
  MDB_dbi dups;
  MDB_cursor* own;
  CHECK(walk_on(r->cursor, 100, kRecords - 100) && get_some(r->txn, r->dbi));
  MUST(mdb_dbi_open(r->txn, "zdups", 0, &dups));
  MUST(mdb_cursor_open(r->txn, dups, &own));
  CHECK(walk_dups(own, 0, kDups));
  mdb_cursor_close(own);
}

#endif
