#include "tests/diff/writer.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace lmdbio::diff {
namespace {

struct Request {
  int which;
  int no_subdir;
  std::uint64_t seed;
  char dir[512];
};

bool all(ssize_t n, std::size_t size) { return n >= 0 && static_cast<std::size_t>(n) == size; }

void check(const test::LmdbApi& lmdb, int rc, const char* what) {
  if (rc != 0) throw std::runtime_error(std::string(what) + ": " + lmdb.strerror(rc));
}

void change(const test::LmdbApi& lmdb, MDB_txn* txn, const test::DbSpec& spec, test::Rng& rng) {
  const bool drop = !spec.name.empty() && rng.percent(6);
  test::DbSpec d = spec;
  if (!spec.name.empty() && rng.percent(2) && (spec.flags & (MDB_INTEGERKEY | MDB_REVERSEKEY)) == 0)
    d.flags |= MDB_REVERSEKEY;  // recreated with other flags, if it is not there
  MDB_dbi dbi = 0;
  check(lmdb, test::open_database(lmdb, txn, d, MDB_CREATE, &dbi), "dbi_open");
  if (drop) {
    check(lmdb, lmdb.drop(txn, dbi, 1), "drop");
  } else {
    test::scribble(lmdb, txn, dbi, d, rng, rng.between(1, d.value_max > 1000 ? 5 : 30));
  }
}

void commit_once(const test::LmdbApi& lmdb, const Environment& e, const Request& r) {
  MDB_env* env = nullptr;
  check(lmdb, lmdb.env_create(&env), "env_create");
  lmdb.env_set_maxdbs(env, 64);
  lmdb.env_set_mapsize(env, e.spec.map_bytes);
  const std::string path = std::string(r.dir) + (r.no_subdir != 0 ? "/data.mdb" : "");
  const unsigned flags = MDB_NOSYNC | (r.no_subdir != 0 ? static_cast<unsigned>(MDB_NOSUBDIR) : 0u);
  check(lmdb, lmdb.env_open(env, path.c_str(), flags, 0644), "env_open");
  test::Rng rng(r.seed);
  for (unsigned commits = rng.between(1, 3); commits > 0; --commits) {
    MDB_txn* txn = nullptr;
    check(lmdb, lmdb.txn_begin(env, nullptr, 0, &txn), "txn_begin");
    change(lmdb, txn, e.dbs[rng.percent(40) ? 0 : rng.below(e.dbs.size())], rng);
    check(lmdb, lmdb.txn_commit(txn), "txn_commit");
  }
  lmdb.env_close(env);
}

[[noreturn]] void serve(const test::LmdbApi& lmdb, const std::vector<Environment>& environments, int in,
                        int out) {
  // LMDB callocs 2 MB for each writable environment; pages fresh from the kernel need no clearing.
  mallopt(M_MMAP_THRESHOLD, 1 << 17);
  Request r;
  while (all(read(in, &r, sizeof r), sizeof r)) {
    char answer = 1;
    try {
      commit_once(lmdb, environments[static_cast<std::size_t>(r.which)], r);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "writer: %s: %s\n", r.dir, e.what());
      answer = 0;
    }
    if (!all(write(out, &answer, 1), 1)) break;
  }
  _exit(0);
}

}  // namespace

Writer::Writer(const test::LmdbApi& lmdb, const std::vector<Environment>& environments) {
  int request[2];
  int answer[2];
  if (pipe(request) != 0 || pipe(answer) != 0) throw std::runtime_error("pipe");
  child_ = fork();
  if (child_ < 0) throw std::runtime_error("fork");
  if (child_ == 0) {
    close(request[1]);
    close(answer[0]);
    serve(lmdb, environments, request[0], answer[1]);
  }
  close(request[0]);
  close(answer[1]);
  to_child_ = request[1];
  from_child_ = answer[0];
}

Writer::~Writer() {
  close(to_child_);
  close(from_child_);
  waitpid(child_, nullptr, 0);
}

bool Writer::commit(int which, std::uint64_t seed, bool no_subdir, const std::vector<std::string>& dirs) {
  for (const std::string& dir : dirs) {
    Request r{};
    r.which = which;
    r.seed = seed;
    r.no_subdir = no_subdir ? 1 : 0;
    std::snprintf(r.dir, sizeof r.dir, "%s", dir.c_str());
    char answer = 0;
    if (!all(write(to_child_, &r, sizeof r), sizeof r) || !all(read(from_child_, &answer, 1), 1) ||
        answer == 0)
      return false;
  }
  return true;
}

}  // namespace lmdbio::diff
