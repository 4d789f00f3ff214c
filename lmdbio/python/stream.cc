#include "lmdbio/python/stream.h"

#include <optional>
#include <string>

#include "lmdbio/python/batch.h"
#include "lmdbio/python/errors.h"
#include "lmdbio/python/waiting.h"

namespace py = pybind11;

namespace lmdbio::python {

Keys::Keys(const py::iterable& keys) : objects_(keys) {
  values_.reserve(objects_.size());
  for (const py::handle k : objects_) {
    char* at = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(k.ptr(), &at, &size) != 0) throw py::error_already_set();
    values_.push_back({static_cast<std::size_t>(size), at});
  }
}

Stream::Stream(std::shared_ptr<Handle> reader, const py::object& order, BytesAs as)
    : reader_(std::move(reader)), as_(as) {
  const auto number = [&](const char* field) { return order.attr(field).cast<std::uint64_t>(); };
  lmdbio_order o{};
  o.size = sizeof o;
  o.kind = static_cast<lmdbio_order_kind>(order.attr("_kind").cast<int>());
  o.last = static_cast<lmdbio_last>(order.attr("_last").cast<int>());
  o.batch = number("batch");
  o.offset = number("rank");
  o.step = number("ranks");
  o.block = number("block");
  o.seed = number("seed");
  o.window = number("window");
  o.epoch = number("epoch");
  o.position = number("position");
  const py::object end_epoch = order.attr("end_epoch");
  o.end_epoch = end_epoch.is_none() ? LMDBIO_ENDLESS : end_epoch.cast<std::uint64_t>();
  o.across_epochs = order.attr("across_epochs").cast<bool>();
  o.zero_copy = as != BytesAs::view ? 1 : 0;  // for bytes objects, Batch copies the bytes itself
  Ordinals list;
  std::optional<Keys> keys;
  if (o.kind == LMDBIO_ORDER_LIST) {
    list = order.attr("_ordinals").cast<Ordinals>();
    o.list = list.data();
    o.length = static_cast<std::size_t>(list.size());
  } else if (o.kind == LMDBIO_ORDER_KEYS) {
    keys.emplace(order.attr("_keys"));
    o.keys = keys->values().data();
    o.length = keys->values().size();
  }
  const auto weights = order.attr("weights").cast<std::vector<double>>();
  if (o.kind == LMDBIO_ORDER_MIXED) {
    o.weights = weights.data();
    o.weights_count = weights.size();
    o.length = static_cast<std::size_t>(number("length"));
  }
  position_ = {o.epoch, o.position};
  int rc = 0;
  {
    const Waiting waits;
    rc = lmdbio_stream_open(reader_->reader(), &o, &stream_);
  }
  if (rc != 0) raise_last(rc);
}

void Stream::open() const {
  if (stream_ == nullptr || closing_) raise_as(PyExc_ValueError, reader_->path + ": the stream is closed");
}

py::object Stream::next() {
  open();
  reader_->check_process();
  if (busy_)
    raise_as(PyExc_ValueError,
             reader_->path + ": another thread is waiting for the next batch of this stream");
  const lmdbio_batch* b = nullptr;
  int rc = 0;
  busy_ = true;
  {
    const Waiting waits;
    rc = lmdbio_stream_next(stream_, &b);
  }
  busy_ = false;
  OwnedBatch owned(rc == 0 ? b : nullptr);
  lmdbio_stream_position(stream_, &position_.first, &position_.second);
  if (closing_) close();
  if (rc == MDB_NOTFOUND) throw py::stop_iteration();
  if (rc != 0) raise_last(rc);
  return py::cast(std::make_unique<Batch>(std::move(owned), as_, as_ == BytesAs::mapped ? reader_ : nullptr));
}

std::pair<std::uint64_t, std::uint64_t> Stream::position() const { return position_; }

void Stream::cancel() {
  if (stream_ != nullptr) lmdbio_stream_cancel(stream_);
}

void Stream::close() {
  if (stream_ == nullptr) return;
  closing_ = true;
  if (busy_) return lmdbio_stream_cancel(stream_);
  lmdbio_stream* const s = std::exchange(stream_, nullptr);
  const WithoutGil waits;
  lmdbio_stream_close(s);
}

void add_stream(py::module_& module) {
  py::class_<Stream>(
      module, "Stream",
      "Batches in an order, read ahead: an iterator.  One thread at a time, except for cancel().\n\n"
      "After an exception, the next call tries the same batch again.")
      .def("__reduce__", cannot_be_pickled)
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", &Stream::next)
      .def_property_readonly(
          "position", &Stream::position,
          "The epoch and position of the next batch, as a tuple.  An Order with the same end resumes there:\n"
          "order.resume(*stream.position).")
      .def("cancel", &Stream::cancel,
           "Makes a waiting call for the next batch, and all later ones, raise CancelledError.  Any thread.")
      .def("close", &Stream::close,
           "Ends the stream and its reads: another thread that waits for a batch gets CancelledError.\n\n"
           "Batches stay valid.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Stream& s, const py::args&) { s.close(); });
}

}  // namespace lmdbio::python
