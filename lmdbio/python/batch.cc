#include "lmdbio/python/batch.h"

#include <structseq.h>

#include <cstring>
#include <string>
#include <utility>

#include "lmdbio/python/errors.h"

namespace py = pybind11;

namespace lmdbio::python {

namespace {

enum Field : int { kKey, kValue, kOrdinal };
PyTypeObject* record_type;  // owned by the module

// The bytes that a batch exports to the view that this thread is making.  While a view is made, the garbage
// collector may run.  It may run finalizers that make views of other batches, and other threads may run, too.
struct Lent {
  PyObject* batch = nullptr;
  MDB_val bytes{0, nullptr};
};
thread_local constinit Lent lent;

// Exports the bytes in `lent`.  A batch exports nothing while new_view() is not running.
int get_buffer(PyObject* batch, Py_buffer* view, int flags) {
  if (lent.batch != batch) {
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "a Batch has no bytes of its own; its records have");
    return -1;
  }
  return PyBuffer_FillInfo(view, batch, lent.bytes.mv_data, static_cast<Py_ssize_t>(lent.bytes.mv_size), 1,
                           flags);
}

PyObject* new_view(py::handle batch, const MDB_val& bytes) {
  const Lent outer = lent;
  lent = {batch.ptr(), bytes};
  if (bytes.mv_data == nullptr) lent.bytes.mv_data = &lent;  // an empty value
  PyObject* const made = PyMemoryView_FromObject(batch.ptr());
  lent = outer;
  return made;
}

PyObject* new_bytes(const MDB_val& bytes) {
  return PyBytes_FromStringAndSize(static_cast<const char*>(bytes.mv_data),
                                   static_cast<Py_ssize_t>(bytes.mv_size));
}

/// Returns a view that keeps `batch` alive, or a bytes object if `batch` is null.
py::object bytes_of(py::handle batch, const MDB_val& bytes) {
  PyObject* const made = batch ? new_view(batch, bytes) : new_bytes(bytes);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

py::object make_record(py::handle batch, const lmdbio_record& r) {
  if (r.ordinal == UINT64_MAX) return py::none();
  auto made = py::reinterpret_steal<py::object>(PyStructSequence_New(record_type));
  if (!made) throw py::error_already_set();
  PyStructSequence_SetItem(made.ptr(), kKey, bytes_of(batch, r.key).release().ptr());
  PyStructSequence_SetItem(made.ptr(), kValue, bytes_of(batch, r.value).release().ptr());
  PyStructSequence_SetItem(made.ptr(), kOrdinal, py::int_(r.ordinal).release().ptr());
  return made;
}

/// Converts an index of Python, which counts from the end if it is negative.  Raises IndexError.
std::size_t checked(const Batch& b, Py_ssize_t i) {
  const auto size = static_cast<Py_ssize_t>(b.size());
  if (i < 0) i += size;
  if (i < 0 || i >= size) throw py::index_error("batch index out of range");
  return static_cast<std::size_t>(i);
}

}  // namespace

BytesAs bytes_as_of(const py::object& given) {
  if (py::isinstance<py::str>(given)) {
    const auto name = given.cast<std::string>();
    if (name == "view") return BytesAs::view;
    if (name == "bytes") return BytesAs::bytes;
    if (name == "mapped") return BytesAs::mapped;
  }
  raise_as(PyExc_ValueError,
           "bytes_as must be \"view\", \"bytes\" or \"mapped\", not " + std::string(py::repr(given)));
}

Batch::Batch(OwnedBatch batch, BytesAs as, std::shared_ptr<const void> keep)
    : count_(batch->count),
      epoch_(batch->epoch),
      position_(batch->position),
      padding_(batch->padding),
      keep_(std::move(keep)),
      batch_(std::move(batch)) {
  if (as != BytesAs::bytes) return;
  copied_ = records({});
  batch_.reset();
  keep_.reset();
}

py::object Batch::record(py::handle self, std::size_t i) const {
  return batch_ == nullptr ? copied_[i] : make_record(self, batch_->records[i]);
}

py::object Batch::field(py::handle self, std::size_t i, int which) const {
  if (batch_ == nullptr) {
    const py::object r = copied_[i];
    return r.is_none() ? r : py::reinterpret_borrow<py::object>(PyStructSequence_GetItem(r.ptr(), which));
  }
  const lmdbio_record& r = batch_->records[i];
  if (r.ordinal == UINT64_MAX) return py::none();
  if (which == kOrdinal) return py::int_(r.ordinal);
  return bytes_of(self, which == kKey ? r.key : r.value);
}

py::list Batch::records(py::handle self) const {
  py::list all(count_);
  for (std::size_t i = 0; i < count_; ++i)
    PyList_SET_ITEM(all.ptr(), static_cast<Py_ssize_t>(i), record(self, i).release().ptr());
  return all;
}

py::list Batch::column(py::handle self, int which) const {
  py::list all(count_);
  for (std::size_t i = 0; i < count_; ++i)
    PyList_SET_ITEM(all.ptr(), static_cast<Py_ssize_t>(i), field(self, i, which).release().ptr());
  return all;
}

py::list Batch::copied_values() const {
  if (batch_ == nullptr) return column({}, kValue);
  py::list all(count_);
  for (std::size_t i = 0; i < count_; ++i) {
    const lmdbio_record& r = batch_->records[i];
    py::object value = r.ordinal == UINT64_MAX ? py::none() : bytes_of({}, r.value);
    PyList_SET_ITEM(all.ptr(), static_cast<Py_ssize_t>(i), value.release().ptr());
  }
  return all;
}

void add_batch(py::module_& module) {
  static PyStructSequence_Field fields[] = {
      {"key", "the record's key"},
      {"value", "the record's value"},
      {"ordinal", "the record's position in key order, from 0"},
      {nullptr, nullptr},
  };
  static PyStructSequence_Desc record{
      "lmdbio.Record",
      "A record: the tuple (key, value), which also has the attribute `ordinal`.\n\n"
      "Key and value are memoryviews of the library's memory, read-only and without particular alignment,\n"
      "or bytes objects with bytes_as=\"bytes\".  numpy.frombuffer(record.value, dtype) makes an array "
      "without\n"
      "a copy.  A view keeps its whole batch alive.",
      fields, 2};
  record_type = PyStructSequence_NewType(&record);
  if (record_type == nullptr) throw py::error_already_set();
  module.add_object("Record", reinterpret_cast<PyObject*>(record_type));

  py::class_<Batch>(
      module, "Batch",
      "A sequence of Record, in the requested order; None for a key that does not exist.\n\n"
      "Its memory counts in the reader's `memory` until the batch and all views of its records are gone.\n"
      "Any thread.",
      py::custom_type_setup([](PyHeapTypeObject* heap) {
        heap->as_buffer.bf_getbuffer = get_buffer;
        heap->ht_type.tp_as_buffer = &heap->as_buffer;
      }))
      .def("__reduce__", cannot_be_pickled)
      .def("__len__", &Batch::size)
      .def("__getitem__",
           [](const py::object& self, Py_ssize_t i) {
             const auto& b = self.cast<const Batch&>();
             return b.record(self, checked(b, i));
           })
      .def("__getitem__",
           [](const py::object& self, const py::slice& part) {
             const py::list all = self.cast<const Batch&>().records(self);
             return py::object(all[part]);
           })
      .def("__iter__",
           [](const py::object& self) { return py::iter(self.cast<const Batch&>().records(self)); })
      .def_property_readonly(
          "keys", [](const py::object& self) { return self.cast<const Batch&>().column(self, kKey); },
          "The keys of all records, as a list.")
      .def_property_readonly(
          "values", [](const py::object& self) { return self.cast<const Batch&>().column(self, kValue); },
          "The values of all records, as a list.")
      .def_property_readonly(
          "ordinals", [](const py::object& self) { return self.cast<const Batch&>().column(self, kOrdinal); },
          "The ordinals of all records, as a list.")
      .def("_copied_values", &Batch::copied_values)
      .def_property_readonly("epoch", &Batch::epoch, "Epoch of the first record; 0 outside streams.")
      .def_property_readonly(
          "position", &Batch::position,
          "Position of the first record in the stream's share of the epoch; 0 outside streams.")
      .def_property_readonly("padding", &Batch::padding,
                             "Number of records at the end that only fill up the batch.")
      .def("__repr__", [](const Batch& b) {
        return "<lmdbio.Batch: " + std::to_string(b.size()) + " records, epoch " + std::to_string(b.epoch()) +
               ", position " + std::to_string(b.position()) + ">";
      });
}

}  // namespace lmdbio::python
