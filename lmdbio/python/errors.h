// Raises Python exceptions for failed calls of the library.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace lmdbio::python {

/// Adds Error, CorruptedError and CancelledError to `module`.  Must be called once, before raise().
void add_exceptions(pybind11::module_& module);
/// Raises the exception for `rc`, an errno or an MDB_ code, with this text.  If a signal handler has already
/// raised an exception, raises the exception of the handler instead.  The caller holds the GIL.
[[noreturn]] void raise(int rc, const std::string& text);
/// Raises the exception for `rc`, with the text of lmdbio_error().
[[noreturn]] void raise_last(int rc);
/// Raises a Python exception of a built-in type.
[[noreturn]] void raise_as(PyObject* type, const std::string& text);

}  // namespace lmdbio::python
