// The objects behind lmdbio_reader and lmdbio_stream, and the errors of their calls.
#pragma once

#include <lmdbio/lmdbio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "compat/error_text.h"
#include "compat/guard.h"
#include "compat/handle.h"
#include "lmdbio/base/interrupt.h"
#include "lmdbio/records/reader.h"
#include "lmdbio/records/stream.h"

namespace lmdbio::compat {
class ReaderTeam;
}

struct lmdbio_reader {
  std::unique_ptr<lmdbio::records::Reader> core;
  lmdbio::compat::EnvHandle* env = nullptr;
  /// Null, unless the ranks of an MPI job share the reader (compat/entry_team.cc).
  std::shared_ptr<lmdbio::compat::ReaderTeam> team;
};
struct lmdbio_stream {
  std::unique_ptr<lmdbio::records::BatchStream> core;
};

namespace lmdbio::compat {

/// Runs `body` as guarded() does.  If it fails, sets the text of lmdbio_error() to the reason that it stored
/// in its argument, or to the text of its error code.
template <class Body>
int told(Body&& body) noexcept {
  return guarded([&] {
    forget_interrupt();
    std::string why;
    Status st;
    try {
      st = body(why);
    } catch (const std::bad_alloc&) {
      why.clear();
      st = Status::from_errno(ENOMEM);
    }
    if (st.ok() || (st.raw() == MDB_NOTFOUND && why.empty())) return st;  // the end of a stream is no error
    if (why.empty()) why = mdb_strerror(st.raw());
    set_error_text(why);
    return st;
  });
}

/// Copies a struct of the program, whose version may be older or newer than ours.  `size` is its first
/// member. Fields that it lacks become zero.  Returns false if `size` is not valid, or a field that we do not
/// know is not zero.
template <class T>
bool read_sized(const T* given, T& out) noexcept {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  constexpr std::size_t kMost = 4096;
  if (size < sizeof size || size > kMost) return false;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0) return false;
  out = T{};
  std::memcpy(&out, given, std::min(size, sizeof(T)));
  return true;
}

/// Owns what lmdbio_reader_open has opened, as long as the reader needs it.
struct Opened {
  MDB_env* env = nullptr;
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  Opened() = default;
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    if (txn != nullptr) mdb_txn_abort(txn);
    if (env != nullptr) mdb_env_close(env);
  }
};

/// Opens `path` for a reader.  On failure, `why` names the path and the reason.  May throw bad_alloc.
Status open_environment(const char* path, const lmdbio_reader_options& options, Opened& o, std::string& why);
/// This process's part of the work for a reader.
struct ReaderPart {
  double of_file = 1;           ///< the part of the file that this node reads, from 0 to 1
  bool deferred_index = false;  ///< see records::LocationsRequest::deferred
  /// Reads through the page cache may read more than was requested if that is faster, with huge pages or the
  /// kernel's read-ahead.  False if other nodes read the neighbouring data.
  bool reads_around = true;
};
/// Makes a reader of the snapshot of `t`.  The reader keeps `opened`, which may be null.  May throw
/// bad_alloc.
Status make_reader(ReadTxn& t, MDB_dbi dbi, const lmdbio_reader_options& options, const std::string& database,
                   const std::shared_ptr<Opened>& opened, const ReaderPart& part,
                   std::unique_ptr<records::Reader>& out, std::string& why);
/// Makes a reader of several databases, with its environment.  May throw bad_alloc.
Status make_many_reader(std::span<const char* const> paths, const lmdbio_reader_options& options,
                        lmdbio_reader& out, std::string& why);
/// Copies the given options, or sets the defaults if `given` is null.  `opens`: checks the flags.
Status read_options(const lmdbio_reader_options* given, bool opens, lmdbio_reader_options& out,
                    std::string& why);
/// Returns the transaction of `o` in `out`.  ENOTSUP: LMDBIO does not serve it.
Status served(const char* path, const Opened& o, ReadTxn*& out, std::string& why);

/// A reader that several ranks share.
class ReaderTeam {
 public:
  virtual ~ReaderTeam() = default;
  /// Waits until all ranks have the same snapshot.  Returns the same error on all ranks if they cannot.
  virtual Status wait(std::string& why) = 0;
  /// Opens a stream, together with the other ranks if the order is a share.
  virtual Status open_stream(const lmdbio_order& order, std::unique_ptr<records::BatchStream>& out,
                             std::string& why) = 0;
};

}  // namespace lmdbio::compat
