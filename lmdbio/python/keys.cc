#include "lmdbio/python/keys.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <string>
#include <string_view>

#include "lmdbio/python/errors.h"
#include "lmdbio/python/waiting.h"

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
    const WithoutGil waits;
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
  const WithoutGil waits;
  const std::lock_guard lock(reader_->txn_mutex);
  mdb_cursor_close(cursor_);
}

void KeyIterator::fill() {
  const std::lock_guard lock(reader_->txn_mutex);
  bytes_.clear();
  ends_.clear();
  given_ = 0;
  while (rc_ == 0 && ends_.size() < kPiece) {
    MDB_val key{}, value{};
    // Without a value argument, LMDB reads no values.  It visits duplicates only with a value argument.
    rc_ = mdb_cursor_get(cursor_, &key, duplicates_ ? &value : nullptr, MDB_NEXT);
    if (rc_ != 0) break;
    const std::string_view bytes(static_cast<const char*>(key.mv_data), key.mv_size);
    const auto matches = [bytes](const std::vector<std::string>& keys, bool whole) {
      return std::any_of(keys.begin(), keys.end(),
                         [&](const std::string& k) { return whole ? bytes == k : bytes.starts_with(k); });
    };
    if (matches(reader_->exclude, true) || matches(reader_->exclude_prefixes, false)) continue;
    bytes_.append(bytes);
    ends_.push_back(bytes_.size());
  }
}

py::bytes KeyIterator::next() {
  reader_->check_process();
  if (busy_)
    raise_as(PyExc_ValueError,
             reader_->path + ": another thread is waiting for the next key of this iterator");
  if (given_ == ends_.size() && rc_ == 0) {
    busy_ = true;
    try {
      const WithoutGil waits;
      fill();
    } catch (const std::bad_alloc&) {
      rc_ = ENOMEM;
    }
    busy_ = false;
  }
  if (given_ == ends_.size()) {
    if (rc_ == MDB_NOTFOUND) throw py::stop_iteration();
    raise(rc_, reader_->path + ": " + mdb_strerror(rc_));
  }
  const std::size_t begin = given_ == 0 ? 0 : ends_[given_ - 1];
  const std::size_t end = ends_[given_++];
  return py::bytes(bytes_.data() + begin, end - begin);
}

void add_keys(py::module_& module) {
  py::class_<KeyIterator>(module, "_Keys")
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", &KeyIterator::next)
      .def("__reduce__", cannot_be_pickled);
}

}  // namespace lmdbio::python
