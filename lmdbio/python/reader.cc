#include "lmdbio/python/reader.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/python/assembler.h"
#include "lmdbio/python/batch.h"
#include "lmdbio/python/errors.h"
#include "lmdbio/python/handle.h"
#include "lmdbio/python/keys.h"
#include "lmdbio/python/made.h"
#include "lmdbio/python/reader_doc.h"
#include "lmdbio/python/stream.h"
#include "lmdbio/python/waiting.h"

namespace py = pybind11;

namespace lmdbio::python {

namespace {

class Reader {
 public:
  using PythonClass = void;  ///< see made.h
  /// Opens a database, or several if there are several paths.
  Reader(const std::vector<std::string>& paths, bool many, const std::optional<std::string>& database,
         std::optional<std::uint64_t> memory, bool lock, bool index_file, const Keys& exclude,
         const Keys& prefixes)
      : path_(paths[0] + (paths.size() > 1 ? " and " + std::to_string(paths.size() - 1) + " others" : "")),
        paths_(many ? paths : std::vector<std::string>()),
        database_(database) {
    const std::string& path = paths[0];
    lmdbio_reader_options options{};
    options.size = sizeof options;
    options.database = many && database ? database->c_str() : nullptr;
    options.memory = static_cast<std::size_t>(memory.value_or(0));
    options.no_index_file = !index_file;
    options.exclude = exclude.values().data();
    options.exclude_count = exclude.values().size();
    options.exclude_prefixes = prefixes.values().data();
    options.exclude_prefix_count = prefixes.values().size();
    if (many) {
      std::vector<const char*> names;
      for (const std::string& p : paths) names.push_back(p.c_str());
      lmdbio_reader* reader = nullptr;
      int rc = 0;
      {
        const Waiting waits;
        rc = lmdbio_reader_open_many(names.data(), names.size(), &options, &reader);
      }
      if (rc != 0) raise_last(rc);
      handle_ = std::make_shared<Handle>(reader, nullptr, py::object());
      handle_->path = path_;
      keep(exclude, prefixes);
      return;
    }
    std::string why;
    std::unique_ptr<Snapshot> snapshot;
    MDB_dbi dbi = 0;
    lmdbio_reader* reader = nullptr;
    int rc = 0;
    bool told = false;
    {
      const Waiting waits;
      std::shared_ptr<Environment> env;
      rc = Environment::open(path, lock, env, why);
      if (rc == 0) rc = env->database(database ? database->c_str() : nullptr, dbi, why);
      if (rc == 0) rc = Snapshot::begin(env, snapshot, why);
      if (rc == 0) {
        rc = lmdbio_reader_attach(snapshot->handle(), dbi, &options, &reader);
        told = rc != 0;
      }
      if (rc != 0) {
        snapshot.reset();
        env.reset();
      }
    }
    if (told && rc == ENOTSUP)
      raise(rc, path + ": " + lmdbio_error() +
                    " (LMDBIO_DISABLE is set, or LMDBIO knows no LMDB of this release)");
    if (told) raise_last(rc);
    if (rc != 0) raise(rc, why);
    handle_ = std::make_shared<Handle>(reader, std::move(snapshot), py::object());
    handle_->dbi = dbi;
    handle_->path = path;
    keep(exclude, prefixes);
  }

  /// Takes ownership of a reader that another module has opened.
  Reader(const std::string& path, const std::optional<std::string>& database, std::uintptr_t reader,
         py::object keep)
      : path_(path),
        database_(database),
        handle_(
            std::make_shared<Handle>(reinterpret_cast<lmdbio_reader*>(reader), nullptr, std::move(keep))) {
    handle_->path = path;
  }

  py::object path() const {
    const py::object decode = py::module_::import("os").attr("fsdecode");
    if (paths_.empty()) return decode(py::bytes(path_));
    py::list all;
    for (const std::string& p : paths_) all.append(decode(py::bytes(p)));
    return all;
  }
  const std::optional<std::string>& database() const noexcept { return database_; }
  bool closed() const noexcept { return handle_ == nullptr; }
  void close() noexcept { handle_.reset(); }

  std::uint64_t size() const {
    const std::shared_ptr<Handle> h = open();
    std::uint64_t count = 0;
    int rc = 0;
    {
      const Waiting waits;
      rc = lmdbio_reader_count(h->reader(), &count);
    }
    if (rc != 0 || PyErr_Occurred() != nullptr) raise_last(rc);
    return count;
  }

  py::object read(const Ordinals& ordinals, BytesAs as) const {
    const std::shared_ptr<Handle> h = open();
    const std::span<const std::uint64_t> wanted(ordinals.data(), static_cast<std::size_t>(ordinals.size()));
    const std::uint64_t count = size();
    if (const auto most = std::max_element(wanted.begin(), wanted.end());
        most != wanted.end() && *most >= count)
      raise_as(PyExc_IndexError, path_ + ": no record " + std::to_string(*most) +
                                     "; number of records: " + std::to_string(count));
    return batch_of(as, [&](const lmdbio_batch** b) {
      return lmdbio_reader_read(h->reader(), wanted.data(), wanted.size(), b);
    });
  }

  py::object read_keys(const py::iterable& keys, BytesAs as) const {
    const std::shared_ptr<Handle> h = open();
    const Keys wanted(keys);
    return batch_of(as, [&](const lmdbio_batch** b) {
      return lmdbio_reader_read_keys(h->reader(), wanted.values().data(), wanted.values().size(), b);
    });
  }

  /// Returns the record with this key, or None if it does not exist.
  py::object find(const py::bytes& key, BytesAs as) const {
    return read_keys(py::make_tuple(key), as).attr("__getitem__")(0);
  }

  /// Returns whether the key exists.  Does not read its value.
  bool contains(const py::bytes& key) const {
    const std::shared_ptr<Handle> h = open();
    const MDB_val wanted{static_cast<std::size_t>(PyBytes_GET_SIZE(key.ptr())), PyBytes_AS_STRING(key.ptr())};
    std::uint64_t ordinal = UINT64_MAX;
    int rc = 0;
    {
      const Waiting waits;
      rc = lmdbio_reader_find(h->reader(), &wanted, 1, &ordinal);
    }
    if (rc != 0 || PyErr_Occurred() != nullptr) raise_last(rc);
    return ordinal != UINT64_MAX;
  }

  py::object item(const py::object& at) const {
    if (py::isinstance<py::bytes>(at)) {
      py::object r = find(at, BytesAs::view);
      if (!r.is_none()) return r;
      raise_as(PyExc_KeyError, path_ + ": no key " + std::string(py::repr(at)));
    }
    if (py::isinstance<py::str>(at))
      raise_as(PyExc_TypeError, path_ + ": keys are bytes, not str; " + std::string(py::repr(at)) +
                                    ".encode() makes bytes of a text");
    const auto count = static_cast<Py_ssize_t>(size());
    if (PySlice_Check(at.ptr())) {
      Py_ssize_t start = 0, stop = 0, step = 0;
      if (PySlice_Unpack(at.ptr(), &start, &stop, &step) != 0) throw py::error_already_set();
      const Py_ssize_t n = PySlice_AdjustIndices(count, &start, &stop, step);
      Ordinals wanted(n);
      for (Py_ssize_t i = 0; i < n; ++i)
        wanted.mutable_data()[i] = static_cast<std::uint64_t>(start + i * step);
      return read(wanted, BytesAs::view);
    }
    Py_ssize_t i = PyNumber_AsSsize_t(at.ptr(), PyExc_IndexError);
    const bool too_large = i == -1 && PyErr_ExceptionMatches(PyExc_IndexError) != 0;
    if (too_large) PyErr_Clear();
    if (i == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (i < 0) i += count;
    if (too_large || i < 0 || i >= count)
      raise_as(PyExc_IndexError, path_ + ": no record " + std::string(py::str(at)) +
                                     "; number of records: " + std::to_string(count));
    Ordinals wanted(1);
    *wanted.mutable_data() = static_cast<std::uint64_t>(i);
    return read(wanted, BytesAs::view).attr("__getitem__")(0);
  }

  py::object get(const py::bytes& key, const py::object& otherwise, BytesAs as) const {
    const py::object r = find(key, as);
    return r.is_none() ? otherwise : r.attr("value");
  }

  std::unique_ptr<Stream> stream(const py::object& order, BytesAs as) const {
    return std::make_unique<Stream>(open(), order, as);
  }

  /// Returns lmdbio_reader_state().
  std::uint64_t state() const {
    const std::shared_ptr<Handle> h = open();
    std::uint64_t now = 0;
    if (const int rc = lmdbio_reader_state(h->reader(), &now); rc != 0) raise_last(rc);
    return now;
  }

  /// Returns the open reader.
  std::shared_ptr<Handle> handle() const { return open(); }

  /// Returns an iterator over the keys.  Several databases are opened again, one after the other.
  py::object keys() const {
    const std::shared_ptr<Handle> h = open();
    if (paths_.empty()) return py::cast(std::make_unique<KeyIterator>(h));
    const auto keys_of = [h, database = database_](const py::object& path) {
      const auto bytes = [](const std::vector<std::string>& keys) {
        py::list all;
        for (const std::string& k : keys) all.append(py::bytes(k));
        return all;
      };
      return py::type::of<Reader>()(path, database, py::arg("lock") = false,
                                    py::arg("exclude") = bytes(h->exclude),
                                    py::arg("exclude_prefixes") = bytes(h->exclude_prefixes))
          .attr("keys")();
    };
    const py::object each = py::module_::import("builtins").attr("map")(py::cpp_function(keys_of), path());
    return py::module_::import("itertools").attr("chain").attr("from_iterable")(each);
  }

  py::object text() const {
    const std::string about = closed() ? ", closed" : database_ ? ", database " + *database_ : "";
    return py::module_::import("os").attr("fsdecode")(py::bytes("<lmdbio.Reader of " + path_ + about + ">"));
  }

 private:
  void keep(const Keys& exclude, const Keys& prefixes) {
    for (const MDB_val& k : exclude.values())
      handle_->exclude.emplace_back(static_cast<const char*>(k.mv_data), k.mv_size);
    for (const MDB_val& k : prefixes.values())
      handle_->exclude_prefixes.emplace_back(static_cast<const char*>(k.mv_data), k.mv_size);
  }

  std::shared_ptr<Handle> open() const {
    if (closed()) raise_as(PyExc_ValueError, path_ + ": the reader is closed");
    handle_->check_process();
    return handle_;
  }

  template <class Call>
  static py::object batch_of(BytesAs as, Call&& call) {
    const lmdbio_batch* b = nullptr;
    int rc = 0;
    {
      const Waiting waits;
      rc = call(&b);
    }
    OwnedBatch owned(rc == 0 ? b : nullptr);
    if (rc != 0 || PyErr_Occurred() != nullptr) raise_last(rc);  // a signal handler may raise at the end
    return py::cast(std::make_unique<Batch>(std::move(owned), as));
  }

  const std::string path_;                ///< used in messages
  const std::vector<std::string> paths_;  ///< empty: one database
  const std::optional<std::string> database_;
  std::shared_ptr<Handle> handle_;  ///< null if the reader is closed
};

/// Makes a Reader.  `handle`: None, or the address of a reader that another module has opened.  The Reader
/// takes ownership of it.
std::unique_ptr<Reader> make_reader(const py::object& path, const std::optional<std::string>& database,
                                    const py::object& memory, bool lock, bool index_file,
                                    const py::iterable& exclude, const py::iterable& exclude_prefixes,
                                    const py::object& handle, const py::object& keep) {
  const py::object encode = py::module_::import("os").attr("fsencode");
  const bool many = !py::isinstance<py::str>(path) && !py::isinstance<py::bytes>(path) &&
                    !py::hasattr(path, "__fspath__") && py::isinstance<py::iterable>(path);
  std::vector<std::string> names;
  if (many)
    for (const py::handle one : path) names.push_back(encode(one).cast<std::string>());
  else
    names.push_back(encode(path).cast<std::string>());
  if (names.empty()) raise_as(PyExc_ValueError, "path: an empty sequence of paths");
  const auto has_null = [](const std::string& s) { return s.find('\0') != std::string::npos; };
  if (std::any_of(names.begin(), names.end(), has_null) || (database && has_null(*database)))
    raise_as(PyExc_ValueError, "path and database must not contain null bytes");
  if (!handle.is_none())
    return std::make_unique<Reader>(names[0], database, handle.cast<std::uintptr_t>(), keep);
  for (const py::iterable& keys : {exclude, exclude_prefixes})
    if (py::isinstance<py::bytes>(keys))
      raise_as(PyExc_TypeError, "exclude and exclude_prefixes must be sequences of keys, not a single key");
  std::optional<std::uint64_t> limit;
  if (!memory.is_none()) {
    const py::object whole = py::module_::import("operator").attr("index")(memory);
    if (whole < py::int_(1 << 20) || whole > py::int_(std::uint64_t{1} << 62))
      raise_as(PyExc_ValueError, "memory must be at least 1 MiB and at most 2**62 bytes, or None");
    limit = whole.cast<std::uint64_t>();
  }
  return std::make_unique<Reader>(names, many, database, limit, lock, index_file, Keys(exclude),
                                  Keys(exclude_prefixes));
}

}  // namespace

void add_reader(py::module_& module) {
  add_stream(module);
  add_keys(module);
  py::class_<Reader>(module, "Reader", kReaderDoc)
      .def(py::init(&make_reader), py::arg("path"), py::arg("database") = py::none(),
           py::arg("memory") = py::none(), py::kw_only(), py::arg("lock") = true,
           py::arg("index_file") = true, py::arg("exclude") = py::tuple(),
           py::arg("exclude_prefixes") = py::tuple(), py::arg("_handle") = py::none(),
           py::arg("_keep") = py::none())
      .def_property_readonly("path", &Reader::path)
      .def_property_readonly("database", &Reader::database)
      // `closed`, close() and repr() also work for an object whose __init__ has failed.  Programs use them to
      // clean up, and debuggers use them to show the object.
      .def_property_readonly(
          "closed",
          [](const py::object& self) { return !is_made(self) || self.cast<const Reader&>().closed(); })
      .def_property_readonly("_state", &Reader::state)
      .def("__len__", &Reader::size)
      .def("__getitem__", &Reader::item, py::arg("i"),
           "Record number i in key order, or the record with the key i, if that is bytes; a Batch for a "
           "slice.\n"
           "Raises IndexError, KeyError.")
      .def("__contains__", &Reader::contains, py::arg("key"))
      .def("__iter__",
           [](const py::object& self) {
             return py::module_::import("itertools")
                 .attr("chain")
                 .attr("from_iterable")(self.attr("stream")(
                     py::module_::import("lmdbio").attr("Order").attr("sequential")(py::arg("batch") = 64)));
           })
      .def(
          "get",
          [](const Reader& r, const py::bytes& key, const py::object& otherwise, const py::object& as) {
            return r.get(key, otherwise, bytes_as_of(as));
          },
          py::arg("key"), py::arg("default") = py::none(), py::kw_only(), py::arg("bytes_as") = "view",
          "The value of a key, the first one if it has several; or `default`.")
      .def(
          "read",
          [](const Reader& r, const py::object& ordinals, const py::object& as) {
            const BytesAs form = bytes_as_of(as);
            return r.read(ordinals_of(ordinals), form);
          },
          py::arg("ordinals"), py::kw_only(), py::arg("bytes_as") = "view",
          "The records with these ordinals, in this order, read together.  Raises IndexError.")
      .def(
          "read_keys",
          [](const Reader& r, const py::iterable& keys, const py::object& as) {
            return r.read_keys(keys, bytes_as_of(as));
          },
          py::arg("keys"), py::kw_only(), py::arg("bytes_as") = "view",
          "The records with these keys, in this order, read together; None for each key that does not exist.")
      .def("keys", &Reader::keys,
           "Iterates over all keys, as bytes, in their order; reads no values that have pages of their own.\n"
           "With MDB_DUPSORT a key comes once for each of its values, so that key number i is that of record "
           "i.")
      .def(
          "stream",
          [](const Reader& r, const py::object& order, const py::object& as) {
            return r.stream(order, bytes_as_of(as));
          },
          py::arg("order"), py::kw_only(), py::arg("bytes_as") = "view",
          "Opens a stream of the records in an Order, which are read ahead.  bytes_as: see Reader.")
      .def(
          "close",
          [](const py::object& self) {
            if (is_made(self)) self.cast<Reader&>().close();
          },
          "Closes the reader, once its streams are closed too.  Batches stay valid.")
      // Threads of an assembler use the reader, so that it has to be open.
      .def(
          "_assembler",
          [](const Reader& r, const py::tuple& layout, unsigned threads, std::size_t buffers) {
            return make_assembler(r.handle(), layout, threads, buffers);
          },
          py::arg("layout"), py::arg("threads"), py::arg("buffers"))
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Reader& r, const py::args&) { r.close(); })
      .def("__reduce__", cannot_be_pickled)
      .def("__repr__", [](const py::object& self) -> py::object {
        if (!is_made(self)) return py::str("<lmdbio.Reader that was not opened>");
        return self.cast<const Reader&>().text();
      });
}

}  // namespace lmdbio::python
