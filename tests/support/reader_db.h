// Databases for tests of readers: written and walked by the real LMDB, read by ours.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/format/compare.h"
#include "lmdbio/format/layout_09.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/io_engine.h"
#include "lmdbio/records/build_index.h"
#include "lmdbio/records/reader.h"
#include "lmdbio/records/stream.h"
#include "tests/support/dbgen.h"
#include "tests/support/lmdb_api.h"
#include "tests/support/rng.h"

namespace lmdbio::testing {

/// How readers read: directly but for what is in the page cache; directly; through the page cache.
inline constexpr ReadDecision kAsResident{ReadPath::direct, true, false, ""},
    kDirectly{ReadPath::direct, false, false, ""}, kThroughPageCache{ReadPath::page_cache, true, false, ""};

using Records = std::vector<std::pair<std::string, std::string>>;

inline std::string text(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

/// A directory with a database, removed with the object.
class ReaderDb {
 public:
  ReaderDb() : dir_(::testing::TempDir() + "lmdbio_reader_XXXXXX") {
    if (::mkdtemp(dir_.data()) == nullptr) throw std::runtime_error(dir_);
    const char* const lib = std::getenv("TEST_LMDB");
    lmdb_ = test::load_lmdb(lib != nullptr ? lib : "liblmdb.so.0");
  }
  /// One that another process made, and removes.
  static std::unique_ptr<ReaderDb> existing(const std::string& dir) {
    auto db = std::make_unique<ReaderDb>();
    std::filesystem::remove_all(db->dir_);
    db->dir_ = dir;
    db->others_ = true;
    return db;
  }
  ReaderDb(const ReaderDb&) = delete;
  ReaderDb& operator=(const ReaderDb&) = delete;
  ~ReaderDb() {
    if (!others_) std::filesystem::remove_all(dir_);
  }

  const test::LmdbApi& lmdb() const { return lmdb_; }
  const std::string& dir() const { return dir_; }
  std::string file() const { return dir_ + "/data.mdb"; }

  /// `n` records: key number(i), value of `size(i)` bytes; in the main database, or in `name`.
  void fill(std::uint64_t n, const std::function<std::size_t(std::uint64_t)>& size, unsigned flags = 0,
            const char* name = nullptr) {
    MDB_env* env = open(0, std::size_t{4} << 30);
    MDB_txn* txn;
    check(lmdb_.txn_begin(env, nullptr, 0, &txn));
    MDB_dbi dbi;
    check(lmdb_.dbi_open(txn, name, flags | MDB_CREATE, &dbi));
    for (std::uint64_t i = 0; i < n; ++i) {
      std::string key = number(i), value = value_of(i, size(i));
      MDB_val k{key.size(), key.data()}, v{value.size(), value.data()};
      check(lmdb_.put(txn, dbi, &k, &v, 0));
    }
    check(lmdb_.txn_commit(txn));
    lmdb_.env_close(env);
  }
  /// Deletes record `i` and puts it in again with another size, in transactions of their own: it then lies
  /// out of the order of keys.
  void put_again(std::uint64_t i, std::size_t size, const char* name = nullptr) {
    MDB_env* env = open(0, std::size_t{4} << 30);
    for (const bool put : {false, true}) {
      MDB_txn* txn;
      check(lmdb_.txn_begin(env, nullptr, 0, &txn));
      MDB_dbi dbi;
      check(lmdb_.dbi_open(txn, name, 0, &dbi));
      std::string key = number(i), value = value_of(i, size);
      MDB_val k{key.size(), key.data()}, v{value.size(), value.data()};
      check(put ? lmdb_.put(txn, dbi, &k, &v, 0) : lmdb_.del(txn, dbi, &k, nullptr));
      check(lmdb_.txn_commit(txn));
    }
    lmdb_.env_close(env);
  }
  static std::string number(std::uint64_t i) {
    char buffer[24];
    (void)std::snprintf(buffer, sizeof buffer, "%012llu", static_cast<unsigned long long>(i));
    return buffer;
  }
  static std::string value_of(std::uint64_t i, std::size_t size) {
    test::Rng rng(i);
    std::string v(size, '\0');
    for (std::size_t at = 0; at < size; at += 8) {
      const std::uint64_t word = rng.next();
      std::memcpy(v.data() + at, &word, std::min<std::size_t>(8, size - at));
    }
    return v;
  }

  /// All records of the main database, or of `name`, by the real LMDB.
  Records walk(const test::DbSpec* named = nullptr) const {
    MDB_env* env = open(MDB_RDONLY, std::size_t{4} << 30);
    MDB_txn* txn;
    check(lmdb_.txn_begin(env, nullptr, MDB_RDONLY, &txn));
    Records all;
    MDB_dbi dbi;
    const int opened = named != nullptr ? test::open_database(lmdb_, txn, *named, 0, &dbi)
                                        : lmdb_.dbi_open(txn, nullptr, 0, &dbi);
    check(opened);
    MDB_cursor* c;
    check(lmdb_.cursor_open(txn, dbi, &c));
    MDB_val k, v;
    for (int rc = lmdb_.cursor_get(c, &k, &v, MDB_FIRST); rc == 0; rc = lmdb_.cursor_get(c, &k, &v, MDB_NEXT))
      all.emplace_back(text(k), text(v));
    lmdb_.cursor_close(c);
    lmdb_.txn_abort(txn);
    lmdb_.env_close(env);
    return all;
  }

  /// The first `count` records that rank `rank` of `ranks` uses if it skips the others' as Caffe does: a
  /// cursor of the real LMDB goes on by `ranks` records from one to the next, and from the last to the first.
  Records walk_share(std::uint64_t rank, std::uint64_t ranks, std::uint64_t count) const {
    MDB_env* env = open(MDB_RDONLY, std::size_t{4} << 30);
    MDB_txn* txn;
    check(lmdb_.txn_begin(env, nullptr, MDB_RDONLY, &txn));
    MDB_dbi dbi;
    check(lmdb_.dbi_open(txn, nullptr, 0, &dbi));
    MDB_cursor* c;
    check(lmdb_.cursor_open(txn, dbi, &c));
    MDB_val k, v;
    check(lmdb_.cursor_get(c, &k, &v, MDB_FIRST));
    const auto skip = [&](std::uint64_t n) {
      for (; n > 0; --n)
        if (lmdb_.cursor_get(c, &k, &v, MDB_NEXT) != 0) check(lmdb_.cursor_get(c, &k, &v, MDB_FIRST));
    };
    Records share;
    for (skip(rank); share.size() < count; skip(ranks)) share.emplace_back(text(k), text(v));
    lmdb_.cursor_close(c);
    lmdb_.txn_abort(txn);
    lmdb_.env_close(env);
    return share;
  }

  /// The newest snapshot's main database.
  records::Source source() const {
    File buffered = File::open(file().c_str(), File::Mode::buffered).value();
    const std::uint64_t size = buffered.size().value();
    std::byte page[format::kMetaBytes];
    format::MetaRecord newest{};
    std::size_t page_size = 4096;
    for (unsigned i = 0; i < 2; ++i) {
      if (::pread(buffered.fd(), page, sizeof page, static_cast<off_t>(i * page_size)) != sizeof page)
        throw std::runtime_error("no meta page");
      const auto m = load<format::MetaRecord>(page + format::kPageHeader);
      page_size = format::page_size(m);
      if (i == 0 || m.txnid > newest.txnid) newest = m;
    }
    records::Source s;
    s.file = OpenFile::adopt(std::move(buffered));
    s.name = s.path = file();
    s.page_size = page_size;
    s.pages = std::min<std::uint64_t>(newest.last_pg + 1, size / page_size);
    s.txnid = newest.txnid;
    s.db = newest.dbs[1];
    s.key_order = format::default_key_order(s.db.flags);
    s.dup_order = format::default_dup_order(s.db.flags);
    return s;
  }

  static std::unique_ptr<records::RecordLocations> locations(const records::Source& s) {
    records::IndexRequest request;
    request.file = s.file.get();
    request.file_pages = s.pages;
    request.page_size = s.page_size;
    request.record = s.db;
    records::RecordIndex index;
    records::IndexProblem problem;
    const Status st = records::build_index(request, index, problem);
    if (!st.ok()) throw std::runtime_error(problem.reason);
    return std::make_unique<records::IndexLocations>(std::move(index));
  }

  /// The same locations again; `p` outlives them.
  static std::unique_ptr<records::RecordLocations> locations_of(const records::RecordLocations& p) {
    struct Same final : records::RecordLocations {
      explicit Same(const records::RecordLocations& of) : of_(of) {}
      std::uint64_t records() const noexcept override { return of_.records(); }
      void locations(std::uint64_t first, std::span<records::RecordLocation> out) const noexcept override {
        of_.locations(first, out);
      }
      Status ordinal_of(std::uint64_t leaf, unsigned slot, const format::PageView& page,
                        std::uint64_t& out) const override {
        return of_.ordinal_of(leaf, slot, page, out);
      }
      const records::RecordLocations& of_;
    };
    return std::make_unique<Same>(p);
  }

  static gather::MakeEngine engines(EngineKind kind = EngineKind::automatic) {
    return [kind](const File& f, unsigned depth, EngineKind, const char** name) {
      return select_engine(f, depth, kind, name);
    };
  }

  std::unique_ptr<records::Reader> reader(std::uint64_t memory = std::uint64_t{64} << 20,
                                          ReadDecision read = kAsResident,
                                          gather::MakeEngine maker = engines()) const {
    records::Source s = source();
    std::unique_ptr<records::RecordLocations> p = locations(s);
    s.make_engine = std::move(maker);  // of the reader, not of the index
    return std::make_unique<records::Reader>(std::move(s), std::move(p), memory, read);
  }

 private:
  MDB_env* open(unsigned flags, std::size_t map) const {
    MDB_env* env;
    check(lmdb_.env_create(&env));
    check(lmdb_.env_set_mapsize(env, map));
    check(lmdb_.env_set_maxdbs(env, 64));
    check(lmdb_.env_open(env, dir_.c_str(), flags | MDB_NOLOCK | MDB_NOSYNC, 0644));
    return env;
  }
  void check(int rc) const {
    if (rc != 0) throw std::runtime_error(lmdb_.strerror(rc));
  }

  std::string dir_;
  bool others_ = false;
  test::LmdbApi lmdb_;
};

inline lmdbio_order order_of(lmdbio_order_kind kind, std::uint64_t batch, std::uint64_t end_epoch = 0) {
  lmdbio_order o{};
  o.size = sizeof o;
  o.kind = kind;
  o.batch = batch;
  o.end_epoch = end_epoch;
  o.seed = 7;
  o.window = 10;
  return o;
}

inline std::unique_ptr<records::Stream> stream_of(records::Reader& r, const lmdbio_order& o) {
  std::unique_ptr<records::Stream> s;
  std::string why;
  const Status st = records::Stream::open(r, o, s, why);
  EXPECT_EQ(st.raw(), 0) << why;
  return s;
}

/// A record of a batch is the one of its ordinal.
inline void expect_record(const lmdbio_record& r, const Records& all) {
  ASSERT_LT(r.ordinal, all.size());
  const auto& [key, value] = all[static_cast<std::size_t>(r.ordinal)];
  ASSERT_EQ(text(r.key), key) << r.ordinal;
  ASSERT_TRUE(r.value.mv_size == value.size() &&
              std::memcmp(r.value.mv_data, value.data(), value.size()) == 0)
      << r.ordinal;
}

}  // namespace lmdbio::testing
