// All keys of a database, by a cursor.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "lmdbio/python/made.h"
#include "lmdbio/python/reader.h"

namespace lmdbio::python {

/// Walks the reader's own snapshot, some hundred keys at a time.
class KeyIterator {
 public:
  using PythonClass = void;  ///< see made.h
  explicit KeyIterator(std::shared_ptr<Handle> reader);
  KeyIterator(const KeyIterator&) = delete;
  KeyIterator& operator=(const KeyIterator&) = delete;
  ~KeyIterator();

  /// Raises StopIteration.  One thread at a time.
  pybind11::bytes next();

 private:
  void fill();

  const std::shared_ptr<Handle> reader_;
  MDB_cursor* cursor_ = nullptr;
  std::string bytes_;              ///< of the keys that were read
  std::vector<std::size_t> ends_;  ///< in `bytes_`
  std::size_t given_ = 0;
  int rc_ = 0;  ///< what ended it, MDB_NOTFOUND or an error, once the keys before are given
  bool duplicates_ = false;
  bool busy_ = false;  ///< guarded by the GIL
};

void add_keys(pybind11::module_& module);

}  // namespace lmdbio::python
