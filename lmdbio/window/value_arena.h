// Private memory of one transaction for values that are read past the page cache.  It is kept until the
// transaction ends.
//
// The memory is cut from slabs of 2 MiB, with huge pages where available.  Slabs are reused, because the
// first use of fresh memory costs as much as the read into it.  If a process forks during a read, some
// kernels give the bytes to the child instead of the parent.  So forks do not inherit memory that is being
// read into.  Before a value is returned to the program, all reads so far into its slab are finished.  The
// memory of these reads is then made inheritable in one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::window {

/// Keeps some slabs of one environment that are not in use, within the Prefetcher's limit.  Any thread.
class SlabPool {
 public:
  static constexpr std::size_t kSlab = std::size_t{2} << 20;

  explicit SlabPool(Prefetcher& prefetcher) noexcept;
  ~SlabPool() { close(); }
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  /// Returns at least `bytes` of memory that forks do not inherit, with unspecified contents.  Returns an
  /// empty mapping if there is no memory, or none within the limit.
  Mapping take(std::size_t bytes) noexcept;
  /// Gives back a slab that take() has returned.
  void give(Mapping slab) noexcept;
  /// Frees the slabs that are kept.  From now on none are kept.
  void close() noexcept;

 private:
  Prefetcher& prefetcher_;
  const std::uint64_t most_;  ///< upper limit of what is kept, in bytes
  // Guarded by the Prefetcher's lock, which is also held during a fork:
  std::vector<Mapping> free_;
  bool closed_ = false;
  unsigned forks_;  ///< Prefetcher::forks() of the process that owns these slabs
};

/// Allocates memory for the values of one transaction.  One thread at a time.
class ValueArena {
 public:
  /// The address of a byte in the arena and its offset in the file are equal modulo kUnit.
  static constexpr std::size_t kUnit = 4096;

  /// A read into the arena.
  struct Read {
    ReadGroup group;
  };
  /// A piece of memory that reads share.
  struct Slab {
    Mapping memory;
    std::size_t used = 0;      ///< bytes allocated
    std::size_t safe = 0;      ///< bytes that have been read and are inherited by forks
    std::uint64_t use = 0;     ///< number of times it was emptied
    std::uint64_t newest = 0;  ///< set by the caller; see empty_one()
    bool given_out = false;    ///< the program may have pointers into it until the transaction ends
    bool inherited = false;    ///< it is from before a fork: only the first `safe` bytes exist
    std::vector<std::unique_ptr<Read>> reads;
    std::size_t safe_reads = 0;  ///< number of `reads` that lie in the first `safe` bytes
  };
  /// A result of take().
  struct Room {
    Slab* slab = nullptr;  ///< null: no memory
    std::size_t at = 0;    ///< offset in the slab's memory
    Read* read = nullptr;  ///< the caller adds it to a queue
  };

  explicit ValueArena(SlabPool& pool) noexcept : pool_(pool) {}
  /// clear() must have been called.
  ~ValueArena() = default;
  ValueArena(const ValueArena&) = delete;
  ValueArena& operator=(const ValueArena&) = delete;

  /// Allocates `bytes`, a multiple of kUnit, for one read.  Returns a null slab if there is no memory, or
  /// none within the limit.
  Room take(std::size_t bytes) noexcept;
  /// Makes all allocated memory of `slab` inheritable by forks, so that its values may be returned to the
  /// program.  All its reads must have ended.  Returns false if the system refuses; the values must not be
  /// returned then.
  bool make_safe(Slab& slab) noexcept;
  /// Empties a slab into which the program has no pointers and no reads are in flight.  Of these, takes the
  /// one with the smallest `newest`, which must be below `passed`.  Returns false if there is none.
  bool empty_one(std::uint64_t passed) noexcept;
  /// Calls f(Read&) for each read that was allocated and not emptied.
  template <class F>
  void for_each_read(F&& f) noexcept {
    for (const std::unique_ptr<Slab>& s : slabs_)
      for (const std::unique_ptr<Read>& r : s->reads) f(*r);
  }
  /// Gives all slabs back.  No read may be in flight, and the program may hold no pointers any more.
  void clear() noexcept;
  /// In a forked child: forgets memory that was not inherited.  Nothing more is allocated from these slabs.
  void forget_unsafe() noexcept;

 private:
  SlabPool& pool_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  Slab* open_ = nullptr;
};

}  // namespace lmdbio::window
