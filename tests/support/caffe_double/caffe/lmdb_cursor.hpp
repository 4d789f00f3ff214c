// What Caffe's backend LMDB does with LMDB: an environment for each open, and a cursor that walks.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <string>
#include <utility>

#include "caffe/util/db.hpp"

namespace lmdbio::testing {

/// Reads with whatever LMDB the program has.  Throws Fatal where Caffe would end.
class LmdbCursor final : public caffe::db::Cursor {
 public:
  explicit LmdbCursor(MDB_env* env) {
    check(mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn_));
    check(mdb_dbi_open(txn_, nullptr, 0, &dbi_));
    check(mdb_cursor_open(txn_, dbi_, &cursor_));
    move(MDB_FIRST);
  }
  ~LmdbCursor() override {
    mdb_cursor_close(cursor_);
    mdb_txn_abort(txn_);
  }
  void SeekToFirst() override { move(MDB_FIRST); }
  void Next() override { move(MDB_NEXT); }
  bool valid() override { return valid_; }
  std::string key() override { return {static_cast<const char*>(key_.mv_data), key_.mv_size}; }
  std::string value() override { return {static_cast<const char*>(value_.mv_data), value_.mv_size}; }
  std::pair<void*, std::size_t> valuePointer() override { return {value_.mv_data, value_.mv_size}; }

  static void check(int rc) {
    if (rc != 0) throw caffe::Fatal(mdb_strerror(rc));
  }

 private:
  void move(MDB_cursor_op op) {
    const int rc = mdb_cursor_get(cursor_, &key_, &value_, op);
    if (rc != MDB_NOTFOUND) check(rc);
    valid_ = rc == 0;
  }

  MDB_txn* txn_ = nullptr;
  MDB_cursor* cursor_ = nullptr;
  MDB_dbi dbi_ = 0;
  MDB_val key_{}, value_{};
  bool valid_ = false;
};

class LmdbDatabase {
 public:
  explicit LmdbDatabase(const std::string& path) {
    LmdbCursor::check(mdb_env_create(&env_));
    if (const int rc = mdb_env_open(env_, path.c_str(), MDB_RDONLY | MDB_NOTLS, 0664); rc != 0) {
      mdb_env_close(env_);
      throw caffe::Fatal(path + ": " + mdb_strerror(rc));
    }
  }
  LmdbDatabase(const LmdbDatabase&) = delete;
  LmdbDatabase& operator=(const LmdbDatabase&) = delete;
  ~LmdbDatabase() { mdb_env_close(env_); }
  MDB_env* env() const { return env_; }

 private:
  MDB_env* env_ = nullptr;
};

}  // namespace lmdbio::testing
