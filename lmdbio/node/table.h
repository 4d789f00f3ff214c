// The node table: processes of one user that read the same file share facts through it.
//
// The table is advice.  If the table is lost, stale, full or overwritten, processes read chunks twice, or
// wait in vain for a while.  No result of an LMDB call depends on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lmdbio/node/layout.h"
#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// Only walks that are at most this many chunks away count.
inline constexpr std::uint32_t kNear = 64;

/// Returns whether walks will reach `chunk` of a file with `chunks` chunks.  The walks are about to reach the
/// chunks first, ..., last; see Table::Others.  A walk that is near the end of the file may start again.  It
/// therefore also reads the beginning ahead.
constexpr bool reaches(std::uint32_t first, std::uint32_t last, std::uint32_t chunk,
                       std::uint64_t chunks) noexcept {
  constexpr std::uint32_t kNearEnd = 8;
  return last >= first && ((chunk >= first && chunk <= last) || chunk + chunks + (kNear - kNearEnd) <= last);
}

/// The membership of this process in the table of one file.  Any thread.
class Table {
 public:
  /// Removes tables and chunk files that killed processes of this user have left.  Only the first call does
  /// this.  It takes two or three microseconds if there is no shared memory.
  static void remove_dead() noexcept;
  /// Joins the table of `file`.  If there is no table, removes dead tables and makes one.  `window_bytes`:
  /// size that the file may grow to.  Returns nullptr if the file cannot be shared here; `why` is then the
  /// reason.  Blocks only for system calls on shared memory.  Call with the registry locked.
  static std::shared_ptr<Table> join(const TableIdentity& file, std::uint64_t window_bytes,
                                     Status& why) noexcept;
  /// Leaves the table; the last process removes it.  If this process keeps chunk files (by its last
  /// note_memory()) and walks of other processes go on, the files stay for one second.  The other processes
  /// can use the files during this time, and then remove them.
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  /// True in a forked child, which has this object from its parent.  Only this function and the destructor
  /// are allowed there.
  bool is_inherited() const noexcept { return inherited_.load(std::memory_order_relaxed); }

  /// Claims a chunk.  Returns true if this process must read the chunk; `out` is then for release().  Also
  /// returns true for a chunk without a word.  Returns false if another process is reading the chunk.
  bool claim(std::uint32_t chunk, std::uint32_t tag, ClaimValue& out) noexcept;
  /// Ends a claim.  `good`: the chunk was read.  `took_ns`: time since the claim.
  void release(std::uint32_t chunk, ClaimValue mine, bool good, std::int64_t took_ns) noexcept;
  /// Ends a claim if nothing was read; used instead of release().  Any process may then claim the chunk.
  void unclaim(std::uint32_t chunk, ClaimValue mine) noexcept;
  /// Ends a claim if the chunk was there already; used instead of release().
  void found(std::uint32_t chunk, ClaimValue mine) noexcept;
  /// As claim(), for a chunk that is read into a chunk file.  After Look::filled, claimer_life() tells which
  /// process keeps the chunk.  Returns Look::mine for a chunk without a word; see has_word().
  Look claim_file(std::uint32_t chunk, std::uint32_t tag, ClaimValue& out) noexcept;
  /// Claims a filled chunk that is no longer kept by the process that filled it.  Returns true if this
  /// process must read it now.
  bool claim_gone(std::uint32_t chunk, ClaimValue& filled) noexcept;
  bool has_word(std::uint32_t chunk) const noexcept { return chunk < chunks_; }
  /// Returns the Row::life of the process that made that claim, or 0 if it has left.
  std::uint64_t claimer_life(ClaimValue value) const noexcept;
  /// Returns the Row::life of this process.
  std::uint64_t life() const noexcept { return life_; }
  /// Notes how much memory this process may use, in bytes, and how many chunk files it keeps or reads into.
  void note_memory(std::uint64_t limit, std::uint32_t files) noexcept;

  /// Facts about the other processes that have the file open.  The processes wrote these numbers themselves,
  /// so they may have any value.
  struct Others {
    unsigned processes = 0;
    std::uint64_t files = 0;                       ///< chunk files that they keep or have left behind
    std::uint64_t least_limit = ~std::uint64_t{};  ///< smallest limit of their memory, in bytes
    /// Chunks that their walks are about to reach; none if `last` is less than `first`.
    std::uint32_t first = 1, last = 0;
  };
  /// Returns facts about the other processes.  A killed process counts for up to 0.1 s; then its chunk files
  /// are removed.  Chunk files of processes that have left are removed after kLeftBehind, or at once with
  /// `short_of_memory`.
  Others others(bool short_of_memory) noexcept;

  /// Waits for the process that has claimed the chunk.  The time limit is four times the time that the faster
  /// of the two processes needs for a chunk, limited to the range from 50 ms to 2 s.  The claim becomes void
  /// if the other process makes no progress for that long, or if the chunk takes four times that long in all.
  /// Signal handlers may run meanwhile and fork; in the child, is_inherited() then returns true.
  Ended wait(std::uint32_t chunk, std::uint32_t tag) noexcept;

  /// Notes that a walk of this process is in that chunk, and that its program uses `share`/1000 of the data
  /// that the walk reaches.
  void note_walk(std::uint32_t chunk, std::uint32_t share, bool backward = false) noexcept;
  /// Returns the sum, in 1/1000, of the shares that walks of other processes near that chunk use.  May be
  /// more than 1000, since several walks may use the same bytes.
  std::uint32_t use_of_others(std::uint32_t chunk) const noexcept;

  /// Lock and unlock the registry, also around a fork.  While a thread holds the lock, no other thread can
  /// join a table.
  static void lock_registry() noexcept;
  static void unlock_registry() noexcept;
  /// Forgets all tables in a forked child, since they belong to the parent.  Call with the registry locked.
  static void forget_all() noexcept;
  /// Leaves all tables at the end of a process that has not closed its files, since no later call would do
  /// so.
  static void leave_all() noexcept;
  /// Returns true if processes that have left tables left chunk files behind that no process will use any
  /// more.  Any thread.
  static bool has_nobodys_files() noexcept;
  /// Removes these chunk files.  Call this in a thread whose descriptors the program cannot close.
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
  const std::uint64_t chunks_;  ///< number of words
  const std::uint64_t life_;
  unsigned row_ = 0;
  bool has_row_ = false, joined_ = false;
  Claimer me_{};
  std::atomic<bool> inherited_{false};
  std::atomic<std::int64_t> looked_ns_{0};  ///< time of the last check for dead processes
  /// For the process of a row: its progress when this process waited for it in vain (0 if never), and the
  /// time until which this process does not wait for it again.
  struct Stalled {
    std::atomic<std::uint64_t> progress{0};
    std::atomic<std::int64_t> until_ns{0};
  };
  Stalled stalled_[kRows];
};

}  // namespace lmdbio::node
