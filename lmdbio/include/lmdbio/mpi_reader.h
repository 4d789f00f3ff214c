/// @file
/// The functions of lmdbio/mpi.h for C++20.  Header-only.  Lifetimes and thread rules are those of mpi.h.
#pragma once

#include <lmdbio/follower.h>
#include <lmdbio/mpi.h>
#include <lmdbio/reader.h>

#include <exception>
#include <memory>
#include <string>

namespace lmdbio {

/// The ranks of a communicator that read together.  Must outlive its readers, and end before MPI_Finalize.
///
/// The destructor is collective: it waits for all ranks.  If an exception destroys the object, the destructor
/// does not wait, because the other ranks may never call their destructors.  MPI_Finalize then ends the
/// state.
class MpiRanks {
 public:
  /// Creates the state for all ranks of `comm`; see lmdbio_mpi_init.  Collective.  Throws Error.
  /// @param comm     an intracommunicator, which is duplicated
  /// @param options  options, whose `size` need not be set
  explicit MpiRanks(MPI_Comm comm, const lmdbio_mpi_options& options = with_size({})) {
    lmdbio_mpi* mpi = nullptr;
    const lmdbio_mpi_options sized = with_size(options);
    detail::check(lmdbio_mpi_init(comm, &sized, &mpi));
    mpi_.reset(mpi);
  }
  /// Opens a database together with the other ranks, and does not wait for them; see lmdbio_mpi_reader_open.
  /// Throws Error, and exceptions of options.progress.
  /// @param path     a directory that contains data.mdb, or a data file; the same text on all ranks
  /// @param options  options
  /// @return the reader, which must not outlive this object.
  Reader open(const std::string& path, const Reader::Options& options = {}) const {
    return Reader(options, [&](const lmdbio_reader_options& o, lmdbio_reader** r) {
      return lmdbio_mpi_reader_open(mpi_.get(), path.c_str(), &o, r);
    });
  }
  /// Follows a database together with the other ranks, and waits for them; see lmdbio_mpi_follow_open. Throws
  /// Error, and exceptions of options.label.  If an exception destroys the object, its destructor cancels it
  /// and does not wait.
  /// @param path     a directory that contains data.mdb, or a data file; the same text on all ranks
  /// @param options  options, the same on all ranks
  /// @return the object, which must not outlive this one.  It returns this rank's share of each batch.
  Follow follow(const std::string& path, const Follow::Options& options) const {
    return Follow(options, [&](const lmdbio_follow_options& o, lmdbio_follow** f) {
      return lmdbio_mpi_follow_open(mpi_.get(), path.c_str(), &o, f);
    });
  }
  /// Waits until all ranks have opened the database of `reader`, and its index is complete.  Throws Error.
  /// @param reader  a reader that open() returned
  static void wait(const Reader& reader) { detail::check(lmdbio_mpi_wait(reader.handle())); }
  /// @return the number of nodes that the ranks run on.
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
    int exceptions;  ///< number of uncaught exceptions when the object was made (a destructor may make it)
    void operator()(lmdbio_mpi* mpi) const noexcept {
      if (std::uncaught_exceptions() <= exceptions) (void)lmdbio_mpi_finalize(mpi);
    }
  };
  std::unique_ptr<lmdbio_mpi, Finalize> mpi_;
};

}  // namespace lmdbio
