// The extension module lmdbio._lmdbio.
#include <lmdbio/lmdbio.h>

#include "lmdbio/python/batch.h"
#include "lmdbio/python/errors.h"
#include "lmdbio/python/reader.h"

PYBIND11_MODULE(_lmdbio, module) {
  module.attr("__version__") = lmdbio_version();
  lmdbio::python::add_exceptions(module);
  lmdbio::python::add_batch(module);
  lmdbio::python::add_reader(module);
  lmdbio::python::add_functions(module);
}
