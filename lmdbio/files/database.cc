#include "lmdbio/files/database.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lmdbio/format/layout.h"
#include "lmdbio/tree/damage.h"

namespace lmdbio::files {

namespace {

/// Databases that may be open at a time: the one that is read, and one to see whether it is one.
constexpr unsigned kOpenDatabases = 2;

}  // namespace

KeyRange KeyRange::of_prefix(std::string_view prefix) {
  KeyRange r{std::string(prefix), std::string(prefix)};
  while (!r.end.empty() && r.end.back() == '\xff') r.end.pop_back();
  if (!r.end.empty()) ++r.end.back();
  return r;
}

KeyRange KeyRange::operator&(const KeyRange& other) const {
  return {std::max(first, other.first),
          end.empty() || (!other.end.empty() && other.end < end) ? other.end : end};
}

Database::Database(const std::string& path, const std::string& name) : path_(path), main_(name.empty()) {
  try {
    // As lmdbio_reader_open: a directory's data.mdb is opened by the name of the directory, so that writers
    // see this reader.
    std::string place = path;
    std::string file = path;
    unsigned flags = MDB_RDONLY | MDB_NOTLS;
    const std::filesystem::path as_path(path);
    if (std::filesystem::is_directory(as_path)) {
      file += "/data.mdb";
    } else if (as_path.filename() == "data.mdb" && ::access((path + "-lock").c_str(), F_OK) != 0) {
      place = as_path.has_parent_path() ? as_path.parent_path().string() : ".";
    } else {
      flags |= MDB_NOSUBDIR;
    }
    if (::stat(file.c_str(), &file_) != 0)
      throw Error(path + ": " + (file == path ? error_text(errno) : "no data.mdb in this directory"));
    check(mdb_env_create(&env_));
    check(mdb_env_set_maxdbs(env_, kOpenDatabases));
    check(mdb_env_open(env_, place.c_str(), flags, 0644));
    check(mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn_));
    check(mdb_dbi_open(txn_, main_ ? nullptr : name.c_str(), 0, &dbi_), main_ ? "" : "database " + name);
    // Other transactions can use the database when this one has ended by a commit.
    check(mdb_txn_commit(std::exchange(txn_, nullptr)));
    check(mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn_));
  } catch (...) {
    close();
    throw;
  }
}

void Database::close() noexcept {
  if (txn_ != nullptr) mdb_txn_abort(txn_);
  if (env_ != nullptr) mdb_env_close(env_);
}

void Database::check(int rc, std::string_view what) const {
  if (rc == 0) return;
  std::string text = path_ + ": ";
  if (!what.empty()) text.append(what).append(": ");
  throw Error(text + mdb_strerror(rc));
}

MDB_stat Database::stat() const {
  MDB_stat s{};
  check(mdb_stat(txn_, dbi_, &s));
  return s;
}

unsigned Database::flags() const {
  unsigned flags = 0;
  check(mdb_dbi_flags(txn_, dbi_, &flags));
  return flags;
}

bool Database::has_other_order() const { return (flags() & (MDB_INTEGERKEY | MDB_REVERSEKEY)) != 0; }

bool Database::has_duplicates() const { return (flags() & MDB_DUPSORT) != 0; }

bool Database::go_on() noexcept { return lmdbio_txn_pardon(txn_) == 0; }

bool Database::skip_page(std::string& key, std::size_t& page) {
  MDB_val k = value_of(key);
  const int rc = lmdbio_key_after_page(txn_, dbi_, &k, &page);
  if (rc != MDB_NOTFOUND) check(rc);
  if (rc == 0) key = bytes_of(k);
  return rc == 0;
}

bool Database::has_integer_keys() const { return (flags() & MDB_INTEGERKEY) != 0; }

bool Database::may_be_named_database(const MDB_val& value) const noexcept {
  return main_ && value.mv_size == sizeof(format::DbRecord);
}

bool Database::is_named_database(const MDB_val& key, const MDB_val& value) {
  if (!may_be_named_database(value)) return false;
  std::string name(bytes_of(key));
  // LMDB 1.0 stores names with a zero byte.  In a file of 0.9, such a key is a record like others.
  const bool ends_with_zero = !name.empty() && name.back() == '\0';
  if (ends_with_zero) name.pop_back();
  if (name.empty() || name.find('\0') != std::string::npos) return false;
  MDB_dbi found = 0;
  if (mdb_dbi_open(txn_, name.c_str(), 0, &found) != 0) return false;
  MDB_stat has{};
  const int rc = mdb_stat(txn_, found, &has);
  mdb_dbi_close(env_, found);
  if (!ends_with_zero) return true;
  format::DbRecord record;
  std::memcpy(&record, value.mv_data, sizeof record);
  return rc == 0 && record.depth == has.ms_depth && record.branch_pages == has.ms_branch_pages &&
         record.leaf_pages == has.ms_leaf_pages && record.overflow_pages == has.ms_overflow_pages &&
         record.entries == has.ms_entries;
}

bool Database::get(std::string_view key, MDB_val& value) const {
  MDB_val k = value_of(key);
  if (has_integer_keys()) {
    // LMDB reads as many bytes of `key` as the keys of the database have.
    Cursor first(*this);
    if (!first.seek("") || first.key().mv_size != key.size()) return false;
  }
  const int rc = mdb_get(txn_, dbi_, &k, &value);
  if (rc != MDB_NOTFOUND) check(rc);
  return rc == 0;
}

Cursor::Cursor(const Database& database) : database_(database) {
  database.check(mdb_cursor_open(database.txn(), database.dbi(), &cursor_));
}

bool Cursor::move(MDB_cursor_op op) {
  const int rc = mdb_cursor_get(cursor_, &key_, &value_, op);
  if (rc != MDB_NOTFOUND) database_.check(rc);
  return rc == 0;
}

bool Cursor::seek(std::string_view key) {
  if (key.empty()) return move(MDB_FIRST);
  key_ = value_of(key);
  return move(MDB_SET_RANGE);
}

bool Cursor::next() { return move(MDB_NEXT); }

bool Cursor::next_key() { return move(MDB_NEXT_NODUP); }

}  // namespace lmdbio::files
