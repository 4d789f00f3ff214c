// The extension module lmdbio._lmdbio.
#include <lmdbio/lmdbio.h>

#include "lmdbio/python/assembler.h"
#include "lmdbio/python/batch.h"
#include "lmdbio/python/errors.h"
#include "lmdbio/python/follow.h"
#include "lmdbio/python/reader.h"

namespace {

/// Returns false and sets ImportError in a subinterpreter.  All interpreters of a process share pybind11's
/// state.  The state keeps pointers to the interpreter that has initialized it.  A subinterpreter may end
/// before the main interpreter, and the pointers would then be invalid.
bool check_interpreter() noexcept {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return true;
  PyErr_SetString(PyExc_ImportError, "lmdbio cannot be used in a subinterpreter");
  return false;
}

PyObject* check_again(PyObject*, PyObject*) noexcept {
  if (!check_interpreter()) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace

// The init function of pybind11 initializes pybind11 first.  The function below checks the interpreter before
// that.
#define PyInit__lmdbio init_by_pybind11
PYBIND11_MODULE(_lmdbio, module) {
  module.attr("__version__") = lmdbio_version();
  lmdbio::python::add_exceptions(module);
  lmdbio::python::add_batch(module);
  lmdbio::python::add_assembler(module);
  lmdbio::python::add_reader(module);
  lmdbio::python::add_follow(module);
  lmdbio::python::add_functions(module);
  // If the main interpreter has imported this module, a subinterpreter gets a copy without a call of the init
  // function.  The package therefore calls this function.  pybind11 does not make it, because pybind11 takes
  // the main interpreter's lock for exceptions.
  static PyMethodDef check{"_check_interpreter", check_again, METH_NOARGS,
                           "Raises ImportError in a subinterpreter."};
  PyObject* const function = PyCFunction_New(&check, nullptr);
  if (function == nullptr) throw pybind11::error_already_set();
  module.add_object("_check_interpreter", function);
}
#undef PyInit__lmdbio

extern "C" PYBIND11_EXPORT PyObject* PyInit__lmdbio() {
  return check_interpreter() ? init_by_pybind11() : nullptr;
}
