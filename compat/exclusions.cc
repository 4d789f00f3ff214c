#include "compat/exclusions.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>

#include "compat/guard.h"

namespace lmdbio::compat {

namespace {

bool begins_with(const MDB_val& key, const MDB_val& prefix) noexcept {
  return key.mv_size >= prefix.mv_size && std::memcmp(key.mv_data, prefix.mv_data, prefix.mv_size) == 0;
}

/// Finds the records to leave out.  Returns an errno or MDB_ code.
class Exclusions {
 public:
  Exclusions(MDB_txn* txn, MDB_dbi dbi, const lmdbio_reader_options& options,
             std::vector<records::Excluded>& out) noexcept
      : txn_(txn),
        dbi_(dbi),
        keys_(options.exclude, options.exclude_count),
        prefixes_(options.exclude_prefixes, options.exclude_prefix_count),
        out_(out) {}
  Exclusions(const Exclusions&) = delete;
  Exclusions& operator=(const Exclusions&) = delete;
  ~Exclusions() {
    if (cursor_ != nullptr) mdb_cursor_close(cursor_);
  }

  int find() {
    int rc = mdb_dbi_flags(txn_, dbi_, &flags_);
    if (rc == 0) rc = mdb_cursor_open(txn_, dbi_, &cursor_);
    if (rc != 0) return rc;
    // Only in the usual order, keys with a prefix follow each other.
    if ((flags_ & (MDB_REVERSEKEY | MDB_INTEGERKEY)) != 0 && !prefixes_.empty()) return scan();
    std::set<std::string> done;
    for (const MDB_val& k : keys_) {
      if (has_prefix(k, false) || !done.emplace(static_cast<const char*>(k.mv_data), k.mv_size).second)
        continue;
      MDB_val key = k, value;
      rc = mdb_cursor_get(cursor_, &key, &value, MDB_SET);
      if (rc == 0) rc = add(key, true);
      if (rc != 0 && rc != MDB_NOTFOUND) return rc;
    }
    for (const MDB_val& p : prefixes_) {
      if (has_prefix(p, true) || !done.emplace(static_cast<const char*>(p.mv_data), p.mv_size).second)
        continue;
      MDB_val key = p, value;
      rc = mdb_cursor_get(cursor_, &key, &value, MDB_SET_RANGE);
      for (bool first = true; rc == 0 && begins_with(key, p); first = false) {
        if ((rc = add(key, first)) != 0) return rc;
        rc = mdb_cursor_get(cursor_, &key, &value, MDB_NEXT_NODUP);
      }
      if (rc != 0 && rc != MDB_NOTFOUND) return rc;
    }
    return 0;
  }

 private:
  /// Returns true if `key` begins with one of the prefixes; if `longer`, with one that is shorter.
  bool has_prefix(const MDB_val& key, bool longer) const noexcept {
    return std::any_of(prefixes_.begin(), prefixes_.end(), [&](const MDB_val& p) {
      return begins_with(key, p) && (!longer || key.mv_size > p.mv_size);
    });
  }
  int add(const MDB_val& key, bool alone) {
    std::size_t values = 1;
    if ((flags_ & MDB_DUPSORT) != 0)
      if (const int rc = mdb_cursor_count(cursor_, &values); rc != 0) return rc;
    if (alone) out_.push_back({std::string(static_cast<const char*>(key.mv_data), key.mv_size), 0});
    out_.back().count += values;
    return 0;
  }
  int scan() {
    MDB_val key, value;
    int rc = mdb_cursor_get(cursor_, &key, &value, MDB_FIRST);
    for (; rc == 0; rc = mdb_cursor_get(cursor_, &key, &value, MDB_NEXT_NODUP)) {
      const bool listed = std::any_of(keys_.begin(), keys_.end(), [&](const MDB_val& k) {
        return k.mv_size == key.mv_size && begins_with(key, k);
      });
      if (!listed && !has_prefix(key, false)) continue;
      if (const int failed = add(key, true); failed != 0) return failed;
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
  }

  MDB_txn* const txn_;
  const MDB_dbi dbi_;
  const std::span<const MDB_val> keys_, prefixes_;
  std::vector<records::Excluded>& out_;
  MDB_cursor* cursor_ = nullptr;
  unsigned flags_ = 0;
};

}  // namespace

Status find_excluded(const ReadTxn& t, MDB_dbi dbi, const lmdbio_reader_options& options,
                     const std::string& name, std::vector<records::Excluded>& out, std::string& why) {
  if (options.exclude_count == 0 && options.exclude_prefix_count == 0) return {};
  if (t.env->engine->dbx(dbi).key_order.order == format::Order::user) {
    why = name + ": records cannot be left out, because the program sets the order of keys (mdb_set_compare)";
    return Status::from_errno(ENOTSUP);
  }
  const int rc = Exclusions(reinterpret_cast<MDB_txn*>(t.handle), dbi, options, out).find();
  if (rc == 0) return {};
  why = name + ": keys that are left out cannot be looked up: " + mdb_strerror(rc);
  return as_status(rc);
}

}  // namespace lmdbio::compat
