/// @file
/// The readers and streams of lmdbio.h for C++20, with owning classes, spans and exceptions.  Header-only:
/// the library exports only C functions.  Lifetimes and thread rules are those of lmdbio.h.
#pragma once

#if __cplusplus < 202002L
#error "lmdbio/reader.h needs C++20 (-std=c++20); lmdbio/lmdbio.h has the same for C and for older C++"
#endif

#include <lmdbio/lmdbio.h>
#include <lmdbio/order.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lmdbio {

/// Thrown when a call of the library fails.  what() names the file and the reason.
class Error : public std::runtime_error {
 public:
  /// @param code  an errno or an MDB_ code
  /// @param what  the file and the reason
  Error(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
  /// @return the errno or MDB_ code.
  int code() const noexcept { return code_; }

 private:
  int code_;
};

namespace detail {

[[noreturn]] inline void fail(int rc) {
  const char* const why = lmdbio_error();
  throw Error(rc, *why != '\0' ? why : mdb_strerror(rc));
}
inline void check(int rc) {
  if (rc != 0) fail(rc);
}
inline std::span<const std::byte> bytes(const MDB_val& v) noexcept {
  return {static_cast<const std::byte*>(v.mv_data), v.mv_size};
}

}  // namespace detail

/// A record of a batch.  The batch owns its bytes, which have no particular alignment.
struct Record {
  std::uint64_t ordinal = UINT64_MAX;     ///< from 0, in key order; UINT64_MAX: the key does not exist
  std::span<const std::byte> key, value;  ///< empty if the key does not exist
  /// @return false if the requested key does not exist.
  bool exists() const noexcept { return ordinal != UINT64_MAX; }
};

/// Owns records and their bytes until it is destroyed or assigned to.  With lmdbio_order::zero_copy, the
/// bytes are valid only until the reader is closed.  A default-constructed or moved-from batch is empty.  Any
/// thread may destroy a batch.
class Batch {
 public:
  /// Iterates over the records.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Record;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = Record;
    Iterator() = default;
    explicit Iterator(const lmdbio_record* at) noexcept : at_(at) {}
    Record operator*() const noexcept { return record(*at_); }
    Iterator& operator++() noexcept {
      ++at_;
      return *this;
    }
    Iterator operator++(int) noexcept { return Iterator(at_++); }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const lmdbio_record* at_ = nullptr;
  };

  Batch() = default;
  /// @param batch  a batch of lmdbio.h, which this object will release
  explicit Batch(const lmdbio_batch* batch) noexcept : batch_(batch) {}

  /// @return the number of records.
  std::size_t size() const noexcept { return batch_ == nullptr ? 0 : batch_->count; }
  bool empty() const noexcept { return size() == 0; }
  /// @param i  less than size()
  /// @return the record, whose bytes belong to this batch.
  Record operator[](std::size_t i) const noexcept { return record(batch_->records[i]); }
  Iterator begin() const noexcept { return Iterator(batch_ == nullptr ? nullptr : batch_->records); }
  Iterator end() const noexcept { return Iterator(batch_ == nullptr ? nullptr : batch_->records + size()); }
  /// @return the epoch of the first record; 0 outside streams.
  std::uint64_t epoch() const noexcept { return batch_ == nullptr ? 0 : batch_->epoch; }
  /// @return the position of the first record in the stream's share of the epoch, from 0; 0 outside streams.
  std::uint64_t position() const noexcept { return batch_ == nullptr ? 0 : batch_->position; }
  /// @return the number of records at the end that only fill up the batch (LMDBIO_LAST_PAD).
  std::size_t padding() const noexcept { return batch_ == nullptr ? 0 : batch_->padding; }

 private:
  struct Release {
    void operator()(const lmdbio_batch* b) const noexcept { lmdbio_batch_release(b); }
  };
  static Record record(const lmdbio_record& r) noexcept {
    return {r.ordinal, detail::bytes(r.key), detail::bytes(r.value)};
  }
  std::unique_ptr<const lmdbio_batch, Release> batch_;
};

/// Returns records in a given order, and reads them ahead.  Must be destroyed before its reader.  One thread
/// at a time, except for cancel().
class Stream {
 public:
  /// Iterates over the rest of the stream: for (Batch& batch : stream) ...  Each batch is valid until the
  /// next batch is requested, unless the program moves it away.
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;
    explicit Iterator(Stream& s) : stream_(&s) { ++*this; }
    Batch& operator*() noexcept { return batch_; }
    Iterator& operator++() {
      batch_ = Batch();  // first, so that its memory can be used for the next batch
      std::optional<Batch> next = stream_->next();
      ended_ = !next;
      if (next) batch_ = std::move(*next);
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& i, std::default_sentinel_t) noexcept { return i.ended_; }

   private:
    Stream* stream_;
    Batch batch_;
    bool ended_ = false;
  };

  /// Waits for the next batch.  Throws Error; the next call then tries to read the same batch again.
  /// @return the batch, or nothing at the end of the stream.
  std::optional<Batch> next() {
    const lmdbio_batch* b = nullptr;
    const int rc = lmdbio_stream_next(stream_.get(), &b);
    if (rc == MDB_NOTFOUND) return std::nullopt;
    detail::check(rc);
    return Batch(b);
  }
  Iterator begin() { return Iterator(*this); }
  static std::default_sentinel_t end() noexcept { return {}; }
  /// @return the position of the next batch.  To resume there, call order.resume(position) on an order with
  /// the same end.
  Position position() const noexcept {
    Position p;
    lmdbio_stream_position(stream_.get(), &p.epoch, &p.position);
    return p;
  }
  /// Makes a waiting next() and all later calls throw Error with code ECANCELED.  Any thread.
  void cancel() noexcept { lmdbio_stream_cancel(stream_.get()); }

 private:
  friend class Reader;
  struct Close {
    void operator()(lmdbio_stream* s) const noexcept { lmdbio_stream_close(s); }
  };
  explicit Stream(lmdbio_stream* s) noexcept : stream_(s) {}
  std::unique_ptr<lmdbio_stream, Close> stream_;
};

/// One snapshot of one database, or several databases as one.  Must outlive its streams; its batches may
/// outlive it.  Any number of threads may use a reader.
class Reader {
 public:
  /// Reports progress; see lmdbio_progress_func.  Returns false to cancel.
  using Progress = std::function<bool(std::string_view what, std::uint64_t done, std::uint64_t total)>;
  /// Options of a reader; see lmdbio_reader_options.
  struct Options {
    std::string database;    ///< name of a named database; empty: the main database
    std::size_t memory = 0;  ///< upper limit in bytes for all streams; 0: LMDBIO_MEMORY; see lmdbio.h
    unsigned flags = 0;      ///< MDB_NOLOCK, MDB_NOSUBDIR
    bool index_file = true;  ///< use the index file, if there is a valid one
    Progress progress;       ///< reports on building the index
    std::vector<std::string> exclude;           ///< keys of records that are left out; see lmdbio.h
    std::vector<std::string> exclude_prefixes;  ///< the same, for all keys that begin with one of these
  };

  explicit Reader(const std::string& path) : Reader(path, Options()) {}
  /// Opens a reader as lmdbio_reader_open does.  Throws Error, and exceptions of options.progress.
  /// @param path     a directory that contains data.mdb, or a data file
  /// @param options  options
  Reader(const std::string& path, const Options& options) {
    open(options, [&path](const lmdbio_reader_options& o, lmdbio_reader** r) {
      return lmdbio_reader_open(path.c_str(), &o, r);
    });
  }
  explicit Reader(const std::vector<std::string>& paths) : Reader(paths, Options()) {}
  /// Opens one reader of several databases as lmdbio_reader_open_many does.  Throws Error, and exceptions of
  /// options.progress.
  /// @param paths    paths, at least one
  /// @param options  options
  Reader(const std::vector<std::string>& paths, const Options& options) {
    std::vector<const char*> names;
    for (const std::string& p : paths) names.push_back(p.c_str());
    open(options, [&names](const lmdbio_reader_options& o, lmdbio_reader** r) {
      return lmdbio_reader_open_many(names.data(), names.size(), &o, r);
    });
  }
  Reader(MDB_txn* txn, MDB_dbi dbi) : Reader(txn, dbi, Options()) {}
  /// Opens a reader of the snapshot that a transaction uses.  Throws Error, and exceptions of
  /// options.progress.
  /// @param txn      a read transaction of the program, which must outlive the reader
  /// @param dbi      a database of its environment
  /// @param options  options; `database` and `flags` are ignored
  Reader(MDB_txn* txn, MDB_dbi dbi, const Options& options) {
    open(options, [txn, dbi](const lmdbio_reader_options& o, lmdbio_reader** r) {
      return lmdbio_reader_attach(txn, dbi, &o, r);
    });
  }

  /// Opens a reader by calling a function.  Only for headers of the library.
  /// @param options  options
  /// @param by       takes lmdbio_reader_options and lmdbio_reader**, and returns an error code
  template <class Open>
  Reader(const Options& options, Open&& by) {
    open(options, std::forward<Open>(by));
  }

  /// Throws Error if the reader cannot be used; see lmdbio_reader_count.
  /// @return the number of records.
  std::uint64_t size() const {
    std::uint64_t count = 0;
    detail::check(lmdbio_reader_count(reader_.get(), &count));
    return count;
  }
  /// @return the reader for functions of lmdbio.h.  This object owns it.
  lmdbio_reader* handle() const noexcept { return reader_.get(); }

  /// Reads records by ordinal, and waits for them.  Throws Error.
  /// @param ordinals  in any order; each must be less than size()
  /// @return the records in the given order.
  Batch read(std::span<const std::uint64_t> ordinals) const {
    const lmdbio_batch* b = nullptr;
    detail::check(lmdbio_reader_read(reader_.get(), ordinals.data(), ordinals.size(), &b));
    return Batch(b);
  }
  Batch read(std::uint64_t ordinal) const { return read(std::span(&ordinal, 1)); }
  /// Reads records by key, and waits for them.  Throws Error.
  /// @param keys  in any order
  /// @return the records in the given order.  Record::exists() is false for a key that does not exist.
  Batch read_keys(std::span<const MDB_val> keys) const {
    const lmdbio_batch* b = nullptr;
    detail::check(lmdbio_reader_read_keys(reader_.get(), keys.data(), keys.size(), &b));
    return Batch(b);
  }
  /// @param key  a key
  /// @return a batch of one record.  Record::exists() is false if the key does not exist.
  Batch read_key(std::string_view key) const {
    const MDB_val v{key.size(), const_cast<char*>(key.data())};
    return read_keys(std::span(&v, 1));
  }
  /// Opens a stream.  Throws Error.
  /// @param order  the order, which is copied
  /// @return the stream, which must be destroyed before this reader.
  Stream stream(const lmdbio_order& order) const {
    lmdbio_stream* s = nullptr;
    detail::check(lmdbio_stream_open(reader_.get(), &order, &s));
    return Stream(s);
  }

 private:
  struct Close {
    void operator()(lmdbio_reader* r) const noexcept { lmdbio_reader_close(r); }
  };
  /// Stores an exception of the progress function, which must not pass through C code.
  struct Watch {
    const Progress& progress;
    std::exception_ptr thrown;
    static int call(void* self, const char* what, std::uint64_t done, std::uint64_t total) noexcept {
      Watch& w = *static_cast<Watch*>(self);
      try {
        return w.progress(what, done, total) ? 0 : 1;
      } catch (...) {
        w.thrown = std::current_exception();
        return 1;
      }
    }
  };
  template <class Open>
  void open(const Options& options, Open&& by) {
    Watch watch{options.progress, nullptr};
    lmdbio_reader_options o{};
    o.size = sizeof o;
    o.database = options.database.empty() ? nullptr : options.database.c_str();
    o.memory = options.memory;
    o.flags = options.flags;
    o.no_index_file = !options.index_file;
    const auto values = [](const std::vector<std::string>& of) {
      std::vector<MDB_val> all;
      for (const std::string& s : of) all.push_back({s.size(), const_cast<char*>(s.data())});
      return all;
    };
    const std::vector<MDB_val> keys = values(options.exclude), prefixes = values(options.exclude_prefixes);
    o.exclude = keys.data();
    o.exclude_count = keys.size();
    o.exclude_prefixes = prefixes.data();
    o.exclude_prefix_count = prefixes.size();
    if (options.progress) {
      o.progress = Watch::call;
      o.progress_context = &watch;
    }
    lmdbio_reader* r = nullptr;
    const int rc = by(o, &r);
    if (watch.thrown != nullptr) std::rethrow_exception(watch.thrown);
    detail::check(rc);
    reader_.reset(r);
  }
  std::unique_ptr<lmdbio_reader, Close> reader_;
};

}  // namespace lmdbio
