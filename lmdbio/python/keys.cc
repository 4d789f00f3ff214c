#include "lmdbio/python/keys.h"

#include <cerrno>
#include <mutex>
#include <string>

#include "lmdbio/python/errors.h"

namespace py = pybind11;

namespace lmdbio::python {

namespace {

constexpr std::size_t kPiece = 512;

}  // namespace

KeyIterator::KeyIterator(std::shared_ptr<Handle> reader) : reader_(std::move(reader)) {
  if (reader_->snapshot() == nullptr)
    raise(ENOTSUP, reader_->path + ": a reader of several ranks cannot list keys; open an lmdbio.Reader");
  int rc = 0;
  {
    const py::gil_scoped_release waits;
    const std::lock_guard lock(reader_->txn_mutex);
    MDB_txn* const txn = reader_->snapshot()->handle();
    unsigned flags = 0;
    rc = mdb_dbi_flags(txn, reader_->dbi, &flags);
    duplicates_ = (flags & MDB_DUPSORT) != 0;
    if (rc == 0) rc = mdb_cursor_open(txn, reader_->dbi, &cursor_);
  }
  if (rc != 0) raise(rc, reader_->path + ": " + mdb_strerror(rc));
}

KeyIterator::~KeyIterator() {
  if (cursor_ == nullptr || !reader_->snapshot()->environment().ours()) return;
  const py::gil_scoped_release waits;
  const std::lock_guard lock(reader_->txn_mutex);
  mdb_cursor_close(cursor_);
}

int KeyIterator::fill() {
  const std::lock_guard lock(reader_->txn_mutex);
  bytes_.clear();
  ends_.clear();
  given_ = 0;
  int rc = 0;
  while (ends_.size() < kPiece) {
    MDB_val key{}, value{};
    // Values that nobody asks for are not read.  LMDB moves through duplicates only where they are asked for.
    rc = mdb_cursor_get(cursor_, &key, duplicates_ ? &value : nullptr, MDB_NEXT);
    if (rc != 0) break;
    bytes_.append(static_cast<const char*>(key.mv_data), key.mv_size);
    ends_.push_back(bytes_.size());
  }
  if (rc == MDB_NOTFOUND) ended_ = true;
  return rc == MDB_NOTFOUND || !ends_.empty() ? 0 : rc;
}

py::bytes KeyIterator::next() {
  reader_->check_process();
  if (given_ == ends_.size()) {
    int rc = 0;
    if (!ended_) {
      const py::gil_scoped_release waits;
      rc = fill();
    } else {
      ends_.clear();
      given_ = 0;
    }
    if (rc != 0) raise(rc, reader_->path + ": " + mdb_strerror(rc));
    if (ends_.empty()) throw py::stop_iteration();
  }
  const std::size_t begin = given_ == 0 ? 0 : ends_[given_ - 1];
  const std::size_t end = ends_[given_++];
  return py::bytes(bytes_.data() + begin, end - begin);
}

void add_keys(py::module_& module) {
  py::class_<KeyIterator>(module, "_Keys")
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", &KeyIterator::next);
}

}  // namespace lmdbio::python
