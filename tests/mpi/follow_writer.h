// The rank of a job that writes the database which others follow, by the real LMDB.
#pragma once

#include <lmdb.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/lmdb_api.h"

namespace lmdbio::test {

/// Writes one database of an environment.
class FollowWriter {
 public:
  using Record = std::pair<std::string, std::string>;

  FollowWriter(const std::string& dir, const std::string& name, bool dupsort)
      : api_(load_lmdb(std::getenv("TEST_LMDB") != nullptr ? std::getenv("TEST_LMDB") : "liblmdb.so.0")),
        name_(name),
        dupsort_(dupsort) {
    std::filesystem::create_directories(dir);
    check(api_.env_create(&env_));
    check(api_.env_set_maxdbs(env_, 4));
    check(api_.env_set_mapsize(env_, std::size_t{1} << 28));
    check(api_.env_open(env_, dir.c_str(), MDB_NOSYNC, 0644));
  }
  FollowWriter(const FollowWriter&) = delete;
  FollowWriter& operator=(const FollowWriter&) = delete;
  ~FollowWriter() { api_.env_close(env_); }

  /// Begins a transaction, and deletes and puts records.  The first record of a key without a value is
  /// deleted.
  void begin(const std::vector<Record>& puts, const std::vector<Record>& dels = {}) {
    check(api_.txn_begin(env_, nullptr, 0, &txn_));
    check(api_.dbi_open(txn_, name_.empty() ? nullptr : name_.c_str(),
                        MDB_CREATE | (dupsort_ ? MDB_DUPSORT : 0u), &dbi_));
    for (Record r : dels) {
      MDB_val k = val(r.first), v = val(r.second);
      check(api_.del(txn_, dbi_, &k, dupsort_ ? &v : nullptr));
    }
    for (Record r : puts) {
      MDB_val k = val(r.first), v = val(r.second);
      check(api_.put(txn_, dbi_, &k, &v, 0));
    }
  }
  void commit(const std::vector<Record>& puts, const std::vector<Record>& dels = {}) {
    begin(puts, dels);
    check(api_.txn_commit(txn_));
  }
  /// Returns the snapshots that processes hold, one for each reader slot.
  std::vector<std::uint64_t> held() const {
    std::vector<std::uint64_t> out;
    const auto line = [](const char* text, void* to) {
      std::istringstream in(text);
      std::string pid, thread, txnid;
      if (in >> pid >> thread >> txnid && txnid.find_first_not_of("0123456789") == std::string::npos)
        static_cast<std::vector<std::uint64_t>*>(to)->push_back(std::stoull(txnid));
      return 0;
    };
    (void)api_.reader_list(env_, line, &out);
    return out;
  }
  void compacted_copy(const std::string& dir) {
    std::filesystem::create_directories(dir);
    check(api_.env_copy2(env_, dir.c_str(), MDB_CP_COMPACT));
  }

 private:
  static MDB_val val(std::string& s) { return {s.size(), s.data()}; }
  void check(int rc) const {
    if (rc != 0) throw std::runtime_error(std::string("the writer: ") + api_.strerror(rc));
  }
  const LmdbApi api_;
  const std::string name_;
  const bool dupsort_;
  MDB_env* env_ = nullptr;
  MDB_txn* txn_ = nullptr;
  MDB_dbi dbi_ = 0;
};

}  // namespace lmdbio::test
