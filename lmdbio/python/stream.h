// Streams of lmdbio.h.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "lmdbio/python/made.h"
#include "lmdbio/python/reader.h"

namespace lmdbio::python {

/// The keys that a call is given; the objects live as long as this does.
class Keys {
 public:
  explicit Keys(const pybind11::iterable& keys);
  const std::vector<MDB_val>& values() const noexcept { return values_; }

 private:
  pybind11::list objects_;
  std::vector<MDB_val> values_;
};

class Stream {
 public:
  using PythonClass = void;  ///< see made.h
  /// `order`: an lmdbio.Order.
  Stream(std::shared_ptr<Handle> reader, const pybind11::object& order, bool copy, bool zero_copy);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { close(); }

  /// The next Batch.  Raises StopIteration.
  pybind11::object next();
  std::pair<std::uint64_t, std::uint64_t> where() const;
  /// Any thread.
  void cancel();
  void close();

 private:
  void open() const;

  std::shared_ptr<Handle> reader_;
  const bool copy_, zero_copy_;
  lmdbio_stream* stream_ = nullptr;
  // Guarded by the GIL.
  std::pair<std::uint64_t, std::uint64_t> where_{};
  bool busy_ = false, closing_ = false;
};

void add_stream(pybind11::module_& module);

}  // namespace lmdbio::python
