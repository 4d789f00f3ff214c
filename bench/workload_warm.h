// The workloads of the warm table.  The backend is the LMDB that is linked or preloaded.  The same program
// file runs with stock and with ours, so code placement and compiler flags cannot differ.
#pragma once

#include <lmdb.h>

#include <array>
#include <cstdint>
#include <vector>

#include "bench/keys.h"
#include "bench/xor_bytes.h"

namespace lmdbio::bench {

enum class Row : std::uint32_t { kNext, kNextRead, kGet, kAbsent, kRange, kBegin, kRenew };

struct RowInfo {
  Row row;
  const char* name;   // on the command line and in JSON
  const char* title;  // in tables
  bool scan;          // walks the database in order; otherwise `steps` random keys
};

constexpr std::array<RowInfo, 7> kRows{{
    {Row::kNext, "next", "MDB_NEXT, untouched", true},
    {Row::kNextRead, "next_read", "MDB_NEXT, all bytes read", true},
    {Row::kGet, "get", "mdb_get, random order", false},
    {Row::kAbsent, "absent", "mdb_get, absent key", false},
    {Row::kRange, "range", "SET_RANGE + 10 x NEXT", false},
    {Row::kBegin, "begin", "begin + get + abort", false},
    {Row::kRenew, "renew", "renew + get + reset", false},
}};

struct OpenDb {
  MDB_env* env = nullptr;
  MDB_dbi dbi = 0;
  std::uint64_t records = 0;
  KeyKind keys = KeyKind::kImage;
};

inline OpenDb open_db(const char* path, KeyKind keys, unsigned flags) {
  OpenDb db;
  db.keys = keys;
  must(mdb_env_create(&db.env), "mdb_env_create");
  must(mdb_env_open(db.env, path, MDB_RDONLY | flags, 0644), path);
  MDB_txn* txn = nullptr;
  must(mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  must(mdb_dbi_open(txn, nullptr, 0, &db.dbi), "mdb_dbi_open");
  must(mdb_txn_commit(txn), "mdb_txn_commit");  // abort would close the dbi again
  MDB_stat stat{};
  must(mdb_env_stat(db.env, &stat), "mdb_env_stat");
  db.records = stat.ms_entries;
  return db;
}

/// Random keys of the database, made before the clock starts.  Key i is at data() + i * kKeyRoom.
struct KeyList {
  std::vector<char> bytes;
  std::size_t size = 0;  // of every key
  std::size_t count = 0;
  MDB_val operator[](std::size_t i) { return {size, bytes.data() + i * kKeyRoom}; }
};

inline KeyList make_keys(const OpenDb& db, Row row, std::uint64_t seed, std::size_t count) {
  KeyList list;
  list.count = count;
  list.bytes.resize(count * kKeyRoom);
  for (std::size_t i = 0; i < count; ++i)
    list.size = make_key(db.keys, mix(seed + i) % db.records, row == Row::kAbsent, &list.bytes[i * kKeyRoom]);
  return list;
}

struct Tally {
  std::uint64_t ops = 0;
  std::uint64_t wrong = 0;   // calls with a wrong result
  std::uint64_t digest = 0;  // of the data that was read
};

inline std::uint64_t first_byte(const MDB_val& v) { return *static_cast<const unsigned char*>(v.mv_data); }

/// Walks over `steps` records from MDB_FIRST on.  Continues at the first record after the last one, as Caffe
/// does.
template <bool kRead>
[[gnu::noinline]] void scan(const OpenDb& db, MDB_txn* txn, std::uint64_t steps, Tally& tally) {
  MDB_cursor* cursor = nullptr;
  must(mdb_cursor_open(txn, db.dbi, &cursor), "mdb_cursor_open");
  MDB_val key{}, value{};
  while (tally.ops < steps) {
    int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    std::uint64_t n = 0;
    for (; rc == 0 && tally.ops + n < steps; ++n) {
      if constexpr (kRead) {
        tally.digest += xor_bytes(value.mv_data, value.mv_size);
      } else {
        tally.digest += value.mv_size;
      }
      rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    tally.ops += n;
    if (rc != 0 && rc != MDB_NOTFOUND) ++tally.wrong;
    if (n == 0 || tally.wrong != 0) break;
  }
  mdb_cursor_close(cursor);
}

template <bool kPresent>
[[gnu::noinline]] void get(const OpenDb& db, MDB_txn* txn, KeyList& keys, Tally& tally) {
  for (std::size_t i = 0; i < keys.count; ++i) {
    MDB_val key = keys[i], value{};
    const int rc = mdb_get(txn, db.dbi, &key, &value);
    if (rc != (kPresent ? 0 : MDB_NOTFOUND)) {
      ++tally.wrong;
    } else if constexpr (kPresent) {
      tally.digest += first_byte(value);
    }
  }
  tally.ops += keys.count;
}

[[gnu::noinline]] inline void range(const OpenDb& db, MDB_txn* txn, KeyList& keys, Tally& tally) {
  MDB_cursor* cursor = nullptr;
  must(mdb_cursor_open(txn, db.dbi, &cursor), "mdb_cursor_open");
  for (std::size_t i = 0; i < keys.count; ++i) {
    MDB_val key = keys[i], value{};
    int rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    if (rc != 0) ++tally.wrong;
    tally.digest += value.mv_size;
    for (int step = 0; step < 10 && rc == 0; ++step) {
      rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
      tally.digest += value.mv_size;
    }
    if (rc != 0 && rc != MDB_NOTFOUND) ++tally.wrong;
  }
  tally.ops += keys.count;
  mdb_cursor_close(cursor);
}

[[gnu::noinline]] inline void begin_cycle(const OpenDb& db, KeyList& keys, Tally& tally) {
  for (std::size_t i = 0; i < keys.count; ++i) {
    MDB_txn* txn = nullptr;
    MDB_val key = keys[i], value{};
    if (mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn) != 0) {
      ++tally.wrong;
      continue;
    }
    if (mdb_get(txn, db.dbi, &key, &value) != 0) {
      ++tally.wrong;
    } else {
      tally.digest += first_byte(value);
    }
    mdb_txn_abort(txn);
  }
  tally.ops += keys.count;
}

[[gnu::noinline]] inline void renew_cycle(const OpenDb& db, MDB_txn* txn, KeyList& keys, Tally& tally) {
  for (std::size_t i = 0; i < keys.count; ++i) {
    MDB_val key = keys[i], value{};
    mdb_txn_reset(txn);
    if (mdb_txn_renew(txn) != 0 || mdb_get(txn, db.dbi, &key, &value) != 0) {
      ++tally.wrong;
    } else {
      tally.digest += first_byte(value);
    }
  }
  tally.ops += keys.count;
}

/// Runs one pass of a row: `steps` records of a scan, or one operation for each of `keys`.  Not inlined,
/// because bench/instructions counts only inside this function.
[[gnu::noinline]] inline Tally run_row(const OpenDb& db, Row row, std::uint64_t steps, KeyList& keys) {
  Tally tally;
  MDB_txn* txn = nullptr;
  if (row != Row::kBegin) must(mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  switch (row) {
    case Row::kNext:
      scan<false>(db, txn, steps, tally);
      break;
    case Row::kNextRead:
      scan<true>(db, txn, steps, tally);
      break;
    case Row::kGet:
      get<true>(db, txn, keys, tally);
      break;
    case Row::kAbsent:
      get<false>(db, txn, keys, tally);
      break;
    case Row::kRange:
      range(db, txn, keys, tally);
      break;
    case Row::kBegin:
      begin_cycle(db, keys, tally);
      break;
    case Row::kRenew:
      renew_cycle(db, txn, keys, tally);
      break;
  }
  if (txn != nullptr) mdb_txn_abort(txn);
  return tally;
}

/// Reads the key and value of every record.  This maps all pages, and the digest proves that two backends
/// return the same bytes.
inline Tally read_everything(const OpenDb& db) {
  Tally tally;
  MDB_txn* txn = nullptr;
  MDB_cursor* cursor = nullptr;
  must(mdb_txn_begin(db.env, nullptr, MDB_RDONLY, &txn), "mdb_txn_begin");
  must(mdb_cursor_open(txn, db.dbi, &cursor), "mdb_cursor_open");
  MDB_val key{}, value{};
  int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
  for (; rc == 0; rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
    // The digest depends on the order of the records.
    tally.digest = tally.digest * 0x9e3779b97f4a7c15u + xor_bytes(key.mv_data, key.mv_size) +
                   3 * xor_bytes(value.mv_data, value.mv_size) + 5 * value.mv_size;
    ++tally.ops;
  }
  if (rc != MDB_NOTFOUND || tally.ops != db.records) ++tally.wrong;
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  return tally;
}

}  // namespace lmdbio::bench
