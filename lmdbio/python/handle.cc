#include "lmdbio/python/handle.h"

#include <unistd.h>

#include <utility>

#include "lmdbio/python/errors.h"
#include "lmdbio/python/waiting.h"

namespace py = pybind11;

namespace lmdbio::python {

Handle::Handle(lmdbio_reader* reader, std::unique_ptr<Snapshot> snapshot, py::object keep)
    : reader_(reader), snapshot_(std::move(snapshot)), keep_(std::move(keep)), pid_(::getpid()) {}

Handle::~Handle() {
  const WithoutGil waits;
  lmdbio_reader_close(reader_);
  snapshot_.reset();
}

bool Handle::in_process() const noexcept { return ::getpid() == pid_; }

void Handle::check_process() const {
  if (!in_process())
    raise_as(PyExc_RuntimeError,
             path + ": this reader was opened by another process; each process opens its own");
}

Ordinals ordinals_of(const py::object& given) {
  // The GIL protects this initialization.  A static variable with an initializer has a guard, which could
  // wait for a thread that waits for the GIL.
  static PyObject* convert = nullptr;
  if (convert == nullptr)
    convert = py::object(py::module_::import("lmdbio._order").attr("ordinals_of")).release().ptr();
  PyObject* const array = call_python(convert, given.ptr());
  if (array == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(array);
}

}  // namespace lmdbio::python
