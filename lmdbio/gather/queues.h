// The queues through which all bytes of database files are read.  Only this code chooses the descriptor, the
// engine and the queue depth for each kind of read.
//
// A caller that needs bytes gets the queue for its kind of read, adds extents to a ReadGroup, and waits for
// the group or drops it (io/read_queue.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lmdbio/base/result.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::gather {

/// Kinds of reads: what is read, and where the bytes go.  queues.cc has a table of them.
enum class ReadKind : unsigned char {
  chunk_direct,    ///< chunks of walks and loads, past the page cache
  chunk_filled,    ///< chunks of walks and loads, into the page cache without a copy (PageFiller)
  chunk_cached,    ///< chunks through the page cache, if neither of these is available
  piece_cached,    ///< pieces of chunks, into the page cache
  needed,          ///< pages that the calling thread waits for, into the page cache
  needed_copied,   ///< as `needed`, and copied to memory; one request for each extent
  told_direct,     ///< values of the keys of lmdbio_prefetch(), past the page cache
  told_cached,     ///< the same values, and the leaf pages of these keys, into the page cache
  record_direct,   ///< records of readers, past the page cache
  record_cached,   ///< records of readers, through the page cache
  record_filled,   ///< as record_cached, by PageFiller; falls back to record_cached
  index_direct,    ///< leaf pages for a record index, past the page cache
  index_cached,    ///< leaf pages for a record index, through the page cache
  index_resident,  ///< as index_cached, for pages that are in the page cache
  check_cached,    ///< pages that a check needs soon, into the page cache
};

/// Makes an engine, as select_engine() does.
using MakeEngine = std::function<Result<std::unique_ptr<IoEngine>>(const File& file, unsigned depth,
                                                                   EngineKind wanted, const char** name)>;
/// The function that makes engines if the caller gives no other function.  It is select_engine() unless a
/// test replaces it.  A test may do so only while no other thread makes queues.
using EngineFactory = Result<std::unique_ptr<IoEngine>> (*)(const File& file, unsigned depth,
                                                            EngineKind wanted, const char** name) noexcept;
EngineFactory& engine_factory() noexcept;

/// Makes a queue for reads of this kind.  `file` must be open in the mode that the kind needs, and must
/// outlive the queue.  Reads nothing beyond `file_bytes`.  `name` (may be null) receives the engine's name, a
/// constant.  Errors: ENOMEM, or as select_engine().
Result<std::unique_ptr<ReadQueue>> make_queue(ReadKind kind, const File& file, std::uint64_t file_bytes,
                                              const MakeEngine& make = {},
                                              const char** name = nullptr) noexcept;
/// As above, but chooses a descriptor of `file`.  Further error: ENOTSUP if the file cannot be read directly.
Result<std::unique_ptr<ReadQueue>> make_queue(ReadKind kind, const OpenFile& file, std::uint64_t file_bytes,
                                              const MakeEngine& make = {},
                                              const char** name = nullptr) noexcept;

/// The queues of one user of a file: one for each kind of read that it makes.  One thread at a time.
class Queues {
 public:
  /// `make` makes the engines.  If it is empty, engine_factory() makes them.
  explicit Queues(std::shared_ptr<const OpenFile> file, MakeEngine make = {}) noexcept
      : file_(std::move(file)), make_(std::move(make)) {}
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;

  /// Sets the length of the file, beyond which nothing is read.
  void set_file_bytes(std::uint64_t bytes) noexcept;
  /// Returns the queue for reads of this kind, which stays the same until clear().  The first call makes the
  /// queue, and sets `made` (may be null) to the engine's name.  Errors: as make_queue().
  Result<ReadQueue*> get(ReadKind kind, const char** made = nullptr) noexcept;

  /// Submits pending requests and takes finished ones.  Never waits.  Returns true if a request has ended.
  bool pump() noexcept;
  /// is_waiting() returns true if a request waits to be submitted, is_busy() also if one is in flight.
  bool is_waiting() const noexcept;
  bool is_busy() const noexcept;
  /// Removes pending requests and waits for the requests in flight.
  void drop_all() noexcept;
  /// Returns what was read since the last call.
  ReadCounts take_counts() noexcept;
  /// Destroys the queues, after drop_all().
  void clear() noexcept;
  /// Gives up the parent's reads and destroys the queues.  A forked child calls this first.
  void forget() noexcept;
  /// Calls f(ReadQueue&) for each queue.
  template <class F>
  void for_each(F&& f) const {
    for (const One& one : queues_) f(*one.queue);
  }

 private:
  struct One {
    ReadKind kind;
    std::unique_ptr<ReadQueue> queue;
  };
  const std::shared_ptr<const OpenFile> file_;
  const MakeEngine make_;
  std::uint64_t file_bytes_ = 0;
  std::vector<One> queues_;
  ReadCounts cleared_;  ///< of queues that clear() destroyed
};

}  // namespace lmdbio::gather
