// What a program's lmdbio_reader and lmdbio_stream are, and how their calls fail.
#pragma once

#include <lmdbio/lmdbio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
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
  /// Of a reader that the ranks of an MPI job share (compat/entry_team.cc); null: this process's alone.
  std::shared_ptr<lmdbio::compat::ReaderTeam> team;
};
struct lmdbio_stream {
  std::unique_ptr<lmdbio::records::BatchStream> core;
};

namespace lmdbio::compat {

/// As guarded(); a failure's text becomes that of lmdbio_error().
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
    if (st.ok() || (st.raw() == MDB_NOTFOUND && why.empty())) return st;  // the end of a stream
    if (why.empty()) why = mdb_strerror(st.raw());
    set_error_text(why);
    return st;
  });
}

/// A struct of a program's that may be older or newer than ours: what it lacks is zero; what we do not know
/// has to be.  `size` is its first member.
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

/// What lmdbio_reader_open opened, as long as the reader needs it.
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

/// Opens `path` for a reader.  `why`: names the path.  May throw bad_alloc.
Status open_environment(const char* path, const lmdbio_reader_options& options, Opened& o, std::string& why);
/// What a reader is to this process.
struct ReaderPart {
  double of_file = 1;           ///< the part of the file that this node reads
  bool deferred_index = false;  ///< as of records::PlacesRequest
  /// Through the page cache, more than was asked for may be read where that is faster: huge pages, and the
  /// kernel's read-ahead.  Not where other nodes read what is beside it.
  bool reads_around = true;
};
/// A reader of the snapshot of `t`; `opened` may be null.  May throw bad_alloc.
Status make_reader(ReadTxn& t, MDB_dbi dbi, const lmdbio_reader_options& options, const std::string& database,
                   const std::shared_ptr<Opened>& opened, const ReaderPart& part,
                   std::unique_ptr<records::Reader>& out, std::string& why);
/// Options as given, or the defaults.  `opens`: flags are looked at.
Status read_options(const lmdbio_reader_options* given, bool opens, lmdbio_reader_options& out,
                    std::string& why);
/// The transaction of `o` as LMDBIO serves it.
Status served(const char* path, const Opened& o, ReadTxn*& out, std::string& why);

/// A reader of several ranks.
class ReaderTeam {
 public:
  virtual ~ReaderTeam() = default;
  /// Waits until all ranks have one snapshot.  Otherwise their common error.
  virtual Status wait(std::string& why) = 0;
  virtual Status open_stream(const lmdbio_order& order, std::unique_ptr<records::BatchStream>& out,
                             std::string& why) = 0;
};

}  // namespace lmdbio::compat
