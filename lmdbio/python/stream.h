// Python's class Stream for streams of lmdbio.h.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "lmdbio/python/batch.h"
#include "lmdbio/python/handle.h"
#include "lmdbio/python/made.h"

namespace lmdbio::python {

/// The keys that are passed to a call.  Keeps their Python objects alive.
class Keys {
 public:
  /// Raises TypeError if a key is not bytes.
  explicit Keys(const pybind11::iterable& keys);
  const std::vector<MDB_val>& values() const noexcept { return values_; }

 private:
  pybind11::list objects_;
  std::vector<MDB_val> values_;
};

/// An iterator over batches.
class Stream {
 public:
  using PythonClass = void;  ///< see made.h
  /// Opens a stream of `order`, which is an lmdbio.Order.
  Stream(std::shared_ptr<Handle> reader, const pybind11::object& order, BytesAs as);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { close(); }

  /// Returns the next Batch.  Raises StopIteration at the end.
  pybind11::object next();
  /// Returns the library's stream, for an owner that does not show this object to Python.
  lmdbio_stream* handle() const noexcept { return stream_; }
  /// Returns the epoch and position of the next batch, even after close().
  std::pair<std::uint64_t, std::uint64_t> position() const;
  /// Makes a waiting next() and all later calls raise CancelledError.  Any thread.
  void cancel();
  /// Closes the stream.  If another thread is in next(), cancels that call, and the other thread closes the
  /// stream.
  void close();

 private:
  void open() const;

  std::shared_ptr<Handle> reader_;
  const BytesAs as_;
  lmdbio_stream* stream_ = nullptr;  ///< null if the stream is closed
  // Guarded by the GIL.
  std::pair<std::uint64_t, std::uint64_t> position_{};
  bool busy_ = false;     ///< a thread is in next()
  bool closing_ = false;  ///< the thread in next() must close the stream
};

void add_stream(pybind11::module_& module);

}  // namespace lmdbio::python
