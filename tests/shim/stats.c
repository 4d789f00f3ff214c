// Calls in known numbers, in one process and in children of it, that end in several ways.
//   stats DIR COMMAND...
// make; open, openw (writable), open2 (another environment on DIR); begin, beginw, end; close; get N, next N;
// exit, _exit, kill (itself); exec (the rest, in this process); wait (for a line).
// fork, fork&: what follows, up to "parent", is a child's; the parent waits for it, or goes on.  children:
// waits for all.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transcript.h"

static MDB_env* env;
static MDB_txn* txn;
static MDB_dbi dbi;

static MDB_env* opened(const char* path, unsigned flags) {
  MDB_env* e;
  MUST(mdb_env_create(&e));
  MUST(mdb_env_open(e, path, flags, 0644));
  return e;
}

static void begin(unsigned flags) {
  MUST(mdb_txn_begin(env, NULL, flags, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
}

static void make(const char* path) {
  char name[16];
  env = opened(path, MDB_NOSYNC);
  begin(0);
  for (unsigned i = 0; i < 100; ++i) {
    snprintf(name, sizeof name, "k%05u", i);
    MDB_val key = text(name), data = text("0123456789");
    MUST(mdb_put(txn, dbi, &key, &data, 0));
  }
  MUST(mdb_txn_commit(txn));
  mdb_env_close(env);
}

static void get(int n) {
  char name[16];
  for (int i = 0; i < n; ++i) {
    snprintf(name, sizeof name, "k%05u", (unsigned)i % 100);
    MDB_val key = text(name), data;
    MUST(mdb_get(txn, dbi, &key, &data));
  }
}

static void next(int n) {
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  for (int i = 0; i < n; ++i) MUST(mdb_cursor_get(cursor, &key, &data, MDB_NEXT));
  mdb_cursor_close(cursor);
}

// The word after the "parent" that belongs to a fork; children may have children.
static char** after(char** words) {
  for (int depth = 0; *words != NULL; ++words) {
    if (strncmp(*words, "fork", 4) == 0) ++depth;
    if (strcmp(*words, "parent") == 0 && depth-- == 0) return words + 1;
  }
  return words;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  char** words = argv + 2;
  while (*words != NULL) {
    const char* const word = *words++;
    int n;
    if (strcmp(word, "make") == 0)
      make(argv[1]);
    else if (strcmp(word, "open") == 0)
      env = opened(argv[1], MDB_RDONLY);
    else if (strcmp(word, "openw") == 0)
      env = opened(argv[1], MDB_NOSYNC);
    else if (strcmp(word, "open2") == 0)
      (void)opened(argv[1], MDB_RDONLY | MDB_NOLOCK);
    else if (strcmp(word, "begin") == 0)
      begin(MDB_RDONLY);
    else if (strcmp(word, "beginw") == 0)
      begin(0);
    else if (strcmp(word, "end") == 0)
      mdb_txn_abort(txn);
    else if (strcmp(word, "close") == 0)
      mdb_env_close(env);
    else if (sscanf(word, "get %d", &n) == 1)
      get(n);
    else if (sscanf(word, "next %d", &n) == 1)
      next(n);
    else if (strcmp(word, "exit") == 0)
      exit(0);
    else if (strcmp(word, "_exit") == 0)
      _exit(3);
    else if (strcmp(word, "kill") == 0)
      kill(getpid(), SIGKILL);
    else if (strcmp(word, "wait") == 0) {
      puts("waits");
      fflush(stdout);
      while (getchar() != '\n') {
      }
    } else if (strcmp(word, "exec") == 0) {
      *--words = argv[1];
      *--words = argv[0];
      execv(argv[0], words);
      return 2;
    } else if (strcmp(word, "fork") == 0 || strcmp(word, "fork&") == 0) {
      const pid_t child = fork();
      CHECK(child >= 0);
      if (child == 0) continue;
      if (word[4] == 0) CHECK(waitpid(child, NULL, 0) == child);
      words = after(words);
    } else if (strcmp(word, "children") == 0) {
      while (wait(NULL) > 0) {
      }
    } else {
      fprintf(stderr, "%s?\n", word);
      return 2;
    }
  }
  return 0;
}
