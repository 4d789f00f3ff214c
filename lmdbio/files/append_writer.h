// Appends records to a database, by stock LMDB.
#pragma once

#include <lmdb.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lmdbio::files {

/// Writes records in the order of their keys to an environment that no other process writes.  The map grows
/// when it is full.  One thread.  Functions throw Error (database.h) and bad_alloc; what was committed stays.
class AppendWriter {
 public:
  /// Opens the environment in `directory`, or makes it.  `map_bytes`: first size of the map, enlarged to what
  /// the environment has already.
  AppendWriter(const std::string& directory, std::uint64_t map_bytes);
  AppendWriter(const AppendWriter&) = delete;
  AppendWriter& operator=(const AppendWriter&) = delete;
  /// What was not committed is lost.
  ~AppendWriter();

  /// Returns the number of records that are committed.
  std::uint64_t committed() const noexcept { return committed_; }
  /// Returns the key of the last committed record; empty if there is none.
  const std::string& last_key() const noexcept { return last_key_; }
  /// Appends a record, and commits if many bytes wait for that.  The key must be greater than the last one.
  void append(std::string_view key, std::string value);
  /// Commits.  The data is in the page cache then; the system begins to write it to disk.
  void commit();
  /// Waits until all that was committed is on disk.
  void sync();
  /// Commits, and waits until everything is on disk.
  void finish() {
    commit();
    sync();
  }

 private:
  struct Record {
    std::string key, value;
  };
  void check(int rc) const;
  void begin();
  int put(const Record& record) noexcept;
  int put_and_commit() noexcept;
  void commit_waiting(bool is_full);

  const std::string path_;
  MDB_env* env_ = nullptr;
  MDB_txn* txn_ = nullptr;
  MDB_dbi dbi_ = 0;
  std::uint64_t map_bytes_;
  std::uint64_t committed_ = 0;
  std::string last_key_;
  std::vector<Record> waiting_;  ///< the records of the transaction, to repeat it with a larger map
  std::uint64_t waiting_bytes_ = 0;
  std::uint64_t file_bytes_ = 0;  ///< of the data file, for which writing to disk has begun
};

}  // namespace lmdbio::files
