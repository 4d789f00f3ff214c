/// @file
/// The functions of follow.h for C++20, with owning classes, spans and exceptions.  Header-only.  Lifetimes
/// and thread rules are those of follow.h.
#pragma once

#include <lmdbio/follow.h>
#include <lmdbio/reader.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lmdbio {

/// Follows a database while another program writes to it: batches of new records, mixed with old ones.  One
/// thread at a time, except for cancel().
class Follow {
 public:
  /// Returns the label of a record, for LMDBIO_BUFFER_CLASS.  See lmdbio_label_func.  May throw: the call in
  /// progress passes the exception on, and later calls throw Error with code ECANCELED.
  using Label =
      std::function<std::uint64_t(std::span<const std::byte> key, std::span<const std::byte> value)>;
  /// Options.  `fields` has the fields of lmdbio_follow_options except those that are here.
  struct Options {
    lmdbio_follow_options fields{};  ///< size is set by Follow
    std::string database;            ///< name of a named database; empty: the main database
    std::string finished_key;        ///< empty: none
    Label label;
    std::vector<std::byte> state;  ///< a state of state(); empty: a new start
  };
  /// A batch and the number of new records at its beginning.
  struct Next {
    Batch batch;
    std::size_t fresh = 0;
  };

  /// Opens a database as lmdbio_follow_open does.  Throws Error, and exceptions of options.label.
  /// @param path     a directory that contains data.mdb, or a data file
  /// @param options  options
  Follow(const std::string& path, const Options& options)
      : Follow(options, [&path](const lmdbio_follow_options& o, lmdbio_follow** f) {
          return lmdbio_follow_open(path.c_str(), &o, f);
        }) {}
  /// Opens a database by calling a function.  Only for headers of the library.
  /// @param options  options
  /// @param by       takes lmdbio_follow_options and lmdbio_follow**, and returns an error code
  template <class Open>
  requires std::invocable<Open, const lmdbio_follow_options&, lmdbio_follow**> Follow(const Options& options,
                                                                                      Open&& by)
      : label_(std::make_unique<Labels>(options.label)) {
    lmdbio_follow_options o = options.fields;
    o.size = sizeof o;
    o.database = options.database.empty() ? nullptr : options.database.c_str();
    const MDB_val finished{options.finished_key.size(), const_cast<char*>(options.finished_key.data())};
    o.finished_key = options.finished_key.empty() ? nullptr : &finished;
    o.state = options.state.empty() ? nullptr : options.state.data();
    o.state_bytes = options.state.size();
    if (options.label) {
      o.label = &Labels::call;
      o.label_context = label_.get();
    }
    lmdbio_follow* f = nullptr;
    const int rc = std::forward<Open>(by)(o, &f);
    follow_.reset(f);
    check(rc);
  }

  /// Waits for the next batch.  Throws Error; see lmdbio_follow_next.
  /// @return the batch, or nothing at the end.
  std::optional<Next> next() {
    const lmdbio_batch* b = nullptr;
    std::size_t fresh = 0;
    const int rc = lmdbio_follow_next(follow_.get(), &b, &fresh);
    Batch batch(rc == 0 ? b : nullptr);
    check(rc == MDB_NOTFOUND ? 0 : rc);
    if (rc == MDB_NOTFOUND) return std::nullopt;
    return Next{std::move(batch), fresh};
  }
  /// Waits as next() does, and decides which records the next batch has.  Throws Error; see
  /// lmdbio_follow_wait.
  /// @return false at the end.
  bool wait() {
    const int rc = lmdbio_follow_wait(follow_.get());
    check(rc == MDB_NOTFOUND ? 0 : rc);
    return rc == 0;
  }
  /// Returns a batch that next() has not returned yet.  Throws Error; see lmdbio_follow_ahead.
  /// @param i  the number of batches before it
  /// @return the batch, or nothing if it is not known.
  std::optional<Next> ahead(std::uint64_t i) {
    const lmdbio_batch* b = nullptr;
    std::size_t fresh = 0;
    const int rc = lmdbio_follow_ahead(follow_.get(), i, &b, &fresh);
    Batch batch(rc == 0 ? b : nullptr);
    check(rc == MDB_NOTFOUND ? 0 : rc);
    if (rc == MDB_NOTFOUND) return std::nullopt;
    return Next{std::move(batch), fresh};
  }
  /// Throws Error.
  /// @return the state between two batches, for Options::state.
  std::vector<std::byte> state() {
    const void* at = nullptr;
    std::size_t bytes = 0;
    detail::check(lmdbio_follow_state(follow_.get(), &at, &bytes));
    const auto* const first = static_cast<const std::byte*>(at);
    return {first, first + bytes};
  }
  /// @return the transaction of the snapshot.
  std::uint64_t transaction() const noexcept {
    std::uint64_t v = 0;
    lmdbio_follow_position(follow_.get(), &v, nullptr);
    return v;
  }
  /// @return the number of new records that are known and were not returned.
  std::uint64_t pending() const noexcept {
    std::uint64_t v = 0;
    lmdbio_follow_position(follow_.get(), nullptr, &v);
    return v;
  }
  /// Makes a waiting next() and all later calls throw Error with code ECANCELED.  Any thread.
  void cancel() noexcept { lmdbio_follow_cancel(follow_.get()); }

 private:
  struct Close {
    Close() noexcept : exceptions(std::uncaught_exceptions()) {}
    int exceptions;  ///< number of uncaught exceptions when the object was made
    void operator()(lmdbio_follow* f) const noexcept {
      // Ranks of an MPI job must not wait for each other while one of them unwinds.
      if (std::uncaught_exceptions() > exceptions) lmdbio_follow_cancel(f);
      lmdbio_follow_close(f);
    }
  };
  /// Stores an exception of the program's function, which must not pass through C code.
  struct Labels {
    explicit Labels(Label l) : label(std::move(l)) {}
    Label label;
    std::exception_ptr thrown;
    static std::uint64_t call(void* self, const MDB_val* key, const MDB_val* value) noexcept {
      Labels& l = *static_cast<Labels*>(self);
      if (l.thrown != nullptr) return 0;
      try {
        return l.label(detail::bytes(*key), detail::bytes(*value));
      } catch (...) {
        l.thrown = std::current_exception();
        return 0;
      }
    }
  };
  void check(int rc) {
    if (label_->thrown != nullptr) {
      cancel();  // the labels of some records are wrong
      std::rethrow_exception(std::exchange(label_->thrown, nullptr));
    }
    detail::check(rc);
  }
  std::unique_ptr<Labels> label_;  ///< must outlive follow_
  std::unique_ptr<lmdbio_follow, Close> follow_;
};

}  // namespace lmdbio
