// A database that is read as files: one snapshot, by LMDB's functions, which LMDBIO serves.
#pragma once

#include <lmdb.h>
#include <string.h>
#include <sys/stat.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lmdbio::files {

/// Thrown if a file or database cannot be used.  what() names it, and the reason.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns the text for an errno.
inline std::string error_text(int error) {
  const char* const text = ::strerrordesc_np(error);
  return text != nullptr ? text : "error " + std::to_string(error);
}

inline MDB_val value_of(std::string_view bytes) noexcept {
  return {bytes.size(), const_cast<char*>(bytes.data())};
}
inline std::string_view bytes_of(const MDB_val& v) noexcept {
  return {static_cast<const char*>(v.mv_data), v.mv_size};
}

/// The keys from `first` up to, but without, `end`.  Empty: no limit.
struct KeyRange {
  std::string first, end;

  /// Returns the range of all keys that begin with `prefix`.
  static KeyRange of_prefix(std::string_view prefix);
  /// Returns the keys that are in both ranges.
  KeyRange operator&(const KeyRange& other) const;
  bool before_end(std::string_view key) const noexcept { return end.empty() || key < end; }
};

/// One database of a snapshot, which no writer changes while this object exists.  Spans that it returns are
/// valid as long as it is.  Its functions throw Error, and bad_alloc.
class Database {
 public:
  /// Opens the newest snapshot.  `path`: a directory that contains data.mdb, or a data file.  `name`: of a
  /// named database; empty: the main database.
  Database(const std::string& path, const std::string& name);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() { close(); }

  const std::string& path() const noexcept { return path_; }
  MDB_env* env() const noexcept { return env_; }
  MDB_txn* txn() const noexcept { return txn_; }
  MDB_dbi dbi() const noexcept { return dbi_; }
  MDB_stat stat() const;
  /// Returns the status of the data file, when it was opened.
  const struct stat& file() const noexcept { return file_; }
  /// Returns true if a key may have several values (MDB_DUPSORT).
  bool has_duplicates() const;
  /// Lets the transaction be used again after it has met a damaged page.  Cursors must be closed before.
  /// Returns false if that is not possible.
  bool go_on() noexcept;
  /// Sets `key` to the first key of the page after its own, and `page` to the number of its own page if this
  /// cannot be read, else to 0.  Cursors as for go_on().  Returns false if no page follows.
  bool skip_page(std::string& key, std::size_t& page);
  /// Returns true if keys are not in the order of their bytes, so that a KeyRange has no meaning.
  bool has_other_order() const;
  bool has_integer_keys() const;
  /// Returns true if a record of the main database stands for a named database, and is not a value.
  bool is_named_database(const MDB_val& key, const MDB_val& value);
  /// Returns false if a record with this value is surely none.  Any thread.
  bool may_be_named_database(const MDB_val& value) const noexcept;
  /// Sets `value` to the first value of `key`.  Returns false if the key does not exist.
  bool get(std::string_view key, MDB_val& value) const;
  /// Throws Error with the text of an error code, unless `rc` is 0.
  void check(int rc, std::string_view what = {}) const;

 private:
  void close() noexcept;
  unsigned flags() const;

  const std::string path_;
  const bool main_;
  struct stat file_ {};
  MDB_env* env_ = nullptr;
  MDB_txn* txn_ = nullptr;
  MDB_dbi dbi_ = 0;
};

/// A position in a database.  Functions as those of Database, which must outlive it.
class Cursor {
 public:
  explicit Cursor(const Database& database);
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;
  ~Cursor() { mdb_cursor_close(cursor_); }

  /// Goes to the first record whose key is not less than `key`; to the first one if `key` is empty.  Returns
  /// false if there is none.
  bool seek(std::string_view key);
  /// Goes to the next record, or to the next value of the same key.
  bool next();
  /// Goes to the first value of the next key.
  bool next_key();
  const MDB_val& key() const noexcept { return key_; }
  const MDB_val& value() const noexcept { return value_; }

 private:
  bool move(MDB_cursor_op op);

  const Database& database_;
  MDB_cursor* cursor_ = nullptr;
  MDB_val key_{}, value_{};
};

}  // namespace lmdbio::files
