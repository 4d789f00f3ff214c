#include "lmdbio/files/append_writer.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/files/database.h"

namespace lmdbio::files {

namespace {

/// A transaction ends after so many bytes or records.  LMDB keeps its values in memory as well.
constexpr std::uint64_t kCommitBytes = std::uint64_t{64} << 20, kCommitRecords = 50'000;
/// Memory of a record beside its bytes, roughly.
constexpr std::uint64_t kRecordBytes = 64;

}  // namespace

AppendWriter::AppendWriter(const std::string& directory, std::uint64_t map_bytes)
    : path_(directory), map_bytes_(align_up(map_bytes, std::uint64_t{1} << 20)) {
  try {
    check(mdb_env_create(&env_));
    check(mdb_env_set_mapsize(env_, map_bytes_));
    // Without a sync at each commit.  The caller knows by the boot id whether all commits are in the page
    // cache.
    check(mdb_env_open(env_, path_.c_str(), MDB_NOSYNC, 0666));
    MDB_envinfo info{};
    check(mdb_env_info(env_, &info));
    map_bytes_ = std::max<std::uint64_t>(map_bytes_, info.me_mapsize);
    begin();
    MDB_stat stat{};
    check(mdb_stat(txn_, dbi_, &stat));
    committed_ = stat.ms_entries;
    if (committed_ == 0) return;
    MDB_cursor* cursor = nullptr;
    check(mdb_cursor_open(txn_, dbi_, &cursor));
    MDB_val key, value;
    const int rc = mdb_cursor_get(cursor, &key, &value, MDB_LAST);
    if (rc == 0) last_key_ = bytes_of(key);
    mdb_cursor_close(cursor);
    check(rc);
  } catch (...) {
    if (txn_ != nullptr) mdb_txn_abort(txn_);
    if (env_ != nullptr) mdb_env_close(env_);
    throw;
  }
}

AppendWriter::~AppendWriter() {
  if (txn_ != nullptr) mdb_txn_abort(txn_);
  mdb_env_close(env_);
}

void AppendWriter::check(int rc) const {
  if (rc == 0) return;
  // LMDB's code for a write that was cut short.
  throw Error(path_ + ": " + mdb_strerror(rc) + (rc == EIO ? "; the file system may be full" : ""));
}

void AppendWriter::begin() {
  check(mdb_txn_begin(env_, nullptr, 0, &txn_));
  check(mdb_dbi_open(txn_, nullptr, 0, &dbi_));
}

int AppendWriter::put(const Record& record) noexcept {
  MDB_val key = value_of(record.key), value = value_of(record.value);
  return mdb_put(txn_, dbi_, &key, &value, MDB_APPEND);
}

/// Writes the whole transaction again.
int AppendWriter::put_and_commit() noexcept {
  for (const Record& r : waiting_)
    if (const int rc = put(r); rc != 0) return rc;
  return mdb_txn_commit(std::exchange(txn_, nullptr));
}

void AppendWriter::append(std::string_view key, std::string value) {
  waiting_bytes_ += key.size() + value.size() + kRecordBytes;
  waiting_.push_back({std::string(key), std::move(value)});
  const int rc = put(waiting_.back());
  if (rc != MDB_MAP_FULL) check(rc);
  if (rc == MDB_MAP_FULL || waiting_bytes_ >= kCommitBytes || waiting_.size() >= kCommitRecords)
    commit_waiting(rc == MDB_MAP_FULL);
}

void AppendWriter::commit() { commit_waiting(false); }

void AppendWriter::commit_waiting(bool is_full) {
  if (waiting_.empty()) return;
  int rc = is_full ? MDB_MAP_FULL : mdb_txn_commit(std::exchange(txn_, nullptr));
  while (rc == MDB_MAP_FULL) {
    if (txn_ != nullptr) mdb_txn_abort(std::exchange(txn_, nullptr));
    map_bytes_ += std::max(map_bytes_ / 2, align_up(waiting_bytes_, std::uint64_t{1} << 20));
    check(mdb_env_set_mapsize(env_, map_bytes_));
    begin();
    rc = put_and_commit();
  }
  check(rc);
  committed_ += waiting_.size();
  last_key_ = std::move(waiting_.back().key);
  waiting_.clear();
  waiting_bytes_ = 0;
  int fd = -1;
  struct stat st {};
  if (mdb_env_get_fd(env_, &fd) == 0 && ::fstat(fd, &st) == 0) {
    // Pages that an earlier commit has written are mostly not written again.
    const auto size = static_cast<std::uint64_t>(st.st_size);
    (void)::sync_file_range(fd, static_cast<off_t>(file_bytes_), 0, SYNC_FILE_RANGE_WRITE);
    file_bytes_ = size;
  }
  begin();
}

void AppendWriter::sync() {
  if (txn_ != nullptr) mdb_txn_abort(std::exchange(txn_, nullptr));
  check(mdb_env_sync(env_, 1));
  begin();
}

}  // namespace lmdbio::files
