// The real LMDB, opened by name, so that only processes that use it contain it.
#pragma once

#include <lmdb.h>

#include <string>

#include "bench/common.h"
#include "bench/functions.h"

namespace lmdbio::bench {

/// Functions of liblmdb.so.0.  Ends the program on an error.
class StockLmdb {
 public:
  StockLmdb() {
    // RTLD_DEEPBIND: LMDB must call its own functions, not those of liblmdbio.so with the same names.
    const Functions resolve("liblmdb.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    resolve("mdb_strerror", error_text);
    resolve("mdb_env_create", env_create);
    resolve("mdb_env_set_mapsize", env_set_mapsize);
    resolve("mdb_env_open", env_open);
    resolve("mdb_env_stat", env_stat);
    resolve("mdb_env_sync", env_sync);
    resolve("mdb_env_close", env_close);
    resolve("mdb_txn_begin", txn_begin);
    resolve("mdb_txn_commit", txn_commit);
    resolve("mdb_txn_abort", txn_abort);
    resolve("mdb_dbi_open", dbi_open);
    resolve("mdb_get", get);
    resolve("mdb_put", put);
    resolve("mdb_cursor_open", cursor_open);
    resolve("mdb_cursor_get", cursor_get);
    resolve("mdb_cursor_close", cursor_close);
  }
  void check(int rc, const char* what) const {
    if (rc != 0) die("%s: %s", what, error_text(rc));
  }

  decltype(&::mdb_strerror) error_text;
  decltype(&::mdb_env_create) env_create;
  decltype(&::mdb_env_set_mapsize) env_set_mapsize;
  decltype(&::mdb_env_open) env_open;
  decltype(&::mdb_env_stat) env_stat;
  decltype(&::mdb_env_sync) env_sync;
  decltype(&::mdb_env_close) env_close;
  decltype(&::mdb_txn_begin) txn_begin;
  decltype(&::mdb_txn_commit) txn_commit;
  decltype(&::mdb_txn_abort) txn_abort;
  decltype(&::mdb_dbi_open) dbi_open;
  decltype(&::mdb_get) get;
  decltype(&::mdb_put) put;
  decltype(&::mdb_cursor_open) cursor_open;
  decltype(&::mdb_cursor_get) cursor_get;
  decltype(&::mdb_cursor_close) cursor_close;
};

/// A read transaction on the main database of a directory, and a cursor.
class StockReader {
 public:
  explicit StockReader(const std::string& directory) {
    lmdb_.check(lmdb_.env_create(&env_), "mdb_env_create");
    lmdb_.check(lmdb_.env_open(env_, directory.c_str(), MDB_RDONLY | MDB_NOLOCK, 0644), directory.c_str());
    lmdb_.check(lmdb_.txn_begin(env_, nullptr, MDB_RDONLY, &txn_), "mdb_txn_begin");
    lmdb_.check(lmdb_.dbi_open(txn_, nullptr, 0, &dbi_), "mdb_dbi_open");
    lmdb_.check(lmdb_.cursor_open(txn_, dbi_, &cursor_), "mdb_cursor_open");
    MDB_stat stat{};
    lmdb_.check(lmdb_.env_stat(env_, &stat), "mdb_env_stat");
    records_ = stat.ms_entries;
  }
  StockReader(const StockReader&) = delete;
  StockReader& operator=(const StockReader&) = delete;
  ~StockReader() {
    lmdb_.cursor_close(cursor_);
    lmdb_.txn_abort(txn_);
    lmdb_.env_close(env_);
  }

  std::uint64_t records() const { return records_; }
  MDB_val first_or_next(bool first, MDB_val* key = nullptr) {
    MDB_val k{}, value{};
    lmdb_.check(lmdb_.cursor_get(cursor_, &k, &value, first ? MDB_FIRST : MDB_NEXT), "mdb_cursor_get");
    if (key != nullptr) *key = k;
    return value;
  }
  MDB_val get(MDB_val key) {
    MDB_val value{};
    lmdb_.check(lmdb_.get(txn_, dbi_, &key, &value), "mdb_get");
    return value;
  }

 private:
  const StockLmdb lmdb_;
  MDB_env* env_ = nullptr;
  MDB_txn* txn_ = nullptr;
  MDB_dbi dbi_ = 0;
  MDB_cursor* cursor_ = nullptr;
  std::uint64_t records_ = 0;
};

}  // namespace lmdbio::bench
