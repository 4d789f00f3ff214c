// The node table: what the processes of one user that read one file tell each other.
//
// It is advice.  If it is lost, stale, full or overwritten, chunks are brought twice, or waited for in vain
// for a while; no answer depends on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lmdbio/node/layout.h"
#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// This process's place in the table of one file.  Any thread.
class Table {
 public:
  /// Removes tables that this user's killed processes have left.  The first call alone does it: two or three
  /// microseconds where there is no shared memory.
  static void remove_dead() noexcept;
  /// Joins the table of that file, made if there is none, with remove_dead() again.  `window_bytes`: what the
  /// file may grow to.  Null: it cannot be shared here, for the reason in `why`.  Blocks no longer than
  /// system calls on shared memory do.  With the registry locked.
  static std::shared_ptr<Table> join(const TableIdentity& file, std::uint64_t window_bytes,
                                     Status& why) noexcept;
  /// Leaves it; the last process removes it.  If this process keeps chunk files, by its last note_memory(),
  /// and walks of others go on, they find these files for a second, and remove them then.
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  /// A forked child has it from its parent: no call of it is allowed but this one and the destructor.
  bool is_inherited() const noexcept { return inherited_.load(std::memory_order_relaxed); }

  /// True: the chunk is this process's to bring, and `out` is for release(); likewise if it has no word.
  /// False: another one is bringing it.
  bool claim(std::uint32_t chunk, std::uint32_t tag, ClaimValue& out) noexcept;
  /// `took_ns`: since the claim.
  void release(std::uint32_t chunk, ClaimValue mine, bool good, std::int64_t took_ns) noexcept;
  /// Instead of release(): nothing was read, and anybody may claim it.
  void unclaim(std::uint32_t chunk, ClaimValue mine) noexcept;
  /// Instead of release(): the chunk was there already.
  void found(std::uint32_t chunk, ClaimValue mine) noexcept;
  /// The same for a chunk that is read to a chunk file.  Filled: claimer_life() tells who keeps it.  Of a
  /// chunk without a word: Look::mine, and has_word() tells.
  Look claim_file(std::uint32_t chunk, std::uint32_t tag, ClaimValue& out) noexcept;
  /// Whoever filled it does not keep it any more.  True: it is this process's to bring now.
  bool claim_gone(std::uint32_t chunk, ClaimValue& filled) noexcept;
  bool has_word(std::uint32_t chunk) const noexcept { return chunk < chunks_; }
  /// Row::life of who made that claim; 0: that process has left.
  std::uint64_t claimer_life(ClaimValue value) const noexcept;
  /// Of this process.
  std::uint64_t life() const noexcept { return life_; }
  /// What this process may use, bytes; how many chunk files it keeps, or reads to.
  void note_memory(std::uint64_t limit, std::uint32_t files) noexcept;

  /// The other processes that have the file open.  What they tell of themselves may be anything.
  struct Others {
    unsigned processes = 0;
    std::uint64_t files = 0;                       ///< chunk files that they keep, or have left behind
    std::uint64_t least_limit = ~std::uint64_t{};  ///< of their memory, bytes
    /// Chunks that walks of theirs are about to come to; none: `last` is less than `first`.
    std::uint32_t first = 1, last = 0;
  };
  /// One that was killed counts for up to a tenth of a second; its chunk files are removed then, and those
  /// that were left behind in time; `short_of_memory`: at once.
  Others others(bool short_of_memory) noexcept;

  /// Waits for who has claimed the chunk.  At most four times as long as that process and this one
  /// need for a chunk, and 50 ms, after it has come to anything, and four times that in all; a claim that
  /// takes longer is void. Signals are allowed meanwhile, and a handler may fork: then is_inherited().
  Ended wait(std::uint32_t chunk, std::uint32_t tag) noexcept;

  /// A walk of this process is in that chunk, and its program uses `share`/1000 of what it comes to.
  void note_walk(std::uint32_t chunk, std::uint32_t share, bool backward = false) noexcept;
  /// What the walks of other processes near that chunk use, in 1/1000.  May be more than 1000: some bytes are
  /// used by several.
  std::uint32_t use_of_others(std::uint32_t chunk) const noexcept;

  /// Also around a fork: no table is being joined.
  static void lock_registry() noexcept;
  static void unlock_registry() noexcept;
  /// With the registry locked, in a forked child: all tables are the parent's.
  static void forget_all() noexcept;
  /// At the end of the process, which closes nothing: nobody is left to remove its tables.
  static void leave_all() noexcept;
  /// There are chunk files that nobody comes to any more, of processes that have left tables.  Any thread.
  static bool has_nobodys_files() noexcept;
  /// Removes them.  For threads whose descriptors no program closes.
  static void remove_nobodys_files() noexcept;

 private:
  struct Registry;
  Table(Segment segment, const TableIdentity& file, std::uint64_t life) noexcept;
  bool take_row() noexcept;
  bool leave() noexcept;
  Header& header() const noexcept { return *reinterpret_cast<Header*>(segment_.data()); }
  Row& row(unsigned at) const noexcept { return reinterpret_cast<Row*>(segment_.data() + kRowsAt)[at]; }
  Row& row() const noexcept { return row(row_); }
  std::uint64_t* word(std::uint32_t chunk) const noexcept {
    return reinterpret_cast<std::uint64_t*>(segment_.data() + kClaimsAt) + chunk;
  }
  bool is_going(Claimer claimer) const noexcept;
  void look_for_dead(bool short_of_memory) noexcept;
  static void count(std::atomic<std::uint64_t>& n) noexcept { n.fetch_add(1, std::memory_order_relaxed); }

  Segment segment_;
  const TableIdentity file_;
  const std::uint64_t chunks_;  ///< words
  const std::uint64_t life_;
  unsigned row_ = 0;
  bool has_row_ = false, joined_ = false;
  Claimer me_{};
  std::atomic<bool> inherited_{false};
  std::atomic<std::int64_t> looked_ns_{0};  ///< for the dead
  /// Of a row: its progress when it was waited for in vain, 0: it never was; until when nobody waits for it
  /// again.
  struct Stalled {
    std::atomic<std::uint64_t> progress{0};
    std::atomic<std::int64_t> until_ns{0};
  };
  Stalled stalled_[kRows];
};

}  // namespace lmdbio::node
