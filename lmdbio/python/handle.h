// A reader of lmdbio.h, as Python's objects share it.
#pragma once

#include <lmdbio/lmdbio.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lmdbio/python/environment.h"

namespace lmdbio::python {

using Ordinals = pybind11::array_t<std::uint64_t, pybind11::array::c_style>;

/// Owns a reader of the library, and the objects that the reader needs.  Calls and streams that use the
/// reader keep it open.
class Handle {
 public:
  /// `snapshot`: the transaction to which the reader was attached, or null.  `keep`: any object that must
  /// exist as long as the reader.
  Handle(lmdbio_reader* reader, std::unique_ptr<Snapshot> snapshot, pybind11::object keep);
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  /// Closes the reader.  The caller holds the GIL, and the destructor releases it while it waits.
  ~Handle();

  lmdbio_reader* reader() const noexcept { return reader_; }
  const Snapshot* snapshot() const noexcept { return snapshot_.get(); }
  /// Returns false in a forked child.
  bool in_process() const noexcept;
  /// Raises RuntimeError in a forked child.
  void check_process() const;

  MDB_dbi dbi = 0;
  std::string path;
  std::vector<std::string> exclude, exclude_prefixes;  ///< of the records that the reader leaves out
  std::mutex txn_mutex;  ///< guards the snapshot's transaction while cursors use it

 private:
  lmdbio_reader* const reader_;
  std::unique_ptr<Snapshot> snapshot_;
  pybind11::object keep_;
  const pid_t pid_;
};

/// Converts whole numbers to an array of ordinals.
Ordinals ordinals_of(const pybind11::object& given);

}  // namespace lmdbio::python
