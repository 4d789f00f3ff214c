// Python's class Follow for lmdbio/follow.h.
#pragma once

#include <pybind11/pybind11.h>

namespace lmdbio::python {

void add_follow(pybind11::module_& module);

}  // namespace lmdbio::python
