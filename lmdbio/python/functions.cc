// Functions of the module that need no reader.
#include <dlfcn.h>

#include <cerrno>
#include <string>

#include "lmdbio/python/errors.h"
#include "lmdbio/python/reader.h"
#include "lmdbio/python/stream.h"

namespace py = pybind11;

namespace lmdbio::python {

namespace {

/// Returns elements `first` to `last` - 1 of an epoch's permutation, as an array of ordinals.
Ordinals shuffled(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count, std::uint64_t first,
                  std::uint64_t last) {
  if (first > last || last > count) raise_as(PyExc_ValueError, "first and last must be in 0 .. count");
  Ordinals all(static_cast<Py_ssize_t>(last - first));
  std::uint64_t* const to = all.mutable_data();
  for (std::uint64_t i = first; i < last; ++i) to[i - first] = lmdbio_shuffle(seed, epoch, count, i);
  return all;
}

/// Returns the path of a module whose own LMDB is not served by LMDBIO, or "" if there is none.
std::string unreached() {
  char path[4096];
  return lmdbio_unreached(path, sizeof path) != 0 ? path : "";
}

/// Returns true if the library's functions are global symbols of the process, and all modules use them.
bool is_active() {
  void* const all = ::dlopen(nullptr, RTLD_NOW);
  if (all == nullptr) return false;
  const bool found = ::dlsym(all, "lmdbio_version") != nullptr;
  (void)::dlclose(all);
  return found && lmdbio_disabled() == 0 && unreached().empty();
}

/// Returns the path of the library that this process uses.
std::string library() {
  Dl_info info{};
  return ::dladdr(reinterpret_cast<void*>(&lmdbio_version), &info) != 0 ? info.dli_fname : "";
}

/// Announces keys.  Returns false if LMDBIO does not serve the transaction.
bool prefetch(const py::object& txn, const py::iterable& keys, const std::optional<std::string>& database) {
  const Keys wanted(keys);  // may run code of the program
  MDB_txn* const found = lmdbio_txn_in(txn.ptr(), static_cast<std::size_t>(Py_TYPE(txn.ptr())->tp_basicsize));
  if (found == nullptr) return false;
  MDB_dbi dbi = 1;  // LMDB's number of the main database
  if (database)
    if (const int rc = mdb_dbi_open(found, database->c_str(), 0, &dbi); rc != 0)
      raise(rc, "database " + *database + ": " + mdb_strerror(rc));
  // Keep the GIL, so that no other thread can end the transaction.
  const int rc = lmdbio_prefetch(found, dbi, wanted.values().data(), wanted.values().size());
  if (rc != 0) raise_last(rc);
  return true;
}

}  // namespace

void add_functions(py::module_& module) {
  module.def(
      "shuffled", &shuffled, py::arg("seed"), py::arg("epoch"), py::arg("count"), py::arg("first"),
      py::arg("last"),
      "Order.shuffled uses a permutation of 0 .. count - 1.  Returns its elements first .. last - 1 as "
      "an array.");
  module.def(
      "is_active", &is_active,
      "True if LMDBIO was preloaded, so that py-lmdb and other users of LMDB in this process go through it.");
  module.def("library", &library, "The path of liblmdbio.so.");
  module.def("_unreached", &unreached);
  module.def("_prefetch", &prefetch);
  module.def("_raise", &raise);
}

}  // namespace lmdbio::python
