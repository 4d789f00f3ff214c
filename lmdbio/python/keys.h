// The iterator over all keys of a database.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "lmdbio/python/handle.h"
#include "lmdbio/python/made.h"

namespace lmdbio::python {

/// Reads the keys of the reader's snapshot with a cursor, some hundreds at a time.
class KeyIterator {
 public:
  using PythonClass = void;  ///< see made.h
  explicit KeyIterator(std::shared_ptr<Handle> reader);
  KeyIterator(const KeyIterator&) = delete;
  KeyIterator& operator=(const KeyIterator&) = delete;
  ~KeyIterator();

  /// Returns the next key.  Raises StopIteration at the end.  One thread at a time.
  pybind11::bytes next();

 private:
  void fill();

  const std::shared_ptr<Handle> reader_;
  MDB_cursor* cursor_ = nullptr;
  std::string bytes_;              ///< the keys that were read
  std::vector<std::size_t> ends_;  ///< the end of each key in bytes_
  std::size_t given_ = 0;          ///< number of keys in ends_ that next() has returned
  int rc_ = 0;  ///< MDB_NOTFOUND or an error, which next() reports after the keys that were read
  bool duplicates_ = false;
  bool busy_ = false;  ///< guarded by the GIL
};

void add_keys(pybind11::module_& module);

}  // namespace lmdbio::python
