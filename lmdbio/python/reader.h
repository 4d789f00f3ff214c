// Python's class Reader for readers of lmdbio.h.
#pragma once

#include <pybind11/pybind11.h>

namespace lmdbio::python {

/// Adds Reader, Stream and the iterator over keys to `module`.
void add_reader(pybind11::module_& module);
/// Adds the functions shuffled(), prefetch(), is_active().
void add_functions(pybind11::module_& module);

}  // namespace lmdbio::python
