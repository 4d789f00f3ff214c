#include "tests/diff/databases.h"

#include <unistd.h>

#include <filesystem>
#include <stdexcept>

namespace lmdbio::diff {
namespace {
namespace fs = std::filesystem;

// With duplicates of one byte, stock computes a node's address in pages that have no nodes (mdb_cursor_last)
// and reads up to 400 bytes past a sub-page; at the end of the file that is SIGBUS.  Such files are made
// longer.
constexpr std::uintmax_t kTailForOneByteDups = 1u << 20;

constexpr std::size_t kKeysKept = 600;
constexpr std::size_t kValuesKept = 24;

std::string copy_of(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

Contents read_contents(const test::LmdbApi& lmdb, MDB_txn* txn, MDB_dbi dbi, std::size_t longest_value) {
  Contents c;
  MDB_cursor* cursor = nullptr;
  if (lmdb.cursor_open(txn, dbi, &cursor) != 0) throw std::runtime_error("cannot read a generated database");
  MDB_val k;
  MDB_val v;
  for (int rc = lmdb.cursor_get(cursor, &k, &v, MDB_FIRST); rc == 0 && c.keys.size() < kKeysKept;
       rc = lmdb.cursor_get(cursor, &k, &v, MDB_NEXT)) {
    const std::string key = copy_of(k);
    if (c.keys.empty() || c.keys.back() != key) {
      c.keys.push_back(key);
      c.values.emplace_back();
    }
    std::vector<std::string>& values = c.values.back();
    if (v.mv_size > longest_value) continue;
    if (values.size() < kValuesKept)
      values.push_back(copy_of(v));
    else
      values[v.mv_size * 7 % kValuesKept] = copy_of(v);
  }
  lmdb.cursor_close(cursor);
  return c;
}

}  // namespace

std::vector<Environment> build_environments(const test::LmdbApi& lmdb, std::uint64_t seed, bool large,
                                            const std::string& dir) {
  std::vector<Environment> all;
  for (test::EnvSpec& spec : large ? test::large_catalogue(seed) : test::catalogue(seed)) {
    constexpr unsigned kLargestOf09 = 32768;
    if (lmdb.is_10() && spec.page_size == kLargestOf09) spec.page_size *= 2;
    Environment e;
    e.dir = dir + "/" + std::to_string(all.size()) + "-" + spec.name;
    fs::create_directories(e.dir);
    test::generate(lmdb, spec, e.dir);
    e.dbs = spec.dbs;
    if (e.dbs.empty()) {
      e.dbs.emplace_back();
      e.dbs[0].kind = test::DbKind::kNeverWritten;
    }
    MDB_env* env = nullptr;
    MDB_txn* txn = nullptr;
    lmdb.env_create(&env);
    lmdb.env_set_maxdbs(env, 64);
    if (lmdb.env_open(env, e.dir.c_str(), MDB_RDONLY | MDB_NOLOCK, 0644) != 0 ||
        lmdb.txn_begin(env, nullptr, MDB_RDONLY, &txn) != 0)
      throw std::runtime_error("cannot open " + e.dir);
    for (const test::DbSpec& d : e.dbs) {
      MDB_dbi dbi = 0;
      if (test::open_database(lmdb, txn, d, 0, &dbi) != 0) throw std::runtime_error("cannot open " + d.name);
      e.contents.push_back(read_contents(lmdb, txn, dbi, 600));
    }
    e.free_list = read_contents(lmdb, txn, 0, 0);
    lmdb.txn_abort(txn);
    lmdb.env_close(env);
    e.spec = std::move(spec);
    all.push_back(std::move(e));
  }
  return all;
}

void remove_locks(const std::string& dir) {
  unlink((dir + "/lock.mdb").c_str());
  unlink((dir + "/data.mdb-lock").c_str());
}

void fresh_copy(const Environment& e, const std::string& to_dir) {
  fs::create_directories(to_dir);
  fs::copy_file(e.dir + "/data.mdb", to_dir + "/data.mdb", fs::copy_options::overwrite_existing);
  for (const test::DbSpec& d : e.dbs)
    if ((d.flags & MDB_DUPFIXED) != 0 && d.value_max == 1)
      fs::resize_file(to_dir + "/data.mdb", fs::file_size(e.dir + "/data.mdb") + kTailForOneByteDups);
  remove_locks(to_dir);
}

}  // namespace lmdbio::diff
