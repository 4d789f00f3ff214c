// The readers and streams of lmdbio.h for C++20, with owning classes, spans and exceptions.  Header-only: the
// library exports only C functions.  Lifetimes and thread rules are those of lmdbio.h.
#pragma once

#if __cplusplus < 202002L
#error "lmdbio/reader.h needs C++20 (-std=c++20); lmdbio/lmdbio.h has the same for C and for older C++"
#endif

#include <lmdbio/lmdbio.h>

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

/// Thrown when a call of the library fails.  code() is an errno or an MDB_ code; what() names file and
/// reason.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
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

/// A record of a batch.  The batch owns its bytes.
struct Record {
  std::uint64_t ordinal = UINT64_MAX;
  std::span<const std::byte> key, value;
  /// Returns false if the requested key does not exist.
  bool exists() const noexcept { return ordinal != UINT64_MAX; }
};

/// Owns the bytes of its records until it is destroyed or assigned to, unless the order has zero_copy.  A
/// batch that was default-constructed or moved from is empty.
class Batch {
 public:
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
  /// Takes ownership of `batch`.
  explicit Batch(const lmdbio_batch* batch) noexcept : batch_(batch) {}

  std::size_t size() const noexcept { return batch_ == nullptr ? 0 : batch_->count; }
  bool empty() const noexcept { return size() == 0; }
  /// `i` must be less than size().
  Record operator[](std::size_t i) const noexcept { return record(batch_->records[i]); }
  Iterator begin() const noexcept { return Iterator(batch_ == nullptr ? nullptr : batch_->records); }
  Iterator end() const noexcept { return Iterator(batch_ == nullptr ? nullptr : batch_->records + size()); }
  std::uint64_t epoch() const noexcept { return batch_ == nullptr ? 0 : batch_->epoch; }
  std::uint64_t position() const noexcept { return batch_ == nullptr ? 0 : batch_->position; }
  /// Returns the number of records at the end that only fill up the batch.
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

/// lmdbio_order with defaults: all records once, in order, one record per batch.
struct Order : lmdbio_order {
  Order() noexcept : lmdbio_order{} {
    size = sizeof(lmdbio_order);
    epochs = 1;
  }
  static Order sequential(std::uint64_t batch_records = 1) noexcept {
    return with(LMDBIO_ORDER_SEQUENTIAL, batch_records);
  }
  static Order shuffled(std::uint64_t seed_of_all, std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_SHUFFLE, batch_records);
    o.seed = seed_of_all;
    return o;
  }
  static Order window_shuffled(std::uint64_t seed_of_all, std::uint64_t records,
                               std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_WINDOW_SHUFFLE, batch_records);
    o.seed = seed_of_all;
    o.window = records;
    return o;
  }
  /// `ordinals` must stay valid until Reader::stream has copied them.
  static Order of(std::span<const std::uint64_t> ordinals, std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_LIST, batch_records);
    o.list = ordinals.data();
    o.length = ordinals.size();
    return o;
  }
  /// `wanted` must stay valid until Reader::stream has copied the keys.
  static Order of(std::span<const MDB_val> wanted, std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_KEYS, batch_records);
    o.keys = wanted.data();
    o.length = wanted.size();
    return o;
  }
  /// `elements` elements per epoch, whose ordinals a function of the program returns.
  static Order by(lmdbio_ordinal_func* ordinal, void* context, std::size_t elements,
                  std::uint64_t batch_records = 1) noexcept {
    Order o = with(LMDBIO_ORDER_FUNCTION, batch_records);
    o.function = ordinal;
    o.function_context = context;
    o.length = elements;
    return o;
  }
  /// Selects share `rank` of `ranks`: of every `ranks` blocks of `block_elements` elements, block `rank`.
  Order& share(std::uint64_t rank, std::uint64_t ranks, std::uint64_t block_elements = 1) noexcept {
    offset = rank;
    step = ranks;
    block = block_elements;
    return *this;
  }
  /// Selects elements rank, rank + ranks, rank + 2 ranks, ... of the sequence of all epochs.  Programs that
  /// skip the records of other ranks, and start again at the end, read in this order, for example Caffe.
  /// See lmdbio_order::across_epochs.
  Order& share_across_epochs(std::uint64_t rank, std::uint64_t ranks,
                             std::uint64_t block_elements = 1) noexcept {
    across_epochs = 1;
    return share(rank, ranks, block_elements);
  }
  /// Resumes at a place that Stream::where() returned.
  Order& from(std::uint64_t first_epoch, std::uint64_t first_position) noexcept {
    epoch = first_epoch;
    position = first_position;
    return *this;
  }

 private:
  static Order with(lmdbio_order_kind k, std::uint64_t batch_records) noexcept {
    Order o;
    o.kind = k;
    o.batch = batch_records;
    return o;
  }
};

/// Records in a given order, read ahead.  One thread at a time, except for cancel().
class Stream {
 public:
  struct Place {
    std::uint64_t epoch = 0, position = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  /// For loops over the rest of the stream: for (Batch& batch : stream) ...  Each batch is valid until the
  /// next.
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

  /// Returns the next batch, or nothing at the end of the stream.  Throws Error; the next call then tries to
  /// read the same batch again.
  std::optional<Batch> next() {
    const lmdbio_batch* b = nullptr;
    const int rc = lmdbio_stream_next(stream_.get(), &b);
    if (rc == MDB_NOTFOUND) return std::nullopt;
    detail::check(rc);
    return Batch(b);
  }
  Iterator begin() { return Iterator(*this); }
  static std::default_sentinel_t end() noexcept { return {}; }
  /// Returns the place of the next batch.
  Place where() const noexcept {
    Place p;
    lmdbio_stream_position(stream_.get(), &p.epoch, &p.position);
    return p;
  }
  /// Makes a waiting next() and all later ones throw Error with code ECANCELED.  Any thread.
  void cancel() noexcept { lmdbio_stream_cancel(stream_.get()); }

 private:
  friend class Reader;
  struct Close {
    void operator()(lmdbio_stream* s) const noexcept { lmdbio_stream_close(s); }
  };
  explicit Stream(lmdbio_stream* s) noexcept : stream_(s) {}
  std::unique_ptr<lmdbio_stream, Close> stream_;
};

/// One snapshot of one database.  Must outlive its streams; its batches may outlive it.  Threads may share a
/// reader.
class Reader {
 public:
  /// Returns false to cancel.
  using Progress = std::function<bool(std::string_view what, std::uint64_t done, std::uint64_t total)>;
  struct Options {
    std::string database;    ///< empty: the main database
    std::size_t memory = 0;  ///< upper limit in bytes for all streams, see lmdbio.h; 0: LMDBIO_MEMORY
    unsigned flags = 0;      ///< MDB_NOLOCK, MDB_NOSUBDIR
    bool sidecar = true;     ///< use the index file, if there is a valid one
    Progress progress;       ///< reports on building the index
  };

  explicit Reader(const std::string& path) : Reader(path, Options()) {}
  /// Throws Error, or whatever options.progress throws.
  Reader(const std::string& path, const Options& options) {
    open(options, [&path](const lmdbio_reader_options& o, lmdbio_reader** r) {
      return lmdbio_reader_open(path.c_str(), &o, r);
    });
  }
  /// Uses the snapshot of the program's transaction `txn`, which must outlive the reader.
  Reader(MDB_txn* txn, MDB_dbi dbi) : Reader(txn, dbi, Options()) {}
  Reader(MDB_txn* txn, MDB_dbi dbi, const Options& options) {
    open(options, [txn, dbi](const lmdbio_reader_options& o, lmdbio_reader** r) {
      return lmdbio_reader_attach(txn, dbi, &o, r);
    });
  }

  /// For headers of the library: opens by `by`, which takes lmdbio_reader_options and lmdbio_reader**.
  template <class Open>
  Reader(const Options& options, Open&& by) {
    open(options, std::forward<Open>(by));
  }

  std::uint64_t size() const noexcept { return lmdbio_reader_count(reader_.get()); }
  /// For functions of lmdbio.h.  The reader owns it.
  lmdbio_reader* handle() const noexcept { return reader_.get(); }

  Batch read(std::span<const std::uint64_t> ordinals) const {
    const lmdbio_batch* b = nullptr;
    detail::check(lmdbio_reader_read(reader_.get(), ordinals.data(), ordinals.size(), &b));
    return Batch(b);
  }
  Batch read(std::uint64_t ordinal) const { return read(std::span(&ordinal, 1)); }
  Batch read_keys(std::span<const MDB_val> keys) const {
    const lmdbio_batch* b = nullptr;
    detail::check(lmdbio_reader_read_keys(reader_.get(), keys.data(), keys.size(), &b));
    return Batch(b);
  }
  /// Returns a batch of one record; Record::exists() is false if there is no such key.
  Batch read_key(std::string_view key) const {
    const MDB_val v{key.size(), const_cast<char*>(key.data())};
    return read_keys(std::span(&v, 1));
  }
  Stream stream(const lmdbio_order& order) const {
    lmdbio_stream* s = nullptr;
    detail::check(lmdbio_stream_open(reader_.get(), &order, &s));
    return Stream(s);
  }

 private:
  struct Close {
    void operator()(lmdbio_reader* r) const noexcept { lmdbio_reader_close(r); }
  };
  /// Keeps exceptions of the progress function from passing through C code.
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
    o.no_sidecar = !options.sidecar;
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
