// Private memory for values that were read past the page cache: a transaction's, until it ends.
//
// It is cut from slabs of 2 MiB, huge pages where there are any, which are used again and again: fresh memory
// costs as much as reading into it does.  Kernels may give a read's bytes to a forked child instead of the
// parent, so memory that is being read into is not inherited; before any of it is given out, its slab is read
// to the end so far and made inheritable in one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/cache/prefetcher.h"
#include "lmdbio/io/read_queue.h"

namespace lmdbio::cache {

/// Slabs that nobody uses now, of one environment: some are kept, within the Prefetcher's limit.  Any thread.
class SlabPool {
 public:
  static constexpr std::size_t kSlab = std::size_t{2} << 20;

  explicit SlabPool(Prefetcher& prefetcher) noexcept;
  ~SlabPool() { close(); }
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  /// At least `bytes`, not inherited by forks, its contents unspecified.  Empty: no memory, or none within
  /// the limit.
  Mapping take(std::size_t bytes) noexcept;
  /// Back from take().
  void give(Mapping slab) noexcept;
  /// From now on none are kept.
  void close() noexcept;

 private:
  Prefetcher& prefetcher_;
  const std::uint64_t most_;  ///< bytes kept
  // Below: under the Prefetcher's lock, which a fork holds.
  std::vector<Mapping> free_;
  bool closed_ = false;
  unsigned forks_;  ///< Prefetcher::forks() of the process whose slabs these are
};

/// One thread at a time.
class ValueArena {
 public:
  /// Addresses and offsets in the file are alike modulo this.
  static constexpr std::size_t kUnit = 4096;

  struct Read {
    ReadGroup group;
  };
  struct Slab {
    Mapping memory;
    std::size_t used = 0;      ///< bytes taken
    std::size_t safe = 0;      ///< bytes that are read and inherited by forks
    std::uint64_t use = 0;     ///< counts how often it was emptied
    std::uint64_t newest = 0;  ///< the caller's own, for emptying()
    bool given_out = false;    ///< some of it is the program's until the transaction ends
    bool inherited = false;    ///< from before a fork: what is not safe is not there
    std::vector<std::unique_ptr<Read>> reads;
    std::size_t safe_reads = 0;  ///< of `reads`, those below `safe`
  };
  struct Room {
    Slab* slab = nullptr;  ///< null: none
    std::size_t at = 0;    ///< in its memory
    Read* read = nullptr;  ///< for the caller to add to a queue
  };

  explicit ValueArena(SlabPool& pool) noexcept : pool_(pool) {}
  /// clear() or forget() was called.
  ~ValueArena() = default;
  ValueArena(const ValueArena&) = delete;
  ValueArena& operator=(const ValueArena&) = delete;

  /// `bytes`, a multiple of kUnit, for one read.  None: as SlabPool::take, or out of memory.
  Room take(std::size_t bytes) noexcept;
  /// All that was taken of `slab` has been read: it may be given out from now on.  False: it may not, the
  /// system refused.
  bool make_safe(Slab& slab) noexcept;
  /// Empties the oldest slab that was not given out, in which nothing is being read and whose newest is below
  /// `passed`.  False: there is none.
  bool empty_one(std::uint64_t passed) noexcept;
  /// Each read that was taken and has not been emptied.
  template <class F>
  void for_each_read(F&& f) noexcept {
    for (const std::unique_ptr<Slab>& s : slabs_)
      for (const std::unique_ptr<Read>& r : s->reads) f(*r);
  }
  /// Nothing is being read, or given out any more: all goes back.
  void clear() noexcept;
  /// In a forked child: what was not safe is not there; nothing more is taken from these slabs.
  void forget_unsafe() noexcept;

 private:
  SlabPool& pool_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  Slab* open_ = nullptr;
};

}  // namespace lmdbio::cache
