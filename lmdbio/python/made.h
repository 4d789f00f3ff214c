// Checks for Python objects whose __init__ was not called or has failed.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

namespace lmdbio::python {

/// Returns false if the Python object contains no C++ object.
inline bool is_made(pybind11::handle object) {
  auto* const instance = reinterpret_cast<pybind11::detail::instance*>(object.ptr());
  return instance->get_value_and_holder().value_ptr() != nullptr;
}

/// Converts a Python object to the C++ object in it.  Raises RuntimeError if there is no C++ object, where
/// pybind11 alone would pass uninitialized memory.  A class selects this caster by the member `using
/// PythonClass = void`.  All classes that are passed to py::class_ must have this member.
template <class T>
class MadeCaster : public pybind11::detail::type_caster_base<T> {
 public:
  bool load(pybind11::handle from, bool convert) {
    return this->template load_impl<MadeCaster>(from, convert);
  }
  // Called by load_impl().
  void load_value(pybind11::detail::value_and_holder&& object) {
    if (object.value_ptr() == nullptr) {
      PyErr_Format(PyExc_RuntimeError, "%s: its __init__ was not called, or failed",
                   Py_TYPE(object.inst)->tp_name);
      throw pybind11::error_already_set();
    }
    pybind11::detail::type_caster_base<T>::load_value(std::move(object));
  }
};

/// Raises TypeError.  Without this function, pickle's protocols 0 and 1 end the process for objects of
/// pybind11's classes (version 2.10).  Usage: class.def("__reduce__", cannot_be_pickled).
inline pybind11::object cannot_be_pickled(const pybind11::object& self) {
  PyErr_Format(PyExc_TypeError, "a %s cannot be pickled: open a Reader in each process",
               Py_TYPE(self.ptr())->tp_name);
  throw pybind11::error_already_set();
}

}  // namespace lmdbio::python

namespace pybind11::detail {
template <class T>
class type_caster<T, typename T::PythonClass> : public lmdbio::python::MadeCaster<T> {};
}  // namespace pybind11::detail
