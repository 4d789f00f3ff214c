// The extension module lmdbio._mpi: readers that the ranks of an MPI job share.
#include <lmdbio/mpi.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "lmdbio/python/made.h"
#include "lmdbio/python/waiting.h"

namespace py = pybind11;

namespace {

/// The state for the ranks of a communicator (lmdbio_mpi).
class Ranks {
 public:
  using PythonClass = void;  ///< see made.h
  /// `comm`: the address of an MPI_Comm, as mpi4py's _addressof returns it.  `timeout`: in seconds.
  Ranks(std::uintptr_t comm, unsigned readers_per_node, unsigned timeout) {
    lmdbio_mpi_options options{};
    options.size = sizeof options;
    options.readers_per_node = readers_per_node;
    options.timeout = timeout;
    const lmdbio::python::WithoutGil waits;
    rc_ = lmdbio_mpi_init(*reinterpret_cast<const MPI_Comm*>(comm), &options, &mpi_);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  // MPI_Finalize ends the state.  The destructor cannot, because the garbage collector runs at different
  // times on the ranks.
  ~Ranks() = default;

  /// Returns the error code and text of lmdbio_mpi_init.
  std::pair<int, std::string> state() const { return {rc_, rc_ != 0 ? lmdbio_error() : ""}; }

  /// Returns the addresses of lmdbio_mpi_follow_open and of its first argument.
  std::pair<std::uintptr_t, std::uintptr_t> follow_open() const {
    return {reinterpret_cast<std::uintptr_t>(&lmdbio_mpi_follow_open),
            reinterpret_cast<std::uintptr_t>(mpi_)};
  }

  /// Opens a reader, and waits for the other ranks.  Returns an error code, its text, and the address of the
  /// reader.
  std::tuple<int, std::string, std::uintptr_t> open(const std::string& path,
                                                    const std::optional<std::string>& database,
                                                    std::uint64_t memory) const {
    lmdbio_reader_options options{};
    options.size = sizeof options;
    options.memory = static_cast<std::size_t>(memory);
    options.database = database ? database->c_str() : nullptr;
    lmdbio_reader* reader = nullptr;
    int rc = 0;
    {
      const lmdbio::python::WithoutGil waits;
      rc = lmdbio_mpi_reader_open(mpi_, path.c_str(), &options, &reader);
      if (rc == 0) {
        rc = lmdbio_mpi_wait(reader);
        if (rc != 0) lmdbio_reader_close(reader);
      }
    }
    return {rc, rc != 0 ? lmdbio_error() : "", rc != 0 ? 0 : reinterpret_cast<std::uintptr_t>(reader)};
  }

 private:
  lmdbio_mpi* mpi_ = nullptr;
  int rc_ = 0;
};

}  // namespace

PYBIND11_MODULE(_mpi, module) {
  py::class_<Ranks>(module, "Ranks")
      .def(py::init<std::uintptr_t, unsigned, unsigned>())
      .def("state", &Ranks::state)
      .def("open", &Ranks::open)
      .def("follow_open", &Ranks::follow_open)
      .def("__reduce__", lmdbio::python::cannot_be_pickled);
}
