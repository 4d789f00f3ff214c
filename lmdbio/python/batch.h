// Python's class Batch for batches of lmdbio.h, and the forms of their bytes.
#pragma once

#include <lmdbio/lmdbio.h>
#include <pybind11/pybind11.h>

#include <memory>

#include "lmdbio/python/made.h"

namespace lmdbio::python {

struct ReleaseBatch {
  void operator()(const lmdbio_batch* b) const noexcept { lmdbio_batch_release(b); }
};
using OwnedBatch = std::unique_ptr<const lmdbio_batch, ReleaseBatch>;

/// The form of keys and values: the keyword `bytes_as` of Python's classes and functions.
enum class BytesAs : unsigned char {
  view,   ///< memoryviews of buffers of the library
  bytes,  ///< bytes objects
  mapped  ///< memoryviews; in streams, of the file's mapping if records are in the page cache
};
/// Converts the argument `bytes_as`.  Raises ValueError if it is not one of the three names.
BytesAs bytes_as_of(const pybind11::object& given);

/// A batch of records.  The views that a batch makes keep its Python object alive.  The batch keeps no
/// reference to its views.
class Batch {
 public:
  using PythonClass = void;  ///< see made.h
  /// Takes ownership of a batch of the library.  With BytesAs::bytes, copies the records to bytes objects at
  /// once, and releases the library's batch.  `keep`: another object that the views need; may be null.
  Batch(OwnedBatch batch, BytesAs as, std::shared_ptr<const void> keep = nullptr);

  std::size_t size() const noexcept { return count_; }
  /// Gives the library's batch to the caller.  No other function may be called after this one.
  OwnedBatch release() noexcept { return std::move(batch_); }
  std::uint64_t epoch() const noexcept { return epoch_; }
  std::uint64_t position() const noexcept { return position_; }
  std::size_t padding() const noexcept { return padding_; }
  /// Returns record `i`, or None if its key does not exist.  `self` is the Python object of this batch.
  pybind11::object record(pybind11::handle self, std::size_t i) const;
  /// Returns the key, value or ordinal of record `i`, or None if its key does not exist.
  pybind11::object field(pybind11::handle self, std::size_t i, int which) const;
  pybind11::list records(pybind11::handle self) const;
  pybind11::list column(pybind11::handle self, int which) const;
  /// Returns all values as bytes objects, with None for keys that do not exist.
  pybind11::list copied_values() const;

 private:
  std::size_t count_;
  std::uint64_t epoch_, position_;
  std::size_t padding_;
  std::shared_ptr<const void> keep_;
  OwnedBatch batch_;  ///< null if all records are in copied_
  pybind11::list copied_;
};

/// Adds Record and Batch to `module`.
void add_batch(pybind11::module_& module);

}  // namespace lmdbio::python
