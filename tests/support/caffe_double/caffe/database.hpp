// A database with a cursor of Caffe's: of the backend LMDBIO where the program is built with it (USE_LMDBIO),
// else of LMDB.
#pragma once

#include <memory>
#include <string>

#ifdef USE_LMDBIO
#include "caffe/util/db_lmdbio.hpp"
#else
#include "caffe/lmdb_cursor.hpp"
#endif

namespace lmdbio::testing {

#ifdef USE_LMDBIO

class CaffeDatabase {
 public:
  explicit CaffeDatabase(const std::string& path) {
    db_.Open(path, caffe::db::READ);
    cursor_.reset(db_.NewCursor());
  }
  caffe::db::Cursor& cursor() { return *cursor_; }

 private:
  caffe::db::LMDBIO db_;
  std::unique_ptr<caffe::db::Cursor> cursor_;
};

#else

class CaffeDatabase {
 public:
  explicit CaffeDatabase(const std::string& path) : db_(path), cursor_(db_.env()) {}
  caffe::db::Cursor& cursor() { return cursor_; }

 private:
  const LmdbDatabase db_;
  LmdbCursor cursor_;
};

#endif

}  // namespace lmdbio::testing
