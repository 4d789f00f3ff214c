// Follows a database beside a writer, which is killed and started again, and checks what arrives.
//   following DIR SEED COMMITS KILLS     prints "ok N", the number of records that were new
//   following write DIR SEED COMMITS     the writer: puts and deletes records, at the end the key "end"
// A value has its key, its version, and bytes that follow from them.  Versions of a key only grow.
#define LMDBIO_WEAK
#include <lmdb.h>
#include <lmdbio/follow.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

constexpr unsigned kKeys = 300;

[[noreturn]] void give_up(const char* what, int rc) {
  std::printf("%s: %d %s\n", what, rc, lmdbio_error != nullptr ? lmdbio_error() : "");
  std::fflush(stdout);
  ::_exit(1);
}
void must(int rc, const char* what) {
  if (rc != 0) give_up(what, rc);
}
#define MUST(call) must(call, #call)

std::uint64_t next_random(std::uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

std::string value_of(const std::string& key, unsigned version) {
  std::string v = key + "/" + std::to_string(version) + "/";
  return v + std::string((version * 131u + static_cast<unsigned>(key.back())) % 7 * 900,
                         static_cast<char>('a' + version % 26));
}
std::string text(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }
MDB_val val(const std::string& s) { return {s.size(), const_cast<char*>(s.data())}; }

/// Returns the version in a value, which must be exactly that of its key.
unsigned version_in(const std::string& key, const std::string& value) {
  const std::size_t slash = value.find('/');
  if (slash == std::string::npos || value.substr(0, slash) != key) give_up("a value of another key", 0);
  const auto version = static_cast<unsigned>(std::strtoul(value.c_str() + slash + 1, nullptr, 10));
  if (value != value_of(key, version)) give_up("a value that is not whole", 0);
  return version;
}

MDB_env* open_env(const char* dir, unsigned flags) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, std::size_t{64} << 20));
  MUST(mdb_env_open(env, dir, flags, 0644));
  return env;
}

int write(const char* dir, std::uint64_t seed, unsigned commits) {
  MDB_env* const env = open_env(dir, MDB_NOSYNC);
  int dead;
  MUST(mdb_reader_check(env, &dead));
  for (unsigned i = 0;; ++i) {
    MDB_txn* txn;
    MDB_dbi dbi;
    MUST(mdb_txn_begin(env, nullptr, 0, &txn));
    MUST(mdb_dbi_open(txn, nullptr, 0, &dbi));
    // The number of commits so far, and the last version that was given, survive a kill.
    std::string counter = "commits";
    MDB_val k = val(counter), v;
    unsigned done = 0;
    if (mdb_get(txn, dbi, &k, &v) == 0) done = version_in(counter, text(v));
    if (done >= commits) {
      std::string end = "end", none;
      k = val(end), v = val(none);
      MUST(mdb_put(txn, dbi, &k, &v, 0));
      MUST(mdb_txn_commit(txn));
      mdb_env_close(env);
      return 0;
    }
    std::uint64_t random = seed * 1000003 + done;
    for (unsigned n = 1 + static_cast<unsigned>(next_random(random) % 12); n > 0; --n) {
      const std::string key = "k" + std::to_string(next_random(random) % kKeys);
      const std::string value = value_of(key, done + 1);
      k = val(key), v = val(value);
      if (next_random(random) % 4 == 0) {
        if (const int rc = mdb_del(txn, dbi, &k, nullptr); rc != MDB_NOTFOUND) MUST(rc);
      } else {
        MUST(mdb_put(txn, dbi, &k, &v, 0));
      }
    }
    const std::string value = value_of(counter, done + 1);
    k = val(counter), v = val(value);
    MUST(mdb_put(txn, dbi, &k, &v, 0));
    MUST(mdb_txn_commit(txn));
  }
}

pid_t start_writer(char** argv) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execl("/proc/self/exe", argv[0], "write", argv[1], argv[2], argv[3], static_cast<char*>(nullptr));
    ::_exit(127);
  }
  return pid;
}

/// Compares the records that were new with those of the database at the end.
void compare(const char* dir, const std::map<std::string, unsigned>& seen) {
  MDB_env* const env = open_env(dir, MDB_RDONLY);
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
  MUST(mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, nullptr, 0, &dbi));
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  MDB_val k, v;
  for (int rc = mdb_cursor_get(cursor, &k, &v, MDB_FIRST); rc != MDB_NOTFOUND;
       rc = mdb_cursor_get(cursor, &k, &v, MDB_NEXT)) {
    MUST(rc);
    const std::string key = text(k);
    if (key == "end") continue;
    const auto it = seen.find(key);
    if (it == seen.end() || it->second != version_in(key, text(v))) give_up("a record that was not seen", 0);
  }
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  mdb_env_close(env);
}

bool is_same(const lmdbio_batch& a, const lmdbio_batch& b) {
  if (a.count != b.count || a.position != b.position) return false;
  for (size_t i = 0; i < a.count; ++i)
    if (a.records[i].ordinal != b.records[i].ordinal || text(a.records[i].key) != text(b.records[i].key) ||
        text(a.records[i].value) != text(b.records[i].value))
      return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "write") == 0)
    return write(argv[2], std::strtoull(argv[3], nullptr, 10), static_cast<unsigned>(std::atoi(argv[4])));
  if (lmdbio_follow_open == nullptr) return std::printf("without\n"), 0;
  {
    MDB_env* const env = open_env(argv[1], MDB_NOSYNC);  // there must be something to follow
    mdb_env_close(env);
  }
  pid_t writer = start_writer(argv);
  const std::string end = "end";
  const MDB_val end_key = val(end);
  lmdbio_follow_options o{};
  o.size = sizeof o;
  o.fresh = 8;
  o.old = 4;
  o.seed = std::strtoull(argv[2], nullptr, 10);
  o.buffer = static_cast<lmdbio_buffer>(o.seed % 4);
  o.label_offset = 1;
  o.label_bytes = 1;
  o.capacity = 40;
  o.finished_key = &end_key;
  o.on_empty = o.seed % 3 == 0 ? LMDBIO_EMPTY_REHEARSE : LMDBIO_EMPTY_WAIT;
  o.renew_batches = 1 + o.seed % 5;
  lmdbio_follow* follow;
  if (lmdbio_follow_wait(nullptr) != EINVAL || lmdbio_follow_ahead(nullptr, 0, nullptr, nullptr) != EINVAL)
    give_up("null arguments", 0);
  MUST(lmdbio_follow_open(argv[1], &o, &follow));
  std::map<std::string, unsigned> seen;
  unsigned long long fresh_all = 0;
  std::uint64_t random = o.seed;
  int kills = std::atoi(argv[4]), status = 0;
  for (;;) {
    const lmdbio_batch *batch, *ahead = nullptr;
    size_t fresh, fresh_ahead = 0;
    int rc = 0;
    if (next_random(random) % 2 == 0) {  // the batch is decided, and read ahead
      rc = lmdbio_follow_wait(follow);
      if (rc == 0) MUST(lmdbio_follow_ahead(follow, 0, &ahead, &fresh_ahead));
    }
    if (rc == 0) rc = lmdbio_follow_next(follow, &batch, &fresh);
    if (rc == MDB_NOTFOUND) break;
    must(rc, "lmdbio_follow_next");
    if (ahead != nullptr && (fresh != fresh_ahead || !is_same(*batch, *ahead)))
      give_up("another batch ahead", 0);
    lmdbio_batch_release(ahead);
    rc = lmdbio_follow_ahead(follow, next_random(random) % 6, &ahead, nullptr);
    if (rc == 0)
      lmdbio_batch_release(ahead);
    else if (rc != MDB_NOTFOUND)
      must(rc, "lmdbio_follow_ahead");
    for (size_t i = 0; i < batch->count; ++i) {
      const std::string key = text(batch->records[i].key);
      const unsigned version = version_in(key, text(batch->records[i].value));
      if (i >= fresh) {
        if (const auto it = seen.find(key); it == seen.end() || it->second != version)
          give_up("an old record that is not the last new one", 0);
        continue;
      }
      if (seen[key] >= version) give_up("a version that is not newer", 0);
      seen[key] = version;
      ++fresh_all;
    }
    lmdbio_batch_release(batch);
    if (kills > 0 && next_random(random) % 6 == 0) {
      --kills;
      (void)::kill(writer, SIGKILL);
      (void)::waitpid(writer, &status, 0);
      writer = start_writer(argv);
    }
    if (next_random(random) % 40 == 0) {  // the state can always be saved
      const void* state;
      size_t bytes;
      MUST(lmdbio_follow_state(follow, &state, &bytes));
    }
  }
  lmdbio_follow_close(follow);
  if (::waitpid(writer, &status, 0) != writer || status != 0) give_up("the writer", status);
  compare(argv[1], seen);
  std::printf("ok %llu\n", fresh_all);
  return 0;
}
