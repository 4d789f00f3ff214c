// The functions of lmdbio/mpi.h for C++20.  Header-only.  Rules are those of mpi.h.
#pragma once

#include <lmdbio/mpi.h>
#include <lmdbio/reader.h>

#include <exception>
#include <memory>
#include <string>

namespace lmdbio {

/// The ranks of a communicator that read together.  Must outlive its readers, and end before MPI_Finalize.
///
/// The destructor is collective: it waits for all ranks.  If an exception leaves its scope, it does not wait,
/// as the other ranks may never come; MPI_Finalize then ends what is left.
class MpiRanks {
 public:
  /// Collective over `comm`.  Throws Error.
  explicit MpiRanks(MPI_Comm comm, const lmdbio_mpi_options& options = with_size({})) {
    lmdbio_mpi* mpi = nullptr;
    const lmdbio_mpi_options sized = with_size(options);
    detail::check(lmdbio_mpi_init(comm, &sized, &mpi));
    mpi_.reset(mpi);
  }
  /// Opens `path` together with the other ranks; does not wait for them.  Throws Error, or whatever
  /// options.progress throws.
  Reader open(const std::string& path, const Reader::Options& options = {}) const {
    return Reader(options, [&](const lmdbio_reader_options& o, lmdbio_reader** r) {
      return lmdbio_mpi_reader_open(mpi_.get(), path.c_str(), &o, r);
    });
  }
  /// Waits until all ranks have opened the same database.  Throws Error.
  static void wait(const Reader& reader) { detail::check(lmdbio_mpi_wait(reader.handle())); }
  /// Nodes that the ranks run on.
  unsigned nodes() const noexcept { return lmdbio_mpi_nodes(mpi_.get()); }
  /// Makes progress if the library has no thread of its own.  Throws Error.
  void poll() const { detail::check(lmdbio_mpi_poll(mpi_.get())); }

 private:
  static lmdbio_mpi_options with_size(lmdbio_mpi_options o) noexcept {
    o.size = sizeof o;
    return o;
  }
  struct Finalize {
    Finalize() noexcept : exceptions(std::uncaught_exceptions()) {}
    int exceptions;  ///< when the object was made: in a destructor, perhaps
    void operator()(lmdbio_mpi* mpi) const noexcept {
      if (std::uncaught_exceptions() <= exceptions) (void)lmdbio_mpi_finalize(mpi);
    }
  };
  std::unique_ptr<lmdbio_mpi, Finalize> mpi_;
};

}  // namespace lmdbio
