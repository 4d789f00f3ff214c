#include "lmdbio/python/errors.h"

#include <lmdbio/lmdbio.h>

#include <cerrno>

namespace py = pybind11;

namespace lmdbio::python {

namespace {

// The module owns these objects, and is never unloaded.
PyObject *error, *corrupted, *cancelled;

PyObject* add(py::module_& module, const char* name, PyObject* base, const char* doc) {
  PyObject* const made =
      PyErr_NewExceptionWithDoc(("lmdbio." + std::string(name)).c_str(), doc, base, nullptr);
  if (made == nullptr) throw py::error_already_set();
  module.add_object(name, made);
  return made;
}

/// Converts a text.  It may contain file names that are not valid UTF-8.
py::object message(const std::string& text) {
  PyObject* const made = PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

void add_exceptions(py::module_& module) {
  error = add(module, "Error", PyExc_RuntimeError, "A call of the library failed; base class of the others.");
  corrupted = add(module, "CorruptedError", error, "A database is damaged, or a file is not a database.");
  cancelled = add(module, "CancelledError", error, "The stream was cancelled, or closed during a wait.");
}

void raise_as(PyObject* type, const std::string& text) {
  PyErr_SetObject(type, message(text).ptr());
  throw py::error_already_set();
}

void raise(int rc, const std::string& text) {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  switch (rc) {
    case ENOMEM:
      raise_as(PyExc_MemoryError, text);
    case EINVAL:
      raise_as(PyExc_ValueError, text);
    case ECANCELED:
      raise_as(cancelled, text);
    case ENOTSUP:
      raise_as(error, text);
    case MDB_NOTFOUND:
      raise_as(PyExc_KeyError, text);
    case MDB_BAD_VALSIZE:
      raise_as(PyExc_ValueError, text);
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
    case MDB_VERSION_MISMATCH:
      raise_as(corrupted, text);
    default:
      break;
  }
  if (rc < 0) raise_as(error, text);
  PyErr_SetObject(PyExc_OSError, py::make_tuple(rc, message(text)).ptr());  // FileNotFoundError and so on
  throw py::error_already_set();
}

void raise_last(int rc) {
  const char* const why = lmdbio_error();
  raise(rc, *why != '\0' ? why : mdb_strerror(rc));
}

}  // namespace lmdbio::python
