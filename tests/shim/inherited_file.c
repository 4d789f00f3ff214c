// The file, its lock file and descriptors of an environment that a forked child inherited: taken away,
// refused, closed, passed on.  As inherited.c.
//   inherited_file DIR SCENARIO FLAGS     DIR exists and is empty
#include <dirent.h>
#include <grp.h>
#include <sys/stat.h>

#include "inherited.h"

// -- the file or the right to it is gone before the child's first use: it reads what its parent opened

static void write_file(const char* path, const void* bytes, size_t n) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && close(fd) == 0);
}

static void take_away(const char* how) {
  const char* const data = file("data.mdb");
  if (strcmp(how, "removed") == 0) {
    CHECK(unlink(data) == 0);
    return;
  }
  CHECK(rename(data, file("away.mdb")) == 0);
  if (strcmp(how, "renamed") == 0) return;
  if (strcmp(how, "replaced") == 0) {
    MDB_env* env;
    MDB_txn* txn;
    MDB_dbi dbi;
    MDB_val key = text("k00000"), value = text("another file");
    MUST(mdb_env_create(&env));
    MUST(mdb_env_open(env, data, MDB_NOSYNC | MDB_NOSUBDIR | MDB_NOLOCK, 0644));
    MUST(mdb_txn_begin(env, NULL, 0, &txn));
    MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
    MUST(mdb_put(txn, dbi, &key, &value, 0));
    MUST(mdb_txn_commit(txn));
    mdb_env_close(env);
  } else if (strcmp(how, "zero-page-size") == 0) {  // on which stock's open dies
    char meta[8192];
    const int fd = open(file("away.mdb"), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, meta, sizeof meta) == (ssize_t)sizeof meta && close(fd) == 0);
    memset(meta + 40, 0, 4), memset(meta + 4096 + 40, 0, 4);
    write_file(data, meta, sizeof meta);
  } else if (strcmp(how, "garbage") == 0) {
    write_file(data, "no database", 11);
  } else if (strcmp(how, "empty") == 0) {
    write_file(data, "", 0);
  } else if (strcmp(how, "pipe") == 0) {  // on which open waits
    CHECK(mkfifo(data, 0644) == 0);
  } else {
    CHECK(strcmp(how, "directory") == 0 && mkdir(data, 0755) == 0);
  }
}

static void other_calls(MDB_env* env) {
  MDB_stat s;
  MDB_envinfo info;
  unsigned got = ~0u;
  const char* path;
  int fd, dead;
  MUST(mdb_env_stat(env, &s));
  CHECK(s.ms_entries == kRecords + 2 && s.ms_psize == 4096);
  MUST(mdb_env_info(env, &info));
  CHECK(info.me_last_txnid == 1 && info.me_mapsize == 16u << 20);
  MUST(mdb_env_get_flags(env, &got));
  CHECK(got == (MDB_RDONLY | flags));
  MUST(mdb_env_get_path(env, &path));
  CHECK(strcmp(path, dir) == 0);
  MUST(mdb_env_get_fd(env, &fd));
  CHECK(mdb_env_get_maxkeysize(env) == 511);
  MUST(mdb_env_get_maxreaders(env, &got));
  (void)mdb_reader_list(env, ignore_line, NULL);
  (void)mdb_reader_check(env, &dead);
}

static void use_without_path(struct Reader* r) {
  read_all(r);
  other_calls(r->env);
  mdb_txn_reset(r->txn);
  MUST(mdb_txn_renew(r->txn));
  MUST(mdb_cursor_renew(r->txn, r->cursor));
  CHECK(walk_on(r->cursor, 0, 100));
  read_all(r);
  end_reader(r);
  begin_reader(r);
  CHECK(walk_on(r->cursor, 0, 100));
  read_all(r);
  close_reader(r);
}

static void file_gone(const char* how) {
  struct Reader r = open_reader(dir, flags);
  CHECK(walk_on(r.cursor, 0, 100));
  const struct Slots before = slots_of(r.env);
  struct Turn turn;
  if (fork_turn(&turn)) {
    await(turn.to_child[0]);
    use_without_path(&r);
    leave();
  }
  take_away(how);
  hand(turn.to_child[1]);
  reap(&turn);
  same_slots(r.env, &before);
  CHECK(walk_on(r.cursor, 100, kRecords - 100));
  close_reader(&r);
}

// Another directory than at the open, and a relative path: the child finds the file.
static void moved(void) {
  CHECK(chdir(dir) == 0);
  const char* const whole = dir;
  dir = ".";
  struct Reader r = open_reader(dir, flags);
  struct Turn turn;
  if (fork_turn(&turn)) {
    CHECK(chdir("/") == 0);
    CHECK(walk_on(r.cursor, 0, 100));
    read_all(&r);
    end_reader(&r);
    begin_reader(&r);
    CHECK(slots_of(r.env).mine == 1);
    close_reader(&r);
    leave();
  }
  reap(&turn);
  close_reader(&r);
  dir = whole;
}

// Which of the files another user may use: "none", "data" or "both".
static void unprivileged(const char* may) {
  CHECK(chmod(dir, 0755) == 0);
  CHECK(chmod(file("data.mdb"), strcmp(may, "none") == 0 ? 0600 : 0644) == 0);
  CHECK(chmod(file("lock.mdb"), strcmp(may, "both") == 0 ? 0666 : 0600) == 0);
  struct Reader r = open_reader(dir, flags);
  CHECK(walk_on(r.cursor, 0, 100));
  const struct Slots before = slots_of(r.env);
  struct Turn turn;
  if (fork_turn(&turn)) {
    CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    if (strcmp(may, "both") == 0) {
      end_reader(&r);
      begin_reader(&r);
      CHECK(slots_of(r.env).mine == 1 && walk_on(r.cursor, 0, 100));
    }
    use_without_path(&r);
    leave();
  }
  reap(&turn);
  same_slots(r.env, &before);
  close_reader(&r);
}

// The parent itself could not lock.
static void lockless(void) {
  CHECK(unlink(file("lock.mdb")) == 0 && mkdir(file("lock.mdb"), 0755) == 0);
  struct Reader r = open_reader(dir, flags);
  CHECK(walk_on(r.cursor, 0, 100));
  struct Turn turn, inner;
  if (fork_turn(&turn)) {
    if (fork_turn(&inner)) {
      use_without_path(&r);
      leave();
    }
    reap(&inner);
    use_without_path(&r);
    leave();
  }
  reap(&turn);
  use_without_path(&r);
}

// -- descriptors

// How many are open on files of the database.
static int descriptors(const char* ending) {
  DIR* d = opendir("/proc/self/fd");
  CHECK(d != NULL);
  int n = 0;
  for (struct dirent* e; (e = readdir(d)) != NULL;) {
    char link[300], to[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
    const ssize_t got = readlink(link, to, sizeof to - 1);
    if (got <= 0) continue;
    to[got] = 0;
    n += strncmp(to, dir, strlen(dir)) == 0 && strstr(to, ending) != NULL;
  }
  closedir(d);
  return n;
}

// What an exec'd program finds.
static void before_exec(const char* self, int use_first) {
  struct Reader r = open_reader(dir, flags);
  struct Turn turn;
  if (fork_turn(&turn)) {
    if (use_first) {
      end_reader(&r);
      begin_reader(&r);
    }
    execl(self, self, dir, "list-descriptors", "0", (char*)NULL);
    _exit(9);
  }
  reap(&turn);
  close_reader(&r);
}

static void bounded(void) {
  struct Reader r = open_reader(dir, flags);
  const int first = descriptors("");
  struct Turn turn;
  if (fork_turn(&turn)) {
    CHECK(descriptors("") == first);
    end_reader(&r);
    begin_reader(&r);
    close_reader(&r);
    const int left = descriptors("");
    CHECK(left <= first);  // the inherited ones: to close them would be to unlock what else is open
    for (int i = 0; i < 300; ++i) {
      r = open_reader(dir, flags);
      CHECK(walk_on(r.cursor, 0, 2));
      close_reader(&r);
      CHECK(descriptors("") == left);
    }
    leave();
  }
  reap(&turn);
  CHECK(descriptors("") == first);
  close_reader(&r);
  CHECK(descriptors("") == 0);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  dir = argv[1], flags = (unsigned)strtoul(argv[3], NULL, 0);
  const char* const what = argv[2];
  alarm(100);
  if (strcmp(what, "list-descriptors") == 0) {
    say("data %d, lock %d", descriptors("data.mdb"), descriptors("lock.mdb"));
    return 0;
  }
  make(dir);
  const char* const of = strchr(what, ':') ? strchr(what, ':') + 1 : "";
  if (strncmp(what, "file:", 5) == 0)
    file_gone(of);
  else if (strcmp(what, "moved") == 0)
    moved();
  else if (strncmp(what, "user:", 5) == 0)
    unprivileged(of);
  else if (strcmp(what, "lockless") == 0)
    lockless();
  else if (strncmp(what, "exec:", 5) == 0)
    before_exec(argv[0], strcmp(of, "used") == 0);
  else if (strcmp(what, "descriptors") == 0)
    bounded();
  else
    return 2;
  return 0;
}
