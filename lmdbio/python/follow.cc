#include "lmdbio/python/follow.h"

#include <lmdbio/follow.h>
#include <pybind11/stl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lmdbio/python/assembler.h"
#include "lmdbio/python/batch.h"
#include "lmdbio/python/errors.h"
#include "lmdbio/python/made.h"
#include "lmdbio/python/waiting.h"

namespace py = pybind11;

struct lmdbio_mpi;

namespace lmdbio::python {
namespace {

/// lmdbio_mpi_follow_open of the module lmdbio._mpi, which needs MPI.
using OpenWithRanks = int(lmdbio_mpi*, const char*, const lmdbio_follow_options*, lmdbio_follow**);

/// Returns the index of `name` in `names`.  Raises ValueError if it is not one of them.
template <std::size_t kCount>
int index_of(const std::string& name, const char* const (&names)[kCount], const char* argument) {
  std::string all;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return static_cast<int>(i);
    all += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  raise_as(PyExc_ValueError, std::string(argument) + " must be one of " + all + ", not " + name);
}

constexpr const char* kBuffers[] = {"reservoir", "class", "ring", "all"};
constexpr const char* kOnEmpty[] = {"wait", "rehearse", "stop"};
constexpr const char* kExisting[] = {"new", "old"};

/// Calls a label function.  Returns false if an exception is set.  No destructor may run here: see waiting.h.
bool call_label(PyObject* function, const MDB_val& key, const MDB_val& value, std::uint64_t& out) noexcept {
  try {
    const auto bytes_of = [](const MDB_val& v) {
      return PyBytes_FromStringAndSize(static_cast<const char*>(v.mv_data),
                                       static_cast<Py_ssize_t>(v.mv_size));
    };
    PyObject* const arguments[] = {bytes_of(key), bytes_of(value)};
    PyObject* result = nullptr;
    if (arguments[0] != nullptr && arguments[1] != nullptr)
      result = PyObject_CallFunctionObjArgs(function, arguments[0], arguments[1], nullptr);
    for (PyObject* const a : arguments) Py_XDECREF(a);
    PyObject* const number = result != nullptr ? PyNumber_Index(result) : nullptr;
    Py_XDECREF(result);
    if (number == nullptr) return false;
    out = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred() == nullptr) return true;
    out = 0;
    return false;
  } catch (abi::__forced_unwind&) {
    wait_for_exit();
  }
}

class Follow {
 public:
  using PythonClass = void;  ///< see made.h

  Follow(const py::object& path, std::uint64_t fresh, std::uint64_t old, std::uint64_t seed,
         std::uint64_t lag, const std::string& buffer, std::uint64_t capacity, const py::object& label,
         const std::string& existing, const std::string& on_empty, std::optional<double> timeout,
         bool append_only, const std::optional<py::bytes>& finished_key, std::uint64_t renew_batches,
         double renew_seconds, const std::optional<std::string>& database, bool lock,
         const std::optional<py::bytes>& state, const py::object& bytes_as,
         const std::optional<std::pair<std::uintptr_t, std::uintptr_t>>& ranks)
      : pid_(::getpid()), as_(bytes_as_of(bytes_as)) {
    path_ = py::module_::import("os").attr("fsencode")(path).cast<std::string>();
    lmdbio_follow_options o{};
    o.size = sizeof o;
    o.database = database ? database->c_str() : nullptr;
    o.flags = lock ? 0 : MDB_NOLOCK;
    o.seed = seed;
    o.fresh = fresh;
    o.old = old;
    o.lag = lag;
    o.buffer = static_cast<lmdbio_buffer>(index_of(buffer, kBuffers, "buffer"));
    o.capacity = capacity;
    o.existing_are_old = index_of(existing, kExisting, "existing");
    o.on_empty = static_cast<lmdbio_on_empty>(index_of(on_empty, kOnEmpty, "on_empty"));
    o.timeout = timeout.value_or(0);
    o.append_only = append_only;
    o.renew_batches = renew_batches;
    o.renew_seconds = renew_seconds;
    if (PyCallable_Check(label.ptr()) != 0) {
      label_ = label;
      o.label = &Follow::label_of;
      o.label_context = this;
    } else if (!label.is_none()) {
      std::tie(o.label_offset, o.label_bytes) = label.cast<std::pair<std::uint64_t, std::uint64_t>>();
    }
    MDB_val finished{};
    std::string finished_bytes, state_bytes;
    if (finished_key) {
      finished_bytes = *finished_key;
      finished = {finished_bytes.size(), finished_bytes.data()};
      o.finished_key = &finished;
    }
    if (state) {
      state_bytes = *state;
      o.state = state_bytes.data();
      o.state_bytes = state_bytes.size();
    }
    // In the library, 0 means the default.
    if (lag == 0 || capacity == 0 || renew_batches == 0)
      raise_as(PyExc_ValueError, "lag, capacity and renew_batches must be at least 1");
    if (!(renew_seconds > 0)) raise_as(PyExc_ValueError, "renew_seconds must be above 0");
    if (timeout && !(*timeout > 0))
      raise_as(PyExc_ValueError, "timeout must be above 0; None means that there is no limit");
    check(waiting([&] {
      return ranks ? reinterpret_cast<OpenWithRanks*>(ranks->first)(
                         reinterpret_cast<lmdbio_mpi*>(ranks->second), path_.c_str(), &o, &follow_)
                   : lmdbio_follow_open(path_.c_str(), &o, &follow_);
    }));
  }
  Follow(const Follow&) = delete;
  Follow& operator=(const Follow&) = delete;
  ~Follow() {
    close();
    thrown_.clear();
  }

  py::tuple next() {
    return batch_of(
        [this](const lmdbio_batch** b, std::size_t* n) { return lmdbio_follow_next(follow_, b, n); });
  }
  py::tuple ahead(std::uint64_t i) {
    return batch_of(
        [&](const lmdbio_batch** b, std::size_t* n) { return lmdbio_follow_ahead(follow_, i, b, n); });
  }
  void wait() {
    const Busy busy(*this);
    const int rc = waiting([this] { return lmdbio_follow_wait(follow_); });
    if (rc == MDB_NOTFOUND && thrown_.type == nullptr) throw py::stop_iteration();
    check(rc);
  }
  /// Makes an Assembler for batches of this object.
  std::unique_ptr<Assembler, Assembler::Delete> assembler(const py::tuple& layout, unsigned threads,
                                                          std::size_t buffers) const {
    auto handle = std::make_shared<Handle>(nullptr, nullptr, py::none());
    handle->path = path_;
    return make_assembler(std::move(handle), layout, threads, buffers);
  }
  py::bytes state() {
    const Busy busy(*this);
    const void* at = nullptr;
    std::size_t size = 0;
    check(lmdbio_follow_state(follow_, &at, &size));
    return py::bytes(static_cast<const char*>(at), size);
  }
  std::uint64_t transaction() const {
    std::uint64_t v = 0;
    lmdbio_follow_position(follow_, &v, nullptr);
    return v;
  }
  std::uint64_t pending() const {
    std::uint64_t v = 0;
    lmdbio_follow_position(follow_, nullptr, &v);
    return v;
  }
  void cancel() { lmdbio_follow_cancel(follow_); }
  void close() {
    if (follow_ == nullptr) return;
    closing_ = true;
    if (busy_) return lmdbio_follow_cancel(follow_);  // the thread in next() closes it
    lmdbio_follow* const f = std::exchange(follow_, nullptr);
    const WithoutGil waits;
    lmdbio_follow_close(f);
  }

  // For the garbage collector: a label function may refer to this object.
  int visit(visitproc visitor, void* context) const {
    return label_.ptr() == nullptr ? 0 : visitor(label_.ptr(), context);
  }
  void clear() { label_ = py::object(); }

 private:
  /// An exception of the program's function, as from PyErr_Fetch().
  struct Thrown {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    void clear() noexcept {
      Py_CLEAR(type);
      Py_CLEAR(value);
      Py_CLEAR(trace);
    }
  };
  /// Marks a call in progress; closes the object after it if close() was called meanwhile.
  struct Busy {
    Follow& follow;
    explicit Busy(Follow& f) : follow(f) {
      if (f.follow_ == nullptr || f.closing_) raise_as(PyExc_ValueError, f.path_ + ": the Follow is closed");
      if (f.pid_ != ::getpid())
        raise_as(PyExc_RuntimeError, f.path_ + ": a forked process cannot use its parent's Follow");
      if (f.busy_) raise_as(PyExc_ValueError, f.path_ + ": another thread uses this Follow");
      f.busy_ = true;
    }
    ~Busy() {
      follow.busy_ = false;
      if (follow.closing_) follow.close();
    }
  };

  template <class Call>
  int waiting(Call&& call) {
    Waiting waits;
    waits_ = &waits;
    return call();
  }
  /// Calls a function of the library that returns a batch.  Raises StopIteration after MDB_NOTFOUND.
  template <class Call>
  py::tuple batch_of(Call&& call) {
    const Busy busy(*this);
    const lmdbio_batch* b = nullptr;
    std::size_t fresh = 0;
    const int rc = waiting([&] { return call(&b, &fresh); });
    OwnedBatch owned(rc == 0 ? b : nullptr);
    if (rc == MDB_NOTFOUND && thrown_.type == nullptr) throw py::stop_iteration();
    check(rc);
    return py::make_tuple(std::make_unique<Batch>(std::move(owned), as_), fresh);
  }
  /// Calls the program's function.  An exception ends the object: it is raised by the call in progress.
  static std::uint64_t label_of(void* self, const MDB_val* key, const MDB_val* value) {
    Follow& f = *static_cast<Follow*>(self);
    f.waits_->take_back();
    std::uint64_t label = 0;
    if (f.thrown_.type == nullptr && !call_label(f.label_.ptr(), *key, *value, label))
      PyErr_Fetch(&f.thrown_.type, &f.thrown_.value, &f.thrown_.trace);
    f.waits_->give_up();
    return label;
  }
  void check(int rc) {
    if (thrown_.type != nullptr) {
      closing_ = true;
      if (!busy_) close();
      const Thrown t = std::exchange(thrown_, {});
      PyErr_Restore(t.type, t.value, t.trace);
      throw py::error_already_set();
    }
    if (rc == ETIMEDOUT) raise_as(PyExc_TimeoutError, lmdbio_error());
    if (rc != 0) raise_last(rc);
  }

  const pid_t pid_;
  const BytesAs as_;
  std::string path_;
  lmdbio_follow* follow_ = nullptr;  ///< null if it is closed
  py::object label_;
  WithoutGil* waits_ = nullptr;  ///< of the call in progress, whose thread calls the label function
  // Guarded by the GIL.
  Thrown thrown_;
  bool busy_ = false, closing_ = false;
};

constexpr const char* kDoc =
    R"(Follows a database that another process writes to: an iterator over (batch, new).

A batch has records that are new, in the order of their commits, and then old ones, drawn from a buffer; `new` is the number
of new ones.  Record.ordinal is the number of a sample.  See docs/follow.md.  This process must not have the database open in
another way, for example as a Reader.  One thread at a time, except for cancel() and close().

fresh, old: new and old records in a batch.  seed, lag: of the order.
buffer: "reservoir", "class", "ring" or "all"; capacity: its size, for "class" that of each class.
label: for "class": (offset, bytes) of a little-endian number in the value, or a function of the key and the value (bytes)
that returns an int.
existing: whether records that exist already are "new" or "old".
on_empty: what to do if there are not enough new records: "wait", "rehearse" (a batch with fewer new ones), "stop".
timeout: longest wait in seconds; TimeoutError.
append_only: the writer only adds records behind the last key.
finished_key: a key by which the writer says that it has finished.
renew_batches, renew_seconds: the snapshot is renewed at least so often.
state: continue from state() of another Follow.)";

}  // namespace

void add_follow(py::module_& module) {
  py::class_<Follow>(module, "Follow", kDoc, py::custom_type_setup([](PyHeapTypeObject* heap) {
                       heap->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
                       heap->ht_type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
                         Py_VISIT(Py_TYPE(self));
                         return is_made(self) ? py::cast<const Follow&>(py::handle(self)).visit(visit, arg)
                                              : 0;
                       };
                       heap->ht_type.tp_clear = [](PyObject* self) {
                         if (is_made(self)) py::cast<Follow&>(py::handle(self)).clear();
                         return 0;
                       };
                     }))
      .def(py::init<const py::object&, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                    const std::string&, std::uint64_t, const py::object&, const std::string&,
                    const std::string&, std::optional<double>, bool, const std::optional<py::bytes>&,
                    std::uint64_t, double, const std::optional<std::string>&, bool,
                    const std::optional<py::bytes>&, const py::object&,
                    const std::optional<std::pair<std::uintptr_t, std::uintptr_t>>&>(),
           py::arg("path"), py::kw_only(), py::arg("fresh"), py::arg("old") = 0, py::arg("seed") = 0,
           py::arg("lag") = 4, py::arg("buffer") = "reservoir", py::arg("capacity") = 10'000,
           py::arg("label") = py::none(), py::arg("existing") = "new", py::arg("on_empty") = "wait",
           py::arg("timeout") = py::none(), py::arg("append_only") = false,
           py::arg("finished_key") = py::none(), py::arg("renew_batches") = 16,
           py::arg("renew_seconds") = 1.0, py::arg("database") = py::none(), py::arg("lock") = true,
           py::arg("state") = py::none(), py::arg("bytes_as") = "view", py::arg("_ranks") = py::none())
      .def("__reduce__", cannot_be_pickled)
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", &Follow::next)
      .def("_wait", &Follow::wait)
      .def("_ahead", &Follow::ahead)
      .def("_assembler", &Follow::assembler)
      .def("state", &Follow::state,
           "Returns the state between two batches as bytes.  A Follow with this state, and otherwise the "
           "same\n"
           "arguments, returns the same batches as this one.")
      .def_property_readonly("transaction", &Follow::transaction, "The transaction of the snapshot.")
      .def_property_readonly("pending", &Follow::pending,
                             "The number of new records that are known and were not returned.")
      .def("cancel", &Follow::cancel,
           "Makes a waiting call for the next batch, and all later ones, raise CancelledError.  Any thread.")
      .def("close", &Follow::close, "Closes the database.  Batches stay valid.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Follow& f, const py::args& error) {
        if (!error[0].is_none()) f.cancel();  // ranks must not wait for each other after an exception
        f.close();
      });
}

}  // namespace lmdbio::python
