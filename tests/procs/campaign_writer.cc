// The campaign's writer, always with the real LMDB alone.
//   campaign_writer make DIR MODEL            creates the database, in one commit
//   campaign_writer write DIR MODEL SEED [hold]
//       says "ready", then commits until its standard input ends, and says how often.  hold: a transaction of
//       its own keeps LMDB from using pages again.  Readers whose lock file is another one need that.
#include <lmdb.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/procs/campaign_model.h"
#include "tests/support/rng.h"

namespace lmdbio::campaign {
namespace {

void must(int rc, const char* what) {
  if (rc == 0) return;
  std::fprintf(stderr, "campaign_writer: %s: %s\n", what, mdb_strerror(rc));
  std::exit(3);
}

class Writer {
 public:
  Writer(const char* dir, const Model& model, bool create) : model_(model) {
    constexpr std::size_t kMap = std::size_t{2} << 30;
    MDB_txn* txn;
    const unsigned flag = create ? MDB_CREATE : 0;
    must(mdb_env_create(&env_), "env_create");
    must(mdb_env_set_mapsize(env_, kMap), "env_set_mapsize");
    must(mdb_env_set_maxdbs(env_, 4), "env_set_maxdbs");
    must(mdb_env_set_maxreaders(env_, 500), "env_set_maxreaders");
    must(mdb_env_open(env_, dir, MDB_NOSYNC | MDB_NOTLS, 0644), "env_open");
    must(mdb_txn_begin(env_, nullptr, create ? 0 : MDB_RDONLY, &txn), "txn_begin");
    must(mdb_dbi_open(txn, "m", flag, &records_), "dbi_open");
    must(mdb_dbi_open(txn, "d", create ? flag | MDB_DUPSORT | MDB_DUPFIXED : 0, &dups_), "dbi_open");
    if (create) must(write(txn, 0), "put");
    state_ = create ? 0 : mdb_txn_id(txn) - 1;
    must(mdb_txn_commit(txn), "txn_commit");
  }
  ~Writer() {
    mdb_txn_abort(held_);
    mdb_env_close(env_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// False: the map is full of what readers hold.
  bool commit() {
    MDB_txn* txn;
    must(mdb_txn_begin(env_, nullptr, 0, &txn), "txn_begin");
    const int rc = write(txn, state_ + 1);
    if (rc == MDB_MAP_FULL) {
      mdb_txn_abort(txn);
      return false;
    }
    must(rc, "put");
    must(mdb_txn_commit(txn), "txn_commit");
    ++state_;
    return true;
  }
  void hold() { must(mdb_txn_begin(env_, nullptr, MDB_RDONLY, &held_), "txn_begin"); }

 private:
  int write(MDB_txn* txn, std::uint64_t t) {
    int rc = 0;
    for (std::uint64_t i = 0; i < model_.records() && rc == 0; ++i) {
      if (!model_.written(i, t)) continue;
      unsigned char name[8];
      MDB_val key = known_key(i, &name), value{model_.size(i, t), nullptr};
      if (Model::kept(i, t)) {
        rc = mdb_put(txn, records_, &key, &value, MDB_RESERVE | (t == 0 ? unsigned{MDB_APPEND} : 0));
        if (rc == 0) model_.fill(i, t, value.mv_data);
      } else {
        rc = mdb_del(txn, records_, &key, nullptr);
        if (rc == MDB_NOTFOUND) rc = 0;
      }
    }
    for (std::uint64_t k = 0; k < Model::kDupKeys; ++k)
      for (std::uint64_t d = 0; d < Model::kDups && rc == 0; ++d) {
        const bool now = model_.dup_present(k, d, t), before = t != 0 && model_.dup_present(k, d, t - 1);
        if (now == before) continue;
        unsigned char name[8], bytes[Model::kDupBytes];
        MDB_val key = known_key(k, &name), value{sizeof bytes, bytes};
        Model::fill_dup(k, d, bytes);
        rc = now ? mdb_put(txn, dups_, &key, &value, 0) : mdb_del(txn, dups_, &key, &value);
      }
    return rc;
  }

  const Model& model_;
  MDB_env* env_ = nullptr;
  MDB_txn* held_ = nullptr;
  MDB_dbi records_ = 0, dups_ = 0;
  std::uint64_t state_ = 0;
};

bool input_ended(int milliseconds) {
  pollfd in{STDIN_FILENO, POLLIN, 0};
  return poll(&in, 1, milliseconds) != 0;
}

int run(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string what = argv[1];
  const Model model(argv[3]);
  if (what == "make" && argc == 4) {
    const Writer writer(argv[2], model, true);
    return 0;
  }
  if (what != "write" || argc < 5) return 2;
  Writer writer(argv[2], model, false);
  test::Rng rng(std::strtoull(argv[4], nullptr, 10));
  if (argc > 5) writer.hold();
  std::puts("ready");
  std::fflush(stdout);
  unsigned long commits = 0, full = 0;
  do {
    ++(writer.commit() ? commits : full);
  } while (!input_ended(rng.percent(5) ? 500 : static_cast<int>(rng.below(40))));
  std::printf("commits %lu full %lu\n", commits, full);
  return 0;
}

}  // namespace
}  // namespace lmdbio::campaign

int main(int argc, char** argv) { return lmdbio::campaign::run(argc, argv); }
