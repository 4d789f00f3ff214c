#include "lmdbio/python/assembler.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <new>
#include <span>
#include <system_error>
#include <utility>

#include "lmdbio/files/datum.h"
#include "lmdbio/python/errors.h"
#include "lmdbio/python/waiting.h"

namespace py = pybind11;

namespace lmdbio::python {

using files::Datum;
using files::parse_datum;

namespace {

/// Bytes that a thread copies at a time.
constexpr std::size_t kSlice = std::size_t{1} << 20;
constexpr std::chrono::milliseconds kSignalInterval{100};

/// Blocks asynchronous signals of the calling thread while it exists, so that Python's handlers run in the
/// threads of the program.
class BlockedSignals {
 public:
  BlockedSignals() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS})
      sigdelset(&blocked, own);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Assembler::Assembler(std::shared_ptr<Handle> reader, std::unique_ptr<Layout> layout, unsigned threads,
                     std::size_t buffers)
    : reader_(std::move(reader)), layout_(std::move(layout)), store_(std::make_shared<BufferStore>(buffers)) {
  const BlockedSignals blocked;
  try {
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    close();
    raise(error.code().value(), reader_->path + ": " + std::to_string(threads) +
                                    " threads cannot be started: " + error.code().message());
  } catch (...) {
    close();
    throw;
  }
}

void Assembler::open(const py::object& order) {
  reader_->check_process();
  stream_ = std::make_shared<Stream>(reader_, order, BytesAs::mapped);
}

void Assembler::add(Job job, std::uintptr_t to) {
  reader_->check_process();
  if (closing_) raise_as(PyExc_ValueError, reader_->path + ": the loader is closed");
  job.to = reinterpret_cast<std::byte*>(to);
  if (to != 0) job.memory = std::exchange(reserved_, {});
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_threads_.notify_one();
}

bool Assembler::reserve(std::size_t bytes) {
  if (reserved_.size == 0 && !closing_) reserved_ = store_->reserve(bytes);
  return reserved_.size != 0;
}

void Assembler::add(std::uintptr_t to) {
  Job job;
  job.stream = stream_;
  add(std::move(job), to);
}

void Assembler::add_batch(OwnedBatch batch, std::uintptr_t to) {
  Job job;
  if (batch == nullptr) raise_as(PyExc_ValueError, reader_->path + ": the batch has bytes objects, or none");
  job.batch = std::move(batch);
  add(std::move(job), to);
}

void Assembler::add_ordinals(const Ordinals& ordinals, std::uintptr_t to) {
  Job job;
  job.ordinals.assign(ordinals.data(), ordinals.data() + ordinals.size());
  add(std::move(job), to);
}

int Assembler::read(Job& job, bool oldest, std::string& why) const noexcept {
  const auto next = [&] {
    const lmdbio_batch* b = nullptr;
    const int rc = job.stream != nullptr
                       ? lmdbio_stream_next(job.stream->handle(), &b)
                       : lmdbio_reader_read(reader_->reader(), job.ordinals.data(), job.ordinals.size(), &b);
    job.batch.reset(b);
    return rc;
  };
  try {
    int rc = job.batch != nullptr ? 0 : next();
    while (rc == ENOMEM && store_->drop_unused()) rc = next();
    if (rc != 0) {
      why = rc == MDB_NOTFOUND ? reader_->path + ": the stream has ended" : lmdbio_error();
      return rc == MDB_NOTFOUND ? EINVAL : rc;
    }
    job.bytes = layout_->bytes(*job.batch);
    if (job.to == nullptr) job.memory = store_->take(job.bytes, oldest);
    if (job.to == nullptr && job.memory.data == nullptr) return ENOMEM;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  const lmdbio_batch* const b = job.batch.get();
  job.records = b->count;
  job.slice = std::max<std::size_t>(
      kSlice / std::max<std::size_t>(job.bytes / std::max<std::size_t>(b->count, 1), 1), 1);
  layout_->begin(*b, job.to != nullptr ? job.to : job.memory.data);
  return 0;
}

int Assembler::copy(const Job& job, std::size_t first, std::size_t end, std::string& why) const noexcept {
  try {
    why = layout_->copy(*job.batch, first, end, job.to != nullptr ? job.to : job.memory.data);
    if (!why.empty()) why = reader_->path + ": " + why;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  return why.empty() ? 0 : EINVAL;
}

void Assembler::end(Job& job, int rc, std::string why) noexcept {
  if (job.rc == 0) {
    job.rc = rc;
    job.why = std::move(why);
  }
  failed_ = failed_ || rc != 0;
  if (job.copied != job.taken) return;  // the last of the other threads ends the job
  job.batch.reset();
  job.done = true;
  wake_caller_.notify_all();
}

void Assembler::work() noexcept {
  lmdbio_set_interrupt([](void* self) -> int { return static_cast<Assembler*>(self)->closing_ ? 1 : 0; },
                       this);
  std::unique_lock lock(mutex_);
  while (!closing_) {
    const auto read_jobs = jobs_.begin() + static_cast<std::ptrdiff_t>(unread_);
    const auto to_copy =
        std::find_if(jobs_.begin(), read_jobs, [](const Job& j) { return j.rc == 0 && j.taken < j.records; });
    if (to_copy != read_jobs) {
      Job& job = *to_copy;
      const std::size_t first = job.taken, last = std::min(first + job.slice, job.records);
      job.taken = last;
      std::string why;
      lock.unlock();
      const int rc = copy(job, first, last, why);
      lock.lock();
      job.copied += last - first;
      if (rc != 0 || job.rc != 0 || job.copied == job.records) end(job, rc, std::move(why));
    } else if (!reading_ && !failed_ && unread_ < jobs_.size() && (unread_ == 0 || !waits_)) {
      Job& job = jobs_[unread_];
      const bool oldest = unread_ == 0;
      reading_ = true;
      std::string why;
      lock.unlock();
      const int rc = read(job, oldest, why);
      lock.lock();
      reading_ = false;
      waits_ = rc == ENOMEM && !oldest;
      if (!waits_) {
        ++unread_;
        if (rc != 0 || job.records == 0) end(job, rc, std::move(why));
      }
      wake_threads_.notify_all();
    } else {
      wake_threads_.wait(lock);
    }
  }
}

py::tuple Assembler::next() {
  reader_->check_process();
  if (busy_) raise_as(PyExc_ValueError, reader_->path + ": another thread is waiting for the next batch");
  bool done = false;
  busy_ = true;
  {
    WithoutGil waits;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        done = wake_caller_.wait_for(lock, kSignalInterval,
                                     [&] { return closing_ || jobs_.empty() || jobs_.front().done; });
      }
      if (done) break;
      waits.take_back();
      const int raised = PyErr_CheckSignals();
      waits.give_up();
      if (raised != 0) break;
    }
  }
  busy_ = false;
  if (!done) throw py::error_already_set();
  if (closing_) raise(ECANCELED, reader_->path + ": the loader was closed");
  Job job;
  bool found = false;
  {
    const std::lock_guard lock(mutex_);
    found = !jobs_.empty();
    if (found) {
      job = std::move(jobs_.front());
      jobs_.pop_front();
      --unread_;
    }
  }
  if (!found) raise_as(PyExc_ValueError, reader_->path + ": no batch was requested");
  store_->hand_over(job.memory);
  wake_threads_.notify_one();  // there may be memory for a batch that waits
  if (job.rc != 0) {
    store_->give_back(job.memory);
    raise(job.rc, job.why.empty() ? reader_->path + ": no memory for a batch" : job.why);
  }
  if (job.to != nullptr) return py::make_tuple(job.records, py::none());
  return py::make_tuple(job.records, py::cast(std::make_unique<Assembled>(store_, job.memory, job.bytes)));
}

void Assembler::close() noexcept {
  if (!reader_->in_process()) return;
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    threads.swap(threads_);
  }
  if (threads.empty()) return;  // another thread closes this object, or has closed it
  wake_threads_.notify_all();
  wake_caller_.notify_all();
  {
    const WithoutGil waits;
    for (std::thread& t : threads) t.join();
  }
  for (Job& job : jobs_) {
    store_->hand_over(job.memory);
    store_->give_back(job.memory);
  }
  jobs_.clear();
  store_->hand_over(reserved_);
  (void)store_->drop_unused();
  stream_.reset();
}

void Assembler::Delete::operator()(Assembler* a) const noexcept {
  if (a->reader_->in_process()) delete a;
}

namespace {

std::unique_ptr<Layout> layout_of(const py::tuple& given) {
  const auto kind = given[0].cast<std::string>();
  if (kind == "flat") return flat_layout();
  const auto bytes = given[1].cast<std::size_t>();
  if (kind == "datum") {
    const auto shape = given[2].cast<std::array<std::int32_t, 3>>();
    return datum_layout(shape[0], shape[1], shape[2], given[3].cast<bool>(), given[4].cast<std::size_t>(),
                        bytes);
  }
  std::vector<Column> columns;
  for (const auto& c : given[3].cast<std::vector<std::array<std::size_t, 4>>>())
    columns.push_back({c[0], c[1], c[2], c[3]});
  return columns_layout(std::move(columns), given[2].cast<std::size_t>(), bytes);
}

/// Returns (channels, height, width, label, encoded, offset of data, bytes of data, bytes of float_data), or
/// None if the bytes are not a Datum.
py::object datum(const py::object& value) {
  Py_buffer bytes;
  if (PyObject_GetBuffer(value.ptr(), &bytes, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> release(&bytes, PyBuffer_Release);
  const std::span<const std::byte> all(static_cast<const std::byte*>(bytes.buf),
                                       static_cast<std::size_t>(bytes.len));
  Datum d;
  if (!parse_datum(all, d)) return py::none();
  const std::ptrdiff_t at = d.data.empty() ? 0 : d.data.data() - all.data();
  return py::make_tuple(d.channels, d.height, d.width, d.label, d.encoded, at, d.data.size(),
                        d.float_bytes());
}

}  // namespace

std::unique_ptr<Assembler, Assembler::Delete> make_assembler(std::shared_ptr<Handle> reader,
                                                             const py::tuple& layout, unsigned threads,
                                                             std::size_t buffers) {
  return std::unique_ptr<Assembler, Assembler::Delete>(
      new Assembler(std::move(reader), layout_of(layout), threads, buffers));
}

void add_assembler(py::module_& module) {
  py::class_<Assembled>(module, "_Assembled", py::buffer_protocol())
      .def_buffer([](Assembled& a) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(a.data()), static_cast<py::ssize_t>(a.size()));
      })
      .def("__reduce__", cannot_be_pickled);
  py::class_<Assembler, std::unique_ptr<Assembler, Assembler::Delete>>(module, "_Assembler")
      .def("open", &Assembler::open)
      .def("reserve", &Assembler::reserve)
      .def("add", py::overload_cast<std::uintptr_t>(&Assembler::add), py::arg("to") = 0)
      .def(
          "add_ordinals",
          [](Assembler& a, const py::object& ordinals, std::uintptr_t to) {
            a.add_ordinals(ordinals_of(ordinals), to);
          },
          py::arg("ordinals"), py::arg("to") = 0)
      .def(
          "add_batch",
          [](Assembler& a, Batch& batch, std::uintptr_t to) { a.add_batch(batch.release(), to); },
          py::arg("batch"), py::arg("to") = 0)
      .def("next", &Assembler::next)
      .def("close", &Assembler::close)
      .def_property_readonly("_peak", &Assembler::peak)
      .def("__reduce__", cannot_be_pickled);
  module.def("_datum", &datum, py::arg("value"));
}

}  // namespace lmdbio::python
