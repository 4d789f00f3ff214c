// Batches of lmdbio.h whose records are memoryviews, or copies.
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

/// Some records.  The views that it makes keep its Python object alive; it keeps none of them.
class Batch {
 public:
  using PythonClass = void;  ///< see made.h
  /// `copies`: the records become bytes objects at once, and the library's batch is released.
  /// `keep`: what its bytes need besides the library's batch.
  Batch(OwnedBatch batch, bool copies, std::shared_ptr<const void> keep = nullptr);

  std::size_t size() const noexcept { return count_; }
  std::uint64_t epoch() const noexcept { return epoch_; }
  std::uint64_t position() const noexcept { return position_; }
  std::size_t padding() const noexcept { return padding_; }
  /// Record `i`; None: the key does not exist.  `self`: the Python object of this.
  pybind11::object record(pybind11::handle self, std::size_t i) const;
  /// Its key, value or ordinal.
  pybind11::object field(pybind11::handle self, std::size_t i, int which) const;
  pybind11::list records(pybind11::handle self) const;
  pybind11::list column(pybind11::handle self, int which) const;
  /// Copies of all values, None for keys that do not exist.
  pybind11::list copied_values() const;

 private:
  std::size_t count_;
  std::uint64_t epoch_, position_;
  std::size_t padding_;
  std::shared_ptr<const void> keep_;
  OwnedBatch batch_;  ///< null: copied
  pybind11::list copied_;
};

/// Adds Record and Batch to `module`.
void add_batch(pybind11::module_& module);

}  // namespace lmdbio::python
